//! Create and fork (sections 4.2 and 5.1).

use std::sync::Arc;

use encke_clock::Now;
use encke_log::StreamNo;

use crate::machine::command::{Create, CreateExtras, ForkOf};
use crate::machine::journal::Journal;
use crate::machine::outcome::{Outcome, Refusal};
use crate::machine::{Machine, NameHolder};
use crate::stream::count::{ByteCount, MessageCount};
use crate::stream::number::{BORN_MAX, born, number};
use crate::stream::record::{Change, Extras, Fork, Lifetime};
use crate::stream::viewer::Viewer;
use crate::stream::{Facts, Life, Source, Stream, StreamSettings};
use crate::{Offset, Retention};

impl Machine {
    pub(crate) fn create(
        &mut self,
        create: Create,
        now: Now,
        journal: &mut dyn Journal,
    ) -> Result<Outcome, Refusal> {
        match self.find(&create.name, now, journal)? {
            NameHolder::Live(stream) | NameHolder::Kept(stream)
                if !create.extras.viewer.sees(stream.owner()) =>
            {
                Err(Refusal::NotOwner)
            }
            NameHolder::Live(stream) => {
                let confirmed = confirm(&stream, &create)?;
                self.renew(&stream, now, journal)?;
                Ok(confirmed)
            }
            NameHolder::Kept(_) => Err(Refusal::NameKept),
            NameHolder::Free => self.claim_and_create(create, now, journal),
        }
    }

    /// Creates the stream unless another log has one of that name or is about to.
    fn claim_and_create(
        &mut self,
        create: Create,
        now: Now,
        journal: &mut dyn Journal,
    ) -> Result<Outcome, Refusal> {
        if self.replica.is_some() && self.place.is_stray(&create.name) {
            return Err(Refusal::ForkElsewhere);
        }
        let Some(siblings) = self.siblings.clone() else {
            return self.create_claimed(create, now, journal);
        };
        let name = create.name.clone();
        let claimed = siblings.claim(&name, self.place.log)?;
        let made = self.create_claimed(create, now, journal);
        if claimed {
            match made {
                Ok(_) => self.claimed.push(name),
                Err(_) => siblings.unclaim(&name),
            }
        }
        made
    }

    fn create_claimed(
        &mut self,
        create: Create,
        now: Now,
        journal: &mut dyn Journal,
    ) -> Result<Outcome, Refusal> {
        let source = match &create.fork {
            Some(fork) => Some(self.source(fork, &create.extras.source_viewer, now, journal)?),
            None => None,
        };
        let media = match (&create.content_type, &source) {
            (Some(asked), Some(source)) if !source.stream.media.matches(asked) => {
                return Err(Refusal::TypeDiffers {
                    has: source.stream.media.name.clone(),
                    asked: asked.clone(),
                });
            }
            (_, Some(source)) => Arc::clone(&source.stream.media),
            (Some(asked), None) => self.view.media(asked),
            (None, None) => self.view.media(DEFAULT_TYPE),
        };
        let lifetime = match (create.lifetime, &source) {
            (Some(lifetime), _) => lifetime,
            (None, Some(source)) => source.stream.lifetime,
            (None, None) => Lifetime::Unbounded,
        };
        let ack = match (create.ack, &source) {
            (Some(ack), _) => ack,
            (None, Some(source)) => source.stream.ack,
            (None, None) => self.level,
        };
        let retention = match (create.retention, &source) {
            (Some(retention), _) => retention,
            (None, Some(source)) => source.stream.retention(),
            (None, None) => Retention::default(),
        };
        let no = self.next_no(journal)?;
        // A fork does not have what its source has removed. Nothing is missing before the source's beginning.
        let floor = source.as_ref().map_or(0, |source| {
            let floor = source.stream.state().next.floor;
            floor.min(source.at.sequence)
        });
        let fork = source.as_ref().map(|source| Fork {
            source: source.stream.no,
            at: source.at,
        });
        let inherited = inherited(source.as_deref());
        let facts = Facts {
            tail: Facts::first_tail(no, fork, create.data.units),
            counted: inherited.with(create.data.units, media.kind),
            appended: ByteCount::of(&create.data.bytes),
            forks: 0,
            floor,
            closed: create.closed,
            end: None,
            stop_asked: false,
            life: Life::Live,
        };
        let CreateExtras {
            owner,
            producer_timeout_s,
            metadata,
            viewer,
            payer,
            ..
        } = create.extras;
        let account = payer.as_ref().map(|payer| payer.account);
        if let Some(exceeded) = payer.and_then(|payer| payer.exceeded) {
            return Err(Refusal::StorageExceeded(exceeded));
        }
        // What belongs to somebody does not become everybody's by a fork.
        let owner_before = source.as_ref().and_then(|source| source.stream.owner());
        if owner.is_none() && !viewer.sees(owner_before) {
            // It would make a stream for another caller.
            return Err(Refusal::NotOwner);
        }
        let owner = owner.or_else(|| owner_before.map(Into::into));
        let forked = source.as_ref().map(|source| Arc::clone(&source.stream));
        let settings = StreamSettings {
            media: Arc::clone(&media),
            lifetime,
            ack,
            retention,
            owner: owner.clone(),
            producer_timeout_s,
            account: account.map(|id| self.view.accounts.enter(id)),
        };
        let name = create.name.clone();
        let stream = Arc::new(Stream::new(no, name, settings, source, facts, now.steady));
        if let Some(metadata) = &metadata {
            stream.state().metadata_mut().next = Some((&**metadata).into());
        }
        let change = Change::Create {
            name: &create.name,
            content_type: &media.name,
            lifetime,
            ack,
            retention,
            fork,
            floor,
            closed: create.closed,
            units: create.data.units,
            extras: Extras {
                owner: owner.as_deref(),
                producer_timeout_s,
                metadata: metadata.as_deref(),
                inherited,
                ..Extras::default()
            },
            account,
        };
        let bytes = create.data.bytes.len();
        journal.record(&stream, &change, create.data.bytes)?;
        if let Some(source) = forked {
            self.change(&source, |facts| facts.forks += 1);
        }
        // The facts are complete already, but the batch must know of the stream.
        self.change(&stream, |_| {});
        stream.count_first(bytes, now.wall);
        if stream.is_timed() {
            self.watch(&stream);
            self.timed.insert(no, Arc::clone(&stream));
        }
        self.names.insert(create.name, Some(stream));
        Ok(Outcome::Created {
            tail: facts.tail,
            content_type: media.name.clone(),
            closed: create.closed,
            ack,
            retention,
            existed: false,
            no,
        })
    }

    /// The number of the stream that the next record creates.
    fn next_no(&self, journal: &dyn Journal) -> Result<StreamNo, Refusal> {
        let born = journal.next_sequence();
        if born > BORN_MAX {
            let reason = "it has more records than stream numbers have room for";
            return Err(Refusal::LogFailed(reason.into()));
        }
        Ok(number(self.place.log, born))
    }

    /// Where a fork leaves its source.
    fn source(
        &mut self,
        fork: &ForkOf,
        viewer: &Viewer,
        now: Now,
        journal: &mut dyn Journal,
    ) -> Result<Box<Source>, Refusal> {
        let stream = match self.find(&fork.source, now, journal)? {
            // It is missing to whoever may not use it.
            NameHolder::Live(stream) | NameHolder::Kept(stream) if !viewer.sees(stream.owner()) => {
                return Err(Refusal::SourceNotFound);
            }
            NameHolder::Live(stream) => stream,
            NameHolder::Kept(_) => return Err(Refusal::SourceGone),
            NameHolder::Free => {
                // The source may have been created again in another log after the command was sent.
                if let Some(siblings) = &self.siblings {
                    siblings.look_elsewhere(&fork.source, self.place.log)?;
                }
                return Err(Refusal::SourceNotFound);
            }
        };
        let tail = stream.state().next.tail;
        let at = fork.at.unwrap_or(tail);
        if at > tail {
            return Err(Refusal::BeyondTail { tail, asked: at });
        }
        if !stream.reaches_back_to(at) {
            return Err(Refusal::BeforeStart { asked: at });
        }
        let floor = stream.state().next.floor;
        if at.sequence < floor && !stream.begins_at(at) {
            let floor = Offset::behind(floor);
            return Err(Refusal::NoLongerKept { asked: at, floor });
        }
        if stream.depth >= self.limits.fork_depth_max {
            return Err(Refusal::TooDeep {
                depth_max: self.limits.fork_depth_max,
            });
        }
        Ok(Box::new(Source { stream, at }))
    }
}

/// Confirms a creation that finds its stream, or reports a conflict.
fn confirm(stream: &Stream, create: &Create) -> Result<Outcome, Refusal> {
    let facts = stream.state().next;
    let differs = |what: &'static str, has: String, asked: String| {
        let what = what.into();
        Err(Refusal::Differs { what, has, asked })
    };
    let quoted = |text: &str| format!("{text:?}");
    match &create.content_type {
        Some(asked) if !stream.media.matches(asked) => {
            return differs("content type", quoted(&stream.media.name), quoted(asked));
        }
        // A fork that names no type has its source's; any other stream has the default.
        None if create.fork.is_none() && !stream.media.matches(DEFAULT_TYPE) => {
            let default = quoted(DEFAULT_TYPE);
            return differs("content type", quoted(&stream.media.name), default);
        }
        _ => {}
    }
    match (&create.fork, &stream.source) {
        (None, None) => {}
        (Some(fork), Some(source)) if *source.stream.name == *fork.source => {
            if let Some(at) = fork.at
                && at != source.at
            {
                return differs("fork offset", source.at.to_string(), at.to_string());
            }
        }
        (fork, source) => {
            let name = |source: Option<&str>| source.map_or("none".into(), quoted);
            // What it is may be known to those only who may use it.
            let shown = |source: &Source| match create.extras.viewer.sees(source.stream.owner()) {
                true => quoted(&source.stream.name),
                false => "another".into(),
            };
            return differs(
                "source",
                source.as_deref().map_or("none".into(), shown),
                name(fork.as_ref().map(|fork| &*fork.source)),
            );
        }
    }
    // A fork has its source's settings where the request names none.
    let asked = match (create.lifetime, &stream.source) {
        (Some(lifetime), _) => lifetime,
        (None, Some(source)) => source.stream.lifetime,
        (None, None) => Lifetime::Unbounded,
    };
    if asked != stream.lifetime {
        return differs("lifetime", words(stream.lifetime), words(asked));
    }
    // A request that names no level accepts the stream's: the default of the server may have changed.
    if let Some(asked) = create.ack
        && asked != stream.ack
    {
        return differs(
            "durability level (Encke-Ack)",
            stream.ack.to_string(),
            asked.to_string(),
        );
    }
    let asked = match (create.retention, &stream.source) {
        (Some(retention), _) => retention,
        (None, Some(source)) => source.stream.retention(),
        (None, None) => Retention::default(),
    };
    if asked != stream.retention() {
        return differs(
            "retention (Encke-Retention)",
            stream.retention().to_string(),
            asked.to_string(),
        );
    }
    let owner = create.extras.owner.as_deref();
    if owner.is_some() && owner != stream.owner() {
        return differs("owner (Encke-Owner)", "another".into(), "this one".into());
    }
    let timeout = |timeout_s: Option<u32>| timeout_s.map_or("none".into(), |s| format!("{s} s"));
    if create.extras.producer_timeout_s != stream.producer_timeout_s() {
        return differs(
            "producer timeout (Encke-Producer-Timeout)",
            timeout(stream.producer_timeout_s()),
            timeout(create.extras.producer_timeout_s),
        );
    }
    if create.closed != facts.closed {
        let word = |closed| if closed { "closed" } else { "open" }.into();
        return differs("state", word(facts.closed), word(create.closed));
    }
    Ok(Outcome::Created {
        tail: facts.tail,
        content_type: stream.media.name.clone(),
        closed: facts.closed,
        ack: stream.ack,
        retention: stream.retention(),
        existed: true,
        no: stream.no,
    })
}

fn words(lifetime: Lifetime) -> String {
    match lifetime {
        Lifetime::Unbounded => "no end".into(),
        Lifetime::Sliding { ttl_s } => format!("{ttl_s} s"),
        Lifetime::Until { at } => format!("an end at {} ms", at.as_ms()),
    }
}

/// The messages that a new stream has from its source.
fn inherited(source: Option<&Source>) -> MessageCount {
    let Some(source) = source else {
        return MessageCount::default();
    };
    let facts = source.stream.state().next;
    match source.at {
        Offset::START => MessageCount::default(),
        at if at == facts.tail => facts.counted,
        // Nobody has counted up to there.
        _ => MessageCount::UNKNOWN,
    }
}

impl Facts {
    /// The tail of a new stream. An empty fork ends where it leaves its source.
    pub(crate) fn first_tail(no: StreamNo, fork: Option<Fork>, units: u32) -> Offset {
        match fork {
            Some(fork) if units == 0 => fork.at,
            _ => Offset::behind(born(no)),
        }
    }
}

/// The content type of a stream whose creator names none (RFC 9110, section 8.3).
pub const DEFAULT_TYPE: &str = "application/octet-stream";
