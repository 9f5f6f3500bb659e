//! What nodes send each other. A packet is one byte for the version of the format, and a [`Packet`] in postcard.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::rules::{DATA_BYTES_MAX, ID_BYTES_MAX, KEY_BYTES_MAX, STREAM_BYTES_MAX};

/// A packet. Any packet may be lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Packet<'a> {
    #[serde(borrow)]
    pub(crate) from: PacketSource<'a>,
    #[serde(borrow)]
    pub(crate) content: Content<'a>,
}

/// The process that has sent a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PacketSource<'a> {
    pub(crate) name: &'a str,
    pub(crate) incarnation: u64,
}

/// What a packet says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Content<'a> {
    /// The node is there.
    Heartbeat {
        /// The sequence of its last delta.
        sequence: u64,
        /// The digest of what it holds after this delta.
        digest: u64,
    },
    /// What has changed.
    Delta {
        /// Grows by 1 with each delta of a process. The first is 1.
        sequence: u64,
        #[serde(borrow)]
        sections: Vec<Section<'a>>,
    },
    /// A node lacks something of another one.
    Ask {
        /// The process that is asked.
        of: PacketSource<'a>,
        /// Grows with each request of a process. Answers have it.
        request: u64,
        /// The last delta that was applied, if all later ones are enough. None: the whole state is needed.
        after: Option<u64>,
    },
    /// A part of what a process holds, for one node.
    State {
        /// The node that has asked.
        to: PacketSource<'a>,
        request: u64,
        /// The last delta before this part: the part is what is true after it.
        sequence: u64,
        /// Counts the parts, from 0.
        part: u32,
        is_last: bool,
        #[serde(borrow)]
        sections: Vec<Section<'a>>,
    },
    /// The process ends.
    Goodbye,
}

/// What is said of one stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Section<'a> {
    pub(crate) stream: &'a str,
    pub(crate) grace_ms: u32,
    /// Connections of the node to the stream, if they are said.
    pub(crate) connections: Option<u32>,
    /// What the node holds, in the order in which it changed.
    #[serde(borrow)]
    pub(crate) changes: Vec<HoldingChange<'a>>,
}

/// What is said of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HoldingChange<'a> {
    /// The node holds it.
    Holds {
        /// None: it is the id.
        key: Option<&'a str>,
        id: &'a str,
        data: Option<&'a str>,
        stamp: u64,
    },
    /// The node does not hold it any more.
    Ends { key: &'a str },
}

/// Why a packet was not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketRefused {
    /// Another version of Encke has sent it.
    #[error("the packet has format {0}, and this version of encke reads format {FORMAT}")]
    Format(u8),
    /// It is damaged.
    #[error("the packet is damaged")]
    Damaged,
    /// It exceeds a bound of names, texts or its own length.
    #[error("the packet exceeds a bound of its format")]
    TooLong,
    /// Other nodes would hold more than this number of members.
    #[error("other nodes would hold more than {0} members")]
    RemoteMembersMax(usize),
    /// There are more nodes than this.
    #[error("there are more than {0} nodes")]
    NodesMax(usize),
}

impl Packet<'_> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        postcard::to_extend(self, vec![FORMAT])
            .expect("growing a vector is the only thing that writes here")
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Packet<'_>, PacketRefused> {
        let (format, rest) = bytes.split_first().ok_or(PacketRefused::Damaged)?;
        if *format != FORMAT {
            return Err(PacketRefused::Format(*format));
        }
        // An element of a list takes at least a byte, so this bounds what is allocated too.
        if bytes.len() > PACKET_BYTES_MAX {
            return Err(PacketRefused::TooLong);
        }
        let Ok((packet, [])) = postcard::take_from_bytes::<Packet<'_>>(rest) else {
            return Err(PacketRefused::Damaged);
        };
        if !packet.is_within_bounds() {
            return Err(PacketRefused::TooLong);
        }
        Ok(packet)
    }

    fn is_within_bounds(&self) -> bool {
        let sections = match &self.content {
            Content::Delta { sections, .. } | Content::State { sections, .. } => &**sections,
            Content::Heartbeat { .. } | Content::Ask { .. } | Content::Goodbye => &[],
        };
        self.from.name.len() <= NODE_NAME_BYTES_MAX
            && sections.iter().all(Section::is_within_bounds)
    }
}

impl<'a> Section<'a> {
    pub(crate) fn grace(&self) -> Duration {
        Duration::from_millis(self.grace_ms.into())
    }

    /// At least the bytes that it takes without changes.
    pub(crate) fn bytes_of(stream: &str) -> usize {
        stream.len() + NUMBERS_BYTES_MAX
    }

    fn is_within_bounds(&self) -> bool {
        self.stream.len() <= STREAM_BYTES_MAX
            && self.changes.iter().all(HoldingChange::is_within_bounds)
    }
}

impl<'a> HoldingChange<'a> {
    pub(crate) fn key(&self) -> &'a str {
        match *self {
            HoldingChange::Holds { key, id, .. } => key.unwrap_or(id),
            HoldingChange::Ends { key } => key,
        }
    }

    /// At least the bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        let texts = match self {
            HoldingChange::Holds { key, id, data, .. } => {
                key.map_or(0, str::len) + id.len() + data.map_or(0, str::len)
            }
            HoldingChange::Ends { key } => key.len(),
        };
        texts + NUMBERS_BYTES_MAX
    }

    fn is_within_bounds(&self) -> bool {
        match *self {
            HoldingChange::Holds { id, data, .. } => {
                self.key().len() <= KEY_BYTES_MAX
                    && id.len() <= ID_BYTES_MAX
                    && data.map_or(0, str::len) <= DATA_BYTES_MAX
            }
            HoldingChange::Ends { key } => key.len() <= KEY_BYTES_MAX,
        }
    }
}

/// The version of the format, which is the first byte of a packet.
const FORMAT: u8 = 1;

/// Bytes of a packet. No transport of the fleet has to carry more.
pub const PACKET_BYTES_MAX: usize = 64 * 1024;

/// Bytes of a node's name.
pub const NODE_NAME_BYTES_MAX: usize = 256;

/// Lengths, marks and numbers of a section or a change take less.
const NUMBERS_BYTES_MAX: usize = 24;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(max: usize) -> impl Strategy<Value = String> {
        proptest::collection::vec(any::<char>(), 0..max / 4)
            .prop_map(|all| all.into_iter().collect())
    }

    type SaidChange = (Option<String>, String, Option<String>, Option<u64>);

    #[derive(Clone, Debug)]
    struct Said {
        stream: String,
        grace_ms: u32,
        connections: Option<u32>,
        changes: Vec<SaidChange>,
    }

    fn said() -> impl Strategy<Value = Said> {
        let change = (
            proptest::option::of(text(40)),
            text(40),
            proptest::option::of(text(100)),
            any::<Option<u64>>(),
        );
        let changes = proptest::collection::vec(change, 0..5);
        (text(50), any::<u32>(), any::<Option<u32>>(), changes).prop_map(
            |(stream, grace_ms, connections, changes)| Said {
                stream,
                grace_ms,
                connections,
                changes,
            },
        )
    }

    fn sections(all: &[Said]) -> Vec<Section<'_>> {
        all.iter()
            .map(|one| Section {
                stream: &one.stream,
                grace_ms: one.grace_ms,
                connections: one.connections,
                changes: one
                    .changes
                    .iter()
                    .map(|(key, id, data, stamp)| match stamp {
                        Some(stamp) => HoldingChange::Holds {
                            key: key.as_deref(),
                            id,
                            data: data.as_deref(),
                            stamp: *stamp,
                        },
                        None => HoldingChange::Ends { key: id },
                    })
                    .collect(),
            })
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_encoded_is_decoded(
            name in text(60),
            said in proptest::collection::vec(said(), 0..4),
            numbers in any::<[u64; 4]>(),
            kind in 0..5,
        ) {
            let from = PacketSource { name: &name, incarnation: numbers[0] };
            let sections = sections(&said);
            let [_, sequence, digest, request] = numbers;
            let content = match kind {
                0 => Content::Heartbeat { sequence, digest },
                1 => Content::Delta { sequence, sections },
                2 => Content::Ask { of: from, request, after: Some(sequence).filter(|n| n % 2 == 0) },
                3 => Content::State { to: from, request, sequence, part: digest as u32, is_last: digest % 2 == 0, sections },
                _ => Content::Goodbye,
            };
            let packet = Packet { from, content };
            let bytes = packet.encode();
            prop_assert_eq!(Packet::decode(&bytes), Ok(packet.clone()));
            // A packet that was cut off is no packet.
            for end in 0..bytes.len() {
                prop_assert!(Packet::decode(&bytes[..end]).is_err());
            }
        }

        #[test]
        fn any_bytes_are_a_packet_or_an_error(mut bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Packet::decode(&bytes);
            if let Some(first) = bytes.first_mut() {
                *first = FORMAT;
            }
            let _ = Packet::decode(&bytes);
        }

        #[test]
        fn estimates_are_upper_bounds(said in said()) {
            let section = sections(std::slice::from_ref(&said)).remove(0);
            let estimate = Section::bytes_of(section.stream) + section.changes.iter().map(HoldingChange::bytes).sum::<usize>();
            let bytes = postcard::to_allocvec(&section).unwrap();
            prop_assert!(bytes.len() <= estimate);
        }
    }

    #[test]
    fn a_packet_beyond_a_bound_is_refused_whole() {
        let long = "x".repeat(DATA_BYTES_MAX + 1);
        let holds = |key, id, data| HoldingChange::Holds {
            key,
            id,
            data,
            stamp: 1,
        };
        let decode = |stream, name, changes: Vec<HoldingChange<'_>>| {
            let sections = vec![Section {
                stream,
                grace_ms: 0,
                connections: None,
                changes,
            }];
            let from = PacketSource {
                name,
                incarnation: 1,
            };
            let packet = Packet {
                from,
                content: Content::Delta {
                    sequence: 1,
                    sections,
                },
            };
            Packet::decode(&packet.encode()).map(|_| ())
        };
        let fits = |n: usize| &long[..n];
        let all = holds(
            Some(fits(KEY_BYTES_MAX)),
            fits(ID_BYTES_MAX),
            Some(fits(DATA_BYTES_MAX)),
        );
        assert_eq!(
            decode(fits(STREAM_BYTES_MAX), fits(NODE_NAME_BYTES_MAX), vec![all]),
            Ok(())
        );
        let too_long = Err(PacketRefused::TooLong);
        assert_eq!(decode(fits(STREAM_BYTES_MAX + 1), "a", vec![]), too_long);
        assert_eq!(decode("s", fits(NODE_NAME_BYTES_MAX + 1), vec![]), too_long);
        assert_eq!(
            decode("s", "a", vec![holds(None, fits(ID_BYTES_MAX + 1), None)]),
            too_long
        );
        assert_eq!(
            decode("s", "a", vec![holds(None, "a", Some(&long))]),
            too_long
        );
        assert_eq!(
            decode("s", "a", vec![holds(Some(&long), "a", None)]),
            too_long
        );
        assert_eq!(
            decode("s", "a", vec![HoldingChange::Ends { key: &long }]),
            too_long
        );
        let small = holds(None, "a", None);
        assert_eq!(
            decode("s", "a", vec![small; PACKET_BYTES_MAX / 4]),
            too_long
        );
    }

    #[test]
    fn another_version_is_told_apart() {
        assert_eq!(Packet::decode(&[2, 0, 0]), Err(PacketRefused::Format(2)));
        assert_eq!(Packet::decode(&[]), Err(PacketRefused::Damaged));
    }
}
