//! Where a connection enters, by which rules, and why it may not.

use std::time::Duration;

use crate::NewMember;

/// The stream that a connection enters, with its rules.
#[derive(Clone, Copy, Debug)]
pub struct PresencePlace<'a> {
    /// The name of the stream; at most [`STREAM_BYTES_MAX`].
    pub stream: &'a str,
    /// The rules of the stream. Those of the latest connection that enters count.
    pub rules: PresenceRules,
}

/// The rules of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PresenceRules {
    /// How long a member stays after its last connection is gone. Zero: it leaves at once. At most [`GRACE_MAX`], which stands for all
    /// that is longer.
    pub grace: Duration,
    /// Members of the stream, over all nodes. A member that is there may always open further connections.
    pub members_max: usize,
    /// Bytes of the ids and data of all members of the stream.
    pub bytes_max: usize,
}

/// The bounds of a registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PresenceLimits {
    /// Members of all streams, those of other nodes included. A member of two streams counts twice.
    pub members_max: usize,
    /// Bytes of the ids and data of all members.
    pub bytes_max: usize,
    /// Members that other nodes hold; one that two nodes hold counts twice. A packet that exceeds it is refused.
    pub remote_members_max: usize,
}

/// Why a connection may not enter. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PresenceRefusal {
    /// The stream has as many members as it may have.
    #[error("the stream has {0} members, and may not have more")]
    MembersMax(usize),
    /// Ids and data of the stream's members would exceed this number of bytes.
    #[error("ids and data of the stream's members would exceed {0} bytes")]
    BytesMax(usize),
    /// The registry has as many members as it may have.
    #[error("all streams together have {0} members, and may not have more")]
    ServerMembersMax(usize),
    /// Ids and data of all members would exceed this number of bytes.
    #[error("ids and data of all members would exceed {0} bytes")]
    ServerBytesMax(usize),
    /// A text is longer than other nodes would take.
    #[error("the {field} of a member exceeds {bytes_max} bytes")]
    TooLong {
        /// Which one.
        field: PresenceField,
        /// Its bound in bytes.
        bytes_max: usize,
    },
    /// The member has as many connections as can be counted.
    #[error("the member has {0} connections, and may not have more")]
    ConnectionsMax(u32),
}

/// A text of bounded length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PresenceField {
    /// The name of a stream.
    Stream,
    /// The key of a member.
    Key,
    /// The id of a member.
    Id,
    /// The data of a member.
    Data,
}

impl PresenceField {
    /// The most bytes of the field.
    pub const fn bytes_max(self) -> usize {
        match self {
            PresenceField::Stream => STREAM_BYTES_MAX,
            PresenceField::Key => KEY_BYTES_MAX,
            PresenceField::Id => ID_BYTES_MAX,
            PresenceField::Data => DATA_BYTES_MAX,
        }
    }

    /// Refuses a text that is too long for the field.
    pub(crate) fn check(self, text: &str) -> Result<(), PresenceRefusal> {
        let bytes_max = self.bytes_max();
        if text.len() > bytes_max {
            return Err(PresenceRefusal::TooLong {
                field: self,
                bytes_max,
            });
        }
        Ok(())
    }
}

impl std::fmt::Display for PresenceField {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PresenceField::Stream => "stream",
            PresenceField::Key => "key",
            PresenceField::Id => "id",
            PresenceField::Data => "data",
        })
    }
}

impl NewMember {
    pub(crate) fn check(&self) -> Result<(), PresenceRefusal> {
        PresenceField::Key.check(&self.key)?;
        PresenceField::Id.check(&self.id)?;
        PresenceField::Data.check(self.data.as_deref().unwrap_or_default())
    }
}

/// Bytes of a stream's name.
pub const STREAM_BYTES_MAX: usize = 1024;

/// Bytes of a member's key.
pub const KEY_BYTES_MAX: usize = 1024;

/// Bytes of a member's id.
pub const ID_BYTES_MAX: usize = 256;

/// Bytes of a member's data.
pub const DATA_BYTES_MAX: usize = 4096;

/// The longest grace: one day.
pub const GRACE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
