//! The segments of a name, and the parts of patterns between their first and last `**`.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};

use super::steps::Steps;
use crate::glob::GlobPart;

/// The segments of a name.
#[derive(Debug)]
pub(super) struct NameSegments<'a> {
    segments: Vec<&'a str>,
    /// Computed when it is needed for the first time.
    numbered: Option<NumberedSegments<'a>>,
}

/// Segments by small numbers, the same for the same text.
#[derive(Debug)]
struct NumberedSegments<'a> {
    numbers: HashMap<&'a str, usize>,
    sequence: Vec<usize>,
    /// For each number the places of that literal in the parts that are compared, one bit for each. All 0 in between.
    places: Vec<u64>,
}

impl<'a> NameSegments<'a> {
    pub(super) fn of(name: &'a str) -> NameSegments<'a> {
        NameSegments {
            segments: name.split('/').collect(),
            numbered: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.segments.len()
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &'a str> {
        self.segments.iter().copied()
    }

    /// The different segments.
    pub(super) fn literals(&mut self) -> &HashMap<&'a str, usize> {
        &self.numbered().numbers
    }

    /// Whether parts that begin and end with `**` match some of the segments. The time is linear in the parts and the segments.
    pub(super) fn match_between(
        &mut self,
        parts: &[GlobPart],
        segments: Range<usize>,
        steps: &mut Steps,
    ) -> ControlFlow<(), bool> {
        let needed = parts.iter().filter(|part| **part != GlobPart::Any).count();
        if needed == 0 || needed > segments.len() {
            return ControlFlow::Continue(needed == 0);
        }
        steps.count(parts.len() + segments.len())?;
        ControlFlow::Continue(self.numbered().matches(parts, segments))
    }

    fn numbered(&mut self) -> &mut NumberedSegments<'a> {
        let segments = &self.segments;
        self.numbered
            .get_or_insert_with(|| NumberedSegments::of(segments))
    }
}

impl<'a> NumberedSegments<'a> {
    fn of(segments: &[&'a str]) -> NumberedSegments<'a> {
        let mut numbers = HashMap::new();
        let mut sequence = Vec::with_capacity(segments.len());
        for segment in segments {
            let next = numbers.len();
            sequence.push(*numbers.entry(*segment).or_insert(next));
        }
        NumberedSegments {
            places: vec![0; numbers.len()],
            numbers,
            sequence,
        }
    }

    fn matches(&mut self, parts: &[GlobPart], segments: Range<usize>) -> bool {
        let (mut one, mut any) = (0_u64, 0_u64);
        let mut used = Vec::new();
        let mut has_all = true;
        for (at, part) in parts.iter().enumerate() {
            match part {
                GlobPart::Literal(literal) => match self.numbers.get(&**literal) {
                    Some(number) => {
                        self.places[*number] |= 1 << at;
                        used.push(*number);
                    }
                    None => has_all = false,
                },
                GlobPart::One => one |= 1 << at,
                GlobPart::Any => any |= 1 << at,
            }
        }
        let matches = has_all && self.run(one, any, parts.len(), segments);
        for number in used {
            self.places[number] = 0;
        }
        matches
    }

    fn run(&self, one: u64, any: u64, parts: usize, segments: Range<usize>) -> bool {
        // One bit for each number of parts that the segments so far can have used up.
        let skip = |states: u64| states | ((states & any) << 1);
        // The last part takes all segments that are left.
        let end = 1_u64 << parts;
        let mut states = skip(1);
        for number in &self.sequence[segments] {
            states = skip(((states & (one | self.places[*number])) << 1) | (states & any));
            if states & end != 0 {
                return true;
            }
        }
        false
    }
}
