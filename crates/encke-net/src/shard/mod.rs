//! A shard: one thread, its own listener, its own connections.
//!
//! A turn of [`Shard::run`] waits for sockets and events, gives what arrived to the connections (`sockets`, `replies`), does what
//! these want done (`effects`), takes commits and sends their records to subscribers (`rounds`, `deliver`). Then it does deferred work: new
//! connections, catch-up, deadlines (`run_deferred`).
//!
//! `connections` owns sockets and connections, [`Feeds`](crate::feed::Feeds) what subscribers get, `admission` the places of all
//! connections, and `hand_over` the ways to other threads. The files call each other downwards only, which `make call-cycles`
//! checks: `run_deferred` and `stop` call `accept`, `deadlines`, `memory`, `sockets`, `replies`, `rounds` and `deliver`, and all of these
//! `effects`, which calls `close` and `handshakes`.

mod accept;
mod admission;
mod close;
mod connections;
mod deadlines;
mod deliver;
mod effects;
mod hand_over;
mod handshakes;
mod memory;
mod move_in;
mod move_out;
mod replies;
mod reseat;
mod rounds;
mod run_deferred;
#[cfg(test)]
mod simulation;
mod sockets;
mod state;
mod stop;
mod survey;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::event::epoll;

use crate::connection::exchange::ExchangeEvent;
use crate::feed::backpressure::LOOK_EVERY_MS;
use crate::moved::ShardArrivals;
use crate::poller::{LISTENER, OPERATORS, WAKE};
use crate::shard_channel::ShardEvent;
use crate::timer_wheel::TICK_MS;

pub(crate) use admission::Admission;
use move_in::{Arrival, MovedTogether};
use move_out::Departure;

pub(crate) use hand_over::HandOver;
pub(crate) use state::{Shard, ShardContext};

impl Shard {
    /// Runs until a stop is complete. It serves after the connections that it begins with have arrived, which may be none, and ends if they
    /// never do.
    pub(crate) fn run(mut self, arriving: &mpsc::Receiver<ShardArrivals>) {
        let Ok(ShardArrivals {
            connections,
            together,
            gate,
            arrived,
        }) = arriving.recv()
        else {
            return;
        };
        let (callers, streams) = &*together;
        let together_now = MovedTogether { callers, streams };
        let lost = Arrival(&mut self).take(connections, together_now);
        drop(together);
        // It fails only if the server has not started.
        let _ = arrived.send(lost);
        drop(arrived);
        if !gate.wait() {
            return;
        }
        Arrival(&mut self).begin();
        let mut buffers = TurnBuffers::new();
        while !self.connections.is_stopped() {
            let wait_max = self.wait_max();
            if let Err(error) = self.turn(wait_max, &mut buffers) {
                tracing::error!(%error, "epoll failed; the shard stops");
                encke_threads::report_failure(&format!("shard-{}", self.context.number));
                return;
            }
            if Departure(&mut self).finish() {
                return;
            }
        }
        self.cut_short();
    }

    /// One turn, which waits for sockets and events for at most `wait_max`.
    fn turn(&mut self, wait_max: Duration, buffers: &mut TurnBuffers) -> rustix::io::Result<()> {
        let TurnBuffers { sockets, events } = buffers;
        self.connections.poller.wait(sockets, wait_max)?;
        // Events that arrive from now on are found when the channel is drained, without a wake-up.
        self.context.receiver.events.attend();
        self.connections.clock.tick(wait_max);
        self.acceptor.begin_turn();
        let sends = self.context.settings.sends_per_turn;
        self.feeds.fan_out.begin_turn(sends);
        let mut looked = self.connections.clock.now();
        for some in sockets.chunks(EVENTS_AT_ONCE) {
            if looked.elapsed() >= EVENTS_TIME {
                self.take_events(events);
                looked = Instant::now();
            }
            for event in some {
                let (token, flags) = (event.data.u64(), event.flags);
                match token {
                    WAKE => {}
                    LISTENER => self.acceptor.ready(),
                    OPERATORS => self.accept_operators(),
                    token => self.socket_event(token, flags),
                }
            }
        }
        self.take_events(events);
        let now = self.connections.clock.monotonic();
        for token in self.hand_over.take_expired(now) {
            self.on_token(token, ExchangeEvent::NotParked);
        }
        self.release_acknowledgements();
        let batch = self.acceptor.end_events(self.connections.clock.now_us());
        let accepts = self.acceptor.has_work();
        self.run_deferred();
        if accepts {
            let (poller, used) = (&self.connections.poller, self.connections.slots.used());
            let now_us = self.connections.clock.now_us();
            let gathered = self.acceptor.end_turn(poller, batch, used, now_us);
            let metric = &self.context.metrics.accepts_gathered;
            metric.inc_by(gathered as u64);
        }
        self.relieve();
        self.deliver_due();
        self.flush_dirty();
        self.submit();
        self.connections.free_closed();
        let metrics = &self.context.metrics;
        self.connections.requests.hand_over(metrics);
        self.connections.counts.add_up(metrics);
        Ok(())
    }

    /// Hands over commands, takes events from other threads, and delivers committed records.
    fn take_events(&mut self, events: &mut Vec<ShardEvent>) {
        self.submit();
        // Before the events are taken: these include everything that was delivered by now.
        self.feeds.fan_out.note_delivered();
        self.context.receiver.events.drain(events);
        let taken = events.len();
        for event in events.drain(..) {
            self.take_event(event);
        }
        self.context.receiver.events.handled(taken);
        self.feeds.fan_out.pass_delivered();
        let now_us = self.connections.clock.now_us();
        let lost = self.feeds.fan_out.queue_ephemeral(now_us);
        self.connections.counts.ephemeral_full += lost.full;
        self.connections.counts.ephemeral_late += lost.late;
        self.deliver();
        self.flush_dirty();
    }

    fn take_event(&mut self, event: ShardEvent) {
        match event {
            ShardEvent::Committed { batch, replies } => {
                if let Some(batch) = batch {
                    let now_us = self.connections.clock.now_us();
                    self.feeds.fan_out.take(&batch, now_us);
                }
                for reply in replies {
                    self.replied(reply);
                }
            }
            ShardEvent::Ephemeral(message) => {
                let now_us = self.connections.clock.now_us();
                self.feeds.fan_out.take_ephemeral(message, now_us);
            }
            ShardEvent::PieceRead { token, piece } => self.deferred.add_piece(token, piece),
            ShardEvent::Compressed { token, piece } => self.deferred.add_compressed(token, piece),
            ShardEvent::NameLoaded { token, known } => {
                self.on_token(token, ExchangeEvent::NameLoaded(known));
            }
            ShardEvent::Listed { token, page } => {
                self.on_token(token, ExchangeEvent::Listed(page));
            }
            ShardEvent::Inspected { token, response } => {
                self.on_token(token, ExchangeEvent::Inspected(response));
            }
            ShardEvent::Survey(step) => survey::answer(self, &step),
            // It fails only if nothing waits for the result any more.
            ShardEvent::Disconnect { token, answer } => {
                let _ = answer.send(survey::disconnect(self, token));
            }
            ShardEvent::StreamLoaded { token, stream } => self.stream_loaded(token, stream),
            ShardEvent::Dispatched { client, event } => self.dispatched(client, event),
            ShardEvent::Unpark => {
                for (token, until) in self.hand_over.take_parked() {
                    self.hand_over.limit_parking(Some(until));
                    self.on_token(token, ExchangeEvent::Unparked);
                }
                self.hand_over.limit_parking(None);
            }
            ShardEvent::Handshaken { token, ended } => self.deferred.add_handshaken(token, ended),
            ShardEvent::Adopt(socket) => {
                if let Some(index) = self.connections.adopt(socket) {
                    self.read_newcomer(index);
                }
            }
            ShardEvent::DismissAll => self.dismiss_all(),
            // It fails only if nothing waits for the result any more.
            ShardEvent::Probe(answer) => drop(answer.send(())),
            // It fails only if nothing waits for the result any more.
            ShardEvent::CountMovable(answer) => {
                drop(answer.send(Departure(self).count_movable()));
            }
            ShardEvent::MoveOut(order) => Departure(self).begin(*order),
            ShardEvent::Stop => self.stop(),
        }
    }

    /// How long the next wait for sockets may last.
    fn wait_max(&self) -> Duration {
        let clock = &self.connections.clock;
        let stopping = self.connections.stopping.is_some();
        let wait_ms = if !self.feeds.fan_out.is_quiet()
            || self.deferred.is_due()
            || self.timers.is_due()
            || self.connections.clients.callers.is_sweeping()
            || self.hand_over.has_commands()
            || !self.dirty.is_empty()
            || !self.due.is_empty()
        {
            0
        } else if let (Some(pause_ms), false) =
            (self.acceptor.pause_ms(clock.monotonic()), stopping)
        {
            pause_ms.clamp(1, TICK_MS)
        } else if stopping || self.hand_over.has_messages() {
            TICK_MS
        } else if self.connections.slots.used() > 0 {
            TICK_MS * 2
        } else {
            IDLE_WAIT_MS
        };
        let wait_ms = match self.connections.moving.is_some() {
            true => wait_ms.min(MOVE_LOOK_MS),
            false => wait_ms,
        };
        let fan_out = &self.feeds.fan_out;
        let wait_ms = match fan_out.backpressure.holds() || fan_out.awaits_records() {
            true => wait_ms.min(LOOK_EVERY_MS),
            false => wait_ms,
        };
        let wake_us = [self.acceptor.batch_at_us(), self.feeds.fan_out.wake_us()];
        let wait_ms = wake_us.into_iter().flatten().fold(wait_ms, |ms, at_us| {
            let left_us = at_us.saturating_sub(clock.now_us());
            ms.min(left_us.div_ceil(1000))
        });
        Duration::from_millis(wait_ms)
    }
}

/// What a turn fills and empties.
struct TurnBuffers {
    sockets: Vec<epoll::Event>,
    events: Vec<ShardEvent>,
}

impl TurnBuffers {
    fn new() -> Self {
        TurnBuffers {
            sockets: Vec::with_capacity(EVENTS_PER_TURN),
            events: Vec::new(),
        }
    }
}

const EVENTS_PER_TURN: usize = 512;

/// How long a shard handles sockets before it looks at its commits, so that they do not wait for many requests. Less would
/// make batches small.
const EVENTS_TIME: Duration = Duration::from_micros(400);

/// Events between two looks at the clock.
const EVENTS_AT_ONCE: usize = 8;

/// How often a shard that moves looks whether it can go.
const MOVE_LOOK_MS: u64 = 2;

/// How long a shard without connections waits.
const IDLE_WAIT_MS: u64 = 1000;
