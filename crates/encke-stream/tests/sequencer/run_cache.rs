//! Runs of records that stay in memory for several readers: which are kept, how many, and that nothing removed is given.

use encke_log::simulated::SimulatedDisk;
use encke_stream::{
    AckLevel, Fetch, LargeRecords, Offset, Outcome, PartRead, Piece, Retention, RunCache,
    RunCacheBounds,
};

use crate::bench::{Bench, append, create, create_retaining, truncate};
use crate::{TEXT, is_done, start};

const RECORDS: usize = 100;
const RECORD_BYTES: usize = 32;
const PAGE_BYTES: usize = 1000;

struct Kept {
    bench: Bench<SimulatedDisk>,
    runs: RunCache<SimulatedDisk>,
}

impl Kept {
    fn new(bytes_max: usize) -> Kept {
        let bench = start(&SimulatedDisk::new(5), AckLevel::Synced);
        let bounds = RunCacheBounds {
            bytes_max,
            records_min: 2,
            data_min: 1 << 10,
        };
        let runs = RunCache::new([bench.reader.clone()].into(), bounds);
        Kept { bench, runs }
    }

    fn fill(&mut self, name: &str) {
        assert!(is_done(&self.bench.round(vec![create(name, TEXT)])[0]));
        self.fill_more(name);
    }

    fn fill_more(&mut self, name: &str) {
        let records = (0..RECORDS).map(|number| append(name, format!("{number:032}").as_bytes()));
        assert!(self.bench.round(records.collect()).iter().all(is_done));
    }

    /// Fills a stream and reads it twice, so that its runs are kept.
    fn fill_and_keep(&mut self, name: &str) {
        self.fill(name);
        self.read(name);
        self.read(name);
    }

    fn fetch(&self, name: &str, from: Offset) -> Fetch {
        let stream = self.bench.stream(name);
        Fetch::new(&stream, from, stream.facts().tail, PAGE_BYTES)
    }

    /// Reads a stream whole, in pages. Returns how many of them came from memory.
    fn read(&self, name: &str) -> u64 {
        let before = self.runs.hits();
        let (mut from, mut data) = (Offset::START, Vec::new());
        loop {
            let piece = self.runs.read(&self.fetch(name, from)).unwrap();
            data.extend(piece.items().flat_map(|item| item.data.to_vec()));
            from = piece.end;
            if !piece.more {
                break;
            }
        }
        assert_eq!(data, self.bench.read(name).0, "{name}");
        self.runs.hits() - before
    }
}

#[test]
fn the_second_read_keeps_a_stream_and_the_third_one_finds_it() {
    let mut kept = Kept::new(1 << 20);
    kept.fill("a");
    assert_eq!((kept.read("a"), kept.runs.bytes()), (0, 0));
    let fetch = kept.fetch("a", Offset::START);
    assert!(kept.runs.kept(&fetch).is_none());
    assert_eq!(kept.read("a"), 0);
    assert!(kept.runs.bytes() > RECORDS * RECORD_BYTES);
    assert!(kept.read("a") > 3);
    let first = kept.runs.kept(&fetch).unwrap();
    let of_log = Piece::read(&kept.bench.reader, &fetch).unwrap();
    assert!(first.items().eq(of_log.items().take(first.items().count())));
    // Records that are appended later are read from the log, behind the runs.
    assert!(is_done(&kept.bench.round(vec![append("a", b"more")])[0]));
    assert!(kept.read("a") > 3);
    kept.bench.stop().unwrap();
}

#[test]
fn the_runs_of_many_streams_take_at_most_their_bound() {
    let mut kept = Kept::new(3 * RECORDS * (RECORD_BYTES + 100));
    let bound = 3 * RECORDS * (RECORD_BYTES + 100);
    let names: Vec<_> = (0..8).map(|number| format!("s{number}")).collect();
    let mut most = 0;
    for name in &names {
        kept.fill_and_keep(name);
        most = most.max(kept.runs.bytes());
        assert!(kept.runs.bytes() <= bound);
        // The runs of the last stream have not made room for each other.
        assert!(kept.read(name) > 3, "{name}");
    }
    assert!(most > bound / 2);
    assert_eq!(kept.read("s0"), 0, "it made room for the others");
    kept.bench.stop().unwrap();
}

#[test]
fn a_stream_that_is_too_large_pushes_nothing_out_when_one_reader_repeats_it() {
    let mut kept = Kept::new(2 * RECORDS * (RECORD_BYTES + 40));
    kept.fill_and_keep("small");
    kept.fill("large");
    for _ in 0..6 {
        kept.fill_more("large");
    }
    let before = kept.runs.bytes();
    for _ in 0..4 {
        assert_eq!(kept.read("large"), 0);
        assert!(kept.runs.bytes() < before + before / 2);
    }
    assert!(kept.read("small") > 3);
    kept.bench.stop().unwrap();
}

#[test]
fn a_run_that_is_read_again_and_again_outlives_others() {
    let mut kept = Kept::new(8 * RECORDS * (RECORD_BYTES + 40));
    kept.fill_and_keep("used");
    for number in 0..24 {
        let name = format!("s{number}");
        kept.fill_and_keep(&name);
        assert!(kept.read("used") > 3, "{name}");
    }
    kept.bench.stop().unwrap();
}

#[test]
fn a_run_of_a_large_page_replaces_those_of_small_ones() {
    let mut kept = Kept::new(1 << 20);
    kept.fill("a");
    let page = |kept: &Kept, bytes_max: usize| {
        let fetch = Fetch {
            bytes_max,
            ..kept.fetch("a", Offset::START)
        };
        kept.runs.read(&fetch).unwrap().items().count()
    };
    for _ in 0..2 {
        page(&kept, PAGE_BYTES / 5);
    }
    let small = kept.runs.bytes();
    assert!(small > 0);
    assert!(page(&kept, 4 * PAGE_BYTES) > 40);
    let large = kept.runs.bytes();
    assert_eq!(kept.runs.hits(), 0);
    for bytes_max in [PAGE_BYTES / 5, PAGE_BYTES, 4 * PAGE_BYTES] {
        page(&kept, bytes_max);
    }
    assert_eq!((kept.runs.hits(), kept.runs.bytes()), (3, large));
    kept.bench.stop().unwrap();
}

#[test]
fn runs_that_end_at_the_same_record_are_counted_once() {
    let mut kept = Kept::new(1 << 20);
    kept.fill("a");
    // Behind them is a record that is read in parts, so that all reads of the records before it end there.
    let large = vec![b'x'; 3000];
    assert!(is_done(&kept.bench.round(vec![append("a", &large)])[0]));
    assert!(is_done(&kept.bench.round(vec![append("a", b"end")])[0]));
    let stream = kept.bench.stream("a");
    let mut most = 0;
    for turn in 0..20 {
        for number in [0, 10, 20] {
            let first = Piece::read(&kept.bench.reader, &kept.fetch("a", Offset::START)).unwrap();
            let from = match number {
                0 => Offset::START,
                number => first.items().nth(number / 2).unwrap().end,
            };
            let mut fetch = Fetch::new(&stream, from, stream.facts().tail, 1 << 20);
            fetch.large = LargeRecords::Parts(PartRead {
                large_bytes: 2000,
                ..PartRead::behind(0)
            });
            let piece = kept.runs.read(&fetch).unwrap();
            assert!(piece.more && piece.large.is_empty());
        }
        match turn {
            5 => most = kept.runs.bytes(),
            6.. => assert_eq!(kept.runs.bytes(), most),
            _ => {}
        }
    }
    assert!(most > 0 && most < 2 * RECORDS * (RECORD_BYTES + 100));
    kept.bench.stop().unwrap();
}

#[test]
fn what_is_removed_is_not_given_from_memory() {
    let mut kept = Kept::new(1 << 20);
    kept.fill("a");
    kept.fill("b");
    for name in ["a", "a", "b", "b"] {
        kept.read(name);
    }
    let [a, b] = ["a", "b"].map(|name| kept.fetch(name, Offset::START));
    assert!(kept.runs.kept(&a).is_some() && kept.runs.kept(&b).is_some());
    let first = kept.runs.kept(&a).unwrap().end;
    let cut = kept.bench.round(vec![truncate("a", Some(first))]);
    assert!(matches!(cut[0], Outcome::Truncated { .. }), "{cut:?}");
    // The log is asked about the stream again, in a thread that may wait for it.
    assert!(kept.runs.kept(&a).is_none());
    for left in [kept.runs.read(&a).unwrap(), kept.runs.read(&a).unwrap()] {
        assert!(left.items().next().unwrap().end > first);
    }
    assert!(kept.runs.kept(&b).is_some(), "nothing of b was removed");
    kept.bench.stop().unwrap();
}

#[test]
fn records_below_the_retention_of_a_stream_are_not_given_from_memory() {
    let mut kept = Kept::new(1 << 20);
    let retention = Retention {
        records: Some(RECORDS as u64),
        ..Retention::default()
    };
    kept.bench.round(vec![create_retaining("a", retention)]);
    let appended = |number: usize| append("a", format!("{number:032}").as_bytes());
    kept.bench.round((0..RECORDS).map(appended).collect());
    let old = kept.fetch("a", Offset::START);
    for _ in 0..3 {
        kept.read("a");
    }
    assert!(kept.runs.kept(&old).is_some());
    kept.bench
        .round((RECORDS..2 * RECORDS).map(appended).collect());
    let floor = kept.bench.stream("a").facts().floor;
    assert!(floor > 0);
    assert!(kept.runs.kept(&old).is_none());
    let left = kept.runs.read(&old).unwrap();
    let first = left.items().next().unwrap().end;
    assert!(first.sequence > floor);
    kept.bench.stop().unwrap();
}
