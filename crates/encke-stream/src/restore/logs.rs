//! Several logs as one: each is restored by itself, then they are joined by the names of their streams.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use encke_clock::SteadyTime;
use encke_log::{Disk, Files, LOGS_MAX, Log, Options};

use crate::restore::{OrderKind, RestoreError, restore_at, restore_on_at};
use crate::stream::number::LogPlace;
use crate::{Limits, Machine, View, Views};

/// The streams of all logs, and the machines that decide about them.
pub struct Logs<D: Disk = Files> {
    /// A machine and its log, by the logs' indices.
    pub logs: Vec<(Machine, Log<D>)>,
    /// The streams by name.
    pub views: Arc<Views>,
}

type Restored<D> = (Machine, Arc<View>, Log<D>);

/// Restores the logs in these directories at the same time, like [`restore`](crate::restore()). There is at least one and
/// at most [`LOGS_MAX`]. `order` says whether this is a node of a fleet. The order of the directories is that of the logs' indices and must never change.
///
/// # Errors
/// See [`RestoreError`]. The error is that of the first log that cannot be restored.
pub fn restore_all(
    dirs: &[PathBuf],
    order: OrderKind,
    options: &Options,
    limits: Limits,
    now: SteadyTime,
) -> Result<Logs, RestoreError> {
    let restore = |dir: &Path, place| restore_at(dir, place, order, options.clone(), limits, now);
    let logs = dirs.len();
    let restored = std::thread::scope(|scope| {
        let others = dirs.iter().enumerate().skip(1).map(|(log, dir)| {
            let place = LogPlace { log, logs };
            let thread = std::thread::Builder::new().name(format!("restore-{log}"));
            let restoring = thread.spawn_scoped(scope, move || restore(dir, place));
            (dir, place, restoring)
        });
        let others: Vec<_> = others.collect();
        let first = dirs
            .first()
            .map(|dir| restore(dir, LogPlace { log: 0, logs }));
        let others = others
            .into_iter()
            .map(|(dir, place, restoring)| match restoring {
                Ok(restoring) => match restoring.join() {
                    Ok(restored) => restored,
                    Err(panic) => std::panic::resume_unwind(panic),
                },
                // The system refuses a thread, so this one restores the log.
                Err(_) => restore(dir, place),
            });
        first
            .into_iter()
            .chain(others)
            .collect::<Result<Vec<_>, _>>()
    });
    Ok(Logs::new(restored?, order))
}

/// Like [`restore_all`], on any disks, for simulations.
///
/// # Errors
/// See [`RestoreError`].
pub fn restore_all_on<D: Disk>(
    disks: Vec<D>,
    order: OrderKind,
    options: &Options,
    limits: Limits,
    now: SteadyTime,
) -> Result<Logs<D>, RestoreError> {
    let logs = disks.len();
    let disks = disks.into_iter().enumerate();
    let restored = disks.map(|(log, disk)| {
        restore_on_at(
            disk,
            LogPlace { log, logs },
            order,
            options.clone(),
            limits,
            now,
        )
    });
    Ok(Logs::new(restored.collect::<Result<_, _>>()?, order))
}

impl<D: Disk> Logs<D> {
    /// A single log.
    pub fn one((machine, view, log): Restored<D>) -> Self {
        Logs {
            logs: vec![(machine, log)],
            views: Views::one(view),
        }
    }

    fn new(restored: Vec<Restored<D>>, order: OrderKind) -> Self {
        debug_assert!(
            restored.len() <= LOGS_MAX,
            "stream numbers have no room for more logs"
        );
        let mut logs = Vec::with_capacity(restored.len());
        let mut views = Vec::with_capacity(restored.len());
        for (machine, view, log) in restored {
            logs.push((machine, log));
            views.push(view);
        }
        let views = Views::new(views);
        // Nodes of a fleet decide each log by itself: what another log has at that moment may differ.
        let joined = order == OrderKind::Local;
        for (machine, _) in logs.iter_mut().filter(|_| joined) {
            machine.join(Arc::clone(&views));
        }
        Logs { logs, views }
    }
}
