//! Encoded records, and the places where a subscriber may be left.

use encke_stream::Offset;

/// An encoded run.
#[derive(Clone, Debug, Default)]
pub struct EncodedRun {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Where a subscriber may be left, in ascending order; the last one is behind the last byte.
    pub marks: Vec<Mark>,
    /// The position of a subscriber that has all of it, if that is not the run's end, because a cut character is withheld.
    pub withheld_at: Option<Offset>,
    /// Messages that some channels do not get, in ascending order of their marks.
    pub omissions: Vec<Omission>,
}

/// A message that one channel does not get, because it has caused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Omission {
    /// The index of the mark behind the message. The message begins at the mark before it.
    pub mark: usize,
    /// The channel's number, see [`Channel::number`](crate::Channel::number).
    pub number: u64,
}

impl EncodedRun {
    /// Whether the channel of that number lacks some of it.
    pub fn omits(&self, number: u64) -> bool {
        self.omissions.iter().any(|one| one.number == number)
    }

    /// The run for the channel of that number.
    #[must_use]
    pub fn without(&self, number: u64) -> EncodedRun {
        let mut rest = EncodedRun {
            withheld_at: self.withheld_at,
            ..EncodedRun::default()
        };
        let mut start = 0;
        for (index, mark) in self.marks.iter().enumerate() {
            let mut omissions = self.omissions.iter();
            if !omissions.any(|one| one.number == number && one.mark == index) {
                rest.bytes.extend_from_slice(&self.bytes[start..mark.end]);
                rest.mark(mark.at);
            }
            start = mark.end;
        }
        rest
    }

    /// Marks the end of the bytes so far, where a subscriber has this position.
    pub fn mark(&mut self, at: Offset) {
        let end = self.bytes.len();
        self.marks.push(Mark { end, at });
    }
}

/// A place in an encoded run where a subscriber may be left and continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Bytes of the encoding before this place.
    pub end: usize,
    /// The subscriber's position there.
    pub at: Offset,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_lacks_its_own_messages() {
        let mut run = EncodedRun::default();
        for (at, message) in [(1, "one"), (2, "two"), (3, "three")] {
            run.bytes.extend_from_slice(message.as_bytes());
            run.mark(Offset::behind(at));
        }
        run.omissions = [(0, 7), (2, 7), (2, 8)]
            .map(|(mark, number)| Omission { mark, number })
            .into();
        assert!(run.omits(7) && run.omits(8) && !run.omits(9));
        for (number, bytes, marks) in [(7, "two", 1), (8, "onetwo", 2), (9, "onetwothree", 3)] {
            let rest = run.without(number);
            assert_eq!(rest.bytes, bytes.as_bytes(), "{number}");
            assert_eq!(rest.marks.len(), marks);
            assert_eq!(rest.marks.last().map(|mark| mark.end), Some(bytes.len()));
            assert_eq!(
                rest.marks[0].at,
                Offset::behind(if number == 7 { 2 } else { 1 })
            );
            assert!(rest.omissions.is_empty());
        }
    }
}
