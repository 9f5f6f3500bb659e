//! Reads the configuration again while the server runs, on SIGHUP and when one of its files changes, and applies what a running
//! server can change: the table `[access]` and the settings that are marked in `config/settings.rs`.
//!
//! All of it is read and checked before any of it is applied: a wrong configuration changes nothing.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use encke_access::Access;
use encke_net::{AddressLimiter, AddressLimits, FileWatcher, wall_time};
use encke_protocol::Router;
use parking_lot::Mutex;
use prometheus::{IntCounterVec, IntGauge, Opts, Registry};

use crate::config::{AccessTable, Config, SettingsArgs, effective_json};
use crate::failure::with_causes;
use crate::keys::KeyFetcher;
use crate::program_log::{self, FilterHandle};
use crate::{descriptors, exposure, service_manager};

/// What a reload changes of a running server.
pub(crate) struct RunningServer {
    /// Where its settings come from.
    pub(crate) settings: Arc<SettingsArgs>,
    /// The settings that it runs with.
    pub(crate) config: Config,
    pub(crate) access: Option<Arc<Access>>,
    pub(crate) router: Router,
    pub(crate) address_limiter: AddressLimiter,
    pub(crate) filter: FilterHandle,
    pub(crate) metrics: ReloadMetrics,
    /// What the page of operators shows of it.
    pub(crate) configuration: Arc<Mutex<serde_json::Value>>,
}

/// Reads the configuration again when its files change, or when it is asked to. Keys of issuers are fetched as it says.
pub(crate) struct Reloads {
    watcher: FileWatcher,
    key_fetcher: SharedFetcher,
    /// The configuration in force.
    config: Arc<Mutex<Config>>,
}

/// The threads that fetch keys, if there are some.
type SharedFetcher = Arc<Mutex<Option<KeyFetcher>>>;

impl Reloads {
    /// Starts to watch the files, and to fetch keys.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn start(mut server: RunningServer) -> anyhow::Result<Reloads> {
        // The listener is the reactor's alone, so that it closes with it.
        server.config.net.inherited = None;
        let table = server.config.access.as_ref();
        let fetcher = match (&server.access, table) {
            (Some(access), Some(table)) => {
                KeyFetcher::start(Arc::clone(access), &table.config, &server.config.client)
                    .context("the thread that fetches keys can't be started")?
            }
            _ => None,
        };
        let key_fetcher = Arc::new(Mutex::new(fetcher));
        let files = Arc::new(Mutex::new(server.files()));
        let config = Arc::new(Mutex::new(server.config.clone()));
        let (watched, shared) = (Arc::clone(&files), Arc::clone(&key_fetcher));
        let in_force = Arc::clone(&config);
        let read_again = move || {
            service_manager::reloading();
            let outcome = server.reload(&shared);
            *watched.lock() = server.files();
            in_force.lock().clone_from(&server.config);
            if let Err(error) = &outcome {
                tracing::error!(error = with_causes(error), "nothing was reloaded");
            }
            // Behind what the log says: the reason is there when the number is.
            server.metrics.count(outcome.is_ok());
            match outcome {
                Ok(()) => service_manager::ready("serving, with the configuration read again"),
                Err(_) => service_manager::ready(
                    "serving, with the configuration of before: the new one is wrong",
                ),
            }
        };
        let watcher = FileWatcher::start("config-files", move || files.lock().clone(), read_again)
            .context("the thread that watches the configuration can't be started")?;
        Ok(Reloads {
            watcher,
            key_fetcher,
            config,
        })
    }

    /// Has the configuration read again now.
    pub(crate) fn ask(&self) {
        self.watcher.ask();
    }

    /// Ends the threads. Returns the configuration in force.
    pub(crate) fn stop(self) -> Config {
        drop(self.watcher);
        drop(self.key_fetcher.lock().take());
        self.config.lock().clone()
    }
}

impl RunningServer {
    /// The files of the configuration in force.
    fn files(&self) -> Vec<PathBuf> {
        let own = self.settings.file().map(PathBuf::from);
        let named = self.config.access.iter().flat_map(AccessTable::files);
        own.into_iter().chain(named).collect()
    }

    /// Reads the configuration and applies it.
    fn reload(&mut self, key_fetcher: &SharedFetcher) -> anyhow::Result<()> {
        let (mut config, given) = self.settings.resolve()?;
        descriptors::bound(&mut config);
        let filter = program_log::filter(&config)?;
        match (&self.access, &config.access) {
            (Some(access), Some(table)) => {
                table
                    .reload(access)
                    .context("the table [access] is wrong")?;
            }
            (None, None) => {}
            (None, Some(_)) => anyhow::bail!("the table [access] is new: {ACCESS_STAYS}"),
            (Some(_), None) => anyhow::bail!("the table [access] is gone: {ACCESS_STAYS}"),
        }
        // From here on everything is right.
        if let Err(error) = (self.filter)(filter) {
            tracing::warn!(%error, "the filter of the log stays as it was");
        }
        let waiting = self.config.take_reloaded(&config);
        self.config.access.clone_from(&config.access);
        self.router.set_gate(self.config.gate(self.access.clone()));
        self.address_limiter
            .set(AddressLimits::of(&self.config.net));
        if let Err(error) = self.fetch_keys(key_fetcher) {
            let error = with_causes(&error);
            tracing::error!(
                error,
                "the keys of issuers are not fetched until the next reload"
            );
        }
        for warning in exposure::warnings(&self.config) {
            tracing::warn!("{warning}");
        }
        *self.configuration.lock() = effective_json(&self.config, &given, &waiting);
        if !waiting.is_empty() {
            tracing::warn!(
                settings = waiting.join(", "),
                "these settings have changed and need a restart"
            );
        }
        tracing::info!(log = self.config.log, "reloaded the configuration");
        Ok(())
    }

    /// Fetches the keys that the table in force names, and no others.
    fn fetch_keys(&self, key_fetcher: &SharedFetcher) -> anyhow::Result<()> {
        let (Some(access), Some(table)) = (&self.access, &self.config.access) else {
            return Ok(());
        };
        let started = KeyFetcher::start(Arc::clone(access), &table.config, &self.config.client)
            .context(
                "the configuration is in force, but no thread can be started that fetches keys",
            )?;
        *key_fetcher.lock() = started;
        Ok(())
    }
}

/// The metrics of reloads.
#[derive(Clone)]
pub(crate) struct ReloadMetrics {
    reloads: IntCounterVec,
    last: IntGauge,
}

impl ReloadMetrics {
    /// Registers the metrics.
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let counter = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let metrics = ReloadMetrics {
            reloads: counters(
                "encke_config_reloads_total",
                "Times the configuration was read again, by result: done or failed. Failed: what was in force before stays.",
                &["result"],
            )?,
            last: gauge(
                "encke_config_last_reload_seconds",
                "When the configuration in force was read, in seconds since 1970.",
            )?,
        };
        metrics.reloads.with_label_values(&[DONE]);
        metrics.reloads.with_label_values(&[FAILED]);
        metrics.note_time();
        Ok(metrics)
    }

    fn count(&self, done: bool) {
        let result = if done { DONE } else { FAILED };
        self.reloads.with_label_values(&[result]).inc();
        if done {
            self.note_time();
        }
    }

    fn note_time(&self) {
        self.last.set((wall_time().as_ms() / 1_000) as i64);
    }
}

const DONE: &str = "done";
const FAILED: &str = "failed";

/// Why access control is not turned on or off while the server runs.
const ACCESS_STAYS: &str = "access control is turned on and off by a restart only, because the connections that are there have no callers to \
                            judge, and where others and operators may connect follows from it";
