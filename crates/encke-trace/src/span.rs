//! A finished span.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::context::{SpanId, TraceContext};

/// A finished span.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceSpan {
    /// Its names.
    pub context: TraceContext,
    /// The span that caused it, if any did.
    pub parent: Option<SpanId>,
    /// What it is.
    pub kind: SpanKind,
    /// What happened.
    pub name: Box<str>,
    /// When it began, in nanoseconds since 1970.
    pub began_ns: u64,
    /// When it ended.
    pub ended_ns: u64,
    /// What else is known.
    pub attributes: Vec<(&'static str, SpanValue)>,
    /// The server failed.
    pub failed: bool,
}

/// What a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// A request of a client.
    Server,
    /// A part of it.
    Internal,
    /// The delivery of a record to subscribers.
    Producer,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum SpanValue {
    /// A text.
    Text(Box<str>),
    /// A number.
    Number(i64),
}

impl TraceSpan {
    /// What it takes in memory, about.
    pub(crate) fn bytes(&self) -> usize {
        let text = |value: &SpanValue| match value {
            SpanValue::Text(text) => text.len(),
            SpanValue::Number(_) => 0,
        };
        let attributes = self.attributes.iter();
        let texts: usize = attributes.map(|(_, value)| text(value)).sum();
        size_of::<Self>() + self.name.len() + texts + size_of_val(&*self.attributes)
    }
}

impl From<u64> for SpanValue {
    fn from(number: u64) -> Self {
        SpanValue::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<&str> for SpanValue {
    fn from(text: &str) -> Self {
        SpanValue::Text(text.into())
    }
}

/// One moment by both clocks. All times of a trace follow its steady clock, so that no span has a length below 0 when the time of day
/// is set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    steady: Instant,
    wall_ns: u64,
}

impl Moment {
    pub(crate) fn now() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        Moment {
            steady: Instant::now(),
            wall_ns: nanoseconds(wall.unwrap_or_default()),
        }
    }

    /// Nanoseconds since 1970 of another moment; of this one if that is earlier.
    pub(crate) fn ns_at(self, at: Instant) -> u64 {
        let since = nanoseconds(at.saturating_duration_since(self.steady));
        self.wall_ns.saturating_add(since)
    }

    pub(crate) fn steady(self) -> Instant {
        self.steady
    }
}

/// Enough until the year 2554.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
