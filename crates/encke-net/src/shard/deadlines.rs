//! Deadlines of connections, and the sweep over idle ones.

use std::time::Duration;

use encke_access::CallerTag;
use encke_protocol::{CallerJudgement, CallerNeeds};

use super::state::Shard;
use crate::clients::callers::SweptCaller;
use crate::connection::Event;
use crate::connection::close::CloseReason;
use crate::connection::exchange::ExchangeEvent;
use crate::connection::exchange_id::ExchangeId;
use crate::feed::slot::{Flags, SlotFeed, SlotState, Token};

impl Shard {
    /// Advances the timers to this turn.
    pub(super) fn advance_timers(&mut self) {
        let now = self.connections.clock.monotonic();
        self.timers.advance(now);
        // What they have sent meanwhile does not matter.
        while let Some(token) = self.admission.next_overdue(now) {
            if let Some(index) = self.connections.slots.find(token) {
                self.act(index, |connection, cx| connection.turn_away(cx));
            }
        }
        if self.connections.stopping.is_none() && self.acceptor.pause_ms(now) == Some(0) {
            // If epoll refuses, the next turn tries again.
            let _ = self.acceptor.listen(&self.connections.poller, true);
        }
        let slots = self.connections.slots.len();
        if self.timers.begin_sweep(slots, now) {
            let wall = self.connections.clock.wall();
            let clients = &mut self.connections.clients;
            clients.tidy(self.connections.clock.now());
            // Without access control there may be certificates.
            let access = self.context.router.access();
            let version = access.map_or(0, |access| access.version());
            clients.callers.begin_sweep(now, wall, version);
        }
    }

    /// Handles an expired timer of a connection or an exchange.
    pub(super) fn reminded(&mut self, token: Token) {
        let now = self.connections.clock.monotonic();
        let Some(index) = self.connections.slots.find(token) else {
            return;
        };
        let id = ExchangeId::new(index);
        let connection = self.connections.slots.connection_of(index);
        let Some(known) = self.connections.get_mut(connection) else {
            return;
        };
        let timer = known.timer(id);
        match timer.reminder {
            Some(reminder) if reminder <= now => known.timer_mut(id).reminder = None,
            // Nothing is set any more, or a later timer has replaced this one.
            _ => return,
        }
        if timer.cut_off.is_some_and(|at| at <= now) {
            return self.on(connection, Event::Fail(id, CloseReason::Expired));
        }
        if self.limit_lag(index) && !self.connections.is_open(index) {
            return;
        }
        let Some(known) = self.connections.get(connection) else {
            return;
        };
        match known.timer(id).deadline {
            Some(deadline) if deadline <= now => self.on_exchange(index, ExchangeEvent::TimedOut),
            _ => self.remind(index),
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

    /// Looks at the next connections whose callers' time may be over, or whose callers may be granted something else. False: nothing is
    /// left to do.
    pub(super) fn sweep_callers(&mut self) -> bool {
        let access = self.context.router.access();
        let mut found = None;
        let judge = |caller: &CallerTag, needs: Option<&CallerNeeds>| match access {
            Some(access) => CallerNeeds::judge(needs, caller, access),
            None => CallerJudgement::Unchanged,
        };
        let callers = &mut self.connections.clients.callers;
        let busy = callers.sweep(judge, &mut found);
        let Some((id, swept)) = found.filter(|(id, _)| self.connections.is_open(id.slot())) else {
            return busy;
        };
        let connection = self.connections.slots.connection_of(id.slot());
        match swept {
            SweptCaller::Ended(end) => self.act(connection, |connection, cx| {
                connection.end_caller(id, end, cx);
            }),
            // What a plain subscription needs was judged. Anything else may be a channel.
            SweptCaller::Regranted
                if self.connections.slots[id.slot()].state != SlotState::Subscribed =>
            {
                self.act(connection, |connection, cx| {
                    connection.regrant_caller(id, cx);
                });
            }
            SweptCaller::Regranted => {}
        }
        busy
    }

    /// Closes a client that takes nothing now and is further behind than is allowed. Whether it is.
    fn limit_lag(&mut self, index: u32) -> bool {
        let id = ExchangeId::new(index);
        let Some(connection) = self.connections.of_exchange(index) else {
            return false;
        };
        if !self.connections.is_blocked(index)
            || connection.is_dismissed(id)
            || self.connections.is_in_message_of_another(index)
        {
            return false;
        }
        let now = self.connections.clock.monotonic();
        let settings = &self.context.settings;
        let body_age = connection.blocked_since(id).map(|since| now.since(since));
        if body_age.is_some_and(|age| age > settings.lag_age_max) {
            let connection = self.connections.slots.connection_of(index);
            self.on(connection, Event::Fail(id, CloseReason::LagAgeMax));
            return true;
        }
        let (lag_bytes_max, lag_age_max) = (settings.lag_bytes_max, settings.lag_age_max);
        let (feeds, cx) = self.feeds();
        let Some(lag) = feeds.lag(index, &cx) else {
            return false;
        };
        let reason = if lag.bytes > lag_bytes_max {
            CloseReason::LagMax
        } else if lag.age > lag_age_max {
            CloseReason::LagAgeMax
        } else {
            return false;
        };
        self.dismiss(index, reason);
        true
    }

    /// Closes a connection that is idle for too long, keeps a quiet one alive, and lets streams leave memory.
    pub(super) fn visit(&mut self, index: u32) {
        let slot = &self.connections.slots[index];
        let quiet = self.connections.clock.passed_at_least(slot.active_s);
        if quiet >= CIPHER_REST {
            self.connections.rest_session(index);
        }
        let slot = &self.connections.slots[index];
        let beats = quiet >= self.context.settings.heartbeat;
        let has_feed = slot.feed != SlotFeed::None;
        let state = slot.state;
        match state {
            SlotState::Free | SlotState::Member | SlotState::Closed => return,
            SlotState::Idle if quiet >= self.connections.idle_timeout(index) => {
                return self.close(index, CloseReason::Idle);
            }
            SlotState::Idle => return,
            SlotState::Subscribed
            | SlotState::Channel
            | SlotState::Active
            | SlotState::Exchange => {}
        }
        if has_feed {
            // The timer of a channel is for all that it carries.
            if slot.flags.has(Flags::MESSAGES) && self.limit_lag(index) {
                return;
            }
            let (feeds, cx) = self.feeds();
            feeds.rest_stream(index, &cx);
            if beats {
                self.beat(index);
            }
            return;
        }
        let connection = self.connections.slots.connection_of(index);
        if state == SlotState::Active {
            let idle_timeout = self.connections.idle_timeout(index);
            self.on(index, Event::Swept(idle_timeout));
        }
        if beats && self.connections.is_open(index) {
            self.on(connection, Event::Quiet(ExchangeId::new(index)));
        }
    }
}

/// How long after its last record an idle session of TLS gives back its ciphers.
const CIPHER_REST: Duration = Duration::from_secs(2);

/// Connections that the sweep visits between two looks at the clock.
const VISITED_AT_ONCE: usize = 16;
