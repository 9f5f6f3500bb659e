//! Asks the shards about their connections, a few slots at a time: a shard answers between two turns of deliveries, and nothing is kept
//! for it while nobody asks.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use encke_protocol::{ConnectionName, ListPosition};

use crate::shard_channel::ShardSender;
use crate::survey::{ConnectionFilter, ConnectionRow, SurveyStep};

/// Asks the shards about their connections.
#[derive(Clone)]
pub struct Surveyor {
    senders: Vec<Arc<ShardSender>>,
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
