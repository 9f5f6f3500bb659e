//! The PROXY protocol, versions 1 and 2: a header with the client's address at the start of a connection
//! (<https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>).
//!
//! The header is parsed strictly: if two parsers disagreed about its end, a client could speak in the proxy's name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A parsed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Preface {
    /// How many bytes it took.
    pub(crate) bytes: usize,
    /// Where the client is; nothing when the proxy speaks for itself or does not know.
    pub(crate) client: Option<IpAddr>,
    /// The client speaks TLS to the proxy.
    pub(crate) tls: bool,
}

/// Why bytes are no header of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotPreface(pub(crate) &'static str);

/// Reads the header at the start of a connection. `Ok(None)`: more is needed.
pub(crate) fn parse(input: &[u8]) -> Result<Option<Preface>, NotPreface> {
    if starts(input, SIGNATURE_2) {
        binary(input)
    } else if starts(input, SIGNATURE_1) {
        text(input)
    } else {
        Err(NotPreface(
            "this listener expects a header of the PROXY protocol first",
        ))
    }
}

/// Whether it begins with that, as far as it goes.
fn starts(input: &[u8], with: &[u8]) -> bool {
    let count = input.len().min(with.len());
    input[..count] == with[..count]
}

/// Version 1: `PROXY TCP4 192.0.2.1 192.0.2.2 56324 443` and a line end.
fn text(input: &[u8]) -> Result<Option<Preface>, NotPreface> {
    let reach = &input[..input.len().min(TEXT_BYTES_MAX)];
    let Some(end) = reach.iter().position(|byte| *byte == b'\n') else {
        if reach.len() == TEXT_BYTES_MAX {
            return Err(NotPreface("the PROXY line does not end"));
        }
        return Ok(None);
    };
    let wrong = NotPreface("the PROXY line is malformed");
    let line = std::str::from_utf8(&input[..end])
        .ok()
        .and_then(|line| line.strip_suffix('\r'))
        .filter(|line| line.bytes().all(|byte| (b' '..=b'~').contains(&byte)))
        .ok_or(wrong)?;
    let mut words = line.split(' ').skip(1);
    let family = words.next().ok_or(wrong)?;
    let client = match family {
        // What stands behind it means nothing.
        "UNKNOWN" => None,
        "TCP4" | "TCP6" => {
            let mut address = || {
                let word = words.next()?;
                if family == "TCP4" {
                    word.parse::<Ipv4Addr>().ok().map(IpAddr::from)
                } else {
                    word.parse::<Ipv6Addr>().ok().map(IpAddr::from)
                }
            };
            let source = address().ok_or(wrong)?;
            address().ok_or(wrong)?;
            for _ in 0..2 {
                words.next().filter(|word| is_port(word)).ok_or(wrong)?;
            }
            if words.next().is_some() {
                return Err(wrong);
            }
            Some(source.to_canonical())
        }
        _ => return Err(wrong),
    };
    Ok(Some(Preface {
        bytes: end + 1,
        client,
        tls: false,
    }))
}

/// Digits only, without zeros in front.
fn is_port(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_digit())
        && (word == "0" || !word.starts_with('0'))
        && word.parse::<u16>().is_ok()
}

/// Version 2: a signature, a command, a family, a length, addresses, and fields of type, length and value.
fn binary(input: &[u8]) -> Result<Option<Preface>, NotPreface> {
    let Some((fixed, rest)) = input.split_at_checked(FIXED_BYTES) else {
        return Ok(None);
    };
    let length = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    if length > BINARY_BYTES_MAX {
        return Err(NotPreface("the PROXY header is too long"));
    }
    let (version, command) = (fixed[12] >> 4, fixed[12] & 0xf);
    if version != 2 || command > 1 {
        return Err(NotPreface(
            "the PROXY header is of an unknown version or command",
        ));
    }
    let Some(block) = rest.get(..length) else {
        return Ok(None);
    };
    let bytes = FIXED_BYTES + length;
    let itself = Preface {
        bytes,
        client: None,
        tls: false,
    };
    if command == 0 {
        // The proxy asks for itself, as it does to see whether we are there.
        return Ok(Some(itself));
    }
    let short = NotPreface("the PROXY header is too short for its addresses");
    let (client, fields) = match fixed[13] {
        // Sockets that are not of TCP over IPv4 or IPv6 have no address that means anything here: those of UDP and of UNIX count as
        // unspecified (section 2.2).
        0 | 0x12 | 0x22 | 0x31 | 0x32 => return Ok(Some(itself)),
        0x11 => {
            let source: [u8; 4] = array(block).ok_or(short)?;
            (IpAddr::from(source), block.get(12..).ok_or(short)?)
        }
        0x21 => {
            let source: [u8; 16] = array(block).ok_or(short)?;
            (IpAddr::from(source), block.get(36..).ok_or(short)?)
        }
        _ => {
            return Err(NotPreface(
                "the PROXY header is of an unknown family or transport",
            ));
        }
    };
    Ok(Some(Preface {
        bytes,
        client: Some(client.to_canonical()),
        tls: says_tls(&input[..bytes], fields)?,
    }))
}

/// Looks through the fields behind the addresses; `header` is all of it, over which a checksum goes.
fn says_tls(header: &[u8], mut fields: &[u8]) -> Result<bool, NotPreface> {
    let wrong = NotPreface("the PROXY header's fields are malformed");
    let mut tls = false;
    while let Some((&kind, rest)) = fields.split_first() {
        let length = usize::from(u16::from_be_bytes(array(rest).ok_or(wrong)?));
        let value = rest.get(2..2 + length).ok_or(wrong)?;
        match kind {
            CHECKSUM => {
                let said = u32::from_be_bytes(array(value).filter(|_| length == 4).ok_or(wrong)?);
                // It is computed as if it were 0 itself.
                let at = header.len() - fields.len() + 3;
                let sum = crc32c::crc32c(&header[..at]);
                let sum = crc32c::crc32c_append(sum, &[0; 4]);
                let sum = crc32c::crc32c_append(sum, &header[at + 4..]);
                if sum != said {
                    return Err(NotPreface("the PROXY header's checksum is wrong"));
                }
            }
            TLS => tls |= value.first().ok_or(wrong)? & BY_TLS != 0,
            _ => {}
        }
        fields = &rest[2 + length..];
    }
    Ok(tls)
}

fn array<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    bytes.first_chunk().copied()
}

const SIGNATURE_1: &[u8] = b"PROXY ";
const SIGNATURE_2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// What the protocol allows for version 1, the line end included.
const TEXT_BYTES_MAX: usize = 107;

/// Signature, command, family and length of version 2.
const FIXED_BYTES: usize = 16;

/// What version 2 may bring behind these: far more than any proxy has to say.
const BINARY_BYTES_MAX: usize = 4096;

const CHECKSUM: u8 = 0x03;
const TLS: u8 = 0x20;
const BY_TLS: u8 = 0x01;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn preface(bytes: usize, client: &str) -> Result<Option<Preface>, NotPreface> {
        Ok(Some(Preface {
            bytes,
            client: client.parse().ok(),
            tls: false,
        }))
    }

    fn header(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
        let length = (block.len() as u16).to_be_bytes();
        [SIGNATURE_2, &[command, family], &length, block].concat()
    }

    fn field(kind: u8, value: &[u8]) -> Vec<u8> {
        let length = (value.len() as u16).to_be_bytes();
        [&[kind], &length[..], value].concat()
    }

    #[test]
    fn reads_lines() {
        let line = b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n";
        assert_eq!(parse(line), preface(line.len(), "192.0.2.1"));
        let more = [line, &b"GET / HTTP/1.1\r\n"[..]].concat();
        assert_eq!(parse(&more), preface(line.len(), "192.0.2.1"));
        let line = b"PROXY TCP6 2001:db8::1 ::1 1 65535\r\n";
        assert_eq!(parse(line), preface(line.len(), "2001:db8::1"));
        let line = b"PROXY UNKNOWN whatever it is\r\n";
        assert_eq!(parse(line), preface(line.len(), ""));
        let longest = [&b"PROXY UNKNOWN "[..], &[b'f'; 91], b"\r\n"].concat();
        assert_eq!(longest.len(), TEXT_BYTES_MAX);
        assert_eq!(parse(&longest), preface(longest.len(), ""));
    }

    #[test]
    fn refuses_every_other_line() {
        for line in [
            "GET / HTTP/1.1\r\n",
            "proxy TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY\r\n",
            "PROXY \r\n",
            "PROXY TCP4\r\n",
            "PROXY TCP5 192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 3\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 \r\n",
            "PROXY TCP4  192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 +1 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 01 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 \r\n",
            "PROXY TCP4 192.0.2.256 192.0.2.2 1 2\r\n",
            "PROXY TCP4 2001:db8::1 192.0.2.2 1 2\r\n",
            "PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY TCP4 192.0.2.1\t192.0.2.2 1 2\r\n",
        ] {
            assert!(parse(line.as_bytes()).is_err(), "{line:?}");
        }
        let endless = [&b"PROXY UNKNOWN "[..], &[b'f'; 93]].concat();
        assert!(parse(&endless).is_err());
        assert_eq!(parse(&endless[..TEXT_BYTES_MAX - 1]), Ok(None));
    }

    #[test]
    fn reads_headers() {
        let four = [[192, 0, 2, 1], [192, 0, 2, 2], [1, 2, 3, 4]].concat();
        let bytes = header(0x21, 0x11, &four);
        assert_eq!(parse(&bytes), preface(28, "192.0.2.1"));
        let mapped: Ipv6Addr = "::ffff:192.0.2.9".parse().unwrap();
        let six = [&mapped.octets()[..], &[0; 20]].concat();
        assert_eq!(parse(&header(0x21, 0x21, &six)), preface(52, "192.0.2.9"));
        // The proxy's own connection: addresses are ignored.
        assert_eq!(parse(&header(0x20, 0, b"")), preface(16, ""));
        assert_eq!(parse(&header(0x20, 0x11, &four)), preface(28, ""));
        assert_eq!(parse(&header(0x21, 0, b"abc")), preface(19, ""));
        // The sockets of UDP and of UNIX count as unspecified.
        for family in [0x12, 0x22, 0x31, 0x32] {
            for block in [0, 12, 36, 216] {
                let bytes = header(0x21, family, &vec![7; block]);
                assert_eq!(parse(&bytes), preface(bytes.len(), ""), "{family:x}");
            }
        }
        // Fields: unknown ones are ignored, TLS is read.
        for (client, tls) in [(0, false), (1, true), (7, true), (6, false)] {
            let fields = [field(0xe0, b"x"), field(TLS, &[client, 0, 0, 0, 0])].concat();
            let bytes = header(0x21, 0x11, &[&four[..], &fields].concat());
            assert_eq!(parse(&bytes).unwrap().unwrap().tls, tls);
        }
    }

    #[test]
    fn refuses_every_other_header() {
        let four = [0; 12];
        for bytes in [
            header(0x11, 0x11, &four),
            header(0x22, 0x11, &four),
            header(0x21, 0x11, &four[..11]),
            header(0x21, 0x21, &four),
            header(0x21, 0x13, &four),
            header(0x21, 0x41, &[0; 216]),
            header(0x21, 0x10, &four),
            header(0x21, 0x01, &four),
            header(0x21, 0x11, &[&four[..], &[1, 0]].concat()),
            header(0x21, 0x11, &[&four[..], &[1, 0, 1]].concat()),
            header(0x21, 0x11, &[&four[..], &field(TLS, b"")].concat()),
            header(0x21, 0x11, &[&four[..], &field(CHECKSUM, b"abc")].concat()),
            header(0x21, 0x11, &[&four[..], &field(CHECKSUM, b"abcd")].concat()),
            header(0x20, 0, &[0; BINARY_BYTES_MAX + 1]),
        ] {
            assert!(parse(&bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_checksum_is_checked() {
        let block = [&[7; 12][..], &field(0xe0, b"a"), &field(CHECKSUM, &[0; 4])].concat();
        let mut bytes = header(0x21, 0x11, &[&block[..], &field(0xe1, b"b")].concat());
        let at = FIXED_BYTES + block.len() - 4;
        let sum = crc32c::crc32c(&bytes);
        bytes[at..at + 4].copy_from_slice(&sum.to_be_bytes());
        assert!(parse(&bytes).unwrap().is_some());
        // Damage that makes the checksum something else leaves nothing to check.
        let kind = at - 3;
        for at in (FIXED_BYTES..bytes.len()).filter(|at| *at != kind) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(parse(&damaged).is_err(), "{at}");
        }
    }

    proptest! {
        /// Whatever the client and whatever follows: the header is found, its end to the byte, and not before it is whole.
        #[test]
        fn there_and_back(client: IpAddr, server: IpAddr, ports: (u16, u16), behind: Vec<u8>, extra in 0u8..40) {
            let six = |address: IpAddr| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            };
            let (family, code, addresses) = match (client, server) {
                (IpAddr::V4(client), IpAddr::V4(server)) => {
                    ("TCP4", 0x11, [client.octets(), server.octets()].concat())
                }
                _ => ("TCP6", 0x21, [six(client).octets(), six(server).octets()].concat()),
            };
            let (source, target) = match family {
                "TCP4" => (client.to_string(), server.to_string()),
                _ => (six(client).to_string(), six(server).to_string()),
            };
            let line = format!("PROXY {family} {source} {target} {} {}\r\n", ports.0, ports.1);
            let fields = field(0xe0, &vec![0; usize::from(extra)]);
            let block = [&addresses[..], &[0; 4], &fields].concat();
            for whole in [line.into_bytes(), header(0x21, code, &block)] {
                let input = [&whole[..], &behind].concat();
                let found = parse(&input).unwrap().unwrap();
                prop_assert_eq!(found.bytes, whole.len());
                prop_assert_eq!(found.client, Some(client.to_canonical()));
                for end in 0..whole.len() {
                    prop_assert_eq!(parse(&whole[..end]), Ok(None));
                }
            }
        }

        #[test]
        fn no_input_panics(input: Vec<u8>, text in "PROXY [ -~]{0,120}\r\n", command: u8, family: u8) {
            for bytes in [input.clone(), text.into_bytes(), header(command, family, &input)] {
                if let Ok(Some(preface)) = parse(&bytes) {
                    prop_assert!(preface.bytes <= bytes.len());
                    // What was understood is understood without what follows, too.
                    prop_assert_eq!(parse(&bytes[..preface.bytes]), Ok(Some(preface)));
                }
            }
        }
    }
}
