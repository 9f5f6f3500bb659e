//! The Huffman code of header fields (RFC 7541, appendix B). It is canonical: the lengths of its codes say what the codes are.

/// Decodes bytes. `None`: they are no code.
pub(super) fn decode(bytes: &[u8], take: &mut impl FnMut(u8)) -> Option<()> {
    let (mut code, mut length) = (0_u32, 0_usize);
    for byte in bytes {
        for bit in (0..8).rev() {
            code = code << 1 | u32::from(byte >> bit & 1);
            length += 1;
            let of_length = &CODES.lengths[length];
            let at = code.checked_sub(of_length.first);
            if let Some(at) = at.filter(|at| *at < of_length.count) {
                take(CODES.symbols[(of_length.symbols + at) as usize]);
                (code, length) = (0, 0);
            } else if length == LENGTH_MAX {
                return None;
            }
        }
    }
    // The rest of the last byte is the begin of the code of the end, which is all ones.
    let is_padding = length < 8 && code == (1 << length) - 1;
    is_padding.then_some(())
}

/// The codes by their lengths.
struct Codes {
    lengths: [OfLength; LENGTH_MAX + 1],
    /// Symbols in the order of their codes.
    symbols: [u8; 256],
}

/// The codes of one length, which follow each other.
#[derive(Clone, Copy)]
struct OfLength {
    first: u32,
    count: u32,
    /// Where their symbols begin.
    symbols: u32,
}

const CODES: Codes = codes();

const fn codes() -> Codes {
    let nothing = OfLength {
        first: 0,
        count: 0,
        symbols: 0,
    };
    let mut codes = Codes {
        lengths: [nothing; LENGTH_MAX + 1],
        symbols: [0; 256],
    };
    let (mut code, mut number, mut length) = (0, 0, 1);
    while length <= LENGTH_MAX {
        code <<= 1;
        let (first, symbols) = (code, number);
        let mut symbol = 0;
        while symbol < 256 {
            if LENGTHS[symbol] as usize == length {
                codes.symbols[number as usize] = symbol as u8;
                number += 1;
                code += 1;
            }
            symbol += 1;
        }
        codes.lengths[length] = OfLength {
            first,
            count: number - symbols,
            symbols,
        };
        length += 1;
    }
    codes
}

/// Bits of the longest code.
const LENGTH_MAX: usize = 30;

/// Bits of the code of each byte.
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(bytes: &[u8]) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        decode(bytes, &mut |byte| text.push(byte)).map(|()| text)
    }

    /// The code of a text, bit by bit.
    fn encoded(text: &[u8]) -> Vec<u8> {
        let mut bits = Vec::new();
        for byte in text {
            let at = CODES.symbols.iter().position(|symbol| symbol == byte);
            let at = at.unwrap() as u32;
            let length = LENGTHS[usize::from(*byte)] as usize;
            let code = CODES.lengths[length].first + at - CODES.lengths[length].symbols;
            bits.extend((0..length).rev().map(|bit| code >> bit & 1));
        }
        bits.resize(bits.len().next_multiple_of(8), 1);
        let bytes = bits.chunks(8);
        bytes
            .map(|bits| bits.iter().fold(0, |byte, bit| byte << 1 | *bit as u8))
            .collect()
    }

    #[test]
    fn the_examples_of_the_standard_are_decoded() {
        // RFC 7541, sections C.4.1 to C.4.3, C.6.1.
        let bytes = [
            0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
        ];
        assert_eq!(decoded(&bytes).unwrap(), b"www.example.com");
        let bytes = [0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf];
        assert_eq!(decoded(&bytes).unwrap(), b"no-cache");
        let bytes = [0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf];
        assert_eq!(decoded(&bytes).unwrap(), b"custom-value");
        let bytes = [0x64, 0x02];
        assert_eq!(decoded(&bytes).unwrap(), b"302");
    }

    #[test]
    fn every_byte_has_a_code_and_what_is_none_is_refused() {
        for byte in 0..=255 {
            assert_eq!(decoded(&encoded(&[byte])).unwrap(), [byte]);
        }
        let text: Vec<u8> = (0..=255).rev().collect();
        assert_eq!(decoded(&encoded(&text)).unwrap(), text);
        // The code of the end, a whole byte of padding, and padding of zeros.
        for wrong in [&[0xff; 4][..], &[0x07, 0xff], &[0x04]] {
            assert_eq!(decoded(wrong), None, "{wrong:?}");
        }
    }
}
