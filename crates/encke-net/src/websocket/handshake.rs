//! The opening handshake of a server (RFC 6455, section 4.2; RFC 8441, section 5).
//!
//! The request parser checks Host and the framing before. The caller decides the rest: whether the path exists, whether the
//! origin is allowed, and which subprotocol and extension the response selects.

use aws_lc_rs::digest;
use base64::Engine;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};

use super::extensions::{self, parse_tokens};
use super::negotiation::DeflateOffer;

/// The fields of a request: names and values.
pub(crate) type HandshakeFields<'a> = [(&'a str, &'a [u8])];

/// A handshake that keeps the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Opening<'a> {
    /// The value of Sec-WebSocket-Accept. `None` over HTTP/2, where the response is a status of 200 without it.
    pub(crate) accept: Option<String>,
    /// The subprotocols that the client offers, in the order in which it prefers them. None is there twice.
    pub(crate) subprotocols: Vec<&'a str>,
    /// The offers of permessage-deflate that are valid, in the order in which the client prefers them.
    pub(crate) deflate_offers: Vec<DeflateOffer>,
}

/// Why a handshake is refused. The text says what is wrong and what is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HandshakeRefusal {
    /// Sec-WebSocket-Version is missing, is there twice, or is not 13.
    #[error("only version 13 of WebSocket is supported: Sec-WebSocket-Version must be 13")]
    Version {
        /// The status: [`STATUS_UPGRADE_REQUIRED`], or [`STATUS_BAD_REQUEST`] over HTTP/2, which has no Upgrade field.
        status: u16,
    },
    /// Sec-WebSocket-Key is missing, is there twice, or does not stand for 16 bytes.
    #[error("Sec-WebSocket-Key must be there once, as 16 bytes in Base64")]
    Key,
    /// The method is not GET.
    #[error("a WebSocket is opened with GET")]
    Method,
    /// The request is HTTP/1.0.
    #[error("a WebSocket is opened with HTTP/1.1 or HTTP/2, not HTTP/1.0")]
    HttpVersion,
    /// A field of the handshake is there, but Upgrade does not list websocket.
    #[error(
        "the field Upgrade must list websocket; a proxy that does not forward it must be set up for WebSocket"
    )]
    Upgrade,
    /// Connection does not list upgrade.
    #[error(
        "the field Connection must list Upgrade; a proxy that does not forward it must be set up for WebSocket"
    )]
    Connection,
    /// A request of HTTP/2 has fields of a handshake, and is no extended CONNECT.
    #[error("a WebSocket over HTTP/2 is opened with an extended CONNECT, as RFC 8441 defines it")]
    ExtendedConnect,
    /// Sec-WebSocket-Protocol is not a list of tokens, or has one of them twice.
    #[error("Sec-WebSocket-Protocol must be a list of different tokens")]
    Subprotocols,
    /// Sec-WebSocket-Extensions does not follow the grammar of RFC 6455, section 9.1.
    #[error("Sec-WebSocket-Extensions must be a list of extensions with parameters")]
    Extensions,
}

impl HandshakeRefusal {
    /// The status of the response.
    pub(crate) fn status(self) -> u16 {
        match self {
            HandshakeRefusal::Version { status } => status,
            _ => STATUS_BAD_REQUEST,
        }
    }

    /// The label in metrics, and the code of the error.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            HandshakeRefusal::Version { .. } => "websocket_version",
            HandshakeRefusal::Key => "websocket_key",
            HandshakeRefusal::Method => "websocket_method",
            HandshakeRefusal::HttpVersion => "websocket_http_version",
            HandshakeRefusal::Upgrade => "websocket_upgrade",
            HandshakeRefusal::Connection => "websocket_connection",
            HandshakeRefusal::ExtendedConnect => "websocket_extended_connect",
            HandshakeRefusal::Subprotocols => "websocket_subprotocols",
            HandshakeRefusal::Extensions => "websocket_extensions",
        }
    }

    /// The fields that the response must have (RFC 6455, section 4.4; RFC 9110, section 15.5.22).
    pub(crate) fn fields(self) -> &'static [(&'static str, &'static str)] {
        const FIELDS: &[(&str, &str)] = &[
            ("Sec-WebSocket-Version", VERSION),
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
        ];
        match self {
            HandshakeRefusal::Version { status } if status == STATUS_UPGRADE_REQUIRED => FIELDS,
            HandshakeRefusal::Version { .. } => &FIELDS[..1],
            _ => &[],
        }
    }
}

/// Checks a request of HTTP/1. `http_minor` is the minor version of HTTP. `Ok(None)`: the request asks for no WebSocket.
///
/// A request asks for one if Upgrade lists `websocket`, or if it has one of the fields that only a handshake has. The latter
/// is how a request looks behind a proxy that drops Upgrade.
///
/// # Errors
/// The request asks for a WebSocket and breaks a rule.
pub(crate) fn open<'a>(
    method: &str,
    http_minor: u8,
    fields: &'a HandshakeFields<'a>,
) -> Result<Option<Opening<'a>>, HandshakeRefusal> {
    let upgrades = lists(fields, "Upgrade", "websocket");
    if !upgrades && !has_handshake_fields(fields) {
        return Ok(None);
    }
    if http_minor == 0 {
        return Err(HandshakeRefusal::HttpVersion);
    }
    if method != "GET" {
        return Err(HandshakeRefusal::Method);
    }
    if !upgrades {
        return Err(HandshakeRefusal::Upgrade);
    }
    if !lists(fields, "Connection", "upgrade") {
        return Err(HandshakeRefusal::Connection);
    }
    check_version(fields, STATUS_UPGRADE_REQUIRED)?;
    let key = single(fields, KEY_FIELD).ok_or(HandshakeRefusal::Key)?;
    let accept = accept_value(key).ok_or(HandshakeRefusal::Key)?;
    offers(fields, Some(accept)).map(Some)
}

/// Checks a request of HTTP/2. `protocol` is the pseudo-header field `:protocol`. `Ok(None)`: the request asks for no WebSocket.
///
/// The server must have sent SETTINGS_ENABLE_CONNECT_PROTOCOL (RFC 8441, section 3).
///
/// # Errors
/// The request asks for a WebSocket and breaks a rule.
pub(crate) fn open_http2<'a>(
    method: &str,
    protocol: Option<&str>,
    fields: &'a HandshakeFields<'a>,
) -> Result<Option<Opening<'a>>, HandshakeRefusal> {
    if method != "CONNECT" {
        // It comes from a proxy that does not translate handshakes.
        return match has_handshake_fields(fields) {
            true => Err(HandshakeRefusal::ExtendedConnect),
            false => Ok(None),
        };
    }
    if !protocol.is_some_and(is_websocket) {
        return Ok(None);
    }
    check_version(fields, STATUS_BAD_REQUEST)?;
    offers(fields, None).map(Some)
}

/// Whether the `:protocol` of an extended CONNECT is WebSocket.
pub(crate) fn is_websocket(protocol: &str) -> bool {
    protocol.eq_ignore_ascii_case("websocket")
}

/// Whether there is a field that only a handshake has.
fn has_handshake_fields(fields: &HandshakeFields<'_>) -> bool {
    let names = [KEY_FIELD, VERSION_FIELD];
    let mut names = names.iter();
    names.any(|name| values(fields, name).next().is_some())
}

fn check_version(fields: &HandshakeFields<'_>, status: u16) -> Result<(), HandshakeRefusal> {
    match single(fields, VERSION_FIELD) {
        Some(version) if version == VERSION.as_bytes() => Ok(()),
        _ => Err(HandshakeRefusal::Version { status }),
    }
}

/// What the client offers, for a request that keeps the other rules.
fn offers<'a>(
    fields: &'a HandshakeFields<'a>,
    accept: Option<String>,
) -> Result<Opening<'a>, HandshakeRefusal> {
    let mut subprotocols = Vec::new();
    for value in values(fields, "Sec-WebSocket-Protocol") {
        parse_tokens(value, &mut subprotocols).ok_or(HandshakeRefusal::Subprotocols)?;
    }
    let mut sorted = subprotocols.clone();
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(HandshakeRefusal::Subprotocols);
    }
    let mut offers = Vec::new();
    for value in values(fields, "Sec-WebSocket-Extensions") {
        extensions::parse(value, &mut offers).ok_or(HandshakeRefusal::Extensions)?;
    }
    Ok(Opening {
        accept,
        subprotocols,
        deflate_offers: DeflateOffer::select(&offers),
    })
}

/// The value of Sec-WebSocket-Accept for a key; `None` if the key does not stand for 16 bytes (RFC 6455, section 4.2.2).
fn accept_value(key: &[u8]) -> Option<String> {
    let mut nonce = [0; KEY_ROOM_BYTES];
    let nonce_bytes = KEY_BASE64.decode_slice(key, &mut nonce).ok()?;
    if nonce_bytes != KEY_BYTES {
        return None;
    }
    // The protocol prescribes SHA-1. It proves that the server speaks WebSocket, and protects nothing.
    let mut hash = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    hash.update(key);
    hash.update(ACCEPT_GUID);
    Some(STANDARD.encode(hash.finish()))
}

/// Whether one of the fields of that name lists the token; neither depends on case.
fn lists(fields: &HandshakeFields<'_>, name: &str, token: &str) -> bool {
    values(fields, name)
        .flat_map(|value| value.split(|byte| *byte == b','))
        .any(|member| member.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
}

/// The value of a field that is there once.
fn single<'a>(fields: &'a HandshakeFields<'a>, name: &str) -> Option<&'a [u8]> {
    let mut values = values(fields, name);
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

fn values<'a>(fields: &'a HandshakeFields<'a>, name: &str) -> impl Iterator<Item = &'a [u8]> {
    fields
        .iter()
        .filter(move |(field, _)| field.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim_ascii())
}

/// The status for a request that breaks a rule.
pub(crate) const STATUS_BAD_REQUEST: u16 = 400;

/// The status for a version of WebSocket that is not supported.
pub(crate) const STATUS_UPGRADE_REQUIRED: u16 = 426;

const KEY_FIELD: &str = "Sec-WebSocket-Key";
const VERSION_FIELD: &str = "Sec-WebSocket-Version";

/// The only version of the protocol that was published as a standard.
const VERSION: &str = "13";

/// Bytes that a key stands for.
const KEY_BYTES: usize = 16;

/// Bytes of the value of Sec-WebSocket-Accept: a digest of 20 bytes in Base64.
pub(crate) const ACCEPT_BYTES: usize = 28;

/// Bytes that the 24 characters of a key can stand for at most.
const KEY_ROOM_BYTES: usize = 18;

/// The constant behind the key (RFC 6455, section 1.3).
const ACCEPT_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The key that RFC 6455, section 4.1, gives as an example has bits behind its 16 bytes, so clients may as well.
const KEY_BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

#[cfg(test)]
mod tests;
