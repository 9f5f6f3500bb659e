//! The settings of a pool, as the body of a request.

use encke_jobs::{PoolSettings, SettingsChange};
use encke_pool::Strategy;
use serde_json::{Map, Value};

use crate::misspelled;

/// Reads settings. The error names the setting that is wrong and ends with an example.
pub(super) fn parse(body: &[u8]) -> Result<PoolSettings, String> {
    serde_json::from_slice(body).map_err(|error| {
        let why = wrong_setting(body).unwrap_or_else(|| format!("the settings are wrong: {error}"));
        format!("{why}; an example: {EXAMPLE}")
    })
}

/// Reads a change of settings. The error names the setting that is wrong and ends with an example.
pub(super) fn parse_change(body: &[u8]) -> Result<SettingsChange, String> {
    let parsed = serde_json::from_slice(body);
    let wrong = wrong_change(body);
    let parsed = match wrong {
        Some(why) => Err(why),
        None => parsed.map_err(|error| format!("the settings are wrong: {error}")),
    };
    parsed.map_err(|why| format!("{why}; an example: {CHANGE_EXAMPLE}"))
}

/// What is wrong with a change of settings, if it is one setting.
fn wrong_change(body: &[u8]) -> Option<String> {
    if body.trim_ascii().is_empty() {
        return Some("the body must have the settings to change as JSON".to_owned());
    }
    let settings: Map<String, Value> = match serde_json::from_slice(body) {
        Ok(settings) => settings,
        Err(error) => return Some(format!("the settings are wrong: {error}")),
    };
    settings.iter().find_map(|(name, value)| match &**name {
        "type" | "size" | "size_max" => Some(format!(
            "{name} cannot change while the pool exists; those that can are {}",
            CHANGEABLE.join(", ")
        )),
        name if !CHANGEABLE.contains(&name) => {
            Some(misspelled::unknown("setting", name, CHANGEABLE))
        }
        name => wrong_value(name, value),
    })
}

/// The setting that is wrong, if it is one; the parser's own messages name types of the code.
fn wrong_setting(body: &[u8]) -> Option<String> {
    if body.trim_ascii().is_empty() {
        return Some("the body must have the settings of the pool as JSON".to_owned());
    }
    let settings: Map<String, Value> = serde_json::from_slice(body).ok()?;
    let wrong = settings.iter().find_map(|(name, value)| match &**name {
        "type" => None,
        name if !SETTINGS.contains(&name) => Some(misspelled::unknown("setting", name, SETTINGS)),
        // A limit that is null is as one that is not given.
        name if !SWITCHES.contains(&name) && value.is_null() => None,
        name => wrong_value(name, value),
    });
    if wrong.is_some() {
        return wrong;
    }
    let types = Strategy::ALL.map(Strategy::name).join(", ");
    match settings.get("type") {
        None => Some(format!("the setting type is missing: one of {types}")),
        Some(Value::String(name)) if name.parse::<Strategy>().is_ok() => None,
        Some(value) => Some(format!("type is {}, expected one of {types}", short(value))),
    }
}

/// What is wrong with the value of a setting other than the type.
fn wrong_value(name: &str, value: &Value) -> Option<String> {
    let (fits, expected) = match name {
        name if SWITCHES.contains(&name) => (value.is_boolean(), "true or false"),
        _ => (value.is_u64(), "a whole number"),
    };
    (!fits).then(|| format!("{name} is {}, expected {expected}", short(value)))
}

/// A value as JSON, if it is short enough for a message.
fn short(value: &Value) -> String {
    Some(value.to_string())
        .filter(|text| text.len() <= VALUE_BYTES_MAX)
        .unwrap_or_else(|| "a long value".to_owned())
}

/// The names of all settings.
const SETTINGS: &[&str] = &[
    "type",
    "size",
    "size_max",
    "ack_ms",
    "attempts",
    "retry_ms",
    "retry_ms_max",
    "in_flight",
    "job_bytes_max",
    "waiting_max",
    "events",
    "paused",
];

/// The settings that are true or false.
const SWITCHES: &[&str] = &["events", "paused"];

/// The names of the settings that change while a pool exists.
const CHANGEABLE: &[&str] = &[
    "ack_ms",
    "attempts",
    "retry_ms",
    "retry_ms_max",
    "in_flight",
    "job_bytes_max",
    "waiting_max",
    "events",
    "paused",
];

/// A value in a message has at most this many bytes.
const VALUE_BYTES_MAX: usize = 100;

const CHANGE_EXAMPLE: &str = r#"{"ack_ms":60000}"#;

const EXAMPLE: &str = r#"{"type":"claim","ack_ms":30000}"#;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_names_are_those_of_the_settings() {
        let Ok(Value::Object(settings)) = serde_json::to_value(parse(EXAMPLE.as_bytes()).unwrap())
        else {
            panic!("settings are an object");
        };
        let names: BTreeSet<&str> = settings.keys().map(String::as_str).collect();
        assert_eq!(names, SETTINGS.iter().copied().collect());
    }

    #[test]
    fn the_wrong_setting_is_named() {
        for (body, message) in [
            ("", "must have the settings"),
            ("claim", "the settings are wrong: expected value"),
            ("[1]", "the settings are wrong"),
            ("{}", "type is missing"),
            (r#"{"type":1}"#, "type is 1, expected one of round_robin"),
            (r#"{"type":"claims"}"#, "type is \"claims\""),
            (
                r#"{"type":"claim","acks_ms":1}"#,
                "did you mean \"ack_ms\"?",
            ),
            (
                r#"{"type":"claim","colour":1}"#,
                "the settings are type, size",
            ),
            (
                r#"{"type":"claim","ack_ms":"1"}"#,
                "ack_ms is \"1\", expected a whole number",
            ),
            (
                r#"{"type":"claim","size":-1}"#,
                "size is -1, expected a whole number",
            ),
            (
                r#"{"type":"claim","events":1}"#,
                "events is 1, expected true or false",
            ),
            (r#"{"type":"claim","attempts":70000}"#, "70000"),
        ] {
            let why = parse(body.as_bytes()).unwrap_err();
            assert!(why.contains(message), "{body}: {why}");
        }
        let long = "x".repeat(1 << 20);
        for body in [
            format!(r#"{{"type":"{long}"}}"#),
            format!(r#"{{"type":"claim","size":"{long}"}}"#),
            format!(r#"{{"type":"claim","{long}":1}}"#),
        ] {
            assert!(parse(body.as_bytes()).unwrap_err().len() < 500);
        }
        for (body, message) in [
            ("", "the body must have the settings to change"),
            ("[]", "the settings are wrong"),
            (
                r#"{"type":"hash"}"#,
                "type cannot change while the pool exists; those that can are ack_ms",
            ),
            (r#"{"size":3}"#, "size cannot change"),
            (r#"{"colour":3}"#, "the settings are ack_ms, attempts"),
            (r#"{"acks_ms":3}"#, "did you mean \"ack_ms\"?"),
            (
                r#"{"ack_ms":null}"#,
                "ack_ms is null, expected a whole number",
            ),
            (r#"{"events":1}"#, "events is 1, expected true or false"),
            (r#"{"attempts":70000}"#, "70000"),
        ] {
            let why = parse_change(body.as_bytes()).unwrap_err();
            assert!(why.contains(message), "{body}: {why}");
        }
    }
}
