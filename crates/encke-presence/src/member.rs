//! Members, as a connection brings them and as all see them.

use std::sync::Arc;

/// A member that a connection brings. All texts have bounds, see [`PresenceField`](crate::PresenceField).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMember {
    /// Who it is. Connections with the same key are one member. It is not shown.
    pub key: Box<str>,
    /// The public id. A caller derives it from the key, so one key has one id.
    pub id: Box<str>,
    /// Public data: one JSON value, which the caller has checked. A member has the data of its latest connection.
    pub data: Option<Box<str>>,
}

/// What all see of a member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// The public id.
    pub id: Box<str>,
    /// Public data: one JSON value.
    pub data: Option<Box<str>>,
}

impl Member {
    /// Bytes of the id and the data.
    pub(crate) fn bytes(&self) -> usize {
        self.id.len() + self.data.as_deref().map_or(0, str::len)
    }

    pub(crate) fn is(&self, id: &str, data: Option<&str>) -> bool {
        *self.id == *id && self.data.as_deref() == data
    }
}

/// What a node holds of a member: how it shows it, since when.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) member: Arc<Member>,
    /// When this node last changed it, by its clock in milliseconds, but later than all changes that it knew of. The holding with the
    /// largest stamp is the one that is shown, so all nodes show the same.
    pub(crate) stamp: u64,
}
