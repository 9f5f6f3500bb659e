//! Gives copies of this node's logs to other nodes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::{Client, Message, Subscriber};
use encke_log::{LogSnapshot, Reader};
use futures_util::StreamExt;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use xxhash_rust::xxh3::Xxh3;

use super::protocol::{
    Answer, Begun, HEAD_BYTES, Manifest, PIECE_BYTES_MAX, REQUESTS_AT_ONCE, Request,
};

/// Answers the requests of copying nodes.
pub(crate) struct CopySource {
    pub(crate) client: Client,
    pub(crate) requests: Subscriber,
    /// By the logs' indices.
    pub(crate) readers: Vec<Reader>,
}

/// The copies that are given at the moment.
#[derive(Default)]
struct Copies {
    next: u64,
    open: BTreeMap<u64, Arc<OpenCopy>>,
}

struct OpenCopy {
    log: usize,
    copier: String,
    snapshot: LogSnapshot,
    manifest: Vec<u8>,
    used_at: Mutex<Instant>,
}

/// What all requests share.
struct Shared {
    readers: Vec<Reader>,
    copies: Mutex<Copies>,
    /// Held while a copy begins: a snapshot is taken outside of the lock on the copies.
    beginning: Mutex<()>,
    /// The largest piece that the broker takes now.
    piece_bytes_max: Box<dyn Fn() -> usize + Send + Sync>,
}

impl CopySource {
    /// Runs until the client is closed.
    pub(crate) async fn run(mut self) {
        let shared = Arc::new(Shared {
            readers: self.readers,
            copies: Mutex::default(),
            beginning: Mutex::default(),
            piece_bytes_max: {
                let client = self.client.clone();
                Box::new(move || {
                    PIECE_BYTES_MAX.min(client.max_payload().saturating_sub(HEAD_BYTES))
                })
            },
        });
        // Bounds the memory of pieces that are being read and sent.
        let room = Arc::new(Semaphore::new(REQUESTS_AT_ONCE * COPIES_MAX));
        let mut look = tokio::time::interval(LOOK_EVERY);
        loop {
            let request = tokio::select! {
                request = self.requests.next() => request,
                _ = look.tick() => {
                    // It removes directories.
                    let shared = Arc::clone(&shared);
                    tokio::task::spawn_blocking(move || shared.drop_idle(IDLE_MAX));
                    continue;
                }
            };
            let Some(request) = request else { return };
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
                return;
            };
            let (shared, client) = (Arc::clone(&shared), self.client.clone());
            tokio::spawn(async move {
                answer(&client, request, shared).await;
                drop(permit);
            });
        }
    }
}

async fn answer(client: &Client, request: Message, shared: Arc<Shared>) {
    let Some(reply) = request.reply else { return };
    let payload = request.payload;
    let answered = tokio::task::spawn_blocking(move || {
        let answer = match serde_json::from_slice(&payload) {
            Ok(request) => shared.answer(request),
            Err(error) => Answer::Refused(format!("the request cannot be read: {error}")),
        };
        answer.encode(&payload)
    });
    let Ok(bytes) = answered.await else { return };
    if let Err(error) = client.publish(reply, bytes.into()).await {
        tracing::debug!(%error, "a piece of a copy could not be sent");
    }
}

impl Shared {
    fn answer(&self, request: Request) -> Answer {
        match request {
            Request::Begin { log, copier } => self.begin(log, copier),
            Request::End { copy } => {
                if let Some(ended) = self.copies.lock().open.remove(&copy) {
                    tracing::info!(log = ended.log, copier = ended.copier, "a copy has ended");
                }
                Answer::Body(Vec::new())
            }
            Request::Read {
                copy,
                file,
                offset,
                bytes,
            } => self.with(copy, |open| open.read(self, file, offset, bytes)),
            Request::Hash { copy, file } => self.with(copy, |open| open.hash(file)),
        }
    }

    fn begin(&self, log: usize, copier: String) -> Answer {
        let _beginning = self.beginning.lock();
        self.drop_idle(IDLE_MAX);
        let mut copies = self.copies.lock();
        copies
            .open
            .retain(|_, open| open.log != log || open.copier != copier);
        if copies.open.len() >= COPIES_MAX {
            return Answer::Busy;
        }
        drop(copies);
        let Some(reader) = self.readers.get(log) else {
            return Answer::Refused(format!("it has no log {log}"));
        };
        let snapshot = match reader.snapshot() {
            Ok(snapshot) => snapshot,
            Err(error) => return Answer::Refused(error.to_string()),
        };
        let manifest = Manifest {
            directories: snapshot.directories().to_vec(),
            files: (snapshot.files())
                .map(|(name, bytes)| (name.to_owned(), bytes))
                .collect(),
        };
        let Ok(manifest) = serde_json::to_vec(&manifest) else {
            return Answer::Refused("its files cannot be listed".into());
        };
        tracing::info!(
            log,
            copier,
            upto = snapshot.upto(),
            files = snapshot.files().len(),
            "a copy has begun"
        );
        let mut copies = self.copies.lock();
        copies.next += 1;
        let copy = copies.next;
        let begun = Begun {
            copy,
            manifest_bytes: manifest.len() as u64,
        };
        let open = OpenCopy {
            log,
            copier,
            snapshot,
            manifest,
            used_at: Mutex::new(Instant::now()),
        };
        copies.open.insert(copy, Arc::new(open));
        match serde_json::to_vec(&begun) {
            Ok(body) => Answer::Body(body),
            Err(error) => Answer::Refused(error.to_string()),
        }
    }

    fn with(&self, copy: u64, work: impl FnOnce(&OpenCopy) -> Answer) -> Answer {
        let open = self.copies.lock().open.get(&copy).cloned();
        match open {
            Some(open) => {
                *open.used_at.lock() = Instant::now();
                let answer = work(&open);
                // A large file takes a while.
                *open.used_at.lock() = Instant::now();
                answer
            }
            None => Answer::Refused(format!("it has no copy {copy} any more")),
        }
    }

    /// Ends the copies that no request has named for `idle_max`.
    fn drop_idle(&self, idle_max: Duration) {
        let mut dropped = Vec::new();
        self.copies.lock().open.retain(|_, open| {
            let idle = open.used_at.lock().elapsed() > idle_max;
            if idle {
                dropped.push(Arc::clone(open));
            }
            !idle
        });
        for open in dropped {
            tracing::warn!(
                log = open.log,
                copier = open.copier,
                "a copy has ended: no request came for it"
            );
        }
    }
}

impl OpenCopy {
    fn read(&self, shared: &Shared, file: Option<u32>, offset: u64, bytes: u32) -> Answer {
        let mut piece = vec![0; (bytes as usize).min((shared.piece_bytes_max)())];
        let read = match file {
            Some(file) => self.snapshot.read(file as usize, offset, &mut piece),
            None => {
                let from = self.manifest.len().min(offset as usize);
                let read = piece.len().min(self.manifest.len() - from);
                piece[..read].copy_from_slice(&self.manifest[from..from + read]);
                Ok(read)
            }
        };
        match read {
            Ok(read) => {
                piece.truncate(read);
                Answer::Body(piece)
            }
            Err(error) => Answer::Refused(format!("a file cannot be read: {error}")),
        }
    }

    fn hash(&self, file: u32) -> Answer {
        let mut hasher = Xxh3::new();
        let mut buffer = vec![0; PIECE_BYTES_MAX];
        let mut offset = 0;
        loop {
            match self.snapshot.read(file as usize, offset, &mut buffer) {
                Ok(0) => return Answer::Body(hasher.digest128().to_le_bytes().to_vec()),
                Ok(read) => {
                    hasher.update(&buffer[..read]);
                    offset += read as u64;
                }
                Err(error) => return Answer::Refused(format!("a file cannot be read: {error}")),
            }
        }
    }
}

/// How many copies a node gives at a time: each takes a share of its disk and of its connection to the brokers.
pub(super) const COPIES_MAX: usize = 2;

/// A copy ends when no request names it for this long. Until then it holds the space of what the log has removed.
const IDLE_MAX: Duration = Duration::from_secs(90);

// The copier may wait that long for one answer.
const _: () = assert!(IDLE_MAX.as_secs() > super::fetch::HASH_WITHIN.as_secs());

/// How often copies are looked at that nothing asks for.
const LOOK_EVERY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use encke_log::{Log, Options};

    use super::*;

    fn begin(shared: &Shared, copier: &str) -> Option<u64> {
        let begin = Request::Begin {
            log: 0,
            copier: copier.into(),
        };
        match shared.answer(begin) {
            Answer::Body(body) => Some(serde_json::from_slice::<Begun>(&body).unwrap().copy),
            Answer::Busy => None,
            Answer::Refused(reason) => panic!("{reason}"),
        }
    }

    #[test]
    fn few_copies_are_given_at_a_time_and_an_idle_one_ends() {
        let directory = tempfile::tempdir().unwrap();
        let log = Log::open(directory.path(), Options::default(), &mut |_| {}).unwrap();
        let shared = Shared {
            readers: vec![log.reader()],
            copies: Mutex::default(),
            beginning: Mutex::default(),
            piece_bytes_max: Box::new(|| PIECE_BYTES_MAX),
        };
        let copies: Vec<_> = (0..COPIES_MAX)
            .map(|copier| begin(&shared, &copier.to_string()).unwrap())
            .collect();
        assert_eq!(begin(&shared, "other"), None);
        // The same node may begin again.
        let again = begin(&shared, "0").unwrap();
        assert!(!copies.contains(&again));
        let hash = |copy| shared.answer(Request::Hash { copy, file: 0 });
        assert!(matches!(hash(copies[0]), Answer::Refused(_)));
        assert!(matches!(hash(again), Answer::Body(_)));
        shared.answer(Request::End { copy: again });
        begin(&shared, "other").unwrap();
        assert_eq!(begin(&shared, "third"), None);
        shared.drop_idle(Duration::ZERO);
        begin(&shared, "third").unwrap();
        // No piece is larger than the bound, and a log that does not exist is named.
        let copy = begin(&shared, "third").unwrap();
        let read = Request::Read {
            copy,
            file: None,
            offset: 0,
            bytes: u32::MAX,
        };
        let Answer::Body(piece) = shared.answer(read) else {
            panic!("the manifest can be read");
        };
        assert!(piece.len() <= PIECE_BYTES_MAX);
        let begin = Request::Begin {
            log: 3,
            copier: "x".into(),
        };
        shared.drop_idle(Duration::ZERO);
        let expected = Answer::Refused("it has no log 3".into());
        assert_eq!(shared.answer(begin), expected);
    }
}
