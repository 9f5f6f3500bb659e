//! How the receiver and tungstenite differ, and why.

use super::judge::CLOSE_CODE;
use super::{Conversation, InputEnd};

/// A known difference.
#[derive(Debug)]
pub(super) struct Difference {
    /// Its name, by which the cases refer to it.
    pub(super) name: &'static str,
    /// Where it is allowed or required.
    pub(super) section: &'static str,
    /// Why it exists.
    pub(super) why: &'static str,
    /// Whether two conversations differ in this way. They have the same messages, as far as the shorter one goes.
    is: fn(&Conversation, &Conversation) -> bool,
}

/// The differences that explain how two conversations differ; none if they differ in a message that both have, or if the receiver
/// takes a message that tungstenite does not.
pub(super) fn explain(
    ours: &Conversation,
    theirs: &Conversation,
) -> impl Iterator<Item = &'static Difference> {
    let known = theirs.messages.starts_with(&ours.messages);
    DIFFERENCES
        .iter()
        .filter(move |difference| known && (difference.is)(ours, theirs))
}

/// Whether the receiver refuses for this fault what tungstenite takes.
fn stricter(ours: &Conversation, theirs: &Conversation, fault: &str) -> bool {
    let goes_on =
        theirs.messages.len() > ours.messages.len() || !matches!(theirs.end, InputEnd::Refused(_));
    goes_on && matches!(&ours.end, InputEnd::Refused(why) if why == fault)
}

/// The name of the difference that is checked once more: tungstenite must refuse the frame when it is complete.
pub(super) const SOONER: &str = "sooner";

/// All of them.
pub(super) const DIFFERENCES: &[Difference] = &[
    Difference {
        name: SOONER,
        section: "RFC 6455, sections 5.2 and 8.1",
        why: "a fault is reported at its byte; tungstenite waits for the end of the header or of the frame",
        is: |ours, theirs| {
            let refused = matches!(ours.end, InputEnd::Refused(_));
            refused && theirs.end == InputEnd::Open && ours.messages == theirs.messages
        },
    },
    Difference {
        name: "length_not_minimal",
        section: "RFC 6455, section 5.2",
        why: "the shortest encoding of a length is required, so that of a control frame is a single byte; tungstenite takes \
              longer ones",
        is: |ours, theirs| {
            stricter(ours, theirs, "LengthNotMinimal") || stricter(ours, theirs, "LongControl")
        },
    },
    Difference {
        name: "bad_gateway",
        section: "RFC 6455, section 7.4.2; the IANA registry of close codes",
        why: "1014 is registered, and may be sent; tungstenite does not know it",
        is: |ours, theirs| {
            let gateway = matches!(ours.end, InputEnd::Closed(Some((1014, _))));
            gateway && theirs.end == InputEnd::Refused(CLOSE_CODE.to_owned())
        },
    },
    Difference {
        name: "flood",
        section: "RFC 6455, section 10.4",
        why: "frames with little content have a bound, because each costs the server more than the client",
        is: |ours, theirs| {
            stricter(ours, theirs, "Flood(Frames)") || stricter(ours, theirs, "Flood(Fragments)")
        },
    },
];
