//! A stream of an import, which several threads may come to.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::copy::StreamCopy;
use crate::copy_failure::CopyFailure;
use crate::progress::ImportProgress;
use crate::protocol_stream::ProtocolStream;
use crate::stream_list::StreamTask;

/// A stream of an import.
#[derive(Debug)]
pub(crate) struct ImportedStream {
    pub(crate) task: StreamTask,
    copy: Mutex<CopyStage>,
}

/// How far a stream is.
#[derive(Debug, Default)]
pub(crate) enum CopyStage {
    #[default]
    Waiting,
    /// It has reached the end that the source had.
    Current(Box<StreamCopy>),
    /// It could not be copied to its end.
    Failed(Option<Box<StreamCopy>>, CopyFailure),
}

impl ImportedStream {
    pub(crate) fn new(task: StreamTask) -> Self {
        ImportedStream {
            task,
            copy: Mutex::default(),
        }
    }

    pub(crate) fn stage(&self) -> MutexGuard<'_, CopyStage> {
        locked(&self.copy)
    }

    /// Whether there is something to follow.
    pub(crate) fn is_followed(&self) -> bool {
        self.followed().is_some()
    }

    /// The source of a stream that is open, and where to go on.
    pub(crate) fn followed(&self) -> Option<(ProtocolStream, String)> {
        match &*self.stage() {
            CopyStage::Current(copy) if !copy.is_complete() => {
                Some((copy.source().clone(), copy.position().source.clone()))
            }
            _ => None,
        }
    }
}

impl CopyStage {
    /// Notes a failure.
    pub(crate) fn settle(&mut self, result: Result<(), CopyFailure>, progress: &ImportProgress) {
        let Err(error) = result else { return };
        progress.became_failed();
        *self = match std::mem::take(self) {
            CopyStage::Current(copy) => CopyStage::Failed(Some(copy), error),
            CopyStage::Failed(copy, first) => CopyStage::Failed(copy, first),
            CopyStage::Waiting => CopyStage::Failed(None, error),
        };
    }
}

/// A thread that panicked has left a position that is before or behind an append, which the next run finds.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
