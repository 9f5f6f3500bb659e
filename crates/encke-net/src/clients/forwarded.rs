//! Header fields in which trusted proxies name the client of a request: Forwarded (RFC 7239), or the X-Forwarded fields.
//!
//! The settings select one of the two; the other is ignored, because a proxy that sets one often forwards the other as the
//! client sent it.

use std::net::IpAddr;

use crate::http::Rejection;
use crate::networks::Networks;

/// Which fields the trusted proxies set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardedBy {
    /// X-Forwarded-For, X-Forwarded-Proto and X-Forwarded-Host.
    #[default]
    XForwarded,
    /// Forwarded (RFC 7239).
    Forwarded,
}

/// What a proxy says about a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ForwardedInfo<'a> {
    /// Where the client is; nothing if the proxy does not say or asks for itself.
    pub(crate) client: Option<IpAddr>,
    /// Whether the client uses https, if the fields say so.
    pub(crate) https: Option<bool>,
    /// The host as the client named it.
    pub(crate) host: Option<&'a str>,
}

/// Reads what trusted proxies say. The client is the last address that is not trusted itself.
pub(crate) fn read<'a>(
    by: ForwardedBy,
    trust: &Networks,
    fields: &[(&'a str, &'a [u8])],
) -> Result<ForwardedInfo<'a>, Rejection> {
    let all = |wanted: &'static str| {
        fields
            .iter()
            .filter(move |(name, _)| name.eq_ignore_ascii_case(wanted))
            .map(|(_, value)| std::str::from_utf8(value).map_err(|_| wrong()))
    };
    match by {
        ForwardedBy::XForwarded => {
            let mut hops = Vec::new();
            for value in all("x-forwarded-for") {
                hops.extend(value?.split(',').map(|hop| Some(hop.trim())));
            }
            let (client, at) = client(&hops, trust)?;
            // One for each hop, or else what the proxies have made of it: the first scheme is the client's. Of several hosts the
            // last counts, because what is before it may be made up, and hosts are checked.
            let of = |wanted, otherwise: fn(&[&'a str]) -> Option<&'a str>| {
                let mut values: Vec<&str> = Vec::new();
                for value in all(wanted) {
                    values.extend(value?.split(',').map(str::trim));
                }
                let alike = values.len() == hops.len();
                Ok(match alike {
                    true => values.get(at).copied(),
                    false => otherwise(&values),
                })
            };
            let proto = of("x-forwarded-proto", |values| values.first().copied())?;
            let host = of("x-forwarded-host", |values| values.last().copied())?;
            Ok(ForwardedInfo {
                client,
                https: proto.and_then(scheme),
                host: host.filter(|host| is_host(host)),
            })
        }
        ForwardedBy::Forwarded => {
            let mut elements = Vec::new();
            for value in all("forwarded") {
                for element in split(value?, b',')? {
                    elements.push(Element::parse(element)?);
                }
            }
            let hops: Vec<Option<&str>> = elements.iter().map(|element| element.node).collect();
            let (client, at) = client(&hops, trust)?;
            let element = elements.get(at).copied().unwrap_or_default();
            Ok(ForwardedInfo {
                client,
                https: element.proto.and_then(scheme),
                host: element.host.filter(|host| is_host(host)),
            })
        }
    }
}

/// The client among the hops, and which hop it is. Everything before the last hop that is not trusted may be made up.
fn client(hops: &[Option<&str>], trust: &Networks) -> Result<(Option<IpAddr>, usize), Rejection> {
    let mut nearest = (None, 0);
    for (at, hop) in hops.iter().enumerate().rev() {
        let Some(address) = hop.map(node).transpose()?.flatten() else {
            // The proxy before it is trusted and does not name the client.
            return Ok((None, at));
        };
        nearest = (Some(address), at);
        if !trust.contain(address) {
            break;
        }
    }
    Ok(nearest)
}

/// A hop's address, with or without a port; nothing where it is hidden on purpose (RFC 7239, section 6).
fn node(text: &str) -> Result<Option<IpAddr>, Rejection> {
    if text.eq_ignore_ascii_case("unknown") || text.starts_with('_') {
        return Ok(None);
    }
    let address = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) if port.is_empty() || port.starts_with(':') => address,
            _ => return Err(wrong()),
        },
        // An IPv4 address may have a port, one of IPv6 is full of colons.
        None => match text.split_once(':') {
            Some((address, port)) if !port.contains(':') => address,
            _ => text,
        },
    };
    address
        .parse::<IpAddr>()
        .map(|address| Some(address.to_canonical()))
        .map_err(|_| wrong())
}

/// One element of Forwarded: what one proxy says.
#[derive(Clone, Copy, Debug, Default)]
struct Element<'a> {
    node: Option<&'a str>,
    proto: Option<&'a str>,
    host: Option<&'a str>,
}

impl<'a> Element<'a> {
    fn parse(text: &'a str) -> Result<Self, Rejection> {
        let mut element = Element::default();
        for pair in split(text, b';')? {
            let pair = pair.trim();
            if pair.is_empty() {
                continue;
            }
            let (name, value) = pair.split_once('=').ok_or_else(wrong)?;
            let value = match value.strip_prefix('"') {
                // Nothing that is listened to needs an escape.
                Some(rest) => rest.strip_suffix('"').filter(|rest| !rest.contains('\\')),
                None => Some(value).filter(|value| !value.contains(['"', ' '])),
            };
            let known = match name.to_ascii_lowercase().as_str() {
                "for" => &mut element.node,
                "proto" => &mut element.proto,
                "host" => &mut element.host,
                _ => continue,
            };
            if known.replace(value.ok_or_else(wrong)?).is_some() {
                return Err(wrong());
            }
        }
        Ok(element)
    }
}

/// Splits outside of quotes.
fn split(text: &str, by: u8) -> Result<Vec<&str>, Rejection> {
    let mut parts = Vec::new();
    let (mut start, mut quoted, mut escaped) = (0, false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            byte if byte == by && !quoted => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if quoted {
        return Err(wrong());
    }
    parts.push(&text[start..]);
    Ok(parts)
}

fn scheme(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "https" | "wss" => Some(true),
        "http" | "ws" => Some(false),
        _ => None,
    }
}

/// Whether it can stand in a URL for the host, without ending it or beginning something else.
fn is_host(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| {
            byte.is_ascii_alphanumeric()
                || matches!(byte, b'.' | b'-' | b'_' | b'~' | b':' | b'[' | b']')
        })
}

fn wrong() -> Rejection {
    Rejection::new(
        400,
        "forwarded",
        "the fields in which a proxy names its client are malformed",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn said<'a>(by: ForwardedBy, fields: &[(&'a str, &'a str)]) -> Result<ForwardedInfo<'a>, u16> {
        let trust = "10.0.0.0/8,2001:db8::/32".parse().unwrap();
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, value)| (*name, value.as_bytes()))
            .collect();
        read(by, &trust, &fields).map_err(|refused| refused.status)
    }

    fn client(by: ForwardedBy, value: &str) -> Result<Option<String>, u16> {
        let name = match by {
            ForwardedBy::XForwarded => "X-Forwarded-For",
            ForwardedBy::Forwarded => "Forwarded",
        };
        let said = said(by, &[(name, value)])?;
        Ok(said.client.map(|client| client.to_string()))
    }

    #[test]
    fn the_last_that_is_not_trusted_is_the_client() {
        for (value, expected) in [
            ("192.0.2.1", Some("192.0.2.1")),
            ("192.0.2.1:80", Some("192.0.2.1")),
            ("198.51.100.7, 192.0.2.1", Some("192.0.2.1")),
            ("198.51.100.7, 192.0.2.1, 10.1.1.1", Some("192.0.2.1")),
            ("made up, 192.0.2.1,10.1.1.1", Some("192.0.2.1")),
            ("10.0.0.1, 10.0.0.2", Some("10.0.0.1")),
            ("192.0.2.1, unknown, 10.0.0.2", None),
            ("2001:db9::1", Some("2001:db9::1")),
            ("[2001:db9::1]:80, 2001:db8::5", Some("2001:db9::1")),
            ("::ffff:192.0.2.1", Some("192.0.2.1")),
        ] {
            assert_eq!(
                client(ForwardedBy::XForwarded, value),
                Ok(expected.map(Into::into)),
                "{value}"
            );
        }
        for (value, expected) in [
            ("for=192.0.2.1", Some("192.0.2.1")),
            (
                "For=198.51.100.7, for=\"192.0.2.1:80\";by=_x",
                Some("192.0.2.1"),
            ),
            (
                "for=\"[2001:db9::1]:47\";proto=https, for=10.0.0.1",
                Some("2001:db9::1"),
            ),
            ("for=unknown", None),
            ("for=_hidden, for=10.0.0.1", None),
            ("proto=http", None),
            (
                "for=192.0.2.1;ext=\"a,b;c=\\\"d\", for=10.0.0.1",
                Some("192.0.2.1"),
            ),
        ] {
            assert_eq!(
                client(ForwardedBy::Forwarded, value),
                Ok(expected.map(Into::into)),
                "{value}"
            );
        }
    }

    #[test]
    fn garbage_where_the_client_should_be_is_refused() {
        for value in ["", "x", "1.2.3", "192.0.2.1,", "[::1", "::1]", "[::1]x"] {
            assert_eq!(client(ForwardedBy::XForwarded, value), Err(400), "{value}");
        }
        for value in [
            "for",
            "for=",
            "for=\"192.0.2.1",
            "for=192.0.2.1;for=192.0.2.2",
            "for=\"192.0.2.1\"x",
            "for=\"a\\b\"",
            "192.0.2.1",
        ] {
            assert_eq!(client(ForwardedBy::Forwarded, value), Err(400), "{value}");
        }
    }

    #[test]
    fn scheme_and_host_are_those_of_the_hop() {
        let fields = [
            ("x-forwarded-for", "198.51.100.7, 192.0.2.1, 10.0.0.1"),
            ("X-Forwarded-Proto", "http, https, http"),
            ("X-Forwarded-Host", "push.example:8443"),
        ];
        let parsed = said(ForwardedBy::XForwarded, &fields).unwrap();
        assert_eq!(parsed.https, Some(true));
        assert_eq!(parsed.host, Some("push.example:8443"));
        // Proxies that add to one field and overwrite another.
        for (proto, https) in [
            ("https, http", Some(true)),
            ("WSS,http", Some(true)),
            ("http,https", Some(false)),
            ("ws", Some(false)),
            ("x, https", None),
        ] {
            let fields = [
                ("X-Forwarded-For", "192.0.2.1"),
                ("X-Forwarded-Proto", proto),
            ];
            let alone = [("X-Forwarded-Proto", proto)];
            for fields in [&fields[..], &alone] {
                assert_eq!(
                    said(ForwardedBy::XForwarded, fields).unwrap().https,
                    https,
                    "{proto}"
                );
            }
        }
        let fields = [("X-Forwarded-Host", "made.up, push.example")];
        let parsed = said(ForwardedBy::XForwarded, &fields).unwrap();
        assert_eq!(parsed.host, Some("push.example"));
        let fields = [("Forwarded", "for=192.0.2.1;host=a.example;proto=HTTPS")];
        let parsed = said(ForwardedBy::Forwarded, &fields).unwrap();
        assert_eq!((parsed.https, parsed.host), (Some(true), Some("a.example")));
        // The other kind is not listened to.
        assert_eq!(
            said(ForwardedBy::XForwarded, &fields),
            Ok(ForwardedInfo::default())
        );
        for host in ["a/b", "a@b", "a b", "a\"b", ""] {
            let fields = [("X-Forwarded-Host", host)];
            assert_eq!(said(ForwardedBy::XForwarded, &fields).unwrap().host, None);
        }
    }

    proptest! {
        #[test]
        fn no_value_panics(values in proptest::collection::vec("[ -~]{0,60}", 0..4), junk: Vec<u8>) {
            let trust = Networks::loopback();
            let mut fields: Vec<(&str, &[u8])> = Vec::new();
            for value in &values {
                fields.push(("Forwarded", value.as_bytes()));
                fields.push(("X-Forwarded-For", value.as_bytes()));
                fields.push(("X-Forwarded-Proto", value.as_bytes()));
            }
            fields.push(("Forwarded", &junk));
            for by in [ForwardedBy::XForwarded, ForwardedBy::Forwarded] {
                let _ = read(by, &trust, &fields);
            }
        }

        /// Whatever a client puts in front, what the proxy adds behind it decides.
        #[test]
        fn nothing_in_front_matters(front in "[ -~]{0,60}", client: std::net::Ipv4Addr) {
            prop_assume!(client.octets()[0] != 10);
            let value = format!("{front}, {client}");
            let found = super::tests::client(ForwardedBy::XForwarded, &value);
            prop_assert_eq!(found, Ok(Some(client.to_string())));
        }
    }
}
