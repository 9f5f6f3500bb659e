//! A stream that very many subscribe to: what is published faster than they can be sent it goes out together.

use crate::rig::{Bystanders, Encke, Subscriber};

/// More than one turn of a shard sends to.
const CROWD: usize = 300;
const EVENTS: usize = 100;

#[test]
fn a_crowd_that_was_just_sent_something_is_sent_more_of_it_together() {
    for (rest_max, rests) in [("rest-max=20ms", true), ("rest-max=0s", false)] {
        let encke = Encke::start(&["--shards", "1", "--tuning", rest_max]);
        encke.create("s");
        let bystanders = Bystanders::of(&encke);
        let mut crowd: Vec<Subscriber> = (0..CROWD).map(|_| encke.subscribe("s", "-1")).collect();
        let mut publisher = encke.connect();
        for number in 0..EVENTS {
            publisher.append("s", number as u64);
        }
        let all: Vec<u64> = (0..EVENTS as u64).collect();
        for subscriber in &mut crowd {
            assert_eq!(subscriber.numbers(EVENTS), all);
        }
        assert_eq!(encke.metric("encke_rests_total", "") > 0.0, rests);
        bystanders.were_not_disturbed();
    }
}
