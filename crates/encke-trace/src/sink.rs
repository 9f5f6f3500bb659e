//! Where finished spans go, and what became of them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use encke_mailbox::{Bounds, Gauge, GaugeReader, Lane, Receiver, Sender, mailbox};

use crate::context::{TraceContext, TraceId};
use crate::ids::IdSource;
use crate::span::TraceSpan;

/// Names spans, and takes them when they are finished. Clones are the same sink.
#[derive(Clone)]
pub(crate) struct SpanSink {
    shared: Arc<Shared>,
}

struct Shared {
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

impl SpanSink {
    /// A sink and its queue, which holds so many spans.
    pub(crate) fn new(spans_max: usize) -> (SpanSink, SpanQueue) {
        let bounds = Bounds {
            items_max: spans_max,
            bytes_max: spans_max.saturating_mul(SPAN_BYTES_MEAN),
        };
        let (queue, spans) = mailbox("traces", bounds);
        let counts = Arc::new(SpanCounts::default());
        let sink = SpanSink {
            shared: Arc::new(Shared {
                ids: IdSource::new(),
                queue,
                counts: Arc::clone(&counts),
            }),
        };
        (sink, SpanQueue { spans, counts })
    }

    /// A new trace.
    pub(crate) fn new_trace(&self) -> TraceId {
        self.shared.ids.trace()
    }

    /// A new span of a trace.
    pub(crate) fn new_span(&self, trace: TraceId) -> TraceContext {
        TraceContext {
            trace,
            span: self.shared.ids.span(),
        }
    }

    /// Queues a finished span, or drops and counts it.
    pub(crate) fn send(&self, span: TraceSpan) {
        let bytes = span.bytes();
        if self.shared.queue.try_send(Lane::Data, span, bytes).is_err() {
            let dropped = &self.shared.counts.queue_full;
            dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn counts(&self) -> &SpanCounts {
        &self.shared.counts
    }

    pub(crate) fn watch(&self) -> impl Fn() -> Gauge + Send + 'static {
        let watch: GaugeReader<TraceSpan> = self.shared.queue.watch();
        move || watch.gauge()
    }
}

impl fmt::Debug for SpanSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpanSink")
    }
}

/// The memory of the queue is bounded, too: spans with long names count for several.
const SPAN_BYTES_MEAN: usize = 1024;
