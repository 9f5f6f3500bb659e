//! How far a node is in the order of one log, for health checks and metrics.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::chain::{Chain, Tip};

/// How far a node is in the replicated order of one log. All threads share it.
#[derive(Debug)]
pub struct OrderStatus {
    applied: Mutex<Tip>,
    /// The tip of the last mark, where this node continues when it is started again.
    marked: Mutex<Tip>,
    /// The nodes that have taken part.
    nodes: Mutex<BTreeSet<Box<str>>>,
    /// The nodes that this one is to let leave.
    leaving: Mutex<Vec<Box<str>>>,
    /// The last applied batches, newest last: what they had is compared with other nodes.
    recent: Mutex<VecDeque<Tip>>,
    received: AtomicU64,
    /// The position of the last batch that the sequencer got.
    sent: AtomicU64,
    batches: AtomicU64,
    /// The server stops, and this node sends nothing more.
    closing: AtomicBool,
    /// Nothing more is applied, written or acknowledged.
    halted: AtomicBool,
    /// Why the node has stopped to follow.
    stopped: Mutex<Option<Arc<str>>>,
    /// Why the node cannot write at the moment.
    stalled: Mutex<Option<Arc<str>>>,
}

impl OrderStatus {
    pub(super) fn new(chain: &Chain) -> Self {
        let tip = chain.tip;
        OrderStatus {
            applied: Mutex::new(tip),
            marked: Mutex::new(chain.marked_tip()),
            leaving: Mutex::default(),
            nodes: Mutex::new(chain.nodes.keys().cloned().collect()),
            recent: Mutex::new(VecDeque::from([tip])),
            received: AtomicU64::new(tip.position),
            sent: AtomicU64::new(tip.position),
            batches: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            halted: AtomicBool::new(false),
            stopped: Mutex::default(),
            stalled: Mutex::default(),
        }
    }

    /// The last applied position, and the hash of everything up to it.
    pub fn applied(&self) -> Tip {
        *self.applied.lock()
    }

    /// The last mark: this node continues there when it is started again. No batch behind it has records.
    pub fn marked(&self) -> Tip {
        *self.marked.lock()
    }

    /// The names of the nodes that have taken part.
    pub fn nodes(&self) -> Vec<String> {
        let nodes = self.nodes.lock();
        nodes.iter().map(|node| node.to_string()).collect()
    }

    /// A batch of this node has arrived.
    pub(super) fn add_node(&self, node: &str) {
        let mut nodes = self.nodes.lock();
        if !nodes.contains(node) {
            nodes.insert(node.into());
        }
    }

    /// These nodes have left.
    pub(super) fn forget(&self, left: &[Box<str>]) {
        if !left.is_empty() {
            self.nodes.lock().retain(|node| !left.contains(node));
        }
    }

    /// Lets a node leave that does not return: all nodes forget its name. A node that still sends batches must not leave,
    /// because one that is stored twice would be applied twice.
    pub fn let_leave(&self, node: &str) {
        let mut leaving = self.leaving.lock();
        if leaving.len() < LEAVING_MAX && !leaving.iter().any(|other| **other == *node) {
            leaving.push(node.into());
        }
    }

    pub(super) fn take_leaving(&self) -> Vec<Box<str>> {
        std::mem::take(&mut self.leaving.lock())
    }

    /// The last mark is durable.
    pub(super) fn mark(&self, tip: Tip) {
        *self.marked.lock() = tip;
    }

    /// The last position that has arrived from the shared log.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// The last position of which nothing is left to apply: the last applied batch, or the last message of all if that made no
    /// batch.
    pub fn settled(&self) -> u64 {
        // In this order: a batch that is among the received messages is among those that were sent, too.
        let received = self.received.load(Ordering::Acquire);
        let sent = self.sent.load(Ordering::Acquire);
        let applied = self.applied().position;
        match applied >= sent {
            true => received.max(applied),
            false => applied,
        }
    }

    /// The number of batches that were applied since the start.
    pub fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    /// Why this node follows the order no longer, or cannot at the moment.
    pub fn trouble(&self) -> Option<Arc<str>> {
        let stopped = self.stopped.lock().clone();
        stopped.or_else(|| self.stalled.lock().clone())
    }

    /// Whether this node follows the order no longer, until it is started again.
    pub fn has_stopped(&self) -> bool {
        self.stopped.lock().is_some()
    }

    /// A message has arrived. `batch`: a batch is complete with it.
    pub(super) fn receive(&self, position: u64, batch: bool) {
        if batch {
            self.sent.fetch_max(position, Ordering::Release);
        }
        self.received.fetch_max(position, Ordering::Release);
    }

    /// The tip at the position of one of the last batches.
    pub fn tip_at(&self, position: u64) -> Option<Tip> {
        let recent = self.recent.lock();
        let found = recent.binary_search_by_key(&position, |tip| tip.position);
        found.ok().map(|index| recent[index])
    }

    /// These batches are applied, in this order.
    pub(super) fn apply(&self, tips: &[Tip]) {
        let Some(last) = tips.last() else { return };
        let mut recent = self.recent.lock();
        recent.extend(tips);
        let over = recent.len().saturating_sub(RECENT_MAX);
        recent.drain(..over);
        drop(recent);
        *self.applied.lock() = *last;
        self.batches.fetch_add(tips.len() as u64, Ordering::Relaxed);
    }

    /// The node follows no longer. The first reason stays.
    pub fn stop(&self, reason: Arc<str>) {
        self.stopped.lock().get_or_insert(reason);
    }

    /// The sequencer has stopped: what it has now stays.
    pub(super) fn halt(&self) {
        self.halted.store(true, Ordering::Release);
    }

    /// Whether this node applies nothing more, until it is started again. It may still apply something between
    /// [`OrderStatus::has_stopped`] and this.
    pub fn has_halted(&self) -> bool {
        self.halted.load(Ordering::Acquire)
    }

    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    pub(super) fn stall(&self, reason: Option<Arc<str>>) {
        *self.stalled.lock() = reason;
    }
}

/// How many batches a node can compare with others.
const RECENT_MAX: usize = 4_096;

/// The most nodes that wait to leave.
const LEAVING_MAX: usize = 16;
