//! The superblock: the durable [`Statement`] of what a log's directory must hold.
//!
//! Two files, `superblock-0` and `superblock-1`, have the same statement, each under a generation of its own. Both are
//! overwritten in place and synced, one after the other, and the only durable copy is never overwritten first. So one copy is
//! sound after any power cut. The newest sound copy counts.
//!
//! Nothing is stated before it is durable, so after a crash the directory may hold more than the statement: a later
//! segment, later records, a later version of a list. It never holds less. A start that finds less is refused.
//!
//! `statement.rs` is the content, `updater.rs` states the end of the log in the background.

pub(crate) mod statement;
pub(crate) mod updater;

use crate::disk::{Disk, DiskFile};
use crate::error::OpenError;
use crate::superblock::statement::Statement;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io;

/// The content of the files of a superblock.
#[derive(Debug)]
pub(crate) struct Superblocks<F> {
    copies: [SuperblockCopy<F>; 2],
}

/// The content of one copy.
#[derive(Debug)]
enum SuperblockCopy<F> {
    Missing,
    /// The file exists and can't be used; the reason.
    Unsound(F, String),
    Sound(F, u64, Statement),
}

impl<F: DiskFile> Superblocks<F> {
    /// Reads both copies and changes nothing. A copy is unsound when it belongs to a log that is not in `log_ids`,
    /// unless that is empty.
    pub(crate) fn read<D: Disk<File = F>>(
        disk: &D,
        log_ids: &BTreeSet<u64>,
    ) -> Result<Superblocks<F>, OpenError> {
        let read = |name| {
            let file = match disk.open(name) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Ok(SuperblockCopy::Missing);
                }
                Err(error) => return Err(OpenError::io(&disk.path(name), "open", error)),
            };
            let content = content(&file).map_err(|e| OpenError::io(&disk.path(name), "read", e))?;
            Ok(match Statement::decode(&content) {
                Ok((_, statement))
                    if !log_ids.is_empty() && !log_ids.contains(&statement.log_id) =>
                {
                    SuperblockCopy::Unsound(file, "it is the superblock of another log".to_owned())
                }
                Ok((generation, statement)) => SuperblockCopy::Sound(file, generation, statement),
                Err(reason) => SuperblockCopy::Unsound(file, reason.to_owned()),
            })
        };
        Ok(Superblocks {
            copies: [read(NAMES[0])?, read(NAMES[1])?],
        })
    }

    /// Takes the copies out, to overwrite them.
    pub(crate) fn take(&mut self) -> Superblocks<F> {
        let copies = std::mem::replace(
            &mut self.copies,
            [SuperblockCopy::Missing, SuperblockCopy::Missing],
        );
        Superblocks { copies }
    }

    /// The newest sound statement.
    pub(crate) fn statement(&self) -> Option<&Statement> {
        self.newest().map(|(_, statement)| statement)
    }

    /// The highest generation; each written copy has a higher one.
    #[cfg(test)]
    pub(crate) fn generation(&self) -> u64 {
        self.newest().map_or(0, |(generation, _)| generation)
    }

    fn newest(&self) -> Option<(u64, &Statement)> {
        let sound = self.copies.iter().filter_map(|copy| match copy {
            SuperblockCopy::Sound(_, generation, statement) => Some((*generation, statement)),
            _ => None,
        });
        sound.max_by_key(|(generation, _)| *generation)
    }

    /// The copy that is overwritten first: one that is not sound, otherwise the one of the higher generation. It was written
    /// last, and the process that wrote it may have ended before it was durable.
    fn to_overwrite_first(&self) -> usize {
        let generation = |copy: &SuperblockCopy<F>| match copy {
            SuperblockCopy::Sound(_, generation, _) => Some(*generation),
            _ => None,
        };
        match [generation(&self.copies[0]), generation(&self.copies[1])] {
            [Some(_), None] => 1,
            [Some(of_0), Some(of_1)] => usize::from(of_1 > of_0),
            [None, _] => 0,
        }
    }

    /// Whether no copy exists.
    pub(crate) fn are_missing(&self) -> bool {
        self.copies
            .iter()
            .all(|copy| matches!(copy, SuperblockCopy::Missing))
    }

    /// The file name and the problem of each copy that has one. One sound copy is enough for a start.
    pub(crate) fn problems(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        for (copy, name) in self.copies.iter().zip(NAMES) {
            match copy {
                SuperblockCopy::Missing => problems.push((name, "it is missing".to_owned())),
                SuperblockCopy::Unsound(_, reason) => problems.push((name, reason.clone())),
                SuperblockCopy::Sound(..) => {}
            }
        }
        problems
    }
}

/// The superblock of an open log.
#[derive(Debug)]
pub(crate) struct Superblock<F> {
    stated: Mutex<Stated<F>>,
}

#[derive(Debug)]
struct Stated<F> {
    statement: Statement,
    generation: u64,
    files: [F; 2],
    /// Whether each copy holds this statement or the one before it whole.
    sound: [bool; 2],
}

impl<F: DiskFile> Superblock<F> {
    /// States `statement` durably, in place of the copies that were found. A missing copy is made.
    pub(crate) fn write<D: Disk<File = F>>(
        disk: &D,
        found: Superblocks<F>,
        statement: Statement,
    ) -> Result<Superblock<F>, OpenError> {
        let generation = found.newest().map_or(0, |(generation, _)| generation);
        // The process that gave the files their names, those of segments included, may have ended before they were durable.
        // The new statement builds on them.
        disk.sync_names()
            .map_err(|e| OpenError::io(&disk.path(""), "sync the names of files in", e))?;
        let first = found.to_overwrite_first();
        let [copy_0, copy_1] = found.copies;
        let write_copy =
            |at: usize, copy, generation| write_copy(disk, NAMES[at], copy, generation, &statement);
        let files = if first == 1 {
            let file_1 = write_copy(1, copy_1, generation + 1)?;
            [write_copy(0, copy_0, generation + 2)?, file_1]
        } else {
            let file_0 = write_copy(0, copy_0, generation + 1)?;
            [file_0, write_copy(1, copy_1, generation + 2)?]
        };
        Ok(Superblock {
            stated: Mutex::new(Stated {
                statement,
                generation: generation + 2,
                files,
                sound: [true; 2],
            }),
        })
    }

    /// Changes the statement and makes the change durable. After an error the old or the new statement is durable, and
    /// the next change writes both copies again.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Statement)) -> io::Result<()> {
        let mut stated = self.stated.lock();
        let mut statement = stated.statement.clone();
        change(&mut statement);
        if statement == stated.statement && stated.sound == [true; 2] {
            return Ok(());
        }
        // Before the writes: after an error, the change may be durable.
        stated.statement = statement;
        let first = usize::from(stated.sound[0] && !stated.sound[1]);
        for copy in [first, 1 - first] {
            stated.generation += 1;
            let content = stated.statement.encode(stated.generation);
            stated.sound[copy] = false;
            overwrite(&stated.files[copy], &content)?;
            stated.sound[copy] = true;
        }
        Ok(())
    }

    /// The current statement.
    pub(crate) fn statement(&self) -> Statement {
        self.stated.lock().statement.clone()
    }
}

/// The content of a new file with a statement.
pub(crate) fn content_of(statement: &Statement, generation: u64) -> Vec<u8> {
    let mut content = statement.encode(generation);
    content.resize(content.len().max(FILE_BYTES as usize), 0);
    content
}

/// Writes a statement to a copy.
fn write_copy<D: Disk>(
    disk: &D,
    name: &str,
    copy: SuperblockCopy<D::File>,
    generation: u64,
    statement: &Statement,
) -> Result<D::File, OpenError> {
    let content = statement.encode(generation);
    let made = match copy {
        SuperblockCopy::Sound(file, ..) | SuperblockCopy::Unsound(file, _) => {
            overwrite(&file, &content).map(|()| file)
        }
        SuperblockCopy::Missing => create_copy(disk, name, &content),
    };
    made.map_err(|e| OpenError::io(&disk.path(name), "write", e))
}

/// Makes the file of a copy. It gets its name when it is complete.
fn create_copy<D: Disk>(disk: &D, name: &str, content: &[u8]) -> io::Result<D::File> {
    let new = format!("{name}.new");
    let file = disk.create(&new, FILE_BYTES.max(content.len() as u64))?;
    overwrite(&file, content)?;
    disk.rename(&new, name)?;
    disk.sync_names()?;
    Ok(file)
}

fn overwrite<F: DiskFile>(file: &F, content: &[u8]) -> io::Result<()> {
    file.write_at(content, 0)?;
    file.sync()
}

fn content<F: DiskFile>(file: &F) -> io::Result<Vec<u8>> {
    let bytes = file.bytes()?;
    if bytes > FILE_BYTES_MAX {
        return Ok(Vec::new());
    }
    let mut content = vec![0; bytes as usize];
    let read = file.read_at(&mut content, 0)?;
    content.truncate(read);
    Ok(content)
}

/// The names of the two copies.
pub(crate) const NAMES: [&str; 2] = ["superblock-0", "superblock-1"];
/// The size of a new file. Most statements fit, so overwriting it does not change its length.
const FILE_BYTES: u64 = 16 << 10;
/// A larger file is no superblock. A hundred thousand keyspaces fit.
const FILE_BYTES_MAX: u64 = 16 << 20;
