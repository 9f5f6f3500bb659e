//! The producers of a stream, and the order in which their requests must arrive.
//!
//! There are two kinds of order, and a request may use both. An idempotent producer numbers its requests, so that
//! repeated and missing requests are noticed (Durable Streams, section 5.2.1). `Stream-Seq` is the order of the
//! application, one for all writers of a stream (section 5.2).

use std::sync::Arc;

use encke_log::Sequence;
use serde::{Deserialize, Serialize};

use crate::machine::outcome::Refusal;
use crate::stream::producers::{ProducerMemory, ProducerState, Producers};

/// An idempotent producer and the number of its request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProducerId {
    /// Its name.
    pub id: Box<str>,
    /// Its session.
    pub epoch: u64,
    /// The request's number in the session.
    pub seq: u64,
}

/// What a stream remembers of its writers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Writers {
    pub(crate) producers: Producers,
    /// The last `Stream-Seq`.
    pub(crate) seq: Option<Box<str>>,
    /// The producer that closed the stream, so that a repeated close is recognized.
    pub(crate) closer: Option<(Box<str>, ProducerState)>,
}

/// What an accepted request has replaced in [`Writers`], for undo.
#[derive(Debug)]
pub(crate) enum Replaced {
    Seq(Option<Box<str>>),
    Closer(Option<(Box<str>, ProducerState)>),
    Producer(Box<str>, Option<ProducerState>),
}

impl Writers {
    /// The state of the producer if its request is a repetition; None if the request is new. `closed` refuses new requests to a closed
    /// stream.
    pub(crate) fn repeated(
        &self,
        producer: &ProducerId,
        closed: Option<Refusal>,
    ) -> Result<Option<ProducerState>, Refusal> {
        let Some(known) = self.producers.get(&producer.id) else {
            return Ok(None);
        };
        if producer.epoch < known.epoch {
            return Err(Refusal::StaleEpoch {
                current: known.epoch,
            });
        }
        if producer.epoch > known.epoch || producer.seq > known.seq {
            return Ok(None);
        }
        // On a closed stream, only the request that closed it is a repetition.
        if let Some(closed) = closed
            && !self.closed_by(producer)
        {
            return Err(closed);
        }
        Ok(Some(*known))
    }

    /// Whether a producer's new request is the next one.
    pub(crate) fn check_order(&self, producer: &ProducerId) -> Result<(), Refusal> {
        let received = producer.seq;
        match self.producers.get(&producer.id) {
            Some(known) if known.epoch == producer.epoch => match known.seq.checked_add(1) {
                Some(expected) if expected == received => Ok(()),
                expected => Err(Refusal::SeqGap {
                    expected: expected.unwrap_or(u64::MAX),
                    received,
                }),
            },
            Some(_) if received != 0 => Err(Refusal::EpochStart { received }),
            None if received != 0 => Err(Refusal::SeqGap {
                expected: 0,
                received,
            }),
            _ => Ok(()),
        }
    }

    /// Whether a `Stream-Seq` is greater than the last one, byte by byte.
    pub(crate) fn check_seq(&self, asked: &str) -> Result<(), Refusal> {
        match &self.seq {
            Some(last) if asked.as_bytes() <= last.as_bytes() => Err(Refusal::WriterSeq {
                last: last.clone(),
                asked: asked.into(),
            }),
            _ => Ok(()),
        }
    }

    /// Stores an accepted `Stream-Seq`.
    pub(crate) fn set_seq(&mut self, seq: Box<str>) -> Replaced {
        Replaced::Seq(self.seq.replace(seq))
    }

    /// Stores the producer that closed the stream.
    pub(crate) fn set_closer(&mut self, id: Box<str>, state: ProducerState) -> Replaced {
        Replaced::Closer(self.closer.replace((id, state)))
    }

    /// Stores a producer's accepted request.
    pub(crate) fn set_producer(&mut self, id: Box<str>, state: ProducerState) -> Replaced {
        let before = self.producers.insert(id.clone(), state);
        Replaced::Producer(id, before)
    }

    /// Forgets the producer that was idle for longest if there are more than `producers_max`.
    pub(crate) fn forget_idle(&mut self, producers_max: usize) -> Option<Replaced> {
        if self.producers.len() <= producers_max.max(1) {
            return None;
        }
        let (idle, _) = self
            .producers
            .iter()
            .min_by_key(|(_, producer)| producer.last)?;
        let idle = idle.clone();
        let before = self.producers.remove(&idle);
        Some(Replaced::Producer(idle, before))
    }

    /// Forgets all but the `producers_max` producers that were active last.
    pub(crate) fn trim(&mut self, producers_max: usize) {
        let producers_max = producers_max.max(1);
        if self.producers.len() <= producers_max {
            return;
        }
        let producers = self.producers.iter();
        let mut last: Vec<Sequence> = producers.map(|(_, state)| state.last).collect();
        // Each record has one producer, so no two are equal.
        let (_, oldest_kept, _) = last.select_nth_unstable(self.producers.len() - producers_max);
        let oldest_kept = *oldest_kept;
        self.producers.retain(|state| state.last >= oldest_kept);
    }

    /// Adds what `older` has and these writers do not have.
    pub(crate) fn fill(&mut self, older: Writers) {
        for (id, state) in older.producers.iter() {
            if self.producers.get(id).is_none() {
                self.producers.insert(id.clone(), *state);
            }
        }
        self.seq = self.seq.take().or(older.seq);
        self.closer = self.closer.take().or(older.closer);
    }

    /// Counts the producers in the memory of their log from now on.
    pub(crate) fn count_in(&mut self, memory: &Arc<ProducerMemory>) {
        self.producers.count_in(memory);
    }

    /// Restores what a request has replaced, the last replacement first.
    pub(crate) fn put_back(&mut self, replaced: Replaced) {
        match replaced {
            Replaced::Seq(before) => self.seq = before,
            Replaced::Closer(before) => self.closer = before,
            Replaced::Producer(id, Some(before)) => {
                self.producers.insert(id, before);
            }
            Replaced::Producer(id, None) => {
                self.producers.remove(&id);
            }
        }
    }

    fn closed_by(&self, producer: &ProducerId) -> bool {
        self.closer.as_ref().is_some_and(|(id, closer)| {
            *id == producer.id && closer.epoch == producer.epoch && closer.seq == producer.seq
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(last: Sequence) -> ProducerState {
        ProducerState {
            epoch: 0,
            seq: 0,
            last,
        }
    }

    fn ids(writers: &Writers) -> Vec<&str> {
        let mut ids: Vec<&str> = writers.producers.iter().map(|(id, _)| &**id).collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn the_longest_idle_are_forgotten_first() {
        let mut writers = Writers::default();
        for (id, last) in [("a", 4), ("b", 2), ("c", 9), ("d", 3)] {
            writers.set_producer(id.into(), state(last));
        }
        let before = writers.clone();
        assert!(writers.forget_idle(4).is_none());
        let replaced = writers.forget_idle(3).unwrap();
        assert_eq!(ids(&writers), ["a", "c", "d"]);
        writers.put_back(replaced);
        assert_eq!(writers, before);
        writers.trim(2);
        assert_eq!(ids(&writers), ["a", "c"]);
        writers.trim(2);
        assert_eq!(ids(&writers), ["a", "c"]);
        writers.trim(0);
        assert_eq!(ids(&writers), ["c"], "one is always remembered");
    }

    #[test]
    fn no_number_overflows() {
        let mut writers = Writers::default();
        let producer = |seq| ProducerId {
            id: "p".into(),
            epoch: u64::MAX,
            seq,
        };
        let newest = ProducerState {
            epoch: u64::MAX,
            seq: u64::MAX,
            last: 1,
        };
        writers.set_producer("p".into(), newest);
        assert!(writers.check_order(&producer(0)).is_err());
        assert!(writers.check_order(&producer(u64::MAX)).is_err());
    }
}
