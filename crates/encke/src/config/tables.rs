//! Tables of the configuration file that are no settings: lists of entries, whose mistakes are named by their place and not shown.

use std::borrow::Cow;
use std::io;
use std::path::Path;

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::nearest::nearest;

/// Takes a list of tables out of the table that is called `parent`.
pub(super) fn entries_of<T: DeserializeOwned>(
    table: &mut Table,
    parent: &str,
    name: &str,
) -> anyhow::Result<Vec<T>> {
    let list = match table.remove(name) {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(other) => anyhow::bail!(
            "the key {parent}.{name} must be a list of tables, [[{parent}.{name}]], not a value of type {}",
            other.type_str()
        ),
    };
    let entries = list.into_iter().enumerate();
    entries
        .map(|(at, entry)| parse(entry, &format!("{parent}.{name}[{at}]")))
        .collect()
}

/// Reads the value of a key that `at` names.
pub(super) fn parse<T: DeserializeOwned>(value: Value, at: &str) -> anyhow::Result<T> {
    value.try_into().map_err(|error: toml::de::Error| {
        let message = error.message();
        match message.strip_prefix("unknown field ") {
            Some(rest) => unknown_key(rest, at),
            None => match message.strip_prefix("missing field ") {
                Some(name) => anyhow::anyhow!("the key {at} needs {}", name.replace('`', "")),
                None => anyhow::anyhow!("the key {at} is wrong: {}", without_value(message)),
            },
        }
    })
}

/// A message of serde without the value that has the wrong type, which may be a secret: `invalid type: string, expected ...`.
fn without_value(message: &str) -> Cow<'_, str> {
    let is_about_value = ["invalid type: ", "invalid value: "]
        .iter()
        .any(|start| message.starts_with(start));
    match message.rsplit_once(", expected ") {
        Some((value, expected)) if is_about_value => {
            let kind = value.split(['"', '`']).next().unwrap_or_default();
            format!("{}, expected {expected}", kind.trim_end()).into()
        }
        _ => message.into(),
    }
}

/// The message for an unknown key. serde names it and then all that are known, each between backticks.
fn unknown_key(named: &str, at: &str) -> anyhow::Error {
    let mut names = named.split('`').skip(1).step_by(2);
    let unknown = names.next().unwrap_or_default();
    let known: Vec<&str> = names.collect();
    match nearest(unknown, known.iter().copied()) {
        Some(nearest) => {
            anyhow::anyhow!("unknown key {unknown} in {at}; a similar key is {nearest}")
        }
        None => anyhow::anyhow!(
            "unknown key {unknown} in {at}; known keys are {}",
            known.join(", ")
        ),
    }
}

/// Reads a file with keys or a secret.
pub(super) fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    encke_files::read_whole(path, FILE_BYTES_MAX).map_err(not_readable)
}

/// The error of a file that can't be read. The user of a service often has no right to files of root.
pub(super) fn not_readable(error: io::Error) -> io::Error {
    let is_service = std::env::var_os("INVOCATION_ID").is_some();
    match error.kind() {
        io::ErrorKind::PermissionDenied if is_service => io::Error::new(
            error.kind(),
            format!("{error}: LoadCredential= of systemd gives a service a copy (install.md)"),
        ),
        _ => error,
    }
}

/// Bytes of a key file.
pub(super) const FILE_BYTES_MAX: u64 = 1 << 20;

/// The key in the place of the content of a table that `encke serve --check` does not print. A file with it is refused.
pub(super) const NOT_PRINTED: &str = "not-printed";
