//! Which hosts a request may name, against DNS rebinding: a page of any site can make its own name resolve to this machine, and
//! then its requests are of the same origin for the browser. Only the field `Host` gives it away.

use std::net::IpAddr;
use std::str::FromStr;

/// The hosts that requests may name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Hosts {
    /// Any.
    #[default]
    Any,
    /// Names and addresses of this machine itself (`localhost`, `127.0.0.0/8`, `[::1]`), and these.
    LoopbackAnd(HostList),
    /// Addresses, names that no site of the internet can have, and these: a page can make only its own name resolve to this server.
    InternalAnd(HostList),
}

/// Names of hosts, without ports, in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostList(Vec<Box<str>>);

impl Hosts {
    /// Whether a request that names this host, with or without a port, is served. Without a host it is: browsers always name one.
    pub(super) fn allow(&self, host: Option<&str>) -> bool {
        let Some(name) = host.map(without_port) else {
            return true;
        };
        match self {
            Hosts::Any => true,
            Hosts::LoopbackAnd(listed) => is_loopback(name) || listed.contains(name),
            Hosts::InternalAnd(listed) => is_internal(name) || listed.contains(name),
        }
    }

    /// What it serves, for people.
    pub(super) fn described(&self) -> &'static str {
        match self {
            Hosts::Any => "it serves any host",
            Hosts::LoopbackAnd(_) => {
                "without access control it serves localhost, loopback addresses and the names in tuning.hosts"
            }
            Hosts::InternalAnd(_) => {
                "it serves IP addresses, names without a dot or below localhost, local, internal, svc and home.arpa, and the names in tuning.hosts"
            }
        }
    }
}

impl HostList {
    fn contains(&self, name: &str) -> bool {
        // A dot at the end makes a name absolute, and changes nothing else.
        let name = name.strip_suffix('.').unwrap_or(name);
        self.0.iter().any(|own| own.eq_ignore_ascii_case(name))
    }

    /// Whether it lists none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for HostList {
    type Err = NotHosts;

    fn from_str(text: &str) -> Result<Self, NotHosts> {
        if text == "none" {
            return Ok(HostList::default());
        }
        let names = text.split(',').map(str::trim);
        let names = names.map(|name| {
            let relative = name.strip_suffix('.').unwrap_or(name);
            match is_name(relative) {
                true => Ok(relative.to_ascii_lowercase().into()),
                false => Err(NotHosts(name.to_owned())),
            }
        });
        names.collect::<Result<_, _>>().map(HostList)
    }
}

impl std::fmt::Display for HostList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.is_empty() {
            true => f.write_str("none"),
            false => f.write_str(&self.0.join(",")),
        }
    }
}

/// A text that is no list of hosts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the name of a host without a port, such as push.example.com")]
pub struct NotHosts(String);

/// A host without its port.
pub(super) fn without_port(host: &str) -> &str {
    match host.rfind(':') {
        // An IPv6 address has colons of its own, inside of brackets.
        Some(colon) if !host[colon..].contains(']') => &host[..colon],
        _ => host,
    }
}

/// Whether a host, without a port, is this machine itself for its own programs.
pub(super) fn is_loopback(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let literal = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    if let Ok(address) = literal.unwrap_or(name).parse::<IpAddr>() {
        return address.to_canonical().is_loopback();
    }
    // Browsers resolve these names to loopback addresses themselves (RFC 6761, section 6.3).
    let tail = name.len().checked_sub(LOCALHOST.len());
    tail.and_then(|tail| name.get(tail..))
        .is_some_and(|end| end.eq_ignore_ascii_case(LOCALHOST))
        && matches!(
            tail.map(|tail| &name.as_bytes()[..tail]),
            Some([] | [.., b'.'])
        )
}

/// Whether a host, without a port, is an address, or a name that no site of the internet can have: one without a dot, such as that of
/// a service, or one below a domain for private use (RFC 6761, RFC 6762, RFC 8375, and `internal`, which is reserved for it).
fn is_internal(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let literal = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    if literal.unwrap_or(name).parse::<IpAddr>().is_ok() {
        return true;
    }
    let is_below = |domain: &&str| {
        let tail = name.len().checked_sub(domain.len());
        tail.and_then(|tail| name.get(tail..))
            .is_some_and(|end| end.eq_ignore_ascii_case(domain))
    };
    !name.contains('.') || PRIVATE_DOMAINS.iter().any(is_below)
}

fn is_name(name: &str) -> bool {
    let literal = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    match literal {
        Some(literal) => literal.parse::<IpAddr>().is_ok(),
        None => {
            !name.is_empty()
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
        }
    }
}

/// Domains of names for private use. `svc` is that of services in a cluster.
const PRIVATE_DOMAINS: [&str; 5] = [".localhost", ".local", ".internal", ".svc", ".home.arpa"];

const LOCALHOST: &str = "localhost";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_the_internet_can_name_no_internal_host() {
        let hosts = Hosts::InternalAnd("push.example.com".parse().unwrap());
        for host in [
            "127.0.0.1:4438",
            "10.0.0.7",
            "[2001:db8::1]:80",
            "encke",
            "encke:4438",
            "push.default.svc",
            "push.default.svc.cluster.local",
            "nas.home.arpa.",
            "Push.Internal",
            "push.example.com",
            "app.localhost",
        ] {
            assert!(hosts.allow(Some(host)), "{host}");
        }
        for host in [
            "evil.example",
            "127.0.0.1.evil.example",
            "10-0-0-7.evil.example:80",
            "evil.localhost.example",
            "local.evil.example",
            "evil.examplelocal",
            "push.example.com.evil.example",
        ] {
            assert!(!hosts.allow(Some(host)), "{host}");
        }
        assert!(hosts.allow(None), "no browser leaves it out");
    }

    #[test]
    fn only_this_machine_and_listed_hosts_are_allowed() {
        let hosts = Hosts::LoopbackAnd("push.example.com,[fd00::1]".parse().unwrap());
        for host in [
            "localhost",
            "localhost:4437",
            "LocalHost.:1",
            "app.localhost",
            "127.0.0.1:80",
            "127.9.9.9",
            "[::1]:4437",
            "[::ffff:127.0.0.1]",
            "push.example.com:443",
            "Push.Example.com.",
            "[fd00::1]:1",
        ] {
            assert!(hosts.allow(Some(host)), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:4437",
            "localhost.evil.example",
            "xlocalhost",
            "127.0.0.1.evil.example",
            "push.example.com.evil.example",
            "10.0.0.1",
            "[::2]",
            "",
        ] {
            assert!(!hosts.allow(Some(host)), "{host}");
        }
        assert!(hosts.allow(None));
        assert!(Hosts::Any.allow(Some("evil.example")));
    }

    #[test]
    fn a_list_has_names_without_ports() {
        for text in ["", "a:1", "http://a", "a b", "a,,b", "[x]"] {
            assert!(text.parse::<HostList>().is_err(), "{text}");
        }
        let listed: HostList = "A.example., b".parse().unwrap();
        assert_eq!(listed.to_string(), "a.example,b");
        assert!("none".parse::<HostList>().unwrap().is_empty());
    }
}
