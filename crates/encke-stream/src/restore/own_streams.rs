//! Finds the server's own streams in a log, so that retention leaves their records.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use encke_log::{Disk, ReadError, Reader, StateRange, StreamNo};

use crate::View;
use crate::at_rest::stored;
use crate::stream::number::born;
use crate::stream::own::{APPS, OF_WEBHOOKS, OWN, is_own};

/// The names of the own streams of a log, in memory and in the store.
pub(super) type OwnStreams = BTreeMap<StreamNo, Box<str>>;

pub(super) fn own_streams<D: Disk>(view: &View, log: &Reader<D>) -> Result<OwnStreams, ReadError> {
    let mut own = OwnStreams::new();
    view.for_each(&mut |stream| {
        own.extend(is_own(&stream.name).then(|| (stream.no, stream.name.clone())));
    });
    let mut add_below = |prefix: &str| {
        each_stored(log, prefix, None, &mut |name, no| {
            own.extend(is_own(name).then(|| (no, name.into())));
            ControlFlow::Continue(())
        })
    };
    add_below(&OWN.to_string())?;
    let mut behind: Option<String> = None;
    loop {
        let mut next = None;
        each_stored(log, APPS, behind.as_deref(), &mut |name, _| {
            next = name.strip_prefix(APPS).map(ToOwned::to_owned);
            ControlFlow::Break(())
        })?;
        let Some(name) = next else { return Ok(own) };
        behind = Some(match name.split_once('/') {
            Some((app, _)) => {
                add_below(&format!("{APPS}{app}/{OF_WEBHOOKS}"))?;
                // No channel of the app comes behind it.
                format!("{APPS}{app}/{}", char::MAX)
            }
            None => format!("{APPS}{name}"),
        });
    }
}

/// The name of an own stream that lacks its first record although no floor of its own removes it: an earlier version did not exempt
/// it.
pub(super) fn incomplete<'o, D: Disk>(
    own: &'o OwnStreams,
    log: &Reader<D>,
) -> Result<Option<&'o str>, ReadError> {
    let removed_upto = log.retention_floor();
    for (stream, name) in own {
        let born = born(*stream);
        if born > removed_upto {
            continue;
        }
        let mut is_there = false;
        let end = log.read(*stream, born - 1, born, 1, &mut |_| is_there = true)?;
        if !is_there && end.floor < born {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Gives `each` the names in the store that begin with `prefix`, behind a name, with the numbers of their streams, until it breaks.
/// Damaged entries are left to the loader.
fn each_stored<D: Disk>(
    log: &Reader<D>,
    prefix: &str,
    behind: Option<&str>,
    each: &mut dyn FnMut(&str, StreamNo) -> ControlFlow<()>,
) -> Result<(), ReadError> {
    let (prefix, behind) = (stored::name_key(prefix), behind.map(stored::name_key));
    let range = StateRange {
        prefix: &prefix,
        behind: behind.as_deref(),
    };
    log.states_in(
        range,
        &mut |key, value| match (stored::name_of(key), stored::named(value)) {
            (Ok(name), Ok(no)) => each(name, no),
            _ => ControlFlow::Continue(()),
        },
    )
}
