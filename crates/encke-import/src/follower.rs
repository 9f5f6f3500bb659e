//! Follows one stream with long polls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::backoff::Backoff;
use crate::imported_stream::{CopyStage, ImportedStream};
use crate::progress::ImportProgress;

/// Follows one stream.
pub(crate) struct StreamFollower {
    pub(crate) streams: Arc<Vec<ImportedStream>>,
    pub(crate) at: usize,
    pub(crate) stopped: Arc<AtomicBool>,
    pub(crate) progress: Arc<ImportProgress>,
    pub(crate) patience: Duration,
}

impl StreamFollower {
    pub(crate) fn run(self) {
        let stream = &self.streams[self.at];
        let mut cursor = None;
        let mut backoff = Backoff::new(self.patience);
        while let Some(source) = stream.followed() {
            // Without the lock: the end of the import does not wait for this.
            let page = source.0.poll(&source.1, cursor.as_deref());
            let mut stage = stream.stage();
            if self.stopped.load(Ordering::SeqCst) {
                return;
            }
            let CopyStage::Current(copy) = &mut *stage else {
                break;
            };
            let taken = match page {
                Ok(page) => {
                    cursor.clone_from(&page.cursor);
                    copy.take(page)
                }
                Err(error) => Err(error),
            };
            let result = match taken {
                Ok(_) => {
                    backoff.reset();
                    Ok(())
                }
                Err(error) if error.is_transient() => {
                    drop(stage);
                    let waited = backoff.wait(error);
                    self.progress.retried();
                    stage = stream.stage();
                    if self.stopped.load(Ordering::SeqCst) {
                        return;
                    }
                    // A page that was cut is copied from where it was.
                    match (&mut *stage, waited) {
                        (CopyStage::Current(copy), Ok(())) if copy.position().behind > 0 => {
                            copy.catch_up()
                        }
                        (_, waited) => waited,
                    }
                }
                Err(error) => Err(error),
            };
            stage.settle(result, &self.progress);
        }
        self.progress.follow_ended();
    }
}
