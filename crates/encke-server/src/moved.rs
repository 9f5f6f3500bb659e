//! A server that goes on in another process.

use std::sync::Arc;
use std::thread::JoinHandle;

use encke_access::{CallersIn, MovedAuthority};
use encke_jobs::{DispatcherMessage, DispatcherSender};
use encke_net::{Arrivals, Gate, MovedListeners, Moving, ThreadPanicked};
use encke_stream::{Stream, StreamNo};
use foldhash::{HashMap, HashMapExt};

use crate::archive::Archive;
use crate::dispatcher::DispatchThreads;
use crate::errors::StopError;
use crate::sequencer_threads::SequencerThreads;

/// What a server begins with that another process has given away.
#[derive(Debug)]
pub struct MovedIn {
    /// Where it listens.
    pub listeners: MovedListeners,
    /// Its connections.
    pub connections: Vec<Moving>,
    /// The authorities of their callers, by number.
    pub authorities: Vec<MovedAuthority>,
    /// Opens when they are to be served.
    pub gate: Gate,
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
        if !self.dispatching.join() {
            return Err(ThreadPanicked("dispatcher").into());
        }
        // That were the last senders of the sequencers' mailboxes and of the readers'.
        self.sequencers.join()?;
        for reader in self.readers {
            reader.join().map_err(|_| ThreadPanicked("reader"))?;
        }
        Ok(())
    }
}

/// What the reactor begins with: the connections, and the streams that they are subscribed to.
pub(crate) fn arrivals(
    connections: Vec<Moving>,
    authorities: Vec<MovedAuthority>,
    gate: Gate,
    archive: &Archive,
) -> Arrivals {
    let mut streams: HashMap<StreamNo, Arc<Stream>> = HashMap::new();
    for moving in &connections {
        moving.connection.streams(&mut |no| {
            if streams.contains_key(&no) {
                return;
            }
            match archive.loaders.load_number(no) {
                Ok(Some(stream)) => {
                    streams.insert(no, stream);
                }
                // Its subscribers are closed, and told why when they come back.
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(%error, no, "the stream of a connection that moves could not be loaded");
                }
            }
        });
    }
    Arrivals {
        connections,
        callers: CallersIn::new(authorities),
        streams,
        gate,
    }
}
