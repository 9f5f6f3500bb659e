//! Compares what both sides have of a stream.

use crate::contents::contents;
use crate::copy::StreamCopy;
use crate::copy_failure::CopyFailure;
use crate::journal::BEGINNING;
use crate::protocol_stream::ProtocolStream;
use crate::report::Compared;

/// Reads what was copied of a stream from both sides, and compares the hashes.
pub(crate) fn compare(copy: &StreamCopy) -> Result<Compared, CopyFailure> {
    let (source, destination) = (copy.source(), copy.destination());
    let facts = |stream: &ProtocolStream| {
        stream.head()?.ok_or_else(|| CopyFailure::Protocol {
            url: stream.url.clone(),
            why: "there is no such stream".into(),
        })
    };
    let (from, to) = (facts(source)?, facts(destination)?);
    let json = from.is_json();
    let units = copy.position().units(json);
    let wanted = contents(source, BEGINNING, json, units)?;
    let found = contents(destination, BEGINNING, json, units)?;
    let closed = copy.position().closed;
    let differs = if json != to.is_json() {
        Some("the types differ".to_owned())
    } else if closed && !(from.closed && to.closed) {
        Some("one side is closed, and the other is not".to_owned())
    } else if found.units() != wanted.units() {
        let unit = if json { "messages" } else { "bytes" };
        let (wanted, found) = (wanted.units(), found.units());
        Some(format!(
            "the source has {wanted} {unit}, and the destination {found}"
        ))
    } else {
        (found.hex() != wanted.hex()).then(|| "the contents differ".to_owned())
    };
    Ok(Compared {
        sha256: found.hex(),
        bytes: found.data_bytes(),
        differs,
    })
}
