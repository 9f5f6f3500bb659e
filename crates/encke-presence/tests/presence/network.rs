//! Nodes and a network between them that loses, delays and separates.

use std::collections::BTreeMap;
use std::sync::Arc;

use encke_presence::{Presence, PresenceHold, PresenceLimits, PresenceNode, Recipient};

use crate::replay::{LIMITS, Reader, at, member, place};

/// Numbers that look random and are the same in each run.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

/// Nodes of a fleet, and packets on their way.
pub(crate) struct Network {
    pub(crate) nodes: Vec<Node>,
    pub(crate) now: u64,
    pub(crate) random: Random,
    /// Of 1,000 packets, how many are lost.
    pub(crate) lost: u64,
    /// The longest time that a packet takes.
    pub(crate) delay_max: u64,
    /// Links, from one node to another, that carry nothing.
    pub(crate) cut: Vec<(usize, usize)>,
    /// When a link has last failed to deliver.
    pub(crate) failed: BTreeMap<(usize, usize), u64>,
    /// By the time at which they arrive.
    flying: BTreeMap<(u64, u64), Flying>,
    last_arrival: BTreeMap<(usize, usize), u64>,
    sent: u64,
    incarnations: u64,
    limits: PresenceLimits,
}

pub(crate) struct Node {
    /// None: the process was killed.
    pub(crate) presence: Option<Arc<Presence>>,
    /// Since when it runs without interruption.
    pub(crate) running_since: u64,
    pub(crate) paused_until: Option<u64>,
    /// What arrives while it is paused. None: it is lost.
    inbox: Option<Vec<Vec<u8>>>,
    readers: Vec<(String, Reader)>,
}

struct Flying {
    from: usize,
    to: usize,
    packet: Vec<u8>,
}

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn index(&mut self, end: usize) -> usize {
        self.below(end as u64) as usize
    }
}

impl Network {
    pub(crate) fn new(nodes: usize, seed: u64) -> Network {
        Network::with_limits(nodes, seed, LIMITS)
    }

    pub(crate) fn with_limits(nodes: usize, seed: u64, limits: PresenceLimits) -> Network {
        let mut network = Network {
            nodes: Vec::new(),
            now: 1_000_000,
            random: Random(seed),
            lost: 0,
            delay_max: 5,
            cut: Vec::new(),
            failed: BTreeMap::new(),
            flying: BTreeMap::new(),
            last_arrival: BTreeMap::new(),
            sent: 0,
            incarnations: 0,
            limits,
        };
        for node in 0..nodes {
            network.nodes.push(Node {
                presence: None,
                running_since: 0,
                paused_until: None,
                inbox: None,
                readers: Vec::new(),
            });
            network.start(node);
        }
        network
    }

    pub(crate) fn start(&mut self, node: usize) {
        self.incarnations += 1;
        let incarnation = Random(self.incarnations).next();
        let name = format!("n{node}").into();
        let presence = Presence::in_fleet(self.limits, PresenceNode { name, incarnation });
        self.nodes[node] = Node {
            presence: Some(presence),
            running_since: self.now,
            paused_until: None,
            inbox: None,
            readers: Vec::new(),
        };
    }

    pub(crate) fn kill(&mut self, node: usize) {
        self.nodes[node].presence = None;
        self.nodes[node].paused_until = None;
    }

    pub(crate) fn say_goodbye(&mut self, node: usize) {
        let goodbye = self.presence(node).goodbye().unwrap();
        self.send(node, goodbye.to, goodbye.packet);
        self.kill(node);
    }

    pub(crate) fn pause(&mut self, node: usize, ms: u64, loses: bool) {
        self.nodes[node].paused_until = Some(self.now + ms);
        self.nodes[node].inbox = (!loses).then(Vec::new);
    }

    pub(crate) fn presence(&self, node: usize) -> &Arc<Presence> {
        self.nodes[node].presence.as_ref().unwrap()
    }

    pub(crate) fn runs(&self, node: usize) -> bool {
        self.nodes[node].presence.is_some() && self.nodes[node].paused_until.is_none()
    }

    /// Starts to read a stream at a node.
    pub(crate) fn read(&mut self, node: usize, stream: &str) {
        let reader = Reader::new(stream, &self.presence(node).snapshot(stream));
        self.nodes[node].readers.push((stream.to_owned(), reader));
    }

    pub(crate) fn run(&mut self, ms: u64) {
        let end = self.now + ms;
        while self.now < end {
            self.step();
        }
    }

    pub(crate) fn step(&mut self) {
        self.now += STEP_MS;
        for pair in self.cut.clone() {
            self.failed.insert(pair, self.now);
        }
        self.resume();
        while let Some(entry) = self
            .flying
            .first_entry()
            .filter(|entry| entry.key().0 <= self.now)
        {
            let Flying { from, to, packet } = entry.remove();
            self.deliver(from, to, packet);
        }
        for node in 0..self.nodes.len() {
            let is_turn = (self.now / STEP_MS + node as u64).is_multiple_of(TURN_MS / STEP_MS);
            if is_turn && self.runs(node) {
                for out in self.presence(node).clone().turn(at(self.now)) {
                    assert!(out.packet.len() <= encke_presence::PACKET_BYTES_MAX);
                    self.send(node, out.to, out.packet);
                }
            }
            self.check_readers(node);
        }
    }

    fn resume(&mut self) {
        for node in 0..self.nodes.len() {
            let of = &mut self.nodes[node];
            if of.paused_until.is_some_and(|end| end <= self.now) {
                of.paused_until = None;
                of.running_since = self.now;
                for packet in of.inbox.take().unwrap_or_default() {
                    let _ = self.presence(node).receive(&packet, at(self.now));
                }
            }
        }
    }

    fn send(&mut self, from: usize, to: Recipient, packet: Vec<u8>) {
        for node in 0..self.nodes.len() {
            if matches!(&to, Recipient::Node(name) if **name != *format!("n{node}")) {
                continue;
            }
            let link = (from, node);
            if self.random.below(1_000) < self.lost || self.cut.contains(&link) {
                self.failed.insert(link, self.now);
                continue;
            }
            let mut arrival = self.now + self.random.below(self.delay_max + 1);
            // Packets of one node to another keep their order, with few exceptions.
            let last = self.last_arrival.entry(link).or_default();
            if self.lost == 0 || self.random.below(100) > 0 {
                arrival = arrival.max(*last);
            } else {
                self.failed.insert(link, self.now);
            }
            *last = arrival.max(*last);
            self.sent += 1;
            self.flying.insert(
                (arrival, self.sent),
                Flying {
                    from,
                    to: node,
                    packet: packet.clone(),
                },
            );
        }
    }

    fn deliver(&mut self, from: usize, to: usize, packet: Vec<u8>) {
        let node = &mut self.nodes[to];
        if node.paused_until.is_some() {
            self.failed.insert((from, to), self.now);
            if let Some(inbox) = &mut node.inbox {
                inbox.push(packet);
            }
        } else if let Some(presence) = &node.presence {
            let _ = presence.receive(&packet, at(self.now));
        }
    }

    fn check_readers(&mut self, node: usize) {
        let of = &mut self.nodes[node];
        let Some(presence) = &of.presence else {
            return;
        };
        let mut events = Vec::new();
        presence.take_events(&mut events);
        for (stream, reader) in &mut of.readers {
            reader.apply(&events);
            reader.check(&presence.snapshot(stream));
        }
    }
}

impl Network {
    pub(crate) fn enter(
        &self,
        node: usize,
        stream: &str,
        grace_ms: u64,
        id: &str,
        data: Option<&str>,
    ) -> PresenceHold {
        self.presence(node)
            .enter(&place(stream, grace_ms), member(id, data), at(self.now))
            .unwrap()
    }

    /// Runs until what was said has come, with time to spare.
    pub(crate) fn settle(&mut self) {
        self.run(4 * TURN_MS);
    }

    /// Runs until a node has no such stream any more, and returns how long it took.
    pub(crate) fn run_until_empty(&mut self, node: usize, stream: &str) -> u64 {
        let start = self.now;
        while !self.presence(node).snapshot(stream).members.is_empty() {
            assert!(self.now < start + 60_000);
            self.step();
        }
        self.now - start
    }
}

pub(crate) fn quiet(nodes: usize) -> Network {
    let mut network = Network::new(nodes, 1);
    network.settle();
    network
}

/// Hands all that one node sends to another one.
pub(crate) fn hand_over(from: &Presence, to: &Presence, ms: u64) {
    broadcast(from, &[to], ms);
}

pub(crate) fn broadcast(from: &Presence, all: &[&Presence], ms: u64) {
    for out in from.turn(at(ms)) {
        for to in all {
            to.receive(&out.packet, at(ms)).unwrap();
        }
    }
}

pub(crate) fn node(name: &str, incarnation: u64) -> Arc<Presence> {
    Presence::in_fleet(
        LIMITS,
        PresenceNode {
            name: name.into(),
            incarnation,
        },
    )
}

/// Time between two looks at the network.
pub(crate) const STEP_MS: u64 = 10;

/// Time between two turns of a node.
pub(crate) const TURN_MS: u64 = 50;
