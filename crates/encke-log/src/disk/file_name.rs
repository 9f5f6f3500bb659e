//! The names of the files in a log's directory.

use crate::ids::Sequence;

/// The name of the segment whose first frame has this sequence.
pub(crate) fn segment(first: Sequence) -> String {
    format!("{first:020}{SEGMENT}")
}

/// The first sequence of the segment with this name; `None` when it is not the name of a segment.
pub(crate) fn first_of(file: &str) -> Option<Sequence> {
    let digits = file.strip_suffix(SEGMENT)?;
    let first = digits.parse().ok()?;
    (first > 0 && segment(first) == file).then_some(first)
}

/// A free name for a segment that is set aside.
pub(crate) fn aside(names: &[String], name: &str) -> String {
    let plain = format!("{name}.dropped");
    let numbered = (2..).map(|n: u32| format!("{name}.dropped-{n}"));
    let mut free = std::iter::once(plain.clone()).chain(numbered);
    free.find(|name| !names.contains(name)).unwrap_or(plain)
}

/// Whether a repair made this file: a new segment, or the mark that they are complete. An open log needs none of them.
pub(crate) fn is_rewritten(name: &str) -> bool {
    name.ends_with(REWRITTEN) || name == REWRITTEN_MARK
}

/// Suffix of a file that becomes a segment.
pub(crate) const PREPARED: &str = ".prepared";
/// Suffix of a new segment of a repair until it is in its place.
pub(crate) const REWRITTEN: &str = ".remade";
/// The file that marks that all new segments of a repair are complete.
pub(crate) const REWRITTEN_MARK: &str = "segments-remade";
const SEGMENT: &str = ".segment";
