//! In the end the log agrees with the channels, also if records were lost, or another node has taken over.

use std::sync::Arc;

use encke_presence::{NewMember, Presence, PresenceHold, PresencePlace, PresenceRules};
use proptest::prelude::*;

use super::*;
use crate::protocols::PRESENCE_LIMITS;
use crate::pusher::webhook::repetition::{BEGINS, ENDS, GROWN_MAX};

/// A registry, a log, and a node that reports.
struct Node {
    registry: Arc<Presence>,
    reports: ChannelReports,
    log: Vec<String>,
    /// How many of its first records the log has forgotten.
    kept_from: usize,
    /// What the last take-over said of itself.
    knows_all: bool,
    /// Records that are written and not read back.
    on_their_way: Vec<Vec<u8>>,
    public_max: usize,
    now_ms: u64,
}

impl Node {
    fn new() -> Self {
        let registry = Presence::new(PRESENCE_LIMITS);
        registry.count_below("");
        let webhook = PusherWebhook::new("http://127.0.0.1/", WebhookKind::ALL.to_vec(), "");
        let mut reports = ChannelReports::new(vec![webhook.unwrap()]);
        reports.begin();
        reports.restored(false, SteadyTime::from_ms(0));
        Node {
            registry,
            reports,
            log: Vec::new(),
            kept_from: 0,
            knows_all: true,
            on_their_way: Vec::new(),
            public_max: usize::MAX,
            now_ms: 0,
        }
    }

    /// One that takes over with that log, of which the records before `kept_from` are forgotten.
    fn with_log(log: Vec<String>, kept_from: usize) -> Self {
        let mut node = Node {
            log,
            kept_from,
            ..Node::new()
        };
        node.take_over();
        node
    }

    /// What the log says, as the node has read it.
    fn known(&self) -> &HashMap<Box<str>, ChannelState> {
        &self.reports.reporting.as_ref().unwrap().told
    }

    fn enter(&self, channel: &str, member: Option<&str>) -> PresenceHold {
        let rules = PresenceRules {
            grace: Duration::ZERO,
            members_max: 100,
            bytes_max: 10_000,
        };
        let place = PresencePlace {
            stream: channel,
            rules,
        };
        let entered = match member {
            None => self.registry.enter_anonymous(&place),
            Some(id) => {
                let member = NewMember {
                    key: id.into(),
                    id: id.into(),
                    data: None,
                };
                self.registry.enter(&place, member, self.now())
            }
        };
        entered.unwrap()
    }

    fn now(&self) -> SteadyTime {
        SteadyTime::from_ms(self.now_ms)
    }

    fn observe(&mut self) {
        let mut events = Vec::new();
        self.registry.take_events(&mut events);
        for event in &events {
            let channel = ChannelName::parse(&event.stream).unwrap();
            self.reports.observe(channel, event, self.now());
        }
    }

    /// A turn that much later. What was written before is in the log then, unless it is lost.
    fn turn(&mut self, ms: u64, is_lost: bool) {
        self.now_ms += ms;
        self.observe();
        for record in std::mem::take(&mut self.on_their_way) {
            if !is_lost {
                self.reports.told((&record, 0, 1), self.now());
                self.log.push(String::from_utf8(record).unwrap());
            }
        }
        self.on_their_way = self.reports.due(self.public_max, self.now());
        let repeated = self.reports.repeated(self.now());
        self.on_their_way.extend(repeated);
    }

    fn turns(&mut self, count: usize) {
        for _ in 0..count {
            self.turn(100, false);
        }
    }

    /// Another node takes over.
    fn take_over(&mut self) {
        self.reports.end();
        self.on_their_way.clear();
        self.reports.begin();
        for record in &self.log[self.kept_from..] {
            self.reports
                .told((record.as_bytes(), 0, 1), SteadyTime::from_ms(self.now_ms));
        }
        let is_trimmed = self.kept_from > 0;
        self.knows_all = self.reports.restored(is_trimmed, self.now());
    }

    /// What was told since the last call, in short.
    fn told(&mut self) -> Vec<String> {
        let short = |record: &String| {
            let record: serde_json::Value = serde_json::from_str(record).unwrap();
            let name = record["name"].as_str().unwrap();
            let more = match (&record["user_id"], &record["subscription_count"]) {
                (serde_json::Value::String(user), _) => format!(" {user}"),
                (_, serde_json::Value::Number(count)) => format!(" {count}"),
                _ => String::new(),
            };
            format!("{name} {}{more}", record["channel"].as_str().unwrap())
        };
        let log = self.log.iter().filter(|record| !record.contains("again"));
        let told = log.map(short).collect();
        self.log.clear();
        told
    }
}

#[test]
fn what_happens_is_told_once_and_in_order() {
    let mut node = Node::new();
    let ann = node.enter("presence-a", Some("ann"));
    let bob = node.enter("presence-a", Some("bob"));
    let plain = node.enter("b", None);
    node.turns(2);
    let mut told = node.told();
    told.sort();
    assert_eq!(
        told,
        [
            "channel_occupied b",
            "channel_occupied presence-a",
            "member_added presence-a ann",
            "member_added presence-a bob",
        ]
    );
    node.turns(20);
    assert_eq!(
        node.told(),
        ["subscription_count b 1", "subscription_count presence-a 2"]
    );
    // A reload is no event.
    drop(bob);
    node.turns(10);
    let bob = node.enter("presence-a", Some("bob"));
    node.turns(100);
    assert_eq!(node.told(), [""; 0]);
    drop((ann, bob, plain));
    node.turns(29);
    assert_eq!(
        node.told(),
        ["subscription_count b 0", "subscription_count presence-a 0"]
    );
    node.turns(10);
    assert_eq!(
        node.told(),
        [
            "member_removed presence-a ann",
            "member_removed presence-a bob",
            "channel_vacated b",
            "channel_vacated presence-a",
        ]
    );
    assert!(node.reports.actual.is_empty());
    let reporting = node.reports.reporting.as_ref().unwrap();
    assert!(reporting.told.is_empty() && reporting.due.is_empty());
}

#[test]
fn what_is_lost_on_its_way_comes_again() {
    let mut node = Node::new();
    let _plain = node.enter("b", None);
    node.turn(100, false);
    node.turn(100, true);
    node.turns(95);
    assert_eq!(node.told(), ["subscription_count b 1"]);
    node.turns(10);
    assert_eq!(node.told(), ["channel_occupied b"]);
}

#[test]
fn a_node_that_takes_over_tells_what_the_last_one_could_not() {
    let mut node = Node::new();
    let ann = node.enter("presence-a", Some("ann"));
    let stays = node.enter("b", None);
    node.turns(30);
    // The last node is gone, and its clients with it.
    let mut next = Node::with_log(std::mem::take(&mut node.log), 0);
    next.log.clear();
    drop((ann, stays));
    let _again = next.enter("b", None);
    let _new = next.enter("c", None);
    next.turns(40);
    assert_eq!(
        next.told(),
        ["channel_occupied c", "subscription_count c 1"]
    );
    next.turns(20);
    assert_eq!(
        next.told(),
        [
            "member_removed presence-a ann",
            "channel_vacated presence-a",
            "subscription_count presence-a 0",
        ]
    );
}

#[test]
fn what_the_log_has_forgotten_is_known_by_what_stands_in_it_again() {
    let mut node = Node::new();
    let ann = node.enter("presence-a", Some("ann"));
    let stays = node.enter("b", None);
    node.turns(30);
    let first = node.log.len();
    // Before that stands in the log again, a node does not know what was forgotten, and says so.
    let early = Node::with_log(node.log.clone(), first);
    assert!(!early.knows_all);
    node.turns(700);
    drop((ann, stays));
    let mut next = Node::with_log(node.log.clone(), first);
    assert!(next.knows_all);
    next.log.clear();
    next.turns(80);
    assert_eq!(
        next.told(),
        [
            "member_removed presence-a ann",
            "channel_vacated b",
            "channel_vacated presence-a",
            "subscription_count b 0",
            "subscription_count presence-a 0",
        ]
    );
}

#[test]
fn what_was_told_is_said_again_when_the_log_has_grown() {
    let mut node = Node::new();
    let _stays = node.enter("b", None);
    node.turns(700);
    let said = |node: &Node| {
        let ends = node.log.iter().filter(|record| record.contains(ENDS));
        ends.count()
    };
    assert_eq!(said(&node), 1);
    node.turns(700);
    assert_eq!(said(&node), 1);
    let event = WebhookEvent::of_client("private-a", ("client-x", None), "1.2", None);
    let mut filler = event.record();
    filler.resize(1 << 20, b' ');
    for _ in 0..=GROWN_MAX >> 20 {
        let now = node.now();
        node.reports.told((&filler, 0, 1), now);
    }
    node.turns(2);
    assert_eq!(said(&node), 2);
    // What could not be written is said anew.
    let now = node.now();
    node.reports.repeat_anew(now);
    node.turns(102);
    assert_eq!(said(&node), 3);
}

#[test]
fn what_stands_in_the_log_again_hides_nothing_that_was_lost_and_comes_again() {
    let mut node = Node::new();
    let stays = node.enter("b", None);
    node.turns(589);
    drop(stays);
    // The number is written in the same turn as the begin of what is said again, is lost, and comes again 10 s later.
    node.turns(11);
    let written = |text: &str| {
        let mut records = node.on_their_way.iter();
        records.any(|record| String::from_utf8_lossy(record).contains(text))
    };
    assert!(written(BEGINS) && written("\"subscription_count\":0"));
    node.turn(100, true);
    node.turns(250);
    let reader = Node::with_log(node.log.clone(), 0);
    assert!(reader.known().is_empty(), "{:?}", reader.known());
}

/// A channel whose number changes all the time, of which a record was lost.
#[test]
fn what_is_said_again_comes_to_an_end_whatever_was_lost() {
    for loses in [1, 40] {
        let mut node = Node::new();
        let mut holds = vec![node.enter("b", None)];
        let _quiet = node.enter("presence-a", Some("ann"));
        node.turns(580);
        for second in 0..100 {
            holds.push(node.enter("b", None));
            let is_lost = second < loses;
            for _ in 0..10 {
                node.turn(100, is_lost && node.on_their_way.len() == 1);
            }
        }
        let said = |text: &str| node.log.iter().any(|record| record.contains(text));
        assert!(said(BEGINS) && said(ENDS), "{loses}");
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Enter(u8, Option<u8>),
    Leave(u8),
    Turn(u32, bool),
    TakeOver,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3_u8, proptest::option::of(0..3_u8)).prop_map(|(channel, member)| Step::Enter(channel, member)),
        4 => (0..8_u8).prop_map(Step::Leave),
        6 => (1..4_000_u32, any::<bool>()).prop_map(|(ms, is_lost)| Step::Turn(ms, is_lost)),
        // Until the log says again what was told.
        1 => (40_000..70_000_u32).prop_map(|ms| Step::Turn(ms, false)),
        1 => Just(Step::TakeOver),
    ]
}

#[test]
fn public_channels_take_no_place_of_private_ones() {
    let mut node = Node::new();
    node.public_max = 2;
    let enter = |prefix: &str| -> Vec<_> {
        let channels = (0..10).map(|number| node.enter(&format!("{prefix}{number}"), None));
        channels.collect()
    };
    let (public, _private) = (enter("c"), enter("private-"));
    node.turns(2);
    let occupied = |told: &[String]| {
        let of = told
            .iter()
            .filter(|one| one.starts_with("channel_occupied"));
        let (private, public): (Vec<_>, Vec<_>) = of.partition(|one| one.contains("private-"));
        (public.len(), private.len())
    };
    let told = node.told();
    assert_eq!(occupied(&told), (2, 10), "{told:?}");
    // A channel that is vacated before its event is written needs none.
    drop(public);
    node.turns(50);
    let told = node.told();
    assert!(occupied(&told).0 < 8, "{told:?}");
    assert!(
        node.known()
            .keys()
            .all(|channel| channel.starts_with("private-"))
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn in_the_end_the_log_says_what_is(steps in proptest::collection::vec(step(), 1..60)) {
        let mut node = Node::new();
        let mut holds = Vec::new();
        for step in steps {
            match step {
                Step::Enter(channel, member) => {
                    let member = member.map(|number| format!("m{number}"));
                    let channel = match &member {
                        Some(_) => format!("presence-{channel}"),
                        None => format!("c{channel}"),
                    };
                    holds.push(node.enter(&channel, member.as_deref()));
                }
                Step::Leave(which) if !holds.is_empty() => {
                    let which = usize::from(which) % holds.len();
                    drop(holds.swap_remove(which));
                }
                Step::Leave(_) => {}
                Step::Turn(ms, is_lost) => node.turn(ms.into(), is_lost),
                Step::TakeOver => node.take_over(),
            }
        }
        node.turns(300);
        // For receivers, and for a node that reads the whole log.
        let told = node.log.iter().filter(|record| !record.contains("again"));
        let receiver = Node::with_log(told.cloned().collect(), 0);
        prop_assert_eq!(receiver.known(), &node.reports.actual);
        let reader = Node::with_log(node.log.clone(), 0);
        prop_assert_eq!(reader.known(), &node.reports.actual);
        drop(holds);
        node.turns(300);
        prop_assert!(node.known().is_empty(), "{:?}", node.known());
        prop_assert!(node.reports.actual.is_empty());
    }
}
