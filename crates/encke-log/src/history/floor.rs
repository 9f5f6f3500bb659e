//! Floors: the records of a stream up to its floor are removed. This is their form in memory and in history.

use crate::ids::Sequence;
use crate::segments::frame::u64_at;

/// The floor of a forgotten stream: all its records are removed, further ones included.
pub const FORGOTTEN: Sequence = Sequence::MAX;

/// A floor, and the sequence of the next record when it was raised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Floor {
    pub(crate) upto: Sequence,
    pub(crate) at: Sequence,
}

/// The value of a floor in history; a forgotten stream's includes the next record when it was forgotten.
pub(crate) fn floor_value(floor: Floor) -> Vec<u8> {
    match floor.upto {
        FORGOTTEN => [floor.upto.to_le_bytes(), floor.at.to_le_bytes()].concat(),
        upto => upto.to_le_bytes().to_vec(),
    }
}

/// The floor in a value; 0 without one.
pub(crate) fn floor_of(value: Option<fjall::UserValue>) -> Sequence {
    value
        .filter(|value| matches!(value.len(), 8 | 16))
        .map_or(0, |value| u64_at(&value, 0))
}

/// The next record when a stream was forgotten; `None` for other floors.
pub(crate) fn forgotten_at(value: &[u8]) -> Option<Sequence> {
    (value.len() == 16 && u64_at(value, 0) == FORGOTTEN).then(|| u64_at(value, 8))
}
