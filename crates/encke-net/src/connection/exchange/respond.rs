//! Responses of an exchange.

use encke_protocol::{Body, ChannelOpening, Response, for_event_source};

use super::state::Exchange;
use super::task::Task;
use super::writer::{ResponseShape, ResponseWriter};
use crate::access_log::NO_RESPONSE;
use crate::connection::context::Context;
use crate::http::Rejection;
use crate::websocket::negotiation::DeflateAgreement;

impl Exchange {
    /// Responds, and then keeps or closes the connection, depending on the request and the server.
    pub(crate) fn respond(
        &mut self,
        response: &Response,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) {
        let note = self.facts.note.take();
        cx.note_response(self.place, response, note.as_deref());
        let is_open = matches!(response.body, Body::Open(_));
        self.facts.keep_alive &= !is_open && !cx.stopping;
        self.answer(response, out, cx);
    }

    /// The client is gone before the response: what it has changed all the same has a line in the audit log.
    pub(crate) fn leave_note(&mut self, cx: &mut Context<'_>) {
        if let Some(note) = self.facts.note.take() {
            cx.add_to_audit(self.place, &note, NO_RESPONSE);
        }
    }

    /// Refuses a complete request before a protocol sees it.
    pub(crate) fn reject(
        &mut self,
        rejection: &Rejection,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) {
        let response = cx.rejection(self.place, rejection);
        self.answer(&response, out, cx);
    }

    /// Responds to a request whose end is not known: nothing follows on the connection.
    pub(crate) fn answer_last(
        &mut self,
        response: &Response,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) {
        self.facts.keep_alive = false;
        self.facts.head_only = false;
        self.answer(response, out, cx);
    }

    /// Whether its request opens a channel.
    pub(crate) fn opens_channel(&self) -> bool {
        matches!(self.task, Task::Opened(_))
    }

    /// Responds to the request that opens a channel in a stream of HTTP/2, whose status is 200 there (RFC 8441, section 5). Returns what
    /// it opens.
    pub(crate) fn accept_channel(
        &mut self,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) -> Option<ChannelOpening> {
        let Task::Opened(opening) = std::mem::take(&mut self.task) else {
            return None;
        };
        let mut opening = *opening;
        let deflate = self.facts.deflate.map(DeflateAgreement::field_value);
        let response = Response {
            status: 200,
            body: Body::Open(Vec::new()),
            ..opening.response
        };
        opening.response = response.field_if("Sec-WebSocket-Extensions", deflate);
        self.open(&opening.response, out, cx);
        Some(opening)
    }

    /// Sends the response that opens a subscription, or a long body.
    pub(super) fn open(
        &mut self,
        response: &Response,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) {
        self.write(response, false, out, cx);
    }

    fn answer(&mut self, response: &Response, out: &mut dyn ResponseWriter, cx: &mut Context<'_>) {
        self.task = Task::Responded;
        self.timer.cut_off = None;
        self.write(response, self.facts.head_only, out, cx);
    }

    fn write(
        &mut self,
        response: &Response,
        head_only: bool,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) {
        let reader = std::mem::take(&mut self.facts.reader);
        let softened = match std::mem::take(&mut self.facts.takes_events) {
            true => for_event_source(response),
            false => None,
        };
        let shape = ResponseShape {
            head_only,
            keep_alive: self.facts.keep_alive,
            http_1_0: self.facts.http_1_0,
            tls: self.facts.tls,
            reader: &reader,
        };
        out.begin(softened.as_ref().unwrap_or(response), shape, cx);
    }
}
