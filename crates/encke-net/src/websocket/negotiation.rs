//! Negotiates permessage-deflate (RFC 7692, sections 5 and 7.1).

use super::deflate::WINDOW_BITS;
use super::extensions::{ExtensionOffer, Parameter};

/// An offer of permessage-deflate whose parameters are valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeflateOffer {
    /// The client asks the server to compress every message on its own (section 7.1.1.1).
    pub(crate) server_no_context_takeover: bool,
    /// The client compresses every message on its own in any case (section 7.1.1.2).
    pub(crate) client_no_context_takeover: bool,
    /// The largest window that the server may use, from 8 to 15 bits (section 7.1.2.1).
    pub(crate) server_max_window_bits: Option<u8>,
    /// Whether the server may bound the window of the client (section 7.1.2.2).
    pub(crate) client_max_window_bits: ClientWindow,
}

/// What a client says of its own window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ClientWindow {
    /// The server must not bound it.
    #[default]
    Fixed,
    /// The server may bound it.
    Boundable,
    /// It has at most this number of bits, from 8 to 15, in any case.
    AtMost(u8),
}

/// What a connection agrees on: no context takeover in either direction, and a window of [`WINDOW_BITS`] bits for the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeflateAgreement {
    /// The client bounded the window, so the response says what it is.
    is_window_bounded: bool,
}

impl DeflateOffer {
    /// The offers of permessage-deflate among all. An offer with an unknown parameter, one that is there twice, or a value out of
    /// range is left out, because a server must decline it (section 7).
    pub(crate) fn select(offers: &[ExtensionOffer<'_>]) -> Vec<DeflateOffer> {
        offers
            .iter()
            .filter(|offer| offer.name.eq_ignore_ascii_case(NAME))
            .filter_map(|offer| DeflateOffer::parse(&offer.parameters))
            .collect()
    }

    fn parse(parameters: &[Parameter<'_>]) -> Option<DeflateOffer> {
        let mut offer = DeflateOffer::default();
        for (index, parameter) in parameters.iter().enumerate() {
            let is_repeated = |before: &Parameter<'_>| before.name == parameter.name;
            if parameters[..index].iter().any(is_repeated) {
                return None;
            }
            match (parameter.name, parameter.value.as_deref()) {
                ("server_no_context_takeover", None) => offer.server_no_context_takeover = true,
                ("client_no_context_takeover", None) => offer.client_no_context_takeover = true,
                ("server_max_window_bits", Some(bits)) => {
                    offer.server_max_window_bits = Some(window_bits(bits)?);
                }
                ("client_max_window_bits", None) => {
                    offer.client_max_window_bits = ClientWindow::Boundable;
                }
                ("client_max_window_bits", Some(bits)) => {
                    offer.client_max_window_bits = ClientWindow::AtMost(window_bits(bits)?);
                }
                _ => return None,
            }
        }
        Some(offer)
    }
}

impl DeflateAgreement {
    /// Accepts the first offer that the server can meet; `None` if there is none, and messages are not compressed.
    ///
    /// The only offer that it cannot meet is a smaller window for the server. The window of the client is left as it is: the
    /// decompressor takes any.
    pub(crate) fn negotiate(offers: &[DeflateOffer]) -> Option<DeflateAgreement> {
        let accept = |offer: &DeflateOffer| {
            let bits_max = offer.server_max_window_bits.unwrap_or(WINDOW_BITS);
            (bits_max >= WINDOW_BITS).then_some(DeflateAgreement {
                is_window_bounded: offer.server_max_window_bits.is_some(),
            })
        };
        offers.iter().find_map(accept)
    }

    /// The value of Sec-WebSocket-Extensions in the response.
    ///
    /// A client must support `client_no_context_takeover` even where it did not offer it (section 7.1.1.2).
    pub(crate) fn field_value(self) -> String {
        let base = format!("{NAME}; server_no_context_takeover; client_no_context_takeover");
        match self.is_window_bounded {
            true => format!("{base}; server_max_window_bits={WINDOW_BITS}"),
            false => base,
        }
    }
}

/// A number of bits: 8 to 15 in decimal, without leading zeros.
fn window_bits(value: &str) -> Option<u8> {
    match value {
        "8" => Some(8),
        "9" => Some(9),
        "10" => Some(10),
        "11" => Some(11),
        "12" => Some(12),
        "13" => Some(13),
        "14" => Some(14),
        "15" => Some(15),
        _ => None,
    }
}

const NAME: &str = "permessage-deflate";

#[cfg(test)]
mod tests {
    use super::super::extensions;
    use super::*;

    fn response(value: &str) -> Option<String> {
        let mut offers = Vec::new();
        extensions::parse(value.as_bytes(), &mut offers).expect("the grammar is followed");
        let offers = DeflateOffer::select(&offers);
        DeflateAgreement::negotiate(&offers).map(DeflateAgreement::field_value)
    }

    #[test]
    fn every_parameter_is_understood() {
        let mut offers = Vec::new();
        let value = b"permessage-deflate; client_max_window_bits=8; server_max_window_bits=\"10\"; \
            client_no_context_takeover; server_no_context_takeover, PerMessage-Deflate;client_max_window_bits";
        extensions::parse(value, &mut offers).unwrap();
        assert_eq!(
            DeflateOffer::select(&offers),
            [
                DeflateOffer {
                    server_no_context_takeover: true,
                    client_no_context_takeover: true,
                    server_max_window_bits: Some(10),
                    client_max_window_bits: ClientWindow::AtMost(8),
                },
                DeflateOffer {
                    client_max_window_bits: ClientWindow::Boundable,
                    ..DeflateOffer::default()
                },
            ]
        );
    }

    #[test]
    fn the_first_offer_that_can_be_met_is_accepted() {
        let plain = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
        for value in [
            "permessage-deflate",
            "permessage-deflate; client_max_window_bits",
            "x-webkit-deflate-frame, permessage-deflate",
            "permessage-deflate; server_max_window_bits=8, permessage-deflate",
            "permessage-deflate; server_max_window_bits=11, permessage-deflate",
        ] {
            assert_eq!(response(value).as_deref(), Some(plain), "{value}");
        }
        let bounded = format!("{plain}; server_max_window_bits=12");
        for value in [
            "permessage-deflate; server_max_window_bits=12, permessage-deflate",
            "permessage-deflate; server_max_window_bits=15",
        ] {
            assert_eq!(response(value).as_deref(), Some(&*bounded), "{value}");
        }
        for declined in [
            "server_max_window_bits",
            "server_max_window_bits=8",
            "server_max_window_bits=11",
            "server_max_window_bits=7",
            "server_max_window_bits=16",
            "server_max_window_bits=09",
            "server_max_window_bits=+9",
            "client_max_window_bits=7",
            "client_max_window_bits=015",
            "server_no_context_takeover=1",
            "client_no_context_takeover; client_no_context_takeover",
            "unknown",
        ] {
            let value = format!("permessage-deflate; {declined}");
            assert_eq!(response(&value), None, "{value}");
        }
        assert_eq!(response("permessage-bzip2"), None);
    }
}
