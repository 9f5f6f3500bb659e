//! Fan-out backpressure: when most subscribers of a stream lag, publishers to this stream are slowed, and no others.

use crate::rig::{Bystanders, Connection, Encke, JSON, Subscriber, eventually, path, request};

/// Subscribers whose sockets are full with a part of an event.
fn narrow_subscribers(encke: &Encke, stream: &str, count: usize) -> Vec<Subscriber> {
    (0..count).map(|_| encke.subscribe_narrow(stream)).collect()
}

/// Sends an event that no socket takes whole, and does not wait for its answer.
fn publish(encke: &Encke, stream: &str, number: u64) -> Connection {
    publish_sized(encke, stream, number, 64 << 10)
}

fn publish_sized(encke: &Encke, stream: &str, number: u64, bytes: usize) -> Connection {
    let pad = "x".repeat(bytes);
    let body = format!("{{\"n\":{number},\"pad\":\"{pad}\"}}");
    let mut connection = encke.connect();
    connection.send(&request("POST", &path(stream), &[JSON], body.as_bytes()));
    connection
}

fn held_back(encke: &Encke) -> f64 {
    encke.metric("encke_acknowledgements_held_total", "")
}

fn is_congested(encke: &Encke) -> bool {
    encke.metric("encke_streams_congested", "") == 1.0
}

/// The subscribers read up to an event.
fn read(subscribers: &mut [Subscriber], numbers: std::ops::Range<u64>) {
    for subscriber in subscribers {
        for number in numbers.clone() {
            assert_eq!(subscriber.message().expect("it is there")["n"], number);
        }
    }
}

/// Publishes two events, the second of which is acknowledged late; repeats this if the subscribers have not read for so long that
/// publishers no longer wait for them. Returns the number of events published and read.
fn until_held_back(encke: &Encke, subscribers: &mut [Subscriber], mut next: u64) -> (u64, u64) {
    let before = held_back(encke);
    for _ in 0..20 {
        for number in next..next + 2 {
            assert_eq!(publish(encke, "s", number).answer().status, 204);
        }
        if held_back(encke) > before {
            return (next + 2, next);
        }
        read(subscribers, next..next + 2);
        next += 2;
    }
    panic!("no acknowledgement was held back");
}

#[test]
fn appends_wait_while_most_of_many_subscribers_lag() {
    let encke = Encke::start(&["--shards", "1", "--tuning", "admission-wait=60s"]);
    encke.create("s");
    let bystanders = Bystanders::of(&encke);
    let mut subscribers = narrow_subscribers(&encke, "s", 70);
    // No subscriber reads meanwhile, so the acknowledgement does not wait for a minute.
    let (next, had) = until_held_back(&encke, &mut subscribers, 0);
    assert!(!is_congested(&encke), "it is given up");
    let held = held_back(&encke);
    assert_eq!(publish(&encke, "s", next).answer().status, 204);
    assert_eq!(held_back(&encke), held, "it is not waited for again");
    // Publishers wait for subscribers that have kept up since.
    read(&mut subscribers, had..next + 1);
    until_held_back(&encke, &mut subscribers, next + 1);
    // Publishers to other streams were never slowed.
    bystanders.were_not_disturbed();
}

#[test]
fn a_few_slow_subscribers_delay_no_append() {
    // Too few lagging subscribers, and many that are not most of the subscribers.
    for (slow, reading) in [(63, 0), (64, 64)] {
        let encke = Encke::start(&["--shards", "1", "--tuning", "admission-wait=60s"]);
        encke.create("s");
        let slow = narrow_subscribers(&encke, "s", slow);
        let mut readers: Vec<Subscriber> =
            (0..reading).map(|_| encke.subscribe("s", "-1")).collect();
        for number in 0..20 {
            let mut publisher = publish_sized(&encke, "s", number, 20 << 10);
            for reader in &mut readers {
                assert_eq!(reader.message().expect("it is live")["n"], number);
            }
            assert_eq!(publisher.answer().status, 204);
        }
        assert_eq!(encke.metric("encke_clients_behind", ""), slow.len() as f64);
        assert_eq!(held_back(&encke), 0.0);
    }
}

#[test]
fn publishers_are_not_held_back_where_that_is_turned_off() {
    let encke = Encke::start(&["--shards", "1", "--tuning", "admission-wait=0s"]);
    encke.create("s");
    let subscribers = narrow_subscribers(&encke, "s", 70);
    for number in 0..3 {
        assert_eq!(publish(&encke, "s", number).answer().status, 204);
    }
    eventually("all are behind", || {
        encke.metric("encke_clients_behind", "") == 70.0
    });
    assert_eq!(held_back(&encke), 0.0);
    drop(subscribers);
}
