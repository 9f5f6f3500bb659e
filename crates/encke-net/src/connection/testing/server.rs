//! What connections share: protocols, streams, time, limits.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use encke_access::ClientCertificate;
use encke_clock::Now;
use encke_log::simulated::SimulatedDisk;
use encke_log::{Log, Options, Reader};
use encke_protocol::{Admin, Gate, Probes, ProtocolSettings, ReadyState, Router};
use encke_stream::{
    Command, Fetch, Limits, Loader, LogJournal, Lookup, Machine, Outcome, Piece, View, Views,
    restore_on,
};

use crate::access_log::{OpenRequests, RequestIds};
use crate::audit::{AuditQueue, AuditSender, audit_log};
use crate::buffers::Buffers;
use crate::clients::Clients;
use crate::clients::addresses::Addresses;
use crate::clock::ShardClock;
use crate::compression::Compressors;
use crate::connection::context::Context;
use crate::connection::effect::Effects;
use crate::connection::exchange_id::{ExchangeId, ExchangeIds};
use crate::metrics::{Metrics, ShardCounts};
use crate::settings::NetSettings;

/// What the connections of a shard share, and the streams behind them.
pub(crate) struct TestServer {
    pub(crate) settings: Arc<NetSettings>,
    pub(crate) router: Router,
    pub(crate) clock: ShardClock,
    pub(crate) metrics: Metrics,
    pub(crate) counts: ShardCounts,
    pub(crate) clients: Clients,
    pub(crate) requests: OpenRequests,
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) compressors: Compressors,
    pub(crate) effects: Effects,
    pub(crate) ids: NumberedExchanges,
    pub(crate) makes_handshakes: bool,
    pub(crate) stopping: bool,
    pub(crate) certificate: Option<Arc<ClientCertificate>>,
    /// The address of all clients.
    pub(crate) peer: IpAddr,
    audit: AuditSender,
    _audit_queue: AuditQueue,
    machine: Machine,
    log: Log<SimulatedDisk>,
    loader: Loader<Reader<SimulatedDisk>>,
}

/// The exchanges of connections that have several, named in the order in which they begin.
#[derive(Debug, Default)]
pub(crate) struct NumberedExchanges {
    last: u32,
    pub(crate) open: Vec<ExchangeId>,
    /// Messages, and their channels.
    messages: HashMap<ExchangeId, ExchangeId>,
}

/// 2025-01-01, 00:00 UTC: when every server begins.
pub(crate) const NOW: Now = Now::from_ms(1_735_689_600_000);

impl TestServer {
    pub(crate) fn new(settings: NetSettings) -> Self {
        Self::behind(Gate::default(), settings)
    }

    pub(crate) fn behind(gate: Gate, settings: NetSettings) -> Self {
        let options = Options {
            segment_bytes: 1 << 20,
            history: false,
            ..Options::default()
        };
        let limits = Limits::default();
        let (machine, view, log) =
            restore_on(SimulatedDisk::new(1), options, limits, NOW.steady).unwrap();
        let loader = Loader::new(Arc::clone(&view), log.reader(), limits, Some(NOW.steady));
        let settings = Arc::new(settings);
        let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
        let (audit, audit_queue) = audit_log(metrics.audit_dropped.with_label_values(&["test"]));
        let buffers = Arc::new(Buffers::new(settings.buffers_bytes_max, []));
        let addresses = Arc::new(Addresses::new(&settings));
        TestServer {
            router: router(view, gate),
            clock: ShardClock::simulated(NOW),
            counts: ShardCounts::default(),
            clients: Clients::new(Arc::clone(&settings), addresses),
            requests: OpenRequests::new(RequestIds::new(1, 0, 1), None, None),
            compressors: Compressors::new(settings.compressions_max, Arc::clone(&buffers)),
            buffers,
            effects: Effects::default(),
            ids: NumberedExchanges::default(),
            makes_handshakes: false,
            stopping: false,
            certificate: None,
            peer: [127, 0, 0, 1].into(),
            audit,
            _audit_queue: audit_queue,
            machine,
            log,
            loader,
            metrics,
            settings,
        }
    }

    /// Handles something with what the connections share.
    pub(crate) fn with_context<T>(&mut self, give: impl FnOnce(&mut Context<'_>) -> T) -> T {
        let peer = self.peer;
        let mut cx = Context {
            settings: &self.settings,
            router: &self.router,
            clock: &self.clock,
            metrics: &self.metrics,
            counts: &mut self.counts,
            clients: &mut self.clients,
            requests: &mut self.requests,
            audit: &self.audit,
            buffers: &self.buffers,
            compressors: &self.compressors,
            ids: &mut self.ids,
            effects: &mut self.effects,
            hsts: None,
            makes_handshakes: self.makes_handshakes,
            stopping: self.stopping,
            certificate: self.certificate.clone(),
            peer: &|| Some(peer),
        };
        give(&mut cx)
    }

    /// Decides a command and makes it durable.
    pub(crate) fn commit(&mut self, command: Command) -> Outcome {
        let now = self.clock.time();
        let mut journal = LogJournal {
            log: &mut self.log,
            now: now.wall,
        };
        let outcome = self.machine.apply(command, now, &mut journal);
        self.log.write().unwrap();
        self.log.sync().unwrap();
        self.log.publish();
        self.machine.publish(self.log.next_sequence() - 1);
        for (stream, floor) in self.machine.take_floors() {
            self.log.set_floor(stream, floor);
        }
        outcome
    }

    pub(crate) fn read(&self, fetch: &Fetch) -> Piece {
        Piece::read(&self.log.reader(), fetch).unwrap()
    }

    pub(crate) fn load(&self, name: &str) -> Lookup {
        self.loader.load(name).unwrap()
    }
}

fn router(view: Arc<View>, gate: Gate) -> Router {
    let probes = Probes {
        readiness: Arc::new(|| ReadyState::Ready),
        metrics: Arc::new(|| b"# none\n".to_vec()),
    };
    Router::new(
        Views::one(view),
        ProtocolSettings::default(),
        gate,
        Admin::new(probes),
    )
}

impl ExchangeIds for NumberedExchanges {
    fn begin(&mut self, _: ExchangeId) -> ExchangeId {
        self.last += 1;
        let id = ExchangeId::new(self.last);
        self.open.push(id);
        id
    }

    fn begin_message(&mut self, channel: ExchangeId, _: bool) -> ExchangeId {
        let id = self.begin(channel);
        self.messages.insert(id, channel);
        id
    }

    fn channel_of(&self, exchange: ExchangeId) -> Option<ExchangeId> {
        self.messages.get(&exchange).copied()
    }

    fn note_active(&mut self, _: ExchangeId) {}
}
