//! Positions in a stream, and their tokens.

use std::fmt;
use std::str::FromStr;

use encke_log::Sequence;
use serde::{Deserialize, Serialize};

/// A position in one stream: after the record with `sequence`, and `units` into the record with `sequence + 1` if that
/// belongs to the stream.
///
/// Units are bytes, or messages in a JSON stream. Only a fork that starts inside a record has an offset with units.
/// Sequences belong to the log of all streams, so a fork and its source share one space of offsets, and a new stream of
/// an old name never repeats an offset.
///
/// The token has a fixed width, so that tokens sort as strings in the order of their positions (Durable Streams,
/// section 8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Offset {
    /// The last record that is completely before this position; 0 before the first.
    pub sequence: Sequence,
    /// How much of the next record is before this position too.
    pub units: u32,
}

impl Offset {
    /// The beginning of every stream.
    pub const START: Offset = Offset {
        sequence: 0,
        units: 0,
    };

    /// The position after the record with `sequence`.
    pub fn behind(sequence: Sequence) -> Self {
        Offset { sequence, units: 0 }
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}_{:016x}", self.sequence, self.units)
    }
}

/// The text is not a token that this server returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an offset is a value that the server gave, such as 0000000000000007_0000000000000000")]
pub struct BadOffset;

impl FromStr for Offset {
    type Err = BadOffset;

    fn from_str(token: &str) -> Result<Self, BadOffset> {
        let bytes = token.as_bytes();
        if bytes.len() != TOKEN_BYTES || bytes[SEQUENCE_DIGITS] != b'_' {
            return Err(BadOffset);
        }
        Ok(Offset {
            sequence: hex(&bytes[..SEQUENCE_DIGITS])?,
            units: u32::try_from(hex(&bytes[SEQUENCE_DIGITS + 1..])?).map_err(|_| BadOffset)?,
        })
    }
}

/// Lower-case digits only: one position has one token.
fn hex(digits: &[u8]) -> Result<u64, BadOffset> {
    digits.iter().try_fold(0, |value: u64, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return Err(BadOffset),
        };
        Ok(value << 4 | u64::from(digit))
    })
}

const SEQUENCE_DIGITS: usize = 16;
const TOKEN_BYTES: usize = SEQUENCE_DIGITS + 1 + SEQUENCE_DIGITS;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_token_reads_back_as_the_same_position(sequence: u64, units: u32) {
            let offset = Offset { sequence, units };
            prop_assert_eq!(offset.to_string().parse(), Ok(offset));
        }

        #[test]
        fn tokens_sort_as_positions_do(a: (u64, u32), b: (u64, u32)) {
            let a = Offset { sequence: a.0, units: a.1 };
            let b = Offset { sequence: b.0, units: b.1 };
            prop_assert_eq!(a.cmp(&b), a.to_string().cmp(&b.to_string()));
        }

        #[test]
        fn whatever_is_read_is_written_back_the_same(token in "\\PC{0,40}") {
            if let Ok(offset) = token.parse::<Offset>() {
                prop_assert_eq!(offset.to_string(), token);
            }
        }
    }

    #[test]
    fn what_the_server_never_gives_is_refused() {
        for token in [
            "",
            "-1",
            "now",
            "0",
            "00000000000000ff,00000000",
            "00000000000000FF_00000000",
        ] {
            assert_eq!(token.parse::<Offset>(), Err(BadOffset), "{token}");
        }
    }
}
