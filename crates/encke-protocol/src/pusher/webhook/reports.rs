//! What happens to the channels of an app, as its webhooks are told: what the log says is compared with who is subscribed.

use std::collections::HashMap;
use std::time::Duration;

use encke_clock::SteadyTime;
use encke_presence::{PresenceChange, PresenceEvent};
use serde_json::value::RawValue;

use super::channel_state::{ChannelPart, ChannelState, ChannelSubject, difference};
use super::event::WebhookEvent;
use super::kind::WebhookKind;
use super::repetition::Repetition;
use crate::json;
use crate::pusher::channel_name::ChannelName;
use crate::pusher::settings::PusherWebhook;

/// The channels of an app, as they are and as the log says.
#[derive(Debug)]
pub(crate) struct ChannelReports {
    /// They say what is wanted.
    webhooks: Vec<PusherWebhook>,
    actual: HashMap<Box<str>, ChannelState>,
    /// While this node reports.
    reporting: Option<Reporting>,
}

/// What a node knows while it reports.
#[derive(Debug, Default)]
struct Reporting {
    is_restored: bool,
    told: HashMap<Box<str>, ChannelState>,
    /// What is to be compared, and when.
    due: HashMap<ChannelSubject, SteadyTime>,
    repetition: Repetition,
}

impl ChannelReports {
    pub(crate) fn new(webhooks: Vec<PusherWebhook>) -> Self {
        ChannelReports {
            webhooks,
            actual: HashMap::new(),
            reporting: None,
        }
    }

    /// Something has happened to the subscribers of a channel.
    pub(crate) fn observe(
        &mut self,
        channel: ChannelName<'_>,
        event: &PresenceEvent,
        now: SteadyTime,
    ) {
        let name = channel.as_str();
        let state = self.actual.entry(name.into()).or_default();
        let (part, pause) = match &event.change {
            PresenceChange::Occupied => {
                state.is_occupied = true;
                (ChannelPart::Occupancy, Duration::ZERO)
            }
            PresenceChange::Vacated => {
                *state = ChannelState::default();
                (ChannelPart::Occupancy, GONE_PAUSE)
            }
            PresenceChange::Joined(member) => {
                if channel.is_presence() {
                    state.members.insert(member.id.clone());
                }
                (ChannelPart::Member(member.id.clone()), Duration::ZERO)
            }
            PresenceChange::Left(member) => {
                state.members.remove(&member.id);
                (ChannelPart::Member(member.id.clone()), GONE_PAUSE)
            }
            PresenceChange::Counted => {
                state.subscriptions = event.connections;
                (ChannelPart::Subscriptions, COUNT_PAUSE)
            }
            PresenceChange::Updated(_) => return,
        };
        if *state == ChannelState::default() {
            self.actual.remove(name);
        }
        let Some(reporting) = &mut self.reporting else {
            return;
        };
        if event.change == PresenceChange::Vacated {
            // It has no subscriptions any more, either.
            reporting.compare_at(name, ChannelPart::Subscriptions, now.after(COUNT_PAUSE));
        }
        reporting.compare_at(name, part, now.after(pause));
    }

    /// This node reports from now on. It must be told what the log has, and then of the end of that.
    pub(crate) fn begin(&mut self) {
        self.reporting = Some(Reporting::default());
    }

    /// This node does not report any more.
    pub(crate) fn end(&mut self) {
        self.reporting = None;
    }

    /// The node has all that was in the log when it began, of which the beginning `is_trimmed`, or not. Everything is compared once the
    /// subscribers of the last node, and those of a server that was restarted, have had time to come back. False: the node can't know all that
    /// was told.
    pub(crate) fn restored(&mut self, is_trimmed: bool, now: SteadyTime) -> bool {
        let Some(reporting) = &mut self.reporting else {
            return true;
        };
        reporting.is_restored = true;
        let knows_all = reporting.repetition.restored(is_trimmed, now);
        let at = now.after(RETURN_PAUSE);
        for (channel, state) in self.actual.iter().chain(&reporting.told) {
            let members = state.members.iter().cloned().map(ChannelPart::Member);
            for part in [ChannelPart::Occupancy, ChannelPart::Subscriptions]
                .into_iter()
                .chain(members)
            {
                let channel = channel.clone();
                reporting.due.insert(ChannelSubject { channel, part }, at);
            }
        }
        knows_all
    }

    /// The log has a record.
    pub(crate) fn told(&mut self, data: (&[u8], u32, u32), now: SteadyTime) {
        let (data, skip, take) = data;
        if let Some(reporting) = &mut self.reporting {
            reporting.repetition.grow(data.len());
        }
        json::each(data, skip, take, |_, message| {
            let record: Option<&RawValue> = serde_json::from_slice(message).ok();
            if let Some(event) = record.and_then(WebhookEvent::parse) {
                self.told_event(&event, now);
            }
        });
    }

    fn told_event(&mut self, event: &WebhookEvent<'_>, now: SteadyTime) {
        let Some(reporting) = &mut self.reporting else {
            return;
        };
        let channel = &*event.channel;
        if event.again {
            let is_live = reporting.is_restored;
            reporting.repetition.read_again(event, is_live, now);
            // A node that reports knows what was told, and more than what stands in the log again.
            if is_live {
                return;
            }
        }
        let Some(kind) = event.kind().filter(|kind| kind.is_of_state()) else {
            return;
        };
        let state = reporting.told.entry(channel.into()).or_default();
        let member = || event.user_id.as_deref().unwrap_or_default();
        let part = match kind {
            WebhookKind::ChannelOccupied | WebhookKind::ChannelVacated => {
                state.is_occupied = kind == WebhookKind::ChannelOccupied;
                ChannelPart::Occupancy
            }
            WebhookKind::MemberAdded => {
                state.members.insert(member().into());
                ChannelPart::Member(member().into())
            }
            WebhookKind::MemberRemoved => {
                state.members.remove(member());
                ChannelPart::Member(member().into())
            }
            _ => {
                state.subscriptions = event.subscription_count.unwrap_or_default();
                ChannelPart::Subscriptions
            }
        };
        if *state == ChannelState::default() {
            reporting.told.remove(channel);
        }
        let subject = ChannelSubject {
            channel: channel.into(),
            part,
        };
        if !event.again {
            reporting.repetition.read(&subject);
        }
        if !reporting.is_restored {
            return;
        }
        // Something may have changed while the record was on its way.
        let (actual, told) = (self.actual.get(channel), reporting.told.get(channel));
        let differs = difference(actual, told, &subject.part).is_some();
        match (differs, &subject.part) {
            (true, ChannelPart::Subscriptions) => {
                reporting.due.insert(subject, now.after(COUNT_PAUSE));
            }
            // If there is one that waits, its record may be on its way.
            (true, _) => drop(reporting.due.entry(subject).or_insert(now)),
            (false, _) => drop(reporting.due.remove(&subject)),
        }
    }

    /// The records that are to be written now. What is not in the log after a while comes again.
    pub(crate) fn due(&mut self, now: SteadyTime) -> Vec<Vec<u8>> {
        let Some(reporting) = &mut self.reporting else {
            return Vec::new();
        };
        let Reporting {
            told,
            due,
            repetition,
            ..
        } = reporting;
        let (actual, webhooks) = (&self.actual, &self.webhooks);
        let mut events: Vec<(WebhookKind, ChannelSubject)> = Vec::new();
        due.retain(|subject, at| {
            if *at > now {
                return true;
            }
            let channel = &subject.channel;
            let kind = difference(actual.get(channel), told.get(channel), &subject.part);
            // The log has both sides of a change, so that it says what is.
            let is_wanted = |kind: WebhookKind| {
                let mut sides = [kind, kind.opposite()].into_iter();
                sides.any(|kind| webhooks.iter().any(|one| one.wants(kind, channel)))
            };
            let Some(kind) = kind.filter(|kind| is_wanted(*kind)) else {
                return false;
            };
            events.push((kind, subject.clone()));
            *at = now.after(REPEAT_PAUSE);
            true
        });
        events.sort_by_cached_key(in_order);
        let records = events.iter().map(|(kind, subject)| {
            let channel = &*subject.channel;
            repetition.write(subject, now);
            let event = match &subject.part {
                ChannelPart::Occupancy => WebhookEvent::of_channel(*kind, channel),
                ChannelPart::Member(user) => WebhookEvent::of_member(*kind, channel, user),
                ChannelPart::Subscriptions => {
                    let state = actual.get(channel);
                    WebhookEvent::of_count(channel, state.map_or(0, |state| state.subscriptions))
                }
            };
            event.record()
        });
        records.collect()
    }

    /// The records that say again what was told, as far as it is time for them.
    pub(crate) fn repeated(&mut self, now: SteadyTime) -> Vec<Vec<u8>> {
        let Some(reporting) = &mut self.reporting else {
            return Vec::new();
        };
        let (told, repetition) = (&reporting.told, &mut reporting.repetition);
        let events = |channel: &str| {
            let told = told.get_key_value(channel);
            told.map_or(Vec::new(), |(channel, state)| state.events(channel))
        };
        repetition.next(told.keys(), events, now)
    }

    /// Some of what was to be said again could not be written: it begins anew.
    pub(crate) fn repeat_anew(&mut self, now: SteadyTime) {
        if let Some(reporting) = &mut self.reporting {
            reporting.repetition.begin_anew(now);
        }
    }
}

impl Reporting {
    fn compare_at(&mut self, channel: &str, part: ChannelPart, at: SteadyTime) {
        // A number that changes all the time is told now and then.
        let is_counted = part == ChannelPart::Subscriptions;
        let channel = channel.into();
        let due = self
            .due
            .entry(ChannelSubject { channel, part })
            .or_insert(at);
        if !is_counted {
            *due = at;
        }
    }
}

/// Members leave before their channel is vacated, and join after it is occupied.
fn in_order((kind, subject): &(WebhookKind, ChannelSubject)) -> (u8, Box<str>, ChannelPart) {
    let rank = match kind {
        WebhookKind::MemberRemoved => 0,
        WebhookKind::ChannelVacated => 1,
        WebhookKind::ChannelOccupied => 2,
        WebhookKind::MemberAdded => 3,
        _ => 4,
    };
    (rank, subject.channel.clone(), subject.part.clone())
}

/// Who comes back within this time was not gone: a reload of a page is no event.
const GONE_PAUSE: Duration = Duration::from_secs(3);

/// How long a change of a number of subscriptions waits for further ones.
const COUNT_PAUSE: Duration = Duration::from_secs(1);

/// How long a node that begins to report waits for subscribers to come back, and for what other nodes say of theirs.
const RETURN_PAUSE: Duration = Duration::from_secs(5);

/// When what is not in the log yet is written again: the command that had it was lost.
const REPEAT_PAUSE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
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
                now_ms: 0,
            }
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
            self.on_their_way = self.reports.due(self.now());
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
        let log = std::mem::take(&mut node.log);
        let mut next = Node::new();
        next.log = log;
        next.take_over();
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
        let mut early = Node::new();
        (early.log, early.kept_from) = (node.log.clone(), first);
        early.take_over();
        assert!(!early.knows_all);
        node.turns(700);
        drop((ann, stays));
        let mut next = Node::new();
        (next.log, next.kept_from) = (node.log.clone(), first);
        next.take_over();
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
        let mut reader = Node::new();
        reader.log = node.log.clone();
        reader.take_over();
        let told = &reader.reports.reporting.as_ref().unwrap().told;
        assert!(told.is_empty(), "{told:?}");
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
            // Receivers have it, and whoever reads the log.
            let told = node.log.iter().filter(|record| !record.contains("again"));
            let mut receiver = Node::new();
            receiver.log = told.cloned().collect();
            receiver.take_over();
            let told = &receiver.reports.reporting.as_ref().unwrap().told;
            prop_assert_eq!(told, &node.reports.actual);
            let mut reader = Node::new();
            reader.log = node.log.clone();
            reader.take_over();
            let told = &reader.reports.reporting.as_ref().unwrap().told;
            prop_assert_eq!(told, &node.reports.actual);
            drop(holds);
            node.turns(300);
            let told = &node.reports.reporting.as_ref().unwrap().told;
            prop_assert!(told.is_empty(), "{:?}", told);
            prop_assert!(node.reports.actual.is_empty());
        }
    }
}
