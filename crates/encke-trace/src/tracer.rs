//! Decides what is traced, and takes finished spans.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use encke_mailbox::{Bounds, Gauge, GaugeReader, Lane, Receiver, Sender, mailbox};

use crate::context::{TraceContext, TraceParent};
use crate::ids::IdSource;
use crate::request::RequestTrace;
use crate::span::TraceSpan;

/// What is traced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TracerSettings {
    /// The share of requests that are traced, of those whose clients do not say whether they are: 0 to 1.
    pub ratio: f64,
    /// Spans that wait for the collector; further ones are dropped.
    pub spans_max: usize,
}

/// Decides what is traced, and takes finished spans. Clones are the same tracer.
#[derive(Clone)]
pub struct Tracer {
    shared: Arc<Shared>,
}

struct Shared {
    /// Of 2^63 traces, so many are recorded.
    recorded: u64,
    ids: IdSource,
    queue: Sender<TraceSpan>,
    counts: Arc<SpanCounts>,
}

/// What became of spans.
#[derive(Debug, Default)]
pub struct SpanCounts {
    /// Those that a collector has taken.
    pub exported: AtomicU64,
    /// Those for which the queue had no room.
    pub queue_full: AtomicU64,
    /// Those that the collector has refused, or that it did not take in time.
    pub export_failed: AtomicU64,
}

/// The spans that wait for a collector.
pub struct SpanQueue {
    pub(crate) spans: Receiver<TraceSpan>,
    pub(crate) counts: Arc<SpanCounts>,
}

impl Tracer {
    /// A tracer and the queue of its spans.
    pub fn new(settings: TracerSettings) -> (Tracer, SpanQueue) {
        let bounds = Bounds {
            items_max: settings.spans_max,
            bytes_max: settings.spans_max.saturating_mul(SPAN_BYTES_MEAN),
        };
        let (queue, spans) = mailbox("traces", bounds);
        let counts = Arc::new(SpanCounts::default());
        let tracer = Tracer {
            shared: Arc::new(Shared {
                recorded: (settings.ratio.clamp(0.0, 1.0) * TRACES) as u64,
                ids: IdSource::new(),
                queue,
                counts: Arc::clone(&counts),
            }),
        };
        (tracer, SpanQueue { spans, counts })
    }

    /// The span of a request that begins now. `None`: the request is not traced. A client that says that it records its own span has
    /// its request traced, and one that says that it does not has not.
    pub fn begin(&self, parent: Option<TraceParent>) -> Option<RequestTrace> {
        let trace = match parent {
            Some(parent) if parent.sampled => parent.trace,
            Some(_) => return None,
            None if self.shared.recorded == 0 => return None,
            None => {
                let trace = self.shared.ids.trace();
                // By the id, so that all programs that a trace passes with this share decide alike.
                let place = trace.0.get() as u64 >> 1;
                if place >= self.shared.recorded {
                    return None;
                }
                trace
            }
        };
        let context = TraceContext {
            trace,
            span: self.shared.ids.span(),
        };
        let parent = parent.map(|parent| parent.span);
        Some(RequestTrace::new(self.clone(), context, parent))
    }

    /// A span of the same trace.
    pub(crate) fn beside(&self, context: TraceContext) -> TraceContext {
        TraceContext {
            span: self.shared.ids.span(),
            ..context
        }
    }

    /// Queues a finished span, or drops and counts it.
    pub(crate) fn send(&self, span: TraceSpan) {
        let bytes = span.bytes();
        if self.shared.queue.try_send(Lane::Data, span, bytes).is_err() {
            self.shared
                .counts
                .queue_full
                .fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What became of its spans.
    pub fn counts(&self) -> &SpanCounts {
        &self.shared.counts
    }

    /// The state of the queue, for as long as it is open.
    pub fn watch(&self) -> impl Fn() -> Gauge + Send + 'static {
        let watch: GaugeReader<TraceSpan> = self.shared.queue.watch();
        move || watch.gauge()
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tracer")
    }
}

/// 2^63.
const TRACES: f64 = 9_223_372_036_854_775_808.0;

/// The memory of the queue is bounded, too: spans with long names count for several.
const SPAN_BYTES_MEAN: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn tracer(ratio: f64, spans_max: usize) -> (Tracer, SpanQueue) {
        Tracer::new(TracerSettings { ratio, spans_max })
    }

    fn parent(flags: &str) -> Option<TraceParent> {
        let value = format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}");
        TraceParent::parse(value.as_bytes())
    }

    #[test]
    fn the_client_decides_and_otherwise_the_ratio() {
        for (ratio, least, most) in [(0.0, 0, 0), (0.25, 2_000, 3_000), (1.0, 10_000, 10_000)] {
            let (tracer, _queue) = tracer(ratio, 10);
            let traced = (0..10_000).filter(|_| tracer.begin(None).is_some()).count();
            assert!((least..=most).contains(&traced), "{ratio}: {traced}");
            assert!(tracer.begin(parent("01")).is_some());
            assert!(tracer.begin(parent("00")).is_none());
        }
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let (tracer, mut queue) = tracer(1.0, 3);
        for _ in 0..10 {
            let trace = tracer.begin(None).expect("all are traced");
            trace.end(Default::default());
        }
        let mut spans = Vec::new();
        queue.spans.drain(&mut spans);
        let dropped = tracer.counts().queue_full.load(Ordering::Relaxed);
        assert_eq!((spans.len(), dropped), (3, 7));
    }
}
