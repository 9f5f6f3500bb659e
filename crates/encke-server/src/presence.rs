//! The thread of presence: it tells those who follow what happens to members, ends what is over, and talks to other nodes of a fleet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use encke_net::{now, wall_time};
use encke_presence::{Outgoing, Presence, PresenceEvent, Recipient};
use encke_protocol::PresenceStreams;
use encke_stream::MemoryPublisher;
use encke_threads::spawn_essential;
use parking_lot::Mutex;

use crate::errors::StartError;
use crate::fleet_links::{ConnectNodes, SendToNodes};

/// The thread.
pub(crate) struct PresenceThread {
    ends: Arc<AtomicBool>,
    says_goodbye: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

struct PresenceWork {
    streams: Arc<PresenceStreams>,
    publisher: MemoryPublisher,
    /// On a node of a fleet.
    send: Option<SendToNodes>,
    /// Takes all events.
    observer: Option<PresenceObserver>,
    ends: Arc<AtomicBool>,
    says_goodbye: Arc<AtomicBool>,
}

/// Takes the events of members, in order.
pub(crate) type PresenceObserver = Box<dyn Fn(&[PresenceEvent]) + Send>;

impl PresenceThread {
    /// Starts it. `connect`: connects the node with the others of its fleet.
    pub(crate) fn start(
        streams: Arc<PresenceStreams>,
        publisher: MemoryPublisher,
        connect: Option<ConnectNodes>,
        observer: Option<PresenceObserver>,
    ) -> Result<Self, StartError> {
        let registry = Arc::clone(streams.registry());
        let send = match connect {
            None => None,
            Some(connect) => {
                let registry = Arc::clone(&registry);
                let receive = Arc::new(move |packet: Vec<u8>| receive(&registry, &packet));
                Some(connect(receive).map_err(StartError::Fleet)?)
            }
        };
        let (ends, says_goodbye) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let work = PresenceWork {
            streams,
            publisher,
            send,
            observer,
            ends: Arc::clone(&ends),
            says_goodbye: Arc::clone(&says_goodbye),
        };
        let thread = spawn_essential("presence", move || work.run())?;
        let wakes = Mutex::new(thread.thread().clone());
        registry.on_event(Box::new(move || Thread::unpark(&wakes.lock())));
        Ok(PresenceThread {
            ends,
            says_goodbye,
            thread,
        })
    }

    /// Stops it. `says_goodbye`: other nodes learn that the members of this one leave. False if the thread panicked.
    pub(crate) fn stop(self, says_goodbye: bool) -> bool {
        self.says_goodbye.store(says_goodbye, Ordering::Relaxed);
        self.ends.store(true, Ordering::Release);
        self.thread.thread().unpark();
        self.thread.join().is_ok()
    }
}

impl PresenceWork {
    fn run(&self) {
        let registry = self.streams.registry();
        let mut events = Vec::new();
        let mut swept = Instant::now();
        while !self.ends.load(Ordering::Acquire) {
            self.send_all(registry.turn(now().steady));
            events.clear();
            registry.take_events(&mut events);
            let records = self.streams.records(&events);
            self.publisher.publish(records, wall_time());
            if let Some(observer) = &self.observer {
                observer(&events);
            }
            if swept.elapsed() > SWEEP_EVERY {
                self.streams.sweep();
                swept = Instant::now();
            }
            if !events.is_empty() {
                // What happens meanwhile comes together: each time all who follow are sent something.
                std::thread::sleep(BATCH_PAUSE);
            }
            match self.send.is_none() && registry.entries() == 0 {
                // The first event wakes it.
                true => std::thread::park(),
                false => std::thread::park_timeout(TURN),
            }
        }
        if self.says_goodbye.load(Ordering::Relaxed) {
            self.send_all(registry.goodbye());
        }
    }

    fn send_all(&self, packets: impl IntoIterator<Item = Outgoing>) {
        let Some(send) = &self.send else {
            return;
        };
        for Outgoing { to, packet } in packets {
            match to {
                Recipient::All => send(None, packet),
                Recipient::Node(node) => send(Some(&node), packet),
            }
        }
    }
}

fn receive(registry: &Presence, packet: &[u8]) {
    if let Err(error) = registry.receive(packet, now().steady) {
        tracing::debug!(%error, "a packet of another node about members is refused");
    }
}

/// How long it waits between two turns while there are members: a grace ends that much later at most.
const TURN: Duration = Duration::from_millis(100);

/// How long it waits behind changes for further ones, so that many members who leave at once are told together.
const BATCH_PAUSE: Duration = Duration::from_millis(10);

/// How often it looks for streams that nobody follows any more.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
