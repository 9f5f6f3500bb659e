//! A stream while it is restored: what the checkpoint and the log say of it.

use std::sync::Arc;

use encke_clock::{Now, SteadyTime, WallTime};
use encke_log::{Sequence, StreamNo};

use crate::at_rest::load::LoadError;
use crate::stream::media::Media;
use crate::stream::record::{Fork, Lifetime};
use crate::stream::retention::{Buckets, Replayed};
use crate::stream::writers::Writers;
use crate::stream::{Facts, Life, Source, Stream};
use crate::{AckLevel, Limits, Offset, Retention};

/// The state of one stream. After a crash there may be hundreds of thousands, so what few streams have is boxed.
#[derive(Debug, Default)]
pub(super) struct RestoredStream {
    pub(super) no: StreamNo,
    /// How it was created. None if its first record is older than the replay.
    pub(super) origin: Option<Origin>,
    /// The position after its last data, if any was found.
    pub(super) tail: Option<Offset>,
    pub(super) closed: bool,
    pub(super) deleted: bool,
    /// The checkpoint has it.
    pub(super) stored: bool,
    /// Forks that have not ended.
    pub(super) forks: u32,
    pub(super) writers: Option<Box<Writers>>,
    pub(super) floor: Sequence,
    pub(super) touched: SteadyTime,
    /// The newest record that begins a sliding lifetime again.
    pub(super) replayed: WallTime,
    retained: Option<Box<RetainedRecords>>,
}

const _: () = assert!(size_of::<RestoredStream>() <= 128);

/// The records of a stream with a limited retention: those in the checkpoint, and those in the replay.
#[derive(Debug, Default)]
pub(super) struct RetainedRecords {
    pub(super) buckets: Buckets,
    pub(super) replayed: Replayed,
}

#[derive(Debug)]
pub(super) struct Origin {
    pub(super) name: Box<str>,
    pub(super) media: Arc<Media>,
    pub(super) ack: AckLevel,
    pub(super) special: Option<Box<RareSettings>>,
}

/// Settings that most streams do not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RareSettings {
    lifetime: Lifetime,
    retention: Retention,
    fork: Option<Fork>,
}

impl RareSettings {
    /// None if all settings are the default.
    pub(super) fn boxed(
        lifetime: Lifetime,
        retention: Retention,
        fork: Option<Fork>,
    ) -> Option<Box<Self>> {
        let special = RareSettings {
            lifetime,
            retention,
            fork,
        };
        (special != RareSettings::default()).then(|| Box::new(special))
    }
}

impl Origin {
    fn special(&self) -> RareSettings {
        self.special.as_deref().copied().unwrap_or_default()
    }

    pub(super) fn fork(&self) -> Option<Fork> {
        self.special().fork
    }

    /// Like [`Stream::is_timed`].
    pub(super) fn is_timed(&self) -> bool {
        let special = self.special();
        special.lifetime != Lifetime::Unbounded || special.retention.age_s.is_some()
    }
}

impl RestoredStream {
    /// Whether the stream has ended and no fork needs it.
    pub(super) fn is_over(&self) -> bool {
        self.deleted && self.forks == 0
    }

    pub(super) fn retained(&mut self) -> &mut RetainedRecords {
        self.retained.get_or_insert_default()
    }

    /// The restored stream. `find` returns its source. The start of the process at `started` counts as a read.
    pub(super) fn into_stream(
        self,
        limits: Limits,
        started: Option<SteadyTime>,
        find: impl FnOnce(StreamNo) -> Result<Option<Arc<Stream>>, LoadError>,
    ) -> Result<Option<Arc<Stream>>, LoadError> {
        let (Some(origin), Some(tail)) = (self.origin, self.tail) else {
            return Ok(None);
        };
        let RareSettings {
            lifetime,
            retention,
            fork,
        } = origin.special();
        let Origin {
            name, media, ack, ..
        } = origin;
        let source = match fork {
            None => None,
            Some(fork) => match find(fork.source)? {
                Some(stream) => Some(Box::new(Source {
                    stream,
                    at: fork.at,
                })),
                None => {
                    // A source outlives its forks, unless a repair with `--accept-loss` has removed it.
                    tracing::error!(stream = %name, "a fork is lost, because its source is lost");
                    return Ok(None);
                }
            },
        };
        let facts = Facts {
            tail,
            forks: self.forks,
            floor: self.floor,
            closed: self.closed,
            life: if self.deleted { Life::Kept } else { Life::Live },
        };
        let touched = match started {
            // On a node of a fleet a start is no read, and records have the time of the order, which is that of both clocks.
            None => self.touched.max(Now::at(self.replayed).steady),
            Some(started) => started,
        };
        let stream = Stream::new(
            self.no, name, media, lifetime, ack, retention, source, facts, touched,
        );
        let mut state = stream.state();
        if retention.is_limited() {
            let RetainedRecords {
                mut buckets,
                replayed,
            } = *self.retained.unwrap_or_default();
            replayed.add_to(&mut buckets, &retention);
            buckets.cut(facts.floor);
            state.buckets = Some(Box::new(buckets));
        }
        state.stored = self.stored.then_some(self.touched);
        if let Some(mut writers) = self.writers {
            writers.trim(limits.producers_max);
            state.writers = Some(writers);
        }
        drop(state);
        Ok(Some(Arc::new(stream)))
    }
}
