//! Refuses what a client has probably misspelled, with the name that was probably meant, and fields that promise what they do not keep.
//!
//! A parameter that is ignored because of a typing error changes what a request means without a word. Other unknown
//! parameters of a stream are allowed, because clients of the protocol may send their own.

use crate::known_field::KnownField;
use crate::problem::error;
use crate::request::Headers;
use crate::response::Response;

/// Refuses a parameter that no name of `known` is, but that is nearly one.
pub(crate) fn check_parameter(name: &str, known: &[&str]) -> Result<(), Response> {
    match known.contains(&name) || nearest(name, known).is_none() {
        true => Ok(()),
        false => Err(unknown_parameter(name, known)),
    }
}

/// The refusal of a parameter that no name of `known` is.
pub(crate) fn unknown_parameter(name: &str, known: &[&str]) -> Response {
    error(400, "bad_parameter", unknown("parameter", name, known))
}

/// Refuses fields that begin with `Encke-` and that are none of `known`, or come twice: only this server gives them a meaning.
pub(crate) fn check_fields(headers: Headers<'_>, known: &[&str]) -> Result<(), Response> {
    for (place, (name, _)) in headers.0.iter().enumerate() {
        if !is_own_field(name) {
            continue;
        }
        if !known.iter().any(|field| field.eq_ignore_ascii_case(name)) {
            return Err(error(400, "bad_field", unknown("field", name, known)));
        }
        let mut before = headers.0[..place].iter();
        if before.any(|(other, _)| other.eq_ignore_ascii_case(name)) {
            let why = format!("the field {name} comes once, or not at all");
            return Err(error(400, "bad_field", why));
        }
    }
    Ok(())
}

/// Refuses fields that make a request count once however often it is sent, and that are none of `known`.
pub(crate) fn check_idempotency_fields(
    headers: Headers<'_>,
    known: &[KnownField],
) -> Result<(), Response> {
    let is_known = |name: &str| known.iter().any(|field| field.is_named(name));
    let mut names = IDEMPOTENCY_FIELDS.iter();
    match names.find(|name| headers.first(name).is_some() && !is_known(name)) {
        None => Ok(()),
        Some(name) => {
            let why =
                format!("the field {name} has no effect here: a repeated request counts again");
            Err(error(400, "bad_field", why))
        }
    }
}

/// Whether a field is one to which only this server gives a meaning, by its name.
pub(crate) fn is_own_field(name: &str) -> bool {
    name.get(..PREFIX.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
}

/// That no `thing` has this name, and what was meant: the nearest one of `known`, or else which there are.
pub(crate) fn unknown(thing: &str, name: &str, known: &[&str]) -> String {
    let meant = match nearest(name, known) {
        Some(meant) => format!("did you mean {meant:?}?"),
        None if known.is_empty() => format!("there are no {thing}s here"),
        None => format!("the {thing}s are {}", known.join(", ")),
    };
    match name.len() {
        ..=SHOWN_BYTES_MAX => format!("there is no {thing} {name:?}; {meant}"),
        _ => format!("there is no {thing} of such a long name; {meant}"),
    }
}

/// A value as an error shows it: whole if it is short.
pub(crate) fn shown(value: &str) -> String {
    match value.len() {
        ..=SHOWN_BYTES_MAX => format!("{value:?}"),
        bytes => {
            let start = &value[..value.floor_char_boundary(SHOWN_BYTES_MAX)];
            format!("{start:?} and so on, {bytes} bytes")
        }
    }
}

/// The name that differs from `name` by few typing errors. Case, `-` and `_` make no difference.
fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    // The time is the product of both lengths.
    if name.len() > SHOWN_BYTES_MAX {
        return None;
    }
    let name = plain(name);
    let distance = |known: &&str| strsim::osa_distance(&name, &plain(known));
    let nearest = known.iter().copied().min_by_key(|known| distance(known))?;
    let most = match nearest.len() {
        ..=5 => 1,
        _ => 2,
    };
    (distance(&nearest) <= most).then_some(nearest)
}

fn plain(name: &str) -> String {
    let letters = name.chars().filter(|letter| !matches!(letter, '-' | '_'));
    // What is longer than this is near to nothing, and comparing takes time by its square.
    letters
        .take(CHARS_MAX)
        .collect::<String>()
        .to_ascii_lowercase()
}

/// Fields by which clients make a request count once.
const IDEMPOTENCY_FIELDS: [&str; 5] = [
    "Idempotency-Key",
    "Producer-Id",
    "Producer-Epoch",
    "Producer-Seq",
    "Stream-Seq",
];

const PREFIX: &str = "Encke-";
const CHARS_MAX: usize = 32;
/// Longer names are not repeated in a message.
const SHOWN_BYTES_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[&str] = &["offset", "live", "cursor"];

    #[test]
    fn a_typing_error_is_refused_and_another_name_is_not() {
        for (name, meant) in [
            ("offest", "offset"),
            ("Offset", "offset"),
            ("off_set", "offset"),
            ("ofset", "offset"),
            ("lvie", "live"),
            ("curser", "cursor"),
        ] {
            let refused = check_parameter(name, KNOWN).expect_err(name);
            let text = String::from_utf8_lossy(refused.body.as_ref()).into_owned();
            assert!(text.contains(meant), "{text}");
        }
        let long = "x".repeat(10_000);
        for name in ["offset", "live", "v", "token", "o", "", "límite", &long] {
            assert!(check_parameter(name, KNOWN).is_ok(), "{name}");
        }
    }

    #[test]
    fn an_unknown_field_of_ours_is_refused() {
        let known = ["Encke-Ack", "Encke-Retention", "Encke-Truncate"];
        let check = |name: &str| check_fields(Headers(&[("Host", b"x"), (name, b"1")]), &known);
        let refused = check("encke-Retension").expect_err("it is misspelled");
        assert!(String::from_utf8_lossy(refused.body.as_ref()).contains("Encke-Retention"));
        let refused = check("Encke-Foo-Bar-Baz").expect_err("it is unknown");
        assert!(String::from_utf8_lossy(refused.body.as_ref()).contains("Encke-Ack, Encke-"));
        for name in ["ENCKE-ACK", "encke-truncate", "Enck", "X-Encke-Foo"] {
            assert!(check(name).is_ok(), "{name}");
        }
        let twice = [("Encke-Ack", &b"1"[..]), ("encke-ack", b"1")];
        assert!(check_fields(Headers(&twice), &known).is_err());
    }
}
