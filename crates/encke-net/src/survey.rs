//! Asks the shards about their connections, a few slots at a time: a shard answers between two turns of deliveries, and nothing is kept
//! for it while nobody asks.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use encke_access::CallerTag;
use encke_protocol::{ConnectionName, ListPosition};
use encke_stream::StreamNo;

use crate::shard_channel::ShardSender;

/// Asks the shards about their connections.
#[derive(Clone)]
pub struct Surveyor {
    senders: Vec<Arc<ShardSender>>,
}

/// Which connections are asked for. The default is all.
#[derive(Clone, Debug, Default)]
pub struct ConnectionFilter {
    /// Those of this client address, as [`ConnectionRow::client`] has it.
    pub client: Option<Box<str>>,
    /// Those of this caller: a name of a key, or a digest of a subject as [`CallerTag::is_named`] compares it.
    pub caller: Option<Box<str>>,
    /// Subscribers of the stream with this number and name.
    pub stream: Option<(StreamNo, Box<str>)>,
    /// Those that are behind.
    pub slow: bool,
}

/// A connection, or an exchange of one that has several and is subscribed.
#[derive(Clone, Debug)]
pub struct ConnectionRow {
    /// Its name.
    pub name: ConnectionName,
    /// The connection that an exchange belongs to.
    pub of: Option<ConnectionName>,
    /// The client, as logs show it.
    pub client: Box<str>,
    /// What is kept of its caller.
    pub caller: Option<CallerTag>,
    /// What it speaks.
    pub speaks: &'static str,
    /// What it is doing.
    pub doing: &'static str,
    /// The first streams and patterns that it is subscribed to.
    pub streams: Vec<SubscribedTo>,
    /// How many streams and patterns it is subscribed to.
    pub streams_total: usize,
    /// How far it is behind.
    pub lag: Option<LagOfRow>,
    /// Seconds since something was sent or received.
    pub quiet_s: u32,
    /// Requests so far, as far as they can be counted.
    pub requests: u16,
    /// Bytes that are held for it.
    pub held_bytes: usize,
    /// Whether it is encrypted.
    pub tls: bool,
    /// Whether it is connected to the address for operators.
    pub operator: bool,
}

/// A stream or a pattern that a connection is subscribed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubscribedTo {
    /// A stream by its number, and by its name if it is in memory.
    Stream(StreamNo, Option<Box<str>>),
    /// A pattern.
    Pattern(Box<str>),
}

/// How far a client is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LagOfRow {
    /// What it lacks of its streams, approximately; 0 for a body that it does not take.
    pub bytes: u64,
    /// For how long.
    pub age: Duration,
}

/// Connections that were asked for.
#[derive(Debug, Default)]
pub struct SurveyPage {
    /// The connections.
    pub rows: Vec<ConnectionRow>,
    /// Where the list goes on. `None`: all shards were asked.
    pub next: Option<ListPosition>,
    /// Slots that were looked at.
    pub looked_at: usize,
}

/// A shard does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shard {0} does not answer")]
pub struct ShardSilent(pub u16);

/// A part of a survey: what one shard is asked for at once.
pub(crate) struct SurveyStep {
    pub(crate) filter: Arc<ConnectionFilter>,
    /// The first slot.
    pub(crate) from: u32,
    /// The most rows.
    pub(crate) rows_max: usize,
    pub(crate) answer: mpsc::Sender<StepAnswer>,
}

/// What a shard says to a part of a survey.
#[derive(Debug, Default)]
pub(crate) struct StepAnswer {
    pub(crate) rows: Vec<ConnectionRow>,
    /// The slot behind those that were looked at. `None`: there are no more.
    pub(crate) next: Option<u32>,
    pub(crate) looked_at: usize,
}

impl std::fmt::Debug for SurveyStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SurveyStep(from {})", self.from)
    }
}

impl Surveyor {
    pub(crate) fn new(senders: Vec<Arc<ShardSender>>) -> Self {
        Surveyor { senders }
    }

    /// The next connections that pass a filter, behind a position: at most `rows_max` of them, and as many as there are among the next
    /// `slots_max` slots. Asks one shard after the other, so that at most one is busy with it.
    ///
    /// # Errors
    /// A shard has no room for the question, or does not answer in time.
    pub fn connections(
        &self,
        filter: &Arc<ConnectionFilter>,
        from: ListPosition,
        rows_max: usize,
        slots_max: usize,
    ) -> Result<SurveyPage, ShardSilent> {
        let mut page = SurveyPage::default();
        let mut at = from;
        while let Some(sender) = self.senders.get(usize::from(at.shard)) {
            if page.rows.len() >= rows_max || page.looked_at >= slots_max {
                page.next = Some(at);
                break;
            }
            let silent = ShardSilent(at.shard);
            let (answer, answers) = mpsc::channel();
            let step = SurveyStep {
                filter: Arc::clone(filter),
                from: at.slot,
                rows_max: rows_max - page.rows.len(),
                answer,
            };
            let asked = sender.survey(step);
            let answer = answers.recv_timeout(ANSWER_WAIT).ok().filter(|_| asked);
            let answer = answer.ok_or(silent)?;
            page.rows.extend(answer.rows);
            page.looked_at += answer.looked_at;
            at = match answer.next {
                Some(slot) => ListPosition { slot, ..at },
                None => ListPosition {
                    shard: at.shard + 1,
                    slot: 0,
                },
            };
        }
        Ok(page)
    }

    /// Closes a connection. False: it is gone.
    ///
    /// # Errors
    /// Its shard has no room for that, or does not answer in time.
    pub fn disconnect(&self, name: ConnectionName) -> Result<bool, ShardSilent> {
        let Some(sender) = self.senders.get(usize::from(name.shard)) else {
            return Ok(false);
        };
        let (answer, answers) = mpsc::channel();
        let asked = sender.disconnect(name.token, answer);
        let answer = answers.recv_timeout(ANSWER_WAIT).ok().filter(|_| asked);
        answer.ok_or(ShardSilent(name.shard))
    }

    /// The age of the oldest record whose delivery has not begun, on any shard.
    pub fn delivery_lag(&self) -> Duration {
        let lags = self.senders.iter();
        let us = lags.map(|sender| sender.lag().us.load(Ordering::Relaxed));
        Duration::from_micros(us.max().unwrap_or(0))
    }
}

/// How long a shard may take to answer. Its turns take milliseconds.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
