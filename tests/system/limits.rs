//! Limits per client address, and limits in total: a client that exceeds one gets an error, and other clients are not
//! affected.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::rig::{Bystanders, Connection, Encke, JSON, Response, eventually, path, request};

/// The content of a 429.
fn is_too_much(answer: &Response) -> bool {
    let retry: Option<u64> = answer.field("Retry-After").and_then(|s| s.parse().ok());
    answer.status == 429 && retry >= Some(1)
}

fn health(connection: &mut Connection) -> Response {
    connection.ask("GET", "/healthz", &[], b"")
}

#[test]
fn connections_of_one_address() {
    let encke = Encke::start(&[
        "--exempt",
        "127.0.0.1,10.0.0.0/8",
        "--connections-per-address",
        "5",
    ]);
    let bystanders = Bystanders::of(&encke);
    let mut inside: Vec<Connection> = (0..5).map(|_| encke.connect_from(2)).collect();
    for connection in &mut inside {
        assert_eq!(health(connection).status, 200);
    }
    for number in 0..20 {
        let mut sixth = encke.connect_from(2);
        if number % 2 == 0 {
            sixth.send_anyway(&request("GET", "/healthz", &[], b""));
        }
        let answer = sixth.answer();
        assert!(is_too_much(&answer) && answer.closes(), "{answer:?}");
        sixth.expect_end();
    }
    assert_eq!(encke.refused("connections_per_address"), 20);
    assert_eq!(encke.metric("encke_addresses", ""), 1.0);
    // Other addresses are not affected, and exempt ones have no limit.
    assert_eq!(health(&mut encke.connect_from(3)).status, 200);
    let mut exempt: Vec<Connection> = (0..10).map(|_| encke.connect()).collect();
    assert!(exempt.iter_mut().all(|one| health(one).status == 200));
    // One leaves, one may come; however they leave.
    for round in 0..5 {
        let leaver = inside.remove(0);
        match round % 2 {
            0 => drop(leaver),
            _ => leaver.reset(),
        }
        eventually("there is room for one again", || {
            let mut next = encke.connect_from(2);
            next.send_anyway(&request("GET", "/healthz", &[], b""));
            let came = next.answer().status == 200;
            if came {
                inside.push(next);
            }
            came
        });
    }
    drop(inside);
    eventually("no address is remembered", || {
        encke.metric("encke_addresses", "") == 0.0
    });
    bystanders.were_not_disturbed();
}

#[test]
fn requests_of_one_address() {
    let encke = Encke::start(&[
        "--exempt",
        "127.0.0.1",
        "--request-rate",
        "1",
        "--tuning",
        "request-burst=10",
    ]);
    encke.create("s");
    let bystanders = Bystanders::of(&encke);
    let mut hasty = encke.connect_from(2);
    let mut pipelined = Vec::new();
    for _ in 0..30 {
        pipelined.extend(request("POST", "/v1/stream/s", &[JSON], b"1"));
    }
    let begin = Instant::now();
    hasty.send(&pipelined);
    let answers: Vec<Response> = (0..30).map(|_| hasty.answer()).collect();
    let took = begin.elapsed();
    let taken = answers.iter().filter(|answer| answer.status == 204).count();
    // Opening the connection was one of the ten; one more for each second that it took.
    let more = 1 + took.as_secs() as usize;
    assert!((9..=9 + more).contains(&taken), "{taken} in {took:?}");
    for answer in answers.iter().filter(|answer| answer.status != 204) {
        assert!(is_too_much(answer) && !answer.closes(), "{answer:?}");
        assert_eq!(answer.error_code(), "request_rate");
    }
    assert_eq!(encke.refused("request_rate"), 30 - taken as u64);
    assert_eq!(encke.numbers("s").len(), taken, "refused is not done");
    // A new connection does not help, another address does.
    let refused = (0..100).any(|_| {
        let mut next = encke.connect_from(2);
        next.send_anyway(&request("GET", "/healthz", &[], b""));
        let answer = next.answer();
        is_too_much(&answer) && answer.closes()
    });
    assert!(refused, "it came in again and again");
    assert_eq!(health(&mut encke.connect_from(3)).status, 200);
    // A client that waits for Retry-After is served, on the same connection.
    let answer = health(&mut hasty);
    if answer.status == 429 {
        let wait = answer.field("Retry-After").expect("a time").parse();
        std::thread::sleep(Duration::from_secs(wait.expect("seconds")));
        assert_eq!(health(&mut hasty).status, 200);
    }
    bystanders.were_not_disturbed();
}

#[test]
fn accepts_in_all() {
    const RATE: usize = 10;
    const CLIENTS: usize = 40;
    let encke = Encke::start(&["--tuning", "accept-rate=10", "--shards", "1"]);
    let bystanders = Bystanders::of(&encke);
    let begin = Instant::now();
    let mut clients: Vec<Connection> = (0..CLIENTS).map(|_| encke.connect()).collect();
    for client in &mut clients {
        client.send(&request("GET", "/healthz", &[], b""));
    }
    // None is refused; those beyond the burst only wait.
    for client in &mut clients {
        assert_eq!(client.answer().status, 200);
    }
    let least = (CLIENTS - RATE) as f64 / RATE as f64;
    let took = begin.elapsed().as_secs_f64();
    assert!(took > least * 0.9, "{CLIENTS} were let in within {took} s");
    assert!(encke.metric("encke_accepts_held_total", "") >= 1.0);
    bystanders.were_not_disturbed();
}

#[test]
fn addresses_in_all() {
    // The table has sixteen parts, each with room for one.
    let encke = Encke::start(&["--exempt", "127.0.0.1", "--tuning", "addresses-max=1"]);
    let bystanders = Bystanders::of(&encke);
    let mut inside = Vec::new();
    let mut refused = 0;
    for client in 2..80 {
        let mut connection = encke.connect_from(client);
        connection.send_anyway(&request("GET", "/healthz", &[], b""));
        match connection.answer().status {
            200 => inside.push(connection),
            503 => refused += 1,
            status => panic!("{status}"),
        }
    }
    assert!((1..=16).contains(&inside.len()), "{}", inside.len());
    assert_eq!(encke.metric("encke_addresses", ""), inside.len() as f64);
    assert_eq!(encke.refused("addresses_max"), refused);
    // Known addresses continue and may connect again.
    assert!(inside.iter_mut().all(|one| health(one).status == 200));
    drop(inside);
    eventually("there is room for others", || {
        let mut next = encke.connect_from(99);
        next.send_anyway(&request("GET", "/healthz", &[], b""));
        next.answer().status == 200
    });
    bystanders.were_not_disturbed();
}

#[test]
fn producers_that_a_stream_remembers() {
    let encke = Encke::start(&["--tuning", "producers-max=2"]);
    encke.create("s");
    let mut connection = encke.connect();
    let mut append = |producer: &str, body: &str| {
        let id = format!("Producer-Id: {producer}");
        let fields = [JSON, &id, "Producer-Epoch: 0", "Producer-Seq: 0"];
        connection
            .ask("POST", &path("s"), &fields, body.as_bytes())
            .status
    };
    // What is repeated is known by its producer, as long as the stream remembers that.
    assert_eq!(append("a", "1"), 200);
    assert_eq!(append("a", "1"), 204);
    assert_eq!(append("b", "2"), 200);
    assert_eq!(append("b", "2"), 204);
    assert_eq!(append("c", "3"), 200);
    assert_eq!(encke.metric("encke_producers_forgotten_total", ""), 1.0);
    assert_eq!(append("b", "2"), 204);
    assert_eq!(append("a", "4"), 200, "the one idle longest is forgotten");
    assert_eq!(encke.metric("encke_producers_forgotten_total", ""), 2.0);
    assert_eq!(encke.numbers("s"), [1, 2, 3, 4]);
}

#[test]
fn sources_behind_a_fork() {
    let encke = Encke::start(&["--tuning", "fork-depth-max=2"]);
    encke.create("s");
    let fork = |of: &str, name: &str| {
        let from = format!("Stream-Forked-From: {}", path(of));
        encke.ask("PUT", &path(name), &[JSON, &from], b"").status
    };
    assert_eq!(
        [fork("s", "a"), fork("a", "b"), fork("b", "c")],
        [201, 201, 409]
    );
    assert_eq!(encke.refused("409"), 1);
    assert_eq!(fork("a", "c"), 201);
}

/// The keys of the table `[tuning]`.
fn tuning() -> Vec<String> {
    let check = ["serve", "--check", "--tuning", "order-age=1h"];
    let checked = crate::rig::Ended::of(&mut crate::rig::command(&check)).stdout;
    let checked: toml::Table = checked.parse().expect("the output is TOML");
    let tuning = checked["tuning"].as_table().expect("a table");
    tuning.keys().cloned().collect()
}

#[test]
fn every_metric_is_in_the_manual() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    let manual = ["operations", "pools"]
        .map(|page| std::fs::read_to_string(format!("{docs}/{page}.md")).expect("a manual"))
        .concat();
    let documented: Vec<&str> = manual
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .collect();
    let encke = Encke::start(&[]);
    encke.create("s");
    let shown = encke.ask("GET", "/metrics", &[], b"");
    let text = String::from_utf8(shown.body).expect("metrics are text");
    let mut count = 0;
    for name in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let name = name.split(' ').next().expect("a name");
        count += 1;
        assert!(documented.contains(&name), "{name} is not in the manual");
    }
    assert!(count >= 30, "only {count} metrics");
}

/// The names that a metric has in OpenMetrics: that of its family, and those of its samples.
fn sample_names(name: &str, kind: &str) -> Vec<String> {
    let family = match kind {
        "counter" => name.strip_suffix("_total").expect("a counter ends so"),
        _ => name,
    };
    let suffixes = match kind {
        "counter" => &["", "_total", "_created"][..],
        "gauge" => &[""],
        "histogram" => &["", "_bucket", "_sum", "_count", "_created"],
        other => panic!("{name} is of an unknown kind: {other}"),
    };
    let names = suffixes.iter().map(|suffix| format!("{family}{suffix}"));
    names.collect()
}

/// The families of OpenMetrics have names without suffixes, so that a gauge and a counter may be one family to a client library.
#[test]
fn no_two_metrics_are_one_family() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference.md");
    let reference = std::fs::read_to_string(file).expect("the reference");
    let rows = reference.lines().skip_while(|line| *line != "## Metrics");
    let rows = rows.take_while(|line| *line != "## Errors");
    let rows = rows.filter_map(|line| {
        let mut columns = line.strip_prefix("| `")?.split(" | ");
        Some((columns.next()?.strip_suffix('`')?, columns.next()?))
    });
    let mut names = std::collections::BTreeMap::new();
    for (metric, kind) in rows {
        for name in sample_names(metric, kind) {
            let other = names.insert(name.clone(), metric);
            assert_eq!(other, None, "{metric} has the name {name}, too");
        }
    }
    assert!(names.len() >= 200, "only {} names", names.len());
}

/// All code below a directory.
fn code_below(directory: &Path) -> String {
    let mut code = String::new();
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            code += &code_below(&path);
        } else if path.extension().is_some_and(|end| end == "rs") {
            code += &std::fs::read_to_string(&path).expect("a text");
        }
    }
    code
}

#[test]
fn memory_of_producers() {
    let encke = Encke::start(&["--tuning", "producer-memory=64KiB"]);
    encke.create("s");
    let mut connection = encke.connect();
    let mut append = |number: usize| {
        let id = format!("Producer-Id: {number:0256}");
        let fields = [JSON, &id, "Producer-Epoch: 0", "Producer-Seq: 0"];
        connection.ask("POST", &path("s"), &fields, b"1")
    };
    let refused = (0..1_000).find_map(|number| {
        let answer = append(number);
        (answer.status >= 300).then_some(answer)
    });
    let refused = refused.expect("a producer is refused");
    assert!(is_too_much(&refused), "{refused:?}");
    assert_eq!(refused.error_code(), "producer_memory");
    // A known producer is accepted.
    assert_eq!(append(0).status, 204);
    assert!(encke.metric("encke_producer_bytes", "") > 0.0);
}

#[test]
fn every_limit_of_the_manual_is_a_setting_and_has_a_test() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let manual = std::fs::read_to_string(format!("{root}/docs/operations.md")).expect("a manual");
    let help = crate::rig::Ended::of(&mut crate::rig::command(&["serve", "--help"])).stdout;
    let tests = code_below(Path::new(&format!("{root}/tests/system")));
    let rows = manual
        .lines()
        .skip_while(|line| !line.starts_with("| limit |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let tuning = tuning();
    let mut count = 0;
    for row in rows {
        let column = row.split('|').nth(2).expect("a column of settings");
        for setting in column.split('`') {
            let used = if let Some(key) = setting.strip_prefix("tuning.") {
                assert!(tuning.contains(&key.to_owned()), "{key} is no key: {row}");
                format!("\"{key}=")
            } else if setting.starts_with("--") {
                assert!(help.contains(setting), "{setting} is no setting: {row}");
                format!("\"{setting}\"")
            } else {
                continue;
            };
            count += 1;
            // Whether a publisher was slowed is not visible from outside; unit tests cover it.
            let inside = ["tuning.admission-delay"].contains(&setting);
            assert!(
                inside || tests.contains(&used),
                "no test sets {setting}: {row}"
            );
        }
    }
    assert!(count >= 20, "only {count} settings in the table");
}
