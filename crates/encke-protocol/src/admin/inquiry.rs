//! What an operator asks the server, and wants done. The server answers beside its shards ([`Action::Inspect`]).
//!
//! [`Action::Inspect`]: crate::Action::Inspect

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

use crate::number::decimal;
use crate::response::AuditNote;

/// A question about the server, or something that is to be done.
#[derive(Debug)]
pub struct Inquiry {
    /// What is asked.
    pub question: OperatorQuestion,
    /// What the audit log says about it, if something is done. The reactor takes it: a client that is gone before the answer leaves a
    /// line as well.
    pub note: Option<Box<AuditNote>>,
}

/// What an operator asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorQuestion {
    /// What the server does now, and how it is.
    Overview,
    /// Who is connected.
    Connections(ConnectionQuery),
    /// How many connections there are for each client address, caller or stream.
    Groups(GroupQuery),
    /// Which streams there are.
    Streams(StreamQuery),
    /// The last requests that were refused: at most this many.
    Refusals(usize),
    /// What callers use of their quotas.
    Usage,
    /// Rates and latencies of the last hour.
    History,
    /// The settings, and where each comes from.
    Configuration,
    /// Whether the machine and the data directory suit the server.
    Doctor,
    /// What the node knows of its fleet.
    Fleet,
    /// What a credential grants, and whether a request with it would be allowed.
    Explain(ExplainedRequest),
    /// A connection is to be closed.
    Disconnect(ConnectionName),
}

/// Which connections are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionQuery {
    /// Only those of this client address, as the list shows it.
    pub address: Option<Box<str>>,
    /// Only those of this caller.
    pub caller: Option<Box<str>>,
    /// Only subscribers of this stream, by its name or by a pattern.
    pub stream: Option<Box<str>>,
    /// Only those that are behind.
    pub slow: bool,
    /// Where the list goes on.
    pub after: Option<ListPosition>,
    /// The most connections of the page.
    pub limit: usize,
}

/// What connections are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupQuery {
    /// What they are counted by.
    pub by: GroupKind,
    /// The most groups: those with the most connections.
    pub limit: usize,
}

/// What connections have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GroupKind {
    /// The address of the client.
    Address,
    /// The caller.
    Caller,
    /// The stream that they are subscribed to.
    Stream,
}

/// Which streams are listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamQuery {
    /// What their names begin with.
    pub prefix: Box<str>,
    /// Their order.
    pub sort: StreamOrder,
    /// Only those behind this name; in the order of names.
    pub after: Option<Box<str>>,
    /// The most streams of the page.
    pub limit: usize,
}

/// The order of a list of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamOrder {
    /// By name.
    Name,
    /// Those to which the most bytes were appended first.
    Bytes,
    /// Those with the most messages first.
    Messages,
    /// Those with the most subscribers first.
    Subscribers,
}

/// The name of a connection: its shard, and its token there. A later connection has another name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionName {
    /// The shard.
    pub shard: u16,
    /// The token.
    pub token: u64,
}

/// A place in the list of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListPosition {
    /// The shard.
    pub shard: u16,
    /// The slot of that shard at which the list goes on.
    pub slot: u32,
}

/// A request that is explained.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExplainedRequest {
    /// The token or API key. No message and no log shows it.
    pub token: String,
    /// The method.
    #[serde(default = "get")]
    pub method: String,
    /// The path, with its query.
    pub path: String,
}

impl fmt::Debug for ExplainedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExplainedRequest({} {})", self.method, self.path)
    }
}

/// A text that is none of the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAName;

impl FromStr for GroupKind {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        match text {
            "address" => Ok(GroupKind::Address),
            "caller" => Ok(GroupKind::Caller),
            "stream" => Ok(GroupKind::Stream),
            _ => Err(NotAName),
        }
    }
}

impl FromStr for StreamOrder {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        match text {
            "name" => Ok(StreamOrder::Name),
            "bytes" => Ok(StreamOrder::Bytes),
            "messages" => Ok(StreamOrder::Messages),
            "subscribers" => Ok(StreamOrder::Subscribers),
            _ => Err(NotAName),
        }
    }
}

impl fmt::Display for ConnectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:x}", self.shard, self.token)
    }
}

impl FromStr for ConnectionName {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let (shard, token) = text.split_once('-').ok_or(NotAName)?;
        let is_hex = token.bytes().all(|byte| byte.is_ascii_hexdigit());
        let token = u64::from_str_radix(token, 16).ok().filter(|_| is_hex);
        Ok(ConnectionName {
            shard: number(shard).ok_or(NotAName)?,
            token: token.ok_or(NotAName)?,
        })
    }
}

impl fmt::Display for ListPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.shard, self.slot)
    }
}

impl FromStr for ListPosition {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let (shard, slot) = text.split_once('-').ok_or(NotAName)?;
        Ok(ListPosition {
            shard: number(shard).ok_or(NotAName)?,
            slot: number(slot).ok_or(NotAName)?,
        })
    }
}

fn number<T: TryFrom<u64>>(text: &str) -> Option<T> {
    decimal(text).and_then(|number| T::try_from(number).ok())
}

fn get() -> String {
    "GET".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_connections_read_back() {
        for (shard, token) in [(0, 0), (1, 0x1_0000_0007), (u16::MAX, u64::MAX)] {
            let name = ConnectionName { shard, token };
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        for wrong in ["", "1", "-", "1-", "-1", "1-+1", "1-g", "70000-1", "1-1-1"] {
            assert_eq!(wrong.parse::<ConnectionName>(), Err(NotAName), "{wrong}");
        }
    }
}
