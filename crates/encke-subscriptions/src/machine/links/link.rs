//! One stream that a subscription follows.

use std::sync::Arc;

use encke_stream::{Offset, StreamNo, born};

use crate::entry::StoredLink;

/// A stream that a subscription follows, or will when it exists.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) path: Arc<str>,
    /// It is followed by its name, and not by the pattern alone.
    pub(crate) explicit: bool,
    /// The stream that has the name.
    pub(crate) stream: Option<StreamNo>,
    /// The position before the first record of the stream, as far as it is known.
    pub(super) begin: Offset,
    /// Up to where it is done: [`Offset::START`] before everything.
    pub(crate) acked: Offset,
    pub(crate) tail: Offset,
    pub(super) request: LinkRequest,
}

/// Whether a request that is not in the journal yet asks for a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkRequest {
    None,
    /// It asks to follow by its name what the pattern includes already.
    Name,
    /// It asks for the whole link.
    Link,
}

impl Link {
    /// A link by the pattern, to a stream that is not known yet.
    pub(super) fn new(path: &str) -> Link {
        Link {
            path: path.into(),
            explicit: false,
            stream: None,
            begin: Offset::START,
            acked: Offset::START,
            tail: Offset::START,
            request: LinkRequest::None,
        }
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.tail > self.acked
    }

    /// Whether reads of the stream can have given the offset, and it is not done already.
    pub(super) fn takes(&self, stream: StreamNo, offset: Offset) -> bool {
        // A fork has no positions between the place where it leaves its source, which is the first cursor, and its own beginning.
        let has_given = offset.sequence.saturating_add(1) >= born(stream);
        let is_repeated = offset == self.acked && offset != Offset::START;
        is_repeated || offset > self.acked && has_given
    }

    /// The link of that number as the journal has it, without what a request asks for.
    pub(super) fn stored(&self, number: u32) -> StoredLink {
        StoredLink {
            link: number,
            path: (&*self.path).into(),
            explicit: self.explicit && self.request != LinkRequest::Name,
            stream: self.stream,
            acked: self.acked,
        }
    }
}
