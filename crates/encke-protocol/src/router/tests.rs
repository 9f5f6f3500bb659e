//! A protocol of the test, served at a path that has an alias.

use encke_access::{Operation, UrlToSign};
use encke_clock::Now;
use encke_stream::View;

use super::*;
use crate::gate::{Admitted, Policy};
use crate::known_field::KnownFields;
use crate::mount::Mount;
use crate::protocol::Protocol;
use crate::request::CallerInfo;
use crate::requirement::RequestHead;

/// Responds with the path that was authorised, and with the part below its mount.
#[derive(Debug)]
struct Echo([Mount; 1]);

impl Protocol for Echo {
    fn mounts(&self) -> &[Mount] {
        &self.0
    }

    fn methods(&self) -> &'static [&'static str] {
        &["GET", "QUERY"]
    }

    fn fields(&self) -> &'static KnownFields {
        &KnownFields::NONE
    }

    fn overview(&self) -> &'static str {
        "Echo         GET /v1/echo/{text}\n"
    }

    fn requirements<'a>(&self, head: &RequestHead<'a>) -> Result<Vec<Requirement<'a>>, Response> {
        Ok(vec![Requirement::at(Operation::Read, head.path)])
    }

    fn opens_events(&self, below: &str, _query: Option<&str>) -> bool {
        below == "events"
    }

    fn request(&self, _request: Request<'_>, admitted: &Admitted<'_>) -> Action {
        Action::Respond(match admitted.require(Operation::Read) {
            Ok(()) => {
                let text = format!("{} {}", admitted.path, admitted.below);
                Response::new(200).body(text)
            }
            Err(refused) => refused,
        })
    }
}

fn access() -> Access {
    let grants = |path: &str| serde_json::json!([{"actions": ["read"], "paths": [path]}]);
    let key = |name: &str, byte: u8, path: &str| {
        let (_, sha256) = encke_access::api_key([byte; 32]);
        serde_json::json!({"name": name, "sha256": sha256, "grants": grants(path)})
    };
    let config = serde_json::json!({
        "api-keys": [key("canonical", 1, "/v1/echo/**"), key("alias", 2, "/echo/**")],
        "signing-keys": [{"kid": "s", "secret": "a secret of at least thirty-two bytes"}],
    });
    let config = serde_json::from_value(config).expect("it is a configuration");
    Access::from_config(&config, &|_| Ok(Vec::new())).expect("it is in order")
}

fn router() -> Router {
    let echo = Echo([Mount::below("/v1/echo/").alias("/echo/**")]);
    let gate = Gate {
        access: Policy::Controlled(Arc::new(access())),
        ..Gate::default()
    };
    let protocols = Protocols::of(vec![Box::new(echo)]);
    let views = Views::one(Arc::new(View::default()));
    let presence = ProtocolSettings::default().presence;
    Router::over(protocols, (views, presence), gate, Encoders::default())
}

/// The status and the body of the response, and the path in the audit log.
fn get(router: &Router, target: &str, key: Option<u8>) -> (u16, String, Option<Box<str>>) {
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let bearer = key.map(|byte| format!("Bearer {}", encke_access::api_key([byte; 32]).0));
    let field = bearer
        .iter()
        .map(|bearer| ("Authorization", bearer.as_bytes()));
    let fields: Vec<_> = field.collect();
    let request = || Request {
        method: "GET",
        path,
        query,
        headers: Headers(&fields),
        body: Vec::new(),
        caller: CallerInfo::default(),
        now: Now::default(),
        barriers: 0,
        upgrade: false,
    };
    let Action::Respond(response) = router.request(request()).action else {
        panic!("the protocol of the test responds");
    };
    let by_its_head = match router.head(&request()) {
        Ok(_) => 200,
        Err(response) => response.status,
    };
    assert_eq!(response.status, by_its_head, "{target}");
    let body = String::from_utf8_lossy(response.body.as_ref()).into_owned();
    (response.status, body, response.audit.map(|note| note.path))
}

#[test]
fn an_alias_is_authorised_and_routed_as_the_path_that_it_stands_for() {
    let router = router();
    for (target, expected) in [
        ("/v1/echo/a/b", "/v1/echo/a/b a/b"),
        ("/echo/a/b", "/v1/echo/a/b a/b"),
        ("/%65cho/a%2Fb", "/v1/echo/a/b a/b"),
        // Decoded once.
        ("/echo/a%2561", "/v1/echo/a%61 a%61"),
        ("/echo/v1/echo/a", "/v1/echo/v1/echo/a v1/echo/a"),
    ] {
        let (status, body, _) = get(&router, target, Some(1));
        assert_eq!((status, &*body), (200, expected), "{target}");
        // A grant for the alias is good for nothing, and logs name the canonical path.
        let (status, _, path) = get(&router, target, Some(2));
        assert_eq!(
            status, 404,
            "what a caller may not read is concealed: {target}"
        );
        assert!(
            path.is_some_and(|path| path.starts_with("/v1/echo/")),
            "{target}"
        );
        assert_eq!(get(&router, target, None).0, 401, "{target}");
    }
    for target in ["/echo", "/echo/", "/echo/..", "/echo/a%2F..", "/echos/a"] {
        assert!(get(&router, target, Some(1)).0 >= 400, "{target}");
    }
    assert!(router.opens_events("/echo/events", None));
    assert!(!router.opens_events("/echo/a", None));
}

#[test]
fn a_signed_url_is_good_by_every_alias_of_its_path() {
    let router = router();
    let path = CanonicalPath::parse("/v1/echo/a").expect("it is canonical");
    let url = UrlToSign {
        method: "GET",
        target: "/v1/echo/a",
        path: &path,
        fields: &[],
        stream: None,
        expires_s: 60,
    };
    let signed = access().sign_url("s", &url);
    let signed = signed.expect("the key is there");
    let (_, query) = signed.split_once('?').expect("it has a signature");
    for (path, status) in [("/v1/echo/a", 200), ("/echo/a", 200), ("/echo/b", 401)] {
        let (got, body, _) = get(&router, &format!("{path}?{query}"), None);
        assert_eq!(got, status, "{path}: {body}");
    }
}

#[test]
fn what_a_protocol_declares_is_in_all_lists() {
    let router = router();
    let (_, text, _) = get(&router, "/", None);
    assert!(
        text.contains("\n\nEcho         GET /v1/echo/{text}\n\n"),
        "{text}"
    );
    let preflight = router.protocols.allowed().preflight(Headers(&[]));
    let fields = String::from_utf8_lossy(&preflight.fields).into_owned();
    assert!(
        fields.contains("Allow-Methods: GET, QUERY, HEAD\r\n"),
        "{fields}"
    );
}
