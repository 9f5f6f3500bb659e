//! What reaches a shard from other threads, and how it is woken.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use encke_jobs::{PoolClient, PoolResponse};
use encke_log::ReadError;
use encke_mailbox::{Bounds, Lane, Options, Receiver, SendErrorKind, Sender, mailbox_with_waker};
use encke_stream::{Batch, Handover, Known, LoadError, Outlet, Piece, Reply, Stream};
use rustix::event::{EventfdFlags, eventfd};

use crate::Settings;
use crate::slot::Token;

/// Something that happened elsewhere.
#[derive(Debug)]
pub(crate) enum Note {
    /// A commit: the records of all, the replies of this shard.
    Committed {
        batch: Option<Arc<Batch>>,
        replies: Vec<Reply>,
    },
    /// A part of a stream that a connection asked for.
    Fetched {
        token: Token,
        piece: Result<Piece, ReadError>,
    },
    /// What is known of a name that a connection's request is about.
    Looked {
        token: Token,
        known: Result<Known, LoadError>,
    },
    /// The stream that a subscriber is subscribed to; nothing if it has ended.
    Loaded {
        token: Token,
        stream: Result<Option<Arc<Stream>>, LoadError>,
    },
    /// The pools have something to say to a connection.
    Told {
        client: PoolClient,
        told: PoolResponse,
    },
    /// The server is going away.
    Stop,
}

/// A shard's end: what is in it is drained in one go.
pub(crate) struct Inbox {
    pub(crate) notes: Receiver<Note>,
    pub(crate) wake: Arc<OwnedFd>,
    pub(crate) lag: Arc<Lag>,
    pieces: Arc<AtomicUsize>,
}

/// Everybody else's end.
#[derive(Clone)]
pub(crate) struct Door {
    notes: Sender<Note>,
    lag: Arc<Lag>,
    /// Bytes of pieces that were put in and not taken yet.
    pieces: Arc<AtomicUsize>,
    admission: Admission,
    bytes_max: usize,
}

/// How far a shard's deliveries are behind: written by the shard, read by the sequencer.
#[derive(Debug, Default)]
pub(crate) struct Lag {
    pub(crate) bytes: AtomicU64,
    pub(crate) us: AtomicU64,
}

#[derive(Clone, Copy)]
struct Admission {
    bytes: u64,
    us: u64,
}

/// Makes both ends.
pub(crate) fn inbox(settings: &Settings) -> rustix::io::Result<(Door, Inbox)> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let options = Options::new(Bounds {
        items_max: NOTES_MAX,
        bytes_max: settings.ring_bytes,
    });
    let waker = Arc::clone(&wake);
    let (sender, notes) = mailbox_with_waker("shard", options, move || {
        // The counter is never read: epoll tells of each write (edge-triggered), and 64 bits are never full.
        let _ = rustix::io::write(&waker, &1u64.to_ne_bytes());
    });
    let lag = Arc::new(Lag::default());
    let pieces = Arc::new(AtomicUsize::new(0));
    let door = Door {
        pieces: Arc::clone(&pieces),
        notes: sender,
        lag: Arc::clone(&lag),
        admission: Admission {
            bytes: settings.admission_bytes as u64,
            us: settings.admission_delay.as_micros() as u64,
        },
        bytes_max: settings.ring_bytes,
    };
    let inbox = Inbox {
        notes,
        wake,
        lag,
        pieces,
    };
    Ok((door, inbox))
}

impl Inbox {
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Inbox {
    /// A piece was taken and worked on: there is room for others.
    pub(crate) fn took_piece(&self, bytes: usize) {
        self.pieces.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Door {
    /// Hands over a piece; waits while the shard has enough of them. So a crowd that asks for old records never fills the
    /// inbox, in which commits come too, and a turn is over soon.
    pub(crate) fn put_piece(&self, token: Token, piece: Result<Piece, ReadError>) {
        while self.pieces.load(Ordering::Relaxed) > PIECES_BYTES && !self.notes.is_closed() {
            std::thread::sleep(PIECES_PAUSE);
        }
        let bytes = piece.as_ref().map_or(0, Piece::bytes);
        self.pieces.fetch_add(bytes, Ordering::Relaxed);
        self.put(Note::Fetched { token, piece });
    }

    /// Hands over a note; waits when the shard's inbox is full. A shard that is gone needs none.
    pub(crate) fn put(&self, note: Note) {
        let (lane, bytes) = self.weigh(&note);
        if let Err(refused) = self.notes.send(lane, note, bytes)
            && refused.kind != SendErrorKind::Closed
        {
            tracing::error!(why = %refused.kind, "a shard's inbox refused what it must take");
        }
    }

    /// The note's lane and weight.
    fn weigh(&self, note: &Note) -> (Lane, usize) {
        let (lane, bytes) = match note {
            Note::Committed { batch, replies } => {
                let records = batch.as_ref().map_or(0, |batch| batch.bytes);
                (Lane::Data, records + replies.len() * size_of::<Reply>())
            }
            Note::Fetched { piece, .. } => (Lane::Data, piece.as_ref().map_or(0, Piece::bytes)),
            Note::Looked { .. } | Note::Loaded { .. } => (Lane::Data, 0),
            Note::Told { told, .. } => {
                let handed = match told {
                    PoolResponse::Dispatched(handed) => handed.payload.body.len(),
                    _ => 0,
                };
                (Lane::Data, handed)
            }
            Note::Stop => (Lane::Control, 0),
        };
        // A commit that is larger than the whole inbox may be in it alone.
        (lane, (bytes + size_of::<Note>()).min(self.bytes_max))
    }

    /// Whether the shard's deliveries are behind.
    fn is_behind(&self) -> bool {
        self.lag.bytes.load(Ordering::Relaxed) > self.admission.bytes
            || self.lag.us.load(Ordering::Relaxed) > self.admission.us
    }

    /// How many notes wait, and how old the oldest is.
    pub(crate) fn gauge(&self) -> encke_mailbox::Gauge {
        self.notes.gauge()
    }

    pub(crate) fn lag(&self) -> &Lag {
        &self.lag
    }
}

impl Outlet for Door {
    fn deliver(&self, batch: Option<Arc<Batch>>, replies: Vec<Reply>) {
        self.put(Note::Committed { batch, replies });
    }

    fn admit(&self) {
        // The shard lowers these with every turn; asking again costs less than being woken.
        while self.is_behind() {
            if self.notes.is_closed() {
                return;
            }
            std::thread::sleep(ADMISSION_PAUSE);
        }
    }

    fn offer(&self, batch: Option<Arc<Batch>>, replies: Vec<Reply>) -> Result<(), Handover> {
        let note = Note::Committed { batch, replies };
        let (lane, bytes) = self.weigh(&note);
        let Err(refused) = self.notes.try_send(lane, note, bytes) else {
            return Ok(());
        };
        match (refused.kind, refused.item) {
            // A shard that is gone needs none.
            (SendErrorKind::Closed, _) => Ok(()),
            (_, Note::Committed { batch, replies }) => Err(Handover { batch, replies }),
            // What comes back is what was sent.
            (
                _,
                Note::Fetched { .. }
                | Note::Looked { .. }
                | Note::Loaded { .. }
                | Note::Told { .. }
                | Note::Stop,
            ) => Ok(()),
        }
    }

    fn admits(&self) -> bool {
        !self.is_behind() || self.notes.is_closed()
    }
}

/// Notes that wait for a shard. Each holds many records or replies; bytes are the bound that counts.
const NOTES_MAX: usize = 65_536;

/// Bytes of pieces that a shard has at hand before those who read for it wait: work for a millisecond or so.
const PIECES_BYTES: usize = 512 << 10;

const PIECES_PAUSE: Duration = Duration::from_micros(200);

const ADMISSION_PAUSE: Duration = Duration::from_micros(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publishers_wait_while_deliveries_are_behind_by_bytes_or_by_time() {
        let settings = Settings {
            admission_bytes: 1000,
            admission_delay: Duration::from_millis(5),
            ..Settings::default()
        };
        let (door, inbox) = inbox(&settings).unwrap();
        for (bytes, us, admits) in [
            (0, 0, true),
            (1000, 5_000, true),
            (1001, 0, false),
            (0, 5_001, false),
        ] {
            inbox.lag.bytes.store(bytes, Ordering::Relaxed);
            inbox.lag.us.store(us, Ordering::Relaxed);
            assert_eq!(door.admits(), admits, "{bytes} bytes, {us} µs");
        }
        // Whoever waits goes on when the shard has caught up.
        let waiting = std::thread::spawn(move || door.admit());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished());
        inbox.lag.us.store(0, Ordering::Relaxed);
        waiting.join().unwrap();
    }

    #[test]
    fn whoever_reads_for_a_shard_waits_until_it_has_taken_what_was_read() {
        let (door, inbox) = inbox(&Settings::default()).unwrap();
        inbox.pieces.store(PIECES_BYTES + 1, Ordering::Relaxed);
        let waiting = std::thread::spawn(move || {
            let failed = ReadError::Io {
                file: "a".into(),
                position: 0,
                source: std::io::ErrorKind::Other.into(),
            };
            door.put_piece(0, Err(failed));
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished());
        inbox.took_piece(PIECES_BYTES + 1);
        waiting.join().unwrap();
    }
}
