//! Sets of addresses in settings.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

/// A set of networks, such as the trusted ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(Vec<IpNet>);

/// A list of networks could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotNetworks {
    /// The list has one entry, which is wrong.
    #[error("must be addresses and networks, such as 10.0.0.0/8,2001:db8::/32, or none")]
    List,
    /// One of several entries is wrong.
    #[error("{0:?} is neither an address nor a network such as 10.0.0.0/8 or 2001:db8::/32")]
    Entry(String),
}

impl Networks {
    /// The loopback addresses.
    pub fn loopback() -> Self {
        let v4 = IpNet::new_assert(IpAddr::from([127, 0, 0, 0]), 8);
        let v6 = IpNet::from(IpAddr::from(std::net::Ipv6Addr::LOCALHOST));
        Networks(vec![v4, v6])
    }

    /// Whether the address is in one of them. An IPv4-mapped IPv6 address counts as IPv4.
    pub fn contain(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    /// The networks.
    pub fn list(&self) -> &[IpNet] {
        &self.0
    }

    /// Whether no address is in them.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for Networks {
    type Err = NotNetworks;

    /// Networks and addresses with commas between them, or `none`.
    fn from_str(text: &str) -> Result<Self, NotNetworks> {
        if text.trim() == NONE {
            return Ok(Networks::default());
        }
        text.split(',')
            .map(str::trim)
            .map(|word| {
                word.parse::<IpNet>()
                    .or_else(|_| word.parse::<IpAddr>().map(IpNet::from))
                    .map_err(|_| match word == text.trim() {
                        true => NotNetworks::List,
                        false => NotNetworks::Entry(word.to_owned()),
                    })
            })
            .collect::<Result<_, _>>()
            .map(Networks)
    }
}

impl fmt::Display for Networks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(NONE);
        }
        for (number, network) in self.0.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(f, "{comma}{network}")?;
        }
        Ok(())
    }
}

const NONE: &str = "none";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_shown() {
        let networks: Networks = "10.0.0.0/8, 192.0.2.7,2001:db8::/32".parse().unwrap();
        for inside in ["10.1.2.3", "192.0.2.7", "2001:db8:1::1", "::ffff:10.0.0.1"] {
            assert!(networks.contain(inside.parse().unwrap()), "{inside}");
        }
        for outside in ["11.0.0.1", "192.0.2.8", "2001:db9::1", "::1"] {
            assert!(!networks.contain(outside.parse().unwrap()), "{outside}");
        }
        assert_eq!(networks.to_string().parse(), Ok(networks));
        assert_eq!("none".parse(), Ok(Networks::default()));
        assert_eq!(Networks::default().to_string(), "none");
        for wrong in ["", "10.0.0.0/33", "a", "10.0.0.1,", "10.0.0"] {
            assert!(wrong.parse::<Networks>().is_err(), "{wrong:?}");
        }
        // A message does not repeat the whole value.
        let error = |text: &str| text.parse::<Networks>().unwrap_err();
        assert_eq!(error(" 10.0.0.0/33"), NotNetworks::List);
        let entry = NotNetworks::Entry("a".to_owned());
        assert_eq!(error("10.0.0.1, a"), entry);
    }

    #[test]
    fn a_machine_knows_itself() {
        let loopback = Networks::loopback();
        assert!(loopback.contain([127, 1, 2, 3].into()));
        assert!(loopback.contain("::1".parse().unwrap()));
        assert!(!loopback.contain("::2".parse().unwrap()));
    }
}
