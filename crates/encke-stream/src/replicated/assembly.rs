//! From messages to batches: continues the chain, joins parts, and leaves out what was applied before.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use encke_clock::WallTime;

use super::chain::{BatchId, Chain, NODES_MAX, Tip};
use super::message::{self, BadMessage, Message, TipCheck};
use crate::{Command, FleetCommand};

/// A batch that every node applies next.
#[derive(Debug)]
pub(crate) struct FollowedBatch {
    pub(crate) tip: Tip,
    pub(crate) resume: u64,
    pub(crate) time: WallTime,
    pub(crate) batch: BatchId,
    pub(crate) commands: Vec<Command>,
    /// The nodes that leave with it.
    pub(crate) left: Vec<Box<str>>,
}

/// The order cannot be followed any further. Every node decides alike, so that none continues with other content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FollowError {
    /// Messages are missing.
    #[error("the order lacks the messages from {expected} to {last}", last = found - 1)]
    Gap {
        /// The next position of this node.
        expected: u64,
        /// The position that arrived.
        found: u64,
    },
    /// A message that this version cannot read.
    #[error("message {position} of the order cannot be read: {source}")]
    Message {
        /// Its position.
        position: u64,
        /// The cause.
        source: BadMessage,
    },
    /// A node has sent a batch, and has applied other messages than this one.
    #[error(
        "node {node} has applied other messages up to position {position} than this one: the brokers have lost messages, and \
         others have their positions"
    )]
    OtherHistory {
        /// The node.
        node: Box<str>,
        /// A position at which the hashes differ.
        position: u64,
    },
    /// A node has sent its first batch to a fleet that knows as many nodes as it may. All nodes leave its batches out, and
    /// only this one cannot take part.
    #[error(
        "the fleet knows {NODES_MAX} nodes already, and node {node} is another one: free the name of a node that does not return with \
         `encke fleet leave`"
    )]
    TooManyNodes {
        /// The name of the node.
        node: Box<str>,
    },
}

/// Joins the messages of the order into batches. Contains no clock and no I/O.
#[derive(Debug)]
pub(super) struct Assembly {
    chain: Chain,
    /// The last message that was taken. Before the chain's tip right after a restart.
    position: u64,
    /// Batches of which some parts have arrived, one for each node.
    open: BTreeMap<Box<str>, OpenBatch>,
    /// The last tips, one for each position.
    recent: VecDeque<TipCheck>,
}

#[derive(Debug)]
struct OpenBatch {
    /// The position of its first part.
    begun: u64,
    begun_at: WallTime,
    batch: BatchId,
    /// The number of parts that have arrived.
    parts: u32,
    content: Vec<u8>,
}

impl Assembly {
    /// Continues after what `chain` includes. The next message is the one after [`Chain::resume`].
    pub(super) fn new(chain: Chain) -> Self {
        Assembly {
            position: chain.resume,
            chain,
            open: BTreeMap::new(),
            recent: VecDeque::new(),
        }
    }

    pub(super) fn tip(&self) -> Tip {
        self.chain.tip
    }

    /// The last message that was taken.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Continues behind the chain's tip, without the parts of batches that have arrived before.
    pub(super) fn begin_behind_tip(&mut self) {
        self.position = self.chain.tip.position;
        self.open.clear();
    }

    /// Takes the message at a position, with its time. Returns the batch that is complete
    /// with it. A message that was taken before is ignored.
    pub(super) fn take(
        &mut self,
        position: u64,
        time: WallTime,
        bytes: &[u8],
    ) -> Result<Option<FollowedBatch>, FollowError> {
        if position <= self.position {
            return Ok(None);
        }
        let expected = self.position + 1;
        if position != expected {
            return Err(FollowError::Gap {
                expected,
                found: position,
            });
        }
        let bad = |source| FollowError::Message { position, source };
        let message = Message::decode(bytes).map_err(bad)?;
        if let Message::BatchPart(header, _) = &message
            && !self.agrees(header.applied)
        {
            return Err(FollowError::OtherHistory {
                node: header.batch.node.clone(),
                position: header.applied.position,
            });
        }
        self.position = position;
        // A message up to the chain's tip is read again for its part only: all batches that end there are applied.
        let again = position <= self.chain.tip.position;
        if !again {
            self.chain.tip = self.chain.tip.with(bytes);
            self.chain.time = self.chain.time.max(time);
            if self.recent.len() >= RECENT_MAX {
                self.recent.pop_front();
            }
            self.recent.push_back(self.chain.tip.into());
        }
        self.open.retain(|_, open| {
            position - open.begun < OPEN_MESSAGES_MAX && time.since(open.begun_at) < OPEN_MAX
        });
        let batch = match message {
            Message::Foreign => None,
            Message::BatchPart(header, content) => {
                let whole = self.join(&header, content, time);
                whole.map(|content| (header.batch, content))
            }
        };
        let Some((batch, content)) = batch.filter(|(batch, _)| !again && !self.chain.has(batch))
        else {
            return Ok(None);
        };
        let commands = message::commands(&content).map_err(bad)?;
        let known = self.chain.nodes.contains_key(&batch.node);
        if !known && self.chain.nodes.len() >= NODES_MAX {
            return Err(FollowError::TooManyNodes { node: batch.node });
        }
        self.chain.note(&batch);
        let left = leaving(&commands);
        for node in &left {
            self.chain.nodes.remove(node);
        }
        let begun = self.open.values().map(|open| open.begun - 1).min();
        Ok(Some(FollowedBatch {
            tip: self.chain.tip,
            resume: begun.unwrap_or(position),
            time: self.chain.time,
            batch,
            commands,
            left,
        }))
    }

    /// Whether this node has applied the same, as far as it knows.
    fn agrees(&self, other: TipCheck) -> bool {
        let first = self.recent.front().map_or(u64::MAX, |seen| seen.position);
        let index = other.position.checked_sub(first);
        let own = index.and_then(|index| self.recent.get(index as usize));
        own.is_none_or(|own| *own == other)
    }

    /// Adds a part. Returns the content of the batch if it is complete.
    ///
    /// A node sends one batch after the other, but one that it has given up may be stored after parts of a later one, and a
    /// part twice.
    fn join(
        &mut self,
        header: &message::Header,
        content: &[u8],
        time: WallTime,
    ) -> Option<Vec<u8>> {
        let node = &header.batch.node;
        if header.part == 0 {
            let open = self.open.get(node).map(|open| open.batch.at);
            let is_newest = open.is_none_or(|open| open < header.batch.at);
            if is_newest {
                // The node has given the one before up.
                self.open.remove(node);
            }
            if header.parts == 1 {
                return Some(content.to_vec());
            }
            if is_newest && !self.chain.has(&header.batch) {
                let open = OpenBatch {
                    begun: self.position,
                    begun_at: time,
                    batch: header.batch.clone(),
                    parts: 1,
                    content: content.to_vec(),
                };
                self.open.insert(node.clone(), open);
            }
            return None;
        }
        let open = self.open.get_mut(node)?;
        if open.batch != header.batch || open.parts > header.part {
            // A repeated part changes nothing.
            return None;
        }
        if open.parts < header.part || open.content.len() + content.len() > BATCH_BYTES_MAX {
            self.open.remove(node);
            return None;
        }
        open.content.extend_from_slice(content);
        open.parts += 1;
        (open.parts == header.parts)
            .then(|| self.open.remove(node))
            .flatten()
            .map(|open| open.content)
    }
}

/// The nodes that leave with these commands.
fn leaving(commands: &[Command]) -> Vec<Box<str>> {
    let left = commands.iter().filter_map(|command| match command {
        Command::Fleet(FleetCommand::Leave { node }) => Some(node.clone()),
        _ => None,
    });
    left.collect()
}

/// The tips that are compared with those of other nodes.
const RECENT_MAX: usize = 4_096;

/// A batch whose parts are spread over more messages than this is dropped, so that a node that dies in the middle of a
/// batch does not hold back [`Chain::resume`].
const OPEN_MESSAGES_MAX: u64 = 10_000;

/// So is one that is not complete after this long.
const OPEN_MAX: Duration = Duration::from_secs(300);

/// The largest batch. A body is smaller: the bound on it is checked before.
const BATCH_BYTES_MAX: usize = 1 << 30;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::chain::Applied;
    use super::*;
    use crate::{AckLevel, Target};

    fn batch(node: &str, number: u64) -> BatchId {
        BatchId {
            node: node.into(),
            at: Applied { run: 1, number },
        }
    }

    /// The messages of a batch with a command whose name has that many bytes.
    fn messages(node: &str, number: u64, bytes: usize) -> Vec<Vec<u8>> {
        let mut content = message::Content::default();
        content.push(&Command::Delete {
            target: Target::Named("x".repeat(bytes).into()),
            ack: Some(AckLevel::Synced),
        });
        message::encode(&batch(node, number), Tip::default(), &content.finish(), 740)
    }

    /// Takes all messages after the assembly's position. Returns the batches that complete.
    fn follow(assembly: &mut Assembly, order: &[Vec<u8>]) -> Vec<(BatchId, Tip, u64)> {
        let mut followed = Vec::new();
        for (position, message) in (1..).zip(order).skip(assembly.position() as usize) {
            if let Some(next) = assembly
                .take(position, WallTime::from_ms(position), message)
                .unwrap()
            {
                followed.push((next.batch, next.tip, next.resume));
            }
        }
        followed
    }

    #[test]
    fn parts_of_several_nodes_become_visible_with_the_last() {
        let (mut a, mut b) = (messages("a", 1, 350), messages("b", 1, 150));
        assert_eq!((a.len(), b.len()), (4, 2));
        let order = [
            a.remove(0),
            b.remove(0),
            a.remove(0),
            a.remove(0),
            b.remove(0),
            a.remove(0),
        ];
        let mut assembly = Assembly::new(Chain::default());
        let followed = follow(&mut assembly, &order);
        let ids: Vec<_> = followed
            .iter()
            .map(|(id, tip, resume)| (&*id.node, tip.position, *resume))
            .collect();
        // While a's batch is open, a restart begins before its first part.
        assert_eq!(ids, [("b", 5, 0), ("a", 6, 6)]);
    }

    #[test]
    fn what_was_applied_or_came_twice_is_left_out() {
        let one = messages("a", 1, 10).remove(0);
        let two = messages("a", 2, 10).remove(0);
        let order = [
            one.clone(),
            two.clone(),
            one,
            two,
            b"hello".to_vec(),
            messages("a", 3, 10).remove(0),
        ];
        let mut assembly = Assembly::new(Chain::default());
        let numbers: Vec<_> = follow(&mut assembly, &order)
            .iter()
            .map(|(id, ..)| id.at.number)
            .collect();
        assert_eq!(numbers, [1, 2, 3]);
        assert_eq!(
            assembly.tip().position,
            6,
            "the chain includes every message"
        );
        assert!(
            assembly
                .take(6, WallTime::from_ms(0), &order[5])
                .unwrap()
                .is_none(),
            "delivered twice"
        );
        let gap = FollowError::Gap {
            expected: 7,
            found: 9,
        };
        assert_eq!(
            assembly
                .take(9, WallTime::from_ms(0), &order[0])
                .unwrap_err(),
            gap
        );
    }

    #[test]
    fn a_batch_that_was_given_up_and_comes_late_does_not_end_the_next_one() {
        let mut order = messages("a", 2, 350);
        let last = order.pop().unwrap();
        let again = order[0].clone();
        order.extend(messages("a", 1, 10));
        order.extend([again, messages("a", 1, 350).remove(0), last]);
        let followed = follow(&mut Assembly::new(Chain::default()), &order);
        let numbers = followed.iter().map(|(id, ..)| id.at.number);
        assert_eq!(numbers.collect::<Vec<_>>(), [1, 2]);
        // A later one ends it: the node has given it up.
        let mut order = vec![messages("a", 1, 350).remove(0)];
        order.extend(messages("a", 2, 350));
        order.extend(messages("a", 1, 350).split_off(1));
        let followed = follow(&mut Assembly::new(Chain::default()), &order);
        let numbers = followed.iter().map(|(id, ..)| id.at.number);
        assert_eq!(numbers.collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn a_node_with_another_history_is_noticed_by_its_first_message() {
        let sent_by = |applied: Tip, number| {
            message::encode(&batch("b", number), applied, &[0], 740).remove(0)
        };
        let first = messages("a", 1, 10).remove(0);
        let same = Tip::default().with(&first);
        let mut assembly = Assembly::new(Chain::default());
        follow(&mut assembly, &[first, sent_by(same, 1)]);
        // The brokers have lost a message, and another one has its position.
        let other = Tip::default().with(&messages("a", 1, 11).remove(0));
        let error = assembly
            .take(3, WallTime::from_ms(0), &sent_by(other, 2))
            .unwrap_err();
        let expected = FollowError::OtherHistory {
            node: "b".into(),
            position: 1,
        };
        assert_eq!(error, expected);
        // Positions that this node does not remember cannot be compared: those before its start, or long ago.
        let mut chain = Chain::default();
        chain.tip.position = 2;
        chain.resume = 2;
        let mut assembly = Assembly::new(chain);
        assert!(
            assembly
                .take(3, WallTime::from_ms(0), &sent_by(other, 2))
                .is_ok()
        );
        for number in 0..RECENT_MAX as u64 + 1 {
            let position = 4 + number;
            assert!(
                assembly
                    .take(position, WallTime::from_ms(0), b"foreign")
                    .is_ok()
            );
        }
        assert_eq!(assembly.recent.len(), RECENT_MAX);
        assert!(assembly.agrees(TipCheck {
            position: 4,
            hash: 1
        }));
        assert!(!assembly.agrees(TipCheck {
            position: 5,
            hash: 1
        }));
    }

    #[test]
    fn a_later_format_stops_every_node() {
        let mut assembly = Assembly::new(Chain::default());
        let mut message = messages("a", 1, 1).remove(0);
        message[2] = 9;
        let error = assembly
            .take(1, WallTime::from_ms(0), &message)
            .unwrap_err();
        assert!(error.to_string().contains("format 9"), "{error}");
    }

    #[test]
    fn a_node_too_many_is_left_out_until_another_one_leaves() {
        let mut chain = Chain::default();
        for number in 0..NODES_MAX {
            chain.note(&batch(&format!("n{number}"), 1));
        }
        let mut assembly = Assembly::new(chain.clone());
        let mut send =
            |position, bytes: &[u8]| assembly.take(position, WallTime::from_ms(position), bytes);
        let another = messages("another", 1, 1).remove(0);
        for position in 1..3 {
            let error = send(position, &another).unwrap_err();
            assert_eq!(
                error,
                FollowError::TooManyNodes {
                    node: "another".into()
                }
            );
        }
        // The known nodes go on, and one of them lets another one leave.
        let mut content = message::Content::default();
        content.push(&Command::Fleet(FleetCommand::Leave { node: "n7".into() }));
        let leave =
            message::encode(&batch("n1", 2), Tip::default(), &content.finish(), 740).remove(0);
        let followed = send(3, &leave).unwrap().unwrap();
        assert_eq!(followed.left, ["n7".into()]);
        let joined = send(4, &another).unwrap().unwrap();
        // The marks carry it to a restart, whatever a checkpoint has.
        let mut live = chain.clone();
        for next in [&followed, &joined] {
            live.apply(next.tip, next.resume, next.time, &next.batch);
            live.leave(&next.left);
        }
        assert_eq!(live.at_mark().nodes, chain.nodes);
        let mut marks = Chain::default();
        marks.follow(live.mark(), joined.time);
        let mut restarted = chain.restored();
        restarted.adopt(marks);
        assert_eq!(restarted.nodes, live.nodes);
        assert!(!live.nodes.contains_key("n7") && live.nodes.contains_key("another"));
    }

    #[test]
    fn a_batch_that_never_ends_is_dropped() {
        let parts = messages("a", 1, 400);
        let small = messages("b", 1, 1).remove(0);
        let mut assembly = Assembly::new(Chain::default());
        assembly.take(1, WallTime::from_ms(0), &parts[0]).unwrap();
        for position in 2..=OPEN_MESSAGES_MAX + 1 {
            assembly
                .take(position, WallTime::from_ms(0), &small)
                .unwrap();
        }
        assert!(assembly.open.is_empty());
    }

    proptest! {
        /// A node that restarts anywhere continues with the same batches and the same hashes.
        #[test]
        fn a_restart_continues_the_chain(
            sent in prop::collection::vec((0..3_usize, 1..500_usize), 1..30),
            picks in prop::collection::vec(0..3_usize, 200),
            restart in 0..40_usize,
        ) {
            let nodes = ["a", "b", "c"];
            let mut queues = [const { std::collections::VecDeque::new() }; 3];
            for (number, (node, bytes)) in (1..).zip(sent) {
                queues[node].extend(messages(nodes[node], number, bytes));
            }
            let order: Vec<_> = picks.iter().filter_map(|pick| queues[*pick].pop_front()).collect();
            let all = follow(&mut Assembly::new(Chain::default()), &order);
            let mut first = Assembly::new(Chain::default());
            let (mut chain, mut live) = (Chain::default(), Chain::default());
            let (mut again, mut marked) = (Vec::new(), 0);
            for (position, message) in (1..).zip(&order) {
                if let Some(next) = first.take(position, WallTime::from_ms(position), message).unwrap() {
                    live.apply(next.tip, next.resume, next.time, &next.batch);
                    // Batches without records have no mark of their own.
                    if next.tip.position % 3 == 0 {
                        let mark = live.mark();
                        chain.follow(mark, next.time);
                        marked = again.len() + 1;
                    }
                    // What a checkpoint stores is the chain at the last mark.
                    let named = BTreeMap::new();
                    let stored = Chain { named, ..chain.clone() };
                    prop_assert_eq!(live.at_mark(), stored);
                    again.push((next.batch, next.tip, next.resume));
                    if again.len() == restart {
                        break;
                    }
                }
            }
            // The restart continues behind the last mark.
            again.truncate(marked);
            again.extend(follow(&mut Assembly::new(chain), &order));
            prop_assert_eq!(again, all);
        }

        #[test]
        fn no_message_makes_decoding_panic(bytes in prop::collection::vec(any::<u8>(), 0..100), magic: bool) {
            let bytes = if magic { [b"EK\x01", &bytes[..]].concat() } else { bytes };
            let mut assembly = Assembly::new(Chain::default());
            let _ = assembly.take(1, WallTime::from_ms(0), &bytes);
        }
    }
}
