//! Keys that tokens name and their issuer may or may not have: when to fetch its keys again, and what to say until then.
//!
//! A client can invent the name of a key, and a rotated key has a name that is new to the server: the two look the same until the keys of
//! the issuer are fetched. So a name is refused only after a fetch that began later than the name was first seen, and was not found by it. Names do not
//! cost each other anything but time: a fetch looks for all of them, and fetches are spaced, not counted out.

use std::collections::HashMap;
use std::time::Duration;

use encke_clock::SteadyTime;

use crate::digest::Digest;

/// The unknown keys of one issuer.
#[derive(Debug, Default)]
pub(crate) struct UnknownKeys {
    names: HashMap<Digest, Name>,
    /// Fetches that have begun.
    begun: u64,
    /// The number of the last fetch that went well. All fetches before it count as if they had.
    found_by: u64,
    /// The last fetch failed.
    failed: Option<Failed>,
    spacing: Spacing,
}

#[derive(Clone, Copy, Debug)]
struct Name {
    /// Fetches that had begun when it was first seen: later ones have looked for it.
    seen_at: u64,
    /// When it was first asked for after such a fetch.
    missing_at: Option<SteadyTime>,
}

#[derive(Clone, Copy, Debug)]
struct Failed {
    /// When it was first noticed.
    noticed_at: Option<SteadyTime>,
}

/// What is to be done about a key that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// The issuer does not have it: a fetch has looked for it.
    Missing,
    /// Its keys must be fetched.
    Fetch,
    /// Its keys must be fetched, and the next fetch may begin after this time.
    Wait {
        /// At least a millisecond.
        time: Duration,
    },
}

impl UnknownKeys {
    /// What to do about a token that names a key which is not known. `is_due`: a fetch is asked for already, or runs.
    pub(crate) fn ask(&mut self, name: &str, is_due: bool, now: SteadyTime) -> Unknown {
        let digest = Digest::of(name);
        if let Some(known) = self.names.get_mut(&digest)
            && self.found_by > known.seen_at
        {
            let since = *known.missing_at.get_or_insert(now);
            if is_within(since, now) {
                return Unknown::Missing;
            }
            // The issuer may have it by now.
            self.names.remove(&digest);
        }
        if is_due {
            self.note(digest, now);
            return Unknown::Fetch;
        }
        if let Some(failed) = &mut self.failed {
            let noticed_at = *failed.noticed_at.get_or_insert(now);
            if is_within(noticed_at, now) {
                let time = FETCH_INTERVAL - now.since(noticed_at);
                return Unknown::Wait { time };
            }
        }
        match self.spacing.take(now) {
            Ok(()) => {
                self.note(digest, now);
                Unknown::Fetch
            }
            Err(time) => Unknown::Wait { time },
        }
    }

    /// A fetch has begun.
    pub(crate) fn fetch_began(&mut self) {
        self.begun += 1;
    }

    /// The fetch that began last has ended.
    pub(crate) fn fetch_ended(&mut self, went_well: bool) {
        match went_well {
            true => {
                self.found_by = self.begun;
                self.failed = None;
            }
            false => self.failed = Some(Failed { noticed_at: None }),
        }
    }

    /// Number of names that are remembered.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    fn note(&mut self, digest: Digest, now: SteadyTime) {
        if self.names.contains_key(&digest) {
            return;
        }
        if self.names.len() >= UNKNOWN_KEYS_MAX {
            self.names
                .retain(|_, name| name.missing_at.is_none_or(|since| is_within(since, now)));
        }
        // A name that gives way is looked for again instead of being refused.
        if self.names.len() >= UNKNOWN_KEYS_MAX
            && let Some(other) = self.names.keys().next().copied()
        {
            self.names.remove(&other);
        }
        let name = Name {
            seen_at: self.begun,
            missing_at: None,
        };
        self.names.insert(digest, name);
    }
}

/// Spaces fetches: [`FETCHES_AT_ONCE`] at once, and one for each [`FETCH_INTERVAL`].
#[derive(Debug, Default)]
struct Spacing {
    /// When all fetches so far are paid for.
    paid_at: SteadyTime,
}

impl Spacing {
    /// Takes a fetch, or returns the time until there is one.
    fn take(&mut self, now: SteadyTime) -> Result<(), Duration> {
        let paid_at = self.paid_at.max(now);
        let ahead = paid_at.since(now);
        let ahead_max = (FETCHES_AT_ONCE as u32 - 1) * FETCH_INTERVAL;
        if ahead > ahead_max {
            return Err(ahead - ahead_max);
        }
        self.paid_at = paid_at.after(FETCH_INTERVAL);
        Ok(())
    }
}

/// Whether less than an interval has passed.
fn is_within(since: SteadyTime, now: SteadyTime) -> bool {
    now.since(since) < FETCH_INTERVAL
}

/// Time between two fetches that unknown keys cause, for each issuer, after [`FETCHES_AT_ONCE`]: what an attacker can cause by
/// inventing keys, and by how much it can delay a key that is new. A key that the issuer does not have is refused for as long.
pub const FETCH_INTERVAL: Duration = Duration::from_secs(10);

/// Fetches that unknown keys cause at once, for each issuer.
pub const FETCHES_AT_ONCE: u64 = 3;

/// Unknown keys of an issuer that are remembered.
pub const UNKNOWN_KEYS_MAX: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    const FETCH_INTERVAL_MS: u64 = FETCH_INTERVAL.as_millis() as u64;

    fn at(ms: u64) -> SteadyTime {
        SteadyTime::from_ms(ms)
    }

    fn wait(ms: u64) -> Unknown {
        let time = Duration::from_millis(ms);
        Unknown::Wait { time }
    }

    fn fetch(keys: &mut UnknownKeys, went_well: bool) {
        keys.fetch_began();
        keys.fetch_ended(went_well);
    }

    /// Uses up what may be fetched at once.
    fn exhaust(keys: &mut UnknownKeys, now: SteadyTime) {
        for number in 0..FETCHES_AT_ONCE {
            let name = format!("invented-{number}");
            assert_eq!(keys.ask(&name, false, now), Unknown::Fetch);
            fetch(keys, true);
        }
    }

    #[test]
    fn a_name_is_refused_when_a_fetch_has_looked_for_it_and_for_a_while() {
        let mut keys = UnknownKeys::default();
        fetch(&mut keys, true);
        assert_eq!(keys.ask("a", false, at(1_000)), Unknown::Fetch);
        keys.fetch_began();
        // It is new to this fetch, which may have read the keys before there was one of the name.
        assert_eq!(keys.ask("b", true, at(1_100)), Unknown::Fetch);
        keys.fetch_ended(true);
        assert_eq!(keys.ask("a", false, at(1_200)), Unknown::Missing);
        assert_eq!(keys.ask("b", false, at(1_200)), Unknown::Fetch);
        fetch(&mut keys, true);
        assert_eq!(keys.ask("b", false, at(1_300)), Unknown::Missing);
        assert_eq!(
            keys.ask("a", false, at(1_199 + FETCH_INTERVAL_MS)),
            Unknown::Missing
        );
        assert_eq!(
            keys.ask("a", false, at(1_200 + FETCH_INTERVAL_MS)),
            Unknown::Fetch
        );
    }

    #[test]
    fn invented_names_delay_a_new_one_and_never_refuse_it() {
        let mut keys = UnknownKeys::default();
        exhaust(&mut keys, at(1_000));
        let Unknown::Wait { time } = keys.ask("new", false, at(1_500)) else {
            panic!("it is not refused, and no fetch is due");
        };
        let ms = time.as_millis() as u64;
        assert_eq!(ms, FETCH_INTERVAL_MS - 500);
        assert_eq!(keys.ask("new", false, at(1_500 + ms - 1)), wait(1));
        assert_eq!(keys.ask("new", false, at(1_500 + ms)), Unknown::Fetch);
        // A fetch looks for all unknown keys, whichever token caused it.
        assert_eq!(keys.ask("other", true, at(1_600 + ms)), Unknown::Fetch);
        fetch(&mut keys, true);
        assert_eq!(keys.ask("new", false, at(1_700 + ms)), Unknown::Missing);
        assert_eq!(keys.ask("other", false, at(1_700 + ms)), Unknown::Missing);
    }

    #[test]
    fn fetches_are_spaced_however_many_names_are_invented() {
        let mut keys = UnknownKeys::default();
        let minute = 60_000;
        let fetches = (0..minute)
            .step_by(100)
            .filter(|ms| {
                let is_due = keys.ask(&format!("invented-{ms}"), false, at(1_000 + ms));
                if is_due == Unknown::Fetch {
                    fetch(&mut keys, true);
                }
                is_due == Unknown::Fetch
            })
            .count() as u64;
        assert_eq!(fetches, FETCHES_AT_ONCE + (minute - 1) / FETCH_INTERVAL_MS);
    }

    #[test]
    fn a_failed_fetch_refuses_nothing_and_is_repeated_after_an_interval() {
        let mut keys = UnknownKeys::default();
        assert_eq!(keys.ask("a", false, at(1_000)), Unknown::Fetch);
        fetch(&mut keys, false);
        let ms = FETCH_INTERVAL_MS;
        assert_eq!(keys.ask("a", false, at(6_000)), wait(ms));
        assert_eq!(keys.ask("b", false, at(7_000)), wait(ms - 1_000));
        assert_eq!(keys.ask("a", false, at(6_000 + ms)), Unknown::Fetch);
        fetch(&mut keys, true);
        assert_eq!(keys.ask("a", false, at(7_000 + ms)), Unknown::Missing);
        assert_eq!(keys.ask("b", false, at(7_000 + ms)), Unknown::Fetch);
    }

    #[test]
    fn the_number_of_remembered_names_is_bounded() {
        let mut keys = UnknownKeys::default();
        keys.fetch_began();
        for number in 0..2 * UNKNOWN_KEYS_MAX {
            assert_eq!(
                keys.ask(&number.to_string(), true, at(1_000)),
                Unknown::Fetch
            );
        }
        assert_eq!(keys.len(), UNKNOWN_KEYS_MAX);
    }
}
