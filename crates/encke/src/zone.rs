//! Zones of IPv6 addresses: a link-local address is one of an interface, which people name (RFC 4007, section 11). Sockets know its index.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;

use anyhow::Context;
use rustix::net::netdevice::{index_to_name, name_to_index};
use rustix::net::{AddressFamily, SocketType, socket};

/// The address that a text such as `[fe80::1%eth0]:80` stands for. `None`: it has another form.
pub(crate) fn zoned_address(text: &str) -> Option<anyhow::Result<SocketAddr>> {
    let (host, port) = text.strip_prefix('[')?.rsplit_once("]:")?;
    let (address, zone) = host.split_once('%')?;
    let (address, port) = (address.parse::<Ipv6Addr>().ok()?, port.parse().ok()?);
    Some(interface_index(zone).map(|index| SocketAddrV6::new(address, port, 0, index).into()))
}

/// An address with the name of its interface.
pub(crate) struct NamedZone(pub(crate) SocketAddr);

/// The same in a URL, where a percent sign is `%25` (RFC 6874, section 2).
pub(crate) struct InUrl(pub(crate) SocketAddr);

impl fmt::Display for NamedZone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_with(self.0, "%", f)
    }
}

impl fmt::Display for InUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_with(self.0, "%25", f)
    }
}

fn write_with(address: SocketAddr, sign: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match address {
        SocketAddr::V6(address) if address.scope_id() != 0 => {
            let index = address.scope_id();
            let zone = interface_name(index).unwrap_or_else(|| index.to_string());
            write!(f, "[{}{sign}{zone}]:{}", address.ip(), address.port())
        }
        address => fmt::Display::fmt(&address, f),
    }
}

fn interface_index(name: &str) -> anyhow::Result<u32> {
    let index = any_socket().and_then(|socket| name_to_index(socket, name));
    index.with_context(|| format!("there is no network interface {name}"))
}

fn interface_name(index: u32) -> Option<String> {
    any_socket()
        .and_then(|socket| index_to_name(socket, index))
        .ok()
}

/// The system answers questions about interfaces at any socket.
fn any_socket() -> rustix::io::Result<OwnedFd> {
    socket(AddressFamily::UNIX, SocketType::DGRAM, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_names_of_interfaces() {
        let address = zoned_address("[fe80::77%lo]:4600").unwrap().unwrap();
        let index = interface_index("lo").unwrap();
        assert_eq!(
            address,
            SocketAddrV6::new("fe80::77".parse().unwrap(), 4600, 0, index).into()
        );
        assert_eq!(NamedZone(address).to_string(), "[fe80::77%lo]:4600");
        assert_eq!(InUrl(address).to_string(), "[fe80::77%25lo]:4600");
        // A zone without a name is shown by its index.
        let gone = SocketAddrV6::new("fe80::77".parse().unwrap(), 1, 0, u32::MAX);
        let shown = NamedZone(gone.into()).to_string();
        assert_eq!(shown, format!("[fe80::77%{}]:1", u32::MAX));
        assert_eq!(InUrl("[::1]:80".parse().unwrap()).to_string(), "[::1]:80");
        let unknown = zoned_address("[fe80::77%nothing0]:4600").unwrap();
        let why = format!("{:#}", unknown.unwrap_err());
        assert!(
            why.starts_with("there is no network interface nothing0: "),
            "{why}"
        );
        for other in [
            "fe80::77%lo:1",
            "[fe80::77]:1",
            "[fe80::77%lo]",
            "[x%lo]:1",
            "[::1%lo]:x",
        ] {
            assert!(zoned_address(other).is_none(), "{other}");
        }
    }
}
