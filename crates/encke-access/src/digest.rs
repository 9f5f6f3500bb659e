//! SHA-256, and comparisons that take the same time whatever they find.

use std::fmt;
use std::num::NonZeroU64;

use aws_lc_rs::digest;

/// A SHA-256 digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Digest(pub(crate) [u8; 32]);

impl Digest {
    pub(crate) fn of(text: impl AsRef<[u8]>) -> Self {
        let digest = digest::digest(&digest::SHA256, text.as_ref());
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.as_ref());
        Digest(bytes)
    }

    /// Its first 8 bytes: a name for tables whose entries an attacker gains nothing by meeting.
    pub(crate) fn short(&self) -> NonZeroU64 {
        let first = self.0.first_chunk().expect("32 bytes are more than 8");
        NonZeroU64::new(u64::from_le_bytes(*first)).unwrap_or(NonZeroU64::MIN)
    }

    /// Reads 64 hexadecimal digits.
    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        let digits: Vec<u8> = text
            .bytes()
            .map(crate::path::hex_digit)
            .collect::<Option<_>>()?;
        let bytes: Vec<u8> = digits
            .chunks(2)
            .map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit))
            .collect();
        (digits.len() == 64)
            .then(|| bytes.try_into().ok())
            .flatten()
            .map(Digest)
    }

    pub(crate) fn to_hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest")
    }
}

/// Compares without telling by its time where two values of the same length differ.
pub(crate) fn same(a: &[u8], b: &[u8]) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(a, b).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_digits_are_read_back() {
        let digest = Digest::of("key");
        assert_eq!(Digest::from_hex(&digest.to_hex()), Some(digest));
        assert_eq!(
            Digest::of("abc").to_hex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        for wrong in ["", "ab", &"g".repeat(64), &"a".repeat(65), &"a".repeat(63)] {
            assert_eq!(Digest::from_hex(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn values_of_different_lengths_differ() {
        assert!(same(b"ab", b"ab"));
        assert!(!same(b"ab", b"ac") && !same(b"ab", b"a") && !same(b"", b"a"));
    }
}
