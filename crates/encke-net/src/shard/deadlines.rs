//! Deadlines of connections, and the sweep over idle ones.

use std::time::Duration;

use encke_protocol::EncoderId;

use super::Shard;
use crate::clock::Monotonic;
use crate::connection::active::{FeedState, Task};
use crate::connection::close::CloseReason;
use crate::connection::slot::{Flags, SlotState, Token};
use crate::operators::OPERATOR_IDLE_TIMEOUT;

impl Shard {
    /// Sets a connection's deadline.
    pub(super) fn set_deadline(&mut self, index: u32, deadline: Monotonic) {
        self.connections.activate(index).deadline = Some(deadline);
        self.remind(index);
    }

    /// Adds a connection's deadline to the timers.
    pub(super) fn remind(&mut self, index: u32) {
        let token = self.connections.slots.token(index);
        if let Some(active) = self.connections.active_mut(index) {
            self.timers.remind(active, token, self.clock.monotonic());
        }
    }

    /// Advances the timers to this turn.
    pub(super) fn advance_timers(&mut self) {
        let now = self.clock.monotonic();
        self.timers.advance(now);
        self.end_turned_away();
        if self.stopping.is_none() && self.acceptor.pause_ms(now) == Some(0) {
            // If epoll refuses, the next turn tries again.
            let _ = self.acceptor.listen(&self.poller, true);
        }
        let slots = self.connections.slots.len();
        if self.timers.begin_sweep(slots, now) {
            self.context.addresses.tidy(self.clock.now());
            // Without access control there may be certificates.
            let access = self.context.router.access();
            let revocations = access.map_or(0, |access| access.revocations_version());
            self.callers
                .begin_sweep(now, self.clock.now_ms(), revocations);
        }
    }

    /// Handles an expired timer of a connection.
    pub(super) fn reminded(&mut self, token: Token) {
        let now = self.clock.monotonic();
        let Some(index) = self.connections.find(token) else {
            return;
        };
        let Some(active) = self.connections.active_mut(index) else {
            return;
        };
        if active.reminder.is_some_and(|reminder| reminder > now) {
            // A later timer has replaced this one.
            return;
        }
        active.reminder = None;
        let (deadline, cut_off) = (active.deadline, active.cut_off);
        if cut_off.is_some_and(|at| at <= now) {
            return self.cut(index, CloseReason::Expired);
        }
        let Some(deadline) = deadline else {
            return self.remind(index);
        };
        if self.is_too_far_behind(index) && !self.connections.is_open(index) {
            return;
        }
        if deadline <= now {
            self.overdue(index);
        } else {
            self.remind(index);
        }
    }

    /// A connection's deadline has passed.
    fn overdue(&mut self, index: u32) {
        let Some(active) = self.connections.active(index) else {
            return;
        };
        match (&active.task, &active.pending) {
            (Task::AwaitingRecord { .. }, _) => self.poll_timed_out(index),
            (Task::Lingering, _) => self.close(index, CloseReason::Lingered),
            (_, Some(pending)) => {
                let dismissed = pending.close.filter(|reason| reason.is_dismissal());
                self.cut(index, dismissed.unwrap_or(CloseReason::Stalled));
            }
            (Task::Reading { .. } | Task::ReceivingBody(_), None) => self.request_timeout(index),
            _ => {}
        }
    }

    /// Visits the next connections of the sweep. False: this step is over.
    pub(super) fn sweep(&mut self) -> bool {
        let slots = self.connections.slots.len();
        for visited in 0..VISITED_AT_ONCE {
            match self.timers.next_swept(slots) {
                Some(index) => self.visit(index),
                None => return visited > 0,
            }
        }
        true
    }

    /// Closes a connection that is idle for too long, keeps a quiet one alive, and lets streams leave memory.
    fn visit(&mut self, index: u32) {
        let slot = &self.connections.slots[index];
        let quiet_s = self.clock.now_s().saturating_sub(slot.active_s);
        let quiet = Duration::from_secs(u64::from(quiet_s));
        if quiet >= CIPHER_REST {
            self.rest_session(index);
        }
        let slot = &self.connections.slots[index];
        let beats = quiet >= self.context.settings.heartbeat;
        match slot.state {
            SlotState::Idle if quiet >= self.idle_timeout(index) => {
                self.close(index, CloseReason::Idle);
            }
            SlotState::Subscribed(encoder) => {
                self.fan_out.topics.rest(slot.topic, self.clock.now_s());
                if beats {
                    self.heartbeat(index, encoder);
                }
            }
            SlotState::Active => self.visit_active(index, beats),
            SlotState::Idle | SlotState::Free | SlotState::Member | SlotState::Closed => {}
        }
    }

    /// How long a connection may be kept without a request.
    pub(super) fn idle_timeout(&self, index: u32) -> Duration {
        let timeout = self.context.settings.idle_timeout;
        match self.connections.slots[index].flags.has(Flags::OPERATOR) {
            true => timeout.min(OPERATOR_IDLE_TIMEOUT),
            false => timeout,
        }
    }

    fn visit_active(&mut self, index: u32, beats: bool) {
        let Some(active) = self.connections.active(index) else {
            return;
        };
        let beats = beats && active.pending.is_none();
        match &active.task {
            Task::Subscribed(subscriber) => match &subscriber.feed {
                FeedState::Single(feed) => {
                    let encoder = feed.encoder;
                    let topic = self.connections.slots[index].topic;
                    let now_s = self.clock.now_s();
                    match subscriber.behind {
                        Some(_) => self.fan_out.topics.lags(topic, now_s),
                        None => self.fan_out.topics.rest(topic, now_s),
                    }
                    if beats {
                        self.heartbeat(index, encoder);
                    }
                }
                FeedState::Merged(_) if beats => self.heartbeat_merged(index),
                FeedState::Merged(_) => {}
            },
            Task::Working { events, .. } if beats => {
                let beat = events.heartbeat();
                self.send_part(index, beat, false);
            }
            Task::Http2(_) => self.visit_http2(index),
            _ => {}
        }
    }

    fn heartbeat(&mut self, index: u32, encoder: EncoderId) {
        let beat = self.encoders.encoder(encoder).heartbeat();
        self.send_part(index, beat, false);
        self.rest_session(index);
    }
}

/// How long after its last record an idle session of TLS gives back its ciphers.
const CIPHER_REST: Duration = Duration::from_secs(2);

/// Connections that the sweep visits between two looks at the clock.
const VISITED_AT_ONCE: usize = 16;
