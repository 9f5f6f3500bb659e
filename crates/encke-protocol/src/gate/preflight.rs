//! Answers a browser's question which requests scripts of other origins may send (Fetch, section 3.2.2).

use crate::known_field::KnownField;
use crate::request::Headers;
use crate::response::Response;

/// The requests that scripts of allowed origins may send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AllowedRequests {
    /// The methods of all protocols.
    methods: String,
    /// The fields that have a meaning, separated by commas.
    fields: String,
}

impl AllowedRequests {
    /// The requests of protocols with these methods and header fields. What is there twice counts once.
    pub(crate) fn of<'a>(
        methods: impl Iterator<Item = &'static str>,
        fields: impl Iterator<Item = &'a KnownField>,
    ) -> Self {
        let asked = fields
            .map(|field| field.name)
            .filter(|name| !UNASKED.contains(name));
        let fields = FIRST.into_iter().chain(asked).chain(LAST);
        AllowedRequests {
            methods: joined(methods),
            fields: joined(fields),
        }
    }

    /// The response to a preflight request. The reactor adds which origins.
    pub(crate) fn preflight(&self, headers: Headers<'_>) -> Response {
        let mut fields = self.fields.clone();
        for name in self.further_fields(headers) {
            fields.push_str(", ");
            fields.push_str(name);
        }
        Response::shared(204)
            .field("Access-Control-Allow-Methods", &self.methods)
            .field("Access-Control-Allow-Headers", fields)
            .field("Access-Control-Max-Age", "86400")
    }

    /// The fields that a page wants to send and that mean nothing here, such as those that libraries for tracing add. With credentials
    /// a browser takes no `*` for them, so each is named.
    fn further_fields<'a>(&self, headers: Headers<'a>) -> impl Iterator<Item = &'a str> {
        let requested = headers.text("Access-Control-Request-Headers");
        let requested = requested.ok().flatten().unwrap_or_default();
        let names = requested
            .split(',')
            .map(|name| name.trim_matches([' ', '\t']));
        names
            .filter(|name| self.is_further_field(name))
            .take(FURTHER_FIELDS_MAX)
    }

    fn is_further_field(&self, name: &str) -> bool {
        let is_token =
            |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        // What proxies say, to this server or to one between, and what begins like a field of this server.
        let lower = name.to_ascii_lowercase().replace('_', "-");
        let is_of_a_proxy = lower.contains("forwarded") || PROXY_FIELDS.contains(&&*lower);
        let is_ours = |ours: &str| ours.eq_ignore_ascii_case(name);
        (1..=FURTHER_FIELD_BYTES_MAX).contains(&name.len())
            && name != "*"
            && name.bytes().all(is_token)
            && !is_of_a_proxy
            && !lower.starts_with("encke-")
            && !self.fields.split(", ").any(is_ours)
    }
}

/// Names as a list, each once.
pub(crate) fn joined(names: impl Iterator<Item = &'static str>) -> String {
    let mut once: Vec<&str> = Vec::new();
    for name in names {
        if !once.contains(&name) {
            once.push(name);
        }
    }
    once.join(", ")
}

/// The fields that requests of any protocol may have: of the body, of credentials, and of logs.
const FIRST: [&str; 2] = ["Content-Type", "Authorization"];
const LAST: [&str; 3] = ["X-Request-Id", "Traceparent", "Tracestate"];

/// What a browser sets itself, or may set without asking (Fetch, section 2.2.2).
const UNASKED: [&str; 2] = ["Accept", "Accept-Encoding"];

/// Fields without a meaning that one preflight request may name, as many as a request may have.
const FURTHER_FIELDS_MAX: usize = 100;

/// Fields by which proxies say whose a request is, or what it really asks for.
const PROXY_FIELDS: [&str; 6] = [
    "x-real-ip",
    "x-client-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "x-http-method-override",
    "x-original-url",
];

/// Bytes of the name of such a field.
const FURTHER_FIELD_BYTES_MAX: usize = 64;
