//! Reads a whole stream of the server's own, record by record.

use encke_log::Sequence;

use super::piece::{Fetch, Piece};
use crate::{Offset, Stream};

/// Calls `each` for all records of a stream that hold data, from a position up to the stream's tail. Returns the position behind the
/// last one.
///
/// # Errors
/// Those of `read` and of `each`, which end it.
pub fn each_record<E>(
    stream: &Stream,
    mut from: Offset,
    read: impl Fn(&Fetch) -> Result<Piece, E>,
    mut each: impl FnMut(Sequence, &[u8]) -> Result<(), E>,
) -> Result<Offset, E> {
    let tail = stream.facts().tail;
    while from < tail {
        let piece = read(&Fetch::new(stream, from, tail, PIECE_BYTES))?;
        for item in piece.items() {
            each(item.end.sequence, item.data)?;
        }
        from = piece.end;
        if !piece.more {
            break;
        }
    }
    Ok(from)
}

/// Bytes read at a time.
const PIECE_BYTES: usize = 1 << 20;
