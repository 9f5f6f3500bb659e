//! Digests of what a node holds: sums of hashes, so that a change costs the same however much is held. They detect what was lost, not
//! what was forged.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::member::Shown;

/// What a member adds to the digest of a node.
pub(crate) fn of_member(incarnation: u64, stream: &str, key: &str, shown: &Shown) -> u64 {
    let mut hash = xxh3_64_with_seed(stream.as_bytes(), incarnation ^ MEMBER);
    hash = xxh3_64_with_seed(key.as_bytes(), hash);
    hash = xxh3_64_with_seed(shown.member.id.as_bytes(), hash);
    let data = shown.member.data.as_deref();
    hash = xxh3_64_with_seed(
        data.unwrap_or_default().as_bytes(),
        hash ^ u64::from(data.is_some()),
    );
    xxh3_64_with_seed(&shown.stamp.to_le_bytes(), hash)
}

/// What the connections to a stream add to the digest of a node.
pub(crate) fn of_connections(incarnation: u64, stream: &str, connections: u32) -> u64 {
    if connections == 0 {
        return 0;
    }
    let hash = xxh3_64_with_seed(stream.as_bytes(), incarnation ^ CONNECTIONS);
    xxh3_64_with_seed(&connections.to_le_bytes(), hash)
}

const MEMBER: u64 = 0x6d65_6d62_6572_0000;

const CONNECTIONS: u64 = 0x636f_6e6e_0000_0000;
