//! Subscribers that connect while records are published: each gets every record of its stream once, and no other records.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::rig::{Encke, JSON, PATIENCE, SetWhenDropped, path, request};

/// A publisher as fast as it can, and what it knows.
struct Race {
    over: AtomicBool,
    /// Numbers below this one were sent; all records behind are not even on their way.
    sent: AtomicU64,
    /// Numbers below this one were acknowledged.
    acknowledged: AtomicU64,
    /// Where the stream goes on behind which number.
    places: Mutex<Vec<(u64, String)>>,
}

fn race(flags: &[&str], lasts: Duration) {
    /// Appends that are sent before the first is answered.
    const AHEAD: u64 = 8;
    /// What a late subscriber reads after it has caught up.
    const LIVE: usize = 40;
    let encke = Encke::start(flags);
    encke.create("s");
    let race = Race {
        over: AtomicBool::new(false),
        sent: AtomicU64::new(0),
        acknowledged: AtomicU64::new(0),
        places: Mutex::default(),
    };
    let begin = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut connection = encke.connect();
            let mut number = 0;
            while !race.over.load(Ordering::Relaxed) {
                for ahead in number..number + AHEAD {
                    race.sent.store(ahead + 1, Ordering::SeqCst);
                    let body = ahead.to_string();
                    connection.send(&request("POST", &path("s"), &[JSON], body.as_bytes()));
                }
                for ahead in number..number + AHEAD {
                    let answer = connection.answer();
                    assert_eq!(answer.status, 204, "{answer:?}");
                    race.acknowledged.store(ahead + 1, Ordering::SeqCst);
                    let place = answer.field("Stream-Next-Offset").expect("a place");
                    let mut places = race.places.lock().expect("not poisoned");
                    places.push((ahead + 1, place.to_owned()));
                }
                number += AHEAD;
            }
        });
        let is_over = SetWhenDropped(&race.over);
        let readers: Vec<_> = ["-1", "middle", "recent", "now"]
            .map(|from| {
                let (encke, race) = (&encke, &race);
                scope.spawn(move || {
                    let mut rounds = 0;
                    while begin.elapsed() < lasts || rounds < 5 {
                        assert!(begin.elapsed() < PATIENCE);
                        let place = {
                            let places = race.places.lock().expect("not poisoned");
                            match from {
                                "middle" => places.get(places.len() * 2 / 3).cloned(),
                                "recent" => places.last().cloned(),
                                _ => None,
                            }
                        };
                        let acknowledged = race.acknowledged.load(Ordering::SeqCst);
                        let (mut first, offset) = match (from, place) {
                            ("-1", _) => (Some(0), "-1".to_owned()),
                            ("now", _) => (None, "now".to_owned()),
                            (_, Some((number, place))) => (Some(number), place),
                            (_, None) => continue,
                        };
                        let mut subscriber = encke.subscribe("s", &offset);
                        let sent = race.sent.load(Ordering::SeqCst);
                        let mut seen = 0;
                        while seen < LIVE || first.is_some_and(|first| first < sent) {
                            let number = subscriber.numbers(1)[0];
                            match first {
                                Some(first) => assert_eq!(number, first, "from {offset}"),
                                None => assert!(
                                    (acknowledged..=sent).contains(&number),
                                    "now was between {acknowledged} and {sent}, not {number}"
                                ),
                            }
                            first = Some(number + 1);
                            seen += 1;
                        }
                        rounds += 1;
                    }
                    rounds
                })
            })
            .into_iter()
            .map(|reader| reader.join())
            .collect();
        drop(is_over);
        for rounds in readers {
            assert!(rounds.expect("nothing was missed, nothing was seen twice") >= 5);
        }
    });
}

#[test]
fn late_subscribers_race_with_a_fast_publisher() {
    race(&[], Duration::from_secs(2));
}

#[test]
fn late_subscribers_race_with_a_ring_that_holds_next_to_nothing() {
    race(
        &["--ring", "64KiB", "--tuning", "page=1KiB"],
        Duration::from_secs(2),
    );
}

#[test]
fn subscribers_come_back_to_where_the_last_one_left() {
    let encke = Encke::start(&["--shards", "1"]);
    encke.create("s");
    let mut connection = encke.connect();
    connection.append("s", 0);
    for number in 1..20 {
        // The one before was the only one, and the record it left at is still at hand.
        let mut subscriber = encke.subscribe("s", "now");
        connection.append("s", number);
        assert_eq!(subscriber.numbers(1), [number]);
        drop(subscriber);
        encke.wait_for_metric("encke_subscribers", 0.0);
    }
}

#[test]
fn streams_with_neighbouring_records_are_not_mixed_up() {
    let encke = Encke::start(&["--shards", "1"]);
    let mut connection = encke.connect();
    for stream in ["a", "b", "c"] {
        encke.create(stream);
    }
    let mut subscribers = [encke.subscribe("a", "-1"), encke.subscribe("b", "-1")];
    for round in 0..20 {
        // Somebody comes to `c` just behind a record of another stream, and both go on.
        let other = ["a", "b"][round % 2];
        connection.append(other, 1);
        let mut late = encke.subscribe("c", "now");
        connection.append("c", 3);
        connection.append(other, 2);
        connection.append("c", 4);
        assert_eq!(late.numbers(2), [3, 4], "round {round}");
        assert_eq!(subscribers[round % 2].numbers(2), [1, 2], "round {round}");
    }
}
