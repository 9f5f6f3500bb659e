//! Failed reads: the first one is noted, and repeated until it works.
//!
//! Meanwhile [`Health::reads_failing`](crate::Health::reads_failing) has the reason. Another read that works proves
//! nothing about the failed one, so only the same read clears the note. A thread of its own repeats it, and ends when
//! it works.

use crate::disk::Disk;
use crate::error::ReadError;
use crate::history::History;
use crate::history::state_range::StateRange;
use crate::ids::{Sequence, StreamNo};
use crate::read::backwards::{BackwardBounds, stream_back};
use crate::read::forwards::stream;
use crate::read::large::StreamRead;
use crate::read::order::order;
use crate::shared::Shared;
use encke_threads::spawn_restarting;
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The arguments of a read, to repeat it.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    Stream(StreamRead),
    Back {
        stream: StreamNo,
        after: Sequence,
        upto: Sequence,
        bounds: BackwardBounds,
    },
    Order {
        after: Sequence,
        upto: Sequence,
        bytes_max: usize,
    },
    State(Vec<u8>),
    States(Vec<u8>),
    Floor(StreamNo),
}

/// Notes a read that failed, and begins to repeat it if none is repeated yet.
pub(crate) fn watch<D: Disk, T>(
    shared: &Arc<Shared<D>>,
    result: Result<T, ReadError>,
    wanted: impl FnOnce() -> Wanted,
) -> Result<T, ReadError> {
    if let Err(error) = &result
        && D::BACKGROUND
        && is_disk_failure(shared, error)
        && shared.vitals.note_failed_read(error)
    {
        let (wanted, weak) = (wanted(), Arc::downgrade(shared));
        let thread = spawn_restarting("encke-reread", move || repeat(&weak, &wanted));
        if let Err(error) = thread {
            tracing::error!(%error, "a read that failed can't be repeated");
            shared.vitals.clear_failed_read();
        }
    }
    result
}

/// Whether an error means that the disk could not be read.
fn is_disk_failure<D: Disk>(shared: &Shared<D>, error: &ReadError) -> bool {
    match error {
        ReadError::Io { .. } => true,
        // A closed log has a closed history, which is no failure.
        ReadError::History { io: true, .. } => {
            let is_open = |history: &History| history.with(|_| Ok(())).is_ok();
            shared.history.as_ref().is_some_and(is_open) || shared.vitals.history_failed().is_some()
        }
        // A single damaged record must not make the whole server unready.
        ReadError::History { io: false, .. }
        | ReadError::Damaged { .. }
        | ReadError::BelowFloor { .. }
        | ReadError::NeverWritten { .. }
        | ReadError::NoLongerKept { .. } => false,
    }
}

/// Whether a read works now. A read of records that were removed meanwhile counts as working.
fn works<D: Disk>(shared: &Shared<D>, wanted: &Wanted) -> bool {
    let read =
        match *wanted {
            Wanted::Stream(ref wanted) => stream(shared, wanted, &mut |_| {}).map(|_| ()),
            Wanted::Back {
                stream,
                after,
                upto,
                bounds,
            } => stream_back(shared, stream, (after, upto), bounds, &mut |_| {}).map(|_| ()),
            Wanted::Order {
                after,
                upto,
                bytes_max,
            } => order(shared, after, upto, bytes_max, &mut |_, _| {}, &mut |_| {}).map(|_| ()),
            Wanted::State(ref key) => shared.read_state(key).map(|_| ()),
            Wanted::States(ref prefix) => shared.read_states(
                StateRange::of(prefix),
                &mut |_, _| ControlFlow::Continue(()),
            ),
            Wanted::Floor(stream) => shared.read_floor(stream).map(|_| ()),
        };
    !matches!(
        read,
        Err(ReadError::Io { .. } | ReadError::History { io: true, .. })
    )
}

/// Repeats a read until it works or the log and its readers are dropped.
fn repeat<D: Disk>(shared: &Weak<Shared<D>>, wanted: &Wanted) {
    loop {
        std::thread::sleep(REPEAT_EVERY);
        let Some(shared) = shared.upgrade() else {
            return;
        };
        if works(&shared, wanted) {
            shared.vitals.clear_failed_read();
            return;
        }
    }
}

/// How long to wait before a read that failed is repeated.
const REPEAT_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::super::large::StreamRead;
    use super::{Wanted, watch};
    use crate::{Frame, Log, Options, ReadError};
    use std::fs::OpenOptions;
    use std::os::unix::fs::FileExt;
    use std::time::{Duration, Instant};

    use encke_clock::WallTime;

    #[test]
    fn a_read_that_fails_is_noted_until_it_works() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = Log::open(directory.path(), Options::default(), &mut |_| {}).unwrap();
        for stream in [1, 2] {
            log.append(&Frame {
                kind: 1,
                time: WallTime::from_ms(1),
                streams: &[stream],
                payload: &[&[b'x'; 10_000]],
            })
            .unwrap();
        }
        log.write().unwrap();
        log.sync().unwrap();
        log.publish();
        let names = std::fs::read_dir(directory.path()).unwrap();
        let mut paths = names.map(|entry| entry.unwrap().path());
        let segment = paths.find(|path| path.extension().is_some_and(|of| of == "segment"));
        let file = OpenOptions::new()
            .write(true)
            .read(true)
            .open(segment.unwrap());
        let file = file.unwrap();
        let reader = log.reader();
        let read = |stream| reader.read(stream, 0, u64::MAX, 100, &mut |_| {});
        let failing = || reader.health().reads_failing;
        assert!(read(1).is_ok() && read(2).is_ok());
        assert_eq!(failing(), None);

        // A damaged record is an error, and the disk can be read.
        file.write_all_at(b"y", 5_000).unwrap();
        assert!(read(1).is_err());
        assert_eq!(failing(), None);
        file.write_all_at(b"x", 5_000).unwrap();

        // A disk that can't be read, once: the noted read is repeated.
        let unreadable = ReadError::Io {
            file: directory.path().to_owned(),
            position: 0,
            source: std::io::ErrorKind::Other.into(),
        };
        let wanted = || {
            Wanted::Stream(StreamRead {
                verified_since: None,
                stream: 1,
                after: 0,
                upto: u64::MAX,
                bytes_max: 100,
                large_min: None,
                large_together: 0,
            })
        };
        let failed: Result<(), ReadError> = watch(reader.shared(), Err(unreadable), wanted);
        assert!(failed.is_err() && failing().is_some());
        // A read of another stream does not clear it.
        assert!(read(2).is_ok());
        let begun = Instant::now();
        while failing().is_some() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is repeated");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(read(1).is_ok());
    }
}
