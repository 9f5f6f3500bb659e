//! A shard: one thread, its own listener, its own connections.
//!
//! A turn of [`Shard::run`] waits for sockets and events, reads what arrived (`input`), asks the protocols and performs their
//! actions (`respond`), hands commands to the sequencer, takes commits and sends their records to subscribers (`deliver`). Then it
//! does deferred work: new connections, catch-up, deadlines (`run_deferred`).

mod accept;
mod admission;
mod backpressure;
mod catch_up;
mod compress;
mod deadlines;
mod deliver;
mod dispatch;
mod encrypted;
mod hand_over;
mod handshakes;
mod http2;
mod http2_reads;
mod http2_streams;
mod http2_tables;
mod input;
mod lag;
mod load;
mod long_body;
mod memory;
mod merged;
mod merged_older;
mod output;
mod request_log;
mod respond;
mod route;
mod run_deferred;
mod stop;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use encke_protocol::{Encoders, Router};
use encke_stream::{Sequencers, Views};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::sockopt;

use crate::acceptor::Acceptor;
use crate::access_log::{AccessLogSender, OpenRequests, RequestIds};
use crate::addresses::Addresses;
use crate::audit::AuditSender;
use crate::buffers::Buffers;
use crate::clock::{Monotonic, ShardClock};
use crate::compression::Compressors;
use crate::connection::callers::ConnectionCallers;
use crate::connection::close::CloseReason;
use crate::connection::owners::ConnectionOwners;
use crate::connection::slot::{Flags, Token};
use crate::connection::table::Connections;
use crate::deferred::Deferred;
use crate::fanout::backpressure::LOOK_EVERY_MS;
use crate::fanout::congested_streams::CongestedStreams;
use crate::fanout::queue::FanOut;
use crate::holdings::Holdings;
use crate::metrics::{Metrics, ShardCounts};
use crate::operators::OperatorListener;
use crate::outbox::Outbox;
use crate::poller::{LISTENER, OPERATORS, Poller, WAKE};
use crate::readers::Readers;
use crate::settings::NetSettings;
use crate::shard_channel::{ShardEvent, ShardReceiver, ShardSender};
use crate::timer_wheel::TICK_MS;
use crate::timers::Timers;
use crate::transport::tls::Handshakes;

/// What a shard needs of the rest of the server.
pub(crate) struct ShardContext {
    pub(crate) number: u16,
    pub(crate) settings: Arc<NetSettings>,
    pub(crate) router: Router,
    pub(crate) receiver: ShardReceiver,
    pub(crate) sender: Arc<ShardSender>,
    /// Where commands go. Those that wait for no disk are committed inline.
    pub(crate) sequencers: Sequencers,
    pub(crate) dispatcher: encke_jobs::DispatcherSender,
    pub(crate) readers: Readers,
    pub(crate) metrics: Metrics,
    /// Connections of all shards.
    pub(crate) connections: Arc<AtomicUsize>,
    /// Connections of all shards that are open until they are refused.
    pub(crate) turned_away: Arc<AtomicUsize>,
    pub(crate) addresses: Arc<Addresses>,
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) compressors: Arc<Compressors>,
    /// The congested streams of all shards.
    pub(crate) congested: Arc<CongestedStreams>,
    pub(crate) views: Arc<Views>,
    /// The threads that make handshakes; `None` if connections are plain.
    pub(crate) handshakes: Option<Handshakes>,
    /// Where finished requests go; `None` without an access log.
    pub(crate) access_log: Option<AccessLogSender>,
    /// Where refused and administrative requests go.
    pub(crate) audit: AuditSender,
    /// The key of the ids of requests, the same for all shards.
    pub(crate) request_id_key: u64,
}

/// One reactor thread's state.
pub(crate) struct Shard {
    context: ShardContext,
    encoders: Arc<Encoders>,
    poller: Poller,
    acceptor: Acceptor,
    /// The first shard has it, if there is an address for operators.
    operators: Option<OperatorListener>,
    connections: Connections,
    /// Those that there is no room for, and until when they have time for a request.
    turned_away: VecDeque<(Monotonic, Token)>,
    owners: ConnectionOwners,
    callers: ConnectionCallers,
    /// Connections whose requests wait for keys.
    awaiting_keys: Vec<Token>,
    holdings: Holdings,
    fan_out: FanOut,
    timers: Timers,
    deferred: Deferred,
    outbox: Outbox,
    requests: OpenRequests,
    http2: http2_tables::Http2Tables,
    /// The value of Strict-Transport-Security in responses over TLS.
    hsts: Option<Box<str>>,
    clock: ShardClock,
    counts: ShardCounts,
    scratch: Scratch,
    /// A connection that was just accepted, and is not in epoll yet.
    newcomer: Option<u32>,
    /// Since when the shard is stopping.
    stopping: Option<Instant>,
}

/// Buffers that belong to the shard, not to a connection.
struct Scratch {
    input: Vec<u8>,
    output: Vec<u8>,
    /// The content of records.
    content: Vec<u8>,
}

impl Shard {
    /// A shard that is ready to run.
    pub(crate) fn new(
        context: ShardContext,
        listener: OwnedFd,
        operators: Option<OwnedFd>,
    ) -> rustix::io::Result<Self> {
        let settings = &context.settings;
        let clock = ShardClock::start();
        let shards = settings.shards.max(1) as u64;
        let poller = Poller::new(context.receiver.wake_fd())?;
        let mut shard = Shard {
            encoders: Arc::clone(context.router.encoders()),
            operators: operators
                .map(|listener| OperatorListener::new(listener, &poller))
                .transpose()?,
            poller,
            acceptor: Acceptor::new(listener, settings.accept_rate.div_ceil(shards)),
            connections: Connections::default(),
            turned_away: VecDeque::new(),
            owners: ConnectionOwners::default(),
            callers: ConnectionCallers::default(),
            awaiting_keys: Vec::new(),
            holdings: Holdings::new(settings.buffers_per_client_max),
            fan_out: FanOut::new(
                settings.ring_bytes,
                context.number,
                Arc::clone(&context.views),
                settings.rest_max,
            ),
            timers: Timers::new(clock.monotonic()),
            deferred: Deferred::default(),
            outbox: Outbox::default(),
            requests: OpenRequests::new(
                RequestIds::new(context.request_id_key, context.number, settings.shards),
                context.access_log.clone(),
            ),
            http2: http2_tables::Http2Tables::default(),
            hsts: settings
                .hsts_max_age
                .map(|age| format!("max-age={}", age.as_secs()).into()),
            clock,
            counts: ShardCounts::default(),
            scratch: Scratch {
                input: vec![0; SCRATCH_BYTES],
                output: Vec::new(),
                content: Vec::new(),
            },
            newcomer: None,
            stopping: None,
            context,
        };
        shard.acceptor.listen(&shard.poller, true)?;
        Ok(shard)
    }

    /// Runs until a stop is complete.
    pub(crate) fn run(mut self) {
        let mut sockets = Vec::with_capacity(EVENTS_PER_TURN);
        let mut events = Vec::new();
        while !self.stopped() {
            let wait_max = self.patience();
            if let Err(error) = self.poller.wait(&mut sockets, wait_max) {
                tracing::error!(%error, "epoll failed; the shard stops");
                return;
            }
            // Events that arrive from now on are found when the channel is drained, without a wake-up.
            self.context.receiver.events.attend();
            self.clock.tick(wait_max);
            self.acceptor.begin_turn();
            self.fan_out
                .begin_turn(self.context.settings.sends_per_turn);
            let mut looked = self.clock.now();
            for some in sockets.chunks(EVENTS_AT_ONCE) {
                if looked.elapsed() >= EVENTS_TIME {
                    self.take_events(&mut events);
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
            self.take_events(&mut events);
            self.release_acknowledgements();
            let batch = self.acceptor.end_events(self.clock.now_us());
            let accepts = self.acceptor.has_work();
            self.run_deferred();
            if accepts {
                self.end_accepting(batch);
            }
            self.relieve();
            self.flush_http2();
            self.submit();
            self.connections.free_closed();
            self.requests.hand_over(&self.context.metrics);
            self.counts.add_up(&self.context.metrics);
        }
        self.cut_short();
    }

    /// Hands over commands, takes events from other threads, and delivers committed records.
    fn take_events(&mut self, events: &mut Vec<ShardEvent>) {
        self.submit();
        // Before the events are taken: these include everything that was delivered by now.
        self.fan_out.note_delivered();
        self.context.receiver.events.drain(events);
        let taken = events.len();
        for event in events.drain(..) {
            self.take_event(event);
        }
        self.context.receiver.events.handled(taken);
        self.fan_out.pass_delivered();
        self.deliver();
        self.flush_http2();
    }

    fn take_event(&mut self, event: ShardEvent) {
        match event {
            ShardEvent::Committed { batch, replies } => {
                if let Some(batch) = batch {
                    self.fan_out.take(&batch, self.clock.now_us());
                }
                for reply in replies {
                    self.replied(reply);
                }
            }
            ShardEvent::PieceRead { token, piece } => self.deferred.add_piece(token, piece),
            ShardEvent::Compressed { token, piece } => self.deferred.add_compressed(token, piece),
            ShardEvent::NameLoaded { token, known } => self.name_loaded(token, known),
            ShardEvent::StreamLoaded { token, stream } => self.stream_loaded(token, stream),
            ShardEvent::Dispatched { client, event } => self.dispatched(client, event),
            ShardEvent::KeysFetched => self.keys_fetched(),
            ShardEvent::Handshaken { token, ended } => self.deferred.add_handshaken(token, ended),
            ShardEvent::DismissAll => self.dismiss_all(),
            ShardEvent::Stop => self.stop(),
        }
    }

    fn socket_event(&mut self, token: Token, flags: epoll::EventFlags) {
        let Some(index) = self.connections.find(token) else {
            return;
        };
        if flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            let error = self.connections.slots[index]
                .fd()
                .map(sockopt::socket_error);
            let reason = match error {
                Some(Ok(Err(Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH))) => {
                    CloseReason::Vanished
                }
                _ => CloseReason::HangUp,
            };
            self.close(index, reason);
            return;
        }
        if flags.contains(epoll::EventFlags::OUT) && self.connections.is_blocked(index) {
            self.writable(index);
        }
        if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::RDHUP) {
            self.readable(index, flags.contains(epoll::EventFlags::RDHUP));
        }
    }

    /// The timeout of the next wait for sockets.
    fn patience(&self) -> Duration {
        let now = self.clock.monotonic();
        let wait_ms = if !self.fan_out.is_quiet()
            || self.deferred.is_due()
            || self.timers.is_due()
            || self.callers.is_sweeping()
            || self.outbox.has_commands()
            || !self.http2.dirty.is_empty()
        {
            0
        } else if let (Some(pause_ms), None) = (self.acceptor.pause_ms(now), self.stopping) {
            pause_ms.clamp(1, TICK_MS)
        } else if self.stopping.is_some() || self.outbox.has_messages() {
            TICK_MS
        } else if self.connections.slots.used() > 0 {
            TICK_MS * 2
        } else {
            IDLE_WAIT_MS
        };
        let wait_ms = match self.fan_out.backpressure.holds() {
            true => wait_ms.min(LOOK_EVERY_MS),
            false => wait_ms,
        };
        let wake_us = [self.acceptor.batch_at_us(), self.fan_out.wake_us()];
        let wait_ms = wake_us.into_iter().flatten().fold(wait_ms, |ms, at_us| {
            let left_us = at_us.saturating_sub(self.clock.now_us());
            ms.min(left_us.div_ceil(1000))
        });
        Duration::from_millis(wait_ms)
    }

    /// Closes a connection. Its task ends at once; its slot is freed at the end of the turn, so that until then its index names no
    /// other connection.
    fn close(&mut self, index: u32, reason: CloseReason) {
        if !self.connections.is_open(index) {
            return;
        }
        if self.connections.slots[index].flags.has(Flags::HTTP2_STREAM) {
            return self.close_stream(index, reason);
        }
        if self.is_http2(index) {
            self.close_streams(index, reason);
            self.counts.http2_connections -= 1;
        }
        match reason.label() {
            Some(label) => {
                let closed = &self.context.metrics.closed;
                closed.with_label_values(&[label]).inc();
            }
            None => self.counts.hangups += u64::from(reason == CloseReason::HangUp),
        }
        if reason != CloseReason::HangUp
            && self.connections.slots[index].flags.has(Flags::ENCRYPTED)
        {
            self.close_session(index);
        }
        let is_operator = self.connections.slots[index].flags.has(Flags::OPERATOR);
        let turned_away = self.is_turned_away(index);
        let token = self.connections.slots.token(index);
        self.release(index, reason);
        self.counts.connections -= 1;
        match &mut self.operators {
            Some(operators) if is_operator => operators.closed(token),
            _ if turned_away => {
                self.context.turned_away.fetch_sub(1, Ordering::Relaxed);
            }
            _ => {
                self.context.connections.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Ends what a connection, or a stream of one, is doing, and closes its slot.
    fn release(&mut self, index: u32, reason: CloseReason) {
        self.abandon_request(index, reason);
        self.forget_request(index);
        self.forget_lag(index);
        self.unsubscribe(index);
        self.disown(index);
        self.callers.set(index, None, None);
        self.holdings.remove(index);
        self.connections.close(index);
    }
}

const EVENTS_PER_TURN: usize = 512;

/// How long a shard handles sockets before it looks at its commits, so that they do not wait for many requests. Less would
/// make batches small.
const EVENTS_TIME: Duration = Duration::from_micros(400);

/// Events between two looks at the clock.
const EVENTS_AT_ONCE: usize = 8;

/// Bytes of one read, at most.
const SCRATCH_BYTES: usize = 64 << 10;

/// How long a shard without connections waits.
const IDLE_WAIT_MS: u64 = 1000;
