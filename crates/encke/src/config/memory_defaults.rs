//! Lowers the defaults of bounds on memory where the memory of this process is limited.

use super::settings::{SETTINGS, Setting};
use super::values::LoweredDefaults;
use super::{Config, Given};

impl Config {
    /// Lowers the bounds on memory that were not given, so that all of them together fit into a limit in bytes, beside the server itself.
    pub(super) fn fit_memory(&mut self, given: &Given, memory_max: u64) {
        let asked = self.clone();
        // The system and the allocator take a part of it.
        let shared = (memory_max / 8 * 7)
            .saturating_sub(BASE_BYTES)
            .max(SHARED_BYTES_MIN);
        let share = |parts: u64, holders: usize| {
            let bytes = shared * parts / PARTS / holders.max(1) as u64;
            usize::try_from(bytes).unwrap_or(usize::MAX).max(STEP_BYTES) / STEP_BYTES * STEP_BYTES
        };
        let lower = |name: &str, bound: &mut usize, bytes: usize| {
            if !given.contains(name) {
                *bound = (*bound).min(bytes);
            }
        };
        let (net, server, logs) = (&mut self.net, &mut self.server, self.logs);
        lower("ring", &mut net.ring_bytes, share(4, net.shards * logs));
        lower("buffers-max", &mut net.buffers_bytes_max, share(3, 1));
        let log_queue = share(1, 2);
        lower("access-log-queue", &mut net.access_log_bytes_max, log_queue);
        // Two bodies must have room in a mailbox.
        let mut body_min = 0;
        if given.contains("body-max") {
            body_min = net.body_bytes_max;
        } else if given.contains("pool-job-max") {
            body_min = server.pools.job_bytes_max as usize;
        }
        let mailbox = |holders| share(2, holders).max(2 * body_min);
        lower("mailbox-size", &mut server.mailbox_bytes_max, mailbox(logs));
        let pool_mailbox = &mut server.pool_mailbox_bytes_max;
        lower("pool-mailbox-size", pool_mailbox, mailbox(1));
        let smallest = server.mailbox_bytes_max.min(*pool_mailbox);
        let body = smallest.min(net.buffers_bytes_max) / 2;
        lower("body-max", &mut net.body_bytes_max, body.max(body_min));
        lower("pool-cache", &mut server.pools.cache_bytes, share(1, 1));
        let producers = &mut server.eviction.producer_bytes_max;
        lower("producer-memory", producers, share(1, logs));
        let streams = &mut server.eviction.hot_max;
        lower("streams-hot-max", streams, share(1, 1) / STREAM_BYTES);
        if !given.contains("history-cache") {
            let cache = &mut self.log_options.history_cache_bytes;
            *cache = (*cache).min(share(1, logs) as u64);
        }
        let lowered = SETTINGS.iter().filter_map(|setting| {
            let value = (setting.get)(self)?;
            ((setting.get)(&asked).as_ref() != Some(&value)).then(|| shown(setting, &value))
        });
        let settings: Vec<_> = lowered.collect();
        self.lowered_defaults = (!settings.is_empty()).then_some(LoweredDefaults {
            memory_max,
            settings,
        });
    }
}

fn shown(setting: &Setting, value: &toml::Value) -> String {
    let value = value.as_str().map_or(value.to_string(), str::to_owned);
    format!("{} {value}", setting.label())
}

/// Memory of the server without connections: the program, threads, history's tables in memory.
pub(crate) const BASE_BYTES: u64 = 64 << 20;

/// The bounds share at least this much.
const SHARED_BYTES_MIN: u64 = 8 << 20;

/// The parts into which it is divided; 15.5 of them are given out.
const PARTS: u64 = 16;

/// Bounds are multiples of this, and at least as large.
const STEP_BYTES: usize = 64 << 10;

/// A stream in memory, and its name.
const STREAM_BYTES: usize = 512;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(toml: &str, memory_max: Option<u64>) -> Config {
        let mut given = Given::default();
        given.file(Path::new("encke.toml"), toml).unwrap();
        Config::new(&given, memory_max).unwrap_or_else(|error| panic!("{toml}: {error:#}"))
    }

    /// The bytes of all bounds together.
    fn bounds(config: &Config) -> u64 {
        let (net, server) = (&config.net, &config.server);
        let of_logs = net.shards * net.ring_bytes
            + server.mailbox_bytes_max
            + server.eviction.producer_bytes_max
            + config.log_options.history_cache_bytes as usize;
        let all = of_logs * config.logs
            + net.buffers_bytes_max
            + net.access_log_bytes_max
            + server.pool_mailbox_bytes_max
            + server.pools.cache_bytes
            + server.eviction.hot_max * STREAM_BYTES;
        all as u64
    }

    #[test]
    fn the_bounds_fit_into_the_memory_of_a_container() {
        for megabytes in [128, 256, 512, 1_024, 4_096] {
            for toml in ["shards = 1", "shards = 2\nlogs = 3", "shards = 16"] {
                let config = config(toml, Some(megabytes << 20));
                let most = bounds(&config) + BASE_BYTES;
                assert!(most <= megabytes << 20, "{toml}, {megabytes}: {most}");
                assert!(2 * config.net.body_bytes_max <= config.net.buffers_bytes_max);
            }
        }
        // Even there a start is possible.
        config("shards = 64\nlogs = 8", Some(16 << 20));
    }

    #[test]
    fn what_was_given_stays_and_enough_memory_changes_nothing() {
        let small = Some(128 << 20);
        let given = "ring = '64MiB'\nbody-max = '16MiB'\nbuffers-max = '1GiB'";
        let fitted = config(given, small);
        assert_eq!(fitted.net.ring_bytes, 64 << 20);
        assert_eq!(fitted.net.body_bytes_max, 16 << 20);
        assert_eq!(fitted.net.buffers_bytes_max, 1 << 30);
        config("pool-job-max = '10MiB'", small);
        config("tuning.mailbox-size = '32MiB'\nlogs = 2", small);
        let lowered = fitted.lowered_defaults.expect("other defaults");
        assert!(
            lowered
                .settings
                .contains(&"tuning.mailbox-size 32MiB".to_owned())
        );
        assert!(
            !lowered
                .settings
                .iter()
                .any(|setting| setting.contains("ring"))
        );
        for enough in [None, Some(8 << 30)] {
            let config = config("shards = 4", enough);
            assert!(config.lowered_defaults.is_none(), "{config:?}");
        }
    }
}
