//! A stream with many subscribers: records that are published faster than a round of sends go out together.

use crate::rig::{Bystanders, Encke, Subscriber, eventually};

/// More than one turn of a shard sends to.
const SUBSCRIBERS: usize = 300;
const EVENTS: usize = 100;

#[test]
fn records_that_follow_a_long_round_go_out_together() {
    for (rest_max, rests) in [("rest-max=20ms", true), ("rest-max=0s", false)] {
        let encke = Encke::start(&["--shards", "1", "--tuning", rest_max]);
        encke.create("s");
        let bystanders = Bystanders::of(&encke);
        let mut subscribers: Vec<Subscriber> = (0..SUBSCRIBERS)
            .map(|_| encke.subscribe("s", "-1"))
            .collect();
        let mut publisher = encke.connect();
        let rested = || encke.metric("encke_rests_total", "") > 0.0;
        let mut published = 0;
        eventually("there were enough events", || {
            for _ in 0..EVENTS {
                publisher.append("s", published);
                published += 1;
            }
            // On a busy machine an event may come only when the subscribers have read the last one.
            rested() || !rests
        });
        let all: Vec<u64> = (0..published).collect();
        for subscriber in &mut subscribers {
            assert_eq!(subscriber.numbers(all.len()), all);
        }
        assert_eq!(rested(), rests);
        bystanders.were_not_disturbed();
    }
}
