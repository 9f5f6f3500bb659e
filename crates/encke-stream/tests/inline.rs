//! Inline commit by several threads: one order, each reply once, no lost command, no wait on a shard's thread.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use encke_clock::{Now, SteadyTime};
use encke_log::simulated::{Faults, SimulatedDisk};
use encke_log::{CommitError, Options, ReadError, Reader, Sequence};
use encke_mailbox::{Lane, Sender, mailbox};
use encke_stream::{
    AckLevel, Append, Batch, Command, Create, Data, Fetch, Handover, InlineCommit, LastMessages,
    LastMessagesBounds, Limits, Offset, Outcome, Outlet, Piece, Reply, Sequencer, Submission,
    Submitter, Target, View, restore_on,
};

/// What a shard has received, in its order.
#[derive(Default)]
struct Received {
    sequences: Vec<Sequence>,
    replies: Vec<(u64, bool)>,
    /// Records and replies in the order of arrival.
    events: Vec<Event>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Sequence(Sequence),
    Reply(u64),
}

#[derive(Clone, Default)]
struct Shard {
    received: Arc<Mutex<Received>>,
    /// It has no room for threads that must not wait.
    full: Arc<AtomicBool>,
    /// It is behind.
    behind: Arc<AtomicBool>,
    /// A thread waits until it is not.
    admitting: Arc<AtomicBool>,
}

impl Outlet for Shard {
    fn deliver(&self, batch: Option<Arc<Batch>>, replies: Vec<Reply>) {
        let mut received = self.received.lock().unwrap();
        let records = batch.iter().flat_map(|batch| &batch.records);
        let sequences: Vec<_> = records.map(|record| record.sequence).collect();
        received
            .events
            .extend(sequences.iter().copied().map(Event::Sequence));
        let tokens = replies.iter().map(|reply| Event::Reply(reply.token));
        received.events.extend(tokens);
        received.sequences.extend(sequences);
        let replies = replies.into_iter();
        received.replies.extend(replies.map(|reply| {
            let done = !matches!(reply.outcome, Outcome::Refused(_));
            (reply.token, done)
        }));
    }

    fn admit(&self) {
        while self.behind.load(Ordering::SeqCst) {
            self.admitting.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn offer(&self, batch: Option<Arc<Batch>>, replies: Vec<Reply>) -> Result<(), Handover> {
        if self.full.load(Ordering::SeqCst) {
            return Err(Handover { batch, replies });
        }
        self.deliver(batch, replies);
        Ok(())
    }

    fn admits(&self) -> bool {
        !self.behind.load(Ordering::SeqCst)
    }
}

struct Rig {
    inline: Arc<InlineCommit<SimulatedDisk>>,
    view: Arc<View>,
    reader: Reader<SimulatedDisk>,
    shards: Vec<Shard>,
    sender: Sender<Submission>,
    thread: JoinHandle<Result<(), CommitError>>,
}

impl Rig {
    fn start(disk: &SimulatedDisk) -> Rig {
        Self::syncing_every(Duration::from_secs(1), disk)
    }

    /// Accepted records may wait this long for a sync.
    fn syncing_every(period: Duration, disk: &SimulatedDisk) -> Rig {
        let (machine, view, log) = restore_on(
            disk.clone(),
            Options::default(),
            Limits::default(),
            SteadyTime::from_ms(0),
        )
        .unwrap();
        let (sender, receiver) = mailbox("sequencer", encke_mailbox::Bounds::default());
        let shards = vec![Shard::default(), Shard::default()];
        let outlets = shards.iter().cloned();
        let outlets = outlets
            .map(|shard| Box::new(shard) as Box<dyn Outlet>)
            .collect();
        let watch = Box::new(|_: &_| {});
        let reader = log.reader();
        let sequencer = Sequencer::new(machine, log, receiver, outlets, AckLevel::Accepted, watch)
            .syncing_every(period);
        let inline = Arc::new(InlineCommit::new(sequencer));
        let shared = Arc::clone(&inline);
        let thread = std::thread::spawn(move || shared.run(Now::default));
        Rig {
            inline,
            view,
            reader,
            shards,
            sender,
            thread,
        }
    }

    fn bring(&self, shard: u16, token: u64, command: Command) {
        self.put(shard, token, command);
        self.inline.commit(Now::default());
    }

    /// Puts a command into the mailbox and wakes no thread.
    fn put(&self, shard: u16, token: u64, command: Command) {
        let bytes = command.weight_bytes();
        let from = Submitter { shard, token };
        let request = Submission::new(command, from);
        assert!(self.sender.try_send(Lane::Data, request, bytes).is_ok());
    }

    fn create(&self, name: &str) {
        self.create_at(name, None);
    }

    fn create_at(&self, name: &str, ack: Option<AckLevel>) {
        let create = Create {
            content_type: Some("text/plain".into()),
            ack,
            ..Create::new(name)
        };
        self.bring(0, u64::MAX, Command::Create(create));
        self.eventually("the stream is there", || self.view.find(name).is_some());
        for shard in 0..2 {
            self.view.watch(&self.view.find(name).unwrap(), shard);
        }
    }

    fn eventually(&self, what: &str, is_so: impl Fn() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn stop(self) {
        drop(self.sender);
        self.inline.wake();
        self.thread.join().unwrap().unwrap();
    }
}

fn append(view: &View, name: &str, data: &str) -> Command {
    Command::Append(Append {
        data: Data {
            bytes: data.as_bytes().to_vec(),
            units: data.len() as u32,
        },
        ..Append::to(Target::Known(view.find(name).unwrap()))
    })
}

#[test]
fn many_bring_commands_at_once_and_each_is_decided_once() {
    const THREADS: u64 = 4;
    const EACH: u64 = 3_000;
    let disk = SimulatedDisk::new(7);
    let rig = Rig::start(&disk);
    rig.create("s");
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for shard in 0..THREADS {
            let (rig, next) = (&rig, &next);
            scope.spawn(move || {
                for _ in 0..EACH {
                    let token = next.fetch_add(1, Ordering::SeqCst);
                    let command = append(&rig.view, "s", "x");
                    rig.bring((shard % 2) as u16, token, command);
                }
            });
        }
    });
    let answered = || {
        let shards = rig.shards.iter();
        let replies = shards.map(|shard| shard.received.lock().unwrap().replies.len() as u64);
        // One more for the creation.
        replies.sum::<u64>() == THREADS * EACH + 1
    };
    rig.eventually("all are answered", answered);
    // A shard without a reply in the last batch may get it after the other shards.
    let handed = |shard: &Shard| shard.received.lock().unwrap().sequences.len() as u64;
    rig.eventually("all are handed over", || {
        rig.shards
            .iter()
            .all(|shard| handed(shard) >= THREADS * EACH)
    });
    let mut tokens = Vec::new();
    for shard in &rig.shards {
        let received = shard.received.lock().unwrap();
        assert_eq!(received.sequences.len() as u64, THREADS * EACH);
        assert!(
            received.sequences.is_sorted_by(|a, b| a < b),
            "out of order"
        );
        assert!(received.replies.iter().all(|(_, done)| *done));
        tokens.extend(received.replies.iter().map(|(token, _)| *token));
    }
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(
        tokens.len() as u64,
        THREADS * EACH + 1,
        "a reply came twice"
    );
    rig.stop();
    // All of it is in the log.
    let (_, view, _log) = restore_on(
        disk,
        Options::default(),
        Limits::default(),
        SteadyTime::from_ms(0),
    )
    .unwrap();
    let tail = view.find("s").unwrap().facts().tail;
    assert_eq!(tail, Offset::behind(THREADS * EACH + 1));
}

#[test]
fn a_shard_without_room_gets_everything_later_and_in_order() {
    let rig = Rig::start(&SimulatedDisk::new(8));
    rig.create("s");
    for round in 0..50_u64 {
        // In some rounds, and in the last, there is no room for threads that must not wait; the background thread may wait.
        let full = round % 7 == 0;
        rig.shards[1].full.store(full, Ordering::SeqCst);
        rig.bring(0, round, append(&rig.view, "s", "x"));
    }
    let replies = |shard: usize| rig.shards[shard].received.lock().unwrap().replies.len();
    rig.eventually("all are answered", || replies(0) == 51);
    let handed = || rig.shards[1].received.lock().unwrap().sequences.len() == 50;
    rig.eventually("all are handed over", handed);
    rig.eventually("all is known to be delivered", || {
        rig.view.delivered() == rig.view.committed()
    });
    for shard in &rig.shards {
        let received = shard.received.lock().unwrap();
        assert!(
            received.sequences.is_sorted_by(|a, b| a < b),
            "out of order"
        );
    }
    rig.stop();
}

#[test]
fn no_thread_decides_past_a_shard_that_is_behind() {
    let rig = Rig::start(&SimulatedDisk::new(9));
    rig.create("s");
    rig.shards[1].behind.store(true, Ordering::SeqCst);
    // The background thread may hold one batch while it waits; this thread never waits for it.
    for token in 0..100 {
        rig.bring(0, token, append(&rig.view, "s", "x"));
    }
    rig.eventually("it waits for the shard", || {
        rig.shards[1].admitting.load(Ordering::SeqCst)
    });
    let answered = || rig.shards[0].received.lock().unwrap().replies.len();
    let while_behind = answered();
    rig.bring(0, 100, append(&rig.view, "s", "x"));
    // The background thread still waits for the shard, so no thread is left that could decide later.
    rig.shards[1].admitting.store(false, Ordering::SeqCst);
    rig.eventually("it waits for the shard still", || {
        rig.shards[1].admitting.load(Ordering::SeqCst)
    });
    assert_eq!(answered(), while_behind, "decided while a shard was behind");
    rig.shards[1].behind.store(false, Ordering::SeqCst);
    rig.eventually("all are answered", || answered() == 102);
    rig.stop();
}

#[test]
fn while_the_disk_syncs_commands_are_decided() {
    let disk = SimulatedDisk::new(10);
    let rig = Rig::start(&disk);
    rig.create("s");
    let answered = || rig.shards[0].received.lock().unwrap().replies.len();
    rig.eventually("the stream is answered", || answered() == 1);
    disk.hold_syncs(true);
    // When no command follows, the background thread syncs, and that sync hangs.
    rig.bring(0, 0, append(&rig.view, "s", "x"));
    rig.eventually("a sync waits", || disk.held_syncs() == 1);
    for token in 1..100 {
        rig.bring(0, token, append(&rig.view, "s", "x"));
        assert_eq!(
            answered() as u64,
            token + 2,
            "a command waited for the disk"
        );
    }
    disk.hold_syncs(false);
    rig.stop();
    disk.cut_power();
    let (_, view, _log) = restore_on(
        disk,
        Options::default(),
        Limits::default(),
        SteadyTime::from_ms(0),
    )
    .unwrap();
    let tail = view.find("s").unwrap().facts().tail;
    assert_eq!(tail, Offset::behind(101));
}

#[test]
fn a_command_that_finds_the_lock_taken_does_not_wait_for_the_sync_that_follows() {
    let disk = SimulatedDisk::new(13);
    let rig = Rig::syncing_every(Duration::ZERO, &disk);
    rig.create("s");
    // The background thread waits for a shard and then for the disk.
    let slow = &rig.shards[1];
    slow.behind.store(true, Ordering::SeqCst);
    rig.bring(0, 0, append(&rig.view, "s", "x"));
    rig.eventually("it waits for the shard", || {
        slow.admitting.load(Ordering::SeqCst)
    });
    disk.hold_syncs(true);
    rig.bring(0, 1, append(&rig.view, "s", "x"));
    slow.behind.store(false, Ordering::SeqCst);
    rig.eventually("a sync waits", || disk.held_syncs() == 1);
    let answered = || rig.shards[0].received.lock().unwrap().replies.len();
    rig.eventually("both are answered", || answered() == 3);
    disk.hold_syncs(false);
    rig.stop();
}

/// The same, acknowledged at another level than its stream's.
fn append_at(view: &View, name: &str, data: &str, level: AckLevel) -> Command {
    let Command::Append(made) = append(view, name, data) else {
        unreachable!("that is what it makes")
    };
    let ack = Some(level);
    Command::Append(Append { ack, ..made })
}

/// Seven commands for streams of all levels, some of which name another level. The tokens are their positions.
fn mixed(view: &View) -> Vec<Command> {
    use AckLevel::{Accepted, Synced, Written};
    vec![
        append(view, "synced", "s"),
        append_at(view, "accepted", "a", Synced),
        append(view, "written", "w"),
        append(view, "accepted", "b"),
        append_at(view, "synced", "t", Accepted),
        append_at(view, "accepted", "c", Written),
        append(view, "accepted", "d"),
    ]
}

#[test]
fn a_batch_of_all_levels_is_acknowledged_and_visible_as_each_asks_in_the_order_of_the_log() {
    // Committed by the background thread, which may wait for files, or by a thread that may not.
    for waits in [true, false] {
        let disk = SimulatedDisk::new(12);
        let rig = Rig::start(&disk);
        for level in AckLevel::ALL {
            rig.create_at(level.name(), Some(level));
        }
        let shard = &rig.shards[0];
        let replies = || shard.received.lock().unwrap().replies.len();
        rig.eventually("all are made", || replies() == 3);
        let tail = |name: &str| rig.view.find(name).unwrap().facts().tail;
        let (begin, empty) = (tail("accepted"), tail("synced"));
        let before = shard.received.lock().unwrap().events.len();
        // The background thread is busy, so that the commands that arrive meanwhile are one batch. What makes it busy may be in that batch,
        // too, if the thread still has the lock of what was before.
        if waits {
            shard.behind.store(true, Ordering::SeqCst);
            rig.bring(0, 99, append(&rig.view, "accepted", "-"));
            rig.eventually("it waits for the shard", || {
                shard.admitting.load(Ordering::SeqCst)
            });
            disk.hold_syncs(true);
        } else {
            disk.hold_syncs(true);
            rig.bring(0, 99, append(&rig.view, "accepted", "-"));
            rig.eventually("it waits for the disk", || disk.held_syncs() == 1);
        }
        for (token, command) in (0..).zip(mixed(&rig.view)) {
            rig.put(0, token, command);
        }
        if waits {
            shard.behind.store(false, Ordering::SeqCst);
        } else {
            rig.inline.commit(Now::default());
        }
        let of_mixed = |event: &Event| ![Event::Reply(99), Event::Sequence(4)].contains(event);
        let news = || -> Vec<Event> {
            let events = &shard.received.lock().unwrap().events;
            let news = events[before..].iter().copied();
            news.filter(of_mixed).collect()
        };
        let tokens = |news: &[Event]| -> Vec<u64> {
            let token = |event: &Event| match event {
                Event::Reply(token) => Some(*token),
                Event::Sequence(_) => None,
            };
            news.iter().filter_map(token).collect()
        };
        // While no sync ends, the replies that need no sync are sent, in this order.
        let early: &[u64] = if waits { &[3, 6, 5, 2, 4] } else { &[3, 6, 4] };
        rig.eventually("the early replies are sent", || {
            tokens(&news()).len() == early.len()
        });
        rig.eventually("a sync waits", || disk.held_syncs() == 1);
        // The background thread hangs in the sync, so no thread is left that could send more.
        assert_eq!(tokens(&news()), early, "waits: {waits}");
        // Accepted records are visible. Records that wait for a sync are not, even if they were acknowledged early.
        assert!(tail("accepted") > begin);
        assert_eq!(tail("synced"), empty);
        let seen = news().len() - early.len();
        assert_eq!(seen, if waits { 5 } else { 4 });
        disk.hold_syncs(false);
        rig.eventually("all replies are sent", || tokens(&news()).len() == 7);
        let news = news();
        let mut all = tokens(&news);
        all.sort_unstable();
        assert_eq!(all, (0..7).collect::<Vec<_>>(), "each once");
        let sequences: Vec<Sequence> = news
            .iter()
            .filter_map(|event| match event {
                Event::Sequence(sequence) => Some(*sequence),
                Event::Reply(_) => None,
            })
            .collect();
        assert_eq!(sequences, (5..12).collect::<Vec<_>>(), "the log's order");
        // The synced records become visible last, and then the replies that wait for the sync are sent.
        let place = |what: Event| news.iter().position(|event| *event == what).unwrap();
        assert!(place(Event::Reply(0)) > place(Event::Sequence(11)));
        assert!(place(Event::Reply(2)) > place(Event::Sequence(9)));
        rig.stop();
        disk.cut_power();
        let (_, view, log) = restore_on(
            disk,
            Options::default(),
            Limits::default(),
            SteadyTime::from_ms(0),
        )
        .unwrap();
        let reader = log.reader();
        for (name, data) in [("accepted", "-abcd"), ("written", "w"), ("synced", "st")] {
            let stream = view.find(name).unwrap();
            let fetch = Fetch::new(&stream, Offset::START, stream.facts().tail, 1 << 20);
            let piece = Piece::read(&reader, &fetch).unwrap();
            let read: Vec<u8> = piece.items().flat_map(|item| item.data.to_vec()).collect();
            assert_eq!(read, data.as_bytes(), "{name}");
        }
    }
}

#[test]
fn a_sync_that_fails_while_others_decide_poisons_the_log() {
    let disk = SimulatedDisk::new(11);
    let rig = Rig::start(&disk);
    rig.create("s");
    disk.hold_syncs(true);
    rig.bring(0, 0, append(&rig.view, "s", "x"));
    rig.eventually("a sync waits", || disk.held_syncs() == 1);
    // Accepted, and never written.
    for token in 1..4 {
        rig.bring(0, token, append(&rig.view, "s", "y"));
    }
    let stream = rig.view.find("s").unwrap();
    assert_eq!(stream.facts().tail, Offset::behind(5));
    let read = |from| {
        let fetch = Fetch::new(&stream, from, stream.facts().tail, 1 << 20);
        Piece::read(&rig.reader, &fetch)
    };
    // A reader gets what is written meanwhile, and then waits for the rest.
    let written = rig.reader.published();
    assert!(written < 5, "{written} are written");
    let before = read(Offset::START).unwrap();
    assert!(before.more);
    assert!(read(Offset::behind(written)).unwrap().lacks());
    // Nor are the last messages counted before the last of them is written.
    let bounds = LastMessagesBounds {
        bytes_max: 1 << 20,
        piece_bytes: 1 << 20,
    };
    let mut search = LastMessages::new(&stream, stream.facts(), 2, bounds);
    let piece = Piece::read(&rig.reader, &search.fetch()).unwrap();
    assert!(piece.lacks() && piece.more);
    search.take(&[], piece.end, piece.more);
    assert_eq!(search.found(), None);
    disk.set_faults(Faults {
        failing_operation: Some(1),
        ..Faults::default()
    });
    disk.hold_syncs(false);
    let refused = || {
        rig.bring(1, 7, append(&rig.view, "s", "x"));
        let received = rig.shards[1].received.lock().unwrap();
        received.replies.iter().any(|(_, done)| !done)
    };
    rig.eventually("commands are refused", refused);
    // No reader waits for records that will never be written, and none takes the beginning for everything.
    if before.bytes() > 0 {
        let piece = read(Offset::START).unwrap();
        assert_eq!((piece.bytes(), piece.more), (before.bytes(), true));
    }
    let error = read(Offset::behind(written)).unwrap_err();
    assert!(
        matches!(error, ReadError::NeverWritten { after, .. } if after == written),
        "{error}"
    );
    let error = Piece::read(&rig.reader, &search.fetch()).unwrap_err();
    assert!(matches!(error, ReadError::NeverWritten { .. }), "{error}");
    drop(rig.sender);
    rig.inline.wake();
    assert!(rig.thread.join().unwrap().is_err());
}
