//! The process of a group of clients, as the run sees it.

use std::io::{BufRead, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Sender;

use super::words::{GroupState, Receipts, Word};
use crate::BenchError;
use crate::load::probe::Probe;

/// Clients of one node in a process of their own, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Group {
    child: Child,
    commands: Option<ChildStdin>,
    pub(super) probe: Probe,
    pub(super) state: GroupState,
    pub(super) receipts: Option<Receipts>,
}

/// What a group has said; `None` when it has ended.
pub(super) type GroupWord = (usize, Option<Word>);

/// Which clients a group has.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupPlan {
    /// The group's number; its block of the loopback network is the next one.
    pub(super) number: usize,
    pub(super) node: SocketAddr,
    /// The number of its first client.
    pub(super) first: u32,
    pub(super) count: u32,
}

impl Group {
    /// Starts the process. What it says is sent to `words`.
    pub(super) fn start(plan: GroupPlan, words: Sender<GroupWord>) -> Result<Self, BenchError> {
        let program = std::env::current_exe().map_err(BenchError::system("find this program"))?;
        let mut child = Command::new(&program)
            .arg("million-clients")
            .args(["--node", &plan.node.to_string()])
            .args(["--first", &plan.first.to_string()])
            .args(["--count", &plan.count.to_string()])
            .args(["--block", &(plan.number + 1).to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(BenchError::file("start", &program))?;
        let commands = child.stdin.take();
        let out = child.stdout.take().expect("it was asked to be a pipe");
        let probe = Probe::new(child.id());
        let group = Self {
            child,
            commands,
            probe: probe?,
            state: GroupState::default(),
            receipts: None,
        };
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines() {
                let word = line.ok().and_then(|line| serde_json::from_str(&line).ok());
                // The run is over if nothing listens.
                if word.is_none() || words.send((plan.number, word)).is_err() {
                    break;
                }
            }
            let _ = words.send((plan.number, None));
        });
        Ok(group)
    }

    /// Has the process do something. One that has ended is noticed by its words.
    pub(super) fn command(&mut self, command: &str) {
        if let Some(commands) = &mut self.commands {
            let _ = writeln!(commands, "{command}");
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
