//! Measures the log on a real disk, in a directory that is not there yet unless it says otherwise.
//!
//! ```text
//! measure batches DIR [RECORDS] [STREAMS]   batches of 1,000 records of 128 bytes, each batch synced
//! measure lone    DIR [RECORDS]             one synced record at a time, beside a bare pwrite and fdatasync
//! measure paced   DIR [RECORDS] [STREAMS]   100,000 records a second; the longest stalls, what they waited for, and the
//!                                           disk's own longest sync (30000000 records take five minutes)
//! measure load    DIR [RECORDS] [STREAMS]   as batches, and ends as kill -9 would
//! measure reopen  DIR [RECORDS] [STREAMS]   opens what was loaded, and reads the last 100 records of random streams
//! measure cold    DIR [RECORDS] [STREAMS]   the same, with nothing of it in the page cache
//! measure reclaim DIR [RECORDS] [STREAMS]   half of the streams are truncated to nothing, and others go on: how much has
//!                                           to be written until their space is back
//! ```

#![allow(clippy::unwrap_used)] // A measurement that can't be taken has nothing better to do than to stop.

use encke_clock::WallTime;
use encke_log::{Frame, Health, Log, Options, STALL, Sequence};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, mode, directory, rest @ ..] = &arguments[..] else {
        panic!("measure MODE DIR [RECORDS] [STREAMS]");
    };
    let number = |i: usize, default: u64| rest.get(i).map_or(default, |n| n.parse().unwrap());
    let directory = Path::new(directory);
    let streams = number(1, 100_000);
    match mode.as_str() {
        "batches" => batches(directory, number(0, 5_000_000), streams, Duration::ZERO),
        "paced" => batches(
            directory,
            number(0, 2_000_000),
            streams,
            Duration::from_millis(10),
        ),
        "lone" => lone(directory, number(0, 5000)),
        "load" => {
            batches(directory, number(0, 10_000_000), streams, Duration::ZERO);
            std::process::abort();
        }
        "reopen" => reopen(directory, streams),
        "cold" => {
            evict(directory);
            reopen(directory, streams);
        }
        "reclaim" => reclaim(directory, number(0, 2_000_000), streams),
        other => panic!("there is no {other} to measure"),
    }
}

const PAYLOAD: [u8; 128] = [7; 128];
const BATCH: u64 = 1000;

fn append(log: &mut Log, stream: u64) {
    append_of(log, stream, &PAYLOAD);
}

fn append_of(log: &mut Log, stream: u64, payload: &[u8]) {
    let frame = Frame {
        kind: 1,
        time: WallTime::from_ms(1_700_000_000_000),
        streams: &[stream],
        payload: &[payload],
    };
    log.append(&frame).unwrap();
}

/// Writes batches of a thousand records, without pauses or one every `pace`.
fn batches(directory: &Path, records: u64, streams: u64, pace: Duration) {
    let mut log = Log::open(directory, Options::default(), &mut |_| {}).unwrap();
    let mut random = 1_u64;
    let mut parts: [Vec<Duration>; 5] = Default::default();
    let mut stalls = Vec::new();
    let (begun, cpu) = (Instant::now(), cpu());
    for batch in 0..records / BATCH {
        if let Some(wait) = (begun + pace * batch as u32).checked_duration_since(Instant::now()) {
            std::thread::sleep(wait);
        }
        // The health takes time, so it is read only when it is needed.
        let before = (!pace.is_zero()).then(|| log.health());
        let mut at = Instant::now();
        let first = at;
        let mut lap = |part: usize| {
            parts[part].push(at.elapsed());
            at = Instant::now();
        };
        for _ in 0..BATCH {
            append(&mut log, next(&mut random) % streams + 1);
        }
        lap(0);
        log.write().unwrap();
        lap(1);
        log.sync().unwrap();
        lap(2);
        log.publish();
        if log.wants_checkpoint() {
            log.checkpoint(vec![(
                b"upto".to_vec(),
                Some(log.next_sequence().to_le_bytes().to_vec()),
            )]);
        }
        lap(3);
        parts[4].push(first.elapsed());
        if let Some(before) = before {
            let taken = parts.each_ref().map(|part| *part.last().unwrap());
            let upto = log.next_sequence() - 1;
            let moment = (first - begun, upto);
            stalls.push(Stall::new(moment, taken, &before, &log.health()));
        }
    }
    let (took, cpu) = (begun.elapsed().as_secs_f64(), self::cpu() - cpu);
    let rate = records as f64 / took;
    println!(
        "{records} records in {streams} streams: {rate:.0}/s, {:.2} CPU-s per million",
        cpu / records as f64 * 1e6
    );
    for (name, mut times) in ["append", "write", "sync", "publish", "batch"]
        .into_iter()
        .zip(parts)
    {
        println!("  {name:8} {}", quantiles(&mut times));
    }
    if let Some(longest) = stalls.iter().max_by_key(|stall| stall.sync) {
        println!(
            "  the disk's longest sync took {:.1?}, {}",
            longest.sync,
            longest.moment()
        );
    }
    let rolls = stalls.iter().filter(|stall| stall.rolls).count();
    let filling = stalls.iter().filter(|stall| stall.segments_waiting > 0);
    let over = stalls.iter().filter(|stall| stall.beyond_disk > STALL);
    println!(
        "  {rolls} batches began a segment, {} came while history was filled; {} stalls of more than {STALL:?} beside the \
         disk's syncs",
        filling.count(),
        over.count()
    );
    stalls.sort_unstable_by_key(|stall| std::cmp::Reverse(stall.beyond_disk));
    for stall in stalls.iter().take(5) {
        println!("  {stall}");
    }
    println!(
        "  waited {:?}, {} segments wait, {}",
        log.health().waited,
        log.health().segments_waiting,
        memory()
    );
}

/// A batch, and how long it took without the disk's own syncs.
struct Stall {
    beyond_disk: Duration,
    at: Duration,
    /// Its last record.
    upto: Sequence,
    cause: &'static str,
    /// How long the cause took.
    of_cause: Duration,
    /// The batch's own sync, and going to another segment, which is mostly syncs.
    sync: Duration,
    rolled: Duration,
    rolls: bool,
    segments_waiting: usize,
}

impl Stall {
    fn new(
        (at, upto): (Duration, Sequence),
        taken: [Duration; 5],
        before: &Health,
        after: &Health,
    ) -> Stall {
        let [append, write, sync, publish, batch] = taken;
        let (waited, rolled) = (after.waited - before.waited, after.rolled - before.rolled);
        let causes = [
            ("the batch in memory", append),
            ("a prepared segment, or history", waited),
            ("the write itself", write.saturating_sub(waited + rolled)),
            ("publishing, and the checkpoint", publish),
        ];
        let (cause, of_cause) = *causes.iter().max_by_key(|(_, took)| *took).unwrap();
        Stall {
            beyond_disk: batch.saturating_sub(sync + rolled),
            at,
            upto,
            cause,
            of_cause,
            sync,
            rolled,
            rolls: after.segment_bytes > before.segment_bytes || !rolled.is_zero(),
            segments_waiting: before.segments_waiting,
        }
    }

    /// Its time, and what else happened then.
    fn moment(&self) -> String {
        let rolls = match self.rolls {
            true => format!(", beginning a segment in {:.1?}", self.rolled),
            false => String::new(),
        };
        let filling = match self.segments_waiting {
            0 => String::new(),
            waiting => format!(", while {waiting} sealed segments went into history"),
        };
        let at = self.at.as_secs_f64();
        format!(
            "after {at:.1} s, up to record {}{rolls}{filling}",
            self.upto
        )
    }
}

impl std::fmt::Display for Stall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "stall of {:.1?} beside {:.1?} of syncs, {}: {}, {:.1?}",
            self.beyond_disk,
            self.sync + self.rolled,
            self.moment(),
            self.cause,
            self.of_cause
        )
    }
}

/// Truncates half of the streams, continues with the other half, and prints after each segment how much space the
/// removed records still take.
fn reclaim(directory: &Path, records: u64, streams: u64) {
    let mut log = Log::open(directory, Options::default(), &mut |_| {}).unwrap();
    let mut random = 1_u64;
    let settle = |log: &mut Log| {
        log.sync().unwrap();
        log.checkpoint(Vec::new());
        while log.health().segments_waiting > 0 || log.checkpoints_waiting() > 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        // A compaction that history began is finished.
        let mut bytes = 0;
        while bytes != log.health().history_bytes {
            bytes = log.health().history_bytes;
            std::thread::sleep(Duration::from_millis(300));
            // It measures history.
            log.retire();
        }
        bytes
    };
    let mut payload = PAYLOAD;
    let mut fill = |log: &mut Log, random: &mut u64, count: u64, only_odd: bool| {
        for _ in 0..count / BATCH {
            for _ in 0..BATCH {
                let stream = next(random) % streams + 1;
                // Compressible bytes would take different space before and after.
                for part in payload.chunks_exact_mut(8) {
                    let number = (next(random) << 32) ^ next(random);
                    part.copy_from_slice(&number.to_le_bytes());
                }
                append_of(log, if only_odd { stream | 1 } else { stream }, &payload);
            }
            log.write().unwrap();
            log.publish();
        }
    };
    // Records that are not in history are in the newest segment, which is named by its first record.
    let in_history = || {
        let names = std::fs::read_dir(directory).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let firsts = names.filter_map(|name| name.strip_suffix(".segment")?.parse::<u64>().ok());
        firsts.max().unwrap() - 1
    };
    fill(&mut log, &mut random, records, false);
    let before = settle(&mut log);
    let upto = log.next_sequence() - 1;
    let each = before as f64 / in_history() as f64;
    // Half of all records, in history now or with the next segment.
    let dead = (upto as f64 * each / 2.0) as u64;
    for stream in (2..=streams + 1).step_by(2) {
        log.set_floor(stream, upto);
    }
    settle(&mut log);
    println!(
        "{records} records in {streams} streams take {} MB of history; every other stream is truncated, {} MB are of no use",
        before >> 20,
        dead >> 20
    );
    let step = (64 << 20) / 180;
    let mut written = 0;
    for _ in 0..ROUNDS_MAX {
        fill(&mut log, &mut random, step, true);
        written += step / BATCH * BATCH;
        let now = settle(&mut log);
        let all = (in_history() as f64 * each) as u64;
        let left = (now + dead).saturating_sub(all);
        println!(
            "  {:5} MB written since: {:5} MB of history, {:3} % of what is of no use still there",
            (written * 180) >> 20,
            now >> 20,
            left * 100 / dead
        );
        if left * 20 < dead {
            break;
        }
    }
    let begun = Instant::now();
    log.reclaim().unwrap();
    println!(
        "all compacted at once, which compresses it too, in {:.1?}: {} MB of history",
        begun.elapsed(),
        log.health().history_bytes >> 20
    );
}

/// After this many segments the result is printed as it is.
const ROUNDS_MAX: u64 = 24;

/// Evicts all files of a directory from the page cache.
fn evict(directory: &Path) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            evict(&path);
        } else {
            let file = std::fs::File::open(&path).unwrap();
            file.sync_all().unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
    }
}

fn lone(directory: &Path, records: u64) {
    let mut log = Log::open(directory, Options::default(), &mut |_| {}).unwrap();
    let bare = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(directory.join("bare"))
        .unwrap();
    rustix::fs::fallocate(&bare, rustix::fs::FallocateFlags::empty(), 0, 64 << 20).unwrap();
    bare.sync_all().unwrap();
    let bytes = [1; 180];
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    // In turn, so that both use the same disk.
    for i in 0..records {
        let begun = Instant::now();
        append(&mut log, 1);
        log.write().unwrap();
        log.sync().unwrap();
        log.publish();
        ours.push(begun.elapsed());
        let begun = Instant::now();
        bare.write_all_at(&bytes, i * bytes.len() as u64).unwrap();
        bare.sync_data().unwrap();
        theirs.push(begun.elapsed());
    }
    println!(
        "lone append {}\nbare write  {}",
        quantiles(&mut ours),
        quantiles(&mut theirs)
    );
}

fn reopen(directory: &Path, streams: u64) {
    let mut replayed = 0_u64;
    let (begun, cpu) = (Instant::now(), cpu());
    let log = Log::open(directory, Options::default(), &mut |_| replayed += 1).unwrap();
    let took = begun.elapsed();
    println!(
        "opened in {took:?}, {:.2} CPU-s, {replayed} replayed, {}",
        self::cpu() - cpu,
        memory()
    );
    let reader = log.reader();
    let upto = reader.published();
    // Waits for the work that the crash has left, which is not to be measured.
    while log.health().segments_waiting > 0 {
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut random = 99;
    for round in ["first", "again"] {
        let mut times = Vec::new();
        let mut seen = 0_u64;
        random = if round == "first" { 99 } else { random.min(99) };
        for _ in 0..2000 {
            let stream = next(&mut random) % streams + 1;
            let mut last = std::collections::VecDeque::<Sequence>::new();
            let begun = Instant::now();
            let mut each = |view: encke_log::FrameView<'_>| {
                assert_eq!(view.payload, PAYLOAD);
                last.push_back(view.sequence);
            };
            reader.read(stream, 0, upto, 100 * 172, &mut each).unwrap();
            times.push(begun.elapsed());
            seen += last.len() as u64;
        }
        println!(
            "  reading {round}: {seen} records, {}",
            quantiles(&mut times)
        );
    }
    let health = log.health();
    println!(
        "  {}, {} segments wait, history {} MB",
        memory(),
        health.segments_waiting,
        health.history_bytes >> 20
    );
}

fn quantiles(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let at = |q: f64| times[((times.len() - 1) as f64 * q) as usize];
    format!(
        "p50 {:?}, p99 {:?}, p99.9 {:?}, max {:?}",
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    )
}

fn next(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random >> 8
}

fn cpu() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = |name: &str| {
        status
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap()
            .split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    format!(
        "memory {} MB (at most {} MB)",
        line("VmRSS") >> 10,
        line("VmHWM") >> 10
    )
}
