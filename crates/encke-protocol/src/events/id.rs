//! Event ids: the position of a subscriber of several streams.
//!
//! `00000000000003e8` says that the client has everything up to that sequence of the log, of every stream. A client that
//! began further on with some streams, and has not caught up with the others yet, has more of those. Then the id continues
//! with `;POSITION:PLACES` for each such position, where the places are bits; the first stream of the request is the lowest.
//!
//! With several logs an id begins with a sequence for each log, in their order and separated by commas, and each further
//! position names its log: `;POSITION:PLACES:LOG`.
//!
//! Behind that, `;~BORN:PLACES`, with several logs `;~BORN:PLACES:LOG`, says of which streams these are positions: of those that were
//! created by the record `BORN` or before it. A stream of the same name that is created later is another one, of which the client has
//! nothing. Ids of version 0.1.0 do not say it.
//!
//! At the end `;=DIGEST` is a digest of the names in the request, which must be the same when the client resumes. Earlier ids have none.

use std::io::Write;
use std::str::FromStr;

use encke_stream::{LOGS_MAX, Offset, Sequence, Stream, born, log_of};

use crate::encoder::{AheadStream, MergedPosition, StreamGeneration};

/// A parsed id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Id {
    /// The client has everything up to these sequences, one for each log.
    pub(crate) after: Vec<Sequence>,
    /// What it has beyond: the log, the position, and the places of the streams.
    ahead: Vec<(usize, Offset, u128)>,
    /// The streams of which these are positions.
    pub(crate) generations: Vec<StreamGeneration>,
    /// The digest of the names in the request.
    pub(crate) names: Option<u32>,
}

impl Id {
    /// Whether it has a position behind the last record of a log, or in a log that is not there.
    pub(crate) fn is_ahead_of(&self, committed: &[Sequence]) -> bool {
        self.ahead.iter().any(|(log, at, _)| {
            let last = at.sequence.saturating_add(u64::from(at.units > 0));
            committed
                .get(*log)
                .is_none_or(|committed| last > *committed)
        })
    }

    /// Whether its positions at a place of the request are none before those of another id, in all logs, and of the same stream.
    pub(crate) fn is_behind(&self, other: &Id, place: usize) -> bool {
        let stream = |id: &Id| id.generation(place).map(|stream| (stream.log, stream.born));
        let of_the_same = stream(other).is_none_or(|theirs| stream(self) == Some(theirs));
        let logs = self.after.len().max(other.after.len());
        of_the_same && (0..logs).all(|log| self.position(place, log) >= other.position(place, log))
    }

    /// The client's position in the stream at that place of the request, which is in that log.
    pub(crate) fn position(&self, place: usize, log: usize) -> Offset {
        let ahead = self.ahead.iter();
        let ahead = ahead.filter(|(other, _, places)| *other == log && places & bit(place) != 0);
        let after = self.after.get(log).copied().unwrap_or_default();
        ahead.fold(Offset::behind(after), |had, (_, at, _)| had.max(*at))
    }

    /// The generation of the stream at that place of the request. `None`: the client had none there, or the id is of 0.1.0.
    pub(crate) fn generation(&self, place: usize) -> Option<StreamGeneration> {
        let mut generations = self.generations.iter().copied();
        generations.find(|generation| generation.places & bit(place) != 0)
    }

    /// Whether the client's position at that place of the request is one of an earlier stream of the name.
    pub(crate) fn is_of_an_earlier(&self, stream: &Stream, place: usize) -> bool {
        let (log, born) = (log_of(stream.no), born(stream.no));
        let had = self.generation(place);
        had.is_some_and(|had| had.log != log || born > had.born)
    }
}

/// Notes that a client has a position in a stream from now on. `begun` has the streams of which that is noted at the same moment.
pub(crate) fn note_generation(begun: &mut Vec<StreamGeneration>, stream: &Stream, place: usize) {
    let (log, born) = (log_of(stream.no), born(stream.no));
    match begun.iter_mut().find(|generation| generation.log == log) {
        Some(generation) => {
            generation.born = generation.born.max(born);
            generation.places |= bit(place);
        }
        None => begun.push(StreamGeneration {
            log,
            born,
            places: bit(place),
        }),
    }
}

/// A place of the request as a bit; none for a place that no id names.
fn bit(place: usize) -> u128 {
    1_u128.checked_shl(place as u32).unwrap_or(0)
}

/// Writes an id as an event's field.
pub(crate) fn write(position: &MergedPosition<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"id:");
    write_value(position, out);
    out.push(b'\n');
}

/// Writes an id: digits and a few marks that need no escape in JSON.
pub(crate) fn write_value(position: &MergedPosition<'_>, out: &mut Vec<u8>) {
    let MergedPosition {
        after,
        ahead,
        generations,
        names,
    } = *position;
    // Writing to a vector does not fail.
    for (log, sequence) in after.iter().enumerate() {
        let before = if log == 0 { "" } else { "," };
        let _ = write!(out, "{before}{sequence:016x}");
    }
    for (number, one) in ahead.iter().enumerate() {
        let same = |other: &&AheadStream| (other.log, other.at) == (one.log, one.at);
        if ahead[..number].iter().any(|other| same(&other)) {
            continue;
        }
        let places = ahead.iter().filter(same);
        let places = places.fold(0_u128, |places, other| places | 1 << other.place);
        let _ = write!(out, ";{}:{places:x}", one.at);
        if after.len() > 1 {
            let _ = write!(out, ":{:x}", one.log);
        }
    }
    for StreamGeneration { log, born, places } in generations {
        let _ = write!(out, ";~{born:x}:{places:x}");
        if after.len() > 1 {
            let _ = write!(out, ":{log:x}");
        }
    }
    let _ = write!(out, ";={names:08x}");
}

/// An id as text.
pub(crate) fn position_text(position: &MergedPosition<'_>) -> String {
    let mut out = Vec::new();
    write_value(position, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// The text is not an id that the server gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadId;

impl FromStr for Id {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let mut parts = text.split(';');
        let sequence = |text: &str| match text.len() {
            SEQUENCE_DIGITS => digits(text)
                .and_then(|digits| Sequence::from_str_radix(digits, 16).map_err(|_| BadId)),
            _ => Err(BadId),
        };
        let after = parts.next().unwrap_or_default().split(',');
        let after = after.take(LOGS_MAX + 1).map(sequence);
        let after = after.collect::<Result<Vec<_>, _>>()?;
        let mut id = Id {
            after,
            ..Id::default()
        };
        for part in parts {
            if id.names.is_some() {
                return Err(BadId);
            }
            if let Some(names) = part.strip_prefix('=') {
                let is_whole = names.len() == NAMES_DIGITS;
                let names = digits(names).ok().filter(|_| is_whole).ok_or(BadId)?;
                id.names = Some(u32::from_str_radix(names, 16).map_err(|_| BadId)?);
                continue;
            }
            let generation = part.strip_prefix('~');
            let mut fields = generation.unwrap_or(part).split(':');
            let mut field = || fields.next().ok_or(BadId);
            let position = field()?;
            let places = digits(field()?)?;
            let places = u128::from_str_radix(places, 16).map_err(|_| BadId)?;
            let log = match id.after.len() {
                1 => 0,
                _ => usize::from_str_radix(digits(field()?)?, 16).map_err(|_| BadId)?,
            };
            if fields.next().is_some() {
                return Err(BadId);
            }
            if generation.is_some() {
                let born = Sequence::from_str_radix(digits(position)?, 16).map_err(|_| BadId)?;
                id.generations.push(StreamGeneration { log, born, places });
            } else {
                let at = position.parse().map_err(|_| BadId)?;
                id.ahead.push((log, at, places));
            }
            if id.ahead.len().max(id.generations.len()) > PLACES_MAX {
                return Err(BadId);
            }
        }
        Ok(id)
    }
}

/// Lower-case digits only: one position has one id.
fn digits(text: &str) -> Result<&str, BadId> {
    let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    match text.bytes().all(is_digit) {
        true if !text.is_empty() => Ok(text),
        _ => Err(BadId),
    }
}

const SEQUENCE_DIGITS: usize = 16;
const NAMES_DIGITS: usize = 8;

/// The number of streams that an id can name.
pub(crate) const PLACES_MAX: usize = u128::BITS as usize;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_id_says_what_each_place_has(
            after in prop::collection::vec(0_u64..1_000, 1..4),
            ahead in prop::collection::vec((0_usize..3, 0_u64..2_000, 0_u32..3, 0_u8..128), 0..20),
            generations in prop::collection::vec((0_usize..3, 0_u64..2_000, any::<u128>()), 0..4),
            names: u32,
        ) {
            let ahead: Vec<AheadStream> = ahead
                .into_iter()
                .map(|(log, sequence, units, place)| AheadStream {
                    log: log % after.len(),
                    at: Offset { sequence, units },
                    place,
                })
                .collect();
            let generations: Vec<StreamGeneration> = generations
                .into_iter()
                .map(|(log, born, places)| StreamGeneration { log: log % after.len(), born, places })
                .collect();
            let mut out = Vec::new();
            let position = MergedPosition {
                after: &after,
                ahead: &ahead,
                generations: &generations,
                names,
            };
            write(&position, &mut out);
            let text = String::from_utf8(out).unwrap();
            let id: Id = text.trim_end().strip_prefix("id:").unwrap().parse().unwrap();
            prop_assert_eq!(&id.after, &after);
            prop_assert_eq!(&id.generations, &generations);
            prop_assert_eq!(id.names, Some(names));
            for (log, after) in after.iter().enumerate() {
                for place in 0..128 {
                    let own = ahead.iter().filter(|one| (one.log, one.place) == (log, place));
                    let expected = own.fold(Offset::behind(*after), |had, one| had.max(one.at));
                    prop_assert_eq!(id.position(usize::from(place), log), expected);
                }
            }
        }

        #[test]
        fn whatever_is_sent_is_no_panic(text in "[0-9a-f;:,_x~=]{0,60}") {
            let _ = text.parse::<Id>();
        }
    }

    #[test]
    fn a_position_of_another_stream_is_not_behind() {
        let id = |text: &str| text.parse::<Id>().unwrap();
        let signed = id("0000000000000009;~7:3");
        assert!(id("000000000000000a;~7:3").is_behind(&signed, 1));
        assert!(!id("0000000000000008;~7:3").is_behind(&signed, 1));
        for other in [
            "000000000000000a;~8:3",
            "000000000000000a;~7:1",
            "000000000000000a",
        ] {
            assert!(!id(other).is_behind(&signed, 1), "{other}");
        }
        assert!(id("000000000000000a;~7:3").is_behind(&id("0000000000000009"), 1));
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
            "00000000000003e8,",
            ",00000000000003e8",
            "00000000000003e8;00000000000003e9_0000000000000000:1:0",
            "00000000000003e8,00000000000003e8;00000000000003e9_0000000000000000:1",
            "00000000000003e8;=",
            "00000000000003e8;=1234567",
            "00000000000003e8;=1234567G",
            "00000000000003e8;=12345678;=12345678",
            "00000000000003e8;=12345678;~1:1",
            "00000000000003e8;~",
            "00000000000003e8;~1",
            "00000000000003e8;~:1",
            "00000000000003e8;~~1:1",
            "00000000000003e8;~1:1:0",
            "00000000000003e8;~10000000000000000:1",
            "00000000000003e8,00000000000003e8;~1:1",
        ] {
            assert_eq!(text.parse::<Id>(), Err(BadId), "{text}");
        }
    }
}
