//! The names of the streams of apps.

/// What the names of the streams of the app with that id begin with.
pub(super) fn prefix_of(id: &str) -> Box<str> {
    format!("{STREAMS}{id}/").into()
}

/// Whether a stream belongs to the webhooks of an app. No channel has such a name.
pub(crate) fn is_of_webhooks(stream: &str) -> bool {
    channel_of(stream).starts_with(OF_WEBHOOKS)
}

/// What the names of streams of webhooks begin with, below the prefix of their app.
const OF_WEBHOOKS: &str = "#webhook";

/// The stream with what webhooks are told of.
pub(super) const WEBHOOK_LOG: &str = "#webhooks";

/// The streams that say how far webhooks are, before something that stands for the URL of each.
pub(super) const WEBHOOK_REACHED: &str = "#webhook-reached-";

/// What the names of the streams of all apps begin with.
const STREAMS: &str = "app/";

/// The channel of a stream, by the stream's name: what follows the app's id.
pub(super) fn channel_of(stream: &str) -> &str {
    let below = stream.strip_prefix(STREAMS).unwrap_or_default();
    below.split_once('/').map_or("", |(_, channel)| channel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_names_its_channel() {
        assert_eq!(&*prefix_of("a1"), "app/a1/");
        assert_eq!(channel_of("app/a1/private-x"), "private-x");
        assert_eq!(channel_of("chat"), "");
        for name in [WEBHOOK_LOG, WEBHOOK_REACHED] {
            assert!(is_of_webhooks(&format!("app/a1/{name}")));
            assert!(!is_of_webhooks(&format!("chat/a1/{name}")));
        }
        assert!(!is_of_webhooks("app/a1/webhooks"));
    }
}
