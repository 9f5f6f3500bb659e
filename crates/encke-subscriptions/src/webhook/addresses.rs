//! Which addresses webhooks may have: those of the public internet, and those of networks that the operator has listed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The addresses that webhooks may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedAddresses {
    /// Networks whose addresses are allowed although they are not public, such as `127.0.0.0/8` for tests on one machine. Only to them
    /// a webhook may be called without TLS.
    pub networks: Vec<IpNet>,
}

impl AllowedAddresses {
    /// Every address, with and without TLS: for URLs that the operator has chosen.
    pub fn everything() -> Self {
        AllowedAddresses {
            networks: vec![Ipv4Net::default().into(), Ipv6Net::default().into()],
        }
    }

    /// Whether a webhook may have the address.
    pub fn allow(&self, address: IpAddr, is_tls: bool) -> bool {
        self.list(address) || is_tls && is_public(address)
    }

    /// Whether the address is in a listed network. An IPv4-mapped IPv6 address counts as IPv4.
    pub(crate) fn list(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks
            .iter()
            .any(|network| network.contains(&address))
    }

    /// Whether an address of this machine is in a listed network.
    pub(crate) fn list_loopback(&self) -> bool {
        let v4 = Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8);
        let v6 = Ipv6Net::from(Ipv6Addr::LOCALHOST);
        self.networks.iter().any(|network| match network {
            IpNet::V4(network) => network.contains(&v4) || v4.contains(network),
            IpNet::V6(network) => network.contains(&v6),
        })
    }
}

/// Whether an address is one of the public internet: of a single machine, and reached in the same way from everywhere.
///
/// An IPv6 address that carries an IPv4 address is judged by that one if the system connects to it (IPv4-mapped, NAT64 with the
/// well-known prefix). Other forms (6to4, Teredo, IPv4-compatible) are not public: they are obsolete, and lead where the embedded
/// address leads.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !NOT_PUBLIC_V4
            .iter()
            .any(|network| within_v4(address, *network)),
        IpAddr::V6(address) => match embedded(address) {
            Some(address) => is_public(IpAddr::V4(address)),
            None => {
                within_v6(address, GLOBAL_UNICAST)
                    && !NOT_PUBLIC_V6
                        .iter()
                        .any(|network| within_v6(address, *network))
            }
        },
    }
}

/// The IPv4 address to which the system or its network's translator connects instead.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [.., high, low] = address.segments();
    let [a, b] = high.to_be_bytes();
    let [c, d] = low.to_be_bytes();
    let is_embedded = within_v6(address, MAPPED) || within_v6(address, NAT64);
    is_embedded.then_some(Ipv4Addr::new(a, b, c, d))
}

fn within_v4(address: Ipv4Addr, (network, prefix): ([u8; 4], u32)) -> bool {
    let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or_default();
    address.to_bits() & mask == u32::from_be_bytes(network) & mask
}

fn within_v6(address: Ipv6Addr, (network, prefix): ([u16; 8], u32)) -> bool {
    let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or_default();
    address.to_bits() & mask == Ipv6Addr::from(network).to_bits() & mask
}

/// The special-purpose addresses of IPv4 (IANA registry, RFC 6890) that do not lead to a single machine of the public internet, and
/// the address at which machines of one cloud ask for their own secrets.
const NOT_PUBLIC_V4: [([u8; 4], u32); 16] = [
    // This network.
    ([0, 0, 0, 0], 8),
    // Private.
    ([10, 0, 0, 0], 8),
    // Between a carrier and its customers.
    ([100, 64, 0, 0], 10),
    // Loopback.
    ([127, 0, 0, 0], 8),
    // The host of virtual machines of Azure.
    ([168, 63, 129, 16], 32),
    // Link-local, with the metadata of clouds.
    ([169, 254, 0, 0], 16),
    // Private.
    ([172, 16, 0, 0], 12),
    // Protocol assignments.
    ([192, 0, 0, 0], 24),
    // Documentation.
    ([192, 0, 2, 0], 24),
    // Relays of 6to4.
    ([192, 88, 99, 0], 24),
    // Private.
    ([192, 168, 0, 0], 16),
    // Benchmarks.
    ([198, 18, 0, 0], 15),
    // Documentation.
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
    // Multicast.
    ([224, 0, 0, 0], 4),
    // Reserved, and the broadcast address.
    ([240, 0, 0, 0], 4),
];

/// All addresses of IPv6 that are given to single machines of the internet.
const GLOBAL_UNICAST: ([u16; 8], u32) = ([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);

/// The addresses among them that do not lead to a single machine of the public internet.
const NOT_PUBLIC_V6: [([u16; 8], u32); 4] = [
    // Protocol assignments, Teredo and benchmarks among them.
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23),
    // Documentation.
    ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32),
    // 6to4.
    ([0x2002, 0, 0, 0, 0, 0, 0, 0], 16),
    // Documentation.
    ([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20),
];

const MAPPED: ([u16; 8], u32) = ([0, 0, 0, 0, 0, 0xffff, 0, 0], 96);
const NAT64: ([u16; 8], u32) = ([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96);

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn only_addresses_of_the_public_internet_are_public() {
        for text in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.167.255.255",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00::1",
            "::ffff:1.1.1.1",
            "64:ff9b::1.1.1.1",
        ] {
            assert!(is_public(address(text)), "{text}");
        }
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.1",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.255.254",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::1.1.1.1",
            "::ffff:10.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::10.0.0.1",
            "64:ff9b::127.0.0.1",
            "64:ff9b:1::1.1.1.1",
            "100::1",
            "2001::1",
            "2001:0:7f00:1::",
            "2001:2::1",
            "2001:10::1",
            "2001:db8::1",
            "2002:7f00:1::1",
            "2002:101:101::1",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(address(text)), "{text}");
        }
    }

    #[test]
    fn a_listed_network_is_allowed_with_and_without_tls() {
        let none = AllowedAddresses::default();
        let listed = AllowedAddresses {
            networks: vec!["10.1.0.0/16".parse().unwrap(), "::1/128".parse().unwrap()],
        };
        for (text, expected) in [
            ("10.1.2.3", (false, true)),
            ("::ffff:10.1.2.3", (false, true)),
            ("10.2.0.1", (false, false)),
            ("::1", (false, true)),
            ("1.1.1.1", (true, true)),
        ] {
            let allowed = |set: &AllowedAddresses| set.allow(address(text), true);
            assert_eq!((allowed(&none), allowed(&listed)), expected, "{text}");
        }
        assert!(listed.allow(address("10.1.2.3"), false));
        assert!(!listed.allow(address("1.1.1.1"), false), "without TLS");
        assert!(!none.allow(address("1.1.1.1"), false), "without TLS");
    }

    #[test]
    fn loopback_is_listed_by_any_part_of_it() {
        for (network, expected) in [
            ("127.0.0.0/8", true),
            ("127.0.0.1/32", true),
            ("0.0.0.0/0", true),
            ("::1/128", true),
            ("::/0", true),
            ("10.0.0.0/8", false),
            ("fd00::/8", false),
        ] {
            let networks = vec![network.parse().unwrap()];
            let listed = AllowedAddresses { networks };
            assert_eq!(listed.list_loopback(), expected, "{network}");
        }
        assert!(!AllowedAddresses::default().list_loopback());
    }
}
