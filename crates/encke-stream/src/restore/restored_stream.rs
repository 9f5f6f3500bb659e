//! A stream while it is restored: what the checkpoint and the log say of it.

use std::sync::Arc;

use encke_clock::{Now, SteadyTime, WallTime};
use encke_log::{Sequence, StreamNo};

use crate::at_rest::load::LoadError;
use crate::stream::account::{Account, AccountId, Accounts, StorageUse};
use crate::stream::count::{ByteCount, MessageCount};
use crate::stream::media::{Media, MediaKind};
use crate::stream::record::{EndReason, Extras, Fork, Lifetime};
use crate::stream::retention::{Buckets, Replayed};
use crate::stream::writers::Writers;
use crate::stream::{Facts, Life, Metadata, Source, Stream, StreamSettings};
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
    counts: PossibleCounts,
    /// Forks that have not ended.
    pub(super) forks: u32,
    pub(super) writers: Option<Box<Writers>>,
    pub(super) floor: Sequence,
    pub(super) touched: SteadyTime,
    /// The newest append in the log.
    pub(super) appended: WallTime,
    /// The newest record that begins a sliding lifetime again.
    pub(super) replayed: WallTime,
    extras: Option<Box<RestoredExtras>>,
}

/// What few streams have, and can change.
#[derive(Debug, Default)]
pub(super) struct RestoredExtras {
    retained: RetainedRecords,
    pub(super) metadata: Option<Box<str>>,
    pub(super) end: Option<EndReason>,
    pub(super) stop_asked: bool,
    /// When something was appended last, as the checkpoint has it.
    pub(super) appended: SteadyTime,
    /// What its account was charged with, as the checkpoint has it.
    pub(super) charged: StorageUse,
}

/// What was appended, as far as it is known before the media of the stream is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PossibleCounts {
    /// A count of messages if the stream is one of JSON, and if it is not: its media may be known last.
    messages: [MessageCount; 2],
    bytes: ByteCount,
}

/// What a record appends, behind the messages that a creation has from its source.
pub(super) fn counts_of(units: u32, data: &[u8], inherited: MessageCount) -> PossibleCounts {
    PossibleCounts {
        messages: [
            inherited.with(units, MediaKind::Json),
            inherited.with(units, MediaKind::Binary),
        ],
        bytes: ByteCount::of(data),
    }
}

impl PossibleCounts {
    /// Not known.
    pub(super) const UNKNOWN: PossibleCounts =
        PossibleCounts::stored(MessageCount::UNKNOWN, ByteCount::UNKNOWN);

    /// Those of a checkpoint, which knows the media.
    pub(super) const fn stored(messages: MessageCount, bytes: ByteCount) -> Self {
        PossibleCounts {
            messages: [messages; 2],
            bytes,
        }
    }
}

impl RestoredExtras {
    /// Applies those of an append.
    pub(super) fn apply(&mut self, extras: &Extras<'_>) {
        if let Some(metadata) = extras.metadata {
            self.metadata = Some(metadata.into());
        }
        self.end = self.end.or(extras.end);
        self.stop_asked |= extras.asks_stop;
    }
}

const _: () = assert!(size_of::<RestoredStream>() <= 152);

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
    pub(super) special: Option<Box<UncommonSettings>>,
}

/// Settings that most streams do not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UncommonSettings {
    pub(super) lifetime: Lifetime,
    pub(super) retention: Retention,
    pub(super) fork: Option<Fork>,
    pub(super) owner: Option<Box<str>>,
    pub(super) producer_timeout_s: Option<u32>,
    /// Who pays for it.
    pub(super) account: Option<AccountId>,
}

impl UncommonSettings {
    /// None if all settings are the default.
    pub(super) fn boxed(self) -> Option<Box<Self>> {
        (self != UncommonSettings::default()).then(|| Box::new(self))
    }
}

impl Origin {
    pub(super) fn fork(&self) -> Option<Fork> {
        self.special.as_ref()?.fork
    }

    /// Like [`Stream::is_timed`].
    pub(super) fn is_timed(&self) -> bool {
        self.special.as_ref().is_some_and(|special| {
            special.lifetime != Lifetime::Unbounded
                || special.retention.age_s.is_some()
                || special.producer_timeout_s.is_some()
        })
    }
}

impl RestoredStream {
    /// Whether the stream has ended and no fork needs it.
    pub(super) fn is_over(&self) -> bool {
        self.deleted && self.forks == 0
    }

    /// Charges its account no more with what the checkpoint has charged: it is over.
    pub(super) fn refund(&self, accounts: &Accounts) -> Option<Arc<Account>> {
        let special = self.origin.as_ref()?.special.as_ref()?;
        let charged = self.extras.as_ref()?.charged;
        let account = accounts.enter(special.account?);
        let is_changed = account.charge(charged, StorageUse::default());
        is_changed.then_some(account)
    }

    /// Counts what was found.
    pub(super) fn count(&mut self, found: PossibleCounts) {
        for (count, found) in self.counts.messages.iter_mut().zip(found.messages) {
            *count = count.and(found);
        }
        self.counts.bytes = self.counts.bytes.and(found.bytes);
    }

    /// Counts no more what was counted twice.
    pub(super) fn uncount(&mut self, twice: PossibleCounts) {
        for (count, twice) in self.counts.messages.iter_mut().zip(twice.messages) {
            *count = count.without(twice);
        }
        self.counts.bytes = self.counts.bytes.without(twice.bytes);
    }

    pub(super) fn retained(&mut self) -> &mut RetainedRecords {
        &mut self.extras().retained
    }

    pub(super) fn extras(&mut self) -> &mut RestoredExtras {
        self.extras.get_or_insert_default()
    }

    /// The restored stream. `find` returns its source. The start of the process at `started` counts as a read.
    pub(super) fn into_stream(
        self,
        limits: Limits,
        started: Option<SteadyTime>,
        (accounts, changed): (&Accounts, &mut Vec<Arc<Account>>),
        find: impl FnOnce(StreamNo) -> Result<Option<Arc<Stream>>, LoadError>,
    ) -> Result<Option<Arc<Stream>>, LoadError> {
        let (Some(origin), Some(tail)) = (self.origin, self.tail) else {
            return Ok(None);
        };
        let Origin {
            name,
            media,
            ack,
            special,
        } = origin;
        let UncommonSettings {
            lifetime,
            retention,
            fork,
            owner,
            producer_timeout_s,
            account,
        } = special.map_or_else(UncommonSettings::default, |special| *special);
        let extras = self
            .extras
            .map_or_else(RestoredExtras::default, |extras| *extras);
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
            counted: match media.kind {
                MediaKind::Json => self.counts.messages[0],
                MediaKind::Text | MediaKind::Binary => self.counts.messages[1],
            },
            appended: self.counts.bytes,
            forks: self.forks,
            floor: self.floor,
            closed: self.closed,
            end: extras.end,
            stop_asked: extras.stop_asked,
            life: if self.deleted { Life::Kept } else { Life::Live },
        };
        let touched = match started {
            // On a node of a fleet a start is no read, and records have the time of the order, which is that of both clocks.
            None => self.touched.max(Now::at(self.replayed).steady),
            Some(started) => started,
        };
        let appended = match started {
            None => extras.appended.max(Now::at(self.appended).steady),
            Some(started) => started,
        };
        let settings = StreamSettings {
            media,
            lifetime,
            ack,
            retention,
            owner,
            producer_timeout_s,
            account: account.map(|id| accounts.enter(id)),
        };
        let stream = Stream::new(self.no, name, settings, source, facts, touched);
        stream.set_last_append(appended);
        let mut state = stream.state();
        if let Some(metadata) = &extras.metadata {
            state.metadata = Some(Box::new(Metadata::restored(metadata)));
        }
        if retention.is_limited() {
            let RetainedRecords {
                mut buckets,
                replayed,
            } = extras.retained;
            replayed.add_to(&mut buckets, &retention);
            buckets.cut(facts.floor);
            state.buckets = Some(Box::new(buckets));
        }
        state.stored = self.stored.then_some(self.touched);
        stream.note_charged(extras.charged);
        changed.extend(stream.charge(&state));
        if let Some(mut writers) = self.writers {
            writers.trim(limits.producers_max);
            state.writers = Some(writers);
        }
        drop(state);
        Ok(Some(Arc::new(stream)))
    }
}
