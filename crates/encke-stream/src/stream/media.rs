//! Content types, and the kinds of data that they name.

/// A content type. Streams share it.
#[derive(Debug, PartialEq, Eq)]
pub struct Media {
    /// As the creator wrote it.
    pub name: Box<str>,
    /// The kind of data.
    pub kind: MediaKind,
}

/// The kind of data of a content type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaKind {
    /// Messages, each a JSON value (`application/json`).
    Json,
    /// Text in UTF-8 (`text/*`).
    Text,
    /// Bytes (all others).
    Binary,
}

impl Media {
    /// The type that a `Content-Type` names.
    pub fn new(name: &str) -> Self {
        let essence = essence(name);
        let kind = if essence.eq_ignore_ascii_case("application/json") {
            MediaKind::Json
        } else if essence
            .get(..5)
            .is_some_and(|start| start.eq_ignore_ascii_case("text/"))
        {
            MediaKind::Text
        } else {
            MediaKind::Binary
        };
        Media {
            name: name.into(),
            kind,
        }
    }

    /// Whether `other` names the same type. Case and parameters are ignored.
    pub fn matches(&self, other: &str) -> bool {
        essence(&self.name).eq_ignore_ascii_case(essence(other))
    }
}

fn essence(name: &str) -> &str {
    name.split(';').next().unwrap_or(name).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_match_by_their_essence() {
        let json = Media::new("Application/JSON; charset=utf-8");
        assert_eq!(json.kind, MediaKind::Json);
        assert!(json.matches("application/json"));
        assert!(!json.matches("application/jsonl"));
        assert_eq!(Media::new("TEXT/html").kind, MediaKind::Text);
        assert_eq!(Media::new("téxt").kind, MediaKind::Binary);
    }
}
