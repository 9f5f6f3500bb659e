//! The ids by which a request is found in the logs of several programs: `X-Request-Id` and the trace id of `traceparent`.

use std::hash::{BuildHasher, RandomState};

use encke_protocol::Headers;
use encke_trace::TraceParent;

/// The `traceparent` of a request. An invalid one, or two of them, count as none (W3C Trace Context, sections 2.3 and 3.2).
pub(crate) fn trace_parent(headers: Headers<'_>) -> Option<TraceParent> {
    TraceParent::parse(only(headers, "traceparent")?)
}

/// The id that the client gave the request in `X-Request-Id`, if it is acceptable: one field of 1 to
/// [`REQUEST_ID_BYTES_MAX`] visible ASCII characters.
pub(crate) fn request_id<'a>(headers: Headers<'a>) -> Option<&'a str> {
    let id = only(headers, "X-Request-Id")?;
    let acceptable = (1..=REQUEST_ID_BYTES_MAX).contains(&id.len())
        && id.iter().all(|byte| byte.is_ascii_graphic());
    std::str::from_utf8(id).ok().filter(|_| acceptable)
}

/// The value of a field that is there once.
fn only<'a>(headers: Headers<'a>, name: &str) -> Option<&'a [u8]> {
    let mut values = headers.all(name);
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

/// Makes ids for requests that have none. They are unique in a process, and by chance (64 bits) among processes.
#[derive(Debug)]
pub(crate) struct RequestIds {
    next: u64,
    step: u64,
    key: u64,
}

impl RequestIds {
    /// The ids of one of `shards` shards. All shards of a process share the key.
    pub(crate) fn new(key: u64, shard: u16, shards: usize) -> RequestIds {
        RequestIds {
            next: u64::from(shard),
            step: shards.max(1) as u64,
            key,
        }
    }

    /// A number that differs in each process.
    pub(crate) fn new_key() -> u64 {
        RandomState::new().hash_one("request ids")
    }

    pub(crate) fn next(&mut self) -> String {
        let number = self.next;
        self.next = number.wrapping_add(self.step);
        // A permutation of all numbers (a round of multiplications by odd constants and shifts), so no two are equal.
        let mut mixed = number.wrapping_add(self.key);
        for odd in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
            mixed = (mixed ^ mixed >> 33).wrapping_mul(odd);
        }
        format!("{:016x}", mixed ^ mixed >> 33)
    }
}

/// The longest id that is taken from a client.
const REQUEST_ID_BYTES_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    fn trace(value: &str) -> Option<String> {
        let fields = [("Traceparent", value.as_bytes())];
        trace_parent(Headers(&fields)).map(|parent| parent.trace.to_string())
    }

    #[test]
    fn a_traceparent_is_read_strictly() {
        let good = format!("00-{TRACE}-00f067aa0ba902b7-01");
        assert_eq!(trace(&good).as_deref(), Some(TRACE));
        for later in ["", "-", "-more", "-00"] {
            let later = format!("cc-{TRACE}-00f067aa0ba902b7-01{later}");
            assert_eq!(trace(&later).as_deref(), Some(TRACE), "{later}");
        }
        for wrong in [
            "",
            "00",
            &format!("00-{TRACE}-00f067aa0ba902b7"),
            &format!("00-{TRACE}-00f067aa0ba902b7-01-"),
            &format!("00-{TRACE}-00f067aa0ba902b7-0g"),
            &format!("cc-{TRACE}-00f067aa0ba902b7-01x"),
            &format!("ff-{TRACE}-00f067aa0ba902b7-01"),
            &format!("0g-{TRACE}-00f067aa0ba902b7-01"),
            &format!("00-{}-00f067aa0ba902b7-01", TRACE.to_uppercase()),
            &format!("00-{TRACE}-00F067AA0BA902B7-01"),
            &format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            &format!("00-{TRACE}-{}-01", "0".repeat(16)),
            &format!("00_{TRACE}_00f067aa0ba902b7_01"),
        ] {
            assert_eq!(trace(wrong), None, "{wrong}");
        }
        let twice = [("traceparent", good.as_bytes()); 2];
        assert_eq!(trace_parent(Headers(&twice)), None);
    }

    #[test]
    fn an_id_is_visible_and_short() {
        let id = |value: &[u8]| request_id(Headers(&[("x-request-id", value)])).map(str::to_owned);
        assert_eq!(id(b"a/b\"c\\").as_deref(), Some("a/b\"c\\"));
        let longest = "x".repeat(REQUEST_ID_BYTES_MAX);
        assert_eq!(id(longest.as_bytes()), Some(longest.clone()));
        for wrong in [&b""[..], b"a b", b"a\tb", b"\xc3\xa4", b"\x1b[31m", b"\x7f"] {
            assert_eq!(id(wrong), None, "{wrong:?}");
        }
        assert_eq!(id(format!("{longest}x").as_bytes()), None);
        let twice = [("X-Request-Id", &b"a"[..]), ("X-Request-Id", b"a")];
        assert_eq!(request_id(Headers(&twice)), None);
    }

    #[test]
    fn generated_ids_differ() {
        let key = RequestIds::new_key();
        let mut seen = BTreeSet::new();
        for shard in 0..3 {
            let mut ids = RequestIds::new(key, shard, 3);
            for _ in 0..1000 {
                let id = ids.next();
                assert_eq!(id.len(), 16);
                assert!(seen.insert(id));
            }
        }
    }

    proptest! {
        /// What is accepted is exactly what the grammar of version 0 allows, and comes back as it was.
        #[test]
        fn accepted_trace_ids_are_those_of_the_grammar(
            value in "(00|01|ff|0)-[0-9a-fA]{31,33}-[0-9a-f]{15,17}-[0-9a-g]{2}(-.{0,3}|x)?",
        ) {
            let parts: Vec<&str> = value.splitn(5, '-').collect();
            let lower = |text: &str, length: usize| text.len() == length
                && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
            let zero = |text: &str| text.bytes().all(|byte| byte == b'0');
            let good = lower(parts[0], 2) && parts[0] != "ff"
                && lower(parts[1], 32) && !zero(parts[1])
                && lower(parts[2], 16) && !zero(parts[2])
                && lower(parts[3], 2)
                && (parts.len() == 4 || parts[0] != "00");
            prop_assert_eq!(trace(&value), good.then(|| parts[1].to_owned()));
        }

        #[test]
        fn no_bytes_make_the_parsers_panic(value in prop::collection::vec(any::<u8>(), 0..140)) {
            let fields = [("traceparent", &value[..]), ("X-Request-Id", &value[..])];
            let _ = trace_parent(Headers(&fields));
            let id = request_id(Headers(&fields));
            prop_assert!(id.is_none_or(|id| id.as_bytes() == value && value.is_ascii()));
        }
    }
}
