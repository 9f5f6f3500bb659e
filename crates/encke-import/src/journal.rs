//! The journal of a stream: pairs of positions that belong together, one in the source and one in the destination.
//!
//! It is a file of JSON lines, which is only appended to. The first line says what is copied:
//!
//! ```json
//! {"import":1,"stream":"chat/ann","source":"https://old.example/v1/stream/chat/ann","destination":"http://127.0.0.1:4437/v1/stream/chat/ann"}
//! ```
//!
//! Each further line is a position. `source` is an offset that the source gave, `offset` the one of the destination that means the same,
//! `records` and `bytes` are what comes before it. `behind` says how many messages, or bytes of a stream that is no JSON, the position is
//! behind `source`, where a page of the source had to be copied in pieces; such lines are for the next run and for
//! [`OffsetMap::resolve`](crate::OffsetMap::resolve), and no part of the map. `found` says that the destination had what is before the position
//! when the import came to it. The last line of a stream that is complete has `closed`.
//!
//! ```json
//! {"source":"0000000000000000_0000000000000029","offset":"0000000000000007_0000000000000000","records":3,"bytes":26}
//! ```
//!
//! A line without its end was cut by a crash, and is removed. A line of the map is synced when it is written, because only the import
//! can make it; other lines need not be.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{SHA256, digest};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};

use crate::stream_list::StreamTask;

/// Why a journal can't be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file can't be read or written.
    #[error("the state {path} can't be {verb}: {why}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        verb: &'static str,
        /// What the system says.
        why: std::io::Error,
    },
    /// A line is none of a journal.
    #[error("the state {path} is damaged at byte {at}: {why}", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the line begins.
        at: u64,
        /// What is wrong.
        why: String,
    },
    /// It belongs to the import of another stream.
    #[error(
        "the state {path} is of an import from {has}, and this one is from {asked}; use another directory for it", path = path.display()
    )]
    OfAnother {
        /// The file.
        path: PathBuf,
        /// Its source.
        has: String,
        /// The source of this import.
        asked: String,
    },
}

/// What a journal is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalHead {
    /// The version of the format.
    import: u32,
    /// The name of the stream at the destination.
    pub stream: String,
    /// The address of the stream at the source.
    pub source: String,
    /// The address of the stream at the destination.
    pub destination: String,
    /// Whether the stream has messages of JSON.
    pub json: bool,
}

/// A position in the source and the one in the destination that means the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PositionPair {
    /// An offset of the source.
    pub source: String,
    /// Messages, or bytes of a stream that is no JSON, between that offset and the position.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub behind: u64,
    /// The offset of the destination.
    pub offset: String,
    /// Messages before the position; of a stream that is no JSON, pieces that were appended.
    pub records: u64,
    /// Bytes of data before the position.
    pub bytes: u64,
    /// The destination had it already, so that several appends may lie between the pair before and this one.
    #[serde(default, skip_serializing_if = "is_false")]
    pub found: bool,
    /// The stream ends here, at both sides.
    #[serde(default, skip_serializing_if = "is_false")]
    pub closed: bool,
}

impl PositionPair {
    /// The beginning of a stream.
    pub fn beginning() -> Self {
        PositionPair {
            source: BEGINNING.to_owned(),
            behind: 0,
            offset: BEGINNING.to_owned(),
            records: 0,
            bytes: 0,
            found: false,
            closed: false,
        }
    }

    /// Messages, or bytes of a stream that is no JSON, before the position.
    pub fn units(&self, json: bool) -> u64 {
        if json { self.records } else { self.bytes }
    }

    /// Whether the source gave an offset for it.
    pub fn is_mapped(&self) -> bool {
        self.behind == 0
    }
}

/// The part of a stream that was copied last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CopiedPart {
    /// Where a page of the source ended before it.
    pub(crate) begin: PositionPair,
    /// How far the copy has come.
    pub(crate) end: PositionPair,
}

/// The journal of a stream that is copied.
#[derive(Debug)]
pub(crate) struct StreamJournal {
    path: PathBuf,
    head: JournalHead,
    /// Open once a line is to be written.
    file: Option<File>,
    /// Where whole lines end.
    end: u64,
}

impl StreamJournal {
    /// Finds the journal of a stream, and what was copied last. Nothing is changed before the first [`append`](Self::append).
    pub(crate) fn find(
        directory: &Path,
        task: &StreamTask,
    ) -> Result<(Self, Option<CopiedPart>), JournalError> {
        let path = directory.join(file_name(&task.name));
        let mut journal = StreamJournal {
            head: JournalHead {
                import: VERSION,
                stream: task.name.clone(),
                source: task.source.clone(),
                destination: task.destination.clone(),
                json: false,
            },
            file: None,
            end: 0,
            path,
        };
        let last = journal.read()?;
        Ok((journal, last))
    }

    /// Appends a pair. It is on the disk when this returns, if it is of the map.
    pub(crate) fn append(&mut self, pair: &PositionPair, json: bool) -> Result<(), JournalError> {
        let is_new = self.end == 0;
        let mut text = String::new();
        if is_new {
            self.head.json = json;
            text += &line(&self.head);
        }
        text += &line(pair);
        let path = &self.path;
        let failed = |why| JournalError::Io {
            path: path.clone(),
            verb: "written",
            why,
        };
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let file = OpenOptions::new()
                    .create(true)
                    .write(true)
                    .truncate(false)
                    .open(path);
                let mut file = file.map_err(failed)?;
                // A line that a crash has cut.
                file.set_len(self.end).map_err(failed)?;
                file.seek(SeekFrom::Start(self.end)).map_err(failed)?;
                self.file.insert(file)
            }
        };
        file.write_all(text.as_bytes()).map_err(failed)?;
        self.end += text.len() as u64;
        if pair.is_mapped() {
            file.sync_data().map_err(failed)?;
        }
        if is_new && let Some(directory) = path.parent() {
            File::open(directory)
                .and_then(|directory| directory.sync_all())
                .map_err(failed)?;
        }
        Ok(())
    }

    /// Closes the file. The next line opens it again.
    pub(crate) fn close(&mut self) {
        self.file = None;
    }

    /// Reads the head and all whole lines.
    fn read(&mut self) -> Result<Option<CopiedPart>, JournalError> {
        let Some(mut reader) = JournalReader::of_file(&self.path)? else {
            return Ok(None);
        };
        if reader.head.source != self.head.source {
            return Err(JournalError::OfAnother {
                path: self.path.clone(),
                has: reader.head.source,
                asked: self.head.source.clone(),
            });
        }
        let json = reader.head.json;
        self.head.json = json;
        let mut begin = PositionPair::beginning();
        let mut end = PositionPair::beginning();
        while let Some(pair) = reader.next()? {
            if end.is_mapped() && end.units(json) < pair.units(json) {
                begin = end;
            }
            end = pair;
        }
        let is_empty = reader.at == reader.head_bytes;
        self.end = reader.at;
        Ok((!is_empty).then_some(CopiedPart { begin, end }))
    }
}

/// The pairs of a journal, in order.
pub(crate) struct JournalReader {
    path: PathBuf,
    lines: BufReader<File>,
    /// Where the next line begins.
    at: u64,
    head_bytes: u64,
    pub(crate) head: JournalHead,
}

impl JournalReader {
    /// Opens the journal of a stream. `None`: there is none.
    pub(crate) fn open(directory: &Path, stream: &str) -> Result<Option<Self>, JournalError> {
        JournalReader::of_file(&directory.join(file_name(stream)))
    }

    fn of_file(path: &Path) -> Result<Option<Self>, JournalError> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(why) => {
                return Err(JournalError::Io {
                    path: path.to_owned(),
                    verb: "read",
                    why,
                });
            }
        };
        let mut lines = BufReader::new(file);
        let head = read_head(&mut lines, path)?;
        Ok(head.map(|(head, head_bytes)| JournalReader {
            path: path.to_owned(),
            lines,
            at: head_bytes,
            head_bytes,
            head,
        }))
    }

    /// The next pair; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<PositionPair>, JournalError> {
        let at = self.at;
        let mut text = String::new();
        let read = self.lines.read_line(&mut text);
        let read = read.map_err(|why| JournalError::Io {
            path: self.path.clone(),
            verb: "read",
            why,
        })?;
        if !text.ends_with('\n') {
            return Ok(None);
        }
        self.at += read as u64;
        let pair = serde_json::from_str(&text);
        pair.map(Some).map_err(|why| JournalError::Damaged {
            path: self.path.clone(),
            at,
            why: why.to_string(),
        })
    }
}

/// The first line, and its length. `None` if a crash has cut it.
fn read_head(
    lines: &mut impl BufRead,
    path: &Path,
) -> Result<Option<(JournalHead, u64)>, JournalError> {
    let mut text = Vec::new();
    let read = lines.take(LINE_BYTES_MAX).read_until(b'\n', &mut text);
    let read = read.map_err(|why| JournalError::Io {
        path: path.to_owned(),
        verb: "read",
        why,
    })?;
    if text.last() != Some(&b'\n') {
        return Ok(None);
    }
    let damaged = |why: String| JournalError::Damaged {
        path: path.to_owned(),
        at: 0,
        why,
    };
    let head: JournalHead =
        serde_json::from_slice(&text).map_err(|why| damaged(why.to_string()))?;
    if head.import != VERSION {
        let version = head.import;
        return Err(damaged(format!(
            "its version is {version}; this program knows {VERSION}"
        )));
    }
    Ok(Some((head, read as u64)))
}

/// The name of the journal of a stream: the stream's own, as far as file names allow.
pub(crate) fn file_name(stream: &str) -> String {
    let name = utf8_percent_encode(stream, IN_FILE_NAMES).to_string();
    if name.len() <= NAME_BYTES_MAX {
        return format!("{name}.jsonl");
    }
    let hash = digest(&SHA256, stream.as_bytes());
    let hash: String = hash.as_ref()[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    // Escapes are ASCII, and one that is cut is none of a name that is whole.
    format!("{}~{hash}.jsonl", &name[..NAME_BYTES_MAX - hash.len() - 1])
}

fn line(value: &impl Serialize) -> String {
    let mut text = serde_json::to_string(value).expect("texts and numbers can be written");
    text.push('\n');
    text
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_false(value: &bool) -> bool {
    !value
}

/// The offset of the beginning of every stream.
pub(crate) const BEGINNING: &str = "-1";

const VERSION: u32 = 1;

/// Characters of names of streams that stay as they are in names of files.
const IN_FILE_NAMES: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

/// Linux allows 255 bytes, of which the ending takes six.
const NAME_BYTES_MAX: usize = 240;

/// More than a line can have: offsets and addresses are parts of heads of responses and requests.
const LINE_BYTES_MAX: u64 = 256 << 10;

#[cfg(test)]
mod tests;
