//! The acknowledgement log: the acknowledged messages of a run, recorded for a later check.
//!
//! A line per acknowledged message: the stream's name (spaces and percent signs percent-encoded),
//! the producer's number, the sequence number. Runs append to it, so that one log can cover
//! several crashes. A last line without its end was cut off and does not count; the next run marks it
//! with `#`.

use crate::BenchError;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};

/// An open log. Entries are in the file after the next flush.
#[derive(Debug)]
pub(crate) struct AckLog {
    path: PathBuf,
    file: File,
    batch: Vec<u8>,
}

/// How a line ends that was cut off in the writing.
const CUT_OFF: &[u8] = b"#\n";

/// The content of a log: for each stream and producer, the acknowledged numbers in ascending order.
pub(crate) type Promises = BTreeMap<String, BTreeMap<u64, Vec<u64>>>;

impl AckLog {
    /// Opens the log for appending, and makes it if need be.
    pub(crate) fn open(path: &Path) -> Result<Self, BenchError> {
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(path)
            .map_err(|source| error("open", path, source))?;
        // An earlier run may have left half a line, which must not read as a whole one.
        if !ends_with_newline(path)? {
            file.write_all(CUT_OFF)
                .map_err(|source| error("write", path, source))?;
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            batch: Vec::new(),
        })
    }

    /// Notes one acknowledged message.
    pub(crate) fn record(&mut self, stream: &str, producer: u64, sequence: u64) {
        let stream = stream.replace('%', "%25").replace(' ', "%20");
        writeln!(self.batch, "{stream} {producer} {sequence}")
            .expect("writing to a vector can't fail");
    }

    /// Hands all that was noted to the operating system.
    pub(crate) fn flush(&mut self) -> Result<(), BenchError> {
        if !self.batch.is_empty() {
            self.file
                .write_all(&self.batch)
                .map_err(|source| error("write", &self.path, source))?;
            self.batch.clear();
        }
        Ok(())
    }
}

/// Reads a log.
pub(crate) fn read(path: &Path) -> Result<Promises, BenchError> {
    let file = File::open(path).map_err(|source| error("open", path, source))?;
    let mut reader = BufReader::new(file);
    let mut promises = Promises::new();
    let mut line = String::new();
    for number in 1.. {
        line.clear();
        reader
            .read_line(&mut line)
            .map_err(|source| error("read", path, source))?;
        let Some(whole) = line.strip_suffix('\n') else {
            break;
        };
        match parse(whole) {
            Some((stream, producer, sequence)) => {
                promises
                    .entry(stream)
                    .or_default()
                    .entry(producer)
                    .or_default()
                    .push(sequence);
            }
            None if line.as_bytes().ends_with(CUT_OFF) => {}
            None => {
                return Err(BenchError::BadAckLog {
                    path: path.to_owned(),
                    line: number,
                });
            }
        }
    }
    for sequences in promises.values_mut().flat_map(BTreeMap::values_mut) {
        sequences.sort_unstable();
        sequences.dedup();
    }
    Ok(promises)
}

fn parse(line: &str) -> Option<(String, u64, u64)> {
    let mut words = line.split(' ');
    let stream = words.next()?.replace("%20", " ").replace("%25", "%");
    let producer = words.next()?.parse().ok()?;
    let sequence = words.next()?.parse().ok()?;
    words
        .next()
        .is_none()
        .then_some((stream, producer, sequence))
}

fn ends_with_newline(path: &Path) -> Result<bool, BenchError> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let mut file = File::open(path).map_err(|source| error("open", path, source))?;
    let mut last = [b'\n'];
    if file
        .metadata()
        .map_err(|source| error("read", path, source))?
        .len()
        > 0
    {
        file.seek(SeekFrom::End(-1))
            .and_then(|_| file.read_exact(&mut last))
            .map_err(|source| error("read", path, source))?;
    }
    Ok(last == [b'\n'])
}

fn error(action: &'static str, path: &Path, source: std::io::Error) -> BenchError {
    BenchError::File {
        action,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_read_over_runs_and_cuts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("acks");
        let mut log = AckLog::open(&path).unwrap();
        log.record("a b%/1", 7, 1);
        log.record("a b%/1", 7, 0);
        log.record("c", 8, 5);
        log.flush().unwrap();
        // A run that was killed in the middle of a line.
        File::options()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(b"c 8 6")
            .unwrap();
        let mut log = AckLog::open(&path).unwrap();
        log.record("c", 9, 0);
        log.flush().unwrap();
        File::options()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(b"c 9 12")
            .unwrap();

        let promises = read(&path).unwrap();
        assert_eq!(promises["a b%/1"][&7], [0, 1]);
        assert_eq!(promises["c"], BTreeMap::from([(8, vec![5]), (9, vec![0])]));
    }

    #[test]
    fn what_is_no_log_is_refused_with_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("acks");
        std::fs::write(&path, "a 1 2\na 1 x\n").unwrap();
        let error = read(&path).unwrap_err();
        assert!(
            matches!(error, BenchError::BadAckLog { line: 2, .. }),
            "{error}"
        );
        assert!(matches!(
            read(&dir.path().join("none")),
            Err(BenchError::File { .. })
        ));
    }
}
