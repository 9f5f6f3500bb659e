//! The messages at the socket: a line of JSON each. The bytes of a file follow the line that says how many there are.

use std::io::{self, BufRead, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum SnapshotRequest {
    /// A snapshot of all logs, which lasts as long as the connection.
    Snapshot,
    /// Bytes of a file of the snapshot.
    Read {
        /// The index of the log.
        log: usize,
        /// The index of the file.
        file: usize,
        from: u64,
        bytes: usize,
    },
}

/// What the server says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SnapshotReply {
    Snapshot(SnapshotList),
    /// This number of bytes follows.
    Bytes(usize),
    Failed(String),
    /// Another process is about to take the server over: it gives snapshots in a moment.
    Upgrading,
}

/// What a snapshot has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotList {
    /// Differs with each start of the server.
    pub(crate) start: u64,
    pub(crate) logs: Vec<LogList>,
}

/// The files of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogList {
    pub(crate) log_id: u64,
    /// Its last record.
    pub(crate) upto: u64,
    /// Outer ones first.
    pub(crate) directories: Vec<String>,
    pub(crate) files: Vec<FileListed>,
}

/// A file of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileListed {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// Nanoseconds since 1970.
    pub(crate) written_ns: Option<u128>,
    /// The last segment, which grows.
    pub(crate) grows: bool,
}

pub(crate) fn send(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// The next message. `None`: the other side has ended.
pub(crate) fn receive<M: DeserializeOwned>(
    from: &mut impl BufRead,
    bytes_max: u64,
) -> io::Result<Option<M>> {
    let mut line = Vec::new();
    let read = from.take(bytes_max).read_until(b'\n', &mut line)?;
    match line.last() {
        None if read == 0 => Ok(None),
        Some(b'\n') => Ok(Some(serde_json::from_slice(&line)?)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The most bytes of a file in one message.
pub(crate) const READ_BYTES_MAX: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_lines_of_bounded_size() {
        let mut sent = Vec::new();
        let asked = SnapshotRequest::Read {
            log: 1,
            file: 2,
            from: 3,
            bytes: 4,
        };
        send(&mut sent, &asked).expect("there is room");
        send(&mut sent, &SnapshotRequest::Snapshot).expect("there is room");
        let mut from = &sent[..];
        assert_eq!(receive(&mut from, 100).expect("sound"), Some(asked));
        assert_eq!(
            receive(&mut from, 100).expect("sound"),
            Some(SnapshotRequest::Snapshot)
        );
        assert_eq!(
            receive::<SnapshotRequest>(&mut from, 100).expect("sound"),
            None
        );
        for wrong in [&sent[..9], b"\n", b"{\"read\":{}}\n", b"\"stop\"\n"] {
            assert!(receive::<SnapshotRequest>(&mut &wrong[..], 100).is_err());
        }
        assert!(
            receive::<SnapshotRequest>(&mut &sent[..], 10).is_err(),
            "too long"
        );
    }
}
