//! What happens to the processes of a fleet.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::fleet::{Fleet, Random};

/// One fault at a time: more than one broker of three may not fail.
#[derive(Clone, Copy, Debug)]
enum Fault {
    KillNode,
    StopNode,
    DeleteNode,
    KillBroker,
    StopBroker,
    KillBoth,
    /// A node gets nothing through to the brokers, or gets nothing from them, or both. Clients reach it.
    CutNode,
    /// A broker is cut off from the other brokers, and perhaps from the nodes.
    CutBroker,
    /// A damaged broker may lose what it had acknowledged (see docs/fleet.md): that is for long runs.
    DamageBroker,
}

impl Fleet {
    /// One fault after the other, for this long.
    pub fn suffer(&mut self, time: Duration, random: &mut Random) {
        let mut faults = vec![
            Fault::KillNode,
            Fault::KillNode,
            Fault::StopNode,
            Fault::DeleteNode,
            Fault::KillBroker,
            Fault::StopBroker,
            Fault::KillBoth,
        ];
        if self.network.is_some() {
            faults.extend([Fault::CutNode, Fault::CutNode]);
            faults.extend([Fault::CutBroker, Fault::CutBroker]);
        }
        if time >= LONG {
            faults.push(Fault::DamageBroker);
        }
        // After a long cut, brokers take up to a minute to find each other again.
        let longest = if time < LONG { 5 } else { 30 };
        let begin = Instant::now();
        while begin.elapsed() < time {
            std::thread::sleep(Duration::from_millis(1_000 + random.below(2_000) as u64));
            let left = time.saturating_sub(begin.elapsed());
            let pause = Duration::from_secs(1 + random.below(longest) as u64).min(left);
            let fault = faults[random.below(faults.len())];
            self.suffer_one(fault, pause, begin, random);
            self.restart_ended();
        }
    }

    fn suffer_one(&mut self, fault: Fault, pause: Duration, begin: Instant, random: &mut Random) {
        let (node, broker) = (
            random.below(self.nodes.len()),
            random.below(self.brokers.len()),
        );
        let at = begin.elapsed().as_secs_f64();
        let say = |what: &str| println!("{at:>6.1} s  {what}");
        let seconds = pause.as_secs();
        match fault {
            Fault::KillNode => {
                say(&format!("node {node} is killed"));
                self.nodes[node].kill();
                std::thread::sleep(pause.min(Duration::from_secs(3)));
                self.start_node(node);
            }
            Fault::StopNode => {
                say(&format!("node {node} stands still for {seconds} s"));
                self.nodes[node].signal(Signal::STOP);
                std::thread::sleep(pause);
                self.nodes[node].signal(Signal::CONT);
            }
            Fault::DeleteNode => {
                say(&format!("node {node} loses its directory"));
                self.nodes[node].kill();
                std::fs::remove_dir_all(self.path(&format!("node-{node}"))).unwrap();
                self.start_node(node);
                // The next fault waits until it has followed.
                self.wait_ready(node);
            }
            Fault::KillBroker => {
                say(&format!("broker {broker} is killed"));
                self.brokers[broker].kill();
                std::thread::sleep(pause.min(Duration::from_secs(5)));
                self.start_broker(broker);
                self.wait_current();
            }
            Fault::StopBroker => {
                say(&format!("broker {broker} stands still for {seconds} s"));
                self.brokers[broker].signal(Signal::STOP);
                std::thread::sleep(pause);
                self.brokers[broker].signal(Signal::CONT);
                self.wait_current();
            }
            Fault::KillBoth => {
                say(&format!("node {node} and broker {broker} are killed"));
                self.nodes[node].kill();
                self.brokers[broker].kill();
                std::thread::sleep(pause.min(Duration::from_secs(3)));
                self.start_broker(broker);
                self.start_node(node);
                self.wait_current();
            }
            Fault::CutNode => {
                let member = [self.member_of_node(node)];
                let brokers = self.members_of_brokers();
                let cut = Cut::some(random);
                say(&format!(
                    "node {node} is cut off from the brokers for {seconds} s, {}",
                    cut.how
                ));
                self.cut(&cut, &member, &brokers);
                std::thread::sleep(pause);
                if cut.both() && pause > SILENCE_NOTICED {
                    assert!(
                        !self.is_ready(node),
                        "node {node} is ready, and hears no broker"
                    );
                }
                self.end_cuts();
            }
            Fault::CutBroker => {
                let mut others = self.members_of_brokers();
                let mut from = "the other brokers";
                let reached = random.below(2) == 1;
                if !reached {
                    others.extend((0..self.nodes.len()).map(|node| self.member_of_node(node)));
                    from = "all brokers and nodes";
                }
                let cut = Cut::some(random);
                say(&format!(
                    "broker {broker} is cut off from {from} for {seconds} s, {}",
                    cut.how
                ));
                self.cut(&cut, &[broker], &others);
                std::thread::sleep(pause);
                if reached && cut.both() && pause > BROKER_CHANGED {
                    // Those that were connected to it have gone to the others.
                    let ready = (0..self.nodes.len()).filter(|node| self.is_ready(*node));
                    let ready: Vec<_> = ready.collect();
                    assert!(
                        ready.len() == self.nodes.len(),
                        "only the nodes {ready:?} are ready beside two brokers"
                    );
                }
                self.end_cuts();
                self.wait_current();
            }
            Fault::DamageBroker => {
                say(&format!(
                    "a file of broker {broker} is damaged while it is down"
                ));
                self.brokers[broker].kill();
                damage(&self.path(&format!("broker-{broker}")), random);
                self.start_broker(broker);
                self.wait_current();
            }
        }
    }

    fn cut(&mut self, cut: &Cut, members: &[usize], others: &[usize]) {
        let Some(network) = &mut self.network else {
            return;
        };
        if cut.sent {
            network.cut(members, others);
        }
        if cut.received {
            network.cut(others, members);
        }
    }

    fn end_cuts(&mut self) {
        if let Some(network) = &mut self.network {
            network.heal();
        }
    }
}

/// Which packets of a member are lost.
struct Cut {
    how: &'static str,
    sent: bool,
    received: bool,
}

impl Cut {
    /// Both ways in two of four cases, otherwise one way.
    fn some(random: &mut Random) -> Cut {
        let (how, sent, received) = match random.below(4) {
            0 => ("what it sends", true, false),
            1 => ("what it should get", false, true),
            _ => ("both ways", true, true),
        };
        Cut {
            how,
            sent,
            received,
        }
    }

    fn both(&self) -> bool {
        self.sent && self.received
    }
}

/// Flips bytes in the blocks of messages of a broker.
fn damage(store: &Path, random: &mut Random) {
    let mut blocks = Vec::new();
    let mut directories = vec![store.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            // Only the order, not the brokers' own consensus.
            if path.is_dir() && !path.ends_with("$SYS") {
                directories.push(path);
            } else if path.extension().is_some_and(|end| end == "blk")
                && path.to_string_lossy().contains("encke_log")
            {
                blocks.push(path);
            }
        }
    }
    if blocks.is_empty() {
        return;
    }
    let block = &blocks[random.below(blocks.len())];
    let length = std::fs::metadata(block).map_or(0, |metadata| metadata.len());
    let Ok(file) = File::options().read(true).write(true).open(block) else {
        return;
    };
    for _ in 0..3 {
        let at = random.below(length.max(1) as usize) as u64;
        let mut byte = [0];
        if file.read_at(&mut byte, at).is_ok_and(|read| read == 1) {
            let _ = file.write_at(&[byte[0] ^ 0x55], at);
        }
    }
}

/// A node that hears no broker for this long is not ready: `--fleet-silence-max`, and a moment.
const SILENCE_NOTICED: Duration = Duration::from_secs(13);

/// Nodes have found a broker that knows the order after this long.
const BROKER_CHANGED: Duration = Duration::from_secs(25);

/// A run that is at least this long damages files of brokers, too.
const LONG: Duration = Duration::from_secs(60);
