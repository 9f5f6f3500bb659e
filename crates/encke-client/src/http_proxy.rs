//! The proxy that the settings name.

use std::fmt;
use std::str::FromStr;

use ureq::http::Uri;
use ureq::{Proxy, ProxyProtocol};

/// A proxy that connects by the method CONNECT, such as `http://proxy.example:3128`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpProxy {
    host: String,
    port: u16,
}

impl HttpProxy {
    /// The proxy as a client uses it. `None`: the library does not take it, and it was not parsed.
    pub(crate) fn proxy(&self) -> Option<Proxy> {
        let proxy = Proxy::builder(ProxyProtocol::Http)
            .host(&self.host)
            .port(self.port);
        let direct = LOOPBACK.iter();
        direct
            .fold(proxy, |proxy, host| proxy.no_proxy(host))
            .build()
            .ok()
    }
}

impl FromStr for HttpProxy {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<HttpProxy> {
        const ALLOWED: &str = "must be the URL of a proxy without a path and credentials, such as http://proxy.example:3128";
        let allowed = || anyhow::anyhow!(ALLOWED);
        let uri: Uri = text.parse().map_err(|_| allowed())?;
        let authority = uri.authority().ok_or_else(allowed)?;
        let is_plain = uri.scheme_str() == Some("http")
            && matches!(uri.path(), "" | "/")
            && uri.query().is_none()
            && !authority.as_str().contains('@')
            && !authority.host().is_empty();
        let proxy = HttpProxy {
            host: authority.host().to_owned(),
            port: authority.port_u16().unwrap_or(80),
        };
        anyhow::ensure!(is_plain && proxy.proxy().is_some(), ALLOWED);
        Ok(proxy)
    }
}

impl fmt::Display for HttpProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}", self.host, self.port)
    }
}

/// Hosts that are reached without the proxy.
const LOOPBACK: [&str; 3] = ["localhost", "127.*", "[::1]"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_a_url_with_nothing_but_host_and_port() {
        for (text, shown) in [
            ("http://proxy.example:3128", "http://proxy.example:3128"),
            ("http://proxy.example/", "http://proxy.example:80"),
            ("http://[::1]:8080", "http://[::1]:8080"),
        ] {
            let proxy: HttpProxy = text.parse().unwrap();
            assert_eq!(proxy.to_string(), shown);
            assert!(proxy.proxy().is_some(), "{text}");
        }
        for text in [
            "",
            "proxy.example:3128",
            "https://proxy.example",
            "socks5://proxy.example",
            "http://user:secret@proxy.example",
            "http://proxy.example/path",
            "http://proxy.example/?q",
        ] {
            let error = text.parse::<HttpProxy>().unwrap_err().to_string();
            assert!(
                error.contains("such as http://proxy.example:3128"),
                "{text}"
            );
            assert!(!error.contains("secret"));
        }
    }
}
