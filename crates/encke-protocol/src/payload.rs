//! The data of records as it goes into bodies and events.

use std::borrow::Cow;

use encke_stream::{Item, MediaKind};

use crate::json;

/// The records' data as one body.
pub(crate) fn data(kind: MediaKind, items: &[Item<'_>]) -> Vec<u8> {
    let mut body = Vec::with_capacity(items.iter().map(|item| item.data.len() + 1).sum());
    join(kind, items, &mut body);
    body
}

/// Appends the records' data as one body.
pub(crate) fn join(kind: MediaKind, items: &[Item<'_>], body: &mut Vec<u8>) {
    if kind == MediaKind::Json {
        body.push(b'[');
    }
    push_items(kind, items, true, body);
    if kind == MediaKind::Json {
        body.push(b']');
    }
}

/// Appends the records' data to a body; `first` if the body has no message yet.
pub(crate) fn push_items(kind: MediaKind, items: &[Item<'_>], first: bool, body: &mut Vec<u8>) {
    for (index, item) in items.iter().enumerate() {
        if kind == MediaKind::Json && !(first && index == 0) {
            body.push(b',');
        }
        body.extend_from_slice(&part(kind, item));
    }
}

/// The part of a record that belongs to the reader: all of it, unless a fork cuts it.
fn part<'a>(kind: MediaKind, item: &Item<'a>) -> Cow<'a, [u8]> {
    match kind {
        MediaKind::Json if item.skip == 0 && item.end.units == 0 => item.data.into(),
        MediaKind::Json => json::part(item.data, item.skip, item.take).into(),
        MediaKind::Text | MediaKind::Binary => item.part().into(),
    }
}
