//! Durability: what was acknowledged survives crashes, once and in order, and damage is never ignored.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use crate::rig::{
    Connection, Encke, Ended, JSON, copy_tree, data_dir, newest_segment, path, request, serve,
};

/// Segments as small as the command line allows, so that there are many.
const SMALL: [&str; 4] = ["--segment", "1MiB", "--body-max", "256KiB"];

/// What an idempotent producer knows of what it sent.
#[derive(Clone, Debug, Default)]
struct Producer {
    id: usize,
    /// Requests with numbers below this one were acknowledged.
    acknowledged: u64,
    /// Requests with numbers below this one were sent.
    sent: u64,
}

impl Producer {
    fn request(&self, seq: u64) -> Vec<u8> {
        let body = format!("[[{},{seq}]]", self.id);
        let fields = [
            JSON.to_owned(),
            format!("Producer-Id: producer-{}", self.id),
            "Producer-Epoch: 0".to_owned(),
            format!("Producer-Seq: {seq}"),
        ];
        let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
        request("POST", &path("shared"), &fields, body.as_bytes())
    }

    /// Appends until the server is gone, a few requests ahead of the answers.
    fn append_until_the_crash(&mut self, mut server: Connection) {
        const AHEAD: u64 = 3;
        loop {
            while self.sent < self.acknowledged + AHEAD {
                // Some of it may be there before the error is.
                let request = self.request(self.sent);
                self.sent += 1;
                if !server.send_anyway(&request) {
                    return;
                }
            }
            let Some(answer) = server.answer_if_alive() else {
                return;
            };
            assert_eq!(answer.status, 200, "{self:?} got {answer:?}");
            self.acknowledged += 1;
        }
    }
}

/// Streams that are made, closed and deleted all the time; how far it came.
#[derive(Debug, Default)]
struct Churn {
    /// Of the steps below this number each was acknowledged.
    acknowledged: u64,
}

impl Churn {
    /// Four steps for each stream: make, append, close, delete; every other one is left there.
    fn step(step: u64) -> Vec<u8> {
        let stream = path(&format!("churn/{}", step / 4));
        match step % 4 {
            0 => request("PUT", &stream, &[JSON], b""),
            1 => request("POST", &stream, &[JSON], b"7"),
            2 => request("POST", &stream, &["Stream-Closed: true"], b""),
            _ if (step / 4).is_multiple_of(2) => request("DELETE", &stream, &[], b""),
            _ => request("HEAD", &stream, &[], b""),
        }
    }

    fn go_on_until_the_crash(&mut self, mut server: Connection) {
        while server.send_anyway(&Churn::step(self.acknowledged)) {
            let Some(answer) = server.answer_if_alive() else {
                return;
            };
            assert!(
                (200..=204).contains(&answer.status),
                "{self:?} got {answer:?}"
            );
            self.acknowledged += 1;
        }
    }

    /// Looks at the streams from that step on, and makes up for the step that was cut.
    fn is_all_there(&mut self, encke: &Encke, since: u64) {
        let mut connection = encke.connect();
        for stream in since / 4..self.acknowledged.div_ceil(4) {
            let steps = (self.acknowledged - stream * 4).min(4);
            let target = path(&format!("churn/{stream}"));
            let get = connection.ask("GET", &target, &[], b"");
            let cut = stream == self.acknowledged / 4;
            let deleted = stream % 2 == 0;
            match get.status {
                404 => assert!(
                    deleted && (steps == 4 || cut && steps == 3),
                    "{stream} is gone after {steps} steps"
                ),
                200 => {
                    assert!(!deleted || steps < 4, "{stream} is back after its deletion");
                    let closed = get.field("Stream-Closed") == Some("true");
                    assert!(closed || steps < 3, "{stream} is open after {steps} steps");
                    assert!(!closed || steps >= 3 || cut && steps == 2);
                    let data = get.body == b"[7]";
                    assert!(data || get.body == b"[]", "{get:?}");
                    assert!(data || steps < 2, "{stream} is empty after {steps} steps");
                    assert!(!data || steps >= 2 || cut && steps == 1);
                }
                _ => panic!("{get:?}"),
            }
        }
        // Continue with an unused stream.
        self.acknowledged = (self.acknowledged / 4 + 1) * 4;
    }
}

/// Reads a stream of `[producer, number]` from an offset on: in order for each, without gap or repetition.
fn read_on(encke: &Encke, offset: &mut String, next: &mut [u64]) {
    let mut connection = encke.connect();
    loop {
        let target = format!("{}?offset={offset}", path("shared"));
        let page = connection.ask("GET", &target, &[], b"");
        assert_eq!(page.status, 200, "{page:?}");
        let messages: Vec<(usize, u64)> = serde_json::from_slice(&page.body).expect("JSON");
        for (producer, seq) in messages {
            assert_eq!(seq, next[producer], "of producer {producer}");
            next[producer] += 1;
        }
        page.field("Stream-Next-Offset")
            .expect("a place to go on at")
            .clone_into(offset);
        if page.field("Stream-Up-To-Date") == Some("true") {
            return;
        }
    }
}

fn crashes(flags: &[&str], rounds: u32) {
    const PRODUCERS: usize = 4;
    let data = data_dir();
    let flags = [&SMALL[..], flags].concat();
    let mut producers: Vec<Producer> = (0..PRODUCERS)
        .map(|id| Producer {
            id,
            ..Producer::default()
        })
        .collect();
    let mut churn = Churn::default();
    let mut next = [0; PRODUCERS];
    let mut offset = "-1".to_owned();
    let mut ballast = Vec::new();
    let mut ballast_sent = 0_u64;
    let mut churned = 0;
    for round in 0..=rounds {
        let encke = Encke::start_in(data.path(), &flags);
        let mut connection = encke.connect();
        if round == 0 {
            encke.create("shared");
            encke.create("ballast");
        }
        read_on(&encke, &mut offset, &mut next);
        for producer in &mut producers {
            let (acknowledged, sent) = (producer.acknowledged, producer.sent);
            let stored = next[producer.id];
            assert!(
                (acknowledged..=sent).contains(&stored),
                "round {round}: {stored} records are there of {producer:?}"
            );
            // The producer's state came back with its data: what is there is known as a repetition, a gap as a gap,
            // and the next is taken.
            if let Some(last) = stored.checked_sub(1) {
                connection.send(&producer.request(last));
                let answer = connection.answer();
                assert_eq!(answer.status, 204, "{answer:?}");
                connection.send(&producer.request(last + 5));
                let answer = connection.answer();
                assert_eq!(answer.status, 409, "{answer:?}");
                let expected = stored.to_string();
                assert_eq!(answer.field("Producer-Expected-Seq"), Some(&*expected));
            }
            connection.send(&producer.request(stored));
            assert_eq!(connection.answer().status, 200);
            producer.acknowledged = stored + 1;
            producer.sent = stored + 1;
        }
        churn.is_all_there(&encke, churned);
        churned = churn.acknowledged;
        if round == rounds {
            // All of it once more, from the beginning, with history and log together.
            let mut all = [0; PRODUCERS];
            read_on(&encke, &mut "-1".to_owned(), &mut all);
            assert_eq!(
                all.as_slice(),
                producers.iter().map(|p| p.acknowledged).collect::<Vec<_>>()
            );
            assert!(all.iter().sum::<u64>() > u64::from(rounds) * 4, "{all:?}");
            // What was not acknowledged may be there or not: the last one before each crash.
            let stored: Vec<u64> = stored(&encke, "ballast");
            assert!(stored.is_sorted_by(|one, next| one < next));
            assert!(
                ballast
                    .iter()
                    .all(|number| stored.binary_search(number).is_ok())
            );
            assert!(stored.len() <= ballast.len() + rounds as usize);
            return;
        }
        let connections: Vec<Connection> = (0..PRODUCERS + 2).map(|_| encke.connect()).collect();
        std::thread::scope(|scope| {
            let mut connections = connections.into_iter();
            let mut connection = || connections.next().expect("one for each");
            for producer in &mut producers {
                let server = connection();
                scope.spawn(|| producer.append_until_the_crash(server));
            }
            let server = connection();
            scope.spawn(|| churn.go_on_until_the_crash(server));
            let mut server = connection();
            let (ballast, sent) = (&mut ballast, &mut ballast_sent);
            // Enough that segments are sealed and ingested between and during the crashes.
            scope.spawn(move || {
                let pad = "x".repeat(16 << 10);
                loop {
                    let number = *sent;
                    *sent += 1;
                    let body = format!("{{\"n\":{number},\"pad\":\"{pad}\"}}");
                    let one = request("POST", &path("ballast"), &[JSON], body.as_bytes());
                    if !server.send_anyway(&one) {
                        return;
                    }
                    match server.answer_if_alive() {
                        None => return,
                        Some(answer) => assert_eq!(answer.status, 204, "{answer:?}"),
                    }
                    ballast.push(number);
                }
            });
            // A different moment in each round.
            std::thread::sleep(Duration::from_millis(30 + u64::from(round) * 37 % 120));
            encke.kill();
        });
    }
}

#[test]
fn twenty_crashes_in_the_middle_of_appends() {
    crashes(&[], 20);
}

#[test]
fn crashes_of_the_process_take_nothing_that_was_written() {
    crashes(&["--ack", "written"], 6);
}

/// A directory with the numbers below `count` in stream `s`, left by a crash.
fn crashed(count: u64) -> tempfile::TempDir {
    let data = data_dir();
    let encke = Encke::start_in(data.path(), &SMALL);
    encke.create("s");
    let mut connection = encke.connect();
    for number in 0..count {
        let body = format!("{{\"n\":{number}}}");
        let answer = connection.ask("POST", &path("s"), &[JSON], body.as_bytes());
        assert_eq!(answer.status, 204);
    }
    encke.kill();
    data
}

/// Where the bytes of a segment end that are not just reserved.
fn used(segment: &[u8]) -> usize {
    segment.iter().rposition(|byte| *byte != 0).expect("a head") + 1
}

fn copy(from: &Path) -> tempfile::TempDir {
    let to = data_dir();
    copy_tree(from, to.path());
    to
}

/// The numbers of the messages in a stream.
fn stored(encke: &Encke, stream: &str) -> Vec<u64> {
    encke
        .messages(stream)
        .iter()
        .map(|message| message["n"].as_u64().expect("a number"))
        .collect()
}

#[test]
fn a_torn_tail_takes_nothing_that_was_acknowledged() {
    const COUNT: u64 = 40;
    let data = crashed(COUNT);
    let segment = newest_segment(data.path());
    let bytes = std::fs::read(&segment).expect("it can be read");
    let end = used(&bytes);
    let last = {
        // The last frame begins somewhere behind the payload of the one before it.
        let needle = format!("{{\"n\":{}}}", COUNT - 2);
        find(&bytes, needle.as_bytes()) + needle.len()
    };
    type Tear<'a> = (&'a str, &'a dyn Fn(&std::fs::File));
    let write = |file: &std::fs::File, bytes: &[u8]| {
        file.write_all_at(bytes, end as u64)
            .expect("it can be written");
    };
    // What a write leaves that a crash cut short.
    let tears: [Tear<'_>; 4] = [
        ("garbage", &|file| write(file, &[0xa5; 300])),
        ("half a frame", &|file| {
            write(file, &bytes[last..last + (end - last) / 2]);
        }),
        ("a frame that was there before", &|file| {
            write(file, &bytes[last..end]);
        }),
        ("ones", &|file| write(file, &[0xff; 4096])),
    ];
    for (what, tear) in tears {
        let data = copy(data.path());
        let file = OpenOptions::new()
            .write(true)
            .open(newest_segment(data.path()))
            .expect("it is there");
        tear(&file);
        drop(file);
        // Twice, because what a recovery writes must not bring back what it cut.
        for more in 0..2 {
            let encke = Encke::start_in(data.path(), &SMALL);
            assert_eq!(
                stored(&encke, "s"),
                (0..COUNT + more).collect::<Vec<_>>(),
                "{what}"
            );
            let body = format!("{{\"n\":{}}}", COUNT + more);
            let answer = encke.ask("POST", &path("s"), &[JSON], body.as_bytes());
            assert_eq!(answer.status, 204, "{what}: {answer:?}");
            encke.kill();
        }
    }
}

/// No crash makes a file shorter than the space that was reserved for it.
#[test]
fn a_segment_that_is_shorter_than_it_was_is_refused() {
    let data = crashed(40);
    let segment = newest_segment(data.path());
    let bytes = std::fs::read(&segment).expect("it can be read");
    let file = OpenOptions::new().write(true).open(&segment);
    let file = file.expect("it is there");
    file.set_len(used(&bytes) as u64).expect("it can be cut");
    let refused = Ended::of(&mut serve(data.path(), &SMALL));
    assert_eq!(refused.code, Some(3), "{refused:?}");
    let name = segment
        .file_name()
        .expect("it has a name")
        .to_string_lossy();
    assert!(refused.stderr.contains(&*name), "{refused:?}");
}

#[test]
fn a_tail_that_was_cut_off_is_all_that_goes() {
    const COUNT: u64 = 40;
    let data = crashed(COUNT);
    let segment = newest_segment(data.path());
    let bytes = std::fs::read(&segment).expect("it can be read");
    let needle = format!("{{\"n\":{}}}", COUNT - 1);
    let within = find(&bytes, needle.as_bytes()) + 3;
    let file = OpenOptions::new()
        .write(true)
        .open(&segment)
        .expect("it is there");
    file.set_len(within as u64).expect("it can be cut");
    // Nothing in the log says that the last record was durable, unless the server had the time to write that down: then
    // it may not be dropped.
    match Encke::try_start_by(&mut serve(data.path(), &SMALL)) {
        Ok(encke) => {
            assert_eq!(stored(&encke, "s"), (0..COUNT - 1).collect::<Vec<_>>());
            let mut subscriber = encke.subscribe("s", "-1");
            for number in 0..COUNT - 1 {
                assert_eq!(subscriber.message().expect("it is there")["n"], number);
            }
        }
        Err(ended) => is_damage(&ended, &segment, within as u64),
    }
}

#[test]
fn a_flipped_byte_in_what_was_acknowledged_is_refused() {
    const COUNT: u64 = 40;
    let data = crashed(COUNT);
    let segment = newest_segment(data.path());
    let bytes = std::fs::read(&segment).expect("it can be read");
    let end = find(&bytes, format!("{{\"n\":{}}}", COUNT - 3).as_bytes());
    let begin = find(&bytes, b"{\"n\":0}");
    // In payloads, in heads, in checksums, in lengths: wherever it falls.
    for part in 0..12 {
        let at = begin + (end - begin) * part / 12 + part;
        for flip in [0x01, 0x80] {
            let data = copy(data.path());
            let segment = newest_segment(data.path());
            let file = OpenOptions::new()
                .write(true)
                .open(&segment)
                .expect("it is there");
            file.write_all_at(&[bytes[at] ^ flip], at as u64)
                .expect("it can be written");
            drop(file);
            let ended = Ended::of(&mut serve(data.path(), &SMALL));
            is_damage(&ended, &segment, at as u64);
            // Nothing was repaired behind anybody's back.
            let mut now = bytes.clone();
            now[at] ^= flip;
            assert!(std::fs::read(&segment).expect("it can be read") == now);
        }
    }
}

/// The start was refused, and the message says in which file, and where: not behind the damage, not far before it.
fn is_damage(ended: &Ended, segment: &Path, at: u64) {
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.stdout.is_empty(), "{ended:?}");
    let name = segment.display().to_string();
    assert!(ended.stderr.contains(&name), "{name} in {}", ended.stderr);
    let position: u64 = ended
        .stderr
        .split("at byte ")
        .nth(1)
        .and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next())
        .and_then(|digits| digits.parse().ok())
        .unwrap_or_else(|| panic!("no position in {}", ended.stderr));
    assert!(
        position <= at,
        "{position} is behind {at}: {}",
        ended.stderr
    );
    assert!(at - position < 200, "{position} is far from {at}");
}

#[test]
fn only_one_process_has_a_directory() {
    let data = data_dir();
    let encke = Encke::start_in(data.path(), &[]);
    encke.create("s");
    let ended = Ended::of(&mut serve(data.path(), &[]));
    assert_eq!(ended.code, Some(3), "{ended:?}");
    let name = data.path().display().to_string();
    assert!(ended.stderr.contains(&name), "{}", ended.stderr);
    assert!(ended.stderr.contains("in use"), "{}", ended.stderr);
    // The first one has not noticed.
    let answer = encke.ask("POST", &path("s"), &[JSON], b"1");
    assert_eq!(answer.status, 204);
    encke.kill();
    // And a crash leaves no lock behind.
    assert_eq!(Encke::start_in(data.path(), &[]).numbers("s"), [1]);
}

#[test]
fn a_directory_that_cannot_be_used() {
    let data = data_dir();
    let file = data.path().join("file");
    std::fs::write(&file, b"not a directory").expect("it can be written");
    for at in [file.clone(), file.join("below")] {
        let ended = Ended::of(&mut serve(&at, &[]));
        assert_eq!(ended.code, Some(3), "{ended:?}");
        assert!(ended.stderr.contains("file"), "{}", ended.stderr);
    }
    // Something that has the name of a segment and is none.
    let data = data_dir();
    std::fs::write(
        data.path().join("00000000000000000001.segment"),
        [0x5a; 8192],
    )
    .expect("it can be written");
    let ended = Ended::of(&mut serve(data.path(), &[]));
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(
        ended.stderr.contains("00000000000000000001.segment"),
        "{}",
        ended.stderr
    );
}

fn find(haystack: &[u8], needle: &[u8]) -> usize {
    haystack
        .windows(needle.len())
        .position(|window| window == needle)
        .expect("the record is in the segment")
}
