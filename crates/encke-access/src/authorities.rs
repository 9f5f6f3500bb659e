//! Grants of tokens, shared by all tokens that grant the same.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::caller::Authority;
use crate::denied::AccessDenied;
use crate::digest::Digest;

/// Authorities that callers hold, by a digest of the texts that they follow from.
#[derive(Debug, Default)]
pub(crate) struct Authorities(Mutex<HashMap<Digest, Weak<Authority>>>);

impl Authorities {
    /// The authority that follows from these texts; made if no caller has it.
    pub(crate) fn get(
        &self,
        texts: [&str; 4],
        make: impl FnOnce() -> Result<Authority, AccessDenied>,
    ) -> Result<Arc<Authority>, AccessDenied> {
        let digest = Digest::of(serde_json::json!(texts).to_string());
        if let Some(known) = self.0.lock().get(&digest).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let made = Arc::new(make()?);
        let mut known = self.0.lock();
        if known.len() >= SHARED_GRANTS_MAX {
            known.retain(|_, authority| authority.strong_count() > 0);
        }
        // Tokens that all differ in what they grant share nothing.
        if known.len() < SHARED_GRANTS_MAX {
            known.insert(digest, Arc::downgrade(&made));
        }
        Ok(made)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

/// Different grants of tokens that are looked up to be shared.
pub const SHARED_GRANTS_MAX: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::CallerKind;
    use crate::grants::Grants;

    fn authority(authorities: &Authorities, text: &str) -> Arc<Authority> {
        let make = || Ok(Authority::new(CallerKind::Token, "i", Grants::default()));
        authorities.get(["i", "k", "claim", text], make).unwrap()
    }

    #[test]
    fn the_same_grants_are_shared_and_others_are_not() {
        let authorities = Authorities::default();
        let first = authority(&authorities, "a");
        assert!(Arc::ptr_eq(&first, &authority(&authorities, "a")));
        assert!(!Arc::ptr_eq(&first, &authority(&authorities, "b")));
    }

    #[test]
    fn the_number_of_shared_grants_is_bounded() {
        let authorities = Authorities::default();
        let held: Vec<_> = (0..SHARED_GRANTS_MAX + 10)
            .map(|number| authority(&authorities, &number.to_string()))
            .collect();
        assert_eq!(authorities.len(), SHARED_GRANTS_MAX);
        drop(held);
        let _one = authority(&authorities, "new");
        assert_eq!(authorities.len(), 1);
    }
}
