//! The names in requests: of subscriptions, of streams and of workers.

use crate::bounds::{ID_BYTES_MAX, STREAM_NAME_BYTES_MAX};
use crate::error::SubscriptionError;
use crate::glob::is_matchable;

/// The id of a subscription, which its client has chosen.
///
/// # Errors
/// [`SubscriptionError::BadId`]: it is empty, longer than [`ID_BYTES_MAX`], or has a slash or a control character.
pub fn subscription_id(text: &str) -> Result<Box<str>, SubscriptionError> {
    // With a slash it could not be told from what follows it in a path.
    let is_wrong = |c: char| c == '/' || c.is_control();
    match text.is_empty() || text.len() > ID_BYTES_MAX || text.chars().any(is_wrong) {
        true => Err(SubscriptionError::BadId),
        false => Ok(text.into()),
    }
}

/// The name of a stream. Slashes at both ends do not count.
///
/// # Errors
/// [`SubscriptionError::BadStreamName`]: no stream can have the name.
pub fn stream_name(text: &str) -> Result<Box<str>, SubscriptionError> {
    let name = text.trim_matches('/');
    let is_wrong = name.is_empty()
        || name.len() > STREAM_NAME_BYTES_MAX
        || name.chars().any(char::is_control)
        || name
            .split('/')
            .any(|segment| matches!(segment, "" | "." | ".."))
        || !is_matchable(name);
    match is_wrong {
        true => Err(SubscriptionError::BadStreamName(cut(text).into())),
        false => Ok(name.into()),
    }
}

/// The beginning of a text, so that a message does not repeat all of a long one.
fn cut(text: &str) -> &str {
    text.char_indices()
        .nth(SHOWN_CHARACTERS_MAX)
        .map_or(text, |(at, _)| &text[..at])
}

const SHOWN_CHARACTERS_MAX: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_one_segment() {
        let long = "x".repeat(ID_BYTES_MAX);
        for id in ["a", "sub-1", "ä b", &long] {
            assert_eq!(subscription_id(id).as_deref(), Ok(id));
        }
        for id in ["", "a/b", "a\n", &format!("{long}x")] {
            assert_eq!(subscription_id(id), Err(SubscriptionError::BadId), "{id:?}");
        }
    }

    #[test]
    fn a_name_is_one_that_a_stream_can_have() {
        let long = "x".repeat(STREAM_NAME_BYTES_MAX);
        for (text, name) in [
            ("a", "a"),
            ("/a/b/", "a/b"),
            ("a/__ds", "a/__ds"),
            ("a*", "a*"),
            (&long, &long),
        ] {
            assert_eq!(stream_name(text).as_deref(), Ok(name));
        }
        for text in [
            "",
            "/",
            "a//b",
            "a/./b",
            "..",
            "a\u{1}",
            "\u{1}pools",
            "__ds",
            "__ds/x",
            &format!("{long}x"),
        ] {
            let refused = stream_name(text).unwrap_err();
            assert!(
                matches!(refused, SubscriptionError::BadStreamName(_)),
                "{text:?}"
            );
            assert!(refused.to_string().len() < 400);
        }
    }
}
