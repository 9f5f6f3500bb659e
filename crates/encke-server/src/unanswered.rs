//! Commands of the server itself, whose outcomes nobody waits for.

use encke_net::now;
use encke_stream::{Command, Sequencers, Submission, Submitter};

/// Submits commands in order. False: there is no room for all of them now.
pub(crate) fn submit_unanswered(
    sequencers: &Sequencers,
    commands: impl IntoIterator<Item = Command>,
) -> bool {
    // No connection has this token: the replies are dropped.
    let from = Submitter {
        shard: 0,
        token: u64::MAX,
    };
    let weighed = commands.into_iter().map(|command| {
        let bytes = command.weight_bytes();
        (Submission::new(command, from), bytes)
    });
    let mut weighed = weighed.collect();
    sequencers.submit(&mut weighed, now());
    weighed.is_empty()
}
