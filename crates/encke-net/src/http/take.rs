//! One step through a connection's input: a head, a part of a body, a whole request. It knows no socket, so that the fuzzer
//! takes the same steps as a shard.

use super::Rejection;
use super::body::{Incoming, UNREAD_BODY_BYTES_MAX};
use super::head::{self, Framing, Head, NO_FIELDS};

/// What requests are held to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestLimits {
    pub(crate) head_bytes_max: usize,
    pub(crate) body_bytes_max: usize,
}

impl RequestLimits {
    /// The most bytes of a body. Nothing reads those of most methods, so that they are only as long as harmless clients make them.
    pub(crate) fn body_bytes_max(self, method: &str) -> usize {
        match method {
            "POST" | "PUT" => self.body_bytes_max,
            _ => self.body_bytes_max.min(UNREAD_BODY_BYTES_MAX),
        }
    }
}

/// What a step led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParseStep {
    /// All that can be taken is taken: more must come.
    More,
    /// A head, whose body is on its way.
    Head {
        /// The client waits for a word before it sends the body.
        invites: bool,
    },
    /// A whole request, which was handed over.
    Request,
}

/// Takes one step off the input. `body` is the body that is being received, if there is one; `request` is given what is
/// complete.
pub(crate) fn take(
    body: &mut Option<Incoming>,
    rest: &mut &[u8],
    limits: RequestLimits,
    request: impl FnOnce(&Head<'_>, &[(&str, &[u8])], Vec<u8>),
) -> Result<ParseStep, Rejection> {
    let mut fields = NO_FIELDS;
    if let Some(mut incoming) = body.take() {
        if !incoming.feed(rest)? {
            *body = Some(incoming);
            return Ok(ParseStep::More);
        }
        let (bytes, content) = incoming.into_parts();
        // The head was parsed before it was kept.
        if let Some((head, count)) = head::parse(&bytes, &mut fields)? {
            request(&head, &fields[..count], content);
        }
        return Ok(ParseStep::Request);
    }
    // Empty lines before a request are not a part of it (RFC 9112, section 2.2): they start no clock, and are not kept.
    while let Some(behind) = rest.strip_prefix(b"\r\n") {
        *rest = behind;
    }
    match rest.first() {
        None => return Ok(ParseStep::More),
        Some(b'\n') => return Err(head::bare_lf()),
        Some(_) => {}
    }
    let Some((head, count)) = head::parse(rest, &mut fields)? else {
        if rest.len() > limits.head_bytes_max {
            return Err(head_too_large(limits.head_bytes_max));
        }
        return Ok(ParseStep::More);
    };
    if head.bytes > limits.head_bytes_max {
        return Err(head_too_large(limits.head_bytes_max));
    }
    let behind = &rest[head.bytes..];
    let body_bytes_max = limits.body_bytes_max(head.method);
    match head.framing {
        Framing::None => {
            *rest = behind;
            request(&head, &fields[..count], Vec::new());
        }
        Framing::Length(length)
            if length <= body_bytes_max as u64 && length <= behind.len() as u64 =>
        {
            let (content, behind) = behind.split_at(length as usize);
            *rest = behind;
            request(&head, &fields[..count], content.to_vec());
        }
        framing => {
            let incoming = Incoming::new(&rest[..head.bytes], framing, body_bytes_max)?;
            let invites = head.expects_continue && behind.is_empty();
            *rest = behind;
            *body = Some(incoming);
            return Ok(ParseStep::Head { invites });
        }
    }
    Ok(ParseStep::Request)
}

pub(crate) fn head_too_large(bytes_max: usize) -> Rejection {
    Rejection::new(
        431,
        "head_too_large",
        format!(
            "the request's head is too large: the setting tuning.head-max allows {bytes_max} bytes"
        ),
    )
}
