//! Fleets whose network loses, delays and separates, and whose nodes are killed, paused and started again.

use std::collections::{BTreeMap, BTreeSet};

use encke_presence::{PresenceHold, SILENCE};

use crate::network::{Network, Random, STEP_MS};
use crate::replay::{at, member, members_of, place};

/// A connection that a node holds.
struct Held {
    node: usize,
    stream: usize,
    /// None: it is anonymous.
    id: Option<usize>,
    hold: PresenceHold,
}

/// A fleet, what is true of it, and what happens to it.
struct Simulation {
    network: Network,
    random: Random,
    held: Vec<Held>,
    /// Since when a node has connections of a member.
    since: BTreeMap<(usize, usize, usize), u64>,
    /// What the latest connection of a member at a node has brought.
    data: BTreeMap<(usize, usize, usize), Option<String>>,
    /// When cuts heal, and killed nodes start again.
    healing: u64,
    restarts: Vec<(u64, usize)>,
    with_faults: bool,
}

impl Simulation {
    fn new(seed: u64, with_faults: bool) -> Simulation {
        let mut random = Random(seed);
        let nodes = 3 + random.index(3);
        let mut network = Network::new(nodes, seed ^ 0xffff);
        network.delay_max = 1 + random.below(40);
        let (held, since, data) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        Simulation {
            network,
            random,
            held,
            since,
            data,
            healing: 0,
            restarts: Vec::new(),
            with_faults,
        }
    }

    fn run(&mut self) {
        for step in 0..ACTIVE_MS / STEP_MS {
            if self.random.below(4) == 0 {
                self.act();
            }
            if self.with_faults {
                self.fail();
            }
            self.network.step();
            if step % 10 == 0 {
                self.check_connected();
            }
        }
        self.heal();
        self.network
            .run(SILENCE.as_millis() as u64 + 1_000 + GRACES_MS[2]);
        self.check_agreement();
        // Nothing stays of what is gone.
        self.held.clear();
        self.since.clear();
        self.network
            .run(SILENCE.as_millis() as u64 + 1_000 + GRACES_MS[2]);
        for node in 0..self.network.nodes.len() {
            let figures = self.network.presence(node).figures();
            let left = (
                figures.streams,
                figures.members,
                figures.connections,
                figures.bytes,
            );
            assert_eq!((left, figures.remote_members), ((0, 0, 0, 0), 0));
            assert_eq!(figures.joins, figures.leaves);
            assert_eq!(
                figures.packets.differed, 0,
                "a digest is wrong only if something is applied wrongly"
            );
            assert_eq!(figures.packets.refused, 0);
            assert!(
                self.with_faults || figures.packets.asked == 0,
                "nothing was lost"
            );
        }
    }

    /// A connection comes or goes.
    fn act(&mut self) {
        let node = self.random.index(self.network.nodes.len());
        let stream = self.random.index(GRACES_MS.len());
        match self.random.below(10) {
            0..4 if self.network.runs(node) => {
                let id = self.random.index(6);
                let data = Some(self.random.below(3).to_string()).filter(|data| data != "0");
                let new = member(&id.to_string(), data.as_deref());
                let name = stream.to_string();
                let presence = self.network.presence(node);
                let hold = presence
                    .enter(&place(&name, GRACES_MS[stream]), new, at(self.network.now))
                    .unwrap();
                self.since
                    .entry((node, stream, id))
                    .or_insert(self.network.now);
                self.data.insert((node, stream, id), data);
                self.held.push(Held {
                    node,
                    stream,
                    id: Some(id),
                    hold,
                });
            }
            4 if self.network.runs(node) => {
                let name = stream.to_string();
                let presence = self.network.presence(node);
                let hold = presence
                    .enter_anonymous(&place(&name, GRACES_MS[stream]))
                    .unwrap();
                self.held.push(Held {
                    node,
                    stream,
                    id: None,
                    hold,
                });
            }
            5 if self.network.runs(node) => self.network.read(node, &stream.to_string()),
            6.. if !self.held.is_empty() => {
                let which = self.random.index(self.held.len());
                if self.network.runs(self.held[which].node) {
                    let Held {
                        node,
                        stream,
                        id,
                        hold,
                    } = self.held.swap_remove(which);
                    drop(hold);
                    self.note_gone(node, stream, id);
                }
            }
            _ => {}
        }
    }

    fn fail(&mut self) {
        let now = self.network.now;
        let nodes = self.network.nodes.len();
        if now >= self.healing {
            self.network.cut.clear();
            self.network.lost = 0;
        }
        while let Some(place) = self.restarts.iter().position(|(time, _)| *time <= now) {
            let (_, node) = self.restarts.swap_remove(place);
            self.network.start(node);
        }
        let node = self.random.index(nodes);
        match self.random.below(400) {
            0 => {
                self.healing = now + self.random.below(6_000);
                self.network.lost = 20 + self.random.below(300);
            }
            // One side of the fleet does not hear the other one, in one direction or both.
            1 => {
                self.healing = now + self.random.below(8_000);
                let (side, both) = (self.random.below(1 << nodes), self.random.below(3) > 0);
                let is_in = |node: usize| side & (1 << node) != 0;
                let pairs = (0..nodes).flat_map(|a| (0..nodes).map(move |b| (a, b)));
                self.network.cut = pairs
                    .filter(|(a, b)| is_in(*a) && !is_in(*b) || both && is_in(*b) && !is_in(*a))
                    .collect();
            }
            2 if self.network.runs(node) => {
                let (ms, loses) = (self.random.below(8_000), self.random.below(2) == 0);
                self.network.pause(node, ms, loses);
            }
            3 if self.network.runs(node) => {
                if self.random.below(3) == 0 {
                    self.network.say_goodbye(node);
                } else {
                    self.network.kill(node);
                }
                self.held.retain(|held| held.node != node);
                self.since.retain(|(holder, ..), _| *holder != node);
                let after = if self.random.below(2) == 0 {
                    0
                } else {
                    self.random.below(6_000)
                };
                self.restarts.push((now + after, node));
            }
            _ => {}
        }
    }

    fn heal(&mut self) {
        self.network.cut.clear();
        self.network.lost = 0;
        let now = self.network.now;
        for node in 0..self.network.nodes.len() {
            if self.network.nodes[node].presence.is_none() {
                self.network.start(node);
            }
            if self.network.nodes[node].paused_until.is_some() {
                self.network.nodes[node].paused_until = Some(now);
            }
        }
    }

    fn note_gone(&mut self, node: usize, stream: usize, id: Option<usize>) {
        let Some(id) = id else {
            return;
        };
        let is_same = |held: &Held| (held.node, held.stream, held.id) == (node, stream, Some(id));
        if !self.held.iter().any(is_same) {
            self.since.remove(&(node, stream, id));
        }
    }

    /// A member is not missing at a node that hears its holder.
    fn check_connected(&self) {
        let network = &self.network;
        let is_fit = |node: usize, since: u64| {
            network.runs(node) && network.nodes[node].running_since <= since
        };
        let before = network.now.saturating_sub(1_000);
        for ((holder, stream, id), since) in &self.since {
            if *since > before || !is_fit(*holder, before) {
                continue;
            }
            for node in (0..network.nodes.len()).filter(|node| is_fit(*node, before)) {
                let links = [(node, *holder), (*holder, node)];
                if links.iter().all(|link| {
                    network
                        .failed
                        .get(link)
                        .is_none_or(|failed| *failed < before)
                }) {
                    let members = members_of(&network.presence(node).snapshot(&stream.to_string()));
                    let is_there = members.contains_key(&id.to_string());
                    assert!(
                        is_there,
                        "n{node} lacks {id} of {stream}, which n{holder} holds since {since}"
                    );
                }
            }
        }
    }

    /// All nodes have what is true.
    fn check_agreement(&self) {
        for stream in 0..GRACES_MS.len() {
            let name = stream.to_string();
            let expected: BTreeSet<String> = self
                .since
                .keys()
                .filter(|(_, of, _)| *of == stream)
                .map(|(.., id)| id.to_string())
                .collect();
            let connections = self
                .held
                .iter()
                .filter(|held| held.stream == stream)
                .count();
            let first = members_of(&self.network.presence(0).snapshot(&name));
            assert_eq!(
                first.keys().cloned().collect::<BTreeSet<_>>(),
                expected,
                "stream {stream}"
            );
            for node in 0..self.network.nodes.len() {
                let snapshot = self.network.presence(node).snapshot(&name);
                assert_eq!(members_of(&snapshot), first, "n{node}, stream {stream}");
                assert_eq!(
                    snapshot.connections, connections,
                    "n{node}, stream {stream}"
                );
            }
            for (id, data) in &first {
                let holders = self
                    .since
                    .keys()
                    .filter(|(_, of, held)| *of == stream && held.to_string() == *id);
                let said: BTreeSet<_> = holders.map(|key| self.data[key].clone()).collect();
                assert!(
                    said.contains(data),
                    "{id} of {stream} has data that no holder has"
                );
            }
        }
    }
}

fn simulate(seeds: std::ops::Range<u64>, with_faults: bool) {
    // A name in the environment runs one of them.
    let only = std::env::var("ENCKE_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    for seed in only.map_or(seeds, |seed: u64| seed..seed + 1) {
        let run = std::panic::catch_unwind(|| Simulation::new(seed, with_faults).run());
        assert!(run.is_ok(), "ENCKE_SEED={seed} fails");
    }
}

#[test]
fn nodes_agree_after_faults() {
    simulate(0..SEEDS, true);
}

#[test]
fn nodes_agree_without_faults_and_ask_for_nothing() {
    simulate(0..SEEDS / 4, false);
}

/// How long connections come and go.
const ACTIVE_MS: u64 = 20_000;

/// The graces of the streams.
const GRACES_MS: [u64; 3] = [0, 1_000, 5_000];

/// Runs of one test, each with other numbers.
const SEEDS: u64 = 60;
