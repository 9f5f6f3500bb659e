//! How this parser and hyper differ, and why.

use super::conversation::{Conversation, InputEnd};

/// A known difference.
#[derive(Debug)]
pub(super) struct Difference {
    /// Its name, by which the cases refer to it.
    pub(super) name: &'static str,
    /// Where it is allowed or asked for.
    #[cfg_attr(not(test), expect(dead_code, reason = "for people, and a test"))]
    pub(super) section: &'static str,
    /// Why it is so.
    #[cfg_attr(not(test), expect(dead_code, reason = "for people, and a test"))]
    pub(super) why: &'static str,
    /// Whether two conversations differ in this way. They have the same requests, as far as the shorter one goes.
    is: fn(&Conversation, &Conversation) -> bool,
}

/// The difference that explains how two conversations differ; none if they differ in a request that both have.
pub(super) fn explain(ours: &Conversation, theirs: &Conversation) -> Option<&'static Difference> {
    let both = ours.requests.iter().zip(&theirs.requests);
    let same = both.clone().all(|(ours, theirs)| ours == theirs);
    // Only one difference lets this parser find a request where hyper finds none.
    let more = ours.requests.len() > theirs.requests.len();
    DIFFERENCES.iter().find(|difference| {
        let may_be = same && (!more || difference.name == EMPTY_LINES);
        may_be && (difference.is)(ours, theirs)
    })
}

/// Whether this parser refuses what hyper takes, for that reason.
fn stricter(ours: &Conversation, theirs: &Conversation, reason: &str) -> bool {
    let goes_on = theirs.requests.len() > ours.requests.len() || theirs.end == InputEnd::Partial;
    matches!(&ours.end, InputEnd::Refused(why) if why == reason) && goes_on
}

/// Whether this parser closes where hyper goes on.
fn closes_sooner(ours: &Conversation, theirs: &Conversation) -> bool {
    let goes_on = theirs.end != InputEnd::Closed || theirs.requests.len() > ours.requests.len();
    ours.end == InputEnd::Closed && goes_on
}

/// The name of the difference that is checked once more: what hyper waits to see the end of must be no request.
pub(super) const SOONER: &str = "sooner";

/// The name of the only difference in which this parser takes what hyper refuses.
const EMPTY_LINES: &str = "empty_lines";

/// All of them. In each but the last five this parser is the stricter one.
pub(super) const DIFFERENCES: &[Difference] = &[
    Difference {
        name: "two_lengths",
        section: "RFC 9112, sections 6.1 and 6.3",
        why: "Content-Length beside Transfer-Encoding, or twice with the same number, may be refused, and is how requests \
              are smuggled; hyper ignores the one, and takes the other",
        is: |ours, theirs| stricter(ours, theirs, "two_lengths"),
    },
    Difference {
        name: "bad_length",
        section: "RFC 9112, sections 6.1 and 6.3",
        why: "a Content-Length that is no number is refused wherever it stands; behind a Transfer-Encoding hyper does not look \
              at it",
        is: |ours, theirs| {
            let next = theirs.requests.get(ours.requests.len());
            let codes = |(name, _): &(String, _)| name == "transfer-encoding";
            stricter(ours, theirs, "bad_length")
                && next.is_none_or(|request| request.fields.iter().any(codes))
        },
    },
    Difference {
        name: "transfer_encoding",
        section: "RFC 9112, section 6.1",
        why: "a coding that is not understood is answered 501; hyper hands the request on if the last coding is chunked. \
              Chunked twice must not be sent, and no client writes empty members into the list",
        is: |ours, theirs| stricter(ours, theirs, "transfer_encoding"),
    },
    Difference {
        name: "bad_chunk",
        section: "RFC 9112, sections 7.1 and 7.1.1",
        why: "a chunk's size is hexadecimal digits and nothing else: no space, which must not be sent, and no more digits \
              than a size can need; lines end in CR LF, in the trailer too; extensions and trailers have a bound",
        is: |ours, theirs| stricter(ours, theirs, "bad_chunk"),
    },
    Difference {
        name: "body_too_large",
        section: "RFC 9110, section 15.5.14",
        why: "bodies have a bound here, and larger ones are refused before they arrive; hyper leaves that to the service",
        is: |ours, theirs| stricter(ours, theirs, "body_too_large"),
    },
    Difference {
        name: "host",
        section: "RFC 9112, section 3.2",
        why: "a request without Host, with two, or with one that names no host must be answered 400, and so is one whose Host is \
              not that of its target; hyper leaves that to the service",
        is: |ours, theirs| stricter(ours, theirs, "host"),
    },
    Difference {
        name: "bad_target",
        section: "RFC 9112, section 3.2; RFC 9110, sections 4.2.4 and 9.3.6",
        why: "a target is a path, * for OPTIONS, or an http URL without a user's name: hyper drops fragments silently, and takes \
              other schemes, a lone authority, * for every method, and CONNECT",
        is: |ours, theirs| stricter(ours, theirs, "bad_target"),
    },
    Difference {
        name: "bare_lf",
        section: "RFC 9112, section 2.2",
        why: "a lone LF may be taken for a line's end, and hyper does; a proxy that does not would find another head",
        is: |ours, theirs| {
            // One between two requests is none of the next for hyper, so nothing need follow it.
            let refused = matches!(&ours.end, InputEnd::Refused(why) if why == "bare_lf");
            stricter(ours, theirs, "bare_lf") || refused && theirs.end == InputEnd::Open
        },
    },
    Difference {
        name: "expectation",
        section: "RFC 9110, section 10.1.1",
        why: "an expectation other than 100-continue may be answered 417; hyper ignores it",
        is: |ours, theirs| stricter(ours, theirs, "expectation"),
    },
    Difference {
        name: SOONER,
        section: "RFC 9112, section 2.2",
        why: "what can't become a request any more is refused at once; hyper waits for the end of the head first",
        is: |ours, theirs| {
            let waits =
                theirs.end == InputEnd::Partial && ours.requests.len() == theirs.requests.len();
            waits
                && matches!(&ours.end, InputEnd::Refused(why) if why == "malformed" || why == "version")
        },
    },
    Difference {
        name: "close_beside_others",
        section: "RFC 9112, section 9.6; RFC 9110, section 5.5",
        why: "a Connection field that lists close closes, whatever else is in it; hyper does not look at one in which a byte \
              is beyond ASCII",
        is: |ours, theirs| {
            let last = ours.requests.last();
            let fields = last.map_or(&[][..], |request| &request.fields);
            let beyond =
                |(name, value): &(String, Vec<u8>)| name == "connection" && !value.is_ascii();
            fields.iter().any(beyond) && closes_sooner(ours, theirs)
        },
    },
    Difference {
        name: "closes_1_0",
        section: "RFC 9112, section 9.3",
        why: "a connection of HTTP/1.0 is closed behind the answer whatever it asks for, which is always allowed",
        is: |ours, theirs| {
            let last = ours.requests.last();
            let old = last.is_some_and(|request| request.version == 0);
            old && closes_sooner(ours, theirs)
        },
    },
    Difference {
        name: "half_empty_line",
        section: "RFC 9112, section 2.2",
        why: "a CR behind a request may be the beginning of an empty line, so it is kept until the next byte comes; hyper \
              takes it for one at once",
        is: |ours, theirs| ours.end == InputEnd::Blank && theirs.end == InputEnd::Open,
    },
    Difference {
        name: EMPTY_LINES,
        section: "RFC 9112, section 2.2",
        why: "empty lines before a request are dropped as they come, however many; hyper counts them towards its bound on \
              a head",
        // A head that is too large for hyper is too large here as well, unless it is empty lines that make it so.
        is: |ours, theirs| {
            let too_large =
                matches!(&theirs.end, InputEnd::Refused(why) if why.contains("TooLarge"));
            too_large && !matches!(ours.end, InputEnd::Refused(_))
        },
    },
];
