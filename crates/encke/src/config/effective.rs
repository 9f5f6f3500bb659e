//! The effective configuration as TOML, which `encke serve --check` prints.

use std::fmt::Write;

use super::settings::{SETTINGS, Setting};
use super::{Config, Given};

/// Every setting with its effective value and, as a comment, the origin of the value. The text can be used as a configuration file.
pub(crate) fn effective(config: &Config, given: &Given) -> String {
    let asked = given.apply().expect("the configuration was made of it");
    let mut text = String::new();
    let mut group = None;
    for setting in SETTINGS {
        if group != Some(setting.group) {
            text.push('\n');
            if setting.is_tuning() {
                text.push_str("[tuning]\n");
            }
            group = Some(setting.group);
        }
        if setting.is_tuning() {
            let _ = writeln!(text, "# {}", setting.help());
        }
        let origin = origin(setting, given);
        let _ = match (setting.get)(config) {
            None => writeln!(text, "# {} is not set  # {origin}", setting.name),
            Some(value) if (setting.get)(&asked).as_ref() == Some(&value) => {
                writeln!(text, "{} = {value}  # {origin}", setting.name)
            }
            Some(value) => writeln!(
                text,
                "{} = {value}  # {origin}, lowered by another limit",
                setting.name
            ),
        };
    }
    // Without its keys, because they are secrets.
    text += &match given.access() {
        Some(access) => format!("\n# The table [access] of the file: {}\n", access.summary()),
        None => "\n# There is no table [access]\n".to_owned(),
    };
    text
}

fn origin(setting: &Setting, given: &Given) -> String {
    match (given.origin(setting), setting.default) {
        (Some(origin), _) => origin.to_string(),
        (None, "") => "default".to_owned(),
        (None, text) => format!("default: {text}"),
    }
}
