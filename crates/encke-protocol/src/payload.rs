//! The data of records as it goes into bodies and events.

use std::borrow::Cow;

use encke_stream::{Item, MediaKind};

use crate::json;
use crate::run::Run;

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

/// Appends the data of a run's records to a body; `first` if the body has no message yet.
pub(crate) fn push_run(kind: MediaKind, run: &Run<'_>, first: bool, body: &mut Vec<u8>) {
    match run.joined {
        Some(joined) if kind != MediaKind::Json => body.extend_from_slice(joined),
        _ => push_items(kind, run.items, first, body),
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

/// How many records go into one event or message: as many as keep it small, and at least one.
pub(crate) fn together(items: &[Item<'_>]) -> usize {
    let mut bytes = 0;
    items
        .iter()
        .take_while(|item| {
            bytes += item.data.len();
            bytes <= EVENT_BYTES
        })
        .count()
        .max(1)
}

/// An upper bound of the bytes that a record adds to events that several records share. Invalid text has an event by itself.
pub(crate) fn shared_overhead(kind: MediaKind, item: &Item<'_>, event_overhead: usize) -> usize {
    match kind {
        // The text before it has an event by itself, too.
        MediaKind::Text if std::str::from_utf8(item.part()).is_err() => 2 * event_overhead,
        // Of two events in a row, one has more than half of the size.
        _ => 1 + event_overhead * item.data.len() / (EVENT_BYTES / 2),
    }
}

/// Records share an event up to this size. Less makes more events and so more bytes; more makes a partly written event,
/// which a slow connection keeps, larger.
pub(crate) const EVENT_BYTES: usize = 16 << 10;
