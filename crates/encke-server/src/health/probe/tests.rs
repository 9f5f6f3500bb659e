//! A probe against scripted shards: each stage that can stall, and each answer that a server can give.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use super::*;

/// What the scripted server does.
#[derive(Clone, Debug, Default)]
struct Script {
    /// Shards that accept connections and say nothing.
    silent_shards: Vec<usize>,
    /// Shards that accept subscribers and deliver nothing.
    deaf_shards: Vec<usize>,
    /// Logs that acknowledge nothing.
    silent_logs: Vec<usize>,
    /// The status for requests to a log, so many times; then it takes them.
    refuses: HashMap<usize, (u16, u32)>,
    /// How many connections get the answer that the stream was created first.
    creates: u32,
    /// How many connections of a shard are refused.
    full: u32,
}

#[derive(Debug, Default)]
struct Served {
    subscribers: Vec<(usize, UnixStream)>,
    silent: Vec<UnixStream>,
}

fn read_request(socket: &mut UnixStream) -> String {
    let mut request = String::new();
    let mut some = [0; 512];
    loop {
        let count = socket.read(&mut some).expect("the probe sends a request");
        request.push_str(std::str::from_utf8(&some[..count]).expect("it is text"));
        let Some((head, body)) = request.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head.split_once("Content-Length: ");
        let length = length.map_or(0, |(_, length)| length.parse::<usize>().expect("a number"));
        if body.len() == length {
            return request;
        }
    }
}

fn serve(shard: usize, mut socket: UnixStream, script: &Mutex<Script>, served: &Mutex<Served>) {
    let request = read_request(&mut socket);
    let mut script = script.lock().unwrap();
    let mut served = served.lock().unwrap();
    // A probe whose time is over has gone.
    let mut say = |status: u16| drop(write!(socket, "HTTP/1.1 {status} x\r\n\r\n"));
    if script.silent_shards.contains(&shard) {
        return served.silent.push(socket);
    }
    if script.creates > 0 {
        script.creates -= 1;
        return say(202);
    }
    if request.starts_with("GET ") {
        say(200);
        return served.subscribers.push((shard, socket));
    }
    let (head, record) = request.split_once("\r\n\r\n").unwrap();
    let log = head.split_once("?log=").unwrap().1;
    let log: usize = log.split_once(' ').unwrap().0.parse().unwrap();
    if script.silent_logs.contains(&log) {
        return served.silent.push(socket);
    }
    if let Some((status, times)) = script.refuses.get_mut(&log)
        && *times > 0
    {
        *times -= 1;
        return say(*status);
    }
    say(204);
    if log == 0 {
        let gets = |shard: &usize| !script.deaf_shards.contains(shard);
        for (_, subscriber) in served
            .subscribers
            .iter_mut()
            .filter(|(shard, _)| gets(shard))
        {
            let _ = write!(subscriber, "5\r\n{record}\n\r\n");
        }
    }
}

/// Two shards and two logs that act as the script says.
fn probe(script: Script, wait_max: Duration) -> ProbeReport {
    let script = Arc::new(Mutex::new(script));
    let served = Arc::new(Mutex::new(Served::default()));
    let connect = |shard| {
        let mut full = script.lock().unwrap();
        if full.full > 0 {
            full.full -= 1;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        drop(full);
        let (own, other) = UnixStream::pair()?;
        own.set_nonblocking(true)?;
        let (script, served) = (Arc::clone(&script), Arc::clone(&served));
        std::thread::spawn(move || serve(shard, other, &script, &served));
        Ok(own)
    };
    Probe::new(&connect, 2, 2).run(wait_max, &AtomicBool::new(false))
}

/// Long enough for any machine, where the probe is to end by itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where something never comes.
const SHORT: Duration = Duration::from_millis(1_500);

#[test]
fn a_record_reaches_each_shard() {
    let report = probe(Script::default(), PATIENCE);
    assert_eq!(
        (report.outcome(), report.stalled(PATIENCE)),
        (DELIVERED, None)
    );
    assert!(report.commits.iter().all(Option::is_some));
    let nothing = Some(Duration::ZERO);
    assert!(
        report
            .deliveries
            .iter()
            .all(|took| took.is_some() && *took != nothing)
    );
}

#[test]
fn a_missing_stream_a_full_mailbox_and_a_full_shard_are_asked_again() {
    let script = Script {
        creates: 3,
        full: 2,
        refuses: [(1, (503, 2))].into(),
        ..Script::default()
    };
    let report = probe(script, PATIENCE);
    assert_eq!(
        (report.outcome(), report.stalled(PATIENCE)),
        (DELIVERED, None)
    );
}

#[test]
fn a_log_that_refuses_is_no_stall() {
    let script = Script {
        refuses: [(0, (409, u32::MAX))].into(),
        ..Script::default()
    };
    let report = probe(script, PATIENCE);
    assert_eq!(
        (report.outcome(), report.stalled(PATIENCE)),
        (REFUSED, None)
    );
    assert_eq!(report.commits[0], None);
    assert!(report.commits[1].is_some());
}

#[test]
fn what_stalls_is_named() {
    let durable = "has made no record durable (its sequencer, or the write or sync of its disk)";
    for (script, why) in [
        (
            Script {
                silent_shards: vec![1],
                ..Script::default()
            },
            "within 1.5 s shard 1 has answered no request".to_owned(),
        ),
        (
            Script {
                deaf_shards: vec![1],
                ..Script::default()
            },
            "within 1.5 s shard 1 has delivered no record, although the log has it".to_owned(),
        ),
        (
            Script {
                silent_logs: vec![0],
                ..Script::default()
            },
            format!("within 1.5 s log 0 {durable}"),
        ),
        (
            Script {
                silent_logs: vec![1],
                deaf_shards: vec![0],
                ..Script::default()
            },
            format!(
                "within 1.5 s log 1 {durable}; shard 0 has delivered no record, although the log has it"
            ),
        ),
        (
            Script {
                refuses: [(1, (503, u32::MAX))].into(),
                ..Script::default()
            },
            "within 1.5 s log 1 has taken no command, because its mailbox is full".to_owned(),
        ),
    ] {
        let report = probe(script, SHORT);
        assert_eq!(report.stalled(SHORT), Some(why));
        assert_eq!(report.outcome(), STALLED);
    }
}

#[test]
fn a_stop_ends_a_probe() {
    let script = Script {
        silent_logs: vec![0],
        ..Script::default()
    };
    let script = Arc::new(Mutex::new(script));
    let served = Arc::new(Mutex::new(Served::default()));
    let connect = |shard| {
        let (own, other) = UnixStream::pair()?;
        own.set_nonblocking(true)?;
        let (script, served) = (Arc::clone(&script), Arc::clone(&served));
        std::thread::spawn(move || serve(shard, other, &script, &served));
        Ok(own)
    };
    let stopping = AtomicBool::new(false);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let probe = scope.spawn(|| Probe::new(&connect, 2, 1).run(PATIENCE, &stopping));
        stopping.store(true, Ordering::Relaxed);
        probe.join().expect("it ends");
    });
    assert!(begin.elapsed() < PATIENCE);
}
