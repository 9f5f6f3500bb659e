//! Positions in a channel in the form that clients get: an offset, and the app's signature of it. A client that may subscribe to a channel gets
//! what follows a position that it was given. Earlier events need an app that allows it (`rewind`).

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

/// Where a client wants to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WantedPosition {
    pub(super) start: StartPosition,
    /// It was somewhere that the server does not know: in another channel, or before the secret of the app was changed.
    pub(super) is_unknown: bool,
}

/// A client may not begin there.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadPosition {
    #[error(
        "it is neither `now` nor a position that the server has given to a client of this channel; others need rewind = true in the settings of the app"
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

/// Reads where a client wants to go on in a channel. What has another signature begins now.
///
/// # Errors
/// Why it may not begin there.
pub(super) fn parse_position(
    app: &App,
    channel: &str,
    text: &str,
) -> Result<WantedPosition, BadPosition> {
    let known = |start| WantedPosition {
        start,
        is_unknown: false,
    };
    if let Some((offset, tag)) = text.split_once(SEPARATOR) {
        return Ok(match offset.parse()? {
            StartPosition::At(at) if app.signer.verifies_short(signed_text(channel, at), tag) => {
                known(StartPosition::At(at))
            }
            _ => WantedPosition {
                start: StartPosition::Now,
                is_unknown: true,
            },
        });
    }
    match text.parse()? {
        StartPosition::Now => Ok(known(StartPosition::Now)),
        start if app.settings.rewind => Ok(known(start)),
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

    fn parsed(app: &App, channel: &str, text: &str) -> Option<(StartPosition, bool)> {
        let wanted = parse_position(app, channel, text);
        wanted.ok().map(|wanted| (wanted.start, wanted.is_unknown))
    }

    #[test]
    fn a_client_goes_on_where_it_was_given_a_position() {
        let app = app(false);
        let at = Offset::behind(7);
        let position = SignedPosition::new(&app, "a", at).to_string();
        let known = Some((StartPosition::At(at), false));
        assert_eq!(parsed(&app, "a", &position), known);
        assert_eq!(parsed(&app, "a", "now"), Some((StartPosition::Now, false)));
        let (offset, tag) = position.split_once('.').unwrap();
        let other = Offset::behind(6);
        let unknown = Some((StartPosition::Now, true));
        for made_up in [
            &format!("{offset}."),
            &position[..position.len() - 1],
            &format!("{position}0"),
            &format!("{other}.{tag}"),
            &format!("-1.{tag}"),
            &format!("now.{tag}"),
        ] {
            assert_eq!(parsed(&app, "a", made_up), unknown, "{made_up}");
        }
        // Of another channel.
        assert_eq!(parsed(&app, "b", &position), unknown);
        for refused in ["-1", offset] {
            let error = parse_position(&app, "a", refused).unwrap_err();
            assert!(matches!(error, BadPosition::Unsigned), "{refused}: {error}");
        }
        for bad in ["yesterday", "yesterday.0"] {
            let error = parse_position(&app, "a", bad).unwrap_err();
            assert!(matches!(error, BadPosition::Form(_)), "{bad}: {error}");
        }
    }

    #[test]
    fn an_app_that_allows_it_gives_all_that_is_kept() {
        let app = app(true);
        let at = Offset::behind(7);
        let signed = SignedPosition::new(&app, "a", at).to_string();
        for (text, start) in [
            ("-1", StartPosition::Start),
            (&at.to_string(), StartPosition::At(at)),
            (&signed, StartPosition::At(at)),
        ] {
            assert_eq!(parsed(&app, "a", text), Some((start, false)));
        }
        let other = parsed(&app, "a", &format!("{at}.00"));
        assert_eq!(other, Some((StartPosition::Now, true)));
    }
}
