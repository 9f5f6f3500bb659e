//! Bulk ingestion into a keyspace of history, no faster than the tree compacts.

use crate::history::error::HistoryError;
use fjall::Keyspace;
use std::time::{Duration, Instant};

/// Takes keys in ascending order, each once; `None` deletes.
pub(crate) type Put<'p> = &'p mut dyn FnMut(&[u8], Option<&[u8]>) -> fjall::Result<()>;

/// Ingests what `all` puts, all of it or nothing. It is durable and can be read on return. `all` must put at least one
/// key.
pub(crate) fn ingest_into(
    keyspace: &Keyspace,
    all: impl FnOnce(Put<'_>) -> fjall::Result<()>,
) -> Result<(), HistoryError> {
    wait_for_compaction(keyspace, COMPACTION_WAIT_MAX)?;
    let mut ingestion = keyspace.start_ingestion()?;
    all(&mut |key, value| match value {
        Some(value) => ingestion.write(key, value),
        None => ingestion.write_tombstone(key),
    })?;
    Ok(ingestion.finish()?)
}

/// Waits until the tree has compacted enough runs. Each ingestion is a run of its own until it is compacted, and the
/// tree's list of files has one byte for their number: with more than 255 runs it writes a list that it can't read. The
/// tree delays its own writes long before that, but no ingestion.
fn wait_for_compaction(keyspace: &Keyspace, timeout: Duration) -> Result<(), HistoryError> {
    let begun = Instant::now();
    // A run has at least one table.
    while keyspace.l0_table_count() >= TABLES_MAX {
        if begun.elapsed() > timeout {
            return Err(HistoryError::from(
                "compaction does not keep up with ingestion".to_owned(),
            ));
        }
        std::thread::sleep(COMPACTION_PAUSE);
    }
    Ok(())
}

/// An ingestion waits while this many tables wait for compaction.
const TABLES_MAX: usize = 64;

/// How long an ingestion waits for compaction, which takes milliseconds for a table and seconds for a large tree.
const COMPACTION_WAIT_MAX: Duration = Duration::from_secs(10);

const COMPACTION_PAUSE: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;
    use fjall::{Database, KeyspaceCreateOptions};

    #[test]
    fn ingestion_waits_for_compaction() {
        let directory = tempfile::tempdir().unwrap();
        let open = |workers| {
            let builder = Database::builder(directory.path());
            let database = builder.worker_threads_unchecked(workers).open().unwrap();
            let keyspace = database
                .keyspace("states", KeyspaceCreateOptions::default)
                .unwrap();
            (database, keyspace)
        };
        // No thread compacts.
        let (database, keyspace) = open(0);
        for number in 0..TABLES_MAX as u32 {
            let number = number.to_be_bytes();
            ingest_into(&keyspace, |put| put(b"all", Some(&number))).unwrap();
        }
        let held_up = wait_for_compaction(&keyspace, Duration::ZERO);
        assert!(held_up.unwrap_err().reason.contains("compaction"));
        drop((database, keyspace));

        // With a thread that compacts, ingestion continues.
        let (_database, keyspace) = open(1);
        ingest_into(&keyspace, |put| put(b"all", Some(b"last"))).unwrap();
        assert_eq!(keyspace.get(b"all").unwrap().as_deref(), Some(&b"last"[..]));
    }
}
