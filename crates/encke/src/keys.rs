//! Fetches the keys of issuers that have a `jwks-url`, each in a thread of its own: one that does not respond delays no other.
//!
//! The URL is exactly the one of the configuration. Redirects are not followed; size and time are bounded; a failure changes nothing.

use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use encke_access::{Access, AccessConfig, JWKS_BYTES_MAX, KeyFetch, KeyFetches};
use encke_client::{ClientRules, client};
use encke_threads::spawn_restarting;
use flate2::read::GzDecoder;
use ureq::Agent;

/// The threads that fetch keys, for the configuration that was in force when they were started.
pub(crate) struct KeyFetcher {
    fetches: KeyFetches,
}

impl KeyFetcher {
    /// Starts the threads; the first fetch of each issuer begins at once. `None`: no issuer needs it.
    pub(crate) fn start(
        access: Arc<Access>,
        config: &AccessConfig,
        rules: &ClientRules,
    ) -> io::Result<Option<Self>> {
        let fetches = access.key_fetches();
        let sources = fetches.locations().len();
        if sources == 0 {
            return Ok(None);
        }
        // If a thread can't be started, those before it end.
        let fetcher = KeyFetcher {
            fetches: fetches.clone(),
        };
        let agent = agent(rules, config.jwks_timeout);
        let refresh = config.jwks_refresh.max(REFRESH_MIN);
        for source in 0..sources {
            let (access, fetches, agent) = (Arc::clone(&access), fetches.clone(), agent.clone());
            let mut pause = refresh;
            spawn_restarting("jwks", move || {
                while fetches.wait(source, pause) == KeyFetch::Now {
                    pause = RETRY.min(refresh);
                    if fetch_one(&access, &fetches, &agent, source) {
                        pause = refresh;
                    }
                }
            })?;
        }
        Ok(Some(fetcher))
    }
}

impl Drop for KeyFetcher {
    /// Ends the threads. A fetch that runs is not waited for: a server of keys may never respond.
    fn drop(&mut self) {
        self.fetches.stop();
    }
}

/// Fetches the keys of one source and hands them in. Whether they are good.
fn fetch_one(access: &Access, fetches: &KeyFetches, agent: &Agent, source: usize) -> bool {
    let location = fetches.locations()[source];
    // Requests wait for the end of the fetch, also of one that panics.
    let fetched = catch_unwind(AssertUnwindSafe(|| fetch(agent, location.url)));
    let fetched = fetched.unwrap_or_else(|_| Err(anyhow::anyhow!("the fetch has panicked")));
    let result = access.keys_fetched(fetches, source, fetched.as_deref().ok());
    let failure = match (&fetched, result) {
        (Err(error), _) => format!("{error:#}"),
        (Ok(_), Err(error)) => error.to_string(),
        (Ok(_), Ok(())) => {
            tracing::debug!(issuer = location.issuer, "fetched the keys of an issuer");
            return true;
        }
    };
    tracing::warn!(
        issuer = location.issuer,
        url = location.url,
        failure,
        "the keys of an issuer can't be fetched; the last good ones stay in use"
    );
    false
}

/// The client of all fetches.
pub(crate) fn agent(rules: &ClientRules, timeout: Duration) -> Agent {
    let config = rules.config().timeout_global(Some(timeout));
    client(config.accept("application/json").build())
}

/// Fetches a key set.
pub(crate) fn fetch(agent: &Agent, url: &str) -> anyhow::Result<Vec<u8>> {
    let mut response = agent.get(url).call()?;
    let status = response.status();
    anyhow::ensure!(
        status.as_u16() == 200,
        "the response has status {status}; only 200 is accepted, and redirects are not followed"
    );
    let coding = response.headers().get("content-encoding").cloned();
    let coding = coding.map(|coding| coding.as_bytes().to_ascii_lowercase());
    let body = response.body_mut().as_reader();
    let body: Box<dyn Read> = match coding.as_deref() {
        None | Some(b"" | b"identity") => Box::new(body),
        Some(b"gzip" | b"x-gzip") => Box::new(GzDecoder::new(body)),
        Some(other) => anyhow::bail!(
            "the key set is in the content coding {:?}; gzip is accepted, or none",
            String::from_utf8_lossy(other)
        ),
    };
    let mut keys = Vec::new();
    let most = JWKS_BYTES_MAX as u64;
    let why = || format!("the key set can't be read, of at most {JWKS_BYTES_MAX} bytes");
    // Of what is decoded, so that a short body can't become a long one.
    let read = body.take(most + 1).read_to_end(&mut keys);
    let read = read.with_context(why)? as u64;
    anyhow::ensure!(read <= most, why());
    Ok(keys)
}

/// Pause after a fetch that failed.
const RETRY: Duration = Duration::from_secs(60);

/// Shorter pauses would be an attack on the issuer.
const REFRESH_MIN: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
