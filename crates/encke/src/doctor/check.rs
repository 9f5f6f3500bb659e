//! A checked value, its verdict, and how values are shown.

use std::borrow::Cow;
use std::time::Duration;

use bytesize::ByteSize;
use serde::Serialize;

/// One checked value.
#[derive(Debug, Serialize)]
pub(super) struct Check {
    pub(super) name: Cow<'static, str>,
    /// The machine's value, in readable form.
    pub(super) value: String,
    /// The value that the connections need.
    pub(super) need: String,
    pub(super) verdict: Verdict,
    /// Why it matters.
    pub(super) why: &'static str,
    /// What to set, and where.
    pub(super) set: Vec<Line>,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// The value is sufficient.
    Fits,
    /// The value works; another one would work better.
    Advice,
    /// The value is too low for the connections.
    TooLow,
    /// The server would not start.
    Fails,
    /// The machine does not provide the value.
    Unknown,
}

/// A line of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Line {
    pub(super) file: &'static str,
    pub(super) line: String,
}

impl Verdict {
    pub(super) fn word(self) -> &'static str {
        match self {
            Verdict::Fits => "ok",
            Verdict::Advice => "advice",
            Verdict::TooLow => "TOO LOW",
            Verdict::Fails => "FAILS",
            Verdict::Unknown => "unknown",
        }
    }
}

/// A number in groups of three digits.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A number of bytes in a readable unit.
pub(super) fn bytes(number: u64) -> String {
    ByteSize(number).to_string()
}

/// A time in milliseconds.
pub(super) fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}
