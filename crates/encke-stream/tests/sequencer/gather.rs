//! Clients in a closed loop on a disk that syncs slowly: one sync serves all of them.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use encke_clock::Now;
use encke_log::simulated::SimulatedDisk;
use encke_mailbox::{Bounds, Lane, mailbox};
use encke_stream::{AckLevel, Batch, Committed, Outlet, Reply, Sequencer, Submission, Submitter};

use crate::bench::{append, create};
use crate::{TEXT, open};

/// Forwards the tokens of replies.
struct Clients {
    tokens: Sender<u64>,
}

impl Outlet for Clients {
    fn deliver(&self, _: Option<Arc<Batch>>, replies: Vec<Reply>) {
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
    let (mailbox, receiver) = mailbox("sequencer", Bounds::default());
    let (tokens, replies) = channel();
    let (sizes, batches) = channel();
    let outlet = Box::new(Clients { tokens });
    let watch = Box::new(move |committed: &Committed| {
        let _ = sizes.send(committed.commands);
    });
    let level = AckLevel::Synced;
    let sequencer = Sequencer::new(machine, log, receiver, vec![outlet], level, watch);
    let thread = std::thread::spawn(move || sequencer.run(Now::default));
    let send = |token, command| {
        let from = Submitter { shard: 0, token };
        let submission = Submission::new(command, from);
        assert!(mailbox.try_send(Lane::Data, submission, 1).is_ok());
    };
    send(CLIENTS, create("a", TEXT));
    replies.recv_timeout(WAIT_MAX).unwrap();
    disk.slow_syncs(SYNC);
    assert_eq!(batches.recv_timeout(WAIT_MAX), Ok(1));
    // The second half arrives during the sync of the first one.
    let half = CLIENTS / 2;
    let begun = Instant::now();
    disk.hold_syncs(true);
    (0..half).for_each(|client| send(client, append("a", b"x")));
    while disk.held_syncs() == 0 {
        assert!(begun.elapsed() < WAIT_MAX, "no sync begins");
        std::thread::sleep(Duration::from_millis(1));
    }
    (half..CLIENTS).for_each(|client| send(client, append("a", b"x")));
    disk.hold_syncs(false);
    let first = batches.recv_timeout(WAIT_MAX).unwrap();
    assert!(first <= half as usize, "the halves met at once");
    while !batches
        .try_iter()
        .any(|commands| commands == CLIENTS as usize)
    {
        assert!(begun.elapsed() < WAIT_MAX, "the halves never met");
        let token = replies.recv_timeout(WAIT_MAX).unwrap();
        send(token, append("a", b"x"));
    }
    disk.slow_syncs(Duration::ZERO);
    drop(mailbox);
    thread.join().unwrap().unwrap();
}

/// Clients, each of which waits for its reply before it sends the next command.
const CLIENTS: u64 = 8;

/// How long each sync takes.
const SYNC: Duration = Duration::from_millis(100);

/// Longer than any machine takes: only a hang is an error.
const WAIT_MAX: Duration = Duration::from_secs(180);
