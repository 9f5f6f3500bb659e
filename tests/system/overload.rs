//! Overload: at a limit requests get a clear 503, nothing acknowledged is lost, nothing else is stored, and existing clients are
//! not disturbed.

use std::collections::HashSet;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::rig::http2::*;
use crate::rig::{
    Connection, Encke, JSON, Response, data_dir, eventually, path, raise_descriptors, request,
    serve,
};

/// The content of a 503.
fn is_overload(answer: &Response) -> bool {
    answer.status == 503 && answer.field("Retry-After").is_some()
}

/// A message that weighs so much, and its number again.
fn message(number: u64, pad: usize) -> String {
    format!("{{\"n\":{number},\"pad\":\"{}\"}}", "x".repeat(pad))
}

fn number(message: &serde_json::Value) -> u64 {
    message["n"].as_u64().expect("a message of ours")
}

/// Appends from many connections at once, round after round; the numbers that were acknowledged and those that were not.
fn storm(encke: &Encke, clients: u64, rounds: u64, pad: usize) -> (HashSet<u64>, HashSet<u64>) {
    const THREADS: u64 = 4;
    let mut taken = HashSet::new();
    let mut refused = HashSet::new();
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let address = encke.address;
            std::thread::spawn(move || {
                let mut connections: Vec<Connection> = (0..clients / THREADS)
                    .map(|_| Connection::open(address))
                    .collect();
                let mut outcomes = Vec::new();
                for round in 0..rounds {
                    let number =
                        |client: usize| (round * THREADS + thread) * clients + client as u64;
                    for (client, connection) in connections.iter_mut().enumerate() {
                        let body = message(number(client), pad);
                        connection.send(&request("POST", &path("s"), &[JSON], body.as_bytes()));
                    }
                    for (client, connection) in connections.iter_mut().enumerate() {
                        let answer = connection.answer();
                        assert!(
                            answer.status == 204 || is_overload(&answer),
                            "neither done nor overloaded: {answer:?}"
                        );
                        assert!(!answer.closes(), "{answer:?}");
                        outcomes.push((number(client), answer.status == 204));
                    }
                }
                outcomes
            })
        })
        .collect();
    for thread in threads {
        for (number, acknowledged) in thread.join().expect("every answer was one of the two") {
            if acknowledged {
                taken.insert(number);
            } else {
                refused.insert(number);
            }
        }
    }
    (taken, refused)
}

fn nothing_lost_and_nothing_made_up(encke: &Encke, taken: &HashSet<u64>, refused: &HashSet<u64>) {
    assert!(!refused.is_empty(), "the limit was never met");
    assert!(!taken.is_empty(), "nothing went through");
    let stored: Vec<u64> = encke.messages("s").iter().map(number).collect();
    assert_eq!(stored.len(), taken.len(), "as many as were acknowledged");
    assert_eq!(&stored.iter().copied().collect::<HashSet<_>>(), taken);
    assert_eq!(encke.refused("503"), refused.len() as u64);
}

#[test]
fn a_mailbox_that_is_full() {
    raise_descriptors();
    let encke = Encke::start(&["--tuning", "mailbox-items=4"]);
    encke.create("s");
    let mut subscriber = encke.subscribe("s", "-1");
    let (taken, refused) = storm(&encke, 200, 8, 0);
    nothing_lost_and_nothing_made_up(&encke, &taken, &refused);
    for stored in encke.messages("s") {
        assert_eq!(subscriber.message(), Some(stored));
    }
    // And when it is over it is over.
    let mut connection = encke.connect();
    for number in 0..20 {
        let body = format!("{}", 1_000_000 + number);
        let answer = connection.ask("POST", &path("s"), &[JSON], body.as_bytes());
        assert_eq!(answer.status, 204, "{answer:?}");
    }
    let mut metrics = || {
        let answer = connection.ask("GET", "/metrics", &[], b"");
        String::from_utf8(answer.body).expect("metrics are text")
    };
    let value = |metrics: &str, metric: &str, mailbox: &str| {
        let name = format!("encke_mailbox_{metric}{{mailbox=\"{mailbox}\"}} ");
        let mut lines = metrics.lines();
        let value = lines.find_map(|line| line.strip_prefix(&name)?.parse::<f64>().ok());
        value.unwrap_or_else(|| panic!("{name}in {metrics}"))
    };
    assert!(value(&metrics(), "refused_total", "sequencer") > 0.0);
    // A batch counts until it is put away, which is a moment after its last answer.
    eventually("all mailboxes are empty", || {
        let metrics = metrics();
        ["sequencer", "shard-0", "reader-0"].iter().all(|mailbox| {
            let of = ["depth", "bytes", "age_seconds", "senders_waiting"];
            of.iter()
                .all(|metric| value(&metrics, metric, mailbox) == 0.0)
        })
    });
}

#[test]
fn a_mailbox_whose_bytes_are_full() {
    let flags = ["--tuning", "mailbox-size=64KiB", "--body-max", "32KiB"];
    let encke = Encke::start(&flags);
    encke.create("s");
    let (taken, refused) = storm(&encke, 100, 6, 25 << 10);
    nothing_lost_and_nothing_made_up(&encke, &taken, &refused);
}

#[test]
fn more_connections_than_are_allowed() {
    let encke = Encke::start(&["--connections-max", "10"]);
    let mut first = encke.connect();
    assert_eq!(first.ask("PUT", &path("s"), &[JSON], b"").status, 201);
    let mut subscriber = encke.subscribe("s", "now");
    let mut others: Vec<Connection> = (0..8).map(|_| encke.connect()).collect();
    for other in &mut others {
        assert_eq!(other.ask("GET", "/healthz", &[], b"").status, 200);
    }
    for number in 0..50 {
        let mut eleventh = encke.connect();
        // Some say something before they are refused, some listen first, for a second.
        if number % 20 != 1 {
            eleventh.send_anyway(&request("GET", "/healthz", &[], b""));
        }
        let answer = eleventh.answer();
        assert!(is_overload(&answer), "{answer:?}");
        assert!(answer.closes(), "{answer:?}");
        eleventh.expect_end();
        let body = number.to_string();
        let answer = first.ask("POST", &path("s"), &[JSON], body.as_bytes());
        assert_eq!(answer.status, 204);
        assert_eq!(subscriber.numbers(1), [number]);
    }
    let metrics = first.ask("GET", "/metrics", &[], b"");
    let metrics = String::from_utf8(metrics.body).expect("metrics are text");
    let counted = "encke_refused_total{reason=\"connections_max\"} 50";
    assert!(metrics.contains(counted), "{metrics}");
    assert!(metrics.contains("encke_connections 10\n"), "{metrics}");
    // One leaves, one may come.
    others.pop();
    eventually("there is room for one again", || {
        let mut next = encke.connect();
        next.send_anyway(&request("GET", "/healthz", &[], b""));
        next.answer().status == 200
    });
}

#[test]
fn a_browser_without_a_place_comes_back_by_itself() {
    let encke = Encke::start(&["--connections-max", "2"]);
    let (mut kept, mut other) = (encke.connect(), encke.connect());
    assert_eq!(kept.ask("PUT", &path("s"), &[JSON], b"").status, 201);
    assert_eq!(other.ask("GET", "/healthz", &[], b"").status, 200);
    let live = format!("{}?offset=-1&live=sse", path("s"));
    let accept = "Accept: text/event-stream";
    // A client of the protocol, which says only this, would come back without a pause.
    assert_eq!(encke.ask("GET", &live, &[accept], b"").status, 503);
    let mode = "Cache-Control: no-cache";
    for target in [&*live, "/v1/events?stream=s", "/v1/pool/p/work?worker=w"] {
        let answer = encke.ask("GET", target, &[accept, mode], b"");
        // At any other status an EventSource gives up for good.
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.field("Content-Type"), Some("text/event-stream"));
        assert!(answer.closes(), "{answer:?}");
        let events = String::from_utf8(answer.body).expect("text");
        assert!(events.starts_with("retry: 5000\n: 503 {"), "{events}");
        assert!(events.contains("connections_max"), "{events}");
        assert!(
            events.ends_with("\n\n") && !events.contains("data:"),
            "{events}"
        );
    }
    // A page of another origin reads it as it would read the events.
    let origin = "Origin: http://localhost:5173";
    let answer = encke.ask("GET", &live, &[accept, mode, origin], b"");
    let allowed = answer.field("Access-Control-Allow-Origin");
    assert_eq!(
        (answer.status, allowed),
        (200, Some("http://localhost:5173"))
    );
    // Whoever can read it gets the refusal.
    let stream = path("s");
    for (method, target, fields) in [
        ("GET", &*live, &["Accept: */*"][..]),
        (
            "GET",
            &live,
            &["Accept: application/json, text/event-stream"],
        ),
        ("GET", &stream, &[accept]),
        ("GET", "/readyz", &[accept]),
        ("GET", "/metrics", &[accept]),
        ("HEAD", &live, &[accept]),
        ("POST", &live, &[accept, JSON]),
    ] {
        let mut connection = encke.connect();
        connection.send_anyway(&request(method, target, fields, b"[1]"));
        let answer = connection.answer_to(method);
        if method == "HEAD" {
            assert_eq!(answer.status, 503);
            continue;
        }
        assert_eq!(
            (answer.status, &*answer.error_code()),
            (503, "connections_max")
        );
        assert_eq!(answer.field("Retry-After"), Some("5"));
    }
    // A client of HTTP/2 is told to send its request again.
    let mut http2 = Http2Client::open(encke.address, &[]);
    http2.send(&Frame::get(1, &live));
    // Refused as a stream, or by the end of a connection that has taken none.
    let refused = std::iter::from_fn(|| http2.next()).any(|frame| match frame.kind {
        RST_STREAM => frame.payload == REFUSED_STREAM.to_be_bytes(),
        GOAWAY => frame.payload[..4] == [0; 4],
        _ => false,
    });
    assert!(refused);
}

#[test]
fn connections_that_are_turned_away_take_no_place_and_have_one_second() {
    let encke = Encke::start(&["--connections-max", "3", "--shards", "1"]);
    let mut clients: Vec<Connection> = (0..3).map(|_| encke.connect()).collect();
    for client in &mut clients {
        assert_eq!(client.ask("GET", "/healthz", &[], b"").status, 200);
    }
    // Empty lines before a request are allowed, and are no request.
    let mut others: Vec<Connection> = Vec::new();
    // They have it for a second, which a busy machine may miss.
    let mut is_reached = |connections: &str| {
        (0..20).any(|_| {
            let shown = clients[0].ask("GET", "/metrics", &[], b"").body;
            String::from_utf8_lossy(&shown).contains(&format!("encke_connections {connections}\n"))
        })
    };
    eventually("all have a place to be refused", || {
        others.clear();
        eventually("those before are gone", || is_reached("3"));
        others = (0..64).map(|_| encke.connect()).collect();
        for other in &mut others {
            other.send(b"\r\n");
        }
        is_reached("67")
    });
    // Further ones are refused unseen. A place that becomes free is for whoever comes next.
    let refused = encke.connect().answer();
    assert_eq!((refused.status, refused.closes()), (503, true));
    clients.pop();
    eventually("there is room for one again", || {
        let mut next = encke.connect();
        next.send_anyway(&request("GET", "/healthz", &[], b""));
        let served = next.answer().status == 200;
        if served {
            clients.push(next);
        }
        served
    });
    for other in &mut others {
        let answer = other.answer();
        assert_eq!(
            (answer.status, &*answer.error_code()),
            (503, "connections_max")
        );
        other.expect_end();
    }
}

#[test]
fn files_that_are_fewer_than_clients() {
    raise_descriptors();
    let data = data_dir();
    let serve = serve(data.path(), &[]);
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "ulimit -n 640; exec \"$0\" \"$@\""])
        .arg(serve.get_program())
        .args(serve.get_args())
        .env("ENCKE_LOG", "info");
    let encke = Encke::start_by(&mut limited);
    assert!(
        encke.log().contains("connections_max=128"),
        "the log says what the limit means:\n{}",
        encke.log()
    );
    let ask = request("GET", "/healthz", &[], b"");
    for _ in 0..2 {
        let mut clients: Vec<Connection> = (0..200)
            .map(|_| {
                let mut client = encke.connect();
                client.send_anyway(&ask);
                client
            })
            .collect();
        let (served, refused): (Vec<Response>, Vec<Response>) = clients
            .iter_mut()
            .map(Connection::answer)
            .partition(|answer| answer.status == 200);
        assert_eq!(served.len(), 128);
        assert!(refused.iter().all(is_overload));
        drop(clients);
        eventually("all clients are gone", || {
            let mut client = encke.connect();
            client.send_anyway(&request("GET", "/metrics", &[], b""));
            let answer = client.answer();
            let text = String::from_utf8_lossy(&answer.body);
            answer.status == 200 && text.contains("encke_connections 1\n")
        });
    }
}

#[test]
fn descriptors_that_run_out_all_the_same() {
    raise_descriptors();
    let encke = Encke::start(&[]);
    encke.create("s");
    let mut subscriber = encke.subscribe("s", "now");
    let mut publisher = encke.connect();
    assert_eq!(publisher.ask("GET", "/healthz", &[], b"").status, 200);
    // The server expects thousands of descriptors; another process lowers the limit.
    let files = std::fs::read_dir(format!("/proc/{}/fd", encke.pid())).expect("it runs");
    let open: HashSet<u64> = files
        .filter_map(|file| file.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    let twentieth_free = (0..)
        .filter(|number| !open.contains(number))
        .nth(19)
        .expect("numbers don't end");
    let pid = Pid::from_raw(encke.pid() as i32).expect("it has a pid");
    let limit = |current: u64| Rlimit {
        current: Some(current),
        maximum: None,
    };
    let before = prlimit(
        Some(pid),
        Resource::Nofile,
        Rlimit {
            maximum: rustix::process::getrlimit(Resource::Nofile).maximum,
            ..limit(twentieth_free + 1)
        },
    )
    .expect("it is ours");
    let mut clients: Vec<Connection> = (0..60)
        .map(|_| {
            let mut client = encke.connect();
            client.send(&request("GET", "/healthz", &[], b""));
            client
        })
        .collect();
    // Accepted clients are served, the others wait, and the server does not spin meanwhile.
    eventually("some got in", || {
        clients.iter().filter(|client| client.has_input()).count() >= 15
    });
    let begin = Instant::now();
    let used = encke.cpu_seconds();
    std::thread::sleep(Duration::from_secs(1));
    let used = encke.cpu_seconds() - used;
    let share = used / begin.elapsed().as_secs_f64();
    assert!(share < 0.25, "{share} of a processor while they wait");
    let served: Vec<bool> = clients.iter().map(Connection::has_input).collect();
    let count = served.iter().filter(|served| **served).count();
    assert!((15..=25).contains(&count), "{count} of 60 got in");
    for number in 0..10 {
        let answer = publisher.ask("POST", &path("s"), &[JSON], number.to_string().as_bytes());
        assert_eq!(answer.status, 204);
        assert_eq!(subscriber.numbers(1), [number]);
    }
    // As some leave, others get in; 40 are too many still.
    let mut served = served.into_iter();
    clients.retain(|_| !served.next().expect("one for each"));
    eventually("some of those that waited got in", || {
        clients.iter().filter(|client| client.has_input()).count() >= 15
    });
    // When there are enough again, all get in.
    prlimit(Some(pid), Resource::Nofile, before).expect("it is ours");
    for client in &mut clients {
        assert_eq!(client.answer().status, 200);
    }
    assert!(encke.refused("descriptors") > 0);
}
