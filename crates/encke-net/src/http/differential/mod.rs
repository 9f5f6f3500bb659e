//! The same bytes to this parser and to hyper, and what each makes of them.
//!
//! Two readers that see different requests in the same bytes are how requests are smuggled past a proxy, so every
//! difference is either a fault of ours or one of those in [`differences`], each with its reason.

mod differences;
mod judge;

use super::body::Incoming;
use super::take::{Limits, Step, take};
use differences::Difference;

/// What was made of a connection's input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Conversation {
    pub(super) requests: Vec<Asked>,
    pub(super) end: End,
}

/// A request, as whoever answers it gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    /// The minor version.
    pub(super) version: u8,
    pub(super) method: String,
    /// Path and query.
    pub(super) target: String,
    /// Names in lower case, in order of their names; those of the same name in the order in which they came.
    pub(super) fields: Vec<(String, Vec<u8>)>,
    pub(super) body: Vec<u8>,
}

/// How it stood when nothing more came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// The next request may come.
    Open,
    /// Half of an empty line has come, which is no part of a request.
    Blank,
    /// A part of the next request has come.
    Partial,
    /// The connection was closed behind the last request, as was asked for.
    Closed,
    /// What follows the last request is none; with the reason.
    Rejection(String),
}

/// Gives `input` to both, in pieces that `seed` chooses, and says by which of the known differences they differ.
///
/// # Errors
/// They differ by none of these; the text says how.
fn compare(input: &[u8], seed: u8) -> Result<Option<&'static Difference>, String> {
    let pieces = pieces(input.len(), seed);
    let ours = conversation(input, &pieces);
    let theirs = judge::conversation(input, &pieces);
    if agree(&ours, &theirs) {
        return Ok(None);
    }
    let explained = differences::explain(&ours, &theirs).filter(|difference| {
        // Who waits for more would have refused it as well.
        difference.name != differences::SOONER || {
            let more = [input, b"\r\n\r\n"].concat();
            matches!(judge::conversation(&more, &pieces).end, End::Rejection(_))
        }
    });
    explained.map(Some).ok_or_else(|| {
        format!(
            "in pieces of {pieces:?}, of {:?}\nencke makes {ours:#?}\nhyper makes {theirs:#?}",
            String::from_utf8_lossy(input)
        )
    })
}

/// Whether both found the same. Why they refused, and which of several faults was found first, may differ.
fn agree(ours: &Conversation, theirs: &Conversation) -> bool {
    let same_end = match (&ours.end, &theirs.end) {
        (End::Rejection(_), End::Rejection(_)) => true,
        (ours, theirs) => ours == theirs,
    };
    same_end && ours.requests == theirs.requests
}

/// Takes the input as a shard does.
fn conversation(input: &[u8], pieces: &[usize]) -> Conversation {
    let limits = Limits {
        head_bytes_max: HEAD_BYTES_MAX,
        body_bytes_max: BODY_BYTES_MAX,
    };
    let mut requests = Vec::new();
    let mut body: Option<Incoming> = None;
    // What came and was not taken yet is `input[taken..came]`.
    let (mut taken, mut came) = (0, 0);
    let mut pieces = pieces.iter();
    while came < input.len() {
        let all = input.len() - came;
        came += pieces.next().copied().unwrap_or(all).clamp(1, all);
        while taken < came {
            let mut rest = &input[taken..came];
            let mut closes = false;
            let step = take(&mut body, &mut rest, limits, |head, fields, body| {
                closes = !head.keep_alive;
                let target = match head.query {
                    Some(query) => format!("{}?{query}", head.path),
                    None => head.path.to_owned(),
                };
                requests.push(Asked {
                    version: head.version,
                    method: head.method.to_owned(),
                    target,
                    fields: by_name(fields.iter().map(|&(name, value)| (name, value))),
                    body,
                });
            });
            taken = came - rest.len();
            match step {
                Err(refused) => {
                    let end = End::Rejection(refused.reason.to_owned());
                    return Conversation { requests, end };
                }
                Ok(Step::More) => break,
                Ok(Step::Head { .. } | Step::Request) => {}
            }
            if closes {
                let end = End::Closed;
                return Conversation { requests, end };
            }
        }
    }
    let end = match (&body, &input[taken..came]) {
        (None, b"") => End::Open,
        (None, b"\r") => End::Blank,
        _ => End::Partial,
    };
    Conversation { requests, end }
}

fn by_name<'a>(fields: impl Iterator<Item = (&'a str, &'a [u8])>) -> Vec<(String, Vec<u8>)> {
    let mut fields: Vec<_> = fields
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_vec()))
        .collect();
    fields.sort_by(|one, other| one.0.cmp(&other.0));
    fields
}

/// The sizes of the pieces in which so many bytes come: all at once, one by one, or as it happens.
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

/// The body of the fuzz target `request_hyper`: the first byte chooses the pieces in which the rest comes.
pub fn request_hyper(data: &[u8]) {
    if let Some((&seed, input)) = data.split_first()
        && let Err(how) = compare(input, seed)
    {
        panic!("hyper reads something else: {how}");
    }
}

/// As small as hyper allows.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// More than any input has: hyper has no such bound.
const BODY_BYTES_MAX: usize = 1 << 30;

#[cfg(test)]
mod tests;
