//! The last refusals, for operators who ask why something was refused.

use std::collections::VecDeque;
use std::sync::Arc;

use encke_clock::WallTime;
use encke_protocol::AuditNote;
use parking_lot::Mutex;

use super::entry::{AuditEntry, PATH_BYTES_MAX, TEXT_BYTES_MAX};
use crate::access_log::without_secrets;

/// The last refusals, the newest last: those that have lines in the audit log. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct RecentRefusals(Arc<Mutex<VecDeque<RefusalEntry>>>);

/// A request that was refused, or several of one client for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalEntry {
    /// The time of day of the last one.
    pub at: WallTime,
    /// The address of the client.
    pub client: Box<str>,
    /// The name of the caller; empty if it is not known.
    pub caller: Box<str>,
    /// The method.
    pub method: Box<str>,
    /// The path, without the query and without secrets.
    pub path: Box<str>,
    /// The status of the response.
    pub status: u16,
    /// The code of the refusal.
    pub reason: &'static str,
    /// How many there were.
    pub count: u64,
}

impl RecentRefusals {
    /// How many are kept.
    pub const ENTRIES_MAX: usize = 256;

    /// The last ones, the newest first.
    pub fn last(&self, count_max: usize) -> Vec<RefusalEntry> {
        let entries = self.0.lock();
        entries.iter().rev().take(count_max).cloned().collect()
    }

    /// Notes an entry, if it is a refusal. `repeated`: how many it stands for; 0 for one.
    pub(super) fn note(&self, entry: &AuditEntry, repeated: u64) {
        let AuditNote {
            reason,
            caller,
            method,
            path,
            ..
        } = &*entry.note;
        if !entry.note.is_refusal() {
            return;
        }
        let path = without_secrets(path.as_bytes());
        let refusal = RefusalEntry {
            at: entry.at,
            client: entry.client.clone(),
            caller: cut(caller, TEXT_BYTES_MAX),
            method: cut(method, TEXT_BYTES_MAX),
            path: cut(&String::from_utf8_lossy(&path), PATH_BYTES_MAX),
            status: entry.status,
            reason,
            count: repeated.max(1),
        };
        let mut entries = self.0.lock();
        if entries.len() >= RecentRefusals::ENTRIES_MAX {
            entries.pop_front();
        }
        entries.push_back(refusal);
    }
}

fn cut(text: &str, bytes_max: usize) -> Box<str> {
    text[..text.floor_char_boundary(bytes_max)].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(event: &'static str, path: &str) -> AuditEntry {
        AuditEntry {
            at: WallTime::from_ms(1_000),
            client: "192.0.2.1".into(),
            status: 403,
            note: Box::new(AuditNote {
                event,
                reason: "forbidden",
                caller: "ann".into(),
                method: "GET".into(),
                path: path.into(),
            }),
        }
    }

    #[test]
    fn the_last_refusals_are_kept_and_no_more() {
        let recent = RecentRefusals::default();
        recent.note(&entry("admin", "/v1/admin/revoke"), 0);
        assert_eq!(recent.last(10), [], "what operators do is no refusal");
        for number in 0..RecentRefusals::ENTRIES_MAX + 5 {
            recent.note(&entry("refused", &format!("/v1/stream/{number}")), 0);
        }
        recent.note(&entry("refused", &"/ä".repeat(5_000)), 7);
        let all = recent.last(usize::MAX);
        assert_eq!(all.len(), RecentRefusals::ENTRIES_MAX);
        assert_eq!((all[0].count, all[1].count), (7, 1));
        assert!(all[0].path.len() <= PATH_BYTES_MAX);
        assert_eq!(&*all[1].path, "/v1/stream/260");
        assert_eq!(recent.last(2).len(), 2);
    }
}
