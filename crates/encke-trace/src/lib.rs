//! Traces: what happened to a request and to the record that it appended, as spans, and their way to a collector.
//!
//! [`Tracer`] decides which requests are traced (W3C Trace Context; otherwise a share of them). A [`RequestTrace`] is the span of a
//! request, and a [`CommandTrace`] the one of its append, which goes with the command through the commit to the subscribers. Both
//! send finished spans to a bounded queue ([`queue`](SpanQueue)). [`SpanExporter`] is the thread that sends them to a collector by
//! OTLP over HTTP; `otlp` makes the messages.
//!
//! The one invariant: **no thread that serves clients waits for a trace.** A span for which the queue has no room is dropped and
//! counted.
//!
//! Start reading at [`Tracer::begin`], then [`CommandTrace::committed`] and [`SpanExporter`].

mod command;
mod context;
mod export;
mod ids;
mod otlp;
mod request;
mod sink;
mod span;
mod tracer;

pub use command::CommandTrace;
pub use context::{SpanId, TraceContext, TraceId, TraceParent};
pub use export::{CollectorSettings, SpanExporter};
pub use request::{RequestOutcome, RequestTrace};
pub use sink::{SpanCounts, SpanQueue};
pub use span::{SpanKind, SpanValue, TraceSpan};
pub use tracer::{Tracer, TracerSettings};
