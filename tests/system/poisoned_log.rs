//! One of several logs fails: its streams refuse writes with the reason and can still be read; the other logs are not
//! affected.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::rig::{
    Connection, Encke, Fault, JSON, Response, Subscriber, data_dir, eventually, made_in, path,
    request, strace_works, wait_for_sync,
};

/// Enough that each log has some.
const STREAMS: usize = 24;

fn names() -> Vec<String> {
    (0..STREAMS).map(|at| format!("stream-{at}")).collect()
}

fn new_data(dir: &Path) -> PathBuf {
    let data = dir.join("data");
    std::fs::create_dir(&data).expect("the directory is ours");
    data
}

fn log_dir(data: &Path, log: usize) -> PathBuf {
    data.join(format!("log-{log}"))
}

/// A server with three logs that acknowledges at `level` and has streams with records; the second log meets the fault when
/// it is armed.
fn start(dir: &Path, fault: &Fault, flags: &[&str]) -> (Encke, Clients) {
    let encke = Encke::start_by(&mut fault.serve(&dir.join("data"), flags));
    let mut clients = Clients::of(&encke);
    for _ in 0..3 {
        assert_eq!(clients.append_to_all().len(), 0);
    }
    // Below level synced an acknowledgement does not say that the record is in the file.
    eventually("everything is written", || {
        encke.metric("encke_log_records_total", "") == 4.0 * STREAMS as f64
    });
    (encke, clients)
}

struct Clients {
    connection: Connection,
    /// What was acknowledged, by stream.
    acknowledged: BTreeMap<String, Vec<u64>>,
    next: u64,
}

impl Clients {
    /// Makes the streams.
    fn of(encke: &Encke) -> Clients {
        let names = names();
        names.iter().for_each(|name| encke.create(name));
        Clients {
            connection: encke.connect(),
            acknowledged: names.into_iter().map(|name| (name, Vec::new())).collect(),
            next: 0,
        }
    }

    /// Appends to one stream.
    fn append(&mut self, name: &str) -> Response {
        let number = self.next;
        self.next += 1;
        let body = number.to_string();
        let answer = self
            .connection
            .ask("POST", &path(name), &[JSON], body.as_bytes());
        if answer.status == 204 {
            let acknowledged = self.acknowledged.get_mut(name).expect("a stream of ours");
            acknowledged.push(number);
        }
        answer
    }

    /// Appends to each stream once; those that refused, with their answers.
    fn append_to_all(&mut self) -> BTreeMap<String, Response> {
        let names: Vec<String> = self.acknowledged.keys().cloned().collect();
        let answers = names.into_iter().map(|name| {
            let answer = self.append(&name);
            (name, answer)
        });
        answers.filter(|(_, answer)| answer.status != 204).collect()
    }

    /// The streams that refuse, now that the log has failed.
    fn refused(&mut self, encke: &Encke) -> BTreeSet<String> {
        eventually("the log has failed", || {
            encke.metric("encke_log_poisoned", "log=\"1\"") == 1.0
        });
        let refused = self.append_to_all();
        refused.values().for_each(says_why);
        refused.into_keys().collect()
    }
}

/// What complete events brought, by stream.
fn messages(events: &str) -> BTreeMap<String, Vec<u64>> {
    let mut messages: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for line in events.split_inclusive('\n') {
        let Some(data) = line.strip_prefix("data:").filter(|_| line.ends_with('\n')) else {
            continue;
        };
        let data: serde_json::Value = serde_json::from_str(data).expect("data is JSON");
        let (Some(stream), Some(records)) = (data["stream"].as_str(), data["messages"].as_array())
        else {
            continue;
        };
        let numbers = records
            .iter()
            .map(|record| record.as_u64().expect("a number"));
        messages
            .entry(stream.to_owned())
            .or_default()
            .extend(numbers);
    }
    messages
}

/// The answer of a log that has failed.
fn says_why(answer: &Response) {
    let code = answer.error_code();
    assert_eq!((answer.status, &*code), (503, "log_failed"), "{answer:?}");
    let body = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(body.contains("Input/output error"), "{body}");
}

/// Everything that the whole still does when the second of three logs has failed.
fn is_as_good_as_before_but_for(failed: &BTreeSet<String>, encke: &Encke, clients: &mut Clients) {
    let mut connection = encke.connect();
    let ready = connection.ask("GET", "/readyz", &[], b"");
    let why = String::from_utf8(ready.body).expect("it is text");
    assert_eq!(ready.status, 503);
    assert!(
        why.contains("log 1") && why.contains("Input/output error"),
        "{why}"
    );
    assert_eq!(connection.ask("GET", "/healthz", &[], b"").status, 200);
    assert_eq!(encke.metric("encke_log_failed", ""), 1.0);
    let poisoned = [0, 1, 2].map(|log| encke.metric("encke_log_poisoned", &format!("\"{log}\"")));
    assert_eq!(poisoned, [0.0, 1.0, 0.0]);

    // Whatever would change a stream of that log is refused, and so is a stream that would be made there.
    let victim = failed.first().expect("there is one");
    let source = format!("Stream-Forked-From: {}", path(victim));
    for (method, name, fields) in [
        ("DELETE", &**victim, &[][..]),
        ("PUT", "fork-of-it", &[JSON, &source]),
        ("POST", victim, &["Encke-Truncate: now"]),
        ("POST", victim, &["Stream-Closed: true"]),
        ("POST", victim, &[JSON, "Encke-Ack: accepted"]),
    ] {
        let body: &[u8] = if fields.contains(&JSON) && method == "POST" {
            b"1"
        } else {
            b""
        };
        says_why(&connection.ask(method, &path(name), fields, body));
    }
    let made = (0..12).map(|at| connection.ask("PUT", &path(&format!("new-{at}")), &[JSON], b""));
    let (made, refused): (Vec<_>, Vec<_>) = made.partition(|answer| answer.status == 201);
    assert!(
        !made.is_empty() && !refused.is_empty(),
        "{made:?} {refused:?}"
    );
    refused.iter().for_each(says_why);

    // What is in the other logs is taken, seen and read; what is in that one can be read.
    let mut live: BTreeMap<String, Subscriber> = BTreeMap::new();
    for name in names() {
        let mut subscriber = encke.subscribe(&name, "-1");
        let count = clients.acknowledged[&name].len();
        assert_eq!(subscriber.numbers(count), clients.acknowledged[&name]);
        subscriber.catch_up();
        live.insert(name, subscriber);
    }
    for _ in 0..5 {
        let first = clients.next;
        let refused = clients.append_to_all();
        assert_eq!(&refused.keys().cloned().collect::<BTreeSet<_>>(), failed);
        for (at, name) in (first..).zip(clients.acknowledged.keys()) {
            if !failed.contains(name) {
                let subscriber = live.get_mut(name).expect("all have one");
                assert_eq!(subscriber.numbers(1), [at], "{name}");
            }
        }
    }
    for (name, acknowledged) in &clients.acknowledged {
        assert_eq!(&encke.numbers(name), acknowledged, "{name}");
    }
    // Their deletion waits for the disk and asks whether another log has the name; so does a fork.
    let other = names().into_iter().find(|name| !failed.contains(name));
    let other = other.expect("not all are refused");
    let source = format!("Stream-Forked-From: {}", path(&other));
    let fork = connection.ask("PUT", &path("fork"), &[JSON, &source], b"");
    assert_eq!(fork.status, 201, "{fork:?}");
    let gone = connection.ask("DELETE", &path("fork"), &[], b"");
    assert_eq!(gone.status, 204, "{gone:?}");
    // Pools are in the first log.
    let pool = connection.ask("PUT", "/v1/pool/p", &[], br#"{"type":"claim"}"#);
    assert_eq!(pool.status, 201, "{pool:?}");
    assert_eq!(connection.ask("POST", "/v1/pool/p", &[], b"x").status, 202);
}

#[test]
#[ignore = "long: make test-all"]
fn a_log_that_fails_takes_only_its_own_streams_along() {
    if !strace_works() {
        return;
    }
    for (level, inject) in [
        // Only one of them fails: the next would succeed, if anybody tried.
        ("synced", "fdatasync:error=EIO:when=1"),
        ("synced", "pwrite64:error=EIO:when=1"),
        ("written", "fdatasync:error=EIO:when=1"),
        ("accepted", "fdatasync:error=EIO:when=1"),
    ] {
        let dir = data_dir();
        let data = new_data(dir.path());
        let flags = ["--logs", "3", "--ack", level];
        let fault = Fault::new(&log_dir(&data, 1), dir.path(), inject);
        let (encke, mut clients) = start(dir.path(), &fault, &flags);
        // Two subscribers of everything, over one connection each.
        let all = names().iter().fold(String::new(), |query, name| {
            format!("{query}&stream={name}@-1")
        });
        let mut several = encke.connect();
        let target = format!("/v1/events?{}", &all[1..]);
        several.send(&request("GET", &target, &[], b""));
        assert_eq!(several.head().status, 200);

        let streams = made_in(&log_dir(&data, 1), &names());
        fault.arm();
        // Its acknowledgement waits for the call that fails only at level synced.
        let victim = clients.append(streams.first().expect("each log has some"));
        assert_eq!(victim.status == 204, level != "synced", "{victim:?}");
        let failed = clients.refused(&encke);
        assert_eq!(failed, streams, "{level} {inject}");
        assert!(failed.len() > 2 && failed.len() < STREAMS - 4, "{failed:?}");
        let count = |clients: &Clients| clients.acknowledged.values().map(Vec::len).sum::<usize>();
        assert!(
            count(&clients) > STREAMS,
            "it failed before anything was there"
        );
        is_as_good_as_before_but_for(&failed, &encke, &mut clients);
        // A subscriber to streams of all logs has got all records.
        let mut events = String::new();
        let mut received = messages(&events);
        while received.values().map(Vec::len).sum::<usize>() < count(&clients) {
            assert!(several.fill(), "the server hung up: {events}");
            events.push_str(&String::from_utf8(std::mem::take(several.input())).expect("text"));
            received = messages(&events);
        }
        assert_eq!(received, clients.acknowledged, "{events}");
        encke.wait_for_log("the log has failed");
        drop(several);
        let stopped = encke.terminate();
        assert_eq!(stopped.code, Some(1), "it leaves a failed log");

        // The disk works again.
        let encke = Encke::start_in(&data, &flags);
        assert_eq!(encke.ask("GET", "/readyz", &[], b"").status, 200);
        for (name, acknowledged) in &clients.acknowledged {
            let stored = encke.numbers(name);
            assert!(stored.starts_with(acknowledged), "{name} {stored:?}");
            // What failed was not acknowledged and may be there, once.
            let more = stored.len() - acknowledged.len();
            assert!(
                more <= usize::from(failed.contains(name)),
                "{name} {stored:?}"
            );
        }
        clients.connection = encke.connect();
        assert_eq!(clients.append_to_all().len(), 0);
    }
}

/// At level accepted there is what was acknowledged while the sync ran that failed: it is in memory, and will never be
/// written.
#[test]
#[ignore = "long: make test-all"]
fn what_a_failed_log_has_accepted_and_never_writes_is_an_error_and_no_end() {
    if !strace_works() {
        return;
    }
    let dir = data_dir();
    let data = new_data(dir.path());
    let flags = [
        "--logs",
        "3",
        "--ack",
        "accepted",
        "--tuning",
        "poll-wait=200ms",
    ];
    // Far longer than it takes to append to all.
    let inject = "fdatasync:error=EIO:delay_enter=10000000:when=1";
    let fault = Fault::new(&log_dir(&data, 1), dir.path(), inject);
    let (encke, mut clients) = start(dir.path(), &fault, &flags);
    let streams = made_in(&log_dir(&data, 1), &names());
    fault.arm();
    let first = clients.append(streams.first().expect("each log has some"));
    assert_eq!(first.status, 204, "{first:?}");
    wait_for_sync(&encke);
    let refused = clients.append_to_all();
    assert!(refused.is_empty(), "{refused:?}");
    let failed = clients.refused(&encke);
    assert_eq!(failed, streams);
    let mut connection = encke.connect();
    for name in &failed {
        // A reader of the whole stream does not wait, and does not take the beginning for the whole.
        let target = format!("{}?offset=-1", path(name));
        connection.send(&request("GET", &target, &[], b""));
        let head = connection.head();
        assert_eq!(head.status, 200, "{head:?}");
        assert_eq!(head.field("Transfer-Encoding"), Some("chunked"));
        let part = connection.rest();
        let ends = part.ends_with(b"0\r\n\r\n");
        assert!(
            !ends && part.len() > 10,
            "{}",
            String::from_utf8_lossy(&part)
        );
        connection = encke.connect();
        // A new subscriber gets the written records, and is closed.
        let mut subscriber = encke.subscribe(name, "-1");
        let got = subscriber.rest();
        let acknowledged = &clients.acknowledged[name];
        assert!(acknowledged.starts_with(&got) && got.len() < acknowledged.len());
        // At the tail there is nothing to read.
        let poll = format!("{}?offset=now&live=long-poll", path(name));
        assert_eq!(connection.ask("GET", &poll, &[], b"").status, 204);
    }
    // The others don't notice.
    for name in names().iter().filter(|name| !failed.contains(*name)) {
        assert_eq!(encke.numbers(name), clients.acknowledged[name]);
    }
    encke.kill();
    let encke = Encke::start_in(&data, &flags);
    for (name, acknowledged) in &clients.acknowledged {
        let stored = encke.numbers(name);
        assert!(acknowledged.starts_with(&stored), "{name}");
        let all = stored.len() == acknowledged.len();
        assert_eq!(all, !failed.contains(name), "{name}");
    }
}
