//! The counts of messages in the records of the log that the checkpoint may have counted as well.

use encke_log::Sequence;

use crate::restore::restored_stream::PossibleCounts;

/// What the first records of the replay have counted, until it is known which of them the checkpoint has: it ends at or little behind
/// the first of them.
#[derive(Debug, Default)]
pub(super) struct FoundCounts {
    first: Vec<FoundCount>,
    /// The first record that was not noted.
    rest_from: Option<Sequence>,
}

/// The messages of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundCount {
    /// The record that created its stream.
    pub(super) born: Sequence,
    sequence: Sequence,
    pub(super) found: PossibleCounts,
}

impl FoundCounts {
    pub(super) fn note(&mut self, born: Sequence, sequence: Sequence, found: PossibleCounts) {
        match self.first.len() < NOTED_MAX {
            true => self.first.push(FoundCount {
                born,
                sequence,
                found,
            }),
            false => {
                self.rest_from.get_or_insert(sequence);
            }
        }
    }

    /// The records that a checkpoint up to `upto` has. `None`: they are more than were noted.
    pub(super) fn upto(self, upto: Sequence) -> Option<impl Iterator<Item = FoundCount>> {
        let is_complete = self.rest_from.is_none_or(|from| from > upto);
        let first = self.first.into_iter();
        is_complete.then(|| first.filter(move |one| one.sequence <= upto))
    }
}

/// Records that are noted. The checkpoint and the replay overlap by a batch at most.
const NOTED_MAX: usize = 65_536;
