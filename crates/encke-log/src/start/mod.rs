//! Opens a log: compares the directory with the superblock, recovers the segments, opens history, and starts the background
//! threads.
//!
//! `layout.rs` finds the directories of several logs, `log_directory.rs` reads what a directory holds, `recover.rs` recovers its
//! segments.

pub(crate) mod layout;
pub(crate) mod log_directory;
pub(crate) mod recover;

use crate::background::seal::Sealer;
use crate::copies::snapshot;
use crate::disk::Disk;
use crate::disk::files::{FileAccess, Files};
use crate::error::OpenError;
use crate::health::Vitals;
use crate::history::error::HistoryError;
use crate::history::floors::Floors;
use crate::history::state::States;
use crate::history::tree::Tree;
use crate::history::verify::fingerprints::Fingerprints;
use crate::history::verify::private_copy::{HistoryCopy, private_directory};
use crate::ids::Sequence;
use crate::options::{Options, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use crate::read::large::VerifiedRecords;
use crate::read::large_places::LargePlaces;
use crate::repair::salvage;
use crate::retention::{ExemptStreams, RetentionFloor};
use crate::segments::frame::FrameView;
use crate::segments::segment::Segment;
use crate::shared::Shared;
use crate::start::log_directory::LogDirectory;
use crate::start::recover::{FoundSegments, Recovered};
use crate::superblock::Superblock;
use crate::superblock::statement::{LastSegment, Marks, Statement};
use crate::superblock::updater::SuperblockUpdater;
use crate::write::prepare::Preparer;
use parking_lot::{Mutex, RwLock};
use std::path::Path;
use std::sync::Arc;

/// The parts of an opened log.
pub(crate) struct Started<D: Disk> {
    pub(crate) disk: D,
    pub(crate) shared: Arc<Shared<D>>,
    pub(crate) preparer: Preparer<D>,
    pub(crate) sealer: Sealer<D>,
    pub(crate) superblock_updater: SuperblockUpdater<D>,
    pub(crate) log_id: u64,
    /// The segment that is written to, and how many of its bytes are in use.
    pub(crate) active: Arc<Segment<D::File>>,
    pub(crate) used: u64,
    /// The sequence of the next record; all before it are durable.
    pub(crate) next: Sequence,
    /// Frames state that the log is durable up to this record.
    pub(crate) confirmed_upto: Sequence,
    pub(crate) sealed_since_checkpoint: bool,
}

/// Opens the log on a disk, or makes one there.
pub(crate) fn start<D: Disk>(
    disk: D,
    options: &Options,
    replay: &mut dyn FnMut(FrameView<'_>),
) -> Result<Started<D>, OpenError> {
    if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&options.segment_bytes) {
        return Err(OpenError::SegmentBytes {
            bytes: options.segment_bytes,
            min: SEGMENT_BYTES_MIN,
            max: SEGMENT_BYTES_MAX,
        });
    }
    let failed = |action| {
        let disk = &disk;
        move |e| OpenError::io(&disk.path(""), action, e)
    };
    // Nothing is changed before everything is known to be whole.
    let AcceptedDirectory {
        mut directory,
        fingerprints,
        marks,
        found,
    } = examine(&disk, replay)?;
    let stated = directory.statement.as_ref();
    let log_id = match stated {
        Some(stated) => stated.log_id,
        None => log_directory::salt(&disk)?,
    };
    let preparer = Preparer::start(disk.clone(), options.segment_bytes, &directory.names)
        .map_err(failed("prepare segments in"))?;
    // A history of a version without superblocks is stated together with its marks. A new history is made only after
    // the superblock, so that a history without a superblock is never a new one.
    let is_made = stated.is_some() || directory.history.is_none();
    let mut opened = match is_made {
        true => None,
        false => directory.open_history(&disk, log_id, options)?,
    };
    if let Some(opened) = &mut opened {
        opened.identify(log_id)?;
    }
    let stated_history = match &opened {
        Some(opened) => Some(opened.stated.clone()),
        None => stated.and_then(|stated| stated.history.clone()),
    };
    let statement = Statement {
        log_id,
        identified_from: stated.map_or(found.next_number(), |stated| stated.identified_from),
        last: found.last(options.segment_bytes),
        durable_upto: stated.map_or(0, |stated| stated.durable_upto),
        history: stated_history,
    };
    let superblock = Superblock::write(&disk, directory.superblocks.take(), statement)?;
    if is_made {
        opened = directory.open_history(&disk, log_id, options)?;
        if let Some(opened) = &mut opened {
            opened.history.set_fingerprints(fingerprints);
            opened.identify(log_id)?;
        }
    }
    let (history, stated_history) = opened.map(|opened| (opened.history, opened.stated)).unzip();
    superblock
        .change(|statement| statement.history = stated_history)
        .map_err(failed("write the superblock in"))?;
    if let Some(path) = disk.history() {
        // The mark of a repair whose outcome is stated now.
        salvage::finish(&path).map_err(failed("finish a repair in"))?;
        snapshot::remove_left(&path).map_err(failed("remove the links of a snapshot in"))?;
    }
    if let Some(history) = &history {
        let formatted = history.set_format();
        formatted.map_err(|e| e.on_open(history.path(), "write to"))?;
    }
    let Recovered {
        active,
        used,
        active_bytes,
        next,
        confirmed_upto,
        index,
    } = recover::recover(&disk, &preparer, log_id, found)?;
    let last = LastSegment {
        number: active.number,
        first: active.first,
        bytes: active_bytes,
    };
    superblock
        .change(|statement| {
            statement.last = Some(last);
            statement.note_durable(next - 1);
        })
        .map_err(failed("write the superblock in"))?;
    let stated_history = superblock.statement().history.unwrap_or_default();
    let superblock = Arc::new(superblock);
    let superblock_updater = SuperblockUpdater::start(superblock.clone())
        .map_err(failed("state the end of the log in"))?;
    let vitals = Vitals::default();
    let done = index.done.iter().map(|done| done.segment.bytes);
    let waiting = index.segments.iter().map(|segment| segment.segment.bytes);
    vitals.add_bytes(done.chain(waiting).sum());
    let sealed_since_checkpoint = active.first > marks.checkpoint_upto + 1;
    let sealed: Vec<_> = index
        .segments
        .iter()
        .take(index.segments.len() - 1)
        .map(|sealed| (sealed.segment.clone(), sealed.end()))
        .collect();
    let shared = Arc::new(Shared {
        directory: disk.path(""),
        index: RwLock::new(index),
        vitals,
        states: States::default(),
        floors: Floors::default(),
        retention_floor: RetentionFloor::new(stated_history.retention_floor),
        exempt: ExemptStreams::default(),
        verified: VerifiedRecords::default(),
        large_places: LargePlaces::default(),
        history,
        superblock,
        stating: Mutex::default(),
        background: Mutex::default(),
    });
    shared.measure_history();
    let sealer =
        Sealer::start(disk.clone(), shared.clone(), options).map_err(failed("seal segments in"))?;
    // Before the first read: records that were removed must not become visible again.
    if let Some(history) = &shared.history {
        let floor = sealer.due_floor(history);
        let floor = floor.map_err(|e| e.on_open(history.path(), "read"))?;
        shared
            .state_retention_floor(floor)
            .map_err(failed("write the superblock in"))?;
    }
    for (segment, end) in sealed {
        sealer.segment(segment, end);
    }
    Ok(Started {
        disk,
        shared,
        preparer,
        sealer,
        superblock_updater,
        log_id,
        active,
        used,
        next,
        confirmed_upto,
        sealed_since_checkpoint,
    })
}

/// Checks whether a log would be refused, and changes nothing. With several logs all are checked before the first is
/// opened, so that a refusal leaves all of them unchanged. A directory without a log is accepted.
///
/// # Errors
/// As [`Log::open`](crate::Log::open).
pub fn preflight(directory: &Path) -> Result<(), OpenError> {
    if !directory.try_exists().unwrap_or(true) {
        return Ok(());
    }
    let disk = match Files::lock_existing(directory, FileAccess::Read) {
        Err(OpenError::NoLog { .. }) => return Ok(()),
        locked => locked?,
    };
    examine(&disk, &mut |_| {}).map(|_| ())
}

/// A directory that a start accepts, as far as that is known before the storage engine opens history.
struct AcceptedDirectory<D: Disk> {
    directory: LogDirectory<D>,
    fingerprints: Fingerprints,
    marks: Marks,
    found: FoundSegments<D::File>,
}

/// Compares everything with the superblock, and changes nothing. `replay` gets every record after the checkpoint.
fn examine<D: Disk>(
    disk: &D,
    replay: &mut dyn FnMut(FrameView<'_>),
) -> Result<AcceptedDirectory<D>, OpenError> {
    let directory = LogDirectory::of(disk)?;
    let (fingerprints, marks) = directory.inspect(disk)?;
    let stated = directory.statement.as_ref();
    let found = recover::find(disk, &directory.names, stated, marks, replay)?;
    Ok(AcceptedDirectory {
        directory,
        fingerprints,
        marks,
        found,
    })
}

/// Why a start would refuse a directory: all that a start asks of it, with a private copy of history in place of the original.
/// Nothing is changed.
///
/// # Errors
/// As [`Log::open`](crate::Log::open), or there is no room for the copy.
pub(crate) fn rehearse<D: Disk>(disk: &D) -> Result<(), OpenError> {
    let directory = examine(disk, &mut |_| {})?.directory;
    let (Some(path), Some((_, stated))) = (disk.history(), directory.stated_history()) else {
        return Ok(());
    };
    let wrong = |error: HistoryError| error.on_open(&path, "open");
    let copy = HistoryCopy::as_at_start(private_directory()?, &path, stated.times());
    let copy = copy.map_err(wrong)?;
    log_directory::check_keyspaces(&copy.history, stated).map_err(wrong)?;
    let format = copy.history.with(Tree::has_format);
    format.map(|_| ()).map_err(wrong)
}
