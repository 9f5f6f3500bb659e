//! Asks the router for the action of a request, and keeps what the connection needs of the answer: the caller, whose credentials
//! bound what it does, and the origin that the response names. Requests whose token is signed by an unknown key wait here until
//! the keys of its issuer have been fetched.

use std::sync::Arc;

use encke_access::{Caller, ClientCertificate};
use encke_protocol::{
    Action, CallerInfo, HeadAdmission, Headers, OriginReader, Request, Response, problem,
};
use encke_stream::{Command, FleetCommand, Outcome};

use super::Shard;
use crate::connection::active::{AwaitedKeys, ParkedRequest, Task};
use crate::connection::callers::CallerEnd;
use crate::connection::close::CloseReason;
use crate::connection::ending::Ending;
use crate::connection::slot::{Flags, SlotState};
use crate::http::head::Head;

impl Shard {
    /// Asks about a new request, and performs the action.
    pub(super) fn route(
        &mut self,
        index: u32,
        head: &Head<'_>,
        fields: &[(&str, &[u8])],
        body: Vec<u8>,
        caller: CallerInfo<'_>,
    ) {
        let request = Request {
            method: head.method,
            path: head.path,
            query: head.query,
            headers: Headers(fields),
            body,
            caller,
            now: self.clock.time(),
            barriers: 0,
        };
        match self.ask_router(index, request) {
            Action::Load(load) => {
                let parked = ParkedRequest::new(head, fields, caller, load.body);
                self.load_name(index, load.name, Box::new(parked));
            }
            Action::AwaitKeys(response, body) => {
                let request = ParkedRequest::new(head, fields, caller, body);
                self.await_keys(index, AwaitedKeys { request, response });
            }
            Action::AwaitOrder(log, body) => {
                let parked = ParkedRequest::new(head, fields, caller, body);
                self.await_order(index, log, Box::new(parked));
            }
            action => self.perform(index, action),
        }
    }

    /// Asks about a request again that had to wait, and performs the action.
    pub(super) fn route_again(&mut self, index: u32, mut parked: Box<ParkedRequest>) {
        let body = std::mem::take(&mut parked.body);
        let fields: Vec<(&str, &[u8])> = parked
            .fields
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        let request = Request {
            method: &parked.method,
            path: &parked.path,
            query: parked.query.as_deref(),
            headers: Headers(&fields),
            body,
            caller: CallerInfo {
                tls: parked.tls,
                host: parked.host.as_deref(),
                operator: parked.operator,
                forwarded: parked.forwarded,
                certificate: None,
            },
            now: self.clock.time(),
            barriers: parked.barriers,
        };
        match self.ask_router(index, request) {
            Action::Load(load) => {
                parked.body = load.body;
                self.load_name(index, load.name, parked);
            }
            // The keys of another issuer came first. Those of its own come or fail within the time of a fetch.
            Action::AwaitKeys(response, body) => {
                parked.body = body;
                let request = *parked;
                self.await_keys(index, AwaitedKeys { request, response });
            }
            Action::AwaitOrder(log, body) => {
                parked.body = body;
                self.await_order(index, log, parked);
            }
            action => self.perform(index, action),
        }
    }

    /// The attempt to fetch keys is over: asks about all requests again that wait for it.
    pub(super) fn keys_fetched(&mut self) {
        for token in std::mem::take(&mut self.awaiting_keys) {
            let Some(index) = self.connections.find(token) else {
                continue;
            };
            let Some(active) = self.connections.active_mut(index) else {
                continue;
            };
            if !matches!(active.task, Task::AwaitingKeys(_)) {
                continue;
            }
            if let Task::AwaitingKeys(awaited) = std::mem::take(&mut active.task) {
                self.route_again(index, Box::new(awaited.request));
                self.resume(index);
            }
        }
    }

    /// Sends a command that changes nothing: when the order has decided it, this node has everything that was acknowledged before.
    fn await_order(&mut self, index: u32, log: usize, parked: Box<ParkedRequest>) {
        self.connections.begin(index, Task::AwaitingOrder(parked));
        let barrier = Command::Fleet(FleetCommand::Barrier { log });
        self.send_command(index, barrier);
    }

    /// The order has answered the barrier of a request: asks about it again.
    pub(super) fn order_awaited(&mut self, index: u32, outcome: Outcome) {
        let Some(active) = self.connections.active_mut(index) else {
            return;
        };
        let Task::AwaitingOrder(mut parked) = std::mem::take(&mut active.task) else {
            return;
        };
        match outcome {
            Outcome::Done => {
                parked.barriers += 1;
                self.route_again(index, parked);
            }
            other => self.respond(index, &problem::order_unknown(&other)),
        }
        self.resume(index);
    }

    /// Looks at the next connections whose callers' time may be over. False: nothing is left to do.
    pub(super) fn sweep_callers(&mut self) -> bool {
        let access = self.context.router.access();
        let mut over = None;
        let is_revoked = |caller: &encke_access::CallerTag| {
            access.is_some_and(|access| access.is_tag_revoked(caller))
        };
        let busy = self.callers.sweep(is_revoked, &mut over);
        if let Some((index, end)) = over {
            self.end_caller(index, end);
        }
        busy
    }

    /// The origin that the response of a connection names. It is needed once.
    pub(super) fn take_reader(&mut self, index: u32) -> OriginReader {
        if !self.connections.slots[index].flags.has(Flags::HAS_READER) {
            return OriginReader::Unnamed;
        }
        let active = self.connections.active_mut(index);
        match active.and_then(|active| active.reader.take()) {
            Some(origin) => OriginReader::Origin(origin),
            None => OriginReader::Any,
        }
    }

    /// Asks whether a request may go on whose body is still to come, and counts it for its client.
    pub(super) fn admit_head(
        &mut self,
        index: u32,
        head: &Head<'_>,
        fields: &[(&str, &[u8])],
    ) -> Result<(), Box<Response>> {
        let caller = self.caller(index, fields);
        let caller = caller.map_err(|rejection| {
            self.name_reader(index, head, fields);
            Box::new(self.rejection(index, &rejection))
        })?;
        let certificate = self.certificate(index);
        let caller = CallerInfo {
            certificate: certificate.as_deref(),
            ..caller
        };
        let request = self.bodyless(head, fields, caller);
        match self.context.router.head(&request) {
            HeadAdmission::Admitted(caller) => {
                self.keep_caller(index, caller, certificate.as_deref());
                Ok(())
            }
            HeadAdmission::Refused { response, reader } => {
                self.set_reader(index, reader);
                Err(response)
            }
        }
    }

    /// Notes which origin's scripts may read the response to a request that is refused before it is routed.
    pub(super) fn name_reader(&mut self, index: u32, head: &Head<'_>, fields: &[(&str, &[u8])]) {
        let operator = self.connections.slots[index].flags.has(Flags::OPERATOR);
        let caller = CallerInfo {
            operator,
            ..CallerInfo::default()
        };
        let request = self.bodyless(head, fields, caller);
        let reader = self.context.router.reader(&request);
        self.set_reader(index, reader);
    }

    /// A request as far as its head tells.
    fn bodyless<'r>(
        &self,
        head: &Head<'r>,
        fields: &'r [(&'r str, &'r [u8])],
        caller: CallerInfo<'r>,
    ) -> Request<'r> {
        Request {
            method: head.method,
            path: head.path,
            query: head.query,
            headers: Headers(fields),
            body: Vec::new(),
            caller,
            now: self.clock.time(),
            barriers: 0,
        }
    }

    /// Notes who has sent a request, and until when its credentials are good.
    fn keep_caller(
        &mut self,
        index: u32,
        caller: Option<Arc<Caller>>,
        certificate: Option<&ClientCertificate>,
    ) {
        let tag = caller.map(|caller| caller.tag());
        let until_ms = certificate.map(ClientCertificate::ends_at_ms);
        self.callers.set(index, tag, until_ms);
    }

    fn set_reader(&mut self, index: u32, reader: OriginReader) {
        let flags = &mut self.connections.slots[index].flags;
        flags.set(Flags::HAS_READER, reader != OriginReader::Unnamed);
        if let OriginReader::Origin(origin) = reader {
            self.connections.activate(index).reader = Some(origin);
        }
    }

    fn ask_router(&mut self, index: u32, request: Request<'_>) -> Action {
        let certificate = self.certificate(index);
        let now_ms = request.now.wall_ms;
        let request = Request {
            caller: CallerInfo {
                certificate: certificate.as_deref(),
                ..request.caller
            },
            ..request
        };
        let routed = self.context.router.request(request);
        self.keep_caller(index, routed.caller, certificate.as_deref());
        if certificate.is_some_and(|certificate| certificate.has_ended(now_ms)) {
            self.leave_connection(index);
        }
        self.set_reader(index, routed.reader);
        routed.action
    }

    /// The certificate that the client of a connection, or of a stream of one, has presented.
    fn certificate(&self, index: u32) -> Option<Arc<ClientCertificate>> {
        let socket = self.socket_of(index);
        self.connections.transports.certificate(socket)
    }

    /// No further request is served on the connection of this one: the client connects again.
    fn leave_connection(&mut self, index: u32) {
        let flags = &mut self.connections.slots[index].flags;
        flags.set(Flags::KEEP_ALIVE, false);
        if flags.has(Flags::HTTP2_STREAM) {
            let socket = self.socket_of(index);
            self.stop_http2(socket);
        }
    }

    fn await_keys(&mut self, index: u32, awaited: AwaitedKeys) {
        if self.awaiting_keys.len() >= AWAITING_KEYS_MAX {
            self.respond(index, &awaited.response);
            return;
        }
        let token = self.connections.slots.token(index);
        self.awaiting_keys.push(token);
        let task = Task::AwaitingKeys(Box::new(awaited));
        self.connections.begin(index, task);
    }

    /// The time of a connection's caller is over: ends what it does, in the way of its protocol.
    fn end_caller(&mut self, index: u32, end: CallerEnd) {
        let has_ended =
            |certificate: Arc<ClientCertificate>| certificate.has_ended(self.clock.now_ms());
        let reason = match end {
            CallerEnd::Expired if self.certificate(index).is_some_and(has_ended) => {
                CloseReason::CertificateExpired
            }
            CallerEnd::Expired => CloseReason::Expired,
            CallerEnd::Revoked => CloseReason::Revoked,
        };
        match self.connections.slots[index].state {
            SlotState::Subscribed(_) => return self.dismiss_now(index, reason),
            SlotState::Active => {}
            SlotState::Idle | SlotState::Free | SlotState::Member | SlotState::Closed => return,
        }
        let active = self.connections.active(index);
        let ending = active.map(|active| Ending::of(&active.task, end));
        match ending.unwrap_or(Ending::Nothing) {
            Ending::Dismiss => self.dismiss_now(index, reason),
            Ending::AnswerPoll => self.poll_timed_out(index),
            Ending::EndWork => self.end_work(index, reason),
            Ending::EndWait => self.end_wait(index),
            Ending::Finish => self.finish_within_body_timeout(index),
            Ending::Cut => self.cut(index, reason),
            Ending::Nothing => {}
        }
    }
}

/// Requests of a shard that may wait for keys; further ones are refused at once.
const AWAITING_KEYS_MAX: usize = 1_024;
