//! The URLs of webhooks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ureq::http::Uri;

use super::addresses::AllowedAddresses;

/// A URL that may be called, as far as can be said without a look-up of its name. Where the name leads is checked at each call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookUrl {
    text: Box<str>,
    /// Scheme, name and port: calls to the same receiver have the same.
    receiver: Box<str>,
}

/// Why a URL is refused.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize,
)]
pub enum BadWebhookUrl {
    /// It is too long.
    #[error("the URL has {bytes} bytes, at most {URL_BYTES_MAX} are allowed")]
    TooLong {
        /// Its size.
        bytes: usize,
    },
    /// It is no absolute URL.
    #[error("it is not an absolute URL such as https://example.com/hook")]
    NotAUrl,
    /// Neither https nor http.
    #[error("the scheme is neither https nor, for a network that the operator has listed, http")]
    Scheme,
    /// It has a user name or a password.
    #[error("the URL has a user name or a password")]
    UserInfo,
    /// It has a fragment.
    #[error("the URL has a fragment")]
    Fragment,
    /// The host is neither a name nor an address, or an address in an unusual form.
    #[error("the host is neither a domain name nor an IP address in its usual form")]
    Host,
    /// The port is wrong.
    #[error("the port is not between 1 and 65535")]
    Port,
    /// The address is not public and in no listed network.
    #[error(
        "the address is not one of the public internet, and the operator has not listed its network"
    )]
    PrivateAddress,
    /// Without TLS to a host that is in no listed network.
    #[error("http is allowed only to networks that the operator has listed; use https")]
    NotSecure,
}

impl WebhookUrl {
    /// Checks a URL.
    ///
    /// # Errors
    /// See [`BadWebhookUrl`].
    pub fn parse(text: &str, allowed: &AllowedAddresses) -> Result<WebhookUrl, BadWebhookUrl> {
        let bytes = text.len();
        if bytes > URL_BYTES_MAX {
            return Err(BadWebhookUrl::TooLong { bytes });
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(BadWebhookUrl::NotAUrl);
        }
        if text.contains('#') {
            return Err(BadWebhookUrl::Fragment);
        }
        let uri: Uri = text.parse().map_err(|_| BadWebhookUrl::NotAUrl)?;
        let authority = uri.authority().ok_or(BadWebhookUrl::NotAUrl)?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(BadWebhookUrl::Scheme),
        };
        if authority.as_str().contains('@') {
            return Err(BadWebhookUrl::UserInfo);
        }
        let host = authority.host();
        let port = match authority.as_str().strip_prefix(host) {
            Some("") => default_port(is_tls),
            Some(text) => match authority.port_u16() {
                Some(port) if port > 0 && text[1..].bytes().all(|byte| byte.is_ascii_digit()) => {
                    port
                }
                _ => return Err(BadWebhookUrl::Port),
            },
            None => return Err(BadWebhookUrl::Host),
        };
        match Host::parse(host)? {
            Host::Address(address) if !allowed.allow(address, true) => {
                return Err(BadWebhookUrl::PrivateAddress);
            }
            Host::Address(address) if !allowed.allow(address, is_tls) => {
                return Err(BadWebhookUrl::NotSecure);
            }
            Host::Loopback if !allowed.list_loopback() => {
                return Err(BadWebhookUrl::PrivateAddress);
            }
            // The name may lead to a listed network.
            Host::Name if !is_tls && allowed.networks.is_empty() => {
                return Err(BadWebhookUrl::NotSecure);
            }
            Host::Address(_) | Host::Loopback | Host::Name => {}
        }
        Ok(WebhookUrl {
            text: text.into(),
            receiver: receiver(is_tls, host, port),
        })
    }

    /// As it was given.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Scheme, name and port: calls to the same receiver have the same.
    pub fn receiver(&self) -> &str {
        &self.receiver
    }
}

/// Scheme, name and port of a URL that was checked before, maybe by other rules than those of today.
pub(crate) fn receiver_of(text: &str) -> Box<str> {
    let uri: Option<Uri> = text.parse().ok();
    let authority = uri.as_ref().and_then(Uri::authority);
    authority.map_or_else(
        || text.into(),
        |authority| {
            let is_tls = uri.as_ref().and_then(Uri::scheme_str) == Some("https");
            let port = authority.port_u16().unwrap_or(default_port(is_tls));
            receiver(is_tls, authority.host(), port)
        },
    )
}

fn receiver(is_tls: bool, host: &str, port: u16) -> Box<str> {
    let scheme = if is_tls { "https" } else { "http" };
    format!("{scheme}://{}:{port}", host.to_ascii_lowercase()).into()
}

fn default_port(is_tls: bool) -> u16 {
    if is_tls { 443 } else { 80 }
}

/// The host of a URL.
enum Host {
    Address(IpAddr),
    /// A name of this machine.
    Loopback,
    /// Another name.
    Name,
}

impl Host {
    fn parse(host: &str) -> Result<Host, BadWebhookUrl> {
        if let Some(inner) = host.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or(BadWebhookUrl::Host)?;
            let address: Ipv6Addr = inner.parse().map_err(|_| BadWebhookUrl::Host)?;
            return Ok(Host::Address(address.into()));
        }
        if let Ok(address) = host.parse::<Ipv4Addr>() {
            return Ok(Host::Address(address.into()));
        }
        let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let is_label = |label: &str| {
            let mut bytes = label.bytes();
            !label.is_empty()
                && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        };
        // Resolvers read `2130706433`, `0x7f.1` and the like as addresses.
        let last = name.rsplit('.').next().unwrap_or_default();
        let is_number = last.starts_with("0x") || last.bytes().all(|byte| byte.is_ascii_digit());
        if name.len() > HOST_BYTES_MAX || !name.split('.').all(is_label) || is_number {
            return Err(BadWebhookUrl::Host);
        }
        match last {
            "localhost" => Ok(Host::Loopback),
            _ => Ok(Host::Name),
        }
    }
}

/// The longest URL of a webhook.
pub const URL_BYTES_MAX: usize = 2_048;

/// The longest domain name (RFC 1035).
const HOST_BYTES_MAX: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(networks: &[&str]) -> AllowedAddresses {
        let networks = networks.iter().map(|network| network.parse().unwrap());
        AllowedAddresses {
            networks: networks.collect(),
        }
    }

    #[test]
    fn public_urls_are_allowed_with_tls() {
        for url in [
            "https://example.com/hook?x=1",
            "https://example.com:8443",
            "https://EXAMPLE.com./",
            "https://1.1.1.1/",
            "https://[2606:4700::1111]:8443/x",
            "https://[::ffff:1.1.1.1]/",
        ] {
            let parsed = WebhookUrl::parse(url, &listed(&[])).unwrap();
            assert_eq!(parsed.as_str(), url);
        }
    }

    #[test]
    fn what_may_lead_elsewhere_is_refused() {
        use BadWebhookUrl::*;
        let long = format!("https://example.com/{}", "x".repeat(URL_BYTES_MAX));
        for (url, error) in [
            ("", NotAUrl),
            ("/hook", NotAUrl),
            ("example.com/hook", NotAUrl),
            ("https:///hook", NotAUrl),
            ("https://example.com/a b", NotAUrl),
            ("https://exämple.com/", NotAUrl),
            ("https://127.0.0.1:80\\@example.com/", NotAUrl),
            (&long, TooLong { bytes: long.len() }),
            ("ftp://example.com/", Scheme),
            ("file://example.com/etc", Scheme),
            ("https://user:word@example.com/", UserInfo),
            ("https://127.0.0.1@example.com/", UserInfo),
            ("https://example.com/#x", Fragment),
            ("https://example.com:0/", Port),
            ("https://example.com:65536/", Port),
            ("https://exam%70le.com/", NotAUrl),
            ("https://a..b/", Host),
            ("https://2130706433/", Host),
            ("https://0x7f.1/", Host),
            ("https://0x7f000001/", Host),
            ("https://127.1/", Host),
            ("https://0177.0.0.1/", Host),
            ("https://1.1.1.256/", Host),
            ("https://[::1%25eth0]/", Host),
            ("https://127.0.0.1/", PrivateAddress),
            ("http://127.0.0.1:8080/", PrivateAddress),
            ("http://10.0.0.1/hook", PrivateAddress),
            ("https://169.254.169.254/latest", PrivateAddress),
            ("https://[fe80::1]/", PrivateAddress),
            ("https://[::1]/", PrivateAddress),
            ("https://[::ffff:127.0.0.1]/", PrivateAddress),
            ("https://localhost/", PrivateAddress),
            ("https://localhost./", PrivateAddress),
            ("https://x.LOCALHOST/", PrivateAddress),
            ("http://example.com/", NotSecure),
            ("http://1.1.1.1/", NotSecure),
        ] {
            assert_eq!(WebhookUrl::parse(url, &listed(&[])), Err(error), "{url}");
        }
    }

    #[test]
    fn listed_networks_are_allowed_without_tls() {
        let loopback = listed(&["127.0.0.0/8"]);
        for url in [
            "http://127.0.0.1:8080/hook",
            "http://localhost:8080/hook",
            "https://localhost/",
            // Where it leads is checked when it is called.
            "http://worker.internal/",
        ] {
            assert!(WebhookUrl::parse(url, &loopback).is_ok(), "{url}");
        }
        for (url, error) in [
            ("http://10.0.0.1/hook", BadWebhookUrl::PrivateAddress),
            ("http://1.1.1.1/hook", BadWebhookUrl::NotSecure),
            ("http://[::1]/hook", BadWebhookUrl::PrivateAddress),
        ] {
            assert_eq!(WebhookUrl::parse(url, &loopback), Err(error), "{url}");
        }
    }

    #[test]
    fn a_receiver_is_a_scheme_a_name_and_a_port() {
        let receiver = |url| {
            let parsed = WebhookUrl::parse(url, &listed(&["127.0.0.0/8"])).unwrap();
            assert_eq!(parsed.receiver(), &*receiver_of(url));
            parsed.receiver().to_owned()
        };
        assert_eq!(receiver("https://A.example/x"), "https://a.example:443");
        assert_eq!(receiver("https://a.example:443/y"), "https://a.example:443");
        assert_eq!(receiver("http://127.0.0.1/"), "http://127.0.0.1:80");
        assert_eq!(receiver("https://[2a00::1]:8/"), "https://[2a00::1]:8");
    }
}
