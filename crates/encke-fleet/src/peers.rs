//! What other nodes have applied of the order of one log, as they announce it.
//!
//! The brokers had stored each position that a node has applied. So an order that ends before such a position, or has another message
//! there, has lost a part, even if this node had not applied that part. An announcement stays true for the same order, so late and repeated
//! ones do no harm. Announcements about another order of the log do not count, such as the order before a repair.

use std::collections::BTreeMap;

use encke_stream::{NODES_MAX, Tip};
use serde::{Deserialize, Serialize};

/// What a node has applied, as it announces it to the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeTips {
    /// The name of the node.
    pub(crate) node: String,
    /// By the logs' indices.
    pub(crate) logs: Vec<OrderTip>,
}

/// What a node has applied of the order of one log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OrderTip {
    /// When the order was created, in nanoseconds since 1970.
    created_ns: i64,
    position: u64,
    hash: String,
    message: u64,
}

impl OrderTip {
    /// A tip in the order that was created at this time.
    pub(crate) fn new(created_ns: i64, tip: Tip) -> OrderTip {
        OrderTip {
            created_ns,
            position: tip.position,
            hash: format!("{:032x}", tip.hash),
            message: tip.message,
        }
    }

    /// The tip, if it is one in the order that was created at this time.
    pub(crate) fn in_order(&self, created_ns: i64) -> Option<Tip> {
        let hash = u128::from_str_radix(&self.hash, 16).ok()?;
        (self.created_ns == created_ns).then_some(Tip {
            position: self.position,
            hash,
            message: self.message,
        })
    }
}

/// The furthest tips of the other nodes in the order of one log.
#[derive(Debug, Default)]
pub(crate) struct PeerTips(BTreeMap<String, KnownTip>);

#[derive(Debug)]
struct KnownTip {
    tip: Tip,
    /// The order has the same message there.
    is_compared: bool,
}

/// A tip of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerTip {
    /// The name of the node.
    pub(crate) node: String,
    /// What it has applied.
    pub(crate) tip: Tip,
}

impl PeerTip {
    fn of((node, known): (&String, &KnownTip)) -> PeerTip {
        PeerTip {
            node: node.clone(),
            tip: known.tip,
        }
    }
}

impl PeerTips {
    /// Records an announcement. A fleet has no more nodes than are recorded here.
    pub(crate) fn record(&mut self, node: &str, tip: Tip) {
        let known = self.0.get(node);
        // A node that was started again begins at its last mark, and an announcement may be late.
        let is_new = known.is_none_or(|known| known.tip.position < tip.position);
        if is_new && (known.is_some() || self.0.len() < NODES_MAX) {
            let known = KnownTip {
                tip,
                is_compared: false,
            };
            self.0.insert(node.to_owned(), known);
        }
    }

    /// The tip with the highest position.
    pub(crate) fn furthest(&self) -> Option<PeerTip> {
        let furthest = self.0.iter().max_by_key(|(_, known)| known.tip.position);
        furthest.map(PeerTip::of)
    }

    /// The tips up to this position that are not compared yet.
    pub(crate) fn uncompared(&self, position: u64) -> Vec<PeerTip> {
        let tips = self.0.iter();
        let tips = tips.filter(|(_, known)| !known.is_compared && known.tip.position <= position);
        tips.map(PeerTip::of).collect()
    }

    /// Notes that the order has the same message as this node has applied.
    pub(crate) fn mark_compared(&mut self, peer: &PeerTip) {
        if let Some(known) = self.0.get_mut(&peer.node)
            && known.tip == peer.tip
        {
            known.is_compared = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tip(position: u64, hash: u128) -> Tip {
        Tip {
            position,
            hash,
            message: hash as u64,
        }
    }

    #[test]
    fn only_announcements_about_the_same_order_count() {
        let announced = OrderTip::new(7, tip(10, 0xabc));
        let text = serde_json::to_string(&announced).unwrap();
        let announced: OrderTip = serde_json::from_str(&text).unwrap();
        assert_eq!(announced.in_order(7), Some(tip(10, 0xabc)));
        assert_eq!(announced.in_order(8), None);
    }

    #[test]
    fn late_announcements_and_those_of_a_node_that_was_restarted_change_nothing() {
        let mut peers = PeerTips::default();
        assert_eq!(peers.furthest(), None);
        peers.record("b", tip(10, 1));
        peers.record("c", tip(9, 2));
        peers.record("b", tip(4, 3));
        let furthest = peers.furthest().unwrap();
        assert_eq!((&*furthest.node, furthest.tip), ("b", tip(10, 1)));
    }

    #[test]
    fn each_tip_is_compared_once_and_not_before_this_node_is_there() {
        let mut peers = PeerTips::default();
        peers.record("b", tip(10, 1));
        peers.record("c", tip(12, 2));
        assert!(peers.uncompared(9).is_empty());
        let [b] = &peers.uncompared(11)[..] else {
            panic!("one node is there");
        };
        assert_eq!(b.node, "b");
        peers.mark_compared(b);
        assert!(peers.uncompared(11).is_empty());
        // The same again needs nothing, and a further one does.
        peers.record("b", tip(10, 1));
        assert!(peers.uncompared(11).is_empty());
        peers.record("b", tip(11, 3));
        let nodes = peers.uncompared(12).into_iter().map(|peer| peer.node);
        assert_eq!(nodes.collect::<Vec<_>>(), ["b", "c"]);
        // What was compared meanwhile is no longer its last announcement.
        peers.mark_compared(b);
        assert_eq!(peers.uncompared(11).len(), 1);
    }

    #[test]
    fn the_names_of_nodes_are_bounded() {
        let mut peers = PeerTips::default();
        for node in 0..=NODES_MAX as u64 {
            peers.record(&node.to_string(), tip(node + 1, 1));
        }
        assert_eq!(peers.0.len(), NODES_MAX);
    }
}
