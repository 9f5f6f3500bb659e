//! The creation and removal of pools, and the rotation of their journals.

use std::collections::VecDeque;
use std::sync::Arc;

use encke_clock::Now;
use encke_stream::{Command, Data, Refusal, Target};

use crate::batch::RETRY;
use crate::error::JobError;
use crate::machine::{JobMachine, JobTimer};
use crate::op::{BYTES, JSON, Op, PoolCreation, PoolNo, append, bytes, create};
use crate::pool_state::{JournalSegments, PoolPhase, PoolState};
use crate::record::{JournalRecord, REGISTRY, RegistryRecord, segment_name};
use crate::request::DispatchClient;
use crate::response::DispatchResponse;
use crate::settings::{PoolSettings, SettingsChange};
use crate::streams::PublicStream;
use crate::token::PoolKey;

impl JobMachine {
    /// Creates a pool in steps, so that an incomplete pool does not count: its announcement, its public streams, its first
    /// segment, then the record that makes this segment current.
    pub(crate) fn create_pool(
        &mut self,
        now: Now,
        from: DispatchClient,
        name: Box<str>,
        settings: PoolSettings,
    ) -> Result<(), JobError> {
        if self.stopping {
            return Err(JobError::Stopping);
        }
        let settings = settings.checked(&self.limits)?;
        if let Some(pool) = self.names.get(&name).and_then(|no| self.pools.get(no)) {
            if pool.phase == PoolPhase::Removing {
                return Err(JobError::PoolChanging);
            }
            if let Some((what, has, requested)) = pool.settings.difference(&settings) {
                return Err(JobError::SettingsDiffer {
                    what,
                    has,
                    requested,
                });
            }
            let status = pool.status(now);
            self.respond(
                from,
                DispatchResponse::Created {
                    existed: true,
                    status,
                },
            );
            return Ok(());
        }
        if self.making.contains(&name) {
            return Err(JobError::PoolChanging);
        }
        let pools_max = self.limits.pools_max;
        if self.pools.len() + self.making.len() >= pools_max {
            return Err(JobError::TooManyPools { pools_max });
        }
        if !self.registered {
            self.commit(create(REGISTRY, BYTES, Data::default()), Op::Registry);
        }
        self.making.insert(name.clone());
        let announced = bytes(RegistryRecord::Made { name: &name }.encode());
        let making = Arc::new(PoolCreation {
            name,
            settings,
            from,
            streams: parking_lot::Mutex::default(),
        });
        self.commit(append(REGISTRY, announced), Op::Announced(making));
        Ok(())
    }

    /// Creates the public streams: those that are younger than the announcement can only be the pool's.
    pub(crate) fn announced(&mut self, making: &Arc<PoolCreation>, outcome: Result<u64, JobError>) {
        let no = match outcome {
            Ok(no) => no,
            Err(error) => return self.creation_failed(making, error),
        };
        self.owners.announced(&making.name, no);
        let needed = PublicStream::ALL.into_iter();
        let needed = needed.filter(|what| *what != PublicStream::Events || making.settings.events);
        let needed: Vec<PublicStream> = needed.collect();
        making.streams.lock().pending = needed.len();
        for what in needed {
            let command = create(&what.of(&making.name), JSON, Data::default());
            self.commit(command, Op::PublicStream(Arc::clone(making), no, what));
        }
    }

    /// A public stream is there, born at that sequence of the log, or is not available.
    pub(crate) fn public_stream(
        &mut self,
        making: &Arc<PoolCreation>,
        no: PoolNo,
        what: PublicStream,
        born: Result<u64, JobError>,
    ) {
        let taken = || JobError::StreamTaken(what.of(&making.name).into());
        let error = match born {
            Ok(born) if born > no || self.owners.owns(&making.name, born) => None,
            // A stream that clients have made stays theirs.
            Ok(_) | Err(JobError::Log(Refusal::Differs { .. })) => Some(taken()),
            Err(error) => Some(error),
        };
        let mut streams = making.streams.lock();
        streams.pending -= 1;
        if streams.taken.is_none() {
            streams.taken = error;
        }
        if streams.pending > 0 {
            return;
        }
        let taken = streams.taken.take();
        drop(streams);
        match taken {
            None => self.begin_journal(making, no),
            Some(error) => {
                let gone = bytes(RegistryRecord::Gone { no }.encode());
                self.commit(append(REGISTRY, gone), Op::Nothing);
                self.creation_failed(making, error);
            }
        }
    }

    fn begin_journal(&mut self, making: &Arc<PoolCreation>, no: PoolNo) {
        let key = PoolKey::new(&self.seed, no);
        let pool = PoolState::new(
            &making.name,
            making.settings.clone(),
            &self.limits,
            JournalSegments::new([]),
            key.clone(),
            Arc::default(),
        );
        // It has no jobs, so that the time does not matter.
        let begin = bytes(JournalRecord::Start(pool.snapshot(Now::default()), key).encode());
        let name = segment_name(&making.name, no, 1);
        let op = Op::FirstSegment(Arc::clone(making), no);
        self.commit(create(&name, BYTES, begin), op);
    }

    pub(crate) fn first_segment(
        &mut self,
        making: &Arc<PoolCreation>,
        no: PoolNo,
        outcome: Result<u64, JobError>,
    ) {
        match outcome {
            Ok(first) => {
                let segment = bytes(RegistryRecord::Segment { no, segment: 1 }.encode());
                let op = Op::Opened(Arc::clone(making), no, first);
                self.commit(append(REGISTRY, segment), op);
            }
            Err(error) => self.creation_failed(making, error),
        }
    }

    pub(crate) fn opened(
        &mut self,
        making: &Arc<PoolCreation>,
        no: PoolNo,
        first: u64,
        outcome: Result<u64, JobError>,
    ) {
        if let Err(error) = outcome {
            return self.creation_failed(making, error);
        }
        self.making.remove(&making.name);
        self.owners.opened(&making.name);
        let pool = PoolState::new(
            &making.name,
            making.settings.clone(),
            &self.limits,
            JournalSegments::new([(1, first)]),
            PoolKey::new(&self.seed, no),
            self.published.add(&making.name),
        );
        // It has no jobs, so that the time does not matter.
        let status = pool.status(Now::default());
        self.names.insert(making.name.clone(), no);
        self.pools.insert(no, pool);
        self.respond(
            making.from,
            DispatchResponse::Created {
                existed: false,
                status,
            },
        );
    }

    fn creation_failed(&mut self, making: &PoolCreation, error: JobError) {
        self.making.remove(&making.name);
        self.respond(making.from, DispatchResponse::Refused(error));
    }

    /// Changes settings. They hold once that is in the journal.
    pub(crate) fn change(
        &mut self,
        now: Now,
        from: DispatchClient,
        no: PoolNo,
        change: SettingsChange,
    ) -> Result<(), JobError> {
        if self.stopping {
            return Err(JobError::Stopping);
        }
        let Some(pool) = self.pools.get_mut(&no) else {
            return Ok(());
        };
        change.check(&pool.settings, &self.limits)?;
        if pool.settings.changed(&change) == pool.settings {
            let status = pool.status(now);
            self.respond(from, DispatchResponse::Described(status));
            return Ok(());
        }
        pool.pending_records += 1;
        let journal = segment_name(&pool.name, no, pool.segments.last());
        let record = bytes(JournalRecord::changed(&change));
        self.commit(append(&journal, record), Op::Changed(no, from, change));
        Ok(())
    }

    pub(crate) fn changed(
        &mut self,
        now: Now,
        no: PoolNo,
        from: DispatchClient,
        change: &SettingsChange,
        outcome: Result<u64, JobError>,
    ) {
        self.touched.insert(no);
        let Some(pool) = self.pools.get_mut(&no) else {
            return self.respond(from, DispatchResponse::Refused(JobError::PoolChanging));
        };
        pool.pending_records -= 1;
        if let Err(error) = outcome {
            return self.respond(from, DispatchResponse::Refused(error));
        }
        pool.segments.records += 1;
        let had_events = pool.settings.events;
        pool.settings = pool.settings.changed(change);
        pool.workers.take_settings(&pool.settings);
        let status = pool.status(now);
        let begins_events = pool.settings.events && !had_events;
        let events = begins_events.then(|| PublicStream::Events.of(&pool.name));
        if let Some(events) = events {
            self.make_again(&events, Data::default());
        }
        self.respond(from, DispatchResponse::Described(status));
    }

    /// Deletes a public stream that a removed pool has left, or one of a pool that is closed, so that it is made anew.
    pub(crate) fn delete_public(
        &mut self,
        from: DispatchClient,
        pool: &str,
        stream: Box<str>,
    ) -> Result<(), JobError> {
        if self.stopping {
            return Err(JobError::Stopping);
        }
        if self.making.contains(pool) {
            return Err(JobError::PoolChanging);
        }
        let no = self.names.get(pool);
        let existing = no.and_then(|no| self.pools.get_mut(no));
        let exists = existing.is_some();
        if let Some(existing) = existing
            && !std::mem::take(&mut existing.has_closed_stream)
        {
            return Err(JobError::StreamOfPool(pool.into()));
        }
        let target = Target::Named(stream.clone());
        let command = Command::Delete { target, ack: None };
        self.commit(command, Op::DeletePublic(from));
        if exists {
            self.make_again(&stream, Data::default());
        }
        Ok(())
    }

    pub(crate) fn remove(
        &mut self,
        from: DispatchClient,
        no: PoolNo,
        force: bool,
    ) -> Result<(), JobError> {
        let Some(pool) = self.pools.get_mut(&no) else {
            return Ok(());
        };
        let jobs = (pool.live() + pool.pending_posts) as u64;
        let workers = pool.workers.connected() as u64;
        if !force && jobs + workers > 0 {
            return Err(JobError::PoolBusy { jobs, workers });
        }
        pool.phase = PoolPhase::Removing;
        let gone = bytes(RegistryRecord::Gone { no }.encode());
        self.commit(append(REGISTRY, gone), Op::Removed(no, from));
        Ok(())
    }

    pub(crate) fn removed(
        &mut self,
        no: PoolNo,
        from: DispatchClient,
        outcome: Result<u64, JobError>,
    ) {
        if let Err(error) = outcome {
            if let Some(pool) = self.pools.get_mut(&no) {
                pool.phase = PoolPhase::Open;
            }
            return self.respond(from, DispatchResponse::Refused(error));
        }
        let Some(pool) = self.pools.remove(&no) else {
            return;
        };
        let name: Box<str> = (*pool.name).into();
        self.names.remove(&name);
        self.published.remove(&name);
        for (segment, _) in pool.segments.all() {
            self.delete_segment(&name, no, segment);
        }
        let unknown = || DispatchResponse::Refused(JobError::UnknownPool(name.clone()));
        for client in pool.clients() {
            if let Some((_, _, until)) = self.waits.remove(&client) {
                self.due.remove(&(until, JobTimer::Wait(client)));
                self.respond(client, unknown());
            }
        }
        for client in pool
            .draft
            .decisions
            .iter()
            .filter_map(|decision| decision.client)
        {
            self.respond(client, unknown());
        }
        let connections = self
            .worker_connections
            .iter()
            .filter(|(_, (pool, _))| *pool == no);
        let connections: Vec<DispatchClient> = connections.map(|(client, _)| *client).collect();
        for client in connections {
            self.worker_connections.remove(&client);
            self.respond(client, DispatchResponse::PoolRemoved);
        }
        for id in pool.running.keys().copied() {
            self.cache.remove(id);
        }
        for job in pool.waiting() {
            self.cache.remove(job.id);
        }
        self.respond(from, DispatchResponse::Removed);
    }

    /// Deletes a segment without unfinished jobs.
    pub(crate) fn delete_segment(&mut self, pool: &str, no: PoolNo, segment: u32) {
        self.delete_stream(segment_name(pool, no, segment));
    }

    /// Begins a new segment when the last one is long, so that the time of a start does not grow with a pool's past, or has deadlines
    /// of before a step of the time of day. Deletes segments without unfinished jobs.
    pub(crate) fn rotate_segments(&mut self, now: Now, no: PoolNo) {
        let records = self.limits.segment_records;
        let Some(pool) = self.pools.get_mut(&no) else {
            return;
        };
        let long = records.max(4 * pool.live() as u64);
        let lacks_key = !pool.key_is_stored && now.steady >= pool.pause_until;
        let is_due = pool.segments.records >= long || lacks_key;
        let is_stale = pool.segments.is_stale && (self.stopping || now.steady >= pool.pause_until);
        let is_due = is_due && !self.stopping || is_stale;
        if pool.phase == PoolPhase::Open && is_due {
            pool.phase = PoolPhase::Draining;
        }
        let done = pool.segments.done();
        let name = Arc::clone(&pool.name);
        let begins = pool.phase == PoolPhase::Draining && pool.pending_records == 0;
        if begins {
            pool.phase = PoolPhase::Rotating;
            let segment = pool.segments.next;
            // A segment that could not be completed is abandoned.
            pool.segments.next += 1;
            let mut parts = pool.snapshot(now).parts(
                &pool.key,
                &pool.delayed.entries(now),
                self.limits.record_bytes,
            );
            let begin = bytes(parts.pop_front().unwrap_or_default());
            let command = create(&segment_name(&name, no, segment), BYTES, begin);
            self.commit(command, Op::Segment(no, segment, parts));
        }
        for segment in done {
            self.delete_segment(&name, no, segment);
        }
    }

    pub(crate) fn segment(
        &mut self,
        now: Now,
        no: PoolNo,
        segment: u32,
        parts: VecDeque<Vec<u8>>,
        outcome: Result<u64, JobError>,
    ) {
        match outcome {
            Ok(first) => self.write_next_part(no, segment, first, parts),
            Err(error) => {
                if matches!(error, JobError::PoolChanging)
                    && let Some(pool) = self.pools.get(&no)
                {
                    let name = Arc::clone(&pool.name);
                    self.delete_segment(&name, no, segment);
                }
                self.reopen(now, no, Err(error));
            }
        }
    }

    /// Writes the next part of the snapshot that begins a segment; after the last part, makes the segment current.
    fn write_next_part(
        &mut self,
        no: PoolNo,
        segment: u32,
        first: u64,
        mut parts: VecDeque<Vec<u8>>,
    ) {
        let Some(pool) = self.pools.get(&no) else {
            return;
        };
        match parts.pop_front() {
            Some(part) => {
                let command = append(&segment_name(&pool.name, no, segment), bytes(part));
                self.commit(command, Op::SnapshotPart(no, segment, first, parts));
            }
            None => {
                let word = bytes(RegistryRecord::Segment { no, segment }.encode());
                self.commit(append(REGISTRY, word), Op::Rotated(no, segment, first));
            }
        }
    }

    /// Handles the outcome of a part.
    pub(crate) fn part(
        &mut self,
        now: Now,
        no: PoolNo,
        segment: u32,
        first: u64,
        parts: VecDeque<Vec<u8>>,
        outcome: Result<u64, JobError>,
    ) {
        match outcome {
            Ok(_) => self.write_next_part(no, segment, first, parts),
            error => self.rotated(now, no, segment, first, error),
        }
    }

    pub(crate) fn rotated(
        &mut self,
        now: Now,
        no: PoolNo,
        segment: u32,
        first: u64,
        outcome: Result<u64, JobError>,
    ) {
        let turned = outcome.map(|_| (segment, first));
        if turned.is_err()
            && let Some(pool) = self.pools.get(&no)
        {
            let name = Arc::clone(&pool.name);
            self.delete_segment(&name, no, segment);
        }
        self.reopen(now, no, turned);
    }

    /// Opens the pool again, in the new segment or, after a failure, in the old one.
    fn reopen(&mut self, now: Now, no: PoolNo, turned: Result<(u32, u64), JobError>) {
        let Some(pool) = self.pools.get_mut(&no) else {
            return;
        };
        match turned {
            Ok((segment, first)) => {
                pool.segments.begin(segment, first);
                pool.key_is_stored = true;
            }
            Err(error) => {
                tracing::warn!(pool = %pool.name, %error, "could not begin a journal segment");
                // The next attempt comes when half as many records again are written, or after a pause if the pool needs it.
                pool.segments.records /= 2;
                pool.segments.is_stale &= !self.stopping;
                if !pool.key_is_stored || pool.segments.is_stale {
                    pool.pause_until = now.steady.after(RETRY);
                    self.due.insert((pool.pause_until, JobTimer::Pause(no)));
                }
            }
        }
        // A removal requested meanwhile continues.
        if pool.phase == PoolPhase::Rotating {
            pool.phase = PoolPhase::Open;
        }
        let held = std::mem::take(&mut pool.held_requests);
        self.touched.insert(no);
        for (client, request) in held {
            self.request(now, client, request);
        }
    }
}
