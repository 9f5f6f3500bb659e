//! Append and close (sections 5.2 and 5.3).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use encke_clock::Now;
use encke_log::Sequence;

use crate::Offset;
use crate::machine::command::{Append, Data, Target};
use crate::machine::journal::Journal;
use crate::machine::outcome::{Outcome, Refusal};
use crate::machine::{Machine, Undo};
use crate::stream::count::ByteCount;
use crate::stream::producers::ProducerState;
use crate::stream::record::{Change, EndReason, Extras, Producer};
use crate::stream::writers::Writers;
use crate::stream::{Facts, Life, Stream};

impl Machine {
    pub(crate) fn append(
        &mut self,
        mut append: Append,
        now: Now,
        journal: &mut dyn Journal,
    ) -> Result<Outcome, Refusal> {
        let stream = self.live(&mut append.target, now, journal)?;
        match judge(&stream, &append)? {
            Verdict::Repeated(facts, known) => {
                self.renew(&stream, now, journal)?;
                Ok(Outcome::Appended {
                    tail: facts.tail,
                    closed: facts.closed,
                    stop_asked: facts.stop_asked,
                    producer: known.map(|known| (known.epoch, known.seq)),
                    duplicate: true,
                })
            }
            Verdict::New => self.add(&stream, append, now, journal),
        }
    }

    /// Makes appends in order, up to the first that is refused.
    pub(crate) fn append_series(
        &mut self,
        appends: Vec<Append>,
        now: Now,
        journal: &mut dyn Journal,
    ) -> Result<Outcome, Refusal> {
        let mut last = Outcome::Done;
        for append in appends {
            last = self.append(append, now, journal)?;
        }
        Ok(last)
    }

    /// Makes an append that has passed all checks.
    fn add(
        &mut self,
        stream: &Arc<Stream>,
        append: Append,
        now: Now,
        journal: &mut dyn Journal,
    ) -> Result<Outcome, Refusal> {
        let Append {
            producer,
            writer_seq,
            closes,
            data: Data { bytes, units },
            extras,
            ..
        } = append;
        let asks_stop = extras.asks_stop && !stream.state().next.stop_asked;
        let change = Change::Append {
            producer: producer.as_ref().map(|producer| Producer {
                id: &producer.id,
                epoch: producer.epoch,
                seq: producer.seq,
            }),
            writer_seq: writer_seq.as_deref(),
            closes,
            counted: stream.keeps_part(),
            units,
            extras: Extras {
                metadata: extras.metadata.as_deref(),
                end: extras.end.filter(|_| closes),
                asks_stop,
                ..Extras::default()
            },
        };
        let (weight, appended) = (bytes.len(), ByteCount::of(&bytes));
        let sequence = journal.record(stream, &change, bytes)?;
        let accepted = producer
            .as_ref()
            .map(|producer| (producer.epoch, producer.seq));
        if let Some(seq) = writer_seq {
            let replaced = stream.state().writers_mut().set_seq(seq);
            self.undo.push(Undo::Writers(Arc::clone(stream), replaced));
        }
        if let Some(producer) = producer {
            let state = ProducerState {
                epoch: producer.epoch,
                seq: producer.seq,
                last: sequence,
            };
            self.remember(stream, producer.id, state, closes);
        }
        if let Some(metadata) = extras.metadata {
            let before = stream.state().metadata_mut().next.replace(metadata.into());
            self.undo.push(Undo::Metadata(Arc::clone(stream), before));
        }
        let facts = self.change(stream, |facts| {
            facts.append(sequence, units, closes);
            facts.counted = facts.counted.with(units, stream.media.kind);
            facts.appended = facts.appended.and(appended);
            facts.end = facts.end.or(extras.end.filter(|_| closes));
            facts.stop_asked |= asks_stop;
        });
        if units > 0 {
            self.count(stream, sequence, weight, now, journal);
        }
        stream.touch(now);
        if !asks_stop {
            // It is the producer that must not fall silent, not its reader.
            let before = stream.note_append(now.steady);
            self.undo
                .extend(before.map(|before| Undo::LastAppend(Arc::clone(stream), before)));
        }
        if closes && stream.producer_timeout_s().is_some() {
            self.watch(stream);
        }
        Ok(Outcome::Appended {
            tail: facts.tail,
            closed: facts.closed,
            stop_asked: facts.stop_asked,
            producer: accepted,
            duplicate: false,
        })
    }

    /// Closes a stream whose producer has appended nothing for too long.
    pub(crate) fn abandon_stream(
        &mut self,
        stream: &Arc<Stream>,
        now: Now,
        journal: &mut dyn Journal,
    ) -> Result<(), Refusal> {
        let facts = stream.state().next;
        if facts.life != Life::Live || facts.closed || !stream.is_abandoned(now) {
            return Ok(());
        }
        // What a reader has asked for has happened, although nobody has confirmed it.
        let end = match facts.stop_asked {
            true => EndReason::Stopped,
            false => EndReason::Abandoned,
        };
        let mut close = Append::to(Target::Known(Arc::clone(stream)));
        close.closes = true;
        close.extras.end = Some(end);
        self.add(stream, close, now, journal)?;
        Ok(())
    }

    /// Updates what the stream knows of a producer, to judge its next request by.
    fn remember(
        &mut self,
        stream: &Arc<Stream>,
        id: Box<str>,
        producer: ProducerState,
        closes: bool,
    ) {
        let mut state = stream.state();
        let writers = state.writers_mut();
        writers.count_in(&self.view.producers);
        let mut undo = |replaced| self.undo.push(Undo::Writers(Arc::clone(stream), replaced));
        if closes {
            undo(writers.set_closer(id.clone(), producer));
        }
        undo(writers.set_producer(id, producer));
        if let Some(forgotten) = writers.forget_idle(self.limits.producers_max) {
            undo(forgotten);
            let counts = self.view.counts();
            counts.producers_forgotten.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Facts {
    /// Applies an append to the stream's facts, live and in a replay.
    pub(crate) fn append(&mut self, sequence: Sequence, units: u32, closes: bool) {
        if units > 0 {
            self.tail = Offset::behind(sequence);
        }
        self.closed |= closes;
    }
}

enum Verdict {
    /// The append is a repetition. Holds the current facts and the producer's state.
    Repeated(Facts, Option<ProducerState>),
    New,
}

/// Whether an append may be made. Of several conflicts, a closed stream is reported first (section 5.2).
fn judge(stream: &Stream, append: &Append) -> Result<Verdict, Refusal> {
    let state = stream.state();
    let facts = state.next;
    let empty = append.data.bytes.is_empty();
    if let (Some(producer), Some(writers)) = (&append.producer, &state.writers)
        && let Some(known) = writers.repeated(producer, facts.closed.then(|| closed(facts)))?
    {
        return Ok(Verdict::Repeated(facts, Some(known)));
    }
    if facts.closed {
        if append.closes && empty && append.producer.is_none() {
            return Ok(Verdict::Repeated(facts, None));
        }
        return Err(closed(facts));
    }
    if append.extras.asks_stop && facts.stop_asked && empty && !append.closes {
        return Ok(Verdict::Repeated(facts, None));
    }
    if let Some(asked) = append.extras.if_tail
        && asked != facts.tail
    {
        return Err(Refusal::TailDiffers {
            asked,
            tail: facts.tail,
        });
    }
    if let Some(asked) = &append.content_type
        && !empty
        && !stream.media.matches(asked)
    {
        return Err(Refusal::TypeDiffers {
            has: stream.media.name.clone(),
            asked: asked.clone(),
        });
    }
    if let Some(media) = append.target.media()
        && !stream.media.matches(media)
    {
        return Err(Refusal::TypeDiffers {
            has: stream.media.name.clone(),
            asked: media.into(),
        });
    }
    if append.producer.is_some() || append.writer_seq.is_some() {
        let none = Writers::default();
        let writers = state.writers.as_deref().unwrap_or(&none);
        if let Some(producer) = &append.producer {
            writers.check_order(producer)?;
        }
        if let Some(asked) = &append.writer_seq {
            writers.check_seq(asked)?;
        }
    }
    Ok(Verdict::New)
}

/// The refusal of an append to a closed stream.
fn closed(facts: Facts) -> Refusal {
    Refusal::Closed {
        tail: facts.tail,
        end: facts.end,
    }
}
