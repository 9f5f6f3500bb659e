//! Ranges of sequences.

use crate::ids::Sequence;

/// A first and a last sequence, both included.
pub(crate) type Range = (Sequence, Sequence);

/// The last record such that all after `from` up to it are in the ranges, which are in order.
pub(crate) fn contiguous_upto(ranges: &[Range], from: Sequence) -> Sequence {
    ranges.iter().fold(from, |upto, (first, last)| {
        if *first <= upto + 1 {
            upto.max(*last)
        } else {
            upto
        }
    })
}

/// The intersections of ranges with another one.
pub(crate) fn clip(ranges: &[Range], (from, upto): Range) -> Vec<Range> {
    let clipped = ranges
        .iter()
        .map(|(first, last)| ((*first).max(from), (*last).min(upto)));
    clipped.filter(|(first, last)| first <= last).collect()
}

/// The parts of a range outside of `ranges`, which are in order.
pub(crate) fn gaps(ranges: &[Range], (mut from, upto): Range) -> Vec<Range> {
    let mut gaps = Vec::new();
    for (first, last) in ranges {
        if *first > from {
            gaps.push((from, (first - 1).min(upto)));
        }
        from = from.max(last + 1);
    }
    if from <= upto {
        gaps.push((from, upto));
    }
    gaps.retain(|(first, last)| first <= last);
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_and_ranges_make_up_the_whole() {
        let ranges = [(3, 5), (6, 6), (9, 12)];
        assert_eq!(gaps(&ranges, (1, 14)), [(1, 2), (7, 8), (13, 14)]);
        assert_eq!(gaps(&ranges, (4, 10)), [(7, 8)]);
        assert_eq!(gaps(&[], (2, 1)), []);
        assert_eq!(contiguous_upto(&ranges, 2), 6);
        assert_eq!(contiguous_upto(&ranges, 1), 1);
        assert_eq!(contiguous_upto(&ranges, 8), 12);
        assert_eq!(clip(&ranges, (5, 10)), [(5, 5), (6, 6), (9, 10)]);
    }
}
