//! The fetches of keys that one version of the configuration needs: what a thread that fetches works with.

use std::sync::Arc;
use std::time::Duration;

use crate::issuer::Issuer;
use crate::key_requests::KeyFetch;
use crate::rules::AccessRules;

/// The fetches of keys that one version of the configuration needs. Clones are the same.
#[derive(Clone)]
pub struct KeyFetches(Arc<AccessRules>);

/// Where the keys of an issuer are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLocation<'a> {
    /// The name of the issuer.
    pub issuer: &'a str,
    /// The URL exactly as configured. No part of a token ever goes into it.
    pub url: &'a str,
}

impl KeyFetches {
    pub(crate) fn new(rules: Arc<AccessRules>) -> Self {
        KeyFetches(rules)
    }

    /// Where keys are fetched, by source.
    pub fn locations(&self) -> Vec<KeyLocation<'_>> {
        let issuers = self.0.fetched.iter().map(|at| &self.0.issuers[*at]);
        issuers
            .filter_map(|issuer| {
                Some(KeyLocation {
                    issuer: &issuer.name,
                    url: issuer.url.as_deref()?,
                })
            })
            .collect()
    }

    /// Waits until a fetch of this source is asked for, for at most `time`; one that nothing asked for is due then. The fetch
    /// has begun when this returns.
    pub fn wait(&self, source: usize, time: Duration) -> KeyFetch {
        self.0.key_requests.wait(source, time)
    }

    /// Makes [`Self::wait`] return [`KeyFetch::Stop`], for all sources.
    pub fn stop(&self) {
        self.0.key_requests.stop();
    }

    /// The fetch of a source that runs has ended.
    pub(crate) fn ended(&self, source: usize, went_well: bool) {
        self.0.key_requests.ended(source, went_well);
    }

    pub(crate) fn issuer(&self, source: usize) -> &Issuer {
        &self.0.issuers[self.0.fetched[source]]
    }
}

impl std::fmt::Debug for KeyFetches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.locations()).finish()
    }
}
