//! Watchlists: a client that has signed in is told when users that it names come and go.
//!
//! A user is online while a client has signed in as it, at any node: the registry of members has a stream for each, `#user-{id}`, which no
//! channel is called. Each node tells its own clients, over the feed of events for their users.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use encke_presence::Presence;
use serde_json::json;

/// Who watches whom, at this node.
#[derive(Default)]
pub(super) struct Watchers {
    /// By those who are watched.
    by_watched: Mutex<HashMap<Box<str>, WatcherCounts>>,
    /// Those whose clients another process has told who is online.
    moved: Mutex<Watchlists>,
}

/// Users, and those whom they watch with any of their clients.
type Watchlists = BTreeMap<Box<str>, BTreeSet<Box<str>>>;

/// Who watches a user, with how many clients.
type WatcherCounts = HashMap<Box<str>, usize>;

/// A client's part in it, until this is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    watchers: Arc<Watchers>,
    watcher: Box<str>,
    pub(super) watched: Box<[Box<str>]>,
}

impl Watchers {
    /// A client that has signed in as a user watches others.
    pub(super) fn watch(self: &Arc<Self>, watcher: &str, watched: Box<[Box<str>]>) -> Watch {
        let mut by_watched = self.by_watched();
        for user in &watched {
            let watchers = by_watched.entry(user.clone()).or_default();
            *watchers.entry(watcher.into()).or_default() += 1;
        }
        drop(by_watched);
        Watch {
            watchers: Arc::clone(self),
            watcher: watcher.into(),
            watched,
        }
    }

    /// The client of a watch has come with another process.
    pub(super) fn note_moved(&self, watch: &Watch) {
        let mut moved = self.moved();
        let watched = moved.entry(watch.watcher.clone()).or_default();
        watched.extend(watch.watched.iter().cloned());
    }

    /// Whether clients have come that are to be told who is online.
    pub(super) fn has_moved(&self) -> bool {
        !self.moved().is_empty()
    }

    /// One of the users whose clients have come, and those whom it watches.
    pub(super) fn pop_moved(&self) -> Option<(Box<str>, BTreeSet<Box<str>>)> {
        self.moved().pop_first()
    }

    /// What each watcher is to be told of these changes: whether a user is online now.
    pub(super) fn told(
        &self,
        changes: &BTreeMap<Box<str>, bool>,
    ) -> BTreeMap<Box<str>, WatchedUsers> {
        let by_watched = self.by_watched();
        let mut told: BTreeMap<Box<str>, WatchedUsers> = BTreeMap::new();
        for (user, is_online) in changes {
            for watcher in by_watched.get(user).into_iter().flat_map(HashMap::keys) {
                let told = told.entry(watcher.clone()).or_default();
                let users = match is_online {
                    true => &mut told.online,
                    false => &mut told.offline,
                };
                users.push(user.clone());
            }
        }
        told
    }

    fn by_watched(&self) -> MutexGuard<'_, HashMap<Box<str>, WatcherCounts>> {
        // No code that holds it can panic halfway through a change.
        self.by_watched
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn moved(&self) -> MutexGuard<'_, Watchlists> {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut by_watched = self.watchers.by_watched();
        for user in &self.watched {
            let Some(watchers) = by_watched.get_mut(user) else {
                continue;
            };
            if let Some(clients) = watchers.get_mut(&self.watcher) {
                *clients -= 1;
                if *clients == 0 {
                    watchers.remove(&self.watcher);
                }
            }
            if watchers.is_empty() {
                by_watched.remove(user);
            }
        }
    }
}

impl fmt::Debug for Watchers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watchers")
    }
}

/// Users who came and went.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct WatchedUsers {
    pub(super) online: Vec<Box<str>>,
    pub(super) offline: Vec<Box<str>>,
}

impl WatchedUsers {
    /// How all of these are.
    pub(super) fn of<'a>(
        users: impl IntoIterator<Item = &'a Box<str>>,
        is_online: impl Fn(&str) -> bool,
    ) -> Self {
        let users = users.into_iter().cloned();
        let (online, offline) = users.partition(|user| is_online(user));
        WatchedUsers { online, offline }
    }

    /// The data of a message about them.
    pub(super) fn data(&self) -> String {
        let kinds = [("online", &self.online), ("offline", &self.offline)];
        let events = kinds.into_iter().filter(|(_, users)| !users.is_empty());
        let events: Vec<_> = events
            .map(|(name, users)| json!({ "name": name, "user_ids": users }))
            .collect();
        json!({ "events": events }).to_string()
    }
}

/// The name, below the prefix of an app, under which the registry knows that a user is online.
pub(super) fn online_name(user: &str) -> String {
    format!("{ONLINE}{user}")
}

/// The user of such a name.
pub(super) fn user_of_online(name: &str) -> Option<&str> {
    name.strip_prefix(ONLINE)
}

/// Whether a user of the app with that prefix is online, at any node.
pub(super) fn is_online(registry: &Presence, prefix: &str, user: &str) -> bool {
    let name = format!("{prefix}{}", online_name(user));
    registry.counts(&name).members > 0
}

const ONLINE: &str = "#user-";

/// The message that tells of watched users.
pub(super) const WATCHLIST_EVENTS: &str = "pusher_internal:watchlist_events";

/// Users of a watchlist, as Pusher allows.
pub(super) const WATCHLIST_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchers_are_told_while_they_watch() {
        let watchers = Arc::new(Watchers::default());
        let list = |users: &[&str]| users.iter().map(|user| Box::from(*user)).collect();
        let ann = watchers.watch("ann", list(&["bob", "cid"]));
        let again = watchers.watch("ann", list(&["bob"]));
        let dan = watchers.watch("dan", list(&["bob"]));
        let changes = BTreeMap::from([
            ("bob".into(), true),
            ("cid".into(), false),
            ("eve".into(), true),
        ]);
        let told = || {
            let told = watchers.told(&changes).into_iter();
            told.map(|(watcher, users)| format!("{watcher} {}", users.data()))
                .collect::<Vec<_>>()
        };
        let bob = r#"{"events":[{"name":"online","user_ids":["bob"]}]}"#;
        let both = r#"{"events":[{"name":"online","user_ids":["bob"]},{"name":"offline","user_ids":["cid"]}]}"#;
        assert_eq!(told(), [format!("ann {both}"), format!("dan {bob}")]);
        drop(ann);
        assert_eq!(told(), [format!("ann {bob}"), format!("dan {bob}")]);
        drop((again, dan));
        assert_eq!(told(), [""; 0]);
        assert!(watchers.by_watched().is_empty());
    }
}
