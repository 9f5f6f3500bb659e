//! The callers of a shard's connections: what lasts longer than a caller's credentials ends with them. Some 36 bytes for each
//! connection, and none without access control.

use std::time::Duration;

use encke_access::{CallerIdentity, CallerTag};

use crate::chunked_vec::ChunkedVec;
use crate::clock::Monotonic;
use crate::connection::exchange_id::ExchangeId;

/// The callers by the numbers of their connections' slots, and a sweep over them.
#[derive(Debug, Default)]
pub(crate) struct ConnectionCallers {
    callers: ChunkedVec<Option<CallerTag>>,
    /// When their credentials end, in whole seconds since 1970, rounded up; [`NEVER`] for those that do not. Apart from the
    /// callers, because the sweep reads little else.
    ends_s: ChunkedVec<u32>,
    sweep: Sweep,
}

/// A pass over all connections, in steps.
#[derive(Debug, Default)]
struct Sweep {
    /// When the last one began.
    begun: Option<Monotonic>,
    /// The slot that is looked at next; `None` between two passes.
    next: Option<u32>,
    /// The time of this pass.
    now_s: u32,
    /// The revocations that this pass knows, and whether connections are compared with them.
    revocations: u64,
    compares: bool,
}

/// Why the time of a caller is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallerEnd {
    /// The token, or the certificate of the connection, has expired.
    Expired,
    /// An operator has revoked it.
    Revoked,
}

impl ConnectionCallers {
    /// Sets the caller of a connection's request. `until_ms` is when the connection's own credential ends, if it has one: the
    /// certificate of its client, which lets in those too that present other credentials, or none.
    pub(crate) fn set(
        &mut self,
        exchange: ExchangeId,
        caller: Option<CallerTag>,
        until_ms: Option<u64>,
    ) {
        let ends_at_ms = caller.as_ref().and_then(CallerTag::ends_at_ms);
        let first_ms = ends_at_ms.into_iter().chain(until_ms).min();
        self.put(exchange, caller, first_ms);
    }

    /// The caller of a connection's request, if it has credentials.
    pub(crate) fn identity(&self, exchange: ExchangeId) -> Option<CallerIdentity> {
        self.callers.get(exchange.slot())?.as_ref()?.identity()
    }

    fn put(&mut self, exchange: ExchangeId, caller: Option<CallerTag>, ends_at_ms: Option<u64>) {
        let index = exchange.slot();
        let is_new = self.callers.len() <= index as usize;
        if is_new && caller.is_none() && ends_at_ms.is_none() {
            return;
        }
        while self.callers.len() <= index as usize {
            self.callers.push(None);
            self.ends_s.push(NEVER);
        }
        self.ends_s[index] = ends_at_ms.map_or(NEVER, |ms| {
            u32::try_from(ms.div_ceil(1000)).unwrap_or(NEVER)
        });
        self.callers[index] = caller;
    }

    /// Begins a pass over all connections, if it is time to. Credentials end at a time of day, which is `now_ms`;
    /// `revocations` is the version of the list of revocations.
    pub(crate) fn begin_sweep(&mut self, now: Monotonic, now_ms: u64, revocations: u64) {
        if self.callers.len() == 0
            || self.sweep.next.is_some()
            || (self.sweep.begun).is_some_and(|begun| now.since(begun) < SWEEP_EVERY)
        {
            return;
        }
        self.sweep = Sweep {
            begun: Some(now),
            next: Some(0),
            now_s: u32::try_from(now_ms / 1000).unwrap_or(NEVER - 1),
            compares: revocations != self.sweep.revocations,
            revocations,
        };
    }

    /// Looks at the next connections of the pass, up to the next one whose caller's time is over, or so many that other work is
    /// due. False: the pass is over.
    pub(crate) fn sweep(
        &mut self,
        is_revoked: impl Fn(&CallerTag) -> bool,
        over: &mut Option<(ExchangeId, CallerEnd)>,
    ) -> bool {
        let Some(mut index) = self.sweep.next else {
            return false;
        };
        let end = (index as usize + SLOTS_AT_ONCE).min(self.callers.len()) as u32;
        while index < end && over.is_none() {
            if self.ends_s[index] <= self.sweep.now_s {
                // It is told once.
                self.ends_s[index] = NEVER;
                *over = Some((ExchangeId::new(index), CallerEnd::Expired));
            } else if self.sweep.compares
                && let Some(caller) = &self.callers[index]
                && is_revoked(caller)
            {
                *over = Some((ExchangeId::new(index), CallerEnd::Revoked));
            }
            index += 1;
        }
        self.sweep.next = ((index as usize) < self.callers.len()).then_some(index);
        true
    }

    /// Whether a pass is under way.
    pub(crate) fn is_sweeping(&self) -> bool {
        self.sweep.next.is_some()
    }
}

/// Credentials that do not end.
const NEVER: u32 = u32::MAX;

/// How often all connections are looked at: a connection outlives its caller's credentials by at most about this, and the second
/// to which their end is rounded.
const SWEEP_EVERY: Duration = Duration::from_millis(500);

/// Connections that are looked at between two looks at the clock.
const SLOTS_AT_ONCE: usize = 1024;

#[cfg(test)]
mod tests {
    use encke_access::{Access, AccessConfig, AnonymousConfig, Grants};

    use super::*;

    fn all_over(callers: &mut ConnectionCallers, revoked: bool) -> Vec<(ExchangeId, CallerEnd)> {
        let mut found = Vec::new();
        let mut over = None;
        while callers.sweep(|_| revoked, &mut over) {
            found.extend(over.take());
        }
        found
    }

    fn caller() -> Option<CallerTag> {
        let config = AccessConfig {
            anonymous: Some(AnonymousConfig {
                grants: Grants::default(),
            }),
            ..AccessConfig::default()
        };
        let access = Access::from_config(&config, &|_| Ok(Vec::new())).unwrap();
        Some(access.anonymous().unwrap().tag())
    }

    #[test]
    fn a_connection_ends_with_its_certificate_whoever_calls() {
        let mut callers = ConnectionCallers::default();
        callers.set(ExchangeId::new(3), None, None);
        assert_eq!(callers.callers.len(), 0, "nothing to keep");
        callers.set(ExchangeId::new(3), None, Some(10_000));
        callers.set(ExchangeId::new(4), caller(), Some(10_000));
        callers.begin_sweep(Monotonic::from_ms(9_999), 9_999, 0);
        assert_eq!(all_over(&mut callers, false), []);
        callers.begin_sweep(Monotonic::from_ms(10_500), 10_500, 0);
        let ended = [3, 4].map(|slot| (ExchangeId::new(slot), CallerEnd::Expired));
        assert_eq!(all_over(&mut callers, false), ended);
    }

    #[test]
    fn callers_end_with_their_time_or_by_revocation() {
        let mut callers = ConnectionCallers::default();
        callers.put(ExchangeId::new(2_000), caller(), Some(10_000));
        callers.put(ExchangeId::new(7), caller(), Some(20_000));
        callers.begin_sweep(Monotonic::from_ms(9_999), 9_999, 0);
        assert_eq!(all_over(&mut callers, true), [], "no revocation is new");
        callers.begin_sweep(Monotonic::from_ms(10_000), 10_000, 0);
        assert_eq!(
            all_over(&mut callers, true),
            [],
            "the last pass was just now"
        );
        callers.begin_sweep(Monotonic::from_ms(10_500), 10_500, 0);
        assert_eq!(
            all_over(&mut callers, true),
            [(ExchangeId::new(2_000), CallerEnd::Expired)]
        );
        callers.put(ExchangeId::new(2_000), None, None);
        callers.put(ExchangeId::new(8), caller(), None);
        callers.begin_sweep(Monotonic::from_ms(11_000), 11_000, 1);
        let revoked = [
            (ExchangeId::new(7), CallerEnd::Revoked),
            (ExchangeId::new(8), CallerEnd::Revoked),
        ];
        assert_eq!(all_over(&mut callers, true), revoked);
        callers.begin_sweep(Monotonic::from_ms(20_000), 20_000, 1);
        assert_eq!(
            all_over(&mut callers, true),
            [(ExchangeId::new(7), CallerEnd::Expired)]
        );
        callers.begin_sweep(Monotonic::from_ms(30_000), 30_000, 1);
        assert_eq!(all_over(&mut callers, true), [], "each is found once");
        assert!(!callers.is_sweeping());
    }

    #[test]
    fn without_access_control_it_costs_nothing() {
        let mut callers = ConnectionCallers::default();
        callers.set(ExchangeId::new(5_000), None, None);
        assert_eq!(callers.callers.len(), 0);
        callers.begin_sweep(Monotonic::from_ms(10_000), 10_000, 1);
        assert!(!callers.is_sweeping());
    }
}
