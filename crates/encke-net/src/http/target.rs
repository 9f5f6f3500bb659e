//! The target of a request, and the host that it names.

use super::Rejection;

/// What a request's target names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestTarget<'a> {
    pub(crate) path: &'a str,
    pub(crate) query: Option<&'a str>,
    /// The scheme and the host of an absolute form.
    pub(crate) authority: Option<(Scheme, &'a str)>,
}

/// The scheme of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Http,
    Https,
}

impl Scheme {
    fn default_port(self) -> &'static [u8] {
        match self {
            Scheme::Http => b"80",
            Scheme::Https => b"443",
        }
    }
}

/// Takes a request's target apart. An absolute form is taken as if sent to a proxy (RFC 9112, section 3.2.2).
pub(crate) fn split<'a>(method: &str, target: &'a str) -> Result<RequestTarget<'a>, Rejection> {
    if method == "CONNECT" {
        return Err(bad_target("no tunnels are opened here"));
    }
    let (authority, origin) = match target.as_bytes().first() {
        Some(b'/') => (None, target),
        Some(b'*') if target.len() == 1 && method == "OPTIONS" => (None, target),
        _ => {
            let (authority, origin) = at_authority(target)?;
            (Some(authority), origin)
        }
    };
    check_text(origin)?;
    let (path, query) = match origin.split_once('?') {
        // A URL may leave out the path.
        Some(("", query)) => ("/", Some(query)),
        Some((path, query)) => (path, Some(query)),
        None => (origin, None),
    };
    Ok(RequestTarget {
        path,
        query,
        authority,
    })
}

/// Checks the text of a path or a query.
pub(crate) fn check_text(text: &str) -> Result<(), Rejection> {
    // A fragment is for the client alone and never sent; a client that sends one may mean another path.
    // The others have no place in a URL, and readers differ in what they make of them.
    if text.bytes().any(|byte| b"#<>`".contains(&byte)) {
        return Err(no_fragment());
    }
    Ok(())
}

pub(crate) fn no_fragment() -> Rejection {
    bad_target("a request's target has no fragment, and no angle brackets or backticks")
}

/// Whether a request is for one host: its target, or its :authority, and its field Host name the same one.
pub(crate) fn check_same_host(
    scheme: Scheme,
    authority: &str,
    host: &[u8],
) -> Result<(), Rejection> {
    let port = scheme.default_port();
    let authority = without_default_port(authority.as_bytes(), port);
    let host = without_default_port(host.trim_ascii(), port);
    match host.eq_ignore_ascii_case(authority) {
        true => Ok(()),
        false => Err(Rejection::new(
            400,
            "host",
            "the Host field names the host of the request's target",
        )),
    }
}

/// Both forms name the same place (RFC 9110, section 4.2.3).
fn without_default_port<'a>(authority: &'a [u8], port: &[u8]) -> &'a [u8] {
    let stripped = authority.strip_suffix(port).unwrap_or(authority);
    match stripped.strip_suffix(b":") {
        Some(host) => host,
        None => authority,
    }
}

/// Whether a Host field's value names a host, or none (RFC 9112, section 3.2).
pub(crate) fn is_host(value: &[u8]) -> bool {
    let value = value.trim_ascii();
    value.is_empty() || is_authority(value)
}

/// The scheme and the authority of an absolute target, and what follows them.
fn at_authority(target: &str) -> Result<((Scheme, &str), &str), Rejection> {
    let schemes = [("http://", Scheme::Http), ("https://", Scheme::Https)];
    let found = schemes.iter().find_map(|(text, scheme)| {
        let start = target.get(..text.len())?;
        start
            .eq_ignore_ascii_case(text)
            .then(|| (*scheme, &target[text.len()..]))
    });
    let (scheme, rest) =
        found.ok_or_else(|| bad_target("a request's target is a path or an http URL"))?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, behind) = rest.split_at(end);
    // A URL without a host is none, and one with a user's name is not to be trusted (RFC 9110, sections 4.2.1 and 4.2.4).
    if !is_authority(authority.as_bytes()) {
        return Err(bad_target("the host in a request's target is none"));
    }
    let behind = if behind.is_empty() { "/" } else { behind };
    Ok(((scheme, authority), behind))
}

/// Whether this is a host, with or without a port: a name, an address, or an IPv6 address in brackets.
fn is_authority(text: &[u8]) -> bool {
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(byte);
    let is_literal = |byte: &u8| byte.is_ascii_alphanumeric() || b":.".contains(byte);
    let (host_is_good, port) = match text.strip_prefix(b"[") {
        Some(rest) => {
            let Some(end) = rest.iter().position(|byte| *byte == b']') else {
                return false;
            };
            let (literal, port) = rest.split_at(end);
            let good = !literal.is_empty() && literal.iter().all(is_literal);
            (good, &port[1..])
        }
        None => {
            let colon = text.iter().position(|byte| *byte == b':');
            let (name, port) = text.split_at(colon.unwrap_or(text.len()));
            (!name.is_empty() && name.iter().all(is_name), port)
        }
    };
    let port_is_good = match port.split_first() {
        None => true,
        Some((b':', digits)) => digits.iter().all(u8::is_ascii_digit),
        Some(_) => false,
    };
    host_is_good && port_is_good
}

pub(crate) fn bad_target(message: &'static str) -> Rejection {
    Rejection::new(400, "bad_target", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_or_addresses_with_or_without_a_port() {
        for host in [
            "",
            "x",
            "x.y:80",
            "x:",
            " x ",
            "127.0.0.1:4437",
            "[::1]",
            "[::1]:80",
            "a_b-c~d",
        ] {
            assert!(is_host(host.as_bytes()), "{host:?}");
        }
        for host in [
            "x y", "x, y", "x/a", "http://x", "u@x", "x:a", "x:8:0", ":80", "[]", "[::1", "[::1]x",
            "::1", "x#", "x?", "x%41", "\u{e9}", "\0",
        ] {
            assert!(!is_host(host.as_bytes()), "{host:?}");
        }
    }

    #[test]
    fn a_target_and_its_host_field_name_one_host() {
        use Scheme::{Http, Https};
        for (scheme, authority, host, same) in [
            (Http, "x", "X", true),
            (Http, "x:80", "x", true),
            (Https, "x", "x:443", true),
            (Https, "x:", " x ", true),
            (Http, "x", "y", false),
            (Http, "x:443", "x", false),
            (Https, "x:80", "x", false),
            (Http, "x80", "x", false),
            (Http, "[::80]", "[::]", false),
            (Http, "x", "", false),
        ] {
            let checked = check_same_host(scheme, authority, host.as_bytes());
            assert_eq!(checked.is_ok(), same, "{authority:?}, {host:?}");
        }
    }

    #[test]
    fn targets_have_a_path_and_maybe_a_query() {
        for (target, path, query, authority) in [
            ("/", "/", None, None),
            ("/a?b=c?d", "/a", Some("b=c?d"), None),
            ("//x:80?", "//x:80", Some(""), None),
            ("*", "*", None, None),
            ("http://x", "/", None, Some((Scheme::Http, "x"))),
            (
                "HTTPS://x:1?q",
                "/",
                Some("q"),
                Some((Scheme::Https, "x:1")),
            ),
            (
                "http://[::1]/a%2Fb",
                "/a%2Fb",
                None,
                Some((Scheme::Http, "[::1]")),
            ),
        ] {
            let expected = RequestTarget {
                path,
                query,
                authority,
            };
            assert_eq!(split("OPTIONS", target), Ok(expected), "{target}");
        }
        for target in [
            "",
            "*",
            "a",
            "**",
            "x:80",
            "ftp://x/",
            "http:///a",
            "http://?q",
            "http://u@x/",
            "/a#b",
            "http://x#b",
            "/<a>",
            "/`",
            "http://x y/",
        ] {
            assert!(split("GET", target).is_err(), "{target}");
        }
        assert!(split("CONNECT", "x:443").is_err());
        assert!(split("CONNECT", "/").is_err());
    }
}
