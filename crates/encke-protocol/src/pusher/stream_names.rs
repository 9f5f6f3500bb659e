//! The names of the streams of apps.

use encke_stream::{APPS, OF_WEBHOOKS};

/// What the names of the streams of the app with that id begin with.
pub(super) fn prefix_of(id: &str) -> Box<str> {
    format!("{APPS}{id}/").into()
}

/// Whether a stream belongs to the webhooks of an app. No channel has such a name.
pub(crate) fn is_of_webhooks(stream: &str) -> bool {
    channel_of(stream).starts_with(OF_WEBHOOKS)
}

/// The stream with what webhooks are told of.
pub(super) const WEBHOOK_LOG: &str = "#webhooks";

/// The streams that say how far webhooks are, before something that stands for the URL of each.
pub(super) const WEBHOOK_REACHED: &str = "#webhook-reached-";

/// The channel of a stream, by the stream's name: what follows the app's id.
pub(super) fn channel_of(stream: &str) -> &str {
    let below = stream.strip_prefix(APPS).unwrap_or_default();
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
            let name = format!("app/a1/{name}");
            assert!(is_of_webhooks(&name) && encke_stream::is_own(&name));
            assert!(!is_of_webhooks(&name.replace("app/", "chat/")));
        }
        assert!(!is_of_webhooks("app/a1/webhooks"));
    }
}
