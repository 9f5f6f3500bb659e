//! The values that were given, and where: in the file, by environment variables, by flags.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use toml::{Table, Value};

use super::Config;
use super::settings::{SETTINGS, Setting};

/// Where a value was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    File(PathBuf),
    Variable(String),
    Flag(String),
}

/// Values by the names of their settings. A value replaces one that was given before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given(BTreeMap<&'static str, (String, Origin)>);

impl Given {
    /// Takes the values of a configuration file.
    pub(super) fn file(&mut self, path: &Path, text: &str) -> anyhow::Result<()> {
        for (name, value) in text.parse::<Table>()? {
            match value {
                Value::Table(tuning) if name == TUNING => {
                    for (name, value) in tuning {
                        self.key(find(&name, true)?, value, path)?;
                    }
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
            Value::Boolean(on) => on.to_string(),
            other => anyhow::bail!(
                "the key {} must be a string, a number or a boolean, not {}",
                setting.name,
                other.type_str()
            ),
        };
        self.put(setting, text, Origin::File(path.to_owned()));
        Ok(())
    }

    /// Takes the values of environment variables.
    pub(super) fn variables(
        &mut self,
        value: impl Fn(&str) -> Option<OsString>,
    ) -> anyhow::Result<()> {
        let value = |name: &str| {
            let text = value(name).map(OsString::into_string).transpose();
            text.map_err(|_| anyhow::anyhow!("the variable {name} is not UTF-8"))
        };
        for setting in SETTINGS {
            let name = setting.variable();
            match value(&name)? {
                None => {}
                Some(text) if !setting.is_tuning() => {
                    self.put(setting, text, Origin::Variable(name));
                }
                Some(text) => anyhow::bail!(
                    "{name} is not a variable of Encke: set {TUNING_VARIABLE}={}={text}",
                    setting.name
                ),
            }
        }
        let list = value(TUNING_VARIABLE)?.unwrap_or_default();
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
        let (name, text) = pair
            .split_once('=')
            .with_context(|| format!("{pair:?} is not of the form KEY=VALUE"))?;
        self.put(find(name.trim(), true)?, text.trim().to_owned(), origin);
        Ok(())
    }

    fn put(&mut self, setting: &'static Setting, text: String, origin: Origin) {
        self.0.insert(setting.name, (text, origin));
    }

    /// Where a setting was given, if it was.
    pub(super) fn origin(&self, setting: &Setting) -> Option<&Origin> {
        self.0.get(setting.name).map(|(_, origin)| origin)
    }

    /// Whether the setting of that name was given.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The defaults with these values, before rules between settings apply.
    pub(super) fn apply(&self) -> anyhow::Result<Config> {
        let mut config = Config::default();
        for setting in SETTINGS {
            if let Some((text, origin)) = self.0.get(setting.name) {
                (setting.set)(&mut config, text).with_context(|| {
                    format!("{} has a wrong value {text:?} ({origin})", setting.label())
                })?;
            }
        }
        Ok(config)
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
    let place = |setting: &Setting| match setting.is_tuning() {
        true => "belongs to the table [tuning]",
        false => "does not belong to the table [tuning]",
    };
    match SETTINGS.iter().find(same) {
        Some(setting) if setting.is_tuning() == tuning => return Ok(setting),
        Some(setting) => anyhow::bail!("the key {name} {}", place(setting)),
        None => {}
    }
    let similarity = |setting: &Setting| strsim::jaro_winkler(name, setting.name);
    let nearest = SETTINGS
        .iter()
        .max_by(|a, b| similarity(a).total_cmp(&similarity(b)))
        .filter(|setting| similarity(setting) >= SIMILAR);
    match nearest {
        Some(nearest) => anyhow::bail!("unknown key {name}; a similar key is {}", nearest.name),
        None => anyhow::bail!("unknown key {name}"),
    }
}

/// The name of the table.
const TUNING: &str = "tuning";

/// Keys of the table `[tuning]` with their values, separated by commas.
const TUNING_VARIABLE: &str = "ENCKE_TUNING";

/// From this similarity on, a name is worth proposing.
const SIMILAR: f64 = 0.8;

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
            ("config = 'x'", "unknown key config"),
            ("tuning = 1", "unknown key tuning"),
            ("ring = 1.5", "ring must be a string"),
        ] {
            let error = format!("{:#}", file(text).unwrap_err());
            assert!(error.contains(message), "{text}: {error}");
        }
    }

    #[test]
    fn variables_replace_the_file_and_flags_replace_variables() {
        let mut given = file("shards = 1\nlogs = 1\n[tuning]\nreaders = 1\npage = '1KiB'").unwrap();
        let variables = |name: &str| match name {
            "ENCKE_SHARDS" => Some("2".into()),
            "ENCKE_TUNING" => Some("readers=2, heartbeat=2s".into()),
            _ => None,
        };
        given.variables(variables).unwrap();
        given.tuning("heartbeat=3s").unwrap();
        let config = given.apply().unwrap();
        assert_eq!((config.net.shards, config.net.readers), (2, 2));
        assert_eq!(config.net.heartbeat.as_secs(), 3);
        assert_eq!(config.protocols.durable_streams.page_bytes, 1 << 10);
    }

    #[test]
    fn a_tuning_key_has_no_variable_of_its_own() {
        let one = |name: &str| (name == "ENCKE_HEARTBEAT").then(|| "1s".into());
        let error = Given::default().variables(one).unwrap_err().to_string();
        assert!(error.contains("ENCKE_TUNING=heartbeat=1s"), "{error}");
    }

    #[test]
    fn pairs_have_a_key_and_a_value() {
        for wrong in ["heartbeat", "=1s", "listen=127.0.0.1:1", ""] {
            assert!(Given::default().tuning(wrong).is_err(), "{wrong:?}");
        }
    }
}
