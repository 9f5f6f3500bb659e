//! A shard's time, read once a turn, and what is due by it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::Shard;
use super::busy::Continuation;
use super::slow::LAG_CHECK_MS;
use crate::close::CloseReason;
use crate::slot::{FeedEncoder, Flags, State, Token};
use crate::timer::TICK_MS;

/// The time as of the turn's beginning.
pub(crate) struct Clock {
    start: Instant,
    now: Instant,
    now_ms: u64,
    date_s: u64,
    date: String,
    /// Where the sweep over idle connections stands, and when it went on last.
    sweep: u32,
    swept_ms: u64,
}

impl Clock {
    pub(super) fn start() -> Self {
        let now = Instant::now();
        let mut clock = Clock {
            start: now,
            now,
            now_ms: 0,
            date_s: 0,
            date: String::new(),
            sweep: 0,
            swept_ms: 0,
        };
        clock.tick();
        clock.swept_ms = clock.now_ms;
        clock
    }

    pub(super) fn tick(&mut self) {
        self.now = Instant::now();
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or(Duration::ZERO);
        self.now_ms = since.as_millis() as u64;
        if self.date_s != since.as_secs() || self.date.is_empty() {
            self.date_s = since.as_secs();
            self.date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(self.date_s));
        }
    }

    /// The present.
    pub(super) fn now(&self) -> Instant {
        self.now
    }

    /// Milliseconds since 1970.
    pub(super) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Seconds since the shard started.
    pub(super) fn now_s(&self) -> u32 {
        self.now.duration_since(self.start).as_secs() as u32
    }

    /// Microseconds since the shard started.
    pub(super) fn now_us(&self) -> u64 {
        self.now.duration_since(self.start).as_micros() as u64
    }

    /// The time as the Date field says it.
    pub(super) fn date(&self) -> &str {
        &self.date
    }
}

impl Shard {
    /// Sets a connection's deadline.
    pub(super) fn deadline(&mut self, index: u32, deadline_ms: u64) {
        self.busy(index).deadline_ms = deadline_ms;
        self.remind(index);
    }

    /// Has the wheel remind of a deadline, unless it will in time. One reminder is enough for a connection that is given
    /// ever new deadlines.
    fn remind(&mut self, index: u32) {
        let token = self.slots.token(index);
        let Some(busy) = self.busy.get_mut(index) else {
            return;
        };
        let due_ms = match busy.behind {
            Some(_) => busy.deadline_ms.min(self.clock.now_ms() + LAG_CHECK_MS),
            None => busy.deadline_ms,
        };
        if busy.reminder_ms == 0 || busy.reminder_ms > due_ms + TICK_MS {
            busy.reminder_ms = self.wheel.remind(token, due_ms);
        }
    }

    /// Finds out what has come due.
    pub(super) fn timers(&mut self) {
        let now_ms = self.clock.now_ms();
        self.wheel.advance(now_ms, &mut self.errands.due);
        if !self.listening && self.stopping.is_none() && now_ms >= self.listen_again_ms {
            // It was in epoll before, so it can be again; if not, the next turn tries.
            let _ = self.listen(true);
        }
        self.sweep(now_ms);
    }

    /// The wheel has reminded of a connection's deadline.
    pub(super) fn reminded(&mut self, token: Token) {
        let now_ms = self.clock.now_ms();
        let Some(index) = self.slots.find(token) else {
            return;
        };
        let Some(busy) = self.busy.get_mut(index) else {
            return;
        };
        if busy.reminder_ms > now_ms {
            // This reminder was overtaken by one that is still to come.
            return;
        }
        busy.reminder_ms = 0;
        let deadline_ms = busy.deadline_ms;
        if deadline_ms == 0 || self.is_too_far_behind(index) && !self.is_open(index) {
            return;
        }
        if deadline_ms > now_ms {
            self.remind(index);
        } else {
            self.overdue(index);
        }
    }

    /// A connection's deadline has passed.
    fn overdue(&mut self, index: u32) {
        match self.slots[index].state {
            State::Polling => self.poll_is_over(index),
            State::Lingering => self.close(index, CloseReason::Lingered),
            _ if self.slots[index].flags.has(Flags::BLOCKED) => {
                let reason = self.busy.get(index).and_then(|busy| busy.reason);
                self.cut(index, reason.unwrap_or(CloseReason::Stalled));
            }
            State::Reading => self.request_timeout(index),
            _ => {}
        }
    }

    /// Begins to look after a part of all connections, when it is time to.
    fn sweep(&mut self, now_ms: u64) {
        let passed_ms = now_ms.saturating_sub(self.clock.swept_ms);
        if passed_ms < SWEEP_STEP_MS {
            return;
        }
        self.clock.swept_ms = now_ms;
        self.parts.addresses.tidy(self.clock.now());
        let slots = self.slots.len() as u64;
        let part = slots * passed_ms / SWEEP_MS + 1;
        self.errands.sweep = (self.errands.sweep + part).min(slots);
    }

    /// Looks after some connections: idle ones are closed, quiet subscribers hear a heartbeat.
    pub(super) fn sweep_on(&mut self) {
        for _ in 0..self.errands.sweep.min(SWEPT_AT_ONCE) {
            self.errands.sweep -= 1;
            let index = self.clock.sweep % self.slots.len() as u32;
            self.clock.sweep = index + 1;
            self.look_after(index);
        }
    }

    fn look_after(&mut self, index: u32) {
        if self.slots[index].state == State::Following {
            self.topics.rest(self.slots[index].topic);
        }
        let slot = &self.slots[index];
        let quiet =
            Duration::from_secs(u64::from(self.clock.now_s().saturating_sub(slot.active_s)));
        match slot.state {
            State::Following | State::Several | State::Working
                if quiet < self.parts.settings.heartbeat || slot.flags.has(Flags::BLOCKED) => {}
            State::Following => self.heartbeat(index),
            State::Several => self.heartbeat_several(index),
            State::Working => {
                let then = self.busy.get(index).and_then(|busy| busy.then.as_ref());
                if let Some(Continuation::Worker(events)) = then {
                    let beat = events.heartbeat();
                    self.send_raw(index, beat);
                }
            }
            State::Reading
                if quiet >= self.parts.settings.idle_timeout && self.busy.get(index).is_none() =>
            {
                self.close(index, CloseReason::Idle);
            }
            _ => {}
        }
    }

    fn heartbeat(&mut self, index: u32) {
        let topic = &self.topics[self.slots[index].topic];
        // A stream with readers does not expire.
        if let Some(stream) = &topic.stream {
            stream.touch(self.clock.now_ms());
        }
        if let FeedEncoder::Single(encoder) = self.slots[index].encoder {
            let beat = self.encoders.encoder(encoder).heartbeat();
            self.send_raw(index, beat);
        }
    }
}

/// All connections are looked at once in so long, in steps of that.
const SWEEP_MS: u64 = 5_000;
const SWEEP_STEP_MS: u64 = 100;

/// So many are looked after between two looks at the clock.
const SWEPT_AT_ONCE: u64 = 16;
