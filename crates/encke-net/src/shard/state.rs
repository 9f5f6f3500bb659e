//! What a shard owns.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use encke_protocol::Router;
use encke_stream::Views;

use super::admission::Admission;
use super::connections::{Connections, SharedParts};
use super::hand_over::HandOver;
use crate::acceptor::Acceptor;
use crate::access_log::{AccessLogSender, OpenRequests, RequestIds};
use crate::audit::AuditSender;
use crate::broadcast::Broadcaster;
use crate::buffers::Buffers;
use crate::clients::Clients;
use crate::clients::addresses::Addresses;
use crate::compression::Compressors;
use crate::deferred::Deferred;
use crate::feed::congested_streams::CongestedStreams;
use crate::feed::queue::FanOut;
use crate::feed::slot::Token;
use crate::feed::{FeedContext, Feeds};
use crate::metrics::Metrics;
use crate::operators::OperatorListener;
use crate::poller::Poller;
use crate::settings::NetSettings;
use crate::shard_channel::{ShardReceiver, ShardSender};
use crate::timers::Timers;
use crate::transport::tls::Handshakes;

/// What a shard needs of the rest of the server.
pub(crate) struct ShardContext {
    pub(crate) number: u16,
    pub(crate) settings: Arc<NetSettings>,
    pub(crate) router: Router,
    pub(crate) receiver: ShardReceiver,
    pub(crate) sender: Arc<ShardSender>,
    pub(crate) metrics: Metrics,
    pub(crate) addresses: Arc<Addresses>,
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) compressors: Arc<Compressors>,
    /// The congested streams of all shards.
    pub(crate) congested: Arc<CongestedStreams>,
    pub(crate) views: Arc<Views>,
    /// Where ephemeral messages go.
    pub(crate) broadcaster: Broadcaster,
    /// The threads that make handshakes; `None` if connections are plain.
    pub(crate) handshakes: Option<Handshakes>,
    /// Where finished requests go; `None` without an access log.
    pub(crate) access_log: Option<AccessLogSender>,
    /// Where refused and administrative requests go.
    pub(crate) audit: AuditSender,
    /// The key of the ids of requests, the same for all shards.
    pub(crate) request_id_key: u64,
}

impl ShardContext {
    /// Whether acknowledgements of appends may be held back now.
    pub(super) fn may_hold_back(&self) -> bool {
        self.congested.count() > 0 && !self.settings.admission_wait.is_zero()
    }
}

/// One reactor thread's state.
pub(crate) struct Shard {
    pub(super) context: ShardContext,
    pub(super) connections: Connections,
    pub(super) feeds: Feeds,
    pub(super) acceptor: Acceptor,
    /// The first shard has it, if there is an address for operators.
    pub(super) operators: Option<OperatorListener>,
    pub(super) admission: Admission,
    /// Connections that are to be flushed behind the deliveries of this turn.
    pub(super) dirty: Vec<Token>,
    /// Subscribers that are served behind what is in work now.
    pub(super) due: Vec<Token>,
    /// Exchanges whose requests have grown while memory runs short.
    pub(super) grown: Vec<Token>,
    pub(super) timers: Timers,
    pub(super) deferred: Deferred,
    pub(super) hand_over: HandOver,
    /// What connections want is being done.
    pub(super) does_wishes: bool,
    /// What a socket is read into.
    pub(super) scratch: Vec<u8>,
}

impl Shard {
    /// A shard that is ready to run.
    pub(crate) fn new(
        context: ShardContext,
        hand_over: HandOver,
        admission: Admission,
        listener: OwnedFd,
        operators: Option<OwnedFd>,
    ) -> rustix::io::Result<Self> {
        let settings = &context.settings;
        let shards = settings.shards.max(1) as u64;
        let poller = Poller::new(context.receiver.wake_fd())?;
        let operators = operators
            .map(|listener| OperatorListener::new(listener, &poller))
            .transpose()?;
        let ids = RequestIds::new(context.request_id_key, context.number, settings.shards);
        let shared = SharedParts {
            settings: Arc::clone(settings),
            router: context.router.clone(),
            metrics: context.metrics.clone(),
            audit: context.audit.clone(),
            buffers: Arc::clone(&context.buffers),
            compressors: Arc::clone(&context.compressors),
            makes_handshakes: context.handshakes.is_some(),
        };
        let connections = Connections::new(
            shared,
            poller,
            Clients::new(Arc::clone(settings), Arc::clone(&context.addresses)),
            OpenRequests::new(ids, context.access_log.clone(), settings.tracer.clone()),
        );
        let fan_out = FanOut::new(
            settings.ring_bytes,
            context.number,
            Arc::clone(&context.views),
            settings.rest_max,
        );
        let mut shard = Shard {
            feeds: Feeds::new(
                fan_out,
                Arc::clone(context.router.encoders()),
                Arc::clone(&context.views),
                Arc::clone(&context.congested),
            ),
            operators,
            admission,
            hand_over,
            acceptor: Acceptor::new(listener, settings.accept_rate.div_ceil(shards)),
            dirty: Vec::new(),
            due: Vec::new(),
            grown: Vec::new(),
            timers: Timers::new(connections.clock.monotonic()),
            deferred: Deferred::default(),
            does_wishes: false,
            scratch: vec![0; SCRATCH_BYTES],
            connections,
            context,
        };
        let poller = &shard.connections.poller;
        shard.acceptor.listen(poller, true)?;
        Ok(shard)
    }

    /// The feeds, and what they are served with.
    pub(super) fn feeds(&mut self) -> (&mut Feeds, FeedContext<'_>) {
        let Connections {
            slots,
            clock,
            counts,
            ..
        } = &mut self.connections;
        (
            &mut self.feeds,
            FeedContext {
                slots,
                clock,
                counts,
            },
        )
    }
}

/// Bytes of one read, at most.
const SCRATCH_BYTES: usize = 64 << 10;
