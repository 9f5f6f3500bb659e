//! Counters for operators.

/// What a registry has and has done, for operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PresenceFigures {
    /// Members of all streams, over all nodes.
    pub members: usize,
    /// Connections to all streams, over all nodes.
    pub connections: usize,
    /// Streams with an entry.
    pub streams: usize,
    /// Bytes of ids and data.
    pub bytes: usize,
    /// Members that other nodes hold; one that two nodes hold counts twice.
    pub remote_members: usize,
    /// Other nodes that are there.
    pub nodes: usize,
    /// Times that a member joined.
    pub joins: u64,
    /// Times that a member left.
    pub leaves: u64,
    /// Connections that were refused.
    pub refused: u64,
    /// What was exchanged with other nodes.
    pub packets: PacketFigures,
}

/// What was exchanged with other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketFigures {
    /// Packets of other nodes that were read.
    pub received: u64,
    /// Packets that could not be read, or that exceeded a bound.
    pub refused: u64,
    /// Packets of another version of the format.
    pub foreign: u64,
    /// Packets of a process that has ended or was replaced.
    pub stale: u64,
    /// Requests for what was missed.
    pub asked: u64,
    /// States that were sent to other nodes.
    pub answered: u64,
    /// Digests that did not agree with what was held of a node.
    pub differed: u64,
    /// Nodes that fell silent.
    pub silenced: u64,
}
