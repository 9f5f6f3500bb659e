//! Which origins' scripts may use the server from a browser, and what responses say about it (Fetch, section 3.2).

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
    /// These, each a scheme, a host and possibly a port.
    Listed(Vec<Box<str>>),
}

/// The origin that a request names, by the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestOrigin<'a> {
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
    pub(super) fn of_request<'a>(
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
            Origins::Listed(listed) => listed.iter().any(|one| one.eq_ignore_ascii_case(origin)),
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
        let origins = origins.map(|origin| match is_origin(origin) {
            true => Ok(origin.to_ascii_lowercase().into()),
            false => Err(NotOrigins(origin.to_owned())),
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
    "{0:?} is not an origin such as https://app.example.com, and not one of the words none, loopback and *, which stand alone"
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

fn is_origin(text: &str) -> bool {
    let Some((scheme, _)) = text.split_once("://") else {
        return false;
    };
    let scheme_is_good = scheme
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let is_visible = text.bytes().all(|byte| byte.is_ascii_graphic());
    !scheme.is_empty()
        && scheme_is_good
        && is_visible
        && !text.contains(',')
        && authority(text).is_some()
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
        ] {
            assert!(text.parse::<Origins>().is_err(), "{text}");
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
