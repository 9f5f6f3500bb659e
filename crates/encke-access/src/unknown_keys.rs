//! Keys that tokens name and their issuer may or may not have: when to fetch its keys again, and what to say until then.
//!
//! A client can invent the name of a key, and a rotated key has a name that is new to the server: the two look the same until the keys of
//! the issuer are fetched. So a name is refused only after a fetch that began later than the name was first seen, and was not found by it. Names do not
//! cost each other anything but time: a fetch looks for all of them, and fetches are spaced, not counted out.

use std::collections::HashMap;

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
    /// When it was first asked for after such a fetch, in milliseconds since 1970.
    missing_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Failed {
    /// When it was first noticed, in milliseconds since 1970.
    noticed_ms: Option<u64>,
}

/// What is to be done about a key that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// The issuer does not have it: a fetch has looked for it.
    Missing,
    /// Its keys must be fetched.
    Fetch,
    /// Its keys must be fetched, and the next fetch may begin after this many milliseconds.
    Wait {
        /// At least 1.
        ms: u64,
    },
}

impl UnknownKeys {
    /// What to do about a token that names a key which is not known. `is_due`: a fetch is asked for already, or runs.
    pub(crate) fn ask(&mut self, name: &str, is_due: bool, now_ms: u64) -> Unknown {
        let digest = Digest::of(name);
        if let Some(known) = self.names.get_mut(&digest)
            && self.found_by > known.seen_at
        {
            let since_ms = *known.missing_ms.get_or_insert(now_ms);
            if is_within(since_ms, now_ms) {
                return Unknown::Missing;
            }
            // The issuer may have it by now.
            self.names.remove(&digest);
        }
        if is_due {
            self.note(digest, now_ms);
            return Unknown::Fetch;
        }
        if let Some(failed) = &mut self.failed {
            let noticed_ms = *failed.noticed_ms.get_or_insert(now_ms);
            if is_within(noticed_ms, now_ms) {
                let passed = now_ms.saturating_sub(noticed_ms);
                let ms = FETCH_INTERVAL_MS - passed;
                return Unknown::Wait { ms };
            }
        }
        match self.spacing.take(now_ms) {
            Ok(()) => {
                self.note(digest, now_ms);
                Unknown::Fetch
            }
            Err(ms) => Unknown::Wait { ms },
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
            false => self.failed = Some(Failed { noticed_ms: None }),
        }
    }

    /// Number of names that are remembered.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    fn note(&mut self, digest: Digest, now_ms: u64) {
        if self.names.contains_key(&digest) {
            return;
        }
        if self.names.len() >= UNKNOWN_KEYS_MAX {
            self.names.retain(|_, name| {
                name.missing_ms
                    .is_none_or(|since_ms| is_within(since_ms, now_ms))
            });
        }
        // A name that gives way is looked for again instead of being refused.
        if self.names.len() >= UNKNOWN_KEYS_MAX
            && let Some(other) = self.names.keys().next().copied()
        {
            self.names.remove(&other);
        }
        let name = Name {
            seen_at: self.begun,
            missing_ms: None,
        };
        self.names.insert(digest, name);
    }
}

/// Spaces fetches: [`FETCHES_AT_ONCE`] at once, and one for each [`FETCH_INTERVAL_MS`].
#[derive(Debug, Default)]
struct Spacing {
    /// When all fetches so far are paid for, in milliseconds since 1970.
    paid_ms: u64,
}

impl Spacing {
    /// Takes a fetch, or says after how many milliseconds there is one.
    fn take(&mut self, now_ms: u64) -> Result<(), u64> {
        // A clock that was set back must not stop all fetches: what was paid is no more than can be.
        let latest_ms = now_ms.saturating_add(FETCHES_AT_ONCE * FETCH_INTERVAL_MS);
        let paid_ms = self.paid_ms.clamp(now_ms, latest_ms);
        let ahead_ms = paid_ms - now_ms;
        self.paid_ms = paid_ms;
        let ahead_ms_max = (FETCHES_AT_ONCE - 1) * FETCH_INTERVAL_MS;
        self.paid_ms = paid_ms;
        if ahead_ms > ahead_ms_max {
            return Err(ahead_ms - ahead_ms_max);
        }
        self.paid_ms += FETCH_INTERVAL_MS;
        Ok(())
    }
}

/// Whether less than an interval has passed. A clock that was set back has passed it.
fn is_within(since_ms: u64, now_ms: u64) -> bool {
    (since_ms..since_ms.saturating_add(FETCH_INTERVAL_MS)).contains(&now_ms)
}

/// Time between two fetches that unknown keys cause, for each issuer, after [`FETCHES_AT_ONCE`]: what an attacker can cause by
/// inventing keys, and by how much it can delay a key that is new. A key that the issuer does not have is refused for as long.
pub const FETCH_INTERVAL_MS: u64 = 10_000;

/// Fetches that unknown keys cause at once, for each issuer.
pub const FETCHES_AT_ONCE: u64 = 3;

/// Unknown keys of an issuer that are remembered.
pub const UNKNOWN_KEYS_MAX: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    fn fetch(keys: &mut UnknownKeys, went_well: bool) {
        keys.fetch_began();
        keys.fetch_ended(went_well);
    }

    /// Uses up what may be fetched at once.
    fn exhaust(keys: &mut UnknownKeys, now_ms: u64) {
        for number in 0..FETCHES_AT_ONCE {
            let name = format!("invented-{number}");
            assert_eq!(keys.ask(&name, false, now_ms), Unknown::Fetch);
            fetch(keys, true);
        }
    }

    #[test]
    fn a_name_is_refused_when_a_fetch_has_looked_for_it_and_for_a_while() {
        let mut keys = UnknownKeys::default();
        fetch(&mut keys, true);
        assert_eq!(keys.ask("a", false, 1_000), Unknown::Fetch);
        keys.fetch_began();
        // It is new to this fetch, which may have read the keys before there was one of the name.
        assert_eq!(keys.ask("b", true, 1_100), Unknown::Fetch);
        keys.fetch_ended(true);
        assert_eq!(keys.ask("a", false, 1_200), Unknown::Missing);
        assert_eq!(keys.ask("b", false, 1_200), Unknown::Fetch);
        fetch(&mut keys, true);
        assert_eq!(keys.ask("b", false, 1_300), Unknown::Missing);
        assert_eq!(
            keys.ask("a", false, 1_199 + FETCH_INTERVAL_MS),
            Unknown::Missing
        );
        assert_eq!(
            keys.ask("a", false, 1_200 + FETCH_INTERVAL_MS),
            Unknown::Fetch
        );
    }

    #[test]
    fn invented_names_delay_a_new_one_and_never_refuse_it() {
        let mut keys = UnknownKeys::default();
        exhaust(&mut keys, 1_000);
        let Unknown::Wait { ms } = keys.ask("new", false, 1_500) else {
            panic!("it is not refused, and no fetch is due");
        };
        assert_eq!(ms, FETCH_INTERVAL_MS - 500);
        assert_eq!(
            keys.ask("new", false, 1_500 + ms - 1),
            Unknown::Wait { ms: 1 }
        );
        assert_eq!(keys.ask("new", false, 1_500 + ms), Unknown::Fetch);
        // A fetch looks for all unknown keys, whichever token caused it.
        assert_eq!(keys.ask("other", true, 1_600 + ms), Unknown::Fetch);
        fetch(&mut keys, true);
        assert_eq!(keys.ask("new", false, 1_700 + ms), Unknown::Missing);
        assert_eq!(keys.ask("other", false, 1_700 + ms), Unknown::Missing);
    }

    #[test]
    fn fetches_are_spaced_however_many_names_are_invented() {
        let mut keys = UnknownKeys::default();
        let minute = 60_000;
        let fetches = (0..minute)
            .step_by(100)
            .filter(|ms| {
                let is_due = keys.ask(&format!("invented-{ms}"), false, 1_000 + ms);
                if is_due == Unknown::Fetch {
                    fetch(&mut keys, true);
                }
                is_due == Unknown::Fetch
            })
            .count() as u64;
        assert_eq!(fetches, FETCHES_AT_ONCE + (minute - 1) / FETCH_INTERVAL_MS);
        // A clock that is set back stops nothing for long.
        let back = keys.ask("new", false, 500);
        let wait = |unknown| match unknown {
            Unknown::Wait { ms } => ms,
            _ => 0,
        };
        assert!(wait(back) <= FETCH_INTERVAL_MS, "{back:?}");
    }

    #[test]
    fn a_failed_fetch_refuses_nothing_and_is_repeated_after_an_interval() {
        let mut keys = UnknownKeys::default();
        assert_eq!(keys.ask("a", false, 1_000), Unknown::Fetch);
        fetch(&mut keys, false);
        let ms = FETCH_INTERVAL_MS;
        assert_eq!(keys.ask("a", false, 6_000), Unknown::Wait { ms });
        assert_eq!(
            keys.ask("b", false, 7_000),
            Unknown::Wait { ms: ms - 1_000 }
        );
        assert_eq!(keys.ask("a", false, 6_000 + ms), Unknown::Fetch);
        fetch(&mut keys, true);
        assert_eq!(keys.ask("a", false, 7_000 + ms), Unknown::Missing);
        assert_eq!(keys.ask("b", false, 7_000 + ms), Unknown::Fetch);
    }

    #[test]
    fn the_number_of_remembered_names_is_bounded() {
        let mut keys = UnknownKeys::default();
        keys.fetch_began();
        for number in 0..2 * UNKNOWN_KEYS_MAX {
            assert_eq!(keys.ask(&number.to_string(), true, 1_000), Unknown::Fetch);
        }
        assert_eq!(keys.len(), UNKNOWN_KEYS_MAX);
    }
}
