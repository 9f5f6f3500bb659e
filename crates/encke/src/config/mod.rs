//! The configuration: the same names as flags, as ENCKE_ variables and in a TOML file.

mod settings;
mod told;
mod words;

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use encke_log::Retention;

use self::settings::Given;
pub(crate) use self::words::{Ack, LogFormat};

/// What `encke serve` can be told. A flag beats a variable, a variable beats the file.
#[derive(Args, Debug, Default)]
pub(crate) struct ServeArgs {
    /// Read settings from this TOML file; its keys are the names of the flags
    #[arg(long, env = "ENCKE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    /// Say what would be done with these settings, and do nothing
    #[arg(long)]
    pub(crate) check: bool,

    #[command(flatten)]
    given: Given,
}

/// Settings that hold: defaults filled in, limits of the system applied by whoever starts.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) open: bool,
    pub(crate) data: PathBuf,
    pub(crate) logs: usize,
    pub(crate) ack: Ack,
    pub(crate) net: encke_net::NetSettings,
    pub(crate) faces: encke_protocol::ProtocolSettings,
    pub(crate) log_options: encke_log::Options,
    pub(crate) limits: encke_stream::Limits,
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
}

impl ServeArgs {
    /// The settings that hold.
    pub(crate) fn resolve(self) -> anyhow::Result<Config> {
        let file = match &self.config {
            None => Given::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path).with_context(|| {
                    format!("the configuration {} can't be read", path.display())
                })?;
                toml::from_str(&text)
                    .with_context(|| format!("the configuration {} is wrong", path.display()))?
            }
        };
        Config::new(self.given.or(file))
    }
}

impl Config {
    fn new(given: Given) -> anyhow::Result<Self> {
        let mut config = Config::default();
        given.apply(&mut config)?;
        config.settle(&given)?;
        Ok(config)
    }

    /// Checks what holds between settings, and sets what follows from them.
    fn settle(&mut self, given: &Given) -> anyhow::Result<()> {
        let net = &mut self.net;
        anyhow::ensure!(
            !net.proxy_protocol || !net.trust.is_empty(),
            "--proxy-protocol needs --trust: the proxies whose headers count"
        );
        anyhow::ensure!(
            (net.body_bytes_max as u64) < self.log_options.segment_bytes / 2,
            "--body-max must be less than half of --segment, because a record lies within one segment"
        );
        anyhow::ensure!(
            self.log_options.background_jobs_max > self.log_options.waiting_segments_max,
            "--background-jobs-max must be more than --waiting-segments-max, because checkpoints wait there too"
        );
        let body_bytes_max = u32::try_from(net.body_bytes_max).unwrap_or(u32::MAX);
        match given.pool_job_max {
            None => net.pools.job_bytes_max = net.pools.job_bytes_max.min(body_bytes_max),
            Some(_) => anyhow::ensure!(
                net.pools.job_bytes_max <= body_bytes_max,
                "--pool-job-max must not be more than --body-max"
            ),
        }
        anyhow::ensure!(
            net.pool_mailbox_bytes_max >= 2 * net.body_bytes_max,
            "--pool-mailbox-size must be at least twice --body-max"
        );
        anyhow::ensure!(
            net.mailbox_bytes_max >= 2 * net.body_bytes_max,
            "--mailbox-size must be at least twice --body-max"
        );
        anyhow::ensure!(
            self.open || net.listen.ip().is_loopback(),
            "--listen {} can be reached by others, and there is no access control yet: add --open if \
             that is meant",
            net.listen
        );
        net.pools.wait_ms_max = self.faces.pool.wait_s_max * 1_000;
        // What a pool writes at once must have room on its way to the log.
        net.pools.record_bytes = net.pools.record_bytes.min(net.mailbox_bytes_max / 4);
        net.pools.forgets = self.log_options.retention.iter().any(Retention::is_limited);
        Ok(())
    }

    /// How long records are kept: every stream is in the first class.
    fn retention(&mut self) -> &mut Retention {
        &mut self.log_options.retention[0]
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            open: false,
            data: "encke-data".into(),
            logs: 1,
            ack: Ack::default(),
            net: encke_net::NetSettings::default(),
            faces: encke_protocol::ProtocolSettings::default(),
            log_options: encke_log::Options {
                retention: vec![Retention::default()],
                ..encke_log::Options::default()
            },
            limits: encke_stream::Limits::default(),
            log: LOG_FILTER.into(),
            log_format: LogFormat::default(),
        }
    }
}

/// History's own messages are for those who look for them.
const LOG_FILTER: &str = "info,fjall=warn,lsm_tree=warn";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn given(toml: &str) -> Given {
        toml::from_str(toml).unwrap()
    }

    #[test]
    fn the_file_gives_way() {
        let file = given("listen = '127.0.0.1:1'\nshards = 3\nring = '1MiB'\nheartbeat = '5s'");
        let flags = given("listen = '127.0.0.1:2'");
        let config = Config::new(flags.or(file)).unwrap();
        assert_eq!(config.net.listen.port(), 2);
        assert_eq!(config.net.shards, 3);
        assert_eq!(config.net.ring_bytes, 1 << 20);
        assert_eq!(config.net.heartbeat, Duration::from_secs(5));
    }

    #[test]
    fn a_setting_has_one_name() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            _args: ServeArgs,
        }
        for arg in <Line as clap::CommandFactory>::command().get_arguments() {
            let name = arg.get_long().unwrap();
            let env = match name {
                "check" => None,
                name => Some(format!("ENCKE_{}", name.replace('-', "_").to_uppercase())),
            };
            assert_eq!(
                arg.get_env().map(|env| env.to_str().unwrap()),
                env.as_deref()
            );
        }
    }

    #[test]
    fn unknown_keys_are_errors() {
        let error = toml::from_str::<Given>("lisen = '127.0.0.1:1'").unwrap_err();
        assert!(error.to_string().contains("lisen"), "{error}");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (toml, word) in [
            ("shards = 0", "--shards"),
            ("shards = 5000", "--shards"),
            (
                "streams-per-subscriber-max = 129",
                "--streams-per-subscriber-max",
            ),
            ("head-max = '1B'", "--head-max"),
            ("heartbeat = '-5s'", "--heartbeat"),
            ("streams-idle = '0s'", "--streams-idle"),
            ("streams-hot-max = 0", "--streams-hot-max"),
            ("body-max = '32MiB'", "--body-max"),
            ("exempt = '10.0.0.0/40'", "--exempt"),
            ("trust = '10.0.0.0/8, x'", "--trust"),
            ("proxy-protocol = true", "--trust"),
            ("request-burst = 0", "--request-burst"),
            ("listen = '0.0.0.0:1'", "--open"),
            ("retention-age = '10ms'", "--retention-age"),
            ("retention-size = '10kB'", "--retention-size"),
            ("history-cache = '10kB'", "--history-cache"),
            ("order-age = '-1s'", "--order-age"),
            ("waiting-segments-max = 0", "--waiting-segments-max"),
            ("background-jobs-max = 0", "--background-jobs-max"),
            (
                "waiting-segments-max = 9\nbackground-jobs-max = 9",
                "--background-jobs-max",
            ),
        ] {
            let error = Config::new(given(toml)).unwrap_err();
            let shown = format!("{error:#}");
            assert!(shown.contains(word), "{toml}: {shown}");
        }
        let open = given("listen = '0.0.0.0:1'\nopen = true");
        assert!(Config::new(open).is_ok());
    }
}
