//! Decides what is traced.

use encke_mailbox::Gauge;

use crate::context::TraceParent;
use crate::request::RequestTrace;
use crate::sink::{SpanCounts, SpanQueue, SpanSink};

/// What is traced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TracerSettings {
    /// The share of requests that are traced, of those whose clients do not say whether they are: 0 to 1.
    pub ratio: f64,
    /// Spans that wait for the collector; further ones are dropped.
    pub spans_max: usize,
}

/// Decides what is traced. Clones are the same tracer.
#[derive(Clone, Debug)]
pub struct Tracer {
    /// Of 2^63 traces, so many are recorded.
    recorded: u64,
    sink: SpanSink,
}

impl Tracer {
    /// A tracer and the queue of its spans.
    pub fn new(settings: TracerSettings) -> (Tracer, SpanQueue) {
        let (sink, queue) = SpanSink::new(settings.spans_max);
        let recorded = (settings.ratio.clamp(0.0, 1.0) * TRACES) as u64;
        (Tracer { recorded, sink }, queue)
    }

    /// The span of a request that begins now. `None`: the request is not traced. A client that says that it records its own span has
    /// its request traced, and one that says that it does not has not.
    pub fn begin(&self, parent: Option<TraceParent>) -> Option<RequestTrace> {
        let trace = match parent {
            Some(parent) if parent.sampled => parent.trace,
            Some(_) => return None,
            None if self.recorded == 0 => return None,
            None => {
                let trace = self.sink.new_trace();
                // By the id, so that all programs with this share that a trace passes decide alike.
                let place = trace.0.get() as u64 >> 1;
                if place >= self.recorded {
                    return None;
                }
                trace
            }
        };
        let context = self.sink.new_span(trace);
        let parent = parent.map(|parent| parent.span);
        Some(RequestTrace::new(self.sink.clone(), context, parent))
    }

    /// What became of its spans.
    pub fn counts(&self) -> &SpanCounts {
        self.sink.counts()
    }

    /// The state of the queue, for as long as it is open.
    pub fn watch(&self) -> impl Fn() -> Gauge + Send + 'static {
        self.sink.watch()
    }
}

/// 2^63.
const TRACES: f64 = 9_223_372_036_854_775_808.0;

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

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
