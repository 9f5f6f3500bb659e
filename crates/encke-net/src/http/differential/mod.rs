//! Compares this parser with hyper on the same bytes.
//!
//! Request smuggling needs two parsers that see different requests in the same bytes, so every difference is either a fault of
//! this parser or one of those in [`differences`], each with its reason.

mod conversation;
mod differences;
mod judge;

use super::body::Incoming;
use super::take::{ParseStep, RequestLimits, take};
use conversation::{Conversation, HEAD_BYTES_MAX, InputEnd, ParsedRequest, by_name};
use differences::Difference;

/// Gives `input` to both, in pieces that `seed` chooses. Which of the known differences explains how they differ, if they do.
///
/// # Errors
/// No known difference explains it; the text says how they differ.
fn compare(input: &[u8], seed: u8) -> Result<Option<&'static Difference>, String> {
    let pieces = pieces(input.len(), seed);
    let ours = conversation(input, &pieces);
    let theirs = judge::conversation(input, &pieces);
    if agree(&ours, &theirs) {
        return Ok(None);
    }
    let explained = differences::explain(&ours, &theirs).filter(|difference| {
        // A parser that waits for more would have refused it as well.
        difference.name != differences::SOONER || {
            let more = [input, b"\r\n\r\n"].concat();
            matches!(
                judge::conversation(&more, &pieces).end,
                InputEnd::Refused(_)
            )
        }
    });
    explained.map(Some).ok_or_else(|| {
        format!(
            "in pieces of {pieces:?}, of {:?}\nencke makes {ours:#?}\nhyper makes {theirs:#?}",
            String::from_utf8_lossy(input)
        )
    })
}

/// Whether both see the same. The reason of a refusal may differ, because there may be several faults.
fn agree(ours: &Conversation, theirs: &Conversation) -> bool {
    let same_end = match (&ours.end, &theirs.end) {
        (InputEnd::Refused(_), InputEnd::Refused(_)) => true,
        (ours, theirs) => ours == theirs,
    };
    same_end && ours.requests == theirs.requests
}

/// Takes the input as a shard does.
fn conversation(input: &[u8], pieces: &[usize]) -> Conversation {
    let limits = RequestLimits {
        head_bytes_max: HEAD_BYTES_MAX,
        body_bytes_max: BODY_BYTES_MAX,
    };
    let mut requests = Vec::new();
    let mut body: Option<Incoming> = None;
    // What has arrived and is not taken yet is `input[taken..arrived]`.
    let (mut taken, mut arrived) = (0, 0);
    let mut pieces = pieces.iter();
    while arrived < input.len() {
        let all = input.len() - arrived;
        arrived += pieces.next().copied().unwrap_or(all).clamp(1, all);
        while taken < arrived {
            let mut rest = &input[taken..arrived];
            let mut closes = false;
            let step = take(&mut body, &mut rest, limits, |head, fields, body| {
                closes = !head.keep_alive;
                let target = match head.query {
                    Some(query) => format!("{}?{query}", head.path),
                    None => head.path.to_owned(),
                };
                requests.push(ParsedRequest {
                    version: head.version,
                    method: head.method.to_owned(),
                    target,
                    fields: by_name(fields.iter().map(|&(name, value)| (name, value))),
                    body,
                });
            });
            taken = arrived - rest.len();
            match step {
                Err(refused) => {
                    let end = InputEnd::Refused(refused.reason.to_owned());
                    return Conversation { requests, end };
                }
                Ok(ParseStep::More) => break,
                Ok(ParseStep::Head { .. } | ParseStep::Request) => {}
            }
            if closes {
                let end = InputEnd::Closed;
                return Conversation { requests, end };
            }
        }
    }
    let end = match (&body, &input[taken..arrived]) {
        (None, b"") => InputEnd::Open,
        (None, b"\r") => InputEnd::Blank,
        _ => InputEnd::Partial,
    };
    Conversation { requests, end }
}

/// The sizes of the pieces in which the bytes arrive: all at once, one by one, or at random.
fn pieces(bytes: usize, seed: u8) -> Vec<usize> {
    match seed {
        0 => vec![bytes],
        1 => vec![1; bytes],
        _ => {
            let mut random = u32::from(seed);
            let mut next = || {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (random >> 24) as usize % 40 + 1
            };
            let (mut pieces, mut sum) = (Vec::new(), 0);
            while sum < bytes {
                pieces.push(next());
                sum += pieces.last().copied().unwrap_or(0);
            }
            pieces
        }
    }
}

/// The body of the fuzz target `request_hyper`: the first byte chooses the pieces in which the rest arrives.
pub fn request_hyper(data: &[u8]) {
    if let Some((&seed, input)) = data.split_first()
        && let Err(how) = compare(input, seed)
    {
        panic!("hyper parses something else: {how}");
    }
}

/// More than any input has; hyper has no such bound.
const BODY_BYTES_MAX: usize = 1 << 30;

#[cfg(test)]
mod tests;
