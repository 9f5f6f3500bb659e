//! Collects the state of the streams from the records of the log and from the checkpoint, and builds the machine.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use encke_clock::{SteadyTime, WallTime};
use encke_log::{Disk, FrameView, Log, Sequence, StreamNo};

use crate::at_rest::load::{Loader, Store};
use crate::at_rest::stored::{
    self, EARLIEST_FORMAT, FORMAT, KEY_ACCOUNT, KEY_CHAIN, KEY_ENDS, KEY_META, KEY_STRAYS,
    KEY_STREAM, StoreMeta, StoredExtras, StoredStream, StreamEnds,
};
use crate::replicated::{BatchMark, KIND_MARK, Replica, append_mark};
use crate::restore::RestoreError;
use crate::restore::found_counts::FoundCounts;
use crate::restore::own_streams;
use crate::restore::replica::{ReplicaRestore, UnmarkedRecord};
use crate::restore::restored_stream::{
    Origin, PossibleCounts, RestoredStream, UncommonSettings, counts_of,
};
use crate::stream::count::MessageCount;
use crate::stream::media::Media;
use crate::stream::number::{LogPlace, born, log_of};
use crate::stream::producers::ProducerState;
use crate::stream::record::{BadRecord, Change, Extras, KIND_CHANGE};
use crate::stream::retention::Bucket;
use crate::stream::{Facts, Stream};
use crate::{Limits, Machine, Offset, View};

/// Who decides the order of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OrderKind {
    /// The server that has the log.
    #[default]
    Local,
    /// An order that several nodes follow.
    Replicated,
}

/// Collects the changes since the checkpoint, and the checkpoint's state of the streams that have changed.
///
/// The records of the log begin at or before the end of the checkpoint and reach the end of the log. They are as new as
/// the checkpoint or newer. So the log decides, and the checkpoint fills in what the log does not have. Only counts
/// depend on which records the checkpoint includes: [`StoreMeta::upto`].
#[derive(Debug, Default)]
pub(super) struct Restore {
    place: LogPlace,
    /// What a node of a fleet restores beside; None for a server by itself.
    replica: Option<ReplicaRestore>,
    /// There are streams here whose names have other homes.
    strays: bool,
    /// By the records that created them, so that sources come before their forks.
    streams: BTreeMap<Sequence, RestoredStream>,
    media: HashMap<Box<str>, Arc<Media>>,
    /// Streams that ended before the end of the checkpoint. The log may not have forgotten them yet.
    over: Vec<StreamNo>,
    counted: FoundCounts,
    failed: Option<RestoreError>,
}

impl Restore {
    pub(super) fn new(place: LogPlace, order: OrderKind) -> Self {
        Restore {
            place,
            replica: (order == OrderKind::Replicated).then(ReplicaRestore::default),
            ..Restore::default()
        }
    }

    /// Applies a record of the log. The first error is reported at the end.
    pub(super) fn record(&mut self, frame: &FrameView<'_>) {
        let sequence = frame.sequence;
        if frame.kind == KIND_MARK {
            let applied = self.mark(frame);
            if let Err(failed) = applied {
                self.failed.get_or_insert(failed);
            }
            return;
        }
        let (log, found) = (self.place.log, log_of(frame.stream));
        if found != log {
            self.failed.get_or_insert(RestoreError::OtherLog {
                sequence,
                log,
                found,
            });
            return;
        }
        let applied = match frame.kind {
            KIND_CHANGE => match &mut self.replica {
                None => self.apply(frame.stream, sequence, frame.time, frame.payload),
                Some(replica) => {
                    replica.hold(frame);
                    return;
                }
            },
            _ => Err(BadRecord),
        };
        if let Err(source) = applied {
            let failed = RestoreError::Record { sequence, source };
            self.failed.get_or_insert(failed);
        }
    }

    /// Applies the records of a batch of the replicated order, which ends here.
    fn mark(&mut self, frame: &FrameView<'_>) -> Result<(), RestoreError> {
        let sequence = frame.sequence;
        let Some(replica) = &mut self.replica else {
            return Err(RestoreError::OfAFleet);
        };
        let records = replica.mark(frame);
        let records = records.map_err(|source| RestoreError::Record { sequence, source })?;
        self.apply_all(records)
    }

    fn apply_all(&mut self, records: Vec<UnmarkedRecord>) -> Result<(), RestoreError> {
        for UnmarkedRecord { record, time } in records {
            let sequence = record.sequence;
            let applied = self.apply(record.stream, sequence, time, &record.payload);
            applied.map_err(|source| RestoreError::Record { sequence, source })?;
        }
        Ok(())
    }

    /// Applies the records that the checkpoint has, and returns what the machine keeps of the replicated order.
    fn replica<S: Store>(
        &mut self,
        store: &S,
        meta: StoreMeta,
    ) -> Result<Option<Replica>, RestoreError> {
        let stored = match store.state(KEY_CHAIN)? {
            Some(value) => Some(stored::chain(&value).map_err(|source| RestoreError::Entry {
                key: KEY_CHAIN.to_vec(),
                source,
            })?),
            None => None,
        };
        let Some(replica) = self.replica.take() else {
            return match stored {
                Some(_) => Err(RestoreError::OfAFleet),
                None => Ok(None),
            };
        };
        let (known, replica) = replica.finish(stored, meta.upto)?;
        self.apply_all(known)?;
        Ok(Some(replica))
    }

    fn apply(
        &mut self,
        no: StreamNo,
        sequence: Sequence,
        time: WallTime,
        payload: &[u8],
    ) -> Result<(), BadRecord> {
        let (change, data) = Change::decode(payload)?;
        let origin = match &change {
            Change::Create {
                name,
                content_type,
                lifetime,
                ack,
                retention,
                fork,
                extras,
                account,
                ..
            } => Some(Origin {
                name: (*name).into(),
                media: self.media(content_type),
                ack: *ack,
                special: UncommonSettings {
                    lifetime: *lifetime,
                    retention: *retention,
                    fork: *fork,
                    owner: extras.owner.map(Into::into),
                    producer_timeout_s: extras.producer_timeout_s,
                    account: *account,
                }
                .boxed(),
            }),
            _ => None,
        };
        if let Some(origin) = &origin {
            self.strays |= self.place.is_stray(&origin.name);
        }
        let found = match &change {
            Change::Create { units, extras, .. } => counts_of(*units, data, extras.inherited),
            Change::Append { units, .. } => counts_of(*units, data, MessageCount::default()),
            _ => PossibleCounts::default(),
        };
        if found != PossibleCounts::default() {
            self.counted.note(born(no), sequence, found);
        }
        let restored = self.stream(no);
        restored.count(found);
        if !matches!(change, Change::Truncate { .. } | Change::Delete) {
            restored.replayed = restored.replayed.max(time);
        }
        match change {
            Change::Renew => {}
            Change::Create {
                closed,
                units,
                fork,
                floor,
                retention,
                extras,
                ..
            } => {
                if let Some(metadata) = extras.metadata {
                    restored.extras().metadata = Some(metadata.into());
                }
                restored.appended = time;
                if retention.is_limited() {
                    let at = fork.map_or(0, |fork| fork.at.sequence);
                    if at > floor {
                        restored
                            .retained()
                            .replayed
                            .add(Bucket::inherited(at, time));
                    }
                    if units > 0 {
                        let record = Bucket::record(sequence, time, data.len());
                        restored.retained().replayed.add(record);
                    }
                }
                restored.floor = floor;
                restored.origin = origin;
                restored.tail = Some(Facts::first_tail(no, fork, units));
                restored.closed = closed;
            }
            Change::Append {
                producer,
                writer_seq,
                closes,
                counted,
                units,
                extras,
            } => {
                if extras != Extras::default() {
                    restored.extras().apply(&extras);
                }
                if !extras.asks_stop {
                    restored.appended = time;
                }
                if units > 0 {
                    restored.tail = Some(Offset::behind(sequence));
                    if counted {
                        let record = Bucket::record(sequence, time, data.len());
                        restored.retained().replayed.add(record);
                    }
                }
                restored.closed |= closes;
                if let Some(seq) = writer_seq {
                    restored.writers.get_or_insert_default().set_seq(seq.into());
                }
                if let Some(producer) = producer {
                    let state = ProducerState {
                        epoch: producer.epoch,
                        seq: producer.seq,
                        last: sequence,
                    };
                    let writers = restored.writers.get_or_insert_default();
                    writers.set_producer(producer.id.into(), state);
                    if closes {
                        writers.set_closer(producer.id.into(), state);
                    }
                }
            }
            Change::Truncate { floor } => restored.floor = restored.floor.max(floor),
            Change::Delete => {
                restored.closed = true;
                restored.deleted = true;
            }
        }
        Ok(())
    }

    /// Applies the checkpoint's entry of a stream, after the records.
    fn entry(&mut self, key: &[u8], value: &[u8]) {
        if let Err(source) = self.fill(key, value) {
            let key = key.to_vec();
            let failed = RestoreError::Entry { key, source };
            self.failed.get_or_insert(failed);
        }
    }

    fn fill(&mut self, key: &[u8], value: &[u8]) -> Result<(), BadRecord> {
        let no = stored::number(KEY_STREAM, key)?;
        let stored = StoredStream::decode(value)?;
        let media = self.media(stored.content_type);
        let restored = self.stream(no);
        restored.stored = true;
        restored.closed |= stored.closed;
        restored.deleted |= stored.deleted;
        restored.forks = stored.forks;
        restored.count(PossibleCounts::stored(stored.counted, stored.appended));
        restored.touched = stored.touched;
        restored.floor = restored.floor.max(stored.floor);
        if stored.retention.is_limited() {
            restored.retained().buckets = stored.buckets.clone();
        }
        // A tail never moves back.
        restored.tail = restored.tail.max(Some(stored.tail));
        if let Some(older) = stored.writers() {
            match &mut restored.writers {
                None => restored.writers = Some(older),
                Some(newer) => newer.fill(*older),
            }
        }
        restored.origin = Some(Origin {
            name: stored.name.into(),
            media,
            ack: stored.ack,
            special: UncommonSettings {
                lifetime: stored.lifetime,
                retention: stored.retention,
                fork: stored.fork,
                owner: stored.extras.owner.map(Into::into),
                producer_timeout_s: stored.extras.producer_timeout_s,
                account: stored.account,
            }
            .boxed(),
        });
        if stored.account.is_some() {
            restored.extras().charged = stored.cost();
        }
        if stored.extras != StoredExtras::default() {
            // What the log says is later.
            let extras = restored.extras();
            let metadata = extras.metadata.take();
            extras.metadata = metadata.or_else(|| stored.extras.metadata.map(Into::into));
            extras.end = extras.end.or(stored.extras.end);
            extras.stop_asked |= stored.extras.stop_asked;
            extras.appended = stored.extras.last_append;
        }
        Ok(())
    }

    /// Reads the checkpoint's entries of the streams that have changed, and restores these streams.
    pub(super) fn finish<D: Disk>(
        mut self,
        mut log: Log<D>,
        limits: Limits,
        now: SteadyTime,
    ) -> Result<(Machine, Arc<View>, Log<D>), RestoreError> {
        if self.replica.is_some() && log.next_sequence() == 1 {
            // The directory of a node begins with a mark, so that it is known as such even after a crash in the first batch.
            append_mark(&mut log, &BatchMark::first(), WallTime::default())
                .expect("a mark is smaller than any frame may be");
            log.write().and_then(|()| log.sync())?;
            self.replica.get_or_insert_default().set_marked();
        }
        let reader = log.reader();
        let meta = meta(&reader)?;
        let replica = self.replica(&reader, meta)?;
        // A cut batch is not in the state of the streams.
        let committed = match replica.as_ref().and_then(|replica| replica.cut.front()) {
            Some(cut) => cut.sequence - 1,
            None => log.next_sequence() - 1,
        };
        let (mut machine, view) = self.build(&reader, meta, replica, limits, now)?;
        for (stream, floor) in machine.take_floors() {
            log.set_floor(stream, floor);
        }
        let own = own_streams::own_streams(&view, &reader)?;
        log.start_retention(own.keys().copied());
        if let Some(name) = own_streams::incomplete(&own, &reader)? {
            if machine.replica.is_some() {
                let name = name.into();
                return Err(RestoreError::OwnStateRemoved { name });
            }
            tracing::error!(
                stream = name,
                "retention of an earlier version has removed records in which the server kept its state: what they held is lost"
            );
        }
        view.set_committed(committed);
        // There are no subscribers yet. Those that come read these records from the log.
        view.set_delivered(committed);
        Ok((machine, view, log))
    }

    fn build<S: Store + Clone>(
        mut self,
        store: &S,
        meta: StoreMeta,
        replica: Option<Replica>,
        limits: Limits,
        now: SteadyTime,
    ) -> Result<(Machine, Arc<View>), RestoreError> {
        // On a node of a fleet the times of reads are in the log, and are the same on all nodes.
        let started = replica.is_none().then_some(now);
        self.fill_in(store, meta)?;
        self.count_once(meta.upto);
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        let view = Arc::new(match &replica {
            None => View::default(),
            Some(_) => View::replicated(),
        });
        view.set_total(meta.total, meta.total == 0);
        let mut machine = Machine::new(Arc::clone(&view), limits);
        machine.started = started;
        if let Some(replica) = &replica {
            view.set_order(&replica.chain);
        }
        machine.replica = replica;
        machine.place = self.place;
        if self.strays || store.state(KEY_STRAYS)?.is_some() {
            view.note_strays();
        }
        machine.mark_over(std::mem::take(&mut self.over));
        self.settle(store, meta)?;
        let mut bad = None;
        store.states(
            KEY_ACCOUNT,
            &mut |key, value| match stored::account(key, value) {
                Ok((account, used)) => view.accounts.restore(account, used),
                Err(source) => {
                    let key = key.to_vec();
                    bad.get_or_insert(RestoreError::Entry { key, source });
                }
            },
        )?;
        store.states(KEY_ENDS, &mut |key, value| {
            let ends =
                stored::number(KEY_ENDS, key).and_then(|no| Ok((no, StreamEnds::decode(value)?)));
            match ends {
                Ok((no, _)) if self.streams.contains_key(&born(no)) => {}
                Ok((no, ends)) => machine.watch_stored(no, ends),
                Err(source) => {
                    let key = key.to_vec();
                    bad.get_or_insert(RestoreError::Entry { key, source });
                }
            }
        })?;
        if let Some(bad) = bad {
            return Err(bad);
        }
        let mut total = meta.total;
        let loader = Loader::new(Arc::clone(&view), store.clone(), limits, started);
        let mut sources: HashMap<StreamNo, Arc<Stream>> = HashMap::new();
        // The order is that of creation: sources come before their forks, and earlier owners of a name before later
        // ones. Each entry is freed after its use.
        for (_, restored) in self.streams {
            let (no, forks) = (restored.no, restored.forks);
            let Some(origin) = &restored.origin else {
                continue;
            };
            if restored.is_over() {
                let name = origin.name.clone();
                if restored.stored {
                    total -= 1;
                    view.remove(&name);
                    let changed = &mut machine.changed.accounts;
                    changed.extend(restored.refund(&view.accounts));
                }
                // Even a stream that the store never had: its records must be removed.
                machine.mark_ended(no, origin.is_timed(), name);
                continue;
            }
            let find = |no: StreamNo| match sources.get(&no) {
                Some(stream) => Ok(Some(Arc::clone(stream))),
                None => loader.load_number(no),
            };
            let accounts = (&view.accounts, &mut machine.changed.accounts);
            if let Some(stream) = restored.into_stream(limits, started, accounts, find)? {
                // No client has looked it up.
                stream.used.store(false, Ordering::Relaxed);
                total += u64::from(born(no) > meta.upto);
                view.restore(Arc::clone(&stream));
                machine.mark_floor(&stream);
                machine.watch(&stream);
                machine.mark_changed(Arc::clone(&stream));
                if forks > 0 {
                    sources.insert(no, stream);
                }
            }
        }
        view.set_total(total, meta.total == 0);
        Ok((machine, view))
    }

    /// Counts messages no more that the checkpoint has as well, which goes up to `upto`.
    fn count_once(&mut self, upto: Sequence) {
        match std::mem::take(&mut self.counted).upto(upto) {
            Some(twice) => {
                for one in twice {
                    if let Some(restored) = self.streams.get_mut(&one.born) {
                        restored.uncount(one.found);
                    }
                }
            }
            None => {
                for restored in self.streams.values_mut().filter(|one| one.stored) {
                    restored.count(PossibleCounts::UNKNOWN);
                }
            }
        }
    }

    /// Adds the checkpoint's state of the streams that have records after it, and drops the streams that ended before
    /// its end.
    fn fill_in<S: Store>(&mut self, store: &S, meta: StoreMeta) -> Result<(), RestoreError> {
        let older: Vec<StreamNo> = self
            .streams
            .range(..=meta.upto)
            .map(|(_, restored)| restored.no)
            .collect();
        if older.len() > LOOKED_UP_MAX {
            store.states(KEY_STREAM, &mut |key, value| {
                let known = stored::number(KEY_STREAM, key);
                // A key that is not a stream's is reported as such.
                if known.is_err() || known.is_ok_and(|no| self.streams.contains_key(&born(no))) {
                    self.entry(key, value);
                }
            })?;
        } else {
            for no in &older {
                self.look_up(store, *no)?;
            }
        }
        for no in older {
            let born = born(no);
            if self
                .streams
                .get(&born)
                .is_some_and(|restored| !restored.stored)
            {
                self.streams.remove(&born);
                self.over.push(no);
            }
        }
        Ok(())
    }

    fn look_up<S: Store>(&mut self, store: &S, no: StreamNo) -> Result<(), RestoreError> {
        let key = stored::key(no);
        if let Some(value) = store.state(&key)? {
            self.entry(&key, &value);
        }
        Ok(())
    }

    /// Counts forks, from the youngest stream to the oldest, because whether a source has ended
    /// depends on its forks.
    fn settle<S: Store>(&mut self, store: &S, meta: StoreMeta) -> Result<(), RestoreError> {
        let mut before = Sequence::MAX;
        while let Some((born_at, restored)) = self.streams.range(..before).next_back() {
            before = *born_at;
            let (no, over) = (restored.no, restored.is_over());
            let Some(fork) = restored.origin.as_ref().and_then(Origin::fork) else {
                continue;
            };
            // The checkpoint has counted the forks that existed at its end.
            let made = born(no) > meta.upto;
            if made == over {
                continue;
            }
            if !self.streams.contains_key(&born(fork.source)) {
                self.look_up(store, fork.source)?;
            }
            // Without its source the fork is lost. That is reported when the fork is restored.
            if let Some(source) = self.streams.get_mut(&born(fork.source)) {
                source.forks = match over {
                    true => source.forks.saturating_sub(1),
                    false => source.forks + 1,
                };
            }
        }
        match self.failed.take() {
            Some(failed) => Err(failed),
            None => Ok(()),
        }
    }

    /// What is known of a stream so far.
    fn stream(&mut self, no: StreamNo) -> &mut RestoredStream {
        let restored = self.streams.entry(born(no)).or_default();
        restored.no = no;
        restored
    }

    /// The content type of that name. Streams share it.
    fn media(&mut self, name: &str) -> Arc<Media> {
        if let Some(media) = self.media.get(name) {
            return Arc::clone(media);
        }
        let media = Arc::new(Media::new(name));
        self.media.insert(name.into(), Arc::clone(&media));
        media
    }
}

/// The version of the store. An empty store has none.
fn meta<S: Store>(store: &S) -> Result<StoreMeta, RestoreError> {
    let meta = match store.state(KEY_META)? {
        Some(value) => StoreMeta::decode(&value).map_err(|source| RestoreError::Entry {
            key: KEY_META.to_vec(),
            source,
        })?,
        None => {
            let mut found = FORMAT;
            store.states(KEY_STREAM, &mut |_, _| found = 1)?;
            StoreMeta {
                format: found,
                ..StoreMeta::default()
            }
        }
    };
    if !(EARLIEST_FORMAT..=FORMAT).contains(&meta.format) {
        let found = meta.format;
        return Err(RestoreError::Format { found });
    }
    Ok(meta)
}

/// Streams that are looked up one by one in the checkpoint. For more streams, all entries are read.
const LOOKED_UP_MAX: usize = 20_000;

#[cfg(test)]
mod tests;
