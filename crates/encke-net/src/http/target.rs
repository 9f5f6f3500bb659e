//! The target of a request, and the host that it names.

use super::Rejection;

/// The path and query of a request's target. An absolute form is taken as if sent to a proxy (RFC 9112, section 3.2.2).
pub(crate) fn split<'a>(
    method: &str,
    target: &'a str,
) -> Result<(&'a str, Option<&'a str>), Rejection> {
    if method == "CONNECT" {
        return Err(bad_target("no tunnels are opened here"));
    }
    let origin = match target.as_bytes().first() {
        Some(b'/') => target,
        Some(b'*') if target.len() == 1 => target,
        _ => behind_authority(target)?,
    };
    // A fragment is for the client alone and never sent; a client that sends one may mean another path.
    // The others have no place in a URL, and readers differ in what they make of them.
    if origin.bytes().any(|byte| b"#<>`".contains(&byte)) {
        return Err(bad_target(
            "a request's target has no fragment, and no angle brackets or backticks",
        ));
    }
    Ok(match origin.split_once('?') {
        // A URL may leave out the path.
        Some(("", query)) => ("/", Some(query)),
        Some((path, query)) => (path, Some(query)),
        None => (origin, None),
    })
}

/// Whether a Host field's value names a host, or none (RFC 9112, section 3.2).
pub(crate) fn is_host(value: &[u8]) -> bool {
    let value = value.trim_ascii();
    value.is_empty() || is_authority(value)
}

/// What follows the authority of an absolute target.
fn behind_authority(target: &str) -> Result<&str, Rejection> {
    let rest = ["http://", "https://"].iter().find_map(|scheme| {
        let start = target.get(..scheme.len())?;
        start
            .eq_ignore_ascii_case(scheme)
            .then(|| &target[scheme.len()..])
    });
    let rest = rest.ok_or_else(|| bad_target("a request's target is a path or an http URL"))?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, behind) = rest.split_at(end);
    // A URL without a host is none, and one with a user's name is not to be trusted (RFC 9110, sections 4.2.1 and 4.2.4).
    if !is_authority(authority.as_bytes()) {
        return Err(bad_target("the host in a request's target is none"));
    }
    Ok(if behind.is_empty() { "/" } else { behind })
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
    fn targets_have_a_path_and_maybe_a_query() {
        for (target, path, query) in [
            ("/", "/", None),
            ("/a?b=c?d", "/a", Some("b=c?d")),
            ("//x:80?", "//x:80", Some("")),
            ("*", "*", None),
            ("http://x", "/", None),
            ("HTTPS://x:1?q", "/", Some("q")),
            ("http://[::1]/a%2Fb", "/a%2Fb", None),
        ] {
            assert_eq!(split("GET", target), Ok((path, query)), "{target}");
        }
        for target in [
            "",
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
