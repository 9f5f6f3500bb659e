//! The directories that are damaged, and what was acknowledged for them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::rig::{Connection, Encke, Ended, JSON, command, copy_tree, data_dir, path};

/// A data directory that no process uses, an older copy of it, and what was acknowledged at level `synced`.
pub(super) struct Base {
    pub(super) name: String,
    pub(super) data: TempDir,
    /// The directory as it was after an earlier clean stop.
    pub(super) older: TempDir,
    /// The data directory of another server with one log.
    pub(super) foreign: TempDir,
    pub(super) logs: usize,
    pub(super) streams: Vec<Stream>,
}

/// How the last server of a base ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It is asked to stop.
    Clean,
    /// It is killed after some time without requests.
    Killed,
}

/// A stream and its acknowledged records.
pub(super) struct Stream {
    pub(super) name: String,
    pub(super) is_json: bool,
    /// The index of its log.
    pub(super) log: usize,
    /// The sequence of the record that made it.
    pub(super) made: u64,
    pub(super) end: End,
    pub(super) records: Vec<Record>,
}

/// What became of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Open,
    /// The sequence of the record that closed it.
    Closed(u64),
    Deleted,
}

/// One acknowledged append.
pub(super) struct Record {
    pub(super) sequence: u64,
    pub(super) body: String,
}

impl Base {
    /// Runs five servers over one directory, one after the other. Each log gets several segments, most of which are in
    /// history, and some of which are gone from the global order.
    pub(super) fn make(logs: usize, ending: Ending) -> Base {
        let data = data_dir();
        let mut maker = Maker::new(data.path(), logs);

        let server = maker.start();
        for number in 0..EARLY * logs {
            maker.create(&server, &format!("early-{number}"));
        }
        maker.create(&server, CLOSED);
        maker.create(&server, DELETED);
        maker.append_to_each(&server, 2);
        assert_eq!(server.terminate().code, Some(0));
        maker.note_numbers();

        let server = maker.start();
        maker.append(&server, RECORDS * logs);
        maker.create(&server, "late-0");
        let closed = server.ask("POST", &path(CLOSED), &["Stream-Closed: true"], b"");
        assert_eq!(closed.status, 204, "{closed:?}");
        maker.of(CLOSED).end = End::Closed(0);
        assert_eq!(server.terminate().code, Some(0));
        maker.note_numbers();
        let older = data_dir();
        copy_tree(data.path(), older.path());

        let server = maker.start();
        let deleted = server.ask("DELETE", &path(DELETED), &[], b"");
        assert_eq!(deleted.status, 204, "{deleted:?}");
        maker.of(DELETED).end = End::Deleted;
        maker.append(&server, RECORDS * logs);
        assert_eq!(server.terminate().code, Some(0));

        let server = maker.start();
        for number in 1..=2 * logs {
            maker.create(&server, &format!("late-{number}"));
        }
        maker.append(&server, 3 * logs);
        assert_eq!(server.terminate().code, Some(0));

        let server = maker.start();
        maker.append_to_each(&server, 1);
        match ending {
            Ending::Clean => assert_eq!(server.terminate().code, Some(0)),
            Ending::Killed => {
                std::thread::sleep(IDLE);
                server.kill();
            }
        }
        maker.note_numbers();
        maker.note_sequences();
        let streams = maker.streams.into_iter().map(|(stream, _)| stream);
        Base {
            name: format!("{logs} logs, {ending:?}"),
            older,
            foreign: foreign(),
            logs,
            streams: streams.collect(),
            data,
        }
    }

    /// The flags with which this directory is served.
    pub(super) fn flags(&self) -> Vec<String> {
        flags(self.logs)
    }
}

impl Stream {
    /// What reading the whole stream gives when these records are there.
    pub(super) fn content<'a>(&self, records: impl Iterator<Item = &'a Record>) -> String {
        let bodies: Vec<&str> = records.map(|record| record.body.as_str()).collect();
        bodies.join(if self.is_json { "," } else { "" })
    }
}

/// Fills a directory.
struct Maker {
    data: PathBuf,
    logs: usize,
    /// Each with its number, once that is known.
    streams: Vec<(Stream, Option<u64>)>,
    appended: usize,
}

impl Maker {
    fn new(data: &Path, logs: usize) -> Maker {
        Maker {
            data: data.to_owned(),
            logs,
            streams: Vec::new(),
            appended: 0,
        }
    }

    fn start(&self) -> Encke {
        let flags = flags(self.logs);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        Encke::start_in(&self.data, &flags)
    }

    fn of(&mut self, name: &str) -> &mut Stream {
        let mut streams = self.streams.iter_mut().map(|(stream, _)| stream);
        let found = streams.find(|stream| stream.name == name);
        found.expect("it was made")
    }

    /// Makes a stream: of JSON and of text in turns.
    fn create(&mut self, server: &Encke, name: &str) {
        let is_json = self.streams.len().is_multiple_of(2);
        let made = server.ask("PUT", &path(name), &[content_type(is_json)], b"");
        assert_eq!(made.status, 201, "{made:?}");
        let stream = Stream {
            name: name.to_owned(),
            is_json,
            log: 0,
            made: 0,
            end: End::Open,
            records: Vec::new(),
        };
        self.streams.push((stream, None));
    }

    /// Appends `count` records of some tens of KiB, to streams in turns.
    fn append(&mut self, server: &Encke, count: usize) {
        let mut connection = server.connect();
        for _ in 0..count {
            // Steps of 5 meet all streams, unless there are a multiple of 5.
            let mut at = self.appended * 5 % self.streams.len();
            while self.streams[at].0.end != End::Open {
                at = (at + 1) % self.streams.len();
            }
            let pad_bytes = (16 << 10) + self.appended * 7_919 % (48 << 10);
            self.append_one(&mut connection, at, pad_bytes);
        }
    }

    /// Appends small records to each open stream.
    fn append_to_each(&mut self, server: &Encke, count: usize) {
        let mut connection = server.connect();
        for at in 0..self.streams.len() {
            for _ in 0..count {
                if self.streams[at].0.end == End::Open {
                    self.append_one(&mut connection, at, 300);
                }
            }
        }
    }

    fn append_one(&mut self, connection: &mut Connection, at: usize, pad_bytes: usize) {
        let stream = &mut self.streams[at].0;
        let tag = tag(self.appended);
        self.appended += 1;
        let pad = tag.repeat(pad_bytes / tag.len());
        let body = if stream.is_json {
            format!("{{\"pad\":\"{pad}\"}}")
        } else {
            format!("{pad}\n")
        };
        let fields = [content_type(stream.is_json)];
        let answer = connection.ask("POST", &path(&stream.name), &fields, body.as_bytes());
        assert_eq!(answer.status, 204, "{answer:?}");
        let sequence = 0;
        stream.records.push(Record { sequence, body });
    }

    /// Notes the numbers and the logs of the streams whose creation is in the global order now.
    fn note_numbers(&mut self) {
        for line in self.dump(&[]) {
            if line["change"] == "create" {
                let number = line["streams"][0].as_u64().expect("a number");
                let name = line["fields"]["name"].as_str().expect("a name").to_owned();
                let log = line["log"].as_str().map_or(0, index_of_log);
                self.of(&name).log = log;
                let mut streams = self.streams.iter_mut();
                let found = streams.find(|(stream, _)| stream.name == name);
                found.expect("it was made").1 = Some(number);
            }
        }
    }

    /// Notes the sequence of each record, from `encke log dump --stream`.
    fn note_sequences(&mut self) {
        let mut of_logs = vec![0; self.logs];
        for at in 0..self.streams.len() {
            let (stream, number) = &self.streams[at];
            if stream.end == End::Deleted {
                continue;
            }
            let number = number.expect("each stream's creation was seen");
            let lines = self.dump(&["--stream", &number.to_string()]);
            let stream = &mut self.streams[at].0;
            of_logs[stream.log] += stream.records.len();
            let mut records = stream.records.iter_mut();
            for line in lines {
                let sequence = line["sequence"].as_u64().expect("a number");
                let change = line["change"].as_str().expect("a change");
                match change {
                    "create" => stream.made = sequence,
                    // The stream was closed without data.
                    "append" if line["fields"]["closes"] == true => {
                        stream.end = End::Closed(sequence);
                    }
                    "append" => {
                        let record = records.next().expect("no more than was appended");
                        let text = line["text"].as_str().expect("text");
                        assert!(text.contains(&record.body), "another record");
                        record.sequence = sequence;
                    }
                    other => panic!("a record of {} is {other}", stream.name),
                }
            }
            assert!(records.next().is_none(), "a record is missing");
            assert_ne!(stream.end, End::Closed(0), "nothing has closed it");
        }
        assert!(of_logs.iter().all(|records| *records > 40), "{of_logs:?}");
    }

    /// The records as lines. A copy is read, so that the directory stays as the server left it.
    fn dump(&self, arguments: &[&str]) -> Vec<Value> {
        let copy = data_dir();
        copy_tree(&self.data, copy.path());
        let mut dump = command(&["log", "dump"]);
        let dumped = Ended::of(dump.args(arguments).arg(copy.path()));
        assert_eq!(dumped.code, Some(0), "{}", dumped.stderr);
        let line = |line: &str| serde_json::from_str(line).expect("each line is JSON");
        dumped.stdout.lines().map(line).collect()
    }
}

/// Another data directory, with its segments in history.
fn foreign() -> TempDir {
    let data = data_dir();
    let mut maker = Maker::new(data.path(), 1);
    for part in 0..2 {
        let server = maker.start();
        maker.create(&server, &format!("foreign-{part}"));
        maker.append(&server, RECORDS);
        assert_eq!(server.terminate().code, Some(0));
    }
    data
}

/// The index of a log, by the name of its directory.
pub(super) fn index_of_log(name: &str) -> usize {
    let number = name.strip_prefix("log-");
    number.map_or(0, |number| number.parse().expect("an index"))
}

/// What each record is made of, and no other one has.
fn tag(number: usize) -> String {
    format!("<{number:05}>")
}

fn content_type(is_json: bool) -> &'static str {
    if is_json {
        JSON
    } else {
        "Content-Type: text/plain"
    }
}

pub(super) fn flags(logs: usize) -> Vec<String> {
    let logs = logs.to_string();
    [
        "--logs",
        &logs,
        "--segment",
        "1MiB",
        "--body-max",
        "256KiB",
        "--order-size",
        "2MiB",
        "--shards",
        "1",
        "--tuning",
        "readers=1",
    ]
    .map(str::to_owned)
    .to_vec()
}

/// Streams that the first server makes, for each log.
const EARLY: usize = 4;
/// Larger records that the second and the third server get, for each log: a segment has some 25 of them.
const RECORDS: usize = 70;
const CLOSED: &str = "closed";
const DELETED: &str = "deleted";
/// How long a log is idle at least before its last records are covered by a statement outside of the segment.
const IDLE: Duration = Duration::from_millis(2_500);
