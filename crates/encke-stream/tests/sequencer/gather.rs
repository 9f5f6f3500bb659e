//! Clients in a closed loop on a disk that syncs slowly: one sync serves all of them.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use encke_log::simulated::SimulatedDisk;
use encke_mailbox::{Lane, Options, mailbox};
use encke_stream::{AckLevel, Batch, Caller, Committed, Outlet, Reply, Sequencer, Submission};

use crate::bench::{append, create};
use crate::{TEXT, open};

/// Forwards the tokens of replies, and has the next sync wait.
struct Clients {
    disk: SimulatedDisk,
    tokens: Sender<u64>,
}

impl Outlet for Clients {
    fn deliver(&self, _: Option<Arc<Batch>>, replies: Vec<Reply>) {
        self.disk.hold_syncs(true);
        for reply in replies {
            // The test may be over.
            let _ = self.tokens.send(reply.token);
        }
    }

    fn admit(&self) {}
}

#[test]
fn halves_that_alternate_become_one_batch() {
    let disk = SimulatedDisk::new(31);
    let (machine, _, log) = open(&disk);
    let (mailbox, receiver) = mailbox("sequencer", Options::default());
    let (tokens, replies) = channel();
    let (sizes, batches) = channel();
    let outlet = Box::new(Clients {
        disk: disk.clone(),
        tokens,
    });
    let watch = Box::new(move |committed: &Committed| {
        let _ = sizes.send(committed.commands);
    });
    let level = AckLevel::Synced;
    let sequencer = Sequencer::new(machine, log, receiver, vec![outlet], level, watch);
    let thread = std::thread::spawn(move || sequencer.run(|| 0));
    let send = |token, command| {
        let from = Caller { shard: 0, token };
        let submission = Submission { command, from };
        assert!(mailbox.try_send(Lane::Data, submission, 1).is_ok());
    };
    send(CLIENTS, create("a", TEXT));
    replies.recv_timeout(PATIENCE).unwrap();
    let half = CLIENTS / 2;
    (0..half).for_each(|client| send(client, append("a", b"x")));
    let mut others = half..CLIENTS;
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < PATIENCE, "the halves never met");
        while disk.held_syncs() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        // The other half arrives during the first sync.
        others
            .by_ref()
            .for_each(|client| send(client, append("a", b"x")));
        std::thread::sleep(SYNC);
        disk.hold_syncs(false);
        if batches
            .try_iter()
            .any(|commands| commands == CLIENTS as usize)
        {
            break;
        }
        let mut token = replies.recv_timeout(PATIENCE).unwrap();
        while token < CLIENTS {
            send(token, append("a", b"x"));
            let Ok(next) = replies.try_recv() else { break };
            token = next;
        }
    }
    drop(mailbox);
    // The last batches need no slow sync.
    while !thread.is_finished() {
        disk.hold_syncs(false);
        std::thread::sleep(Duration::from_millis(1));
    }
    thread.join().unwrap().unwrap();
}

/// Clients, each of which waits for its reply before it sends the next command.
const CLIENTS: u64 = 8;

/// How long each sync takes, at least.
const SYNC: Duration = Duration::from_millis(100);

/// Longer than any machine takes: only a hang is an error.
const PATIENCE: Duration = Duration::from_secs(180);
