//! What a server wants of its clients: a token, and header fields.

use std::fmt;
use std::path::PathBuf;

use ureq::http::HeaderMap;
use ureq::http::header::{HeaderName, HeaderValue};

/// A bearer token.
#[derive(Clone)]
pub enum BearerToken {
    /// The token itself.
    Value(String),
    /// A file that has it, with white space around it or none. It is read again when the token is refused, so that a token that ends
    /// can be replaced.
    File(PathBuf),
}

/// What a server wants of its clients.
#[derive(Clone, Default)]
pub struct ServerAccess {
    /// The bearer token, if there is one.
    pub token: Option<BearerToken>,
    /// Header fields of all requests.
    pub fields: Vec<(String, String)>,
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BearerToken::Value(_) => f.write_str("Value(..)"),
            BearerToken::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

impl fmt::Debug for ServerAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.fields.iter().map(|(name, _)| name).collect();
        let token = &self.token;
        f.debug_struct("ServerAccess")
            .field("token", token)
            .field("fields", &names)
            .finish()
    }
}

impl BearerToken {
    /// The value of the field `Authorization`.
    ///
    /// # Errors
    /// What is wrong with the token or its file.
    pub fn authorization(&self) -> Result<HeaderValue, String> {
        let (text, whose) = match self {
            BearerToken::Value(text) => (text.clone(), "the token".to_owned()),
            BearerToken::File(path) => {
                let whose = format!("the token in {}", path.display());
                let text = encke_files::read_text(path);
                (
                    text.map_err(|why| format!("{whose} can't be read: {why}"))?,
                    whose,
                )
            }
        };
        let token = text.trim();
        let token = token.strip_prefix("Bearer ").unwrap_or(token).trim();
        let is_visible = token.bytes().all(|byte| byte.is_ascii_graphic());
        if token.is_empty() || !is_visible {
            return Err(format!(
                "{whose} must be one word of visible ASCII characters"
            ));
        }
        let value = HeaderValue::try_from(format!("Bearer {token}"));
        let mut value = value.map_err(|_| format!("{whose} can't be sent"))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

impl ServerAccess {
    /// The fields as they are sent.
    ///
    /// # Errors
    /// What is wrong with one of them.
    pub fn parsed_fields(&self) -> Result<HeaderMap, String> {
        let mut fields = HeaderMap::new();
        for (name, value) in &self.fields {
            let key = HeaderName::try_from(name);
            let key = key.map_err(|_| format!("{name:?} is no name of a header field"))?;
            if OWN_FIELDS.contains(&key.as_str()) {
                return Err(format!("the import sets the field {name} itself"));
            }
            if key == "authorization" && self.token.is_some() {
                return Err("a token and a field Authorization exclude each other".into());
            }
            let value = HeaderValue::try_from(value);
            let mut value =
                value.map_err(|_| format!("the value of the field {name} can't be sent"))?;
            value.set_sensitive(true);
            fields.append(key, value);
        }
        Ok(fields)
    }
}

/// Fields that requests have anyway.
const OWN_FIELDS: [&str; 14] = [
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "if-match",
    "producer-epoch",
    "producer-id",
    "producer-seq",
    "stream-closed",
    "transfer-encoding",
    "user-agent",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_one_word_and_are_not_shown() {
        let token = |text: &str| BearerToken::Value(text.into());
        let value = token(" Bearer abc\n").authorization().unwrap();
        assert_eq!(value.to_str().unwrap(), "Bearer abc");
        for wrong in ["", " ", "two words", "caf\u{e9}"] {
            let error = token(wrong).authorization().unwrap_err();
            assert!(error.contains("one word"), "{error}");
        }
        let access = ServerAccess {
            token: Some(token("secret")),
            fields: vec![("X-Key".into(), "secret".into())],
        };
        assert!(!format!("{access:?}").contains("secret"));
    }

    #[test]
    fn fields_that_the_import_needs_are_refused() {
        let fields = |name: &str, value: &str| {
            let fields = vec![(name.to_owned(), value.to_owned())];
            ServerAccess {
                token: None,
                fields,
            }
            .parsed_fields()
        };
        assert_eq!(fields("X-Key", "a b").unwrap().len(), 1);
        for (name, value, why) in [
            ("Producer-Id", "x", "itself"),
            ("x y", "z", "no name"),
            ("x", "a\nb", "can't be sent"),
        ] {
            let error = fields(name, value).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
