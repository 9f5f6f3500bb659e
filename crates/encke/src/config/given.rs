//! The values that were given, and where: in the file, by environment variables, by flags.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use toml::Value;

use super::Config;
use super::access::{self, AccessTable};
use super::document;
use super::nearest::{nearest, synonym};
use super::platform_variables::is_of_platform;
use super::presence::{self, PresenceTable};
use super::pusher::{self, PusherTable};
use super::settings::{SETTINGS, Setting};
use super::tables::NOT_PRINTED;

/// Where a value was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    File(PathBuf),
    Variable(String),
    Flag(String),
}

/// Values by the names of their settings. A value replaces one that was given before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given {
    values: BTreeMap<&'static str, (String, Origin)>,
    access: Option<AccessTable>,
    presence: Option<PresenceTable>,
    pusher: Option<PusherTable>,
}

impl Given {
    /// Takes the values of a configuration file.
    pub(super) fn file(&mut self, path: &Path, text: &str) -> anyhow::Result<()> {
        for (name, value) in document::parse(text)? {
            if value.get(NOT_PRINTED).is_some() {
                anyhow::bail!(
                    "the table [{name}] is not what a server used: `encke serve --check` has left its content out"
                );
            }
            match value {
                Value::Table(tuning) if name == TUNING => {
                    for (name, value) in tuning {
                        self.key(find(&name, true)?, value, path)?;
                    }
                }
                Value::Table(table) if name == access::NAME => {
                    self.access = Some(AccessTable::parse(table, path)?);
                }
                Value::Table(table) if name == presence::NAME => {
                    self.presence = Some(PresenceTable::parse(table)?);
                }
                Value::Table(table) if name == pusher::NAME => {
                    self.pusher = Some(PusherTable::parse(table, path)?);
                }
                value => self.key(find(&name, false)?, value, path)?,
            }
        }
        Ok(())
    }

    fn key(&mut self, setting: &'static Setting, value: Value, path: &Path) -> anyhow::Result<()> {
        let text = match value {
            Value::String(text) => text,
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::Boolean(on) => on.to_string(),
            other => anyhow::bail!(
                "the key {} must be a string, a number or a boolean, not a value of type {}",
                setting.name,
                other.type_str()
            ),
        };
        self.put(setting, text, Origin::File(path.to_owned()));
        Ok(())
    }

    /// Takes the values of environment variables. A variable that begins with `ENCKE_` and is none of Encke's is an error, unless a
    /// platform sets it for a service of that name.
    pub(super) fn variables(
        &mut self,
        variables: impl Iterator<Item = (OsString, OsString)>,
    ) -> anyhow::Result<()> {
        for (name, value) in variables {
            let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else {
                continue;
            };
            if OTHER_VARIABLES.contains(&name) {
                continue;
            }
            let value = value.into_string();
            let value = value.map_err(|_| anyhow::anyhow!("the variable {name} is not UTF-8"))?;
            if name == TUNING_VARIABLE {
                self.tuning_variable(&value)?;
                continue;
            }
            let of_name = |setting: &&Setting| setting.variable() == name;
            match SETTINGS.iter().find(of_name) {
                Some(setting) if !setting.is_tuning() => {
                    self.put(setting, value, Origin::Variable(name.to_owned()));
                }
                Some(setting) => anyhow::bail!(
                    "{name} is not a variable of Encke: set {TUNING_VARIABLE}={}={value}",
                    setting.name
                ),
                None if is_of_platform(name, &value) => {}
                None => {
                    let names = SETTINGS.iter().filter(|setting| !setting.is_tuning());
                    let names: Vec<String> = names.map(Setting::variable).collect();
                    let meant = name.strip_prefix(PREFIX).unwrap_or(name);
                    let meant = synonym(&meant.to_lowercase().replace('_', "-"));
                    let meant = SETTINGS.iter().find(|setting| meant == Some(setting.name));
                    let meant = meant.map(Setting::variable);
                    let nearest = nearest(name, names.iter().map(String::as_str));
                    let nearest = meant
                        .as_deref()
                        .or(nearest)
                        .map(|known| format!("; a similar variable is {known}"));
                    anyhow::bail!("unknown variable {name}{}", nearest.unwrap_or_default());
                }
            }
        }
        Ok(())
    }

    fn tuning_variable(&mut self, list: &str) -> anyhow::Result<()> {
        for pair in list.split(',').map(str::trim).filter(|one| !one.is_empty()) {
            self.pair(pair, Origin::Variable(TUNING_VARIABLE.to_owned()))
                .with_context(|| format!("the variable {TUNING_VARIABLE} is wrong"))?;
        }
        Ok(())
    }

    /// Takes the value of a flag.
    pub(super) fn flag(&mut self, setting: &'static Setting, text: String) {
        self.put(setting, text, Origin::Flag(setting.label()));
    }

    /// Takes the value of a flag `--tuning`.
    pub(super) fn tuning(&mut self, pair: &str) -> anyhow::Result<()> {
        self.pair(pair, Origin::Flag("--tuning".to_owned()))
            .context("--tuning is wrong")
    }

    fn pair(&mut self, pair: &str, origin: Origin) -> anyhow::Result<()> {
        let (name, text) = pair.split_once('=').with_context(|| {
            format!("{pair:?} is not of the form KEY=VALUE, such as heartbeat=30s")
        })?;
        self.put(find(name.trim(), true)?, text.trim().to_owned(), origin);
        Ok(())
    }

    fn put(&mut self, setting: &'static Setting, text: String, origin: Origin) {
        self.values.insert(setting.name, (text, origin));
    }

    /// Where a setting was given, if it was.
    pub(super) fn origin(&self, setting: &Setting) -> Option<&Origin> {
        self.values.get(setting.name).map(|(_, origin)| origin)
    }

    /// The table `[access]` of the file.
    pub(crate) fn access(&self) -> Option<&AccessTable> {
        self.access.as_ref()
    }

    /// The table `[presence]` of the file.
    pub(crate) fn presence(&self) -> Option<&PresenceTable> {
        self.presence.as_ref()
    }

    /// The table `[pusher]` of the file.
    pub(crate) fn pusher(&self) -> Option<&PusherTable> {
        self.pusher.as_ref()
    }

    /// Whether the setting of that name was given.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// The defaults with these values, before rules between settings apply.
    pub(super) fn apply(&self) -> anyhow::Result<Config> {
        let mut config = Config {
            access: self.access.clone(),
            presence: self.presence.clone(),
            pusher: self.pusher.clone(),
            ..Config::default()
        };
        for setting in SETTINGS {
            if let Some((text, origin)) = self.values.get(setting.name) {
                (setting.set)(&mut config, text, origin.folder()).with_context(|| {
                    let label = setting.label();
                    let text = encke_fleet::without_userinfo(text);
                    match origin {
                        Origin::Flag(name) if *name == label => {
                            format!("{label} has a wrong value {text:?}")
                        }
                        origin => format!("{label} has a wrong value {text:?} ({origin})"),
                    }
                })?;
            }
        }
        Ok(config)
    }
}

impl Origin {
    /// Where relative paths in a value begin: beside the file that has it, or else in the working directory.
    fn folder(&self) -> &Path {
        let folder = match self {
            Origin::File(path) => path.parent(),
            Origin::Variable(_) | Origin::Flag(_) => None,
        };
        folder.unwrap_or(Path::new(""))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // With quotes and without line breaks, whatever the name is.
            Origin::File(path) => write!(f, "file {path:?}"),
            Origin::Variable(name) => write!(f, "environment variable {name}"),
            Origin::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// The setting of that name, in the table `[tuning]` or outside of it.
fn find(name: &str, tuning: bool) -> anyhow::Result<&'static Setting> {
    let same = |setting: &&Setting| setting.name == name;
    match SETTINGS.iter().find(same) {
        Some(setting) if setting.is_tuning() == tuning => return Ok(setting),
        Some(_) if tuning => anyhow::bail!(
            "the key {name} does not belong to the table [tuning]: it is a key outside of tables, and the flag --{name}"
        ),
        Some(_) => {
            anyhow::bail!(
                "the key {name} belongs to the table [tuning]: write it below a line [tuning]"
            )
        }
        None => {}
    }
    let known = SETTINGS.iter().map(|setting| setting.name);
    let nearest = nearest(
        name,
        known.chain([TUNING, access::NAME, presence::NAME, pusher::NAME]),
    );
    match synonym(name).or(nearest) {
        Some(nearest) => anyhow::bail!("unknown key {name}; a similar key is {nearest}"),
        None => anyhow::bail!("unknown key {name}"),
    }
}

/// The key of the table `[tuning]` that a flag of this name probably means.
pub(crate) fn tuning_key(flag: &str) -> Option<&'static str> {
    let keys = SETTINGS.iter().filter(|setting| setting.is_tuning());
    nearest(flag, keys.map(|setting| setting.name))
}

/// The flag that other servers call by this name.
pub(crate) fn flag_called(name: &str) -> Option<&'static str> {
    synonym(name)
}

/// The name of the table.
const TUNING: &str = "tuning";

/// What the names of all variables begin with.
const PREFIX: &str = "ENCKE_";

/// Variables that are no settings: the path of the file, the binary that tests and experiments run, and the tokens of `encke import`.
const OTHER_VARIABLES: [&str; 4] = [
    "ENCKE_CONFIG",
    "ENCKE_BIN",
    "ENCKE_IMPORT_TOKEN",
    "ENCKE_IMPORT_TO_TOKEN",
];

/// Keys of the table `[tuning]` with their values, separated by commas.
const TUNING_VARIABLE: &str = "ENCKE_TUNING";

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> anyhow::Result<Given> {
        let mut given = Given::default();
        given.file(Path::new("encke.toml"), text)?;
        Ok(given)
    }

    #[test]
    fn unknown_keys_are_errors_that_name_the_nearest() {
        for (text, message) in [
            ("lisen = '127.0.0.1:1'", "a similar key is listen"),
            ("[tuning]\nhartbeat = '1s'", "a similar key is heartbeat"),
            ("heartbeat = '1s'", "belongs to the table [tuning]"),
            ("[tuning]\nlisten = 'x'", "does not belong to the table"),
            ("qqq = 1", "unknown key qqq"),
            ("port = 80", "a similar key is listen"),
            ("[acess]\ncookie = 'x'", "a similar key is access"),
            ("[access]\ncokie = 'x'", "a similar key is cookie"),
            ("config = 'x'", "unknown key config"),
            ("tuning = 1", "unknown key tuning"),
            ("ring = [1]", "ring must be a string"),
        ] {
            let error = format!("{:#}", file(text).unwrap_err());
            assert!(error.contains(message), "{text}: {error}");
        }
    }

    #[test]
    fn relative_paths_begin_beside_the_file_that_has_them() {
        let mut given = Given::default();
        let text = "data = 'data'\ntls-cert = 'a.pem, /etc/b.pem'\ntls-key = 'a.key,b.key'\n\
                    [tuning]\naudit-log-file = '../audit.log'\naccess-log-file = '/var/log/access'";
        given
            .file(Path::new("/etc/encke/encke.toml"), text)
            .unwrap();
        let config = given.apply().unwrap();
        assert_eq!(config.data, Path::new("/etc/encke/data"));
        let certificates = ["/etc/encke/a.pem", "/etc/b.pem"].map(PathBuf::from);
        assert_eq!(config.tls.certificates, certificates);
        let audit_log = Some("/etc/encke/../audit.log".into());
        assert_eq!(config.audit_log_file, audit_log);
        assert_eq!(config.access_log_file, Some("/var/log/access".into()));
        // Variables and flags are of whoever starts the server.
        given.variables(of(&[("ENCKE_DATA", "data")])).unwrap();
        assert_eq!(given.apply().unwrap().data, Path::new("data"));
        // And so is what nothing says.
        let text = "logs = 1";
        let mut given = Given::default();
        given
            .file(Path::new("/etc/encke/encke.toml"), text)
            .unwrap();
        assert!(given.apply().unwrap().data.is_relative());
    }

    #[test]
    fn variables_replace_the_file_and_flags_replace_variables() {
        let mut given = file("shards = 1\nlogs = 1\n[tuning]\nreaders = 1\npage = '1KiB'").unwrap();
        let variables = [
            ("ENCKE_SHARDS", "2"),
            ("ENCKE_TUNING", "readers=2, heartbeat=2s"),
            ("HOME", "/"),
            ("ENCKE_CONFIG", "encke.toml"),
        ];
        given.variables(of(&variables)).unwrap();
        given.tuning("heartbeat=3s").unwrap();
        let config = given.apply().unwrap();
        assert_eq!((config.net.shards, config.server.readers), (2, 2));
        assert_eq!(config.net.heartbeat.as_secs(), 3);
        assert_eq!(config.protocols.durable_streams.page_bytes, 1 << 10);
    }

    #[test]
    fn a_tuning_key_has_no_variable_of_its_own() {
        let variables = of(&[("ENCKE_HEARTBEAT", "1s")]);
        let error = Given::default().variables(variables).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("ENCKE_TUNING=heartbeat=1s"), "{error}");
    }

    #[test]
    fn unknown_variables_are_errors_that_name_the_nearest() {
        for (name, message) in [
            ("ENCKE_LISEN", "a similar variable is ENCKE_LISTEN"),
            ("ENCKE_CHECK", "unknown variable ENCKE_CHECK"),
        ] {
            let error = Given::default().variables(of(&[(name, "1")])).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn variables_of_a_service_named_like_the_server_are_ignored() {
        let variables = of(&[
            ("ENCKE_PORT", "tcp://10.96.0.7:4437"),
            ("ENCKE_SERVICE_HOST", "10.96.0.7"),
            ("ENCKE_SHARDS", "2"),
        ]);
        let mut given = Given::default();
        given.variables(variables).unwrap();
        assert_eq!(given.values.len(), 1);
        let error = Given::default().variables(of(&[("ENCKE_PORT", "80")]));
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("a similar variable is ENCKE_LISTEN"),
            "{error}"
        );
    }

    fn of(variables: &[(&str, &str)]) -> impl Iterator<Item = (OsString, OsString)> {
        let variables = variables.iter();
        let owned = variables.map(|(name, value)| (OsString::from(name), OsString::from(value)));
        owned.collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn pairs_have_a_key_and_a_value() {
        for wrong in ["heartbeat", "=1s", "listen=127.0.0.1:1", ""] {
            assert!(Given::default().tuning(wrong).is_err(), "{wrong:?}");
        }
    }
}
