//! What requests for several streams are refused for.

use encke_stream::Sequence;

use super::id::Id;
use super::parameters::{Named, digest};
use crate::problem::error;
use crate::response::Response;

/// Refuses an id of a request that names other streams: of one that was not named before, the client would get nothing of what it does
/// not have.
pub(super) fn check_names(id: &Id, named: &[Named]) -> Result<(), Response> {
    match id.names.is_none_or(|names| names == digest(named)) {
        true => Ok(()),
        false => Err(error(
            400,
            "other_streams",
            "the event id is of a request that names other streams, or the same ones in another order: with an id, name what the request named \
             that the id is from; to add or leave out streams, connect without the id, and name each with the nextOffset of its last record, \
             as in stream=news@OFFSET&stream=added@-1",
        )),
    }
}

/// Refuses an id that the server never gave, or whose records it has lost.
pub(super) fn check_id(id: &Id, committed: &[Sequence]) -> Result<(), Response> {
    if id.after.len() != committed.len() {
        let why = format!(
            "the event id has {} positions, one for each log, and this server has {} logs, so it is not from this server",
            id.after.len(),
            committed.len()
        );
        return Err(error(400, "bad_parameter", why));
    }
    let mut positions = id.after.iter().zip(committed);
    if positions.any(|(after, committed)| after > committed) || id.is_ahead_of(committed) {
        return Err(error(
            400,
            "beyond_tail",
            "the event id is beyond the end of the log: this server never gave it, or has lost what \
             was only accepted or written",
        ));
    }
    Ok(())
}

/// The response to an id of a stream before this one of the name, when no other stream is left.
pub(super) fn earlier(name: &str) -> Response {
    error(
        410,
        "before_start",
        format!(
            "the event id is of an earlier stream of the name {name:?}, which was deleted; begin again without the id"
        ),
    )
}

/// The response when one of the streams is not there.
pub(super) fn missing(name: &str, status: u16) -> Response {
    match status {
        410 => error(410, "gone", format!("the stream {name:?} was deleted")),
        _ if name.contains('@') => {
            let why =
                "behind the last @ of a parameter comes -1, now or an offset that the server gave";
            error(
                404,
                "not_found",
                format!("there is no stream {name:?}; {why}"),
            )
        }
        _ => error(404, "not_found", format!("there is no stream {name:?}")),
    }
}

/// Refuses more streams than `max`, more patterns than one subscriber may have on a server with so many logs, and a stream that is named
/// twice.
pub(super) fn check_count(named: &[Named], max: usize, logs: usize) -> Result<(), Response> {
    if named.is_empty() {
        return Err(error(
            400,
            "no_streams",
            "name at least one stream, such as ?stream=news or ?stream=news@-1",
        ));
    }
    if named.len() > max {
        return Err(error(
            400,
            "too_many_streams",
            format!(
                "{} streams are named, at most {max} are allowed for one subscriber",
                named.len()
            ),
        ));
    }
    // A pattern has a place in the lists of each log. One is always possible.
    let patterns = named.iter().filter(|one| one.pattern.is_some()).count();
    let patterns_max = (max / logs).max(1);
    if patterns > patterns_max {
        return Err(error(
            400,
            "too_many_streams",
            format!(
                "{patterns} patterns are named, at most {patterns_max} are allowed for one subscriber of a server with {logs} logs"
            ),
        ));
    }
    for (place, one) in named.iter().enumerate() {
        let Some(other) = named[..place].iter().find(|other| other.overlaps(one)) else {
            continue;
        };
        let why = match other.name == one.name {
            true => format!("the stream {:?} is named more than once", one.name),
            false => format!(
                "{:?} and {:?} name a stream twice: each stream may be named once, by its name or by one pattern",
                other.name, one.name
            ),
        };
        return Err(error(400, "named_twice", why));
    }
    Ok(())
}
