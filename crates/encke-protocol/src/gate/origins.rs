//! Which origins' scripts may use the server from a browser, and what responses say about it (Fetch, section 3.2).

use std::net::Ipv6Addr;
use std::str::FromStr;

use super::hosts::{is_loopback, without_port};

/// The origins whose scripts may send requests and read responses, beside the server's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origins {
    /// None.
    #[default]
    None,
    /// Any, without credentials of the browser.
    Any,
    /// Those of this machine: `http://localhost:5173` and its like.
    Loopback,
    /// These, each a scheme, a host and possibly a port, as browsers write them. A host `*.example.com` stands for all below
    /// `example.com`.
    Listed(Vec<Box<str>>),
}

/// The origin that a request names, by the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestOrigin<'a> {
    /// None: it is not from a script of another origin, as far as the browser says.
    Unnamed,
    /// The server's own.
    Own,
    /// One that is allowed.
    Allowed(&'a str),
    /// Any other, or one that is not readable.
    Foreign,
}

/// The origin that a response names as its reader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OriginReader {
    /// None.
    #[default]
    Unnamed,
    /// All origins are allowed, and the request names one.
    Any,
    /// This one, with credentials.
    Origin(Box<str>),
}

impl RequestOrigin<'_> {
    /// Whether a page of the server itself, or no page, has sent the request, as far as the browser says.
    pub(super) fn is_own(self) -> bool {
        matches!(self, RequestOrigin::Unnamed | RequestOrigin::Own)
    }
}

impl Origins {
    /// Whether what a response says depends on the origin of its request.
    pub fn vary(&self) -> bool {
        matches!(self, Origins::Loopback | Origins::Listed(_))
    }

    /// Classifies the values of a request's `Origin` fields. `host` is the host that the request names.
    pub(crate) fn of_request<'a>(
        &self,
        mut values: impl Iterator<Item = &'a [u8]>,
        host: Option<&str>,
    ) -> RequestOrigin<'a> {
        let Some(value) = values.next() else {
            return RequestOrigin::Unnamed;
        };
        let (Ok(origin), None) = (std::str::from_utf8(value), values.next()) else {
            return RequestOrigin::Foreign;
        };
        let origin = origin.trim_matches([' ', '\t']);
        let allowed = match self {
            Origins::None => false,
            Origins::Any => true,
            Origins::Loopback => authority(origin).is_some_and(|at| is_loopback(without_port(at))),
            Origins::Listed(listed) => listed.iter().any(|one| is_listed(one, origin)),
        };
        if allowed {
            return RequestOrigin::Allowed(origin);
        }
        // A proxy may speak another scheme to the server than the browser to the proxy, so only the authority counts.
        match host {
            Some(host) if is_at(origin, host) => RequestOrigin::Own,
            _ => RequestOrigin::Foreign,
        }
    }
}

impl FromStr for Origins {
    type Err = NotOrigins;

    fn from_str(text: &str) -> Result<Self, NotOrigins> {
        match text {
            "none" => return Ok(Origins::None),
            "*" => return Ok(Origins::Any),
            "loopback" => return Ok(Origins::Loopback),
            _ => {}
        }
        let origins = text.split(',').map(str::trim);
        let origins = origins.map(|origin| match listed(origin) {
            Some(listed) => Ok(listed.into()),
            None => Err(NotOrigins(origin.to_owned())),
        });
        origins.collect::<Result<_, _>>().map(Origins::Listed)
    }
}

impl std::fmt::Display for Origins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origins::None => f.write_str("none"),
            Origins::Any => f.write_str("*"),
            Origins::Loopback => f.write_str("loopback"),
            Origins::Listed(listed) => f.write_str(&listed.join(",")),
        }
    }
}

/// A text that is no list of origins.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not an origin such as https://app.example.com or https://*.example.com, and not one of the words none, loopback and *, which stand alone"
)]
pub struct NotOrigins(String);

/// The host and port of an origin.
fn authority(origin: &str) -> Option<&str> {
    let (_, authority) = origin.split_once("://")?;
    let is_whole = !authority.is_empty() && !authority.contains(['/', '?', '#', '@']);
    is_whole.then_some(authority)
}

/// Whether an origin is at this host, which may have a port. The default port of the origin's scheme may be left out.
fn is_at(origin: &str, host: &str) -> bool {
    let Some(own) = authority(origin) else {
        return false;
    };
    let default = match origin.split_once("://") {
        Some((scheme, _)) if scheme.eq_ignore_ascii_case("https") => ":443",
        _ => ":80",
    };
    let plain = |authority: &str| {
        let authority = authority.trim();
        let without = authority.strip_suffix(default);
        without.unwrap_or(authority).to_ascii_lowercase()
    };
    plain(own) == plain(host)
}

/// Whether an origin is the one that was listed, or below it.
fn is_listed(listed: &str, origin: &str) -> bool {
    let Some((scheme, parent)) = listed.split_once("://*.") else {
        return listed.eq_ignore_ascii_case(origin);
    };
    let Some((own_scheme, _)) = origin.split_once("://") else {
        return false;
    };
    let below = authority(origin).and_then(|own| {
        let at = own.len().checked_sub(parent.len())?;
        let (below, own_parent) = own.split_at_checked(at)?;
        let is_parent = own_parent.eq_ignore_ascii_case(parent);
        is_parent.then(|| below.strip_suffix('.')).flatten()
    });
    let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_name = |below: &str| !below.is_empty() && below.bytes().all(is_name_byte);
    own_scheme.eq_ignore_ascii_case(scheme) && below.is_some_and(is_name)
}

/// An address in its short form, without a part of IPv4 (URL, section 3.5).
fn as_browsers_write(address: Ipv6Addr) -> String {
    match address.to_ipv4_mapped() {
        Some(_) => {
            let [.., high, low] = address.segments();
            format!("::ffff:{high:x}:{low:x}")
        }
        None => address.to_string(),
    }
}

/// An origin as browsers write it: lower case, without the default port, and an address in its short form. None: no browser ever
/// sends such an origin.
fn listed(text: &str) -> Option<String> {
    let text = text.to_ascii_lowercase();
    let (scheme, _) = text.split_once("://")?;
    let is_scheme_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    if scheme.is_empty() || !scheme.bytes().all(is_scheme_byte) {
        return None;
    }
    let authority = authority(&text)?;
    let (host, port) = match authority.rsplit_once(':') {
        // The colons of an address of IPv6.
        Some((_, behind)) if behind.ends_with(']') => (authority, None),
        Some((host, port)) => (host, Some(port.parse::<u16>().ok()?)),
        None => (authority, None),
    };
    let host = match host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
    {
        Some(address) => format!("[{}]", as_browsers_write(address.parse().ok()?)),
        None => host.to_owned(),
    };
    let name = host.strip_prefix("*.").unwrap_or(&host);
    let is_host_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-._[:]".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_host_byte) {
        return None;
    }
    let default = match scheme {
        "https" => Some(443),
        "http" => Some(80),
        _ => None,
    };
    Some(match port.filter(|port| Some(*port) != default) {
        Some(port) => format!("{scheme}://{host}:{port}"),
        None => format!("{scheme}://{host}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classified<'a>(origins: &str, origin: &'a str, host: &str) -> RequestOrigin<'a> {
        let origins: Origins = origins.parse().unwrap();
        origins.of_request([origin.as_bytes()].into_iter(), Some(host))
    }

    #[test]
    fn an_origin_is_allowed_own_or_foreign() {
        use RequestOrigin::{Allowed, Foreign, Own};
        let app = "https://app.example.com";
        for (origins, origin, host, expected) in [
            (app, app, "push.example.com", Allowed(app)),
            (app, "https://app.example.com:8443", "x", Foreign),
            (app, "http://app.example.com", "x", Foreign),
            (app, "https://app.example.com.evil.example", "x", Foreign),
            (app, "null", "x", Foreign),
            (
                "none",
                "http://push.example.com",
                "push.example.com:80",
                Own,
            ),
            ("none", "https://push.example.com", "PUSH.example.com", Own),
            ("none", "http://x:4437", "x:4438", Foreign),
            ("none", "http://x:443", "x", Foreign),
            ("none", "http://", "", Foreign),
            (
                "loopback",
                "http://localhost:5173",
                "x",
                Allowed("http://localhost:5173"),
            ),
            ("loopback", "http://[::1]:1", "x", Allowed("http://[::1]:1")),
            ("loopback", "http://localhost.evil.example", "x", Foreign),
            ("loopback", "http://localhost@evil.example", "x", Foreign),
            (
                "*",
                "https://any.example",
                "x",
                Allowed("https://any.example"),
            ),
            ("*", "null", "x", Allowed("null")),
            (
                "https://a.example:443",
                "https://a.example",
                "x",
                Allowed("https://a.example"),
            ),
            (
                "https://*.a.example",
                "https://b.a.example",
                "x",
                Allowed("https://b.a.example"),
            ),
            (
                "https://*.a.example",
                "https://c.b.A.example",
                "x",
                Allowed("https://c.b.A.example"),
            ),
            (
                "https://*.a.example:8443",
                "https://b.a.example:8443",
                "x",
                Allowed("https://b.a.example:8443"),
            ),
            ("https://*.a.example", "https://a.example", "x", Foreign),
            ("https://*.a.example", "https://.a.example", "x", Foreign),
            ("https://*.a.example", "https://ba.example", "x", Foreign),
            ("https://*.a.example", "http://b.a.example", "x", Foreign),
            (
                "https://*.a.example",
                "https://b.a.example:8443",
                "x",
                Foreign,
            ),
            (
                "https://*.a.example",
                "https://b.a.example.evil.example",
                "x",
                Foreign,
            ),
            (
                "https://*.a.example",
                "https://evil.example/.a.example",
                "x",
                Foreign,
            ),
            (
                "https://*.a.example",
                "https://evil.example@b.a.example",
                "x",
                Foreign,
            ),
        ] {
            assert_eq!(
                classified(origins, origin, host),
                expected,
                "{origins} {origin}"
            );
        }
        let origins = Origins::Any;
        let two = [&b"https://a"[..], b"https://b"];
        assert_eq!(origins.of_request(two.into_iter(), None), Foreign);
        let none = std::iter::empty();
        assert_eq!(origins.of_request(none, None), RequestOrigin::Unnamed);
    }

    #[test]
    fn a_list_has_origins_or_one_word() {
        for text in [
            "",
            "app.example.com",
            "https://a/b",
            "https://",
            "*,https://a",
            "https://a,none",
            "://a",
            "https://a:",
            "https://a:70000",
            "https://*",
            "https://*example.com",
            "https://a.*.example.com",
            "https://*.*.example.com",
            "https://user@a",
            "https://[::g]",
            "https://ä.example",
        ] {
            assert!(text.parse::<Origins>().is_err(), "{text}");
        }
        for (text, shown) in [
            ("https://A.example:443", "https://a.example"),
            ("http://a:80,http://a:443", "http://a,http://a:443"),
            ("http://[0:0::1]:5173", "http://[::1]:5173"),
            ("https://*.Example.com:443", "https://*.example.com"),
        ] {
            assert_eq!(text.parse::<Origins>().unwrap().to_string(), shown);
        }
        for text in [
            "none",
            "*",
            "loopback",
            "https://a,http://b:1",
            "capacitor://localhost",
        ] {
            assert_eq!(text.parse::<Origins>().unwrap().to_string(), text);
        }
    }
}
