//! Holds what requests begin to the quotas of their callers.

use encke_access::{Access, CallerTag, Quota, QuotaExceeded, QuotaLimits, SubscriberHold};
use encke_protocol::{Response, problem};
use encke_stream::{
    AccountId, Append, Command, Create, Data, Life, Lookup, Outcome, Payer, Refusal,
    StorageExceeded, StorageHold, StorageLimit, StorageUse, Target,
};

use crate::connection::context::Context;
use crate::connection::effect::ConnectionEffect;
use crate::connection::exchange_id::ExchangeId;

impl Context<'_> {
    /// Has a command of an exchange submitted. It counts for the quotas of its caller, and of the accounts that pay for what it stores.
    ///
    /// # Errors
    /// The response to a request that would exceed a quota.
    pub(crate) fn submit(
        &mut self,
        exchange: ExchangeId,
        mut command: Command,
    ) -> Result<(), Response> {
        let holds = self.count_appends(exchange, &mut command)?;
        self.push(ConnectionEffect::Submit(exchange, command, holds));
        Ok(())
    }

    /// Counts the appends of a command for the caller of an exchange, and its storage for the accounts that pay for it. Names the payer of a
    /// stream that it creates.
    ///
    /// # Errors
    /// The response to a request that would exceed a quota.
    fn count_appends(
        &self,
        exchange: ExchangeId,
        command: &mut Command,
    ) -> Result<Vec<StorageHold>, Response> {
        let (Some(access), Some(caller)) = (self.router.access(), self.caller_of(exchange)) else {
            return Ok(Vec::new());
        };
        let holds = match command {
            Command::Create(create) => {
                let hold = self.charge_creation(access, caller, create);
                hold.into_iter().collect()
            }
            Command::Append(append) => self.hold_storage(access, std::slice::from_ref(append))?,
            Command::Series(appends) => self.hold_storage(access, appends)?,
            Command::Truncate { .. } | Command::Delete { .. } | Command::Fleet(_) => Vec::new(),
        };
        self.count_messages(exchange, appended(command))?;
        Ok(holds)
    }

    /// Counts messages that are appended, or sent to subscribers, for the caller of an exchange.
    ///
    /// # Errors
    /// The response to a request that would exceed the caller's quota.
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

    /// Counts a creation that was refused because of what the caller stores.
    pub(crate) fn count_refused_creation(&self, exchange: ExchangeId, outcome: &Outcome) {
        if let Outcome::Refused(Refusal::StorageExceeded(exceeded)) = outcome
            && let (Some(access), Some(caller)) = (self.router.access(), self.caller_of(exchange))
            && let Some(account) = access.account(caller)
        {
            access.storage_exceeded(account, problem::quota_of(exceeded.limit), exceeded.max);
        }
    }

    /// Has a stream paid for by its creator. What the creator has used up is for the machine to say: it may find the stream.
    fn charge_creation(
        &self,
        access: &Access,
        caller: &CallerTag,
        create: &mut Create,
    ) -> Option<StorageHold> {
        if create.name.starts_with(OWN) {
            return None;
        }
        let account = access.account(caller)?;
        let limits = access.account_limits(account);
        let account = AccountId(account);
        let bytes = stored_bytes(&create.data, create.extras.metadata.as_deref());
        let is_limited = limits.streams > 0 || limits.stored_bytes > 0;
        let wanted = StorageUse {
            streams: 1,
            bytes: bytes as u64,
        };
        let exceeded = |used| exceeded_by(used, bytes, limits);
        let views = self.router.views();
        let (hold, exceeded) = match is_limited {
            false => (None, None),
            // A PUT that finds its stream stores nothing.
            true if self.finds(create) => (None, exceeded(views.storage_used(account))),
            true => match views.hold_storage(account, wanted, exceeded) {
                Ok(hold) => (Some(hold), None),
                Err(exceeded) => (None, Some(exceeded)),
            },
        };
        create.extras.payer = Some(Box::new(Payer { account, exceeded }));
        hold
    }

    /// Whether the stream of a creation exists.
    fn finds(&self, create: &Create) -> bool {
        let now = self.clock.time();
        let mut streams = create.known.iter().filter_map(Lookup::stream);
        streams.any(|stream| {
            *stream.name == *create.name
                && stream.facts().life == Life::Live
                && !stream.expired(now)
        })
    }

    /// Counts what appends will store for the accounts of their streams, not of the caller, as far as these are limited.
    fn hold_storage(
        &self,
        access: &Access,
        appends: &[Append],
    ) -> Result<Vec<StorageHold>, Response> {
        let mut holds = Vec::new();
        for append in appends {
            let Target::Known(stream) = &append.target else {
                // Only the server itself names a stream that it has not found.
                continue;
            };
            let Some(account) = stream.account() else {
                continue;
            };
            let max = access.account_limits(account.0).stored_bytes;
            if max == 0 {
                continue;
            }
            let bytes = stored_bytes(&append.data, append.extras.metadata.as_deref());
            let wanted = StorageUse {
                streams: 0,
                bytes: bytes as u64,
            };
            let exceeded = |used: StorageUse| is_beyond(used.bytes, bytes, max).then_some(());
            let hold = self.router.views().hold_storage(account, wanted, exceeded);
            let quota = Quota::StoredBytes;
            holds.push(hold.map_err(|()| refused(access.storage_exceeded(account.0, quota, max)))?);
        }
        Ok(holds)
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

/// What a creation exceeds that stores so many bytes.
fn exceeded_by(used: StorageUse, bytes: usize, limits: QuotaLimits) -> Option<StorageExceeded> {
    let (limit, max) = if limits.streams > 0 && used.streams >= limits.streams {
        (StorageLimit::Streams, limits.streams)
    } else if is_beyond(used.bytes, bytes, limits.stored_bytes) {
        (StorageLimit::Bytes, limits.stored_bytes)
    } else {
        return None;
    };
    Some(StorageExceeded { limit, max })
}

/// What data and metadata take of a quota.
fn stored_bytes(data: &Data, metadata: Option<&str>) -> usize {
    data.bytes.len() + metadata.map_or(0, str::len)
}

/// Whether an account that stores so much has no room for more bytes. 0 is no limit. What stores nothing is always taken.
fn is_beyond(used: u64, bytes: usize, max: u64) -> bool {
    max > 0 && bytes > 0 && used.saturating_add(bytes as u64) > max
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

/// What the names of streams begin with that no client can name: the server makes them, and pays for them.
const OWN: char = '\u{1}';
