//! The configuration of `encke serve`: flags, `ENCKE_` variables and a TOML file, and for finer settings the table `[tuning]`.

mod access;
mod document;
mod effective;
mod gate;
mod given;
mod kinds;
mod memory_defaults;
mod nearest;
mod platform_variables;
mod presence;
mod pusher;
mod reloaded;
mod settings;
mod tables;
mod values;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Arg, ArgMatches, Args, FromArgMatches};

pub(crate) use self::access::AccessTable;
pub(crate) use self::effective::{effective, effective_json};
pub(crate) use self::given::{Given, flag_called, tuning_key};
use self::kinds::in_units;
pub(crate) use self::kinds::{duration, whole_number};
pub(crate) use self::memory_defaults::BASE_BYTES;
pub(crate) use self::presence::PresenceTable;
pub(crate) use self::pusher::PusherTable;
use self::settings::{SETTINGS, Setting};
pub(crate) use self::values::{Config, LogFormat};
use crate::control_groups::ControlGroups;
use crate::zone::NamedZone;

/// The arguments that set something: of `encke serve` and `encke doctor`. A flag takes precedence over a variable, a variable over
/// the file.
#[derive(Debug, Default)]
pub(crate) struct SettingsArgs {
    general: General,
    /// Flags that were given, with their values.
    flags: Vec<(&'static Setting, String)>,
}

/// Flags that are no settings.
#[derive(Args, Debug, Default)]
struct General {
    /// Read settings from this TOML file; its keys are the names of the flags, and a table "tuning"
    #[arg(
        long,
        env = "ENCKE_CONFIG",
        hide_env_values = true,
        value_name = "FILE"
    )]
    config: Option<PathBuf>,

    /// Set a key of the table "tuning"; --check lists all keys. May be repeated [env: ENCKE_TUNING, separated by commas]
    #[arg(long, value_name = "KEY=VALUE")]
    tuning: Vec<String>,
}

impl SettingsArgs {
    /// The configuration file.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.general.config.as_deref()
    }

    /// Sets where the server listens, in the place of what was set before.
    pub(crate) fn listen_on(&mut self, address: SocketAddr) {
        let listen = SETTINGS.iter().find(|setting| setting.name == "listen");
        let flags = listen.map(|setting| (setting, address.to_string()));
        self.flags.extend(flags);
    }

    /// The effective settings, and which of them were given where.
    pub(crate) fn resolve(&self) -> anyhow::Result<(Config, Given)> {
        let mut given = Given::default();
        if let Some(path) = &self.general.config {
            let text = encke_files::read_text(path)
                .map_err(tables::not_readable)
                .with_context(|| format!("the configuration {} can't be read", path.display()))?;
            given
                .file(path, &text)
                .with_context(|| format!("the configuration {} is wrong", path.display()))?;
        }
        given.variables(std::env::vars_os())?;
        for (setting, value) in &self.flags {
            given.flag(setting, value.clone());
        }
        for pair in &self.general.tuning {
            given.tuning(pair)?;
        }
        let memory_max = ControlGroups::read(Path::new("/")).memory_max();
        let config = Config::new(&given, memory_max)?;
        if let Some(access) = &config.access {
            access.access().context("the table [access] is wrong")?;
        }
        if let Some(presence) = &config.presence {
            presence.rules()?;
        }
        if let Some(pusher) = &config.pusher {
            pusher.settings()?;
        }
        Ok((config, given))
    }
}

/// Fails if a variable begins with `ENCKE_` and is none of Encke's.
pub(crate) fn check_variables() -> anyhow::Result<()> {
    Given::default().variables(std::env::vars_os())
}

impl Args for SettingsArgs {
    fn augment_args(command: clap::Command) -> clap::Command {
        let flags = SETTINGS.iter().filter(|setting| !setting.is_tuning());
        General::augment_args(command).args(flags.map(argument))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingsArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let flags = SETTINGS.iter().filter(|setting| !setting.is_tuning());
        let given = |setting: &'static Setting| {
            let value = matches.get_one::<String>(setting.name)?;
            Some((setting, value.clone()))
        };
        Ok(SettingsArgs {
            general: General::from_arg_matches(matches)?,
            flags: flags.filter_map(given).collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The flag of a setting.
fn argument(setting: &Setting) -> Arg {
    let (variable, default) = (setting.variable(), setting.default_text());
    let argument = Arg::new(setting.name)
        .long(setting.name)
        .value_name(setting.value_name)
        .help_heading(setting.group)
        .help(format!(
            "{} [env: {variable}] [default: {default}]",
            setting.help()
        ));
    match setting.value_name {
        "BOOL" => argument.num_args(0..=1).default_missing_value("true"),
        _ => argument,
    }
}

impl Config {
    /// `memory_max`: the limit on the memory of this process, in bytes.
    fn new(given: &Given, memory_max: Option<u64>) -> anyhow::Result<Self> {
        let mut config = given.apply()?;
        if let Some(memory_max) = memory_max {
            config.fit_memory(given, memory_max);
        }
        config.settle(given)?;
        Ok(config)
    }

    /// The addresses that the server listens on, each with its flag.
    pub(crate) fn addresses(&self) -> Vec<(&'static str, SocketAddr)> {
        let net = &self.net;
        let all = [
            ("--listen", Some(net.listen)),
            ("--admin-listen", net.operators_listen),
            ("--redirect-http", self.server.redirect_http),
        ];
        all.into_iter()
            .filter_map(|(flag, address)| Some((flag, address?)))
            .collect()
    }

    /// Refuses two addresses that can't be listened on at once.
    fn check_addresses(&self) -> anyhow::Result<()> {
        let addresses = self.addresses();
        for (at, (flag, address)) in addresses.iter().enumerate() {
            let taken = addresses[..at]
                .iter()
                .find(|(_, one)| overlap(one, address));
            if let Some((other, taken)) = taken {
                let example = free_example(flag);
                anyhow::bail!(
                    "{other} {} and {flag} {} are one address: choose another port for one of them, such as {flag} {example}",
                    NamedZone(*taken),
                    NamedZone(*address)
                );
            }
        }
        Ok(())
    }

    /// Checks the rules between settings, and sets what follows from them.
    fn settle(&mut self, given: &Given) -> anyhow::Result<()> {
        let (net, server) = (&mut self.net, &mut self.server);
        anyhow::ensure!(
            !net.proxy_protocol || !net.trust.is_empty(),
            "--proxy-protocol needs --trust, the networks of the proxies, such as --trust 10.0.0.0/8"
        );
        anyhow::ensure!(
            (net.body_bytes_max as u64) < self.log_options.segment_bytes / 2,
            "--body-max ({}) must be less than half of --segment ({}), because a record must fit into one segment",
            in_units(net.body_bytes_max as u64),
            in_units(self.log_options.segment_bytes),
        );
        anyhow::ensure!(
            self.log_options.background_jobs_max > self.log_options.waiting_segments_max,
            "tuning.background-jobs-max must be more than tuning.waiting-segments-max, because checkpoints wait there too"
        );
        let body_bytes_max = u32::try_from(net.body_bytes_max).unwrap_or(u32::MAX);
        if given.contains("pool-job-max") {
            anyhow::ensure!(
                server.pools.job_bytes_max <= body_bytes_max,
                "--pool-job-max ({}) must not be more than --body-max ({})",
                in_units(server.pools.job_bytes_max.into()),
                in_units(body_bytes_max.into()),
            );
        }
        server.pools.job_bytes_max = server.pools.job_bytes_max.min(body_bytes_max);
        anyhow::ensure!(
            server.pool_mailbox_bytes_max >= 2 * net.body_bytes_max,
            "tuning.pool-mailbox-size ({}) must be at least twice --body-max ({})",
            in_units(server.pool_mailbox_bytes_max as u64),
            in_units(net.body_bytes_max as u64),
        );
        anyhow::ensure!(
            server.mailbox_bytes_max >= 2 * net.body_bytes_max,
            "tuning.mailbox-size ({}) must be at least twice --body-max ({})",
            in_units(server.mailbox_bytes_max as u64),
            in_units(net.body_bytes_max as u64),
        );
        anyhow::ensure!(
            self.protocols.ephemeral_bytes_max <= EPHEMERAL_BYTES_MAX,
            "tuning.ephemeral-bytes ({}) must not be more than {}, because a message waits for each subscriber's socket whole",
            in_units(self.protocols.ephemeral_bytes_max as u64),
            in_units(EPHEMERAL_BYTES_MAX as u64),
        );
        let controlled = self.access.is_some();
        anyhow::ensure!(
            self.open || controlled || net.listen.ip().is_loopback(),
            "other machines can reach --listen {}, and there is no access control: configure [access], or add --open to allow \
             everything to everyone",
            NamedZone(net.listen)
        );
        let by_default = (controlled || self.open).then_some(ADMIN_LISTEN);
        net.operators_listen = self.admin_listen.unwrap_or(by_default);
        let (certificates, keys) = (self.tls.certificates.len(), self.tls.keys.len());
        anyhow::ensure!(
            certificates == keys,
            "--tls-cert names {certificates} files and --tls-key {keys}: each certificate needs its key, in the same order"
        );
        for (flag, is_set) in [
            ("--tls-client-ca", self.tls.client_ca.is_some()),
            ("--redirect-http", server.redirect_http.is_some()),
            ("tuning.hsts-max-age", net.hsts_max_age.is_some()),
        ] {
            anyhow::ensure!(
                !is_set || certificates > 0,
                "{flag} needs --tls-cert and --tls-key"
            );
        }
        if let Some(redirect) = server.redirect_http {
            anyhow::ensure!(
                self.open || controlled || redirect.ip().is_loopback(),
                "other machines can reach --redirect-http {redirect}, and there is no access control: configure [access], or add --open"
            );
        }
        anyhow::ensure!(
            self.fleet.brokers.is_some() == self.fleet.node.is_some(),
            "--fleet and --node belong together: the brokers, and the name of this node, such as --node a"
        );
        if self.fleet.brokers.is_some() {
            anyhow::ensure!(
                self.ack == encke_stream::AckLevel::Synced,
                "--ack can't be set with --fleet: a node acknowledges what the brokers have stored and it has synced"
            );
            let named = self.pusher.as_ref().and_then(PusherTable::level);
            anyhow::ensure!(
                named.is_none_or(|level| level == encke_stream::AckLevel::Synced),
                "ack can't be set in pusher.apps with --fleet: a node acknowledges what the brokers have stored and it has synced"
            );
            anyhow::ensure!(
                self.limits == encke_stream::Limits::default(),
                "tuning.producers-max and tuning.fork-depth-max can't be set with --fleet: all nodes must decide alike"
            );
        }
        net.tls = (certificates > 0).then(|| self.tls.clone());
        server.pools.wait_ms_max = self.protocols.pool.wait_s_max * 1_000;
        // A batch of a pool must fit into the mailbox of the log.
        server.pools.record_bytes = server.pools.record_bytes.min(server.mailbox_bytes_max / 4);
        let subscriptions = &mut server.subscriptions;
        subscriptions.client = self.client.clone();
        let limits = &mut subscriptions.limits;
        limits.record_bytes = limits.record_bytes.min(server.mailbox_bytes_max / 4);
        limits.allowed_addresses.networks = self.webhook_networks.list().to_vec();
        limits.public_root = self
            .public_url
            .as_ref()
            .map(|url| format!("{url}{STREAMS}").into());
        self.traces.check()?;
        self.check_addresses()
    }
}

/// Whether two listeners would be in each other's way.
fn overlap(one: &SocketAddr, other: &SocketAddr) -> bool {
    let is_any_version = |address: &SocketAddr| address.is_ipv6() && address.ip().is_unspecified();
    let takes = |one: &SocketAddr, other: &SocketAddr| {
        is_any_version(one) || one.ip().is_unspecified() && one.is_ipv4() == other.is_ipv4()
    };
    let (is_fixed, is_same_port) = (one.port() != 0, one.port() == other.port());
    is_fixed && is_same_port && (one == other || takes(one, other) || takes(other, one))
}

/// A port for messages that propose one, which is no default.
pub(crate) fn free_example(flag: &str) -> &'static str {
    match flag {
        "--admin-listen" => "5239",
        "--redirect-http" => "0.0.0.0:8080",
        _ => "5238",
    }
}

/// The root of the streams.
const STREAMS: &str = "/v1/stream";

/// Where operators connect unless something else is set.
const ADMIN_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 4438);

/// The largest `tuning.ephemeral-bytes`.
const EPHEMERAL_BYTES_MAX: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn given(toml: &str) -> anyhow::Result<Given> {
        let mut given = Given::default();
        given.file(Path::new("encke.toml"), toml)?;
        Ok(given)
    }

    fn config(toml: &str) -> anyhow::Result<Config> {
        Config::new(&given(toml)?, None)
    }

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: SettingsArgs,
    }

    #[test]
    fn the_file_gives_way() {
        let mut given =
            given("listen = '127.0.0.1:1'\nshards = 3\nring = '1MiB'\n[tuning]\nheartbeat = '5s'")
                .unwrap();
        let line = <Line as clap::Parser>::parse_from(["serve", "--listen", "127.0.0.1:2"]);
        for (setting, value) in line.args.flags {
            given.flag(setting, value);
        }
        let config = Config::new(&given, None).unwrap();
        assert_eq!(config.net.listen.port(), 2);
        assert_eq!(config.net.shards, 3);
        assert_eq!(config.net.ring_bytes, 1 << 20);
        assert_eq!(config.net.heartbeat, Duration::from_secs(5));
    }

    #[test]
    fn a_setting_has_one_name_and_the_flags_are_few() {
        let command = <Line as clap::CommandFactory>::command();
        let flags: Vec<_> = command
            .get_arguments()
            .map(|flag| flag.get_long())
            .collect();
        for (number, setting) in SETTINGS.iter().enumerate() {
            let others = &SETTINGS[number + 1..];
            assert!(others.iter().all(|other| other.name != setting.name));
            assert_eq!(flags.contains(&Some(setting.name)), !setting.is_tuning());
        }
        // 28 that every server may need, 6 to open one to the internet, and 4 for a node of a fleet.
        assert!(flags.len() <= 38, "{flags:?}");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (toml, word) in [
            ("shards = 0", "--shards"),
            ("shards = 5000", "--shards"),
            (
                "tuning.streams-per-subscriber-max = 129",
                "tuning.streams-per-subscriber-max",
            ),
            ("tuning.head-max = '1B'", "tuning.head-max"),
            ("tuning.heartbeat = '-5s'", "tuning.heartbeat"),
            ("tuning.streams-idle = '0s'", "tuning.streams-idle"),
            ("tuning.streams-hot-max = 0", "tuning.streams-hot-max"),
            ("body-max = '32MiB'", "--body-max"),
            (
                "[tuning]\nephemeral-bytes = '257KiB'",
                "tuning.ephemeral-bytes (257KiB)",
            ),
            ("exempt = '10.0.0.0/40'", "--exempt"),
            ("trust = '10.0.0.0/8, x'", "--trust"),
            ("proxy-protocol = true", "--trust"),
            ("tuning.request-burst = 0", "tuning.request-burst"),
            ("listen = '0.0.0.0:1'", "--open"),
            ("tls-cert = 'a'", "--tls-key"),
            ("tls-cert = 'a,b'\ntls-key = 'c'", "in the same order"),
            ("tls-cert = 'a,'\ntls-key = 'c'", "--tls-cert"),
            ("tls-client-ca = 'a'", "--tls-cert"),
            ("redirect-http = '80'", "--tls-cert"),
            (
                "tls-cert = 'a'\ntls-key = 'b'\nredirect-http = '0.0.0.0:80'",
                "--open",
            ),
            ("retention-age = '10ms'", "--retention-age"),
            ("retention-size = '10kB'", "--retention-size"),
            ("tuning.history-cache = '10kB'", "tuning.history-cache"),
            ("tuning.order-age = '-1s'", "tuning.order-age"),
            (
                "tuning.waiting-segments-max = 0",
                "tuning.waiting-segments-max",
            ),
            (
                "tuning.background-jobs-max = 0",
                "tuning.background-jobs-max",
            ),
            (
                "tuning.waiting-segments-max = 9\ntuning.background-jobs-max = 9",
                "tuning.background-jobs-max",
            ),
            ("body-max = '1MiB'\npool-job-max = '2MiB'", "--pool-job-max"),
            ("fleet = 'nats://a:4222'", "--node"),
            ("node = 'a'", "--fleet"),
            ("fleet = 'a:4222'\nnode = 'a'", "nats://"),
            ("fleet = 'nats://a'\nnode = 'a b'", "--node"),
            ("fleet = 'nats://a'\nnode = 'a'\nack = 'written'", "--ack"),
            (
                "fleet = 'nats://a'\nnode = 'a'\ntuning.producers-max = 5",
                "tuning.producers-max",
            ),
            ("tuning.fleet-replicas = 2", "tuning.fleet-replicas"),
            ("listen = '4438'\nopen = true", "--admin-listen 5239"),
            (
                "listen = '0.0.0.0:4438'\nopen = true",
                "--admin-listen 5239",
            ),
            (
                "listen = '127.0.0.1:9'\nadmin-listen = '[::]:9'",
                "--admin-listen 5239",
            ),
            (
                "tls-cert = 'a'\ntls-key = 'b'\nlisten = '9'\nredirect-http = '9'",
                "--redirect-http 0.0.0.0:8080",
            ),
        ] {
            let error = config(toml).unwrap_err();
            let shown = format!("{error:#}");
            assert!(shown.contains(word), "{toml}: {shown}");
        }
        for fine in [
            "listen = '0.0.0.0:1'\nopen = true",
            "listen = '[::1]:9'\nadmin-listen = '0.0.0.0:9'",
            "listen = '0'\nadmin-listen = '0'",
        ] {
            assert!(config(fine).is_ok(), "{fine}");
        }
    }

    #[test]
    fn the_effective_configuration_is_a_configuration() {
        for text in [
            "",
            "tls-cert = 'a,b'\ntls-key = 'c,d'\ntls-client-ca = 'e'\nredirect-http = '80'\n\
             ack = 'written'\nexempt = 'none'\nbody-max = '64KiB'\nretention-age = '90m'\n\
             [tuning]\norder-age = '1d'\npage = '1500B'\ndeferred-time = '3us'\npoll-wait = '1.5s'",
        ] {
            let first = given(text).unwrap();
            let first_config = Config::new(&first, None).unwrap();
            let shown = effective(&first_config, &first);
            let again = config(&shown).unwrap_or_else(|error| panic!("{error:#}:\n{shown}"));
            assert_eq!(format!("{first_config:?}"), format!("{again:?}"), "{shown}");
            for setting in SETTINGS {
                assert!(shown.contains(setting.name), "{}", setting.name);
            }
        }
    }

    #[test]
    fn the_effective_configuration_without_its_tables_is_refused() {
        for (table, text) in [
            ("access", "[access]\ncookie = 'c'"),
            ("presence", "[[presence.streams]]\nnames = 'a'"),
            (
                "pusher",
                "[[pusher.apps]]\nid = '1'\nkey = 'k'\nsecret = 'a secret that is long'",
            ),
        ] {
            let first = given(text).unwrap();
            let shown = effective(&Config::new(&first, None).unwrap(), &first);
            let error = format!("{:#}", config(&shown).unwrap_err());
            assert!(error.contains(&format!("[{table}] is not what")), "{error}");
        }
    }

    #[test]
    fn the_effective_configuration_names_origins() {
        let mut given = given("shards = 3\nbody-max = '64KiB'\n[tuning]\nreaders = 4").unwrap();
        let variable = ("ENCKE_ACK".into(), "written".into());
        given.variables(std::iter::once(variable)).unwrap();
        given.tuning("heartbeat=1s").unwrap();
        let shown = effective(&Config::new(&given, None).unwrap(), &given);
        for line in [
            "shards = 3  # file \"encke.toml\"",
            "readers = 4  # file \"encke.toml\"",
            "ack = \"written\"  # environment variable ENCKE_ACK",
            "heartbeat = \"1s\"  # flag --tuning",
            "logs = 1  # default",
            "pool-job-max = \"64KiB\"  # default, lowered by another limit",
            "# retention-age is not set  # default: unlimited",
        ] {
            assert!(shown.lines().any(|shown| shown == line), "{line}:\n{shown}");
        }
    }
}
