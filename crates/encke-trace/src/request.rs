//! The span of a request.

use std::sync::Arc;
use std::time::Instant;

use crate::command::CommandTrace;
use crate::context::{SpanId, TraceContext};
use crate::sink::SpanSink;
use crate::span::{Moment, SpanKind, TraceSpan};

/// The span of a request that is open.
#[derive(Debug)]
pub struct RequestTrace {
    sink: SpanSink,
    context: TraceContext,
    parent: Option<SpanId>,
    began: Moment,
    /// The pattern that the path matches; empty before it is known.
    pub route: Box<str>,
    /// What the request's caller is.
    pub caller: &'static str,
    /// What another thread does for the request now, and since when.
    part: Option<(&'static str, Instant)>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestOutcome<'a> {
    /// The method.
    pub method: &'a str,
    /// The path, without the query.
    pub path: &'a str,
    /// The version of HTTP.
    pub version: &'static str,
    /// The status of the response.
    pub status: u16,
    /// Bytes of the body.
    pub body_bytes: u64,
    /// `complete`, or why the connection was closed before the response was.
    pub end: &'static str,
}

impl RequestTrace {
    pub(crate) fn new(sink: SpanSink, context: TraceContext, parent: Option<SpanId>) -> Self {
        RequestTrace {
            sink,
            context,
            parent,
            began: Moment::now(),
            route: "".into(),
            caller: "",
            part: None,
        }
    }

    /// The names of the span.
    pub fn context(&self) -> TraceContext {
        self.context
    }

    /// The span of a command of the request, which is handed over now.
    pub fn command(&self) -> Arc<CommandTrace> {
        let context = self.sink.new_span(self.context.trace);
        let command = CommandTrace::new(self.sink.clone(), context, self.context.span);
        Arc::new(command)
    }

    /// Another thread begins to do something for the request.
    pub fn begin_part(&mut self, name: &'static str) {
        self.part = Some((name, Instant::now()));
    }

    /// It is done, and becomes a span. Nothing happens if it had not begun.
    pub fn end_part(&mut self) {
        let Some((name, began)) = self.part.take() else {
            return;
        };
        self.sink.send(TraceSpan {
            context: self.sink.new_span(self.context.trace),
            parent: Some(self.context.span),
            kind: SpanKind::Internal,
            name: name.into(),
            began_ns: self.began.ns_at(began),
            ended_ns: self.began.ns_at(Instant::now()),
            attributes: Vec::new(),
            failed: false,
        });
    }

    /// The request is over.
    pub fn end(mut self, outcome: RequestOutcome<'_>) {
        self.end_part();
        let name = match &*self.route {
            "" => outcome.method.to_owned(),
            route => format!("{} {route}", outcome.method),
        };
        let mut attributes = vec![
            ("http.request.method", outcome.method.into()),
            ("url.path", outcome.path.into()),
            (
                "http.response.status_code",
                u64::from(outcome.status).into(),
            ),
            ("http.response.body.size", outcome.body_bytes.into()),
            ("network.protocol.version", outcome.version.into()),
            ("encke.end", outcome.end.into()),
        ];
        let known = [("http.route", &*self.route), ("encke.caller", self.caller)];
        let known = known.into_iter().filter(|(_, text)| !text.is_empty());
        attributes.extend(known.map(|(name, text)| (name, text.into())));
        self.sink.send(TraceSpan {
            context: self.context,
            parent: self.parent,
            kind: SpanKind::Server,
            name: name.into(),
            began_ns: self.began.ns_at(self.began.steady()),
            ended_ns: self.began.ns_at(Instant::now()),
            attributes,
            failed: outcome.status >= 500,
        });
    }
}
