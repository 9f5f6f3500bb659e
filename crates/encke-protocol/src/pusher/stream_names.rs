//! The names of the streams of apps.

/// What the names of the streams of the app with that id begin with.
pub(super) fn prefix_of(id: &str) -> Box<str> {
    format!("{STREAMS}{id}/").into()
}

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
    }
}
