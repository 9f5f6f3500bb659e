//! The subscriptions of a channel: their names, and the keys of their feeds.

use super::reply::Subject;
use crate::misspelled::shown;
use crate::moved_channel::MovedSubscription;
use crate::problem::error;
use crate::response::Response;

/// The subscriptions of a channel. Most have one, and there are many idle channels.
#[derive(Debug, Default)]
pub(super) enum Subscriptions {
    #[default]
    None,
    /// One stream.
    Stream { key: u32, name: Box<str> },
    /// Anything else.
    Any(Box<[HeldSubscription]>),
}

// Small enough for a `Conversation` of 64 bytes.
const _: () = assert!(size_of::<Subscriptions>() <= 24);

/// A subscription whose feed has not ended.
#[derive(Debug)]
pub(super) struct HeldSubscription {
    /// The key of its feed, unique on the channel.
    pub(super) key: u32,
    /// What it delivers.
    pub(super) subject: Subject,
}

impl Subscriptions {
    /// Refuses a further subscription, if there is one of the same name, or if all together would name more than `max` streams.
    pub(super) fn check_new(&mut self, subject: &Subject, max: usize) -> Result<(), Response> {
        self.with(|held| check_new(held, subject, max))
    }

    /// Adds a subscription, and returns the key of its feed.
    pub(super) fn add(&mut self, subject: Subject) -> u32 {
        self.with(|held| {
            let is_free = |key: &u32| held.iter().all(|one| one.key != *key);
            let key = (1..).find(is_free).unwrap_or(u32::MAX);
            held.push(HeldSubscription { key, subject });
            key
        })
    }

    /// Removes a subscription by its name, and returns the key of its feed.
    pub(super) fn remove(&mut self, subject: &Subject) -> Option<u32> {
        self.with(|held| {
            let at = find(held, subject)?;
            Some(held.remove(at).key)
        })
    }

    /// Removes a subscription by the key of its feed, and returns what it delivered.
    pub(super) fn remove_key(&mut self, key: u32) -> Option<Subject> {
        self.with(|held| {
            let at = held.iter().position(|one| one.key == key)?;
            Some(held.remove(at).subject)
        })
    }

    /// Removes those that `refusal` refuses, and returns each with the refusal.
    pub(super) fn remove_refused(
        &mut self,
        mut refusal: impl FnMut(&Subject) -> Result<(), Response>,
    ) -> Vec<(HeldSubscription, Response)> {
        self.with(|held| {
            let mut removed = Vec::new();
            for one in std::mem::take(held) {
                match refusal(&one.subject) {
                    Ok(()) => held.push(one),
                    Err(response) => removed.push((one, response)),
                }
            }
            removed
        })
    }

    /// Subscriptions that were taken over from another process.
    pub(super) fn arrive(moved: Vec<MovedSubscription>) -> Self {
        let mut subscriptions = Subscriptions::default();
        subscriptions.with(|held| {
            held.extend(moved.into_iter().map(|one| HeldSubscription {
                key: one.key,
                subject: match (&*one.names, one.is_single) {
                    ([name], true) => Subject::Stream(name.clone()),
                    _ => Subject::Several(one.names),
                },
            }));
        });
        subscriptions
    }

    /// They in a form in which another process takes them over.
    pub(super) fn moved(&self) -> Vec<MovedSubscription> {
        match self {
            Subscriptions::None => Vec::new(),
            Subscriptions::Stream { key, name } => vec![MovedSubscription {
                key: *key,
                names: [name.clone()].into(),
                is_single: true,
            }],
            Subscriptions::Any(held) => held.iter().map(HeldSubscription::moved).collect(),
        }
    }

    /// Does something with them as a list.
    fn with<T>(&mut self, change: impl FnOnce(&mut Vec<HeldSubscription>) -> T) -> T {
        let mut held = match std::mem::take(self) {
            Subscriptions::None => Vec::new(),
            Subscriptions::Stream { key, name } => vec![HeldSubscription {
                key,
                subject: Subject::Stream(name),
            }],
            Subscriptions::Any(held) => held.into(),
        };
        let changed = change(&mut held);
        *self = match held.pop() {
            None => Subscriptions::None,
            Some(HeldSubscription {
                key,
                subject: Subject::Stream(name),
            }) if held.is_empty() => Subscriptions::Stream { key, name },
            Some(last) => {
                held.push(last);
                Subscriptions::Any(held.into())
            }
        };
        changed
    }
}

impl HeldSubscription {
    fn moved(&self) -> MovedSubscription {
        MovedSubscription {
            key: self.key,
            names: self.subject.names().into(),
            is_single: matches!(self.subject, Subject::Stream(_)),
        }
    }
}

fn check_new(held: &[HeldSubscription], subject: &Subject, max: usize) -> Result<(), Response> {
    if find(held, subject).is_some() {
        let why = format!(
            "the channel subscribes to {} already; unsubscribe first",
            shown(&subject.label())
        );
        return Err(error(409, "already_subscribed", why));
    }
    let subjects = held.iter().map(|one| &one.subject).chain([subject]);
    let names: Vec<&str> = subjects
        .flat_map(Subject::names)
        .map(|name| &**name)
        .collect();
    let named = names.len();
    if named > max {
        let why = format!(
            "the subscriptions of the channel would name {named} streams, at most {max} are allowed"
        );
        return Err(error(400, "too_many_streams", why));
    }
    let bytes: usize = names.iter().map(|name| name.len()).sum();
    match bytes > NAMES_BYTES_MAX {
        false => Ok(()),
        true => Err(error(
            400,
            "too_many_streams",
            format!(
                "the names of the channel's subscriptions would have {bytes} bytes, at most {NAMES_BYTES_MAX} are allowed"
            ),
        )),
    }
}

fn find(held: &[HeldSubscription], subject: &Subject) -> Option<usize> {
    let label = subject.label();
    held.iter().position(|one| one.subject.label() == label)
}

/// Bytes of all names of the subscriptions of a channel, at most: as many as a URL has room for. A channel at rest keeps them.
const NAMES_BYTES_MAX: usize = 16 << 10;
