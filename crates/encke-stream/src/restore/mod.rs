//! Restores the streams when a log is opened: from the last checkpoint and the records after it.
//!
//! `replay.rs` collects the state of the streams and builds the machine. `restored_stream.rs` is one stream meanwhile, `replica.rs` what
//! a node of a fleet has beside. `logs.rs` restores several logs at once, and
//! `own_streams.rs` finds the streams that retention leaves.

mod error;
mod found_counts;
pub(crate) mod logs;
mod own_streams;
mod replay;
mod replica;
mod restored_stream;

use std::path::Path;
use std::sync::Arc;

use encke_clock::SteadyTime;
use encke_log::{Disk, Log, Options};

pub use error::RestoreError;
pub use replay::OrderKind;
use replay::Restore;

use crate::stream::number::LogPlace;
use crate::{Limits, Machine, View};

/// Opens the log in `dir` and restores the streams that have changed since the last checkpoint. The others are loaded
/// when they are needed. Sliding lifetimes begin again `now`,
/// because no client could read while the server was stopped.
///
/// # Errors
/// See [`RestoreError`].
pub fn restore(
    dir: &Path,
    options: Options,
    limits: Limits,
    now: SteadyTime,
) -> Result<(Machine, Arc<View>, Log), RestoreError> {
    restore_at(
        dir,
        LogPlace::default(),
        OrderKind::Local,
        options,
        limits,
        now,
    )
}

/// [`restore`] for one of several logs.
pub(crate) fn restore_at(
    dir: &Path,
    place: LogPlace,
    order: OrderKind,
    options: Options,
    limits: Limits,
    now: SteadyTime,
) -> Result<(Machine, Arc<View>, Log), RestoreError> {
    let mut restore = Restore::new(place, order);
    let log = Log::open(dir, options, &mut |frame| restore.record(&frame))?;
    let (machine, view, log) = restore.finish(log, limits, now)?;
    view.set_log_bounds(log.reader());
    Ok((machine, view, log))
}

/// [`restore`] from a log on any disk, for simulations.
///
/// # Errors
/// See [`RestoreError`].
pub fn restore_on<D: Disk>(
    disk: D,
    options: Options,
    limits: Limits,
    now: SteadyTime,
) -> Result<(Machine, Arc<View>, Log<D>), RestoreError> {
    restore_on_at(
        disk,
        LogPlace::default(),
        OrderKind::Local,
        options,
        limits,
        now,
    )
}

/// [`restore_on`] for one of several logs.
pub(crate) fn restore_on_at<D: Disk>(
    disk: D,
    place: LogPlace,
    order: OrderKind,
    options: Options,
    limits: Limits,
    now: SteadyTime,
) -> Result<(Machine, Arc<View>, Log<D>), RestoreError> {
    let mut restore = Restore::new(place, order);
    let log = Log::open_on(disk, options, &mut |frame| restore.record(&frame))?;
    restore.finish(log, limits, now)
}
