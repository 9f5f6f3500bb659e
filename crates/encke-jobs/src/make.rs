//! Making and removing pools, and the chapters of their journals.

use std::collections::VecDeque;
use std::sync::Arc;

use encke_stream::Data;

use crate::error::JobError;
use crate::machine::{Due, Machine, PoolNo};
use crate::op::{BYTES, JSON, Making, Op, append, bytes, create};
use crate::record::{REGISTRY, Record, Register, chapter_name, side_name};
use crate::request::PoolClient;
use crate::response::PoolResponse;
use crate::settings::PoolSettings;
use crate::shop::{Chapters, Phase, Shop};

impl Machine {
    /// Makes a pool, step by step, so that one that was not made whole is none: its public streams
    /// and its announcement, its first chapter, then the word that it begins there.
    pub(crate) fn make(
        &mut self,
        from: PoolClient,
        name: Box<str>,
        settings: PoolSettings,
    ) -> Result<(), JobError> {
        if self.stopping {
            return Err(JobError::Stopping);
        }
        if self.limits.forgets {
            return Err(JobError::RetentionIsSet);
        }
        let settings = settings.checked(&self.limits)?;
        if let Some(shop) = self.names.get(&name).and_then(|no| self.pools.get(no)) {
            if shop.phase == Phase::Removing {
                return Err(JobError::PoolChanging);
            }
            if let Some((what, has, requested)) = shop.settings.difference(&settings) {
                return Err(JobError::SettingsDiffer {
                    what,
                    has,
                    requested,
                });
            }
            let status = shop.status();
            self.respond(
                from,
                PoolResponse::Created {
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
        let announced = bytes(Register::Made { name: &name }.encode());
        let making = Arc::new(Making {
            name,
            settings,
            from,
            taken: parking_lot::Mutex::new(None),
        });
        for what in ["results", "dead", "events"] {
            if what != "events" || making.settings.events {
                let name = side_name(&making.name, what);
                let command = create(&name, JSON, Data::default());
                self.commit(command, Op::Side(Arc::clone(&making)));
            }
        }
        self.commit(append(REGISTRY, announced), Op::Announced(making));
        Ok(())
    }

    pub(crate) fn announced(&mut self, making: &Arc<Making>, outcome: Result<u64, JobError>) {
        let taken = making.taken.lock().take();
        let no = match (outcome, taken) {
            (Ok(no), None) => no,
            (Ok(no), Some(error)) => {
                let gone = bytes(Register::Gone { no }.encode());
                self.commit(append(REGISTRY, gone), Op::Nothing);
                return self.unmade(making, error);
            }
            (Err(error), _) => return self.unmade(making, error),
        };
        let shop = Shop::new(
            &making.name,
            making.settings.clone(),
            &self.limits,
            Chapters::new([]),
            Arc::default(),
        );
        let begin = bytes(Record::Begin(shop.snapshot()).encode());
        let name = chapter_name(&making.name, no, 1);
        let op = Op::First(Arc::clone(making), no);
        self.commit(create(&name, BYTES, begin), op);
    }

    pub(crate) fn first_chapter(
        &mut self,
        making: &Arc<Making>,
        no: PoolNo,
        outcome: Result<u64, JobError>,
    ) {
        match outcome {
            Ok(first) => {
                let chapter = bytes(Register::Chapter { no, chapter: 1 }.encode());
                let op = Op::Opened(Arc::clone(making), no, first);
                self.commit(append(REGISTRY, chapter), op);
            }
            Err(error) => self.unmade(making, error),
        }
    }

    pub(crate) fn opened(
        &mut self,
        making: &Arc<Making>,
        no: PoolNo,
        first: u64,
        outcome: Result<u64, JobError>,
    ) {
        if let Err(error) = outcome {
            return self.unmade(making, error);
        }
        self.making.remove(&making.name);
        let shop = Shop::new(
            &making.name,
            making.settings.clone(),
            &self.limits,
            Chapters::new([(1, first)]),
            self.published.add(&making.name),
        );
        let status = shop.status();
        self.names.insert(making.name.clone(), no);
        self.pools.insert(no, shop);
        self.respond(
            making.from,
            PoolResponse::Created {
                existed: false,
                status,
            },
        );
    }

    fn unmade(&mut self, making: &Making, error: JobError) {
        self.making.remove(&making.name);
        self.respond(making.from, PoolResponse::Refused(error));
    }

    pub(crate) fn remove(
        &mut self,
        from: PoolClient,
        no: PoolNo,
        force: bool,
    ) -> Result<(), JobError> {
        let Some(shop) = self.pools.get_mut(&no) else {
            return Ok(());
        };
        let jobs = (shop.live() + shop.posting) as u64;
        let workers = shop.crew.connected() as u64;
        if !force && jobs + workers > 0 {
            return Err(JobError::PoolBusy { jobs, workers });
        }
        shop.phase = Phase::Removing;
        let gone = bytes(Register::Gone { no }.encode());
        self.commit(append(REGISTRY, gone), Op::Gone(no, from));
        Ok(())
    }

    pub(crate) fn removed(&mut self, no: PoolNo, from: PoolClient, outcome: Result<u64, JobError>) {
        if let Err(error) = outcome {
            if let Some(shop) = self.pools.get_mut(&no) {
                shop.phase = Phase::Open;
            }
            return self.respond(from, PoolResponse::Refused(error));
        }
        let Some(shop) = self.pools.remove(&no) else {
            return;
        };
        let name: Box<str> = (*shop.name).into();
        self.names.remove(&name);
        self.published.remove(&name);
        for (chapter, _) in shop.chapters.all() {
            self.forget_chapter(&name, no, chapter);
        }
        let unknown = || PoolResponse::Refused(JobError::UnknownPool(name.clone()));
        for client in shop.clients() {
            if let Some((_, _, until_ms)) = self.waits.remove(&client) {
                self.due.remove(&(until_ms, Due::Wait(client)));
                self.respond(client, unknown());
            }
        }
        for client in shop.draft.steps.iter().filter_map(|step| step.client) {
            self.respond(client, unknown());
        }
        let seats = self.seats.iter().filter(|(_, (pool, _))| *pool == no);
        let seats: Vec<PoolClient> = seats.map(|(client, _)| *client).collect();
        for client in seats {
            self.seats.remove(&client);
            self.respond(client, PoolResponse::PoolRemoved);
        }
        for id in shop.running.keys().copied() {
            self.cache.remove(id);
        }
        for job in shop.lines.iter() {
            self.cache.remove(job.id);
        }
        self.respond(from, PoolResponse::Removed);
    }

    /// Deletes a chapter that nobody needs.
    pub(crate) fn forget_chapter(&mut self, pool: &str, no: PoolNo, chapter: u32) {
        self.forget(chapter_name(pool, no, chapter));
    }

    /// Begins a new chapter when the last one has become long, so that a pool's past costs no start
    /// time for ever, and deletes those that hold nothing any more.
    pub(crate) fn mind_chapters(&mut self, no: PoolNo) {
        let records = self.limits.chapter_records;
        let Some(shop) = self.pools.get_mut(&no) else {
            return;
        };
        let long = records.max(4 * shop.live() as u64);
        if shop.phase == Phase::Open && shop.chapters.records >= long && !self.stopping {
            shop.phase = Phase::Quiet;
        }
        let done = shop.chapters.done();
        let name = Arc::clone(&shop.name);
        let begins = shop.phase == Phase::Quiet && shop.flying == 0;
        if begins {
            shop.phase = Phase::Turning;
            let chapter = shop.chapters.next;
            // One that could not be begun whole is left behind.
            shop.chapters.next += 1;
            let mut parts = shop.snapshot().parts(self.limits.record_bytes);
            let begin = bytes(parts.pop_front().unwrap_or_default());
            let command = create(&chapter_name(&name, no, chapter), BYTES, begin);
            self.commit(command, Op::Chapter(no, chapter, parts));
        }
        for chapter in done {
            self.forget_chapter(&name, no, chapter);
        }
    }

    pub(crate) fn chapter(
        &mut self,
        now_ms: u64,
        no: PoolNo,
        chapter: u32,
        parts: VecDeque<Vec<u8>>,
        outcome: Result<u64, JobError>,
    ) {
        match outcome {
            Ok(first) => self.go_on(no, chapter, first, parts),
            Err(error) => {
                if matches!(error, JobError::PoolChanging)
                    && let Some(shop) = self.pools.get(&no)
                {
                    let name = Arc::clone(&shop.name);
                    self.forget_chapter(&name, no, chapter);
                }
                self.reopen(now_ms, no, Err(error));
            }
        }
    }

    /// Writes the next part of what a chapter begins with; behind the last one, that it has begun.
    fn go_on(&mut self, no: PoolNo, chapter: u32, first: u64, mut parts: VecDeque<Vec<u8>>) {
        let Some(shop) = self.pools.get(&no) else {
            return;
        };
        match parts.pop_front() {
            Some(part) => {
                let command = append(&chapter_name(&shop.name, no, chapter), bytes(part));
                self.commit(command, Op::Part(no, chapter, first, parts));
            }
            None => {
                let word = bytes(Register::Chapter { no, chapter }.encode());
                self.commit(append(REGISTRY, word), Op::TurnedTo(no, chapter, first));
            }
        }
    }

    /// What became of a part of what a chapter begins with.
    pub(crate) fn part(
        &mut self,
        now_ms: u64,
        no: PoolNo,
        chapter: u32,
        first: u64,
        parts: VecDeque<Vec<u8>>,
        outcome: Result<u64, JobError>,
    ) {
        match outcome {
            Ok(_) => self.go_on(no, chapter, first, parts),
            error => self.turned_to(now_ms, no, chapter, first, error),
        }
    }

    pub(crate) fn turned_to(
        &mut self,
        now_ms: u64,
        no: PoolNo,
        chapter: u32,
        first: u64,
        outcome: Result<u64, JobError>,
    ) {
        let turned = outcome.map(|_| (chapter, first));
        if turned.is_err()
            && let Some(shop) = self.pools.get(&no)
        {
            let name = Arc::clone(&shop.name);
            self.forget_chapter(&name, no, chapter);
        }
        self.reopen(now_ms, no, turned);
    }

    /// Goes on, in the new chapter or in the old one.
    fn reopen(&mut self, now_ms: u64, no: PoolNo, turned: Result<(u32, u64), JobError>) {
        let Some(shop) = self.pools.get_mut(&no) else {
            return;
        };
        match turned {
            Ok((chapter, first)) => shop.chapters.begin(chapter, first),
            Err(error) => {
                tracing::warn!(pool = %shop.name, %error, "a chapter could not be begun");
                // Tried again when half as much again has been written.
                shop.chapters.records /= 2;
            }
        }
        // A removal that was asked for meanwhile goes on.
        if shop.phase == Phase::Turning {
            shop.phase = Phase::Open;
        }
        let held = std::mem::take(&mut shop.held);
        self.touched.insert(no);
        for (client, request) in held {
            self.request(now_ms, client, request);
        }
    }
}
