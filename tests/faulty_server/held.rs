//! A stream, and the offsets in it.

use std::collections::BTreeMap;

/// A stream as the server has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) content_type: String,
    pub(crate) ttl: Option<String>,
    pub(crate) closed: bool,
    /// What each append stored: its messages, or its bytes as one.
    pub(crate) records: Vec<Vec<Vec<u8>>>,
    pub(super) producers: BTreeMap<String, (u64, u64)>,
}

impl Held {
    pub(super) fn is_json(&self) -> bool {
        self.content_type.starts_with("application/json")
    }

    /// All that it has.
    pub(crate) fn contents(&self) -> Vec<u8> {
        self.behind(0)
    }

    /// What it has before an offset that it gave.
    pub(crate) fn before(&self, offset: &str) -> Vec<u8> {
        self.part(0, index(offset).expect("an offset of this server"))
    }

    pub(super) fn behind(&self, from: usize) -> Vec<u8> {
        self.part(from, self.records.len())
    }

    pub(super) fn part(&self, from: usize, upto: usize) -> Vec<u8> {
        let items: Vec<&[u8]> = self.records[from..upto]
            .iter()
            .flatten()
            .map(Vec::as_slice)
            .collect();
        match self.is_json() {
            true => [b"[", &*items.join(&b','), b"]"].concat(),
            false => items.concat(),
        }
    }

    /// The offset behind its last record.
    pub(crate) fn tail(&self) -> String {
        offset(self.records.len())
    }

    /// Each offset that it has given or could give.
    pub(crate) fn offsets(&self) -> Vec<String> {
        (0..=self.records.len()).map(offset).collect()
    }
}

/// Opaque, and sorted as the positions are.
pub(super) fn offset(index: usize) -> String {
    format!("t{:09}.z", index * 37 + 5)
}

pub(super) fn index(offset: &str) -> Option<usize> {
    if offset == "-1" {
        return Some(0);
    }
    let digits = offset.strip_prefix('t')?.strip_suffix(".z")?;
    let number: usize = digits.parse().ok()?;
    (number % 37 == 5).then_some(number / 37)
}

/// The elements of an array.
pub(super) fn messages(body: &[u8]) -> Vec<Vec<u8>> {
    let all: Vec<Box<serde_json::value::RawValue>> =
        serde_json::from_slice(body).expect("an array of JSON");
    all.iter()
        .map(|message| message.get().as_bytes().to_vec())
        .collect()
}
