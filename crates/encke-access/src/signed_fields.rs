//! The header fields that a signed URL is good with.
//!
//! The parameter `signed-fields` of a URL lists their names in lower case, separated by commas. A name alone says that the request
//! must have the field once, with the value that was signed. A name with `*` behind it leaves the value, and whether the field is
//! there, to the one who uses the URL. The parameter itself is signed like every other.

use std::fmt;
use std::str::FromStr;

use crate::denied::AccessDenied;

/// A header field to sign: `Stream-Closed: true`, or `Last-Event-ID` for any value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedField {
    /// In lower case.
    name: Box<str>,
    /// `None`: the one who uses the URL chooses it.
    value: Option<Box<str>>,
}

/// The text is no header field that can be signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no header field to sign: it is a name and a value, such as Stream-Closed: true, or a name alone for any value, of letters, digits, - and _"
)]
pub struct NotAField(String);

impl FromStr for SignedField {
    type Err = NotAField;

    fn from_str(text: &str) -> Result<Self, NotAField> {
        let (name, value) = match text.split_once(':') {
            Some((name, value)) => (name, Some(value.trim_matches(BLANKS))),
            None => (text, None),
        };
        let name = name.to_ascii_lowercase();
        let is_plain = |value: &str| value.chars().all(|c| matches!(c, '\t' | ' '..='~'));
        match is_name(&name) && value.is_none_or(is_plain) {
            true => Ok(SignedField {
                name: name.into(),
                value: value.map(Into::into),
            }),
            false => Err(NotAField(text.to_owned())),
        }
    }
}

impl SignedField {
    /// Its name, in lower case.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its value. `None`: any.
    pub fn value(&self) -> Option<&str> {
        self.value.as_deref()
    }
}

/// The fields that a signed URL lists. Those of a URL without the parameter are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignedFields(Vec<Listed>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Listed {
    /// In lower case.
    name: Box<str>,
    any_value: bool,
}

impl SignedFields {
    /// The value of the parameter `signed-fields`.
    pub(crate) fn parse(list: &str) -> Result<Self, AccessDenied> {
        let malformed = || AccessDenied::Malformed(LIST_RULE);
        let mut listed: Vec<Listed> = Vec::new();
        for text in list.split(',') {
            let (name, any_value) = match text.strip_suffix('*') {
                Some(name) => (name, true),
                None => (text, false),
            };
            let is_known = listed.iter().any(|one| *one.name == *name);
            if !is_name(name) || is_known || listed.len() == SIGNED_FIELDS_MAX {
                return Err(malformed());
            }
            listed.push(Listed {
                name: name.into(),
                any_value,
            });
        }
        Ok(SignedFields(listed))
    }

    /// The list of these fields.
    ///
    /// # Errors
    /// A field is there twice, or there are more than [`SIGNED_FIELDS_MAX`].
    pub(crate) fn of(fields: &[SignedField]) -> Result<Self, AccessDenied> {
        let listed = fields.iter().map(|field| Listed {
            name: field.name.clone(),
            any_value: field.value.is_none(),
        });
        let listed = SignedFields(listed.collect());
        match listed.0.is_empty() {
            true => Ok(listed),
            false => SignedFields::parse(&listed.to_string()),
        }
    }

    /// Whether a request with the URL may have this field.
    pub fn covers(&self, name: &str) -> bool {
        self.0.iter().any(|one| one.name.eq_ignore_ascii_case(name))
    }

    /// Appends a line for each field whose value is signed, from the fields of a request.
    pub(crate) fn write_values(
        &self,
        headers: &[(&str, &[u8])],
        text: &mut Vec<u8>,
    ) -> Result<(), AccessDenied> {
        for listed in self.0.iter().filter(|one| !one.any_value) {
            let of_name = |(name, _): &&(&str, &[u8])| listed.name.eq_ignore_ascii_case(name);
            let mut values = headers.iter().filter(of_name);
            let (Some((_, value)), None) = (values.next(), values.next()) else {
                return Err(AccessDenied::SignedField {
                    name: listed.name.clone(),
                });
            };
            write_value(&listed.name, value, text);
        }
        Ok(())
    }
}

/// Appends a line for each field that has a value.
pub(crate) fn write_values(fields: &[SignedField], text: &mut Vec<u8>) {
    for field in fields {
        if let Some(value) = &field.value {
            write_value(&field.name, value.as_bytes(), text);
        }
    }
}

/// A value has no line feed, and the names are in the signed parameters, so that no two requests have one text.
fn write_value(name: &str, value: &[u8], text: &mut Vec<u8>) {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = value.iter().position(|byte| !is_blank(byte));
    let end = value.iter().rposition(|byte| !is_blank(byte));
    let value = match (start, end) {
        (Some(start), Some(end)) => &value[start..=end],
        _ => &[],
    };
    text.push(b'\n');
    text.extend_from_slice(name.as_bytes());
    text.push(b':');
    text.extend_from_slice(value);
}

impl fmt::Display for SignedFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, one) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let star = if one.any_value { "*" } else { "" };
            write!(f, "{comma}{}{star}", one.name)?;
        }
        Ok(())
    }
}

/// A name in lower case. Other characters that a field's name may have would be ambiguous in a list.
fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(is_allowed)
}

/// Fields that a URL lists: more than any request of this server's protocols has.
pub const SIGNED_FIELDS_MAX: usize = 16;

/// Bytes of a name in the list.
const NAME_BYTES_MAX: usize = 64;

const BLANKS: [char; 2] = [' ', '\t'];

/// The bound is [`SIGNED_FIELDS_MAX`].
const LIST_RULE: &str = "the parameter signed-fields lists up to 16 different names of fields, in lower case and separated by commas; a * behind a name allows any value";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_people_write_them() {
        let field: SignedField = "Stream-Closed:  true ".parse().unwrap();
        assert_eq!(
            (field.name(), field.value()),
            ("stream-closed", Some("true"))
        );
        let field: SignedField = "Last-Event-ID".parse().unwrap();
        assert_eq!((field.name(), field.value()), ("last-event-id", None));
        let field: SignedField = "x:".parse().unwrap();
        assert_eq!((field.name(), field.value()), ("x", Some("")));
        for wrong in [
            "", ":", ": a", "a b: c", "a*", "a,b", "a: b\nc", "ä", "a: ä",
        ] {
            assert!(wrong.parse::<SignedField>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_list_is_read_back_and_bounded() {
        let list = SignedFields::parse("stream-closed,last-event-id*").unwrap();
        assert_eq!(list.to_string(), "stream-closed,last-event-id*");
        assert!(list.covers("Stream-Closed") && list.covers("LAST-EVENT-ID"));
        assert!(!list.covers("stream") && !SignedFields::default().covers(""));
        let names = |count: usize| {
            let names: Vec<_> = (0..count).map(|number| format!("f{number}")).collect();
            SignedFields::parse(&names.join(","))
        };
        assert!(names(SIGNED_FIELDS_MAX).is_ok());
        assert!(names(SIGNED_FIELDS_MAX + 1).is_err());
        assert!(LIST_RULE.contains(&SIGNED_FIELDS_MAX.to_string()));
        for wrong in ["", "a,", ",a", "a,a", "a,a*", "A", "a b", "*", "a**", "a;b"] {
            assert!(SignedFields::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_signed_value_comes_once() {
        let list = SignedFields::parse("b,a*,c").unwrap();
        let values = |headers: &[(&str, &[u8])]| {
            let mut text = Vec::new();
            list.write_values(headers, &mut text).map(|()| text)
        };
        let both = values(&[("C", b"3"), ("A", b"1"), ("B", b"\t 2 2 ")]);
        assert_eq!(both.unwrap(), b"\nb:2 2\nc:3");
        for headers in [
            &[("b", &b"2"[..])][..],
            &[("b", b"2"), ("c", b"3"), ("C", b"3")],
        ] {
            assert_eq!(
                values(headers),
                Err(AccessDenied::SignedField { name: "c".into() })
            );
        }
    }
}
