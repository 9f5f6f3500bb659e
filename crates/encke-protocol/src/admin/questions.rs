//! The parameters of requests of operators, as questions.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::inquiry::{ConnectionQuery, GroupKind, GroupQuery, StreamOrder, StreamQuery};
use crate::misspelled::{shown, unknown_parameter};
use crate::number::decimal;
use crate::problem::error;
use crate::query;
use crate::response::Response;

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
    use super::super::inquiry::ListPosition;
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
}
