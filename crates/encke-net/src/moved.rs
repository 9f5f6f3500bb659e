//! Connections in a form in which another process takes them over, without their clients noticing.
//!
//! A shard that moves out ([`MoveOut`]) finishes the requests in work and gives its connections away: a socket, and what is to be known of
//! it as plain data ([`MovedConnection`]). A reactor starts with such connections ([`Arrivals`]); it does not touch them before its
//! [`StartGate`] opens, so that they can still be taken back.
//!
//! The data is JSON, so that another version finds what it knows by name. What is written to another process is secret: it contains keys
//! of TLS sessions.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use encke_access::{CallersIn, CallersOut, MovedAuthority, MovedTag};
use encke_protocol::{CallerNeeds, MovedChannel};
use encke_stream::{Offset, Stream, StreamNo, Viewer};
use foldhash::HashMap;
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use crate::transport::tls::MovedSession;

/// A connection without its socket.
#[derive(Debug, Serialize, Deserialize)]
pub struct MovedConnection {
    /// The client's requests are in the clear, and it speaks TLS to a proxy that says so; or it speaks TLS to the server.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) tls: bool,
    /// Connected to the address for operators.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) operator: bool,
    /// Requests so far, as far as they can be counted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) requests: u16,
    /// Seconds since something was last sent or received.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) quiet_s: u32,
    /// The address for which it is counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) client: Option<IpAddr>,
    /// The other end is a proxy that is trusted to name its clients.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) trusted: bool,
    /// Whose request it serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) caller: Option<MovedTag>,
    /// What that request needs of its caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) needs: Option<CallerNeeds>,
    /// The names in the certificate of its client, and when that ends, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) certificate: Option<(Vec<String>, u64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) session: Option<MovedSession>,
    /// It begins with a header of the PROXY protocol, which is still to come.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) awaits_proxy: bool,
    /// What was received and not handled.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "in_base64")]
    pub(crate) input: Vec<u8>,
    /// What its socket has not taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unsent: Option<MovedOutput>,
    pub(crate) doing: MovedTask,
}

/// Whether a field need not be sent: what a successor does not find has its default.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What a connection waits for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MovedTask {
    /// The next request.
    Idle,
    /// The records of its feed.
    Subscribed {
        feed: MovedFeed,
        http_1_0: bool,
        keep_alive: bool,
        member: Option<MovedMember>,
    },
    /// The messages of its channel, and the records of that one's feeds.
    Channel {
        channel: MovedChannel,
        feeds: Vec<(u32, MovedFeed)>,
        deflate: bool,
        awaits_pong: bool,
    },
}

/// Who a subscriber is among the members of its streams.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MovedMember {
    pub(crate) key: Box<str>,
    pub(crate) id: Box<str>,
    pub(crate) data: Option<Box<str>>,
}

/// Bytes that a socket has not taken.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MovedOutput {
    #[serde(with = "in_base64")]
    pub(crate) bytes: Vec<u8>,
    /// A subscriber's position behind them.
    pub(crate) reached: Option<Offset>,
}

/// What a subscriber gets, and how far it is.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MovedFeed {
    Single {
        stream: StreamNo,
        from: Offset,
        encoder: String,
        option: u64,
    },
    /// The stream of that name, when one is created.
    Awaited {
        name: Box<str>,
        group: u64,
        /// No stream had the name when the log had this record.
        at: u64,
        encoder: String,
        option: u64,
    },
    /// What is told of the members of a stream. It begins again with all of them.
    Members {
        stream: Box<str>,
        encoder: String,
        option: u64,
    },
    Merged {
        sources: Vec<MovedSource>,
        after: Vec<u64>,
        /// The log whose turn it is.
        log: usize,
        generations: Vec<MovedGeneration>,
        names: u32,
        encoder: String,
        label: Box<str>,
        ended: Vec<MovedAhead>,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MovedSource {
    pub(crate) kind: MovedSourceKind,
    pub(crate) from: Offset,
    pub(crate) place: u8,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MovedSourceKind {
    Stream(StreamNo),
    Pattern {
        names: String,
        viewer: Viewer,
        log: u8,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MovedGeneration {
    pub(crate) log: usize,
    pub(crate) born: u64,
    pub(crate) places: u128,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MovedAhead {
    pub(crate) log: usize,
    pub(crate) at: Offset,
    pub(crate) place: u8,
}

impl MovedConnection {
    /// Whether it is connected to the address for operators.
    pub(crate) fn is_operators(&self) -> bool {
        self.operator
    }

    /// The streams that it is subscribed to.
    pub fn streams(&self, each: &mut impl FnMut(StreamNo)) {
        match &self.doing {
            MovedTask::Idle => {}
            MovedTask::Subscribed { feed, .. } => feed.streams(each),
            MovedTask::Channel { feeds, .. } => {
                feeds.iter().for_each(|(_, feed)| feed.streams(each));
            }
        }
    }
}

impl MovedFeed {
    fn streams(&self, each: &mut impl FnMut(StreamNo)) {
        match self {
            MovedFeed::Single { stream, .. } => each(*stream),
            MovedFeed::Members { .. } | MovedFeed::Awaited { .. } => {}
            MovedFeed::Merged { sources, .. } => {
                for source in sources {
                    if let MovedSourceKind::Stream(stream) = source.kind {
                        each(stream);
                    }
                }
            }
        }
    }
}

/// A connection and its socket.
#[derive(Debug)]
pub struct Moving {
    /// The socket.
    pub socket: OwnedFd,
    /// What is to be known of it.
    pub connection: Box<MovedConnection>,
}

/// Has a shard finish its requests and give its connections away.
#[derive(Debug)]
pub(crate) struct MoveOut {
    /// When what is in work then is cut off.
    pub(crate) until: Instant,
    pub(crate) readiness: Arc<Readiness>,
    /// How many connections there were.
    pub(crate) connections: usize,
    /// Since when all shards have been ready.
    pub(crate) ready_since: Option<Instant>,
    /// The callers of all shards.
    pub(crate) callers: Arc<Mutex<CallersOut>>,
    pub(crate) to: mpsc::Sender<ShardMoved>,
}

/// Which of the shards that move have nothing in work. They go together, so that no commit finds some of them gone: what is not delivered
/// then, the other process has to read for each subscriber.
#[derive(Debug)]
pub(crate) struct Readiness(Box<[AtomicBool]>);

impl Readiness {
    pub(crate) fn new(shards: usize) -> Self {
        Readiness((0..shards).map(|_| AtomicBool::default()).collect())
    }

    /// Notes whether a shard is ready. Whether all are.
    pub(crate) fn note(&self, shard: u16, is_ready: bool) -> bool {
        if let Some(ready) = self.0.get(usize::from(shard)) {
            ready.store(is_ready, Ordering::SeqCst);
        }
        self.0.iter().all(|ready| ready.load(Ordering::SeqCst))
    }
}

/// What a shard gives away.
#[derive(Debug)]
pub(crate) struct ShardMoved {
    pub(crate) number: u16,
    pub(crate) listener: Option<OwnedFd>,
    pub(crate) operators: Option<OwnedFd>,
    pub(crate) connections: Vec<Moving>,
    /// Connections that can't move, and have ended.
    pub(crate) closed: usize,
    /// See [`MovedOut::pollers`].
    pub(crate) poller: Arc<OwnedFd>,
}

/// Which connections could move.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MoveCensus {
    /// Connections that would move.
    pub movable: usize,
    /// Connections that would be closed, by the reason.
    pub immovable: BTreeMap<&'static str, usize>,
}

impl MoveCensus {
    pub(crate) fn add(&mut self, other: &MoveCensus) {
        self.movable += other.movable;
        for (reason, count) in &other.immovable {
            *self.immovable.entry(reason).or_default() += count;
        }
    }
}

/// What a reactor gives away.
#[derive(Debug, Default)]
pub struct MovedOut {
    /// Where it listens.
    pub listeners: MovedListeners,
    /// Its connections.
    pub connections: Vec<Moving>,
    /// The authorities of their callers, by number.
    pub authorities: Vec<MovedAuthority>,
    /// Connections that could not move, and have ended, with those that their clients have ended meanwhile.
    pub closed: usize,
    /// The epoll instances of the shards. To close them takes time that clients would wait.
    pub pollers: Vec<Arc<OwnedFd>>,
}

/// Listeners of another process, in which connections wait.
#[derive(Debug, Default)]
pub struct MovedListeners {
    /// For clients: one for each shard.
    pub clients: Vec<OwnedFd>,
    /// For operators, if they have an address of their own.
    pub operators: Option<OwnedFd>,
}

impl MovedListeners {
    /// Copies of the descriptors, those for clients and the one for operators.
    pub(crate) fn copies(&self) -> std::io::Result<(Vec<OwnedFd>, Option<OwnedFd>)> {
        let clients = self.clients.iter().map(OwnedFd::try_clone);
        let operators = self.operators.as_ref().map(OwnedFd::try_clone);
        Ok((clients.collect::<Result<_, _>>()?, operators.transpose()?))
    }
}

/// The connections that a shard begins with.
#[derive(Debug)]
pub(crate) struct ShardArrivals {
    pub(crate) connections: Vec<Moving>,
    /// The callers and the streams of the connections of all shards.
    pub(crate) together: Arc<(CallersIn, HashMap<StreamNo, Arc<Stream>>)>,
    pub(crate) gate: StartGate,
    /// Is told when they are taken over, and how many were lost.
    pub(crate) arrived: mpsc::Sender<usize>,
}

/// Connections that a reactor begins with.
#[derive(Debug)]
pub struct Arrivals {
    /// The connections. They are spread over the shards.
    pub connections: Vec<Moving>,
    /// Their callers.
    pub callers: CallersIn,
    /// Their streams, by number. A subscriber of another stream is closed.
    pub streams: HashMap<StreamNo, Arc<Stream>>,
    /// Opens when they are to be served.
    pub gate: StartGate,
}

/// What shards wait for before they serve connections that have moved in.
#[derive(Clone, Debug, Default)]
pub struct StartGate(Arc<(Mutex<Option<bool>>, Condvar)>);

impl StartGate {
    /// Serves the connections.
    pub fn open(&self) {
        self.decide(true);
    }

    /// Lets go of the connections without a word: they are another process's.
    pub fn give_up(&self) {
        self.decide(false);
    }

    /// Waits until it is decided whether connections are to be served.
    pub(crate) fn wait(&self) -> bool {
        let (decided, changed) = &*self.0;
        let mut decided = decided.lock();
        loop {
            match *decided {
                Some(opens) => return opens,
                None => changed.wait(&mut decided),
            }
        }
    }

    fn decide(&self, opens: bool) {
        let (decided, changed) = &*self.0;
        decided.lock().get_or_insert(opens);
        changed.notify_all();
    }
}

/// Bytes as text.
pub(crate) mod in_base64 {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD_NO_PAD;
    use serde::{Deserialize, Deserializer, Serializer, de};
    use zeroize::Zeroizing;

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        // It may be a key.
        let text = Zeroizing::new(STANDARD_NO_PAD.encode(bytes));
        serializer.serialize_str(&text)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<u8>, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        STANDARD_NO_PAD.decode(&*text).map_err(de::Error::custom)
    }
}
