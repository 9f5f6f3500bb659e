//! What a client offers in `Sec-WebSocket-Protocol` (RFC 6455, section 11.3.4): the protocol of channels, and a token beside it, because a
//! script in a browser can set no other field of the handshake.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::request::Headers;

/// An offer, as far as it concerns this server. Other names in it are those of other servers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SubprotocolOffer {
    /// The client speaks [`CHANNEL_PROTOCOL`].
    pub(crate) has_channels: bool,
    /// The token, decoded.
    pub(crate) token: Option<String>,
}

/// Why an offer cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadOffer {
    /// A token is not text in base64url without padding.
    Encoding,
    /// There are two tokens.
    TwoTokens,
}

impl SubprotocolOffer {
    /// The offer in the fields of a handshake.
    pub(crate) fn parse(headers: Headers<'_>) -> Result<Self, BadOffer> {
        let mut offer = SubprotocolOffer::default();
        let lists = headers.all(SUBPROTOCOL_FIELD);
        let names = lists.flat_map(|list| list.split(|byte| *byte == b','));
        for name in names.map(<[u8]>::trim_ascii) {
            if name == CHANNEL_PROTOCOL.as_bytes() {
                offer.has_channels = true;
            } else if let Some(encoded) = name.strip_prefix(TOKEN_PREFIX) {
                let token = URL_SAFE_NO_PAD.decode(encoded).ok();
                let token = token.and_then(|token| String::from_utf8(token).ok());
                let token = token.ok_or(BadOffer::Encoding)?;
                if offer.token.replace(token).is_some() {
                    return Err(BadOffer::TwoTokens);
                }
            }
        }
        Ok(offer)
    }
}

/// The protocol of channels, in its first version.
pub(crate) const CHANNEL_PROTOCOL: &str = "encke.v1";

/// The field of an offer, and of the name that is chosen from it.
pub(crate) const SUBPROTOCOL_FIELD: &str = "Sec-WebSocket-Protocol";

/// A token in base64url follows it.
const TOKEN_PREFIX: &[u8] = b"encke.token.";

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(values: &[&str]) -> Result<SubprotocolOffer, BadOffer> {
        let fields = values
            .iter()
            .map(|value| ("sec-websocket-protocol", value.as_bytes()));
        SubprotocolOffer::parse(Headers(&fields.collect::<Vec<_>>()))
    }

    #[test]
    fn an_offer_has_the_protocol_and_a_token() {
        let offer = |has_channels, token: Option<&str>| {
            let token = token.map(str::to_owned);
            Ok(SubprotocolOffer {
                has_channels,
                token,
            })
        };
        assert_eq!(parse(&[]), offer(false, None));
        assert_eq!(parse(&["chat, encke.v2, Encke.v1"]), offer(false, None));
        assert_eq!(parse(&["encke.v1"]), offer(true, None));
        assert_eq!(
            parse(&["chat,encke.v1 , encke.token.YS5i"]),
            offer(true, Some("a.b"))
        );
        assert_eq!(
            parse(&["encke.token.YS5i", "encke.v1"]),
            offer(true, Some("a.b"))
        );
        for bad in ["encke.token.YS5i==", "encke.token.a+b/", "encke.token._w"] {
            assert_eq!(parse(&["encke.v1", bad]), Err(BadOffer::Encoding), "{bad}");
        }
        let twice = parse(&["encke.v1, encke.token.YS5i, encke.token.YS5i"]);
        assert_eq!(twice, Err(BadOffer::TwoTokens));
    }
}
