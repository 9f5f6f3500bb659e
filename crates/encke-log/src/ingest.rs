//! Bulk ingestion into one keyspace of history, as fast as the tree can compact what came in, and no faster.

use crate::history::{HistoryError, Put};
use fjall::Keyspace;
use std::time::{Duration, Instant};

/// Ingests what `all` puts, all of it or nothing. It is durable and can be read on return. There must be something.
pub(crate) fn ingest_into(
    keyspace: &Keyspace,
    all: impl FnOnce(Put<'_>) -> fjall::Result<()>,
) -> Result<(), HistoryError> {
    wait_for_compaction(keyspace, COMPACTION_PATIENCE)?;
    let mut ingestion = keyspace.start_ingestion()?;
    all(&mut |key, value| match value {
        Some(value) => ingestion.write(key, value),
        None => ingestion.write_tombstone(key),
    })?;
    Ok(ingestion.finish()?)
}

/// Each ingestion is a run of its own until the tree has compacted it, and the tree's list of files has one byte for their
/// number: with more than 255 it writes a list that it can't read again. The tree holds up its own writes long before that,
/// but no ingestion, so it is done here.
fn wait_for_compaction(keyspace: &Keyspace, patience: Duration) -> Result<(), HistoryError> {
    let begun = Instant::now();
    // Every run has a table, or several.
    while keyspace.l0_table_count() >= TABLES_MAX {
        if begun.elapsed() > patience {
            return Err(HistoryError::from(
                "it does not get on with compacting what came in".to_owned(),
            ));
        }
        std::thread::sleep(COMPACTION_PAUSE);
    }
    Ok(())
}

/// How many tables may wait to be compacted before an ingestion waits for that.
const TABLES_MAX: usize = 64;

/// How long an ingestion waits for compaction, which takes a moment for a table or two and seconds for all of a large tree.
const COMPACTION_PATIENCE: Duration = Duration::from_secs(10);

const COMPACTION_PAUSE: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;
    use fjall::{Database, KeyspaceCreateOptions};

    #[test]
    fn nothing_is_ingested_faster_than_it_is_compacted() {
        let directory = tempfile::tempdir().unwrap();
        let open = |workers| {
            let builder = Database::builder(directory.path());
            let database = builder.worker_threads_unchecked(workers).open().unwrap();
            let keyspace = database
                .keyspace("states", KeyspaceCreateOptions::default)
                .unwrap();
            (database, keyspace)
        };
        // Nobody compacts.
        let (database, keyspace) = open(0);
        for number in 0..TABLES_MAX as u32 {
            let number = number.to_be_bytes();
            ingest_into(&keyspace, |put| put(b"all", Some(&number))).unwrap();
        }
        let held_up = wait_for_compaction(&keyspace, Duration::ZERO);
        assert!(held_up.unwrap_err().reason.contains("compacting"));
        drop((database, keyspace));

        // Once somebody does, it goes on.
        let (_database, keyspace) = open(1);
        ingest_into(&keyspace, |put| put(b"all", Some(b"last"))).unwrap();
        assert_eq!(keyspace.get(b"all").unwrap().as_deref(), Some(&b"last"[..]));
    }
}
