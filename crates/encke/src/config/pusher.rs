//! The table `[pusher]` of the configuration file: apps of the Pusher protocol.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use encke_access::{Secret, parse_duration};
use encke_protocol::{AppSecret, Origins, PusherApp, PusherSettings, PusherWebhook, WebhookKind};
use encke_stream::{AckLevel, Retention};
use serde::Deserialize;
use toml::Table;

use super::presence::grace_of;
use super::tables::{entries_of, read_file};

/// The table `[pusher]`, and the folder in which the files that it names are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PusherTable {
    apps: Vec<AppEntry>,
    /// The configuration file.
    path: PathBuf,
}

/// An entry of `[[pusher.apps]]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct AppEntry {
    id: String,
    key: String,
    /// The secret comes from exactly one of `secret` and `secret-file`.
    secret: Option<Secret>,
    secret_file: Option<PathBuf>,
    #[serde(default = "enabled")]
    enabled: bool,
    /// Origins whose pages may connect; none for all.
    #[serde(default)]
    origins: Vec<String>,
    /// In the form of the field `Encke-Retention`.
    retention: Option<String>,
    ttl: Option<String>,
    ack: Option<String>,
    connections_max: Option<usize>,
    channels_max: Option<usize>,
    channels_per_connection_max: Option<usize>,
    event_bytes_max: Option<usize>,
    #[serde(default)]
    client_events: bool,
    client_events_per_second: Option<usize>,
    presence_members_max: Option<usize>,
    presence_grace: Option<String>,
    #[serde(default)]
    subscription_count: bool,
    #[serde(default)]
    rewind: bool,
    #[serde(default)]
    watchlists: bool,
    #[serde(default)]
    webhooks: Vec<WebhookEntry>,
}

/// An entry of `[[pusher.apps.webhooks]]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct WebhookEntry {
    url: String,
    /// What the server is told of.
    events: Vec<String>,
    /// It is told of channels whose names begin so.
    #[serde(default)]
    channels: String,
}

fn enabled() -> bool {
    true
}

impl PusherTable {
    /// Reads the table of the configuration file at `path`.
    pub(super) fn parse(mut table: Table, path: &Path) -> anyhow::Result<Self> {
        let apps = entries_of(&mut table, NAME, "apps")?;
        if let Some(unknown) = table.keys().next() {
            anyhow::bail!("unknown key {unknown} in {NAME}; known keys are apps");
        }
        let path = path.to_owned();
        Ok(PusherTable { apps, path })
    }

    /// What the table says. Reads the files that it names.
    pub(crate) fn settings(&self) -> anyhow::Result<PusherSettings> {
        let apps = self.apps.iter().enumerate();
        let apps = apps.map(|(at, entry)| {
            let app = entry.app(|file| self.file(file));
            app.with_context(|| format!("the key {NAME}.apps[{at}] is wrong"))
        });
        let apps: Vec<PusherApp> = apps.collect::<anyhow::Result<_>>()?;
        let mut seed = [0; 32];
        aws_lc_rs::rand::fill(&mut seed)
            .map_err(|_| anyhow::anyhow!("the system gives no random bytes"))?;
        PusherSettings::new(apps, seed).with_context(|| format!("the key {NAME}.apps is wrong"))
    }

    /// The weakest durability level that an app names.
    pub(super) fn level(&self) -> Option<AckLevel> {
        let levels = self.apps.iter().filter_map(|app| app.ack.as_deref());
        levels.filter_map(|level| level.parse().ok()).min()
    }

    /// The files that hold secrets, each with the key that names it: the configuration file itself, if secrets are written in it.
    pub(crate) fn secret_files(&self) -> Vec<(String, PathBuf)> {
        let mut files = Vec::new();
        if self.apps.iter().any(|app| app.secret.is_some()) {
            files.push((NAME.to_owned(), self.path.clone()));
        }
        for (at, app) in self.apps.iter().enumerate() {
            let file = app.secret_file.iter();
            files.extend(file.map(|file| {
                let key = format!("{NAME}.apps[{at}].secret-file");
                (key, self.file(file))
            }));
        }
        files
    }

    /// What is configured, in a few words and without secrets.
    pub(crate) fn summary(&self) -> String {
        let ids: Vec<&str> = self.apps.iter().map(|app| app.id.as_str()).collect();
        format!("{} apps ({})", ids.len(), ids.join(", "))
    }

    fn file(&self, path: &Path) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(path)
    }
}

impl AppEntry {
    fn app(&self, file: impl Fn(&Path) -> PathBuf) -> anyhow::Result<PusherApp> {
        let mut app = PusherApp::new(&*self.id, &*self.key, self.secret(file)?);
        app.enabled = self.enabled;
        if !self.origins.is_empty() {
            app.origins = origins(&self.origins)?;
        }
        let retention = self.retention.as_deref().map(str::parse::<Retention>);
        app.retention = retention.transpose().with_context(|| {
            "retention has a wrong value, such as age=86400, records=1000 would be right".to_owned()
        })?;
        app.ttl_s = self.ttl.as_deref().map(ttl_s).transpose()?;
        let ack = self.ack.as_deref().map(str::parse::<AckLevel>);
        app.ack = ack
            .transpose()
            .map_err(|_| anyhow::anyhow!("ack is synced, written or accepted"))?;
        app.connections_max = bound("connections-max", self.connections_max)?;
        if let Some(max) = bound("channels-max", self.channels_max)? {
            app.channels_max = max;
        }
        if let Some(max) = bound(
            "channels-per-connection-max",
            self.channels_per_connection_max,
        )? {
            app.channels_per_connection_max = max;
        }
        if let Some(max) = bound("event-bytes-max", self.event_bytes_max)? {
            app.event_bytes_max = max;
        }
        app.client_events = self.client_events;
        let per_second = bound("client-events-per-second", self.client_events_per_second)?;
        if let Some(max) = per_second {
            app.client_events_per_second = u32::try_from(max).unwrap_or(u32::MAX);
        }
        if let Some(max) = bound("presence-members-max", self.presence_members_max)? {
            app.presence_members_max = max;
        }
        if let Some(grace) = self.presence_grace.as_deref() {
            app.presence_grace = grace_of(grace).context("presence-grace has a wrong value")?;
        }
        app.subscription_count = self.subscription_count;
        app.rewind = self.rewind;
        app.watchlists = self.watchlists;
        let webhooks = self.webhooks.iter().enumerate();
        let webhooks = webhooks.map(|(at, entry)| {
            let webhook = entry.webhook();
            webhook.with_context(|| format!("webhooks[{at}] is wrong"))
        });
        app.webhooks = webhooks.collect::<anyhow::Result<_>>()?;
        Ok(app)
    }

    fn secret(&self, file: impl Fn(&Path) -> PathBuf) -> anyhow::Result<AppSecret> {
        match (&self.secret, &self.secret_file) {
            (Some(secret), None) => Ok(secret.expose().into()),
            (None, Some(path)) => {
                let path = file(path);
                let bytes = read_file(&path)
                    .with_context(|| format!("secret-file {} can't be read", path.display()))?;
                let text = String::from_utf8(bytes).ok();
                let text =
                    text.with_context(|| format!("secret-file {} is not UTF-8", path.display()))?;
                Ok(text.trim_end_matches(['\r', '\n']).into())
            }
            _ => anyhow::bail!("an app needs secret or secret-file, and not both"),
        }
    }
}

impl WebhookEntry {
    fn webhook(&self) -> anyhow::Result<PusherWebhook> {
        let kinds = self.events.iter().map(|name| name.parse::<WebhookKind>());
        let kinds = kinds.collect::<Result<_, _>>();
        let kinds = kinds.context("events has a wrong value")?;
        Ok(PusherWebhook::new(&self.url, kinds, &self.channels)?)
    }
}

/// The origins of a list. A word that stands for others is no origin.
fn origins(listed: &[String]) -> anyhow::Result<Origins> {
    match listed.join(",").parse::<Origins>() {
        Ok(origins @ Origins::Listed(_)) => Ok(origins),
        Ok(_) => anyhow::bail!(
            "origins is a list of origins such as https://app.example.com; an empty one stands for any"
        ),
        Err(why) => Err(why).context("origins has a wrong value"),
    }
}

fn ttl_s(text: &str) -> anyhow::Result<u64> {
    let ttl = parse_duration(text).and_then(|ttl| Duration::try_from(ttl).ok());
    let seconds = ttl.map(|ttl| ttl.as_secs()).filter(|seconds| *seconds > 0);
    seconds.context("ttl is a duration of at least 1s, such as 7d")
}

fn bound(name: &str, value: Option<usize>) -> anyhow::Result<Option<usize>> {
    match value {
        Some(0) => anyhow::bail!("{name} must be at least 1"),
        value => Ok(value),
    }
}

/// The name of the table.
pub(super) const NAME: &str = "pusher";

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> anyhow::Result<PusherTable> {
        PusherTable::parse(text.parse().unwrap(), Path::new("/etc/encke/encke.toml"))
    }

    const APP: &str = "[[apps]]\nid = '1'\nkey = 'k'\n";
    const SECRET: &str = "secret = '0123456789abcdef'\n";

    #[test]
    fn an_entry_is_an_app() {
        let text = format!(
            "{APP}{SECRET}enabled = false\norigins = ['https://a.example', 'http://localhost:5173']\n\
             retention = 'age=60, records=5'\nttl = '1d'\nack = 'written'\nconnections-max = 7\n\
             channels-max = 70\nchannels-per-connection-max = 8\nevent-bytes-max = 9\nclient-events = true\n\
             client-events-per-second = 5\npresence-members-max = 6\n\
             presence-grace = '5s'\nsubscription-count = true\nrewind = true\nwatchlists = true\n\
             [[apps.webhooks]]\nurl = 'http://10.0.0.1/hook'\nevents = ['channel_occupied']\nchannels = 'x-'\n\
             [[apps]]\nid = '2'\nkey = 'l'\n{SECRET}"
        );
        let table = table(&text).unwrap();
        assert_eq!(table.summary(), "2 apps (1, 2)");
        assert_eq!(table.level(), Some(AckLevel::Written));
        let settings = table.settings().unwrap();
        let expected = PusherApp {
            enabled: false,
            origins: "https://a.example,http://localhost:5173".parse().unwrap(),
            retention: "age=60, records=5".parse().ok(),
            ttl_s: Some(86_400),
            ack: Some(AckLevel::Written),
            connections_max: Some(7),
            channels_max: 70,
            channels_per_connection_max: 8,
            event_bytes_max: 9,
            client_events: true,
            client_events_per_second: 5,
            presence_members_max: 6,
            presence_grace: Duration::from_secs(5),
            subscription_count: true,
            rewind: true,
            watchlists: true,
            webhooks: PusherWebhook::new(
                "http://10.0.0.1/hook",
                vec![WebhookKind::ChannelOccupied],
                "x-",
            )
            .into_iter()
            .collect(),
            ..PusherApp::new("1", "k", "0123456789abcdef".into())
        };
        let plain = PusherApp::new("2", "l", "0123456789abcdef".into());
        assert_eq!(settings.apps(), [expected, plain]);
        assert!(!format!("{table:?}").contains("0123456789"));
        let files = table.secret_files();
        assert_eq!(
            files,
            [("pusher".to_owned(), "/etc/encke/encke.toml".into())]
        );
    }

    #[test]
    fn messages_name_the_key() {
        for (text, message) in [
            ("app = 1", "unknown key app in pusher; known keys are apps"),
            ("apps = 1", "must be a list of tables, [[pusher.apps]]"),
            ("[[apps]]\nid = '1'", "the key pusher.apps[0] needs key"),
            (
                "[[apps]]\nid = '1'\nkey = 'k'\nsecrets = 'hidden'",
                "unknown key secrets in pusher.apps[0]; a similar key is secret",
            ),
            (
                "[[apps]]\nid = 31337\nkey = 'k'",
                "the key pusher.apps[0] is wrong",
            ),
            (APP, "an app needs secret or secret-file, and not both"),
            (
                &format!("{APP}{SECRET}secret-file = 'x'"),
                "an app needs secret or secret-file, and not both",
            ),
            (
                &format!("{APP}secret-file = 'nothing-here'"),
                "/etc/encke/nothing-here can't be read",
            ),
            (
                &format!("{APP}secret = 'hidden'"),
                "has 6 bytes, at least 16",
            ),
            (
                &format!("{APP}{SECRET}{APP}{SECRET}"),
                "two apps have the id \"1\"",
            ),
            (
                &format!("{APP}{SECRET}origins = ['*']"),
                "an empty one stands for any",
            ),
            (
                &format!("{APP}{SECRET}origins = ['a']"),
                "origins has a wrong value",
            ),
            (
                &format!("{APP}{SECRET}retention = '5'"),
                "retention has a wrong value",
            ),
            (&format!("{APP}{SECRET}ttl = '10ms'"), "ttl is a duration"),
            (
                &format!("{APP}{SECRET}presence-grace = '2d'"),
                "presence-grace has a wrong value: a grace is a duration",
            ),
            (
                &format!(
                    "{APP}{SECRET}[[apps.webhooks]]\nurl = 'https://h/'\nevents = ['vacated']"
                ),
                "webhooks[0] is wrong: events has a wrong value: \"vacated\" is none of channel_occupied",
            ),
            (
                &format!("{APP}{SECRET}[[apps.webhooks]]\nurl = 'h'\nevents = ['cache_miss']"),
                "webhooks[0] is wrong: the scheme is neither https nor",
            ),
            (
                &format!("{APP}{SECRET}[[apps.webhooks]]\nurl = 'https://h/'\nevents = []"),
                "webhooks[0] is wrong: it is told of nothing",
            ),
            (
                &format!(
                    "{APP}{SECRET}{hook}{hook}",
                    hook = "[[apps.webhooks]]\nurl = 'https://h/'\nevents = ['cache_miss']\n"
                ),
                "two webhooks of the app \"1\" have the URL https://h/",
            ),
            (
                &format!("{APP}{SECRET}ack = 'safe'"),
                "ack is synced, written or accepted",
            ),
            (
                &format!("{APP}{SECRET}connections-max = 0"),
                "connections-max must be at least 1",
            ),
            (
                &format!("{APP}{SECRET}event-bytes-max = -1"),
                "pusher.apps[0] is wrong",
            ),
        ] {
            let error = table(text).and_then(|table| table.settings().map(drop));
            let error = format!("{:#}", error.unwrap_err());
            assert!(error.contains(message), "{text}: {error}");
            assert!(
                !error.contains("hidden") && !error.contains("31337"),
                "{error}"
            );
        }
    }
}
