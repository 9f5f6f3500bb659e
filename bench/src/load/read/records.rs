//! The records of a stream: what is in each, and whether a body has each of them once.
//!
//! A record begins with its number, and continues with bytes that follow from it. So the records may stand in any order, which
//! lets many connections append at a time.

use crate::load::random::Random;
use serde::Serialize;
use std::io::Write as _;

/// The shortest record, in bytes: its number.
pub(super) const RECORD_BYTES_MIN: usize = 16;

/// The records of a stream, all of one size.
#[derive(Debug)]
pub(super) struct Records {
    size: usize,
    count: u64,
    /// Text, in which the rest of each record begins at a place of its own.
    text: Vec<u8>,
}

/// What the first read of a stream has found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RecordFaults {
    /// Records that were not there.
    pub missing: u64,
    /// Records that were there again.
    pub repeated: u64,
    /// Records of which bytes were wrong, and the rest behind the last whole record.
    pub damaged: u64,
}

/// Checks a body that arrives in pieces.
#[derive(Debug)]
pub(super) struct RecordCheck<'a> {
    records: &'a Records,
    seen: Vec<bool>,
    /// The beginning of a record.
    held: Vec<u8>,
    faults: RecordFaults,
}

impl Records {
    /// As many records of `size` bytes as `bytes` bytes need.
    pub(super) fn new(size: usize, bytes: u64) -> Self {
        let mut random = Random::new(size as u64);
        // 64 different bytes of ASCII: as compressible as base64.
        let text = (0..TEXT_STARTS + size).map(|_| b'0' + (random.bits() >> 58) as u8);
        Self {
            size,
            count: bytes.div_ceil(size as u64),
            text: text.collect(),
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// The bytes of all records.
    pub(super) fn bytes(&self) -> u64 {
        self.count * self.size as u64
    }

    /// Appends record `number` to `out`.
    pub(super) fn write(&self, number: u64, out: &mut Vec<u8>) {
        write!(out, "{number:016x}").expect("writing to a vector can't fail");
        out.extend_from_slice(self.rest(number));
    }

    /// What follows the number of a record.
    fn rest(&self, number: u64) -> &[u8] {
        let start = (number.wrapping_mul(STEP) % TEXT_STARTS as u64) as usize;
        &self.text[start..start + self.size - RECORD_BYTES_MIN]
    }

    /// The number of a record if all of its bytes are right.
    fn number_of(&self, record: &[u8]) -> Option<u64> {
        let (digits, rest) = record.split_at_checked(RECORD_BYTES_MIN)?;
        let number = u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        (number < self.count && rest == self.rest(number)).then_some(number)
    }
}

impl<'a> RecordCheck<'a> {
    pub(super) fn new(records: &'a Records) -> Self {
        Self {
            records,
            seen: vec![false; records.count as usize],
            held: Vec::new(),
            faults: RecordFaults::default(),
        }
    }

    /// Takes the next piece of the body.
    pub(super) fn feed(&mut self, mut piece: &[u8]) {
        let size = self.records.size;
        if !self.held.is_empty() {
            let wanted = (size - self.held.len()).min(piece.len());
            self.held.extend_from_slice(&piece[..wanted]);
            piece = &piece[wanted..];
            if self.held.len() < size {
                return;
            }
            let held = std::mem::take(&mut self.held);
            self.record(&held);
        }
        let whole = piece.chunks_exact(size);
        self.held.extend_from_slice(whole.remainder());
        whole.for_each(|record| self.record(record));
    }

    /// Ends the body.
    pub(super) fn finish(mut self) -> RecordFaults {
        self.faults.damaged += u64::from(!self.held.is_empty());
        self.faults.missing = self.seen.iter().filter(|seen| !**seen).count() as u64;
        self.faults
    }

    fn record(&mut self, record: &[u8]) {
        match self.records.number_of(record) {
            None => self.faults.damaged += 1,
            Some(number) => {
                let again = std::mem::replace(&mut self.seen[number as usize], true);
                self.faults.repeated += u64::from(again);
            }
        }
    }
}

/// Places in the text where records begin, and the way from one record's to the next: two primes.
const TEXT_STARTS: usize = 65_521;
const STEP: u64 = 7_919;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn body(records: &Records, numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
        let mut body = Vec::new();
        numbers
            .into_iter()
            .for_each(|number| records.write(number, &mut body));
        body
    }

    fn check(records: &Records, body: &[u8], piece: usize) -> RecordFaults {
        let mut check = RecordCheck::new(records);
        body.chunks(piece).for_each(|piece| check.feed(piece));
        check.finish()
    }

    #[test]
    fn a_stream_has_the_next_whole_record() {
        let records = Records::new(100, 1_001);
        assert_eq!((records.count(), records.bytes()), (11, 1_100));
        assert_eq!(body(&records, 0..11).len(), 1_100);
        assert_eq!(body(&Records::new(16, 16), [0]), b"0000000000000000");
    }

    #[test]
    fn each_kind_of_fault_is_counted() {
        let records = Records::new(20, 100);
        let found = |numbers: &[u64]| check(&records, &body(&records, numbers.iter().copied()), 7);
        let faults = |missing, repeated, damaged| RecordFaults {
            missing,
            repeated,
            damaged,
        };
        assert_eq!(found(&[4, 2, 0, 1, 3]), faults(0, 0, 0));
        assert_eq!(found(&[0, 1, 3, 4]), faults(1, 0, 0));
        assert_eq!(found(&[0, 1, 2, 3, 4, 2]), faults(0, 1, 0));
        assert_eq!(found(&[0, 1, 2, 3, 5]), faults(1, 0, 1));
        let mut damaged = body(&records, 0..5);
        damaged[39] ^= 1;
        assert_eq!(check(&records, &damaged, 100), faults(1, 0, 1));
        assert_eq!(
            check(&records, &body(&records, 0..5)[..99], 100),
            faults(1, 0, 1)
        );
    }

    proptest! {
        #[test]
        fn a_body_is_the_same_however_it_is_cut(size in 16usize..60, piece in 1usize..200) {
            let records = Records::new(size, 1_000);
            let whole = body(&records, (0..records.count()).rev());
            prop_assert_eq!(check(&records, &whole, piece), RecordFaults::default());
        }
    }
}
