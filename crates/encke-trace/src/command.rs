//! The span of a command, which goes with it through the commit and to the subscribers of its record.

use std::time::Instant;

use crate::context::{SpanId, TraceContext};
use crate::sink::SpanSink;
use crate::span::{Moment, SpanKind, SpanValue, TraceSpan};

/// The span of a command on its way.
#[derive(Debug)]
pub struct CommandTrace {
    sink: SpanSink,
    context: TraceContext,
    /// The request.
    parent: SpanId,
    submitted: Moment,
}

impl CommandTrace {
    pub(crate) fn new(sink: SpanSink, context: TraceContext, parent: SpanId) -> Self {
        CommandTrace {
            sink,
            context,
            parent,
            submitted: Moment::now(),
        }
    }

    /// Its record is visible. `stages` are the stages of the commit and when each began; the last one ends at `visible`. Before the
    /// first, the command was in a queue.
    pub fn committed(&self, stages: &[(&'static str, Instant)], visible: Instant, sequence: u64) {
        let submitted = self.submitted.steady();
        self.sink.send(TraceSpan {
            attributes: vec![("encke.sequence", sequence.into())],
            ..self.span(self.context, self.parent, "append", (submitted, visible))
        });
        let mut began = ("queue", submitted);
        for next in stages.iter().copied().chain([("", visible)]) {
            let context = self.sink.new_span(self.context.trace);
            let times = (began.1, next.1);
            self.sink
                .send(self.span(context, self.context.span, began.0, times));
            began = next;
        }
    }

    /// A shard has written the record to its subscribers: `delivered` of them have it, and `behind` lag. It had the record from `taken`
    /// on.
    pub fn delivered(
        &self,
        shard: u16,
        (taken, written): (Instant, Instant),
        delivered: u64,
        behind: u64,
    ) {
        let context = self.sink.new_span(self.context.trace);
        let attributes: Vec<(&'static str, SpanValue)> = vec![
            ("encke.shard", u64::from(shard).into()),
            ("encke.subscribers", delivered.into()),
            ("encke.subscribers_behind", behind.into()),
        ];
        self.sink.send(TraceSpan {
            kind: SpanKind::Producer,
            attributes,
            ..self.span(context, self.context.span, "deliver", (taken, written))
        });
    }

    fn span(
        &self,
        context: TraceContext,
        parent: SpanId,
        name: &str,
        (began, ended): (Instant, Instant),
    ) -> TraceSpan {
        TraceSpan {
            context,
            parent: Some(parent),
            kind: SpanKind::Internal,
            name: name.into(),
            began_ns: self.submitted.ns_at(began),
            ended_ns: self.submitted.ns_at(ended),
            attributes: Vec::new(),
            failed: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::tracer::{Tracer, TracerSettings};

    #[test]
    fn stages_and_deliveries_are_parts_of_the_append() {
        let (tracer, mut queue) = Tracer::new(TracerSettings {
            ratio: 1.0,
            spans_max: 100,
        });
        let request = tracer.begin(None).expect("all are traced");
        let command = request.command();
        let at = |ms| command.submitted.steady() + Duration::from_millis(ms);
        command.committed(
            &[("decide", at(1)), ("write", at(3)), ("sync", at(4))],
            at(9),
            7,
        );
        command.delivered(2, (at(10), at(12)), 5, 1);
        let mut spans = Vec::new();
        queue.spans.drain(&mut spans);
        let shown: Vec<_> = spans
            .iter()
            .map(|span| (&*span.name, (span.ended_ns - span.began_ns) / 1_000_000))
            .collect();
        let stages = [
            ("append", 9),
            ("queue", 1),
            ("decide", 2),
            ("write", 1),
            ("sync", 5),
            ("deliver", 2),
        ];
        assert_eq!(shown, stages);
        assert_eq!(spans[0].parent, Some(request.context().span));
        for part in &spans[1..] {
            assert_eq!(part.parent, Some(spans[0].context.span));
            assert_eq!(part.context.trace, request.context().trace);
        }
    }
}
