//! The names of the server's own streams, in which it keeps its state. The retention of a log leaves their records.

use super::number::PROBE_PREFIX;

/// Whether a stream of this name is one of the server's own: clients cannot use the names that begin with `\u{1}`, and cannot write
/// to the streams of the webhooks of an app. The streams of the health probe hold no state.
pub fn is_own(name: &str) -> bool {
    match name.strip_prefix(APPS) {
        Some(below) => below
            .split_once('/')
            .is_some_and(|(_, channel)| channel.starts_with(OF_WEBHOOKS)),
        None => name.starts_with(OWN) && !name.starts_with(PROBE_PREFIX),
    }
}

/// The names of streams that no client can use begin with this.
pub(crate) const OWN: char = '\u{1}';

/// The names of the streams of all apps begin with this. The id of the app and a slash follow.
pub const APPS: &str = "app/";

/// The names of an app's streams of webhooks begin with this, below [`APPS`] and the id of the app.
pub const OF_WEBHOOKS: &str = "#webhook";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::number::probe_stream;

    #[test]
    fn own_streams_are_known_by_their_names() {
        for own in ["\u{1}pools", "\u{1}revocations", "app/a/#webhooks"] {
            assert!(is_own(own), "{own:?}");
        }
        for other in [
            "pool/p/results",
            "app/a/room",
            "app/#webhooks",
            "x/a/#webhooks",
            &probe_stream(0),
        ] {
            assert!(!is_own(other), "{other:?}");
        }
    }
}
