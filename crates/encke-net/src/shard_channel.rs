//! The channel to a shard from other threads, and how it wakes the shard.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use encke_jobs::DispatchClient;
use encke_log::ReadError;
use encke_mailbox::{Bounds, Lane, Receiver, SendErrorKind, Sender, mailbox_with_waker};
use encke_protocol::{DispatchResponse, Response};
use encke_stream::{Batch, Handover, LoadError, Lookup, Outlet, Piece, Reply, Stream, StreamPage};
use rustix::event::{EventfdFlags, eventfd};

use crate::broadcast_message::{BroadcastMessage, EphemeralBytes, QueuedMessage};
use crate::compression::CompressedPiece;
use crate::feed::slot::Token;
use crate::lag::Lag;
use crate::moved::{MoveCensus, MoveOut};
use crate::settings::NetSettings;
use crate::survey::SurveyStep;
use crate::transport::tls::Handshaken;

/// Something that happened elsewhere.
#[derive(Debug)]
pub(crate) enum ShardEvent {
    /// A commit: all records, and the replies to this shard's commands.
    Committed {
        batch: Option<Arc<Batch>>,
        replies: Vec<Reply>,
    },
    /// A message for those who are subscribed to its stream now.
    Ephemeral(QueuedMessage),
    /// A part of a stream for a connection.
    PieceRead {
        token: Token,
        piece: Result<Piece, ReadError>,
    },
    /// A piece of a connection's response was compressed.
    Compressed {
        token: Token,
        piece: CompressedPiece,
    },
    /// What is known of the name that a connection's request names.
    NameLoaded {
        token: Token,
        known: Result<Lookup, LoadError>,
    },
    /// A page of the list of streams for a connection's request.
    Listed {
        token: Token,
        page: Result<StreamPage, LoadError>,
    },
    /// The answer to an operator's question.
    Inspected {
        token: Token,
        response: Box<Response>,
    },
    /// Somebody asks for a part of the shard's connections.
    Survey(Box<SurveyStep>),
    /// An operator closes a connection. The answer says whether it was there.
    Disconnect {
        token: Token,
        answer: mpsc::Sender<bool>,
    },
    /// The stream of a subscriber; `None` if it has ended.
    StreamLoaded {
        token: Token,
        stream: Result<Option<Arc<Stream>>, LoadError>,
    },
    /// An event of the dispatcher for a connection.
    Dispatched {
        client: DispatchClient,
        event: DispatchResponse,
    },
    /// Another thread has what requests are parked for: keys of a token's issuer, or the outcome of a health probe.
    Unpark,
    /// The other end of this socket is a connection of the health probe.
    Adopt(OwnedFd),
    /// A handshake thread gives a connection's socket back.
    Handshaken {
        token: Token,
        ended: Box<Handshaken>,
    },
    /// The node does not follow its fleet: its subscribers are to connect to another one.
    DismissAll,
    /// Somebody asks whether the shard takes turns.
    Probe(mpsc::Sender<()>),
    /// Somebody asks which connections could move to another process.
    CountMovable(mpsc::Sender<MoveCensus>),
    /// The server moves to another process.
    MoveOut(Box<MoveOut>),
    /// The server stops.
    Stop,
}

/// The shard's end, which it drains in one go.
pub(crate) struct ShardReceiver {
    pub(crate) events: Receiver<ShardEvent>,
    pub(crate) wake: Arc<OwnedFd>,
    pub(crate) lag: Arc<Lag>,
    pieces: Arc<AtomicUsize>,
}

/// The channel to a shard from other threads. As an [`Outlet`] it carries commits.
#[derive(Clone)]
pub struct ShardSender {
    events: Sender<ShardEvent>,
    lag: Arc<Lag>,
    /// Bytes of pieces that were sent and not taken yet.
    pieces: Arc<AtomicUsize>,
    ephemeral: EphemeralBytes,
    admission: Admission,
    bytes_max: usize,
}

#[derive(Clone, Copy)]
struct Admission {
    bytes: u64,
    us: u64,
}

/// Both ends of a channel.
pub(crate) fn shard_channel(
    settings: &NetSettings,
) -> rustix::io::Result<(ShardSender, ShardReceiver)> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let bounds = Bounds {
        items_max: EVENTS_MAX,
        bytes_max: settings.ring_bytes,
    };
    let waker = Arc::clone(&wake);
    let (sender, events) = mailbox_with_waker("shard", bounds, move || {
        // The counter is never read: edge-triggered epoll reports each write, and 64 bits never overflow.
        let _ = rustix::io::write(&waker, &1u64.to_ne_bytes());
    });
    let lag = Arc::new(Lag::default());
    let pieces = Arc::new(AtomicUsize::new(0));
    let sender = ShardSender {
        pieces: Arc::clone(&pieces),
        ephemeral: EphemeralBytes::new(settings.ring_bytes),
        events: sender,
        lag: Arc::clone(&lag),
        admission: Admission {
            bytes: settings.admission_bytes as u64,
            us: settings.admission_delay.as_micros() as u64,
        },
        bytes_max: settings.ring_bytes,
    };
    let receiver = ShardReceiver {
        events,
        wake,
        lag,
        pieces,
    };
    Ok((sender, receiver))
}

impl ShardReceiver {
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl ShardReceiver {
    /// A piece was taken and handled: there is room for others.
    pub(crate) fn took_piece(&self, bytes: usize) {
        self.pieces.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl ShardSender {
    /// Sends what the dispatcher has for a client; waits while the channel is full. For a client that is gone it does nothing.
    pub fn dispatched(&self, client: DispatchClient, event: DispatchResponse) {
        self.put(ShardEvent::Dispatched { client, event });
    }

    /// Sends a piece; waits while the shard has enough of them. So clients that read old records cannot fill the channel, which
    /// also carries commits, and turns stay short.
    pub(crate) fn put_piece(&self, token: Token, piece: Result<Piece, ReadError>) {
        while self.pieces.load(Ordering::Relaxed) > PIECES_BYTES && !self.events.is_closed() {
            std::thread::sleep(PIECES_PAUSE);
        }
        let bytes = piece.as_ref().map_or(0, Piece::bytes);
        self.pieces.fetch_add(bytes, Ordering::Relaxed);
        self.put(ShardEvent::PieceRead { token, piece });
    }

    /// Asks the shard to answer in its next turn. False: it has no room for the question.
    pub(crate) fn probe(&self, answer: mpsc::Sender<()>) -> bool {
        let bytes = size_of::<ShardEvent>();
        let asked = self
            .events
            .try_send(Lane::Control, ShardEvent::Probe(answer), bytes);
        asked.is_ok()
    }

    /// Sends an ephemeral message without a wait, behind what was sent before. False: there is no room for it.
    pub(crate) fn offer_ephemeral(&self, broadcast: &Arc<BroadcastMessage>) -> bool {
        let queued = self.ephemeral.take(broadcast);
        queued.is_some_and(|queued| self.offer_event(ShardEvent::Ephemeral(queued)))
    }

    /// Sends an event that must not make its sender wait. False: there is no room for it.
    pub(crate) fn offer_event(&self, event: ShardEvent) -> bool {
        let (lane, bytes) = self.weigh(&event);
        self.events.try_send(lane, event, bytes).is_ok()
    }

    /// Asks the shard for a part of its connections. False: it has no room for the question.
    pub(crate) fn survey(&self, step: SurveyStep) -> bool {
        let event = ShardEvent::Survey(Box::new(step));
        let bytes = size_of::<ShardEvent>();
        self.events.try_send(Lane::Control, event, bytes).is_ok()
    }

    /// Has the shard close a connection. False: it has no room for that.
    pub(crate) fn disconnect(&self, token: Token, answer: mpsc::Sender<bool>) -> bool {
        let event = ShardEvent::Disconnect { token, answer };
        let bytes = size_of::<ShardEvent>();
        self.events.try_send(Lane::Control, event, bytes).is_ok()
    }

    /// Sends an event; waits while the channel is full. For a shard that is gone it does nothing.
    pub(crate) fn put(&self, event: ShardEvent) {
        let (lane, bytes) = self.weigh(&event);
        if let Err(refused) = self.events.send(lane, event, bytes)
            && refused.kind != SendErrorKind::Closed
        {
            tracing::error!(why = %refused.kind, "a shard's mailbox refused an event that it must take");
        }
    }

    /// The event's lane and weight in bytes.
    fn weigh(&self, event: &ShardEvent) -> (Lane, usize) {
        let (lane, bytes) = match event {
            ShardEvent::Committed { batch, replies } => {
                let records = batch.as_ref().map_or(0, |batch| batch.bytes);
                (Lane::Data, records + replies.len() * size_of::<Reply>())
            }
            ShardEvent::Ephemeral(message) => (Lane::Data, message.bytes()),
            ShardEvent::PieceRead { piece, .. } => {
                (Lane::Data, piece.as_ref().map_or(0, Piece::bytes))
            }
            ShardEvent::NameLoaded { .. } | ShardEvent::StreamLoaded { .. } => (Lane::Data, 0),
            ShardEvent::Listed { page, .. } => {
                (Lane::Data, page.as_ref().map_or(0, StreamPage::bytes))
            }
            // The bounds of the inspector's queue bound them.
            ShardEvent::Inspected { response, .. } => (Lane::Data, response.body.as_ref().len()),
            // The number of compressors bounds them.
            ShardEvent::Compressed { .. } => (Lane::Data, 0),
            // The bound on handshakes bounds them.
            ShardEvent::Handshaken { .. } => (Lane::Data, 0),
            ShardEvent::Dispatched { event, .. } => (Lane::Data, event.weight_bytes()),
            ShardEvent::Unpark
            | ShardEvent::Adopt(_)
            | ShardEvent::DismissAll
            | ShardEvent::Probe(_)
            | ShardEvent::Survey(_)
            | ShardEvent::Disconnect { .. }
            | ShardEvent::CountMovable(_)
            | ShardEvent::MoveOut(_)
            | ShardEvent::Stop => (Lane::Control, 0),
        };
        // A commit that is larger than the channel's bound may be in it alone.
        (lane, (bytes + size_of::<ShardEvent>()).min(self.bytes_max))
    }

    /// Whether the shard's deliveries are behind.
    fn is_behind(&self) -> bool {
        self.lag.bytes.load(Ordering::Relaxed) > self.admission.bytes
            || self.lag.us.load(Ordering::Relaxed) > self.admission.us
    }

    /// How many events wait, and how old the oldest is.
    pub(crate) fn gauge(&self) -> encke_mailbox::Gauge {
        self.events.gauge()
    }

    pub(crate) fn lag(&self) -> &Lag {
        &self.lag
    }
}

impl Outlet for ShardSender {
    fn deliver(&self, batch: Option<Arc<Batch>>, replies: Vec<Reply>) {
        self.put(ShardEvent::Committed { batch, replies });
    }

    fn admit(&self) {
        // The shard lowers these with every turn; polling costs less than a wake-up.
        while self.is_behind() {
            if self.events.is_closed() {
                return;
            }
            std::thread::sleep(ADMISSION_PAUSE);
        }
    }

    fn offer(&self, batch: Option<Arc<Batch>>, replies: Vec<Reply>) -> Result<(), Handover> {
        let event = ShardEvent::Committed { batch, replies };
        let (lane, bytes) = self.weigh(&event);
        let Err(refused) = self.events.try_send(lane, event, bytes) else {
            return Ok(());
        };
        match (refused.kind, refused.item) {
            // The shard is gone.
            (SendErrorKind::Closed, _) => Ok(()),
            (_, ShardEvent::Committed { batch, replies }) => Err(Handover { batch, replies }),
            // The refused event is the one that was sent.
            (
                _,
                ShardEvent::Ephemeral(_)
                | ShardEvent::PieceRead { .. }
                | ShardEvent::Compressed { .. }
                | ShardEvent::NameLoaded { .. }
                | ShardEvent::Listed { .. }
                | ShardEvent::Inspected { .. }
                | ShardEvent::Survey(_)
                | ShardEvent::Disconnect { .. }
                | ShardEvent::StreamLoaded { .. }
                | ShardEvent::Dispatched { .. }
                | ShardEvent::Unpark
                | ShardEvent::Adopt(_)
                | ShardEvent::DismissAll
                | ShardEvent::Probe(_)
                | ShardEvent::Handshaken { .. }
                | ShardEvent::CountMovable(_)
                | ShardEvent::MoveOut(_)
                | ShardEvent::Stop,
            ) => Ok(()),
        }
    }

    fn admits(&self) -> bool {
        !self.is_behind() || self.events.is_closed()
    }
}

/// Events that wait for a shard. Each holds many records or replies; the bound in bytes is the one that counts.
const EVENTS_MAX: usize = 65_536;

/// Bytes of pieces that a shard has before the reader threads wait, and bytes of kept pieces that it handles in one turn: work for
/// about a millisecond.
pub(crate) const PIECES_BYTES: usize = 512 << 10;

const PIECES_PAUSE: Duration = Duration::from_micros(200);

const ADMISSION_PAUSE: Duration = Duration::from_micros(200);

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn publishers_wait_while_deliveries_are_behind_by_bytes_or_by_time() {
        let settings = NetSettings {
            admission_bytes: 1000,
            admission_delay: Duration::from_millis(5),
            ..NetSettings::default()
        };
        let (sender, receiver) = shard_channel(&settings).unwrap();
        for (bytes, us, admits) in [
            (0, 0, true),
            (1000, 5_000, true),
            (1001, 0, false),
            (0, 5_001, false),
        ] {
            receiver.lag.bytes.store(bytes, Ordering::Relaxed);
            receiver.lag.us.store(us, Ordering::Relaxed);
            assert_eq!(sender.admits(), admits, "{bytes} bytes, {us} µs");
        }
        // A publisher that waits continues when the shard has caught up.
        ends_only_after(
            move || sender.admit(),
            || receiver.lag.us.store(0, Ordering::Relaxed),
        );
    }

    #[test]
    fn a_reader_waits_until_the_shard_has_taken_what_was_read() {
        let (sender, receiver) = shard_channel(&NetSettings::default()).unwrap();
        receiver.pieces.store(PIECES_BYTES + 1, Ordering::Relaxed);
        let wait = move || {
            let failed = ReadError::Io {
                file: "a".into(),
                position: 0,
                source: std::io::ErrorKind::Other.into(),
            };
            sender.put_piece(0, Err(failed));
        };
        ends_only_after(wait, || receiver.took_piece(PIECES_BYTES + 1));
    }

    /// The call ends once it is released, and not before.
    fn ends_only_after(wait: impl FnOnce() + Send + 'static, release: impl FnOnce()) {
        let released = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&released);
        let (tasks, begun) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            tasks
                .send(std::fs::read_link("/proc/thread-self").unwrap())
                .unwrap();
            wait();
            assert!(seen.load(Ordering::SeqCst), "it ended by itself");
        });
        // Until it sleeps within the call, or has ended.
        let state = std::path::Path::new("/proc")
            .join(begun.recv().unwrap())
            .join("stat");
        while std::fs::read_to_string(&state).is_ok_and(|state| !state.contains(") S ")) {
            std::thread::yield_now();
        }
        released.store(true, Ordering::SeqCst);
        release();
        waiting.join().unwrap();
    }
}
