//! The chain: how far a node has followed the replicated order, and the hash of everything up to there.

use std::collections::BTreeMap;
use std::time::Duration;

use encke_clock::WallTime;
use encke_log::{AppendError, Disk, Frame, Log};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::stream::record::BadRecord;

/// How far a node has followed the replicated order of one log.
///
/// It is stored with each applied batch (a mark) and with each checkpoint, so that a restart continues there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chain {
    /// The last applied position of the order. The first message has position 1.
    pub tip: Tip,
    /// A restart reads the messages after this position again. It is before `tip` while a batch has arrived in part.
    pub resume: u64,
    /// The time of the last batch. It never decreases.
    pub time: WallTime,
    /// The time of the last batch with a mark.
    pub marked_at: WallTime,
    /// Applied batches since then. They have no records.
    pub unmarked: u32,
    /// The last applied batch of each node.
    pub nodes: BTreeMap<Box<str>, Applied>,
    /// The same for the nodes whose batches were applied since the last mark. The next mark names them.
    pub noted: BTreeMap<Box<str>, Applied>,
    /// The node that dispatches the jobs of all pools.
    pub dispatcher: Option<DispatcherTerm>,
    /// It has changed since the last mark.
    pub dispatcher_is_new: bool,
    /// What the chain was at the last mark.
    #[serde(skip)]
    pub(super) marked: ChangesSinceMark,
    /// Where the marks that a restart has followed name each node last.
    #[serde(skip)]
    pub(super) named: BTreeMap<Box<str>, u64>,
}

/// The node that dispatches the jobs of all pools, until another term begins.
///
/// All nodes agree on it at each position of the order, so a node that has lost its term without knowing it can change no
/// journal of a pool any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DispatcherTerm {
    /// The node.
    pub node: Box<str>,
    /// The number of the term, from 1. Terms only increase.
    pub term: u64,
}

/// How the chain at the last mark differs from the chain. It is not stored, because what is stored is the chain at a mark.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ChangesSinceMark {
    pub(super) tip: Tip,
    resume: u64,
    /// What the nodes in [`Chain::noted`] had.
    nodes: BTreeMap<Box<str>, Option<Applied>>,
}

/// A position of the order, and the hash of all messages up to it. Nodes with equal tips have applied the same messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tip {
    /// The position.
    pub position: u64,
    /// XXH3 with 128 bits over the hash before it and the message.
    pub hash: u128,
    /// The hash of the message at this position ([`message_hash`]), so that another history of the same length is found at a
    /// start.
    pub message: u64,
}

/// The last applied batch of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Applied {
    /// The run of the node: it increases with each start.
    pub run: u64,
    /// The number of the batch in its run.
    pub number: u64,
}

impl Applied {
    /// In a mark: the node has left.
    pub(super) const LEFT: Applied = Applied {
        run: u64::MAX,
        number: u64::MAX,
    };
}

/// Which batch a message belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchId {
    /// The node that sent it.
    pub node: Box<str>,
    /// Its run and its number there.
    pub at: Applied,
}

/// The payload of the frame that ends the records of a batch. A frame of the log without streams holds it; the frame's
/// time is that of the batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BatchMark {
    pub(crate) tip: Tip,
    pub(crate) resume: u64,
    /// The last applied batches of the nodes since the mark before this one.
    pub(crate) nodes: Vec<(Box<str>, Applied)>,
    pub(crate) dispatcher: Option<DispatcherTerm>,
}

/// The kind of a frame that holds the mark of a batch.
pub const KIND_MARK: u8 = 2;

impl Tip {
    /// The tip with the next message.
    #[must_use]
    pub fn with(self, message: &[u8]) -> Tip {
        let mut hasher = Xxh3::new();
        hasher.update(&self.hash.to_le_bytes());
        hasher.update(message);
        Tip {
            position: self.position + 1,
            hash: hasher.digest128(),
            message: message_hash(message),
        }
    }
}

/// XXH3 with 64 bits over a message.
pub fn message_hash(message: &[u8]) -> u64 {
    xxh3_64(message)
}

impl std::fmt::Display for Tip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{:032x}", self.position, self.hash)
    }
}

impl Chain {
    /// Whether a batch of this node has been applied already, or is older than one that has been.
    pub fn has(&self, batch: &BatchId) -> bool {
        let known = self.nodes.get(&batch.node);
        known.is_some_and(|known| batch.at <= *known)
    }

    /// Notes an applied batch.
    pub(crate) fn note(&mut self, batch: &BatchId) {
        self.nodes.insert(batch.node.clone(), batch.at);
    }

    /// Forgets nodes that do not return. A node that takes part again begins anew.
    pub(crate) fn leave(&mut self, nodes: &[Box<str>]) {
        for node in nodes {
            if let Some(before) = self.nodes.remove(node) {
                let marked = &mut self.marked.nodes;
                marked.entry(node.clone()).or_insert(Some(before));
                self.noted.insert(node.clone(), Applied::LEFT);
            }
        }
    }

    /// Continues the chain of a checkpoint with the marks after it.
    pub(crate) fn adopt(&mut self, newer: Chain) {
        let upto = self.tip.position;
        self.tip = newer.tip;
        self.resume = newer.resume;
        self.time = self.time.max(newer.time);
        self.marked_at = newer.marked_at;
        self.unmarked = newer.unmarked;
        self.noted = newer.noted;
        self.dispatcher = newer.dispatcher.or(self.dispatcher.take());
        self.dispatcher_is_new = newer.dispatcher_is_new;
        self.marked = newer.marked;
        for (node, applied) in newer.nodes {
            // The checkpoint is newer than what earlier marks say.
            if newer.named.get(&node).is_none_or(|at| *at <= upto) {
                continue;
            }
            if applied == Applied::LEFT {
                self.nodes.remove(&node);
            } else {
                self.nodes.insert(node, applied);
            }
        }
    }

    /// Continues the chain with an applied batch.
    pub(crate) fn apply(&mut self, tip: Tip, resume: u64, time: WallTime, batch: &BatchId) {
        self.tip = tip;
        self.resume = resume;
        self.time = self.time.max(time);
        self.unmarked += 1;
        let before = self.nodes.get(&batch.node).copied();
        let marked = &mut self.marked.nodes;
        marked.entry(batch.node.clone()).or_insert(before);
        self.note(batch);
        self.noted.insert(batch.node.clone(), batch.at);
    }

    /// Continues the chain with a mark that a restart finds. Marks up to its tip are included already.
    pub(crate) fn follow(&mut self, mark: BatchMark, time: WallTime) {
        if mark.tip.position > self.tip.position {
            self.tip = mark.tip;
            self.resume = mark.resume;
            self.time = self.time.max(time);
            for (node, applied) in mark.nodes {
                self.named.insert(node.clone(), mark.tip.position);
                self.nodes.insert(node, applied);
            }
            self.dispatcher = mark.dispatcher;
        }
        self.end_mark();
    }
}

impl Chain {
    /// Whether the batch that was just followed gets a mark although it has no records: a restart must not need messages that
    /// the shared log has removed meanwhile. All nodes decide alike, because a mark takes a sequence.
    pub(crate) fn is_mark_due(&self) -> bool {
        self.dispatcher_is_new
            || self.unmarked >= UNMARKED_MAX
            || self.time.since(self.marked_at) >= MARK_EVERY
    }

    /// The mark of the batch that was just applied.
    pub(crate) fn mark(&mut self) -> BatchMark {
        let nodes = std::mem::take(&mut self.noted).into_iter().collect();
        self.end_mark();
        BatchMark {
            tip: self.tip,
            resume: self.resume,
            nodes,
            dispatcher: self.dispatcher.clone(),
        }
    }

    /// Begins a term of a dispatcher, if it is later than the known one.
    pub(crate) fn begin_term(&mut self, next: DispatcherTerm) -> bool {
        let known = self.dispatcher.as_ref().map_or(0, |known| known.term);
        let is_later = next.term > known;
        if is_later {
            self.dispatcher = Some(next);
            self.dispatcher_is_new = true;
        }
        is_later
    }

    /// Whether a node may change this stream: only the dispatcher changes the journals.
    pub(crate) fn may_change(&self, node: &str, stream: &str) -> bool {
        let is_dispatcher = || {
            self.dispatcher
                .as_ref()
                .is_some_and(|now| &*now.node == node)
        };
        let is_journal = JOURNAL_PREFIXES
            .iter()
            .any(|prefix| stream.starts_with(prefix));
        !is_journal || is_dispatcher()
    }

    fn end_mark(&mut self) {
        self.unmarked = 0;
        self.marked_at = self.time;
        self.noted.clear();
        self.dispatcher_is_new = false;
        self.marked = ChangesSinceMark {
            tip: self.tip,
            resume: self.resume,
            nodes: BTreeMap::new(),
        };
    }

    /// The chain at the last mark, which is what a restart continues with: all nodes restart at marks, and all have the same
    /// marks. Later batches have no records, so the streams are the same.
    pub(crate) fn at_mark(&self) -> Chain {
        let mut chain = self.clone();
        chain.tip = self.marked.tip;
        chain.resume = self.marked.resume;
        chain.time = self.marked_at;
        for (node, before) in std::mem::take(&mut chain.marked.nodes) {
            match before {
                Some(before) => chain.nodes.insert(node, before),
                None => chain.nodes.remove(&node),
            };
        }
        chain.unmarked = 0;
        chain.noted.clear();
        chain
    }

    /// A chain that was stored by [`Chain::at_mark`].
    pub(crate) fn restored(mut self) -> Chain {
        self.marked.tip = self.tip;
        self.marked.resume = self.resume;
        self
    }

    /// The tip of the last mark.
    pub(crate) fn marked_tip(&self) -> Tip {
        self.marked.tip
    }
}

/// After this many batches without records the next mark is due.
const UNMARKED_MAX: u32 = if cfg!(test) { 3 } else { 1_000 };

/// With a batch this long after the last mark, a mark is due, in milliseconds.
pub(super) const MARK_EVERY: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 60 });

impl BatchMark {
    /// The mark before the first batch.
    pub(crate) fn first() -> BatchMark {
        BatchMark {
            tip: Tip::default(),
            resume: 0,
            nodes: Vec::new(),
            dispatcher: None,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("growing a vector is the only thing that writes here")
    }

    pub(crate) fn decode(payload: &[u8]) -> Result<BatchMark, BadRecord> {
        match postcard::take_from_bytes(payload) {
            Ok((mark, [])) => Ok(mark),
            _ => Err(BadRecord),
        }
    }
}

/// Adds a mark to the log's batch in memory.
pub(crate) fn append_mark<D: Disk>(
    log: &mut Log<D>,
    mark: &BatchMark,
    time: WallTime,
) -> Result<(), AppendError> {
    let payload = mark.encode();
    let frame = Frame {
        kind: KIND_MARK,
        time,
        streams: &[],
        payload: &[&payload],
    };
    log.append(&frame).map(drop)
}

/// The names of the streams that hold the journals of the pools and of the subscriptions begin with these. No client can use such a name.
pub const JOURNAL_PREFIXES: [&str; 2] = ["\u{1}pool", "\u{1}subscriptions"];

/// The most nodes that a fleet knows, gone ones included until they leave: the chain remembers a few bytes of each.
pub const NODES_MAX: usize = 1_000;
