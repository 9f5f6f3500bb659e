//! Refusals that repeat: a client that tries the same again and again costs a line for each interval, and not one for each request.
//!
//! What one client is refused for one reason is a series. Its first refusal gets a line at once; the others of an interval are
//! counted, and get one line together, with the last one's request. No refusal is left out of the counts. What operators do is
//! never put together.

use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

use foldhash::{HashMap, HashMapExt};

use super::entry::AuditEntry;

/// The series of refusals that have not ended.
#[derive(Debug)]
pub(super) struct Repeats {
    series: HashMap<(Box<str>, &'static str), Series>,
    /// When the next interval of any series may end.
    look_at: Option<Instant>,
}

#[derive(Debug)]
struct Series {
    ends: Instant,
    /// The last refusal, and how many there were since the last line.
    last: Option<(AuditEntry, u64)>,
}

impl Default for Repeats {
    fn default() -> Self {
        Repeats {
            series: HashMap::new(),
            look_at: None,
        }
    }
}

impl Repeats {
    /// Takes an entry. Returns it if it gets a line of its own now.
    pub(super) fn take(&mut self, entry: AuditEntry, now: Instant) -> Option<AuditEntry> {
        if !entry.note.is_refusal() {
            return Some(entry);
        }
        let mut key = (entry.client.clone(), entry.note.reason);
        if self.series.len() >= SERIES_MAX && !self.series.contains_key(&key) {
            // A series for all further clients, and each reason.
            key.0 = OTHERS.into();
        }
        match self.series.entry(key) {
            Entry::Occupied(mut series) => {
                let last = &mut series.get_mut().last;
                let before = last.as_ref().map_or(0, |(_, count)| *count);
                *last = Some((entry, before + 1));
                None
            }
            Entry::Vacant(series) => {
                let ends = now + INTERVAL;
                series.insert(Series { ends, last: None });
                self.look_at.get_or_insert(ends);
                Some(entry)
            }
        }
    }

    /// How long nothing is due; `None` while there is no series.
    pub(super) fn due_in(&self, now: Instant) -> Option<Duration> {
        Some(self.look_at?.saturating_duration_since(now))
    }

    /// The lines of all series whose interval is over, or of all series: the last refusal, and how many there were.
    pub(super) fn due(&mut self, now: Instant, all: bool) -> Vec<(AuditEntry, u64)> {
        if !all && self.look_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        let mut lines = Vec::new();
        self.series.retain(|_, series| {
            if series.ends > now && !all {
                return true;
            }
            series.ends = now + INTERVAL;
            let goes_on = series.last.is_some();
            lines.extend(series.last.take());
            goes_on
        });
        self.look_at = self.series.values().map(|series| series.ends).min();
        lines
    }
}

/// How long refusals are counted before they get a line together.
const INTERVAL: Duration = Duration::from_secs(10);

/// Clients and reasons at a time that have series of their own; the refusals of all further clients are one series for each reason.
const SERIES_MAX: usize = 10_000;

/// In place of a client. No client is called so.
const OTHERS: &str = "others";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::tests::entry;

    fn of(client: &str, path: &str) -> AuditEntry {
        AuditEntry {
            client: client.into(),
            ..entry(path)
        }
    }

    #[test]
    fn a_series_has_a_line_at_once_and_one_for_each_interval() {
        let (mut repeats, begin) = (Repeats::default(), Instant::now());
        assert_eq!(repeats.due_in(begin), None);
        assert!(repeats.take(of("a", "/1"), begin).is_some());
        for path in ["/2", "/3"] {
            assert!(repeats.take(of("a", path), begin).is_none());
        }
        assert!(
            repeats.take(of("b", "/4"), begin).is_some(),
            "another client"
        );
        let mut other = of("a", "/5");
        other.note.reason = "no_credentials";
        assert!(repeats.take(other, begin).is_some(), "another reason");
        assert_eq!(repeats.due_in(begin), Some(INTERVAL));
        assert!(repeats.due(begin, false).is_empty());
        let lines = repeats.due(begin + INTERVAL, false);
        let told: Vec<_> = lines
            .iter()
            .map(|(entry, count)| (&*entry.note.path, *count))
            .collect();
        assert_eq!(told, [("/3", 2)]);
        // It goes on, and the others have ended.
        assert!(repeats.take(of("a", "/6"), begin + INTERVAL).is_none());
        assert!(repeats.take(of("b", "/7"), begin + INTERVAL).is_some());
        assert_eq!(repeats.due(begin + INTERVAL, true).len(), 1);
        repeats.due(begin + 3 * INTERVAL, false);
        assert_eq!(
            repeats.due_in(begin),
            None,
            "nothing is kept of what has ended"
        );
    }

    #[test]
    fn what_operators_do_is_never_put_together() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        for _ in 0..3 {
            let mut entry = of("a", "/v1/admin/revoke");
            entry.note.event = "admin";
            assert!(repeats.take(entry, now).is_some());
        }
    }

    #[test]
    fn the_number_of_series_is_bounded() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        let taken = (0..SERIES_MAX + 10)
            .filter(|number| repeats.take(of(&number.to_string(), "/"), now).is_some())
            .count();
        // The first of the others has a line, too.
        assert_eq!(
            (taken, repeats.series.len()),
            (SERIES_MAX + 1, SERIES_MAX + 1)
        );
        assert!(repeats.take(of("0", "/"), now).is_none());
        let told: u64 = repeats.due(now, true).iter().map(|(_, count)| count).sum();
        assert_eq!(told, 10);
    }
}
