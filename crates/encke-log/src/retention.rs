//! ClassRetention classes: streams whose records are kept for the same time.
//!
//! The class of a stream is in the highest byte of its number, given by the caller when the stream is made: nothing has to be
//! looked up to know it, and it can't be lost. History keeps the records of a class that has limits in *generations*, each
//! a keyspace of its own for a stretch of the global order, so that what is too old or too much goes at once, without being
//! read. What is gone that way is below the floor of the class.

use crate::disk::Disk;
use crate::error::ReadError;
use crate::failed_read::Wanted;
use crate::floor::FORGOTTEN;
use crate::read::Reader;
use crate::{Sequence, StreamNo};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A retention class. Class 0 is that of streams whose numbers are below 2^56.
pub type Class = u8;

/// How long the records of a class are kept. Both limits hold; with neither, for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassRetention {
    /// The class.
    pub class: Class,
    /// Records older than this go, by their own time ([`Frame::time_ms`](crate::Frame::time_ms)). Records go together, so
    /// some stay for up to an eighth longer.
    pub age_max: Option<Duration>,
    /// When the records of the class take more bytes in history than this, the oldest go. They go together, about an
    /// eighth of it at a time.
    pub bytes_max: Option<u64>,
}

impl ClassRetention {
    /// Whether anything of the class is ever let go of.
    pub fn is_limited(&self) -> bool {
        self.age_max.is_some() || self.bytes_max.is_some()
    }

    pub(crate) fn age_ms_max(&self) -> Option<u64> {
        let ms = |age: Duration| u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        self.age_max.map(ms)
    }
}

/// The number of a stream of a class. Only the lower 56 bits of `number` count.
pub fn stream_no(class: Class, number: u64) -> StreamNo {
    u64::from(class) << CLASS_SHIFT | number & NUMBER_MAX
}

/// The class of a stream.
pub fn class_of(stream: StreamNo) -> Class {
    (stream >> CLASS_SHIFT) as Class
}

/// The largest number that [`stream_no`] takes.
pub const NUMBER_MAX: u64 = (1 << CLASS_SHIFT) - 1;

/// The floors of all classes: up to there their records are gone.
#[derive(Debug)]
pub(crate) struct ClassFloors(Box<[AtomicU64]>);

impl ClassFloors {
    pub(crate) fn new(floors: impl Iterator<Item = (Class, Sequence)>) -> ClassFloors {
        let all = ClassFloors((0..=Class::MAX).map(|_| AtomicU64::new(0)).collect());
        for (class, floor) in floors {
            all.raise(class, floor);
        }
        all
    }

    pub(crate) fn of(&self, class: Class) -> Sequence {
        self.0[usize::from(class)].load(Ordering::Acquire)
    }

    pub(crate) fn raise(&self, class: Class, floor: Sequence) {
        self.0[usize::from(class)].fetch_max(floor, Ordering::AcqRel);
    }
}

impl<D: Disk> Reader<D> {
    /// The records of a stream up to this one are gone: 0 when none are, [`FORGOTTEN`] when all are and none will come. That
    /// nothing is left of a forgotten stream may also be forgotten; then this is 0.
    ///
    /// # Errors
    /// The floors could not be read, or are damaged.
    pub fn floor(&self, stream: StreamNo) -> Result<Sequence, ReadError> {
        self.watch(self.read_floor(stream), || Wanted::Floor(stream))
    }

    pub(crate) fn read_floor(&self, stream: StreamNo) -> Result<Sequence, ReadError> {
        let shared = self.shared();
        shared.floor(stream).map_err(|e| shared.unreadable(e))
    }

    /// Whether a stream was forgotten, as far as that is still known.
    ///
    /// # Errors
    /// As [`Reader::floor`].
    pub fn is_forgotten(&self, stream: StreamNo) -> Result<bool, ReadError> {
        Ok(self.floor(stream)? == FORGOTTEN)
    }

    /// The floor of a whole class: what age and bytes have taken from all of its streams.
    pub fn class_floor(&self, class: Class) -> Sequence {
        self.shared().class_floors.of(class)
    }
}

const CLASS_SHIFT: u32 = 56;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_tells_its_class() {
        for (class, number) in [(0, 1), (1, 1), (255, NUMBER_MAX), (7, 0)] {
            let stream = stream_no(class, number);
            assert_eq!(class_of(stream), class);
            assert_eq!(stream & NUMBER_MAX, number);
        }
        assert_eq!(stream_no(0, 12), 12);
    }

    #[test]
    fn a_floor_never_sinks() {
        let floors = ClassFloors::new([(3, 10)].into_iter());
        floors.raise(3, 5);
        assert_eq!((floors.of(3), floors.of(4)), (10, 0));
    }
}
