//! Tokens that were verified before.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashTable;
use parking_lot::Mutex;

use crate::caller::Caller;
use crate::digest::Digest;

/// Callers by the SHA-256 digest of their whole token, so that two tokens share an entry only if they are the same token. Bounded:
/// a full cache gives up the entry that was not used for the longest time, roughly.
#[derive(Debug)]
pub(crate) struct TokenCache {
    parts: Box<[Mutex<Part>]>,
    entries_max: usize,
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: AtomicU64,
}

/// What the cache did, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCacheCounts {
    /// Tokens that are remembered.
    pub entries: usize,
    /// The bound on them.
    pub entries_max: usize,
    /// Tokens that were found.
    pub hits: u64,
    /// Tokens that had to be verified.
    pub misses: u64,
    /// Entries that gave way to others.
    pub evictions: u64,
}

#[derive(Debug, Default)]
struct Part {
    entries: Vec<CachedToken>,
    /// Where a digest is in `entries`.
    index: HashTable<u32>,
    /// The entry that is looked at next when one must go.
    hand: usize,
}

#[derive(Debug)]
struct CachedToken {
    digest: Digest,
    caller: Arc<Caller>,
    /// Found since the hand last passed.
    used: bool,
}

impl TokenCache {
    /// A cache of at most that many tokens; 0 for none.
    pub(crate) fn new(entries_max: usize) -> Self {
        let parts = PARTS.min(entries_max.max(1));
        TokenCache {
            parts: (0..parts).map(|_| Mutex::default()).collect(),
            entries_max,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        }
    }

    /// A cache of at most that many tokens without any, that goes on counting.
    pub(crate) fn emptied(&self, entries_max: usize) -> Self {
        let counted = |count: &AtomicU64| AtomicU64::new(count.load(Ordering::Relaxed));
        TokenCache {
            hits: counted(&self.hits),
            misses: counted(&self.misses),
            evictions: counted(&self.evictions),
            ..TokenCache::new(entries_max)
        }
    }

    pub(crate) fn get(&self, digest: &Digest) -> Option<Arc<Caller>> {
        let mut part = self.part(digest).lock();
        let found = part.find(digest).map(|at| {
            let entry = &mut part.entries[at];
            entry.used = true;
            Arc::clone(&entry.caller)
        });
        drop(part);
        let counter = if found.is_some() {
            &self.hits
        } else {
            &self.misses
        };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Remembers a token, unless `is_current` says that the keys that verified it have been replaced. It runs under the lock that
    /// [`Self::retain`] takes, so a key that was removed leaves no entry behind.
    pub(crate) fn insert(
        &self,
        digest: Digest,
        caller: &Arc<Caller>,
        is_current: impl Fn() -> bool,
    ) {
        let most = self.entries_max / self.parts.len();
        if most == 0 {
            return;
        }
        let mut part = self.part(&digest).lock();
        if !is_current() || part.find(&digest).is_some() {
            return;
        }
        let entry = CachedToken {
            digest,
            caller: Arc::clone(caller),
            used: false,
        };
        if part.entries.len() >= most {
            let victim = part.victim();
            part.remove(victim);
            self.evictions.fetch_add(1, Ordering::Relaxed);
        }
        part.push(entry);
    }

    /// Forgets a token.
    pub(crate) fn remove(&self, digest: &Digest) {
        let mut part = self.part(digest).lock();
        if let Some(at) = part.find(digest) {
            part.remove(at);
        }
    }

    /// Forgets the tokens whose callers `keeps` refuses.
    pub(crate) fn retain(&self, keeps: impl Fn(&Caller) -> bool) {
        for part in &self.parts {
            let mut part = part.lock();
            let mut at = 0;
            while at < part.entries.len() {
                match keeps(&part.entries[at].caller) {
                    true => at += 1,
                    false => part.remove(at),
                }
            }
        }
    }

    /// Calls `each` for the caller of every token.
    pub(crate) fn for_each(&self, mut each: impl FnMut(&Caller)) {
        for part in &self.parts {
            let part = part.lock();
            part.entries.iter().for_each(|entry| each(&entry.caller));
        }
    }

    pub(crate) fn counts(&self) -> TokenCacheCounts {
        TokenCacheCounts {
            entries: self
                .parts
                .iter()
                .map(|part| part.lock().entries.len())
                .sum(),
            entries_max: self.entries_max,
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            evictions: self.evictions.load(Ordering::Relaxed),
        }
    }

    fn part(&self, digest: &Digest) -> &Mutex<Part> {
        // Not the bytes that the index uses.
        &self.parts[usize::from(digest.0[31]) % self.parts.len()]
    }
}

impl Part {
    /// The next entry that was not used since the hand last passed.
    fn victim(&mut self) -> usize {
        loop {
            self.hand = (self.hand + 1) % self.entries.len();
            let entry = &mut self.entries[self.hand];
            if !std::mem::take(&mut entry.used) {
                return self.hand;
            }
        }
    }

    fn find(&self, digest: &Digest) -> Option<usize> {
        let is_it = |at: &u32| self.entries[*at as usize].digest == *digest;
        let at = self.index.find(hash(digest), is_it)?;
        Some(*at as usize)
    }

    fn push(&mut self, entry: CachedToken) {
        let Part { entries, index, .. } = self;
        let at = entries.len() as u32;
        let digest = entry.digest;
        entries.push(entry);
        index.insert_unique(hash(&digest), at, |at| hash(&entries[*at as usize].digest));
    }

    fn remove(&mut self, at: usize) {
        let Part { entries, index, .. } = self;
        let last = entries.len() - 1;
        if let Ok(place) = index.find_entry(hash(&entries[at].digest), |one| *one as usize == at) {
            place.remove();
        }
        if at < last
            && let Some(moved) =
                index.find_mut(hash(&entries[last].digest), |one| *one as usize == last)
        {
            *moved = at as u32;
        }
        entries.swap_remove(at);
    }
}

/// A digest is a hash already.
fn hash(digest: &Digest) -> u64 {
    let first = digest.0.first_chunk().expect("32 bytes are more than 8");
    u64::from_le_bytes(*first)
}

/// Parts with a lock of their own, so that threads seldom wait for each other.
const PARTS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::{Authority, CallerKind};
    use crate::grants::Grants;

    fn caller(name: &str) -> Arc<Caller> {
        let authority = Authority::new(CallerKind::Token, name, Grants::default());
        Caller::of(Arc::new(authority))
    }

    #[test]
    fn the_number_of_tokens_is_bounded_and_used_ones_stay() {
        let cache = TokenCache::new(64);
        let kept = Digest::of("kept");
        cache.insert(kept, &caller("kept"), || true);
        for number in 0..1_000 {
            cache.insert(Digest::of(format!("{number}")), &caller("other"), || true);
            assert_eq!(cache.get(&kept).unwrap().name(), "kept", "{number}");
        }
        let counts = cache.counts();
        assert!(counts.entries <= 64, "{counts:?}");
        assert_eq!(counts.evictions + counts.entries as u64, 1_001);
        assert_eq!((counts.hits, counts.misses), (1_000, 0));
    }

    #[test]
    fn removed_tokens_are_gone_and_others_are_found() {
        let cache = TokenCache::new(1_000);
        for number in 0..100 {
            let name = if number % 3 == 0 { "odd" } else { "even" };
            cache.insert(Digest::of(format!("{number}")), &caller(name), || true);
        }
        cache.retain(|caller| caller.name() == "even");
        cache.remove(&Digest::of("1"));
        for number in 0..100 {
            let found = cache.get(&Digest::of(format!("{number}")));
            assert_eq!(found.is_some(), number % 3 != 0 && number != 1, "{number}");
        }
    }

    #[test]
    fn a_key_that_was_replaced_meanwhile_leaves_no_entry() {
        let cache = TokenCache::new(10);
        cache.insert(Digest::of("a"), &caller("a"), || false);
        assert!(cache.get(&Digest::of("a")).is_none());
    }

    #[test]
    fn a_cache_of_none_holds_none() {
        let cache = TokenCache::new(0);
        cache.insert(Digest::of("a"), &caller("a"), || true);
        assert_eq!(cache.counts().entries, 0);
    }
}
