//! The marks of history: how far the work in the background has come, durably, and what else has to be known before records
//! are looked at.
//!
//! They are a few small values in a keyspace of their own, each written with a sync.

use crate::Sequence;
use crate::error::OpenError;
use crate::frame::u64_at;
use crate::history::{History, HistoryError};
use crate::retention::Class;
use crate::stored::floor_of;
use crate::tree::Tree;
use fjall::PersistMode;

/// How far the work in the background has come, durably.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// Every record up to this one is in history.
    pub(crate) history_upto: Sequence,
    /// The state store is that after this record.
    pub(crate) checkpoint_upto: Sequence,
}

impl Marks {
    /// Those of a log, which may be without history.
    pub(crate) fn of(history: Option<&History>) -> Result<Marks, OpenError> {
        history.map_or(Ok(Marks::default()), |history| {
            let marks = history.marks();
            marks.map_err(|e| e.on_open(history.path(), "read"))
        })
    }
}

impl History {
    /// Refuses a history of another format, and makes an older one this one's.
    pub(crate) fn check_format(&self) -> Result<(), OpenError> {
        let path = self.path();
        let format = self.mark(FORMAT).map_err(|e| e.on_open(path, "read"))?;
        match format {
            FORMAT_NUMBER => Ok(()),
            // The same without generations.
            1 => self
                .set_marks(&[(FORMAT.to_owned(), FORMAT_NUMBER.to_le_bytes().to_vec())])
                .map_err(|e| e.on_open(path, "write to")),
            _ => {
                let reason =
                    format!("it has format {format}, this Encke reads format {FORMAT_NUMBER} only");
                Err(HistoryError::from(reason).on_open(path, "read"))
            }
        }
    }

    /// How far the work in the background has come.
    pub(crate) fn marks(&self) -> Result<Marks, HistoryError> {
        Ok(Marks {
            history_upto: self.mark(HISTORY_UPTO)?,
            checkpoint_upto: self.mark(CHECKPOINT_UPTO)?,
        })
    }

    /// Notes durably that every record up to this one is in history, and the times of generations as they are now.
    pub(crate) fn set_history_upto(&self, sequence: Sequence) -> Result<(), HistoryError> {
        let mut marks = vec![(HISTORY_UPTO.to_owned(), sequence.to_le_bytes().to_vec())];
        self.with(|open| {
            for generation in open.records.read().all() {
                if let Some((from, upto)) = generation.times_ms {
                    let times = [from.to_le_bytes(), upto.to_le_bytes()].concat();
                    marks.push((times_key(generation.keyspace.name()), times));
                }
            }
            Ok(())
        })?;
        self.set_marks(&marks)
    }

    /// Notes durably that the state store is that after this record.
    pub(crate) fn set_checkpoint_upto(&self, sequence: Sequence) -> Result<(), HistoryError> {
        self.set_marks(&[(CHECKPOINT_UPTO.to_owned(), sequence.to_le_bytes().to_vec())])
    }

    /// The floors of classes, as they are durable.
    pub(crate) fn class_floors(&self) -> Result<Vec<(Class, Sequence)>, HistoryError> {
        self.with(|open| {
            let mut floors = Vec::new();
            for pair in open.marks.prefix(CLASS_FLOOR) {
                let (key, value) = pair.into_inner()?;
                let class = key.get(CLASS_FLOOR.len()).copied();
                floors.extend(class.map(|class| (class, floor_of(Some(value)))));
            }
            Ok(floors)
        })
    }

    /// Notes durably that the records of a class up to `floor` are gone, and removes the generations that have nothing else.
    /// `history_upto` is up to where history has all records. Says how many generations went.
    pub(crate) fn raise_class_floor(
        &self,
        class: Class,
        floor: Sequence,
        history_upto: Sequence,
    ) -> Result<usize, HistoryError> {
        let key = [CLASS_FLOOR.as_bytes(), &[class]].concat();
        self.with(|open| {
            open.marks.insert(key, floor.to_le_bytes())?;
            open.database.persist(PersistMode::SyncAll)?;
            // Those who read them still have them.
            let gone = open.records.write().take_below(class, floor, history_upto);
            for generation in &gone {
                open.marks.remove(times_key(generation.keyspace.name()))?;
                open.database.delete_keyspace(generation.keyspace.clone())?;
            }
            Ok(gone.len())
        })
    }

    fn mark(&self, key: &str) -> Result<u64, HistoryError> {
        self.with(|open| Ok(open.marks.get(key)?)).map(|value| {
            value
                .filter(|value| value.len() == 8)
                .map_or(0, |value| u64_at(&value, 0))
        })
    }

    /// Sets all of them durably, or none.
    fn set_marks(&self, marks: &[(String, Vec<u8>)]) -> Result<(), HistoryError> {
        self.with(|open| {
            let mut batch = open.database.batch().durability(Some(PersistMode::SyncAll));
            for (key, value) in marks {
                batch.insert(&open.marks, key.as_str(), value.as_slice());
            }
            Ok(batch.commit()?)
        })
    }
}

/// Notes in an empty tree, durably, of which format it is.
pub(crate) fn set_format(tree: &Tree) -> Result<(), HistoryError> {
    tree.marks.insert(FORMAT, FORMAT_NUMBER.to_le_bytes())?;
    Ok(tree.database.persist(PersistMode::SyncAll)?)
}

/// The key of the times of a generation.
pub(crate) fn times_key(keyspace: &str) -> String {
    format!("times/{keyspace}")
}

/// What the keys of the floors of classes begin with; the class follows.
const CLASS_FLOOR: &str = "floor/";
const HISTORY_UPTO: &str = "history_upto";
const CHECKPOINT_UPTO: &str = "checkpoint_upto";
const FORMAT: &str = "format";
const FORMAT_NUMBER: u64 = 2;
