//! Limits that hold for each client address, and for all that comes in together: whoever is over one is told so, and
//! nobody else notices.

use std::time::{Duration, Instant};

use crate::rig::{Bystanders, Connection, Encke, JSON, Response, eventually, request};

/// What a 429 must tell.
fn is_too_much(answer: &Response) -> bool {
    let retry = answer.field("Retry-After").expect("a time to come back");
    let retry: u64 = retry.parse().expect("seconds");
    answer.status == 429 && retry >= 1
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
    // Others are not concerned, and those who are exempt have no limit.
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
    eventually("nobody is remembered", || {
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
        "5",
        "--request-burst",
        "10",
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
    // Opening the connection was one of the ten; five more for each second that it took.
    let more = 1 + (took.as_secs_f64() * 5.0) as usize;
    assert!((9..=9 + more).contains(&taken), "{taken} in {took:?}");
    for answer in answers.iter().filter(|answer| answer.status != 204) {
        assert!(is_too_much(answer) && !answer.closes(), "{answer:?}");
        assert_eq!(answer.error_code(), "request_rate");
    }
    assert_eq!(encke.refused("request_rate"), 30 - taken as u64);
    assert_eq!(encke.numbers("s").len(), taken, "refused is not done");
    // A new connection does not help, another address does.
    let answer = encke.connect_from(2).answer();
    assert!(is_too_much(&answer) && answer.closes(), "{answer:?}");
    assert_eq!(health(&mut encke.connect_from(3)).status, 200);
    // Whoever waits as told is served, on the same connection.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(health(&mut hasty).status, 200);
    bystanders.were_not_disturbed();
}

#[test]
fn accepts_in_all() {
    const RATE: usize = 40;
    const CLIENTS: usize = 60;
    let encke = Encke::start(&["--accept-rate", "40", "--shards", "1"]);
    let bystanders = Bystanders::of(&encke);
    let begin = Instant::now();
    let mut clients: Vec<Connection> = (0..CLIENTS).map(|_| encke.connect()).collect();
    for client in &mut clients {
        client.send(&request("GET", "/healthz", &[], b""));
    }
    // Nobody is refused; they only wait.
    for client in &mut clients {
        assert_eq!(client.answer().status, 200);
    }
    let least = (CLIENTS - RATE / 10) as f64 / RATE as f64;
    let took = begin.elapsed().as_secs_f64();
    assert!(took > least * 0.9, "{CLIENTS} were let in within {took} s");
    assert!(encke.metric("encke_accepts_held_total", "") >= 1.0);
    bystanders.were_not_disturbed();
}

#[test]
fn addresses_in_all() {
    // The table has sixteen parts, each with room for one.
    let encke = Encke::start(&["--exempt", "127.0.0.1", "--addresses-max", "1"]);
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
    // Those who are known go on and may come again.
    assert!(inside.iter_mut().all(|one| health(one).status == 200));
    drop(inside);
    eventually("there is room for others", || {
        let mut next = encke.connect_from(99);
        next.send_anyway(&request("GET", "/healthz", &[], b""));
        next.answer().status == 200
    });
    bystanders.were_not_disturbed();
}
