//! The names of traces and spans, and the header field that carries them (W3C Trace Context).

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};

/// The id of a trace; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(pub(crate) NonZeroU128);

/// The id of a span; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanId(pub(crate) NonZeroU64);

/// The value of a `traceparent` field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace that the client takes part in.
    pub trace: TraceId,
    /// The client's span.
    pub span: SpanId,
    /// Whether the client records its span.
    pub sampled: bool,
}

/// A span by its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// Its trace.
    pub trace: TraceId,
    /// The span.
    pub span: SpanId,
}

impl TraceId {
    /// The bytes of the id, as OTLP has them.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.get().to_be_bytes()
    }
}

impl SpanId {
    /// The bytes of the id, as OTLP has them.
    pub fn to_bytes(self) -> [u8; 8] {
        self.0.get().to_be_bytes()
    }
}

impl TraceParent {
    /// Reads `version-traceid-parentid-flags` in lower-case hexadecimal digits (sections 2.2 and 3.2). Later versions may append more
    /// behind another dash. `None`: it is invalid, and counts as none.
    pub fn parse(value: &[u8]) -> Option<TraceParent> {
        let (known, more) = value.split_at_checked(VERSION_0_BYTES)?;
        let [version, trace, span, flags] =
            [(0, 2), (3, 32), (36, 16), (53, 2)].map(|(at, digits)| hex(&known[at..at + digits]));
        let dashes = [2, 35, 52].iter().all(|at| known[*at] == b'-');
        let version_fits = match version? {
            0 => more.is_empty(),
            0xff => false,
            _ => more.is_empty() || more[0] == b'-',
        };
        let parent = TraceParent {
            trace: TraceId(NonZeroU128::new(trace?)?),
            // 16 digits.
            span: SpanId(NonZeroU64::new(span? as u64)?),
            sampled: flags? & SAMPLED != 0,
        };
        (dashes && version_fits).then_some(parent)
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// At most 32 digits.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(digit))
    })
}

/// The length of a `traceparent` of version 0.
const VERSION_0_BYTES: usize = 55;

/// The bit of the flags that says that the span is recorded.
const SAMPLED: u128 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_valid_field_is_read() {
        let parent = TraceParent::parse(GOOD.as_bytes()).unwrap();
        assert_eq!(parent.trace.to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(parent.span.to_string(), "b7ad6b7169203331");
        assert!(parent.sampled);
        for (flags, sampled) in [("00", false), ("02", false), ("03", true), ("ff", true)] {
            let value = format!("{}{flags}", &GOOD[..53]);
            assert_eq!(
                TraceParent::parse(value.as_bytes()).unwrap().sampled,
                sampled
            );
        }
        let later = format!("cc{}-more", &GOOD[2..]);
        assert_eq!(TraceParent::parse(later.as_bytes()), Some(parent));
    }

    #[test]
    fn an_invalid_field_counts_as_none() {
        let mut bad: Vec<Vec<u8>> = (0..GOOD.len())
            .map(|end| GOOD.as_bytes()[..end].to_vec())
            .collect();
        for at in 0..GOOD.len() {
            for byte in [b'g', b'A', b' ', b'_', 0, 0xff] {
                let mut value = GOOD.as_bytes().to_vec();
                value[at] = byte;
                bad.push(value);
            }
        }
        bad.push(format!("{GOOD}-more").into_bytes());
        bad.push(format!("ff{}", &GOOD[2..]).into_bytes());
        bad.push(
            GOOD.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32))
                .into_bytes(),
        );
        bad.push(
            GOOD.replace("b7ad6b7169203331", &"0".repeat(16))
                .into_bytes(),
        );
        bad.push(vec![b'0'; 1 << 20]);
        for value in bad {
            assert_eq!(
                TraceParent::parse(&value),
                None,
                "{:?}",
                String::from_utf8_lossy(&value)
            );
        }
    }
}
