//! Event ids: up to where a subscriber of several streams has everything.
//!
//! `00000000000003e8` says that everything up to that sequence of the log was had, of every stream. A client that began
//! further on with some streams, and has not caught up there with the others yet, has more of those: then the id goes on
//! with `;POSITION:PLACES` for each such position, where the places are bits, the first stream of the request being the
//! lowest.

use std::io::Write;
use std::str::FromStr;

use encke_stream::{Offset, Sequence};

/// A parsed id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Id {
    /// Everything up to this sequence was had.
    pub(super) after: Sequence,
    /// What was had beyond, and by which places.
    ahead: Vec<(Offset, u128)>,
}

impl Id {
    /// Up to where the stream at that place of the request was had.
    pub(super) fn position(&self, place: usize) -> Offset {
        let bit = 1_u128.checked_shl(place as u32).unwrap_or(0);
        let ahead = self.ahead.iter().filter(|(_, places)| places & bit != 0);
        ahead.fold(Offset::behind(self.after), |had, (at, _)| had.max(*at))
    }
}

/// Writes an id as an event's field.
pub(super) fn write(after: Sequence, ahead: &[(Offset, u8)], out: &mut Vec<u8>) {
    // Writing to a vector does not fail.
    let _ = write!(out, "id:{after:016x}");
    for (number, (at, _)) in ahead.iter().enumerate() {
        if ahead[..number].iter().any(|(other, _)| other == at) {
            continue;
        }
        let places = ahead.iter().filter(|(other, _)| other == at);
        let places = places.fold(0_u128, |places, (_, place)| places | 1 << place);
        let _ = write!(out, ";{at}:{places:x}");
    }
    out.push(b'\n');
}

/// What a client sent is no id of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadId;

impl FromStr for Id {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let mut parts = text.split(';');
        let after = parts.next().unwrap_or_default();
        if after.len() != SEQUENCE_DIGITS || !after.bytes().all(is_digit) {
            return Err(BadId);
        }
        let after = Sequence::from_str_radix(after, 16).map_err(|_| BadId)?;
        let mut ahead = Vec::new();
        for part in parts {
            let (at, places) = part.split_once(':').ok_or(BadId)?;
            if places.is_empty() || !places.bytes().all(is_digit) || ahead.len() == PLACES_MAX {
                return Err(BadId);
            }
            let at = at.parse().map_err(|_| BadId)?;
            let places = u128::from_str_radix(places, 16).map_err(|_| BadId)?;
            ahead.push((at, places));
        }
        Ok(Id { after, ahead })
    }
}

/// Lower-case digits only: one position has one id.
fn is_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

const SEQUENCE_DIGITS: usize = 16;

/// Streams that an id can tell apart.
pub(super) const PLACES_MAX: usize = u128::BITS as usize;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_id_says_what_each_place_has(
            after in 0_u64..1_000,
            ahead in prop::collection::vec((0_u64..2_000, 0_u32..3, 0_u8..128), 0..20),
        ) {
            let ahead: Vec<(Offset, u8)> = ahead
                .into_iter()
                .map(|(sequence, units, place)| (Offset { sequence, units }, place))
                .collect();
            let mut out = Vec::new();
            write(after, &ahead, &mut out);
            let text = String::from_utf8(out).unwrap();
            let id: Id = text.trim_end().strip_prefix("id:").unwrap().parse().unwrap();
            for place in 0..128 {
                let own = ahead.iter().filter(|(_, other)| *other == place);
                let expected = own.fold(Offset::behind(after), |had, (at, _)| had.max(*at));
                prop_assert_eq!(id.position(usize::from(place)), expected);
            }
        }

        #[test]
        fn whatever_is_sent_is_no_panic(text in "[0-9a-f;:_x]{0,60}") {
            let _ = text.parse::<Id>();
        }
    }

    #[test]
    fn what_the_server_never_gives_is_refused() {
        for text in [
            "",
            "0",
            "00000000000003E8",
            "00000000000003e8;",
            "00000000000003e8;1:1",
            "+0000000000003e8",
        ] {
            assert_eq!(text.parse::<Id>(), Err(BadId), "{text}");
        }
    }
}
