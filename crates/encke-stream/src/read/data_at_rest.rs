//! Reads one stream of a log that is not open. Nothing is changed.

use std::ops::ControlFlow;
use std::path::Path;

use encke_log::{DumpFilter, FrameView, Sequence, dump, state_at_rest};

use crate::RestoreError;
use crate::at_rest::stored;
use crate::stream::record::{Change, KIND_CHANGE};

/// Calls `each` with the sequence and the data of each record of the stream with this name; never if there is none. The log in the
/// directory must not be open.
///
/// # Errors
/// The log is open, damaged, or of another version.
pub fn data_at_rest(
    directory: &Path,
    name: &str,
    each: &mut dyn FnMut(Sequence, &[u8]),
) -> Result<(), RestoreError> {
    let key = stored::name_key(name);
    let (value, upto) = state_at_rest(directory, &key)?;
    let named = value.as_deref().map(stored::named).transpose();
    let mut no = named.map_err(|source| RestoreError::Entry { key, source })?;
    // Of later records the store has nothing.
    let later = DumpFilter {
        from: upto + 1,
        stream: None,
    };
    let dumped = changes(directory, later, &mut |view, change, _| match change {
        Change::Create { name: created, .. } if **created == *name => no = Some(view.stream),
        Change::Delete if no == Some(view.stream) => no = None,
        _ => {}
    });
    dumped?;
    let Some(no) = no else {
        return Ok(());
    };
    let all = DumpFilter {
        from: 0,
        stream: Some(no),
    };
    changes(directory, all, &mut |view, change, data| {
        if change.units() > 0 {
            each(view.sequence, data);
        }
    })
}

fn changes(
    directory: &Path,
    filter: DumpFilter,
    each: &mut dyn FnMut(&FrameView<'_>, &Change<'_>, &[u8]),
) -> Result<(), RestoreError> {
    let mut result = Ok(());
    dump(directory, filter, &mut |view| {
        if view.kind != KIND_CHANGE {
            return ControlFlow::Continue(());
        }
        match Change::decode(view.payload) {
            Ok((change, data)) => {
                each(&view, &change, data);
                ControlFlow::Continue(())
            }
            Err(source) => {
                let sequence = view.sequence;
                result = Err(RestoreError::Record { sequence, source });
                ControlFlow::Break(())
            }
        }
    })?;
    result
}
