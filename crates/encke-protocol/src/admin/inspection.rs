//! What an operator asks the server, and wants done. The server answers beside its shards ([`Action::Inspect`]).
//!
//! [`Action::Inspect`]: crate::Action::Inspect

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::explain::ExplainedRequest;
use crate::misspelled::{shown, unknown_parameter};
use crate::number::decimal;
use crate::problem::error;
use crate::query;
use crate::response::{AuditNote, Response};

/// A question about the server, or something that is to be done.
#[derive(Debug)]
pub struct Inspection {
    /// What is asked.
    pub question: Question,
    /// What the audit log says about it, if something is done.
    pub note: Option<Box<AuditNote>>,
}

/// What an operator asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
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

impl ConnectionQuery {
    /// Reads the parameters of a request.
    pub(super) fn parse(query: Option<&str>) -> Result<Self, Response> {
        let known = &["address", "caller", "stream", "slow", "after", "limit"];
        let mut given = Parameters::parse(query, known)?;
        Ok(ConnectionQuery {
            slow: given.truth("slow")?,
            after: given.parsed("after", "what `next` of the page before says")?,
            limit: given.limit(CONNECTIONS_DEFAULT, CONNECTIONS_MAX)?,
            address: given.take("address"),
            caller: given.take("caller"),
            stream: given.take("stream"),
        })
    }
}

impl GroupQuery {
    /// Reads the parameters of a request.
    pub(super) fn parse(query: Option<&str>) -> Result<Self, Response> {
        let mut given = Parameters::parse(query, &["by", "limit"])?;
        let by = given.parsed("by", "address, caller or stream")?;
        Ok(GroupQuery {
            by: by.unwrap_or(GroupKind::Address),
            limit: given.limit(GROUPS_DEFAULT, GROUPS_MAX)?,
        })
    }
}

impl StreamQuery {
    /// Reads the parameters of a request.
    pub(super) fn parse(query: Option<&str>) -> Result<Self, Response> {
        let mut given = Parameters::parse(query, &["prefix", "sort", "after", "limit"])?;
        let sort = given.parsed("sort", "name, bytes, messages or subscribers")?;
        let query = StreamQuery {
            sort: sort.unwrap_or(StreamOrder::Name),
            limit: given.limit(STREAMS_DEFAULT, STREAMS_MAX)?,
            prefix: given.take("prefix").unwrap_or_default(),
            after: given.take("after"),
        };
        if query.after.is_some() && query.sort != StreamOrder::Name {
            let why = "after goes with sort=name only: the other orders have one page, of which limit says the length";
            return Err(error(400, "bad_parameter", why));
        }
        Ok(query)
    }
}

/// Reads the parameters of a list of refusals: their number.
pub(super) fn refusals(query: Option<&str>) -> Result<usize, Response> {
    Parameters::parse(query, &["limit"])?.limit(REFUSALS_DEFAULT, REFUSALS_MAX)
}

/// Refuses parameters where there are none.
pub(super) fn no_parameters(query: Option<&str>) -> Result<(), Response> {
    Parameters::parse(query, &[]).map(drop)
}

/// The parameters of a request, each at most once.
#[derive(Debug)]
struct Parameters(BTreeMap<String, String>);

impl Parameters {
    fn parse(query: Option<&str>, known: &[&str]) -> Result<Self, Response> {
        let bad = |why: String| error(400, "bad_parameter", why);
        let mut given = BTreeMap::new();
        for parameter in query::parameters(query) {
            let (name, value) = parameter.map_err(|why| bad(format!("the query {why}")))?;
            if !known.contains(&&*name) {
                return Err(unknown_parameter(&name, known));
            }
            if given
                .insert(name.clone().into_owned(), value.into_owned())
                .is_some()
            {
                return Err(bad(format!("the parameter {name} comes once")));
            }
        }
        Ok(Parameters(given))
    }

    /// A text; none if it is empty, as a form sends it.
    fn take(&mut self, name: &str) -> Option<Box<str>> {
        let given = self.0.remove(name);
        given.filter(|value| !value.is_empty()).map(Into::into)
    }

    /// A value of a type. `expected`: what it may be, for people.
    fn parsed<T: FromStr>(&mut self, name: &str, expected: &str) -> Result<Option<T>, Response> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        value.parse().map(Some).map_err(|_| {
            let why = format!("{name} is {expected}, not {}", shown(&value));
            error(400, "bad_parameter", why)
        })
    }

    fn truth(&mut self, name: &str) -> Result<bool, Response> {
        let value = self.take(name).unwrap_or_else(|| "false".into());
        query::truth(name, &value).map_err(|why| error(400, "bad_parameter", why))
    }

    fn limit(&mut self, default: usize, max: usize) -> Result<usize, Response> {
        let Some(value) = self.take("limit") else {
            return Ok(default);
        };
        let limit = decimal(&value).filter(|limit| (1..=max as u64).contains(limit));
        let limit = limit.ok_or_else(|| {
            let why = format!(
                "limit is a whole number from 1 to {max}, not {}",
                shown(&value)
            );
            error(400, "bad_parameter", why)
        })?;
        Ok(limit as usize)
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

/// Connections of a page.
const CONNECTIONS_DEFAULT: usize = 100;
const CONNECTIONS_MAX: usize = 1_000;

/// Groups of connections.
const GROUPS_DEFAULT: usize = 20;
const GROUPS_MAX: usize = 1_000;

/// Streams of a page.
const STREAMS_DEFAULT: usize = 100;
const STREAMS_MAX: usize = 1_000;

/// Refusals of a list. The server keeps no more.
const REFUSALS_DEFAULT: usize = 100;
const REFUSALS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::message;

    #[test]
    fn parameters_say_which_connections_are_listed() {
        let query = "address=192.0.2.1&caller=ann&stream=chat%2Fa&slow=true&after=1-256&limit=1000";
        let read = ConnectionQuery::parse(Some(query)).unwrap();
        let expected = ConnectionQuery {
            address: Some("192.0.2.1".into()),
            caller: Some("ann".into()),
            stream: Some("chat/a".into()),
            slow: true,
            after: Some(ListPosition {
                shard: 1,
                slot: 256,
            }),
            limit: 1000,
        };
        assert_eq!(read, expected);
        let empty = ConnectionQuery::parse(Some("address=&limit=&slow=")).unwrap();
        let all = ConnectionQuery {
            limit: CONNECTIONS_DEFAULT,
            ..ConnectionQuery::default()
        };
        assert_eq!(empty, all);
    }

    #[test]
    fn a_wrong_parameter_is_named_with_what_is_allowed() {
        let refused = |result: Result<(), Response>| message(&result.unwrap_err());
        let connections = |query| refused(ConnectionQuery::parse(Some(query)).map(drop));
        let streams = |query| refused(StreamQuery::parse(Some(query)).map(drop));
        let groups = |query| refused(GroupQuery::parse(Some(query)).map(drop));
        for (why, part) in [
            (
                connections("limit=1001"),
                "limit is a whole number from 1 to 1000, not \"1001\"",
            ),
            (connections("limit=0"), "from 1 to 1000"),
            (connections("slow=yes"), "slow is true or false"),
            (connections("after=x"), "what `next` of the page before"),
            (
                connections("after=70000-1"),
                "what `next` of the page before",
            ),
            (connections("addres=1"), "did you mean \"address\"?"),
            (connections("slow=true&slow=true"), "slow comes once"),
            (connections("caller=%FF"), "the query is not"),
            (
                streams("sort=size"),
                "sort is name, bytes, messages or subscribers, not \"size\"",
            ),
            (streams("sort=bytes&after=a"), "after goes with sort=name"),
            (groups("by=x"), "by is address, caller or stream"),
            (
                refused(refusals(Some("limit=257")).map(drop)),
                "from 1 to 256",
            ),
            (
                refused(no_parameters(Some("a=1"))),
                "there are no parameters here",
            ),
        ] {
            assert!(why.contains(part), "{why}");
        }
    }

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
