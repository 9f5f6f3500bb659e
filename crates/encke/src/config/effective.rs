//! The effective configuration as TOML, which `encke serve --check` prints.

use std::fmt::Write;

use serde_json::json;

use super::access::{self, AccessTable};
use super::presence::{self, PresenceTable};
use super::pusher::{self, PusherTable};
use super::settings::{SETTINGS, Setting};
use super::tables::NOT_PRINTED;
use super::{Config, Given};

/// Every setting with its effective value and, as a comment, the origin of the value. The text can be used as a configuration file when the
/// tables that are [not printed](NOT_PRINTED) are put into it, and the passwords of brokers.
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
    if given.access().is_none() {
        text += "\n# There is no table [access]\n";
    }
    for (name, summary) in [
        (access::NAME, given.access().map(AccessTable::summary)),
        (presence::NAME, given.presence().map(PresenceTable::summary)),
        (pusher::NAME, given.pusher().map(PusherTable::summary)),
    ] {
        if let Some(summary) = summary {
            // Not its content, which may be secret. Without it the text must not be taken for the whole configuration.
            text += &format!(
                "\n# {summary}\n[{name}]\n{NOT_PRINTED} = \"put the table [{name}] of the file here\"\n"
            );
        }
    }
    text
}

/// The same as JSON, for the page of operators: each setting with its value, its default, the origin of the value and its help. `waiting` are
/// the labels of those that were changed since the start and need a restart.
pub(crate) fn effective_json(
    config: &Config,
    given: &Given,
    waiting: &[String],
) -> serde_json::Value {
    let asked = given.apply().expect("the configuration was made of it");
    let settings = SETTINGS.iter().map(|setting| {
        let value = (setting.get)(config);
        let waits = waiting.contains(&setting.label());
        json!({
            "name": setting.name,
            "group": setting.group,
            "value": value.as_ref().map(ToString::to_string),
            "default": setting.default_text(),
            "origin": origin(setting, given),
            "given": given.origin(setting).is_some(),
            "lowered": !waits && value.is_some() && (setting.get)(&asked) != value,
            "needs_restart": waits,
            "help": setting.help.trim(),
        })
    });
    json!({
        "settings": settings.collect::<Vec<_>>(),
        // Without its keys, because they are secrets.
        "access": given.access().map(AccessTable::summary),
        "presence": given.presence().map(PresenceTable::summary),
        "pusher": given.pusher().map(PusherTable::summary),
    })
}

fn origin(setting: &Setting, given: &Given) -> String {
    match (given.origin(setting), setting.default) {
        (Some(origin), _) => origin.to_string(),
        (None, "") => "default".to_owned(),
        (None, text) => format!("default: {text}"),
    }
}
