//! What reaches a shard from other threads, and how it is woken.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use encke_log::ReadError;
use encke_mailbox::{Bounds, Lane, Options, Receiver, Sender, Why, mailbox_with_waker};
use encke_stream::{Batch, Outlet, Piece, Reply};
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
    /// The server is going away.
    Stop,
}

/// A shard's end: what is in it is drained in one go.
pub(crate) struct Inbox {
    pub(crate) notes: Receiver<Note>,
    pub(crate) wake: Arc<OwnedFd>,
    pub(crate) lag: Arc<Lag>,
}

/// Everybody else's end.
#[derive(Clone)]
pub(crate) struct Door {
    notes: Sender<Note>,
    lag: Arc<Lag>,
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
        // It can only fail when the counter is full, and then the shard is awake already.
        let _ = rustix::io::write(&waker, &1u64.to_ne_bytes());
    });
    let lag = Arc::new(Lag::default());
    let door = Door {
        notes: sender,
        lag: Arc::clone(&lag),
        admission: Admission {
            bytes: settings.admission_bytes as u64,
            us: settings.admission_delay.as_micros() as u64,
        },
        bytes_max: settings.ring_bytes,
    };
    Ok((door, Inbox { notes, wake, lag }))
}

impl Inbox {
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Makes the next wake-up possible.
    pub(crate) fn awake(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
    }
}

impl Door {
    /// Hands over a note; waits when the shard's inbox is full. A shard that is gone needs none.
    pub(crate) fn put(&self, note: Note) {
        let (lane, bytes) = match &note {
            Note::Committed { batch, replies } => {
                let records = batch.as_ref().map_or(0, |batch| batch.bytes);
                (Lane::Data, records + replies.len() * size_of::<Reply>())
            }
            Note::Fetched { piece, .. } => (Lane::Data, piece.as_ref().map_or(0, Piece::bytes)),
            Note::Stop => (Lane::Control, 0),
        };
        // A commit that is larger than the whole inbox may be in it alone.
        let bytes = (bytes + size_of::<Note>()).min(self.bytes_max);
        if let Err(refused) = self.notes.send(lane, note, bytes)
            && refused.why != Why::Closed
        {
            tracing::error!(why = %refused.why, "a shard's inbox refused what it must take");
        }
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
        while self.lag.bytes.load(Ordering::Relaxed) > self.admission.bytes
            || self.lag.us.load(Ordering::Relaxed) > self.admission.us
        {
            if self.notes.is_closed() {
                return;
            }
            std::thread::sleep(ADMISSION_PAUSE);
        }
    }
}

/// Notes that wait for a shard. Each holds many records or replies; bytes are the bound that counts.
const NOTES_MAX: usize = 65_536;

const ADMISSION_PAUSE: Duration = Duration::from_micros(200);
