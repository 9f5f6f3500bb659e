//! Asks the router for the action of a request, and keeps what the exchange needs of the answer: the caller, whose credentials
//! bound what it does, and the origin that the response names. A request that must wait first is parked, and asked about again.

use encke_protocol::{
    Action, BodyOwner, CallerInfo, Failure, Headers, OriginReader, Request, Response, problem,
};
use encke_stream::{Command, FleetCommand, LoadError, Lookup, Outcome};

use super::state::{ConnectionFacts, Exchange, RequestFacts};
use super::task::{ParkedRequest, ParkedWithReply, Task};
use super::writer::ResponseWriter;
use crate::connection::context::Context;
use crate::connection::effect::ConnectionEffect;
use crate::http::Rejection;
use crate::http::head::{self, Head};
use crate::http2::request::HTTP_2;
use crate::websocket::handshake;
use crate::websocket::negotiation::DeflateAgreement;

impl Exchange {
    /// Asks the protocols for the action of a request, and performs it. `admitted`: its head was before its body came. `keep_alive`:
    /// the connection may serve another request.
    #[expect(
        clippy::too_many_arguments,
        reason = "these are the parts of a request"
    )]
    pub(crate) fn ask(
        &mut self,
        head: &Head<'_>,
        fields: &[(&str, &[u8])],
        body: Vec<u8>,
        (admitted, keep_alive): (bool, bool),
        of: &ConnectionFacts,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) {
        if !of.probe {
            cx.counts.requests += 1;
            cx.requests.begin_request(self.place, head, fields, cx.peer);
        }
        self.timer.deadline = None;
        self.facts = RequestFacts {
            head_only: head.method == "HEAD",
            keep_alive: keep_alive && head.keep_alive && !cx.stopping && of.turned_away.is_none(),
            http_1_0: head.version == 0,
            takes_events: head.method == "GET"
                && takes_events(fields)
                && cx.router.opens_events(head.path, head.query),
            tls: of.tls,
            reader: OriginReader::Unnamed,
            member: None,
            note: None,
            is_handshake: false,
            accept: None,
            deflate: None,
        };
        if of.operator {
            cx.push(ConnectionEffect::NoteOperator);
        }
        let known = self.known(of);
        let caller = match (admitted, of.turned_away) {
            (true, _) => cx
                .identify(self.place, known, fields)
                .map(|identified| identified.caller),
            (false, Some(denied)) => Err(denied.refused()),
            (false, None) => cx.count_request(self.place, known, fields),
        };
        let caller = caller.and_then(|caller| {
            let opening = match head.version {
                HTTP_2 => handshake::open_http2(head.method, head.protocol, fields),
                minor => handshake::open(head.method, minor, fields),
            };
            let opening = opening.map_err(refused_handshake)?;
            if let Some(opening) = opening {
                self.facts.is_handshake = true;
                let accept = opening.accept.map(String::into_boxed_str);
                let accept = accept.map(Box::<[u8]>::from);
                self.facts.accept = accept.and_then(|accept| accept.try_into().ok());
                self.facts.deflate = match cx.settings.websocket_inflated_bytes_max {
                    0 => None,
                    _ => DeflateAgreement::negotiate(&opening.deflate_offers),
                };
            }
            Ok(caller)
        });
        match caller {
            Ok(caller) => self.route(head, fields, body, caller, out, cx),
            Err(rejection) => {
                self.name_reader(fields, of, cx);
                self.reject(&rejection, out, cx);
            }
        }
    }

    /// Asks whether a request may go on whose body is still to come, and counts it for its client.
    pub(crate) fn admit_head(
        &mut self,
        head: &Head<'_>,
        fields: &[(&str, &[u8])],
        of: &ConnectionFacts,
        cx: &mut Context<'_>,
    ) -> Result<(), Box<Response>> {
        // Whatever happens to its body, the response says who may read it.
        self.name_reader(fields, of, cx);
        let caller = match of.turned_away {
            Some(denied) => Err(denied.refused()),
            None => cx.count_request(self.place, self.known(of), fields),
        };
        let caller = caller.map_err(|rejection| Box::new(cx.rejection(self.place, &rejection)))?;
        let certificate = cx.certificate.clone();
        let caller = CallerInfo {
            certificate: certificate.as_deref(),
            ..caller
        };
        let request = cx.bodyless(head, fields, caller);
        let (caller, app) = match cx.router.head(&request)? {
            BodyOwner::Unknown => (None, None),
            BodyOwner::Caller(caller) => (Some(caller), None),
            BodyOwner::App(app) => (None, Some(app)),
        };
        let exchange = self.place.exchange;
        cx.keep_caller(exchange, caller, None, certificate.as_deref());
        cx.clients.keep_app(exchange, app);
        Ok(())
    }

    /// A name was loaded: asks about its request again.
    pub(super) fn name_loaded(
        &mut self,
        known: Result<Lookup, LoadError>,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) {
        let mut parked = match std::mem::take(&mut self.task) {
            Task::AwaitingLoad(parked) => parked,
            other => {
                self.task = other;
                return;
            }
        };
        match known {
            Ok(known) => {
                parked.held.push(known);
                self.route_again(parked, out, cx);
            }
            Err(error) => {
                self.respond(&problem::failed(load_failure(&error)), out, cx);
            }
        }
    }

    /// Another thread has what the request may wait for: asks about it again.
    pub(super) fn unparked(&mut self, out: &mut dyn ResponseWriter, cx: &mut Context<'_>) {
        match std::mem::take(&mut self.task) {
            Task::AwaitingUnpark(awaited) => self.route_again(Box::new(awaited.request), out, cx),
            other => self.task = other,
        }
    }

    /// The order has answered the barrier of a request: asks about it again.
    pub(super) fn order_awaited(
        &mut self,
        mut parked: Box<ParkedRequest>,
        outcome: Outcome,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) {
        match outcome {
            Outcome::Done => {
                parked.barriers += 1;
                self.route_again(parked, out, cx);
            }
            other => self.respond(&problem::order_unknown(&other), out, cx),
        }
    }

    /// Asks about a new request, and performs the action.
    fn route(
        &mut self,
        head: &Head<'_>,
        fields: &[(&str, &[u8])],
        body: Vec<u8>,
        caller: CallerInfo<'_>,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) {
        let request = Request {
            method: self.method(head.method),
            body,
            upgrade: self.facts.is_handshake,
            ..cx.bodyless(head, fields, caller)
        };
        match self.ask_router(request, out, cx) {
            Action::Load(load) => {
                let parked = ParkedRequest::new(head, fields, caller, load.body);
                self.load(load.name, Box::new(parked), cx);
            }
            Action::Park(response, body) => {
                let request = ParkedRequest::new(head, fields, caller, body);
                self.park(ParkedWithReply { request, response }, cx);
            }
            Action::AwaitOrder(log, body) => {
                let parked = ParkedRequest::new(head, fields, caller, body);
                self.await_order(log, Box::new(parked), cx);
            }
            action => self.perform(action, out, cx),
        }
    }

    /// Asks about a request again that had to wait, and performs the action.
    fn route_again(
        &mut self,
        mut parked: Box<ParkedRequest>,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) {
        let body = std::mem::take(&mut parked.body);
        let fields: Vec<(&str, &[u8])> = parked
            .fields
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        let request = Request {
            method: self.method(&parked.method),
            path: &parked.path,
            query: parked.query.as_deref(),
            headers: Headers(&fields),
            body,
            caller: CallerInfo {
                tls: parked.tls,
                host: parked.host.as_deref(),
                operator: parked.operator,
                probe: parked.probe,
                forwarded: parked.forwarded,
                address: parked.address,
                certificate: None,
            },
            now: cx.clock.time(),
            barriers: parked.barriers,
            upgrade: self.facts.is_handshake,
        };
        match self.ask_router(request, out, cx) {
            Action::Load(load) => {
                parked.body = load.body;
                self.load(load.name, parked, cx);
            }
            // What another request waits for came first. What this one waits for comes or fails within a bounded time.
            Action::Park(response, body) => {
                parked.body = body;
                let request = *parked;
                self.park(ParkedWithReply { request, response }, cx);
            }
            Action::AwaitOrder(log, body) => {
                parked.body = body;
                self.await_order(log, parked, cx);
            }
            action => self.perform(action, out, cx),
        }
    }

    /// The method as the protocols see it: they know the handshake of HTTP/1.1, which is a GET.
    fn method<'m>(&self, sent: &'m str) -> &'m str {
        match self.facts.is_handshake {
            true => "GET",
            false => sent,
        }
    }

    fn ask_router(
        &mut self,
        request: Request<'_>,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) -> Action {
        let certificate = cx.certificate.clone();
        let now = request.now.wall;
        let request = Request {
            caller: CallerInfo {
                certificate: certificate.as_deref(),
                ..request.caller
            },
            ..request
        };
        let path = cx
            .requests
            .span_mut(self.place.exchange)
            .map(|_| request.path);
        let operator = request.caller.operator;
        let routed = cx.router.request(request);
        if let (Some(path), Some(span)) = (path, cx.requests.span_mut(self.place.exchange)) {
            span.route = cx.router.route(path).into();
            span.caller = match routed.caller {
                Some(_) => "identified",
                None if operator => "operator",
                None => "anonymous",
            };
        }
        if let (Some(access), Some(caller)) = (cx.router.access(), &routed.caller)
            && routed.action.may_count()
        {
            access.note_use(caller);
        }
        cx.keep_caller(
            self.place.exchange,
            routed.caller,
            routed.needs,
            certificate.as_deref(),
        );
        if certificate.is_some_and(|certificate| certificate.has_ended(now)) {
            // The client connects again.
            self.facts.keep_alive = false;
            out.leave(cx);
        }
        self.facts.reader = routed.reader;
        self.facts.member = routed.member;
        self.facts.note = routed.note;
        routed.action
    }

    fn load(&mut self, name: Box<str>, parked: Box<ParkedRequest>, cx: &mut Context<'_>) {
        self.task = Task::AwaitingLoad(parked);
        cx.push(ConnectionEffect::LoadName(self.place.exchange, name));
    }

    fn park(&mut self, awaited: ParkedWithReply, cx: &mut Context<'_>) {
        self.task = Task::AwaitingUnpark(Box::new(awaited));
        cx.push(ConnectionEffect::Park(self.place.exchange));
    }

    /// Sends a command that changes nothing: when the order has decided it, this node has everything that was acknowledged before.
    fn await_order(&mut self, log: usize, parked: Box<ParkedRequest>, cx: &mut Context<'_>) {
        self.task = Task::AwaitingOrder(parked);
        let barrier = Command::Fleet(FleetCommand::Barrier { log });
        cx.push(ConnectionEffect::Submit(
            self.place.exchange,
            barrier,
            Vec::new(),
        ));
    }

    /// Notes which origin's scripts may read the response to a request that is refused before it is routed.
    pub(crate) fn name_reader(
        &mut self,
        fields: &[(&str, &[u8])],
        of: &ConnectionFacts,
        cx: &Context<'_>,
    ) {
        self.facts.reader = cx.router.reader(Headers(fields), of.operator);
        self.facts.tls = of.tls;
    }

    /// The same for a request whose head lacks its end or breaks a rule. While no origin has arrived, only a response for all origins can
    /// name a reader.
    pub(crate) fn name_reader_of_input(
        &mut self,
        input: &[u8],
        of: &ConnectionFacts,
        cx: &Context<'_>,
    ) {
        let (fields, is_whole) = head::origin_fields(input);
        self.name_reader(&fields, of, cx);
        if !is_whole && fields.is_empty() && !of.operator {
            self.facts.reader = cx.router.reader_of_any();
        }
    }
}

/// The response to a handshake of WebSocket that breaks a rule.
fn refused_handshake(refusal: handshake::HandshakeRefusal) -> Rejection {
    Rejection::new(refusal.status(), refusal.reason(), refusal.to_string()).fields(refusal.fields())
}

/// Why a request fails whose name can't be loaded.
pub(crate) fn load_failure(error: &LoadError) -> Failure {
    match error {
        LoadError::Contended => Failure::Overloaded,
        _ => Failure::Unreadable,
    }
}

/// Whether a client is an `EventSource`: it takes server-sent events and nothing else (HTML, section 9.2.2), and its cache mode is
/// `no-store`, which sends `Cache-Control: no-cache`. Clients of the protocol say only the first. A response that ends at once has some of
/// them come back without a pause.
fn takes_events(fields: &[(&str, &[u8])]) -> bool {
    let says = |name, value: &str| {
        let said = Headers(fields).first(name).unwrap_or_default();
        said.trim_ascii().eq_ignore_ascii_case(value.as_bytes())
    };
    says("Accept", "text/event-stream") && says("Cache-Control", "no-cache")
}
