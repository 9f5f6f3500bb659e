//! Positions in a channel, as its clients are given them: an offset, and the app's signature of it. Whoever may subscribe to a channel may have
//! what follows it; what was before a client came to know the channel takes an app that allows it.

use std::fmt;

use encke_stream::Offset;

use super::app::App;
use crate::streams::StartPosition;

/// A position that its client is given.
#[derive(Debug)]
pub(super) struct SignedPosition {
    at: Offset,
    tag: String,
}

/// A client may not begin there.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadPosition {
    #[error(
        "it is neither `now` nor a position that the server has given to a client of this channel; other ones need rewind = true in the settings of the app"
    )]
    Unsigned,
    #[error(transparent)]
    Form(#[from] <StartPosition as std::str::FromStr>::Err),
}

impl SignedPosition {
    pub(super) fn new(app: &App, channel: &str, at: Offset) -> Self {
        let tag = app.signer.short(signed_text(channel, at));
        SignedPosition { at, tag }
    }
}

impl fmt::Display for SignedPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{SEPARATOR}{}", self.at, self.tag)
    }
}

/// Reads where a client wants to go on in a channel.
///
/// # Errors
/// Why it may not begin there.
pub(super) fn parse_position(
    app: &App,
    channel: &str,
    text: &str,
) -> Result<StartPosition, BadPosition> {
    if let Some((offset, tag)) = text.split_once(SEPARATOR) {
        let position = offset.parse()?;
        return match position {
            StartPosition::At(at) if app.signer.verifies_short(signed_text(channel, at), tag) => {
                Ok(position)
            }
            _ => Err(BadPosition::Unsigned),
        };
    }
    match text.parse()? {
        StartPosition::Now => Ok(StartPosition::Now),
        position if app.settings.rewind => Ok(position),
        _ => Err(BadPosition::Unsigned),
    }
}

/// What is signed. No other signature of an app is of a text that begins so.
fn signed_text(channel: &str, at: Offset) -> String {
    format!("encke-position:{channel}:{at}")
}

/// Between an offset and its signature.
const SEPARATOR: char = '.';

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::pusher::settings::PusherApp;

    fn app(rewind: bool) -> App {
        let settings = PusherApp {
            rewind,
            ..PusherApp::new("1", "k", "0123456789abcdef".into())
        };
        App::new(settings, Arc::default())
    }

    #[test]
    fn a_client_goes_on_where_it_was_given_a_position() {
        let app = app(false);
        let at = Offset::behind(7);
        let position = SignedPosition::new(&app, "a", at).to_string();
        assert_eq!(
            parse_position(&app, "a", &position).unwrap(),
            StartPosition::At(at)
        );
        assert_eq!(
            parse_position(&app, "a", "now").unwrap(),
            StartPosition::Now
        );
        let (offset, tag) = position.split_once('.').unwrap();
        let other = Offset::behind(6);
        for refused in [
            "-1",
            offset,
            &format!("{offset}."),
            &position[..position.len() - 1],
            &format!("{position}0"),
            &format!("{other}.{tag}"),
            &format!("-1.{tag}"),
            &format!("now.{tag}"),
        ] {
            let error = parse_position(&app, "a", refused).unwrap_err();
            assert!(matches!(error, BadPosition::Unsigned), "{refused}: {error}");
        }
        // Of another channel.
        assert!(parse_position(&app, "b", &position).is_err());
        assert!(matches!(
            parse_position(&app, "a", "yesterday"),
            Err(BadPosition::Form(_))
        ));
    }

    #[test]
    fn an_app_that_allows_it_gives_all_that_is_kept() {
        let app = app(true);
        let at = Offset::behind(7);
        for (text, position) in [
            ("-1".to_owned(), StartPosition::Start),
            (at.to_string(), StartPosition::At(at)),
            (
                SignedPosition::new(&app, "a", at).to_string(),
                StartPosition::At(at),
            ),
        ] {
            assert_eq!(parse_position(&app, "a", &text).unwrap(), position);
        }
        assert!(parse_position(&app, "a", &format!("{at}.00")).is_err());
    }
}
