//! Holds what requests begin to the quotas of their callers.

use encke_access::{CallerTag, QuotaExceeded, SubscriberHold};
use encke_protocol::{Response, problem};
use encke_stream::{Append, Command, Data};

use crate::connection::context::Context;
use crate::connection::exchange_id::ExchangeId;

impl Context<'_> {
    /// Counts what a command appends for the caller of an exchange.
    ///
    /// # Errors
    /// The response to a request that would exceed the caller's quota.
    pub(crate) fn count_appends(
        &self,
        exchange: ExchangeId,
        command: &Command,
    ) -> Result<(), Response> {
        self.count_messages(exchange, appended(command))
    }

    /// Counts messages that are appended, or sent to subscribers, for the caller of an exchange.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn count_messages(
        &self,
        exchange: ExchangeId,
        messages: u64,
    ) -> Result<(), Response> {
        match (self.router.access(), self.caller_of(exchange)) {
            (Some(access), Some(caller)) if messages > 0 => access
                .count_appends(caller, messages, self.clock.time().steady)
                .map_err(refused),
            _ => Ok(()),
        }
    }

    /// Counts a subscription for the caller of an exchange while what is returned is kept. `None`: there is no limit.
    ///
    /// # Errors
    /// The response to a request that would exceed the caller's quota.
    pub(crate) fn count_subscriber(
        &self,
        exchange: ExchangeId,
    ) -> Result<Option<SubscriberHold>, Response> {
        match (self.router.access(), self.caller_of(exchange)) {
            (Some(access), Some(caller)) => access
                .count_subscriber(caller, self.clock.time().steady)
                .map_err(refused),
            _ => Ok(None),
        }
    }

    /// The caller of an exchange. A message has that of its channel.
    fn caller_of(&self, exchange: ExchangeId) -> Option<&CallerTag> {
        let of = self.ids.channel_of(exchange).unwrap_or(exchange);
        self.clients.callers.tag(of)
    }
}

fn refused(exceeded: QuotaExceeded) -> Response {
    problem::quota_exceeded(&exceeded)
}

/// Messages of JSON, or bodies, that a command appends. What the server itself appends for a request is not counted.
fn appended(command: &Command) -> u64 {
    match command {
        Command::Append(append) => of_append(append),
        Command::Series(appends) => appends.iter().map(of_append).sum(),
        Command::Create(create) => messages(&create.data),
        Command::Truncate { .. } | Command::Delete { .. } | Command::Fleet(_) => 0,
    }
}

fn of_append(append: &Append) -> u64 {
    match append.target.name().starts_with(OWN) {
        true => 0,
        false => messages(&append.data).max(1),
    }
}

/// For JSON the units are messages, and for other types they are bytes, which come in one body.
pub(crate) fn messages(data: &Data) -> u64 {
    match data.bytes.len() {
        0 => 0,
        bytes if data.units as usize == bytes => 1,
        _ => data.units.into(),
    }
}

/// What the names of streams begin with that no client can name.
const OWN: char = '\u{1}';
