//! A request as a face sees it.

/// A request, parsed and with its whole body.
#[derive(Debug)]
pub struct Request<'a> {
    /// The method, as sent.
    pub method: &'a str,
    /// The target's path, still percent-encoded.
    pub path: &'a str,
    /// What follows the path's `?`.
    pub query: Option<&'a str>,
    /// The fields, in the order sent.
    pub headers: Headers<'a>,
    /// The body; empty when there is none.
    pub body: Vec<u8>,
    /// How it came here, where that is not as it looks.
    pub via: Via<'a>,
    /// Milliseconds since 1970.
    pub now_ms: u64,
}

/// What a trusted proxy says about how the client addressed it; nothing by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Via<'a> {
    /// The client used https.
    pub tls: bool,
    /// The host that the client named, if not the one in the request.
    pub host: Option<&'a str>,
}

/// A request's fields.
#[derive(Clone, Copy, Debug)]
pub struct Headers<'a>(pub &'a [(&'a str, &'a [u8])]);

impl<'a> Headers<'a> {
    /// The value of the first field with that name, without regard to case.
    pub fn first(&self, name: &str) -> Option<&'a [u8]> {
        self.all(name).next()
    }

    /// The values of all fields with that name.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.0
            .iter()
            .filter(move |(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| *value)
    }

    /// The value of the first field with that name as text, without the blanks around it: nothing if
    /// it is absent, an error if it is not UTF-8.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>, NotText> {
        match self.first(name) {
            None => Ok(None),
            Some(value) => std::str::from_utf8(value)
                .map(|value| Some(value.trim_matches([' ', '\t'])))
                .map_err(|_| NotText),
        }
    }
}

/// A field holds bytes that are no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the field is not UTF-8")]
pub struct NotText;
