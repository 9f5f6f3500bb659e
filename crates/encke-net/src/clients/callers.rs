//! The callers of a shard's connections: what lasts longer than a caller's credentials ends with them, and with the grants that it needs.
//! Some 52 bytes for each connection and what its path takes, and none without access control.

use std::time::Duration;

use encke_access::{CallerIdentity, CallerTag};
use encke_clock::{WallSeconds, WallTime};
use encke_protocol::{CallerJudgement, CallerNeeds};

use crate::chunked_vec::ChunkedVec;
use crate::clock::Monotonic;
use crate::connection::exchange_id::ExchangeId;

/// The callers by the numbers of their connections' slots, and a sweep over them.
#[derive(Debug, Default)]
pub(crate) struct ConnectionCallers {
    callers: ChunkedVec<Option<CallerTag>>,
    /// What their requests need of them while they last.
    needs: ChunkedVec<Option<CallerNeeds>>,
    /// When their credentials end, rounded up; [`NEVER`] for those that do not. Apart from the callers, because the sweep reads
    /// little else.
    ends_at: ChunkedVec<WallSeconds>,
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
    now: WallSeconds,
    /// The version of the access control that this pass knows, and whether connections are judged by it.
    version: u64,
    judges: bool,
}

/// Why the time of a caller is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallerEnd {
    /// The token, or the certificate of the connection, has expired.
    Expired,
    /// An operator has revoked it, or what it did is not allowed any more.
    Revoked,
}

/// What the sweep has found of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SweptCaller {
    /// The time of its caller is over.
    Ended(CallerEnd),
    /// Its caller is granted something else than before.
    Regranted,
}

impl ConnectionCallers {
    /// Sets the caller of a connection's request. `until` is when the connection's own credential ends, if it has one: the
    /// certificate of its client, which lets in those too that present other credentials, or none.
    pub(crate) fn set(
        &mut self,
        exchange: ExchangeId,
        caller: Option<CallerTag>,
        needs: Option<CallerNeeds>,
        until: Option<WallTime>,
    ) {
        let ends_at = caller.as_ref().and_then(CallerTag::ends_at);
        let ends_at = ends_at.into_iter().chain(until).min();
        self.put(exchange, (caller, needs), ends_at);
    }

    /// The caller of a connection's request, if it has credentials.
    pub(crate) fn identity(&self, exchange: ExchangeId) -> Option<CallerIdentity> {
        self.callers.get(exchange.slot())?.as_ref()?.identity()
    }

    /// What is kept of the caller of a connection's request.
    pub(crate) fn tag(&self, exchange: ExchangeId) -> Option<&CallerTag> {
        self.callers.get(exchange.slot())?.as_ref()
    }

    /// What a connection's request needs of its caller, if that is kept.
    pub(crate) fn needs(&self, exchange: ExchangeId) -> Option<&CallerNeeds> {
        self.needs.get(exchange.slot())?.as_ref()
    }

    fn put(
        &mut self,
        exchange: ExchangeId,
        (caller, needs): (Option<CallerTag>, Option<CallerNeeds>),
        ends_at: Option<WallTime>,
    ) {
        let index = exchange.slot();
        let is_new = self.callers.len() <= index as usize;
        if is_new && caller.is_none() && ends_at.is_none() {
            return;
        }
        while self.callers.len() <= index as usize {
            self.callers.push(None);
            self.needs.push(None);
            self.ends_at.push(NEVER);
        }
        self.ends_at[index] = ends_at.map_or(NEVER, |at| {
            let rounded_up = at.after(Duration::from_millis(999));
            rounded_up.in_seconds()
        });
        self.callers[index] = caller;
        self.needs[index] = needs;
    }

    /// Begins a pass over all connections, if it is time to. Credentials end at a time of day, which is `wall`;
    /// `version` is that of the access control.
    pub(crate) fn begin_sweep(&mut self, now: Monotonic, wall: WallTime, version: u64) {
        if self.callers.len() == 0
            || self.sweep.next.is_some()
            || (self.sweep.begun).is_some_and(|begun| now.since(begun) < SWEEP_EVERY)
        {
            return;
        }
        self.sweep = Sweep {
            begun: Some(now),
            next: Some(0),
            now: wall.in_seconds().min(LATEST),
            judges: version != self.sweep.version,
            version,
        };
    }

    /// Looks at the next connections of the pass, up to the next one to which something has happened, or so many that other work is
    /// due. False: the pass is over.
    pub(crate) fn sweep(
        &mut self,
        judge: impl Fn(&CallerTag, Option<&CallerNeeds>) -> CallerJudgement,
        found: &mut Option<(ExchangeId, SweptCaller)>,
    ) -> bool {
        let Some(mut index) = self.sweep.next else {
            return false;
        };
        let end = (index as usize + SLOTS_AT_ONCE).min(self.callers.len()) as u32;
        while index < end && found.is_none() {
            if self.ends_at[index] <= self.sweep.now {
                // It is told once.
                self.ends_at[index] = NEVER;
                *found = Some((
                    ExchangeId::new(index),
                    SweptCaller::Ended(CallerEnd::Expired),
                ));
            } else if self.sweep.judges
                && let Some(caller) = &self.callers[index]
            {
                let swept = match judge(caller, self.needs[index].as_ref()) {
                    CallerJudgement::Unchanged => None,
                    CallerJudgement::Regranted => Some(SweptCaller::Regranted),
                    CallerJudgement::Refused => Some(SweptCaller::Ended(CallerEnd::Revoked)),
                    CallerJudgement::Unknown => Some(SweptCaller::Ended(CallerEnd::Expired)),
                };
                *found = swept.map(|swept| (ExchangeId::new(index), swept));
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
const NEVER: WallSeconds = WallSeconds::from_s(u32::MAX);

/// The last time of a pass, which finds none that does not end.
const LATEST: WallSeconds = WallSeconds::from_s(u32::MAX - 1);

/// How often all connections are looked at: a connection outlives its caller's credentials by at most about this, and the second
/// to which their end is rounded.
const SWEEP_EVERY: Duration = Duration::from_millis(500);

/// Connections that are looked at between two looks at the clock.
const SLOTS_AT_ONCE: usize = 1024;

#[cfg(test)]
mod tests {
    use encke_access::{Access, AccessConfig, AnonymousConfig, Grants};

    use super::*;

    fn wall(ms: u64) -> WallTime {
        WallTime::from_ms(ms)
    }

    fn all_over(callers: &mut ConnectionCallers, revoked: bool) -> Vec<(ExchangeId, CallerEnd)> {
        let judgement = match revoked {
            true => CallerJudgement::Refused,
            false => CallerJudgement::Unchanged,
        };
        let ended = |(id, swept)| match swept {
            SweptCaller::Ended(end) => (id, end),
            SweptCaller::Regranted => panic!("nobody was granted something else"),
        };
        let swept = all_swept(callers, |_| judgement);
        swept.into_iter().map(ended).collect()
    }

    fn all_swept(
        callers: &mut ConnectionCallers,
        judge: impl Fn(Option<&CallerNeeds>) -> CallerJudgement,
    ) -> Vec<(ExchangeId, SweptCaller)> {
        let mut all = Vec::new();
        let mut found = None;
        while callers.sweep(|_, needs| judge(needs), &mut found) {
            all.extend(found.take());
        }
        all
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
        callers.set(ExchangeId::new(3), None, None, None);
        assert_eq!(callers.callers.len(), 0, "nothing to keep");
        callers.set(ExchangeId::new(3), None, None, Some(wall(10_000)));
        callers.set(ExchangeId::new(4), caller(), None, Some(wall(10_000)));
        callers.begin_sweep(Monotonic::from_ms(9_999), wall(9_999), 0);
        assert_eq!(all_over(&mut callers, false), []);
        callers.begin_sweep(Monotonic::from_ms(10_500), wall(10_500), 0);
        let ended = [3, 4].map(|slot| (ExchangeId::new(slot), CallerEnd::Expired));
        assert_eq!(all_over(&mut callers, false), ended);
    }

    #[test]
    fn callers_end_with_their_time_or_by_revocation() {
        let mut callers = ConnectionCallers::default();
        callers.put(ExchangeId::new(2_000), (caller(), None), Some(wall(10_000)));
        callers.put(ExchangeId::new(7), (caller(), None), Some(wall(20_000)));
        callers.begin_sweep(Monotonic::from_ms(9_999), wall(9_999), 0);
        assert_eq!(all_over(&mut callers, true), [], "no revocation is new");
        callers.begin_sweep(Monotonic::from_ms(10_000), wall(10_000), 0);
        assert_eq!(
            all_over(&mut callers, true),
            [],
            "the last pass was just now"
        );
        callers.begin_sweep(Monotonic::from_ms(10_500), wall(10_500), 0);
        assert_eq!(
            all_over(&mut callers, true),
            [(ExchangeId::new(2_000), CallerEnd::Expired)]
        );
        callers.put(ExchangeId::new(2_000), (None, None), None);
        callers.put(ExchangeId::new(8), (caller(), None), None);
        callers.begin_sweep(Monotonic::from_ms(11_000), wall(11_000), 1);
        let revoked = [
            (ExchangeId::new(7), CallerEnd::Revoked),
            (ExchangeId::new(8), CallerEnd::Revoked),
        ];
        assert_eq!(all_over(&mut callers, true), revoked);
        callers.begin_sweep(Monotonic::from_ms(20_000), wall(20_000), 1);
        assert_eq!(
            all_over(&mut callers, true),
            [(ExchangeId::new(7), CallerEnd::Expired)]
        );
        callers.begin_sweep(Monotonic::from_ms(30_000), wall(30_000), 1);
        assert_eq!(all_over(&mut callers, true), [], "each is found once");
        assert!(!callers.is_sweeping());
    }

    #[test]
    fn a_new_version_is_judged_once_and_each_outcome_is_reported() {
        let mut callers = ConnectionCallers::default();
        for slot in 0..5_000 {
            callers.put(ExchangeId::new(slot), (caller(), None), None);
        }
        callers.put(ExchangeId::new(3), (None, None), None);
        callers.begin_sweep(Monotonic::from_ms(1_000), wall(1_000), 1);
        let swept = all_swept(&mut callers, |_| CallerJudgement::Regranted);
        assert_eq!(swept.len(), 4_999, "all but the one without a caller");
        assert!(
            swept
                .iter()
                .all(|(_, swept)| *swept == SweptCaller::Regranted)
        );
        callers.begin_sweep(Monotonic::from_ms(2_000), wall(2_000), 1);
        let swept = all_swept(&mut callers, |_| CallerJudgement::Refused);
        assert_eq!(swept, [], "the version is the same");
        callers.begin_sweep(Monotonic::from_ms(3_000), wall(3_000), 2);
        let swept = all_swept(&mut callers, |_| CallerJudgement::Unknown);
        let expired = SweptCaller::Ended(CallerEnd::Expired);
        assert_eq!(swept.len(), 4_999);
        assert!(swept.iter().all(|(_, swept)| *swept == expired));
    }

    #[test]
    fn without_access_control_it_costs_nothing() {
        let mut callers = ConnectionCallers::default();
        callers.set(ExchangeId::new(5_000), None, None, None);
        assert_eq!(callers.callers.len(), 0);
        callers.begin_sweep(Monotonic::from_ms(10_000), wall(10_000), 1);
        assert!(!callers.is_sweeping());
    }
}
