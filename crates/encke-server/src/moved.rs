//! A server that goes on in another process.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::JoinHandle;

use encke_access::{CallersIn, MovedAuthority};
use encke_jobs::{DispatcherMessage, DispatcherSender};
use encke_net::{Arrivals, MovedListeners, Moving, StartGate, ThreadPanicked};
use encke_stream::{Stream, StreamNo};
use encke_threads::report_failure;
use foldhash::{HashSet, HashSetExt};

use crate::archive::Archive;
use crate::dispatcher::DispatchThreads;
use crate::errors::StopError;
use crate::sequencer_threads::SequencerThreads;

/// What a server begins with that another process has given away.
#[derive(Debug, Default)]
pub struct MovedIn {
    /// Where it listens.
    pub listeners: MovedListeners,
    /// Its connections.
    pub connections: Vec<Moving>,
    /// The authorities of their callers, by number.
    pub authorities: Vec<MovedAuthority>,
    /// Opens when they are to be served.
    pub gate: StartGate,
}

/// The rest of a server that has given its connections away.
pub struct ClosingServer {
    pub(crate) dispatcher: DispatcherSender,
    pub(crate) dispatching: DispatchThreads,
    pub(crate) sequencers: SequencerThreads,
    pub(crate) readers: Vec<JoinHandle<()>>,
}

impl ClosingServer {
    /// Closes the log, which another process may then open.
    ///
    /// # Errors
    /// The log could not be made durable, or a thread panicked.
    pub fn close(self) -> Result<(), StopError> {
        self.dispatcher.control(DispatcherMessage::Quit);
        let dispatching_is_calm = self.dispatching.join();
        // Those were the last senders of the sequencers' mailboxes and of the readers'. All are waited for, whatever becomes of one.
        let sequencers = self.sequencers.join();
        let join = |calm: bool, thread: JoinHandle<()>| calm & thread.join().is_ok();
        let readers_are_calm = self.readers.into_iter().fold(true, join);
        sequencers?;
        match (dispatching_is_calm, readers_are_calm) {
            (false, _) => Err(ThreadPanicked("dispatcher").into()),
            (_, false) => Err(ThreadPanicked("reader").into()),
            (true, true) => Ok(()),
        }
    }
}

/// What the reactor begins with: the connections, and the streams that they are subscribed to.
pub(crate) fn arrivals(moved: MovedIn, archive: &Archive) -> Arrivals {
    let mut wanted = HashSet::new();
    for moving in &moved.connections {
        moving.connection.streams(&mut |no| {
            wanted.insert(no);
        });
    }
    let wanted: Vec<StreamNo> = wanted.into_iter().collect();
    // Most are not in memory so soon after a start, and clients wait.
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let share = wanted.len().div_ceil(threads).max(1);
    let streams = std::thread::scope(|scope| {
        let parts = wanted.chunks(share);
        let loading: Vec<_> = parts
            .map(|part| {
                let thread = std::thread::Builder::new().name("connections-in".to_owned());
                (
                    part,
                    thread.spawn_scoped(scope, move || load(part, archive)),
                )
            })
            .collect();
        let loaded = loading.into_iter().map(|(part, thread)| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|_| {
                report_failure("connections-in");
                Vec::new()
            }),
            // The system refuses a thread.
            Err(_) => load(part, archive),
        });
        loaded.flatten().collect()
    });
    Arrivals {
        connections: moved.connections,
        callers: CallersIn::new(moved.authorities),
        streams,
        gate: moved.gate,
    }
}

/// Streams by number. Subscribers of those that are gone are closed, and told why when they come back.
fn load(numbers: &[StreamNo], archive: &Archive) -> Vec<(StreamNo, Arc<Stream>)> {
    let load = |no: &StreamNo| match archive.loaders.load_number(*no) {
        Ok(stream) => Some((*no, stream?)),
        Err(error) => {
            tracing::error!(%error, no, "the stream of a connection that moves could not be loaded");
            None
        }
    };
    numbers.iter().filter_map(load).collect()
}
