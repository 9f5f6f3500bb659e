//! What it takes to make the segments of a log open again, and what that costs.
//!
//! A log opens when its segments hold, one after the other, every record after the older one of two points: up to the first, history has
//! every record; up to the second, the state store has every change.

use crate::Sequence;
use crate::disk::Disk;
use crate::look::Look;
use crate::repair::Loss;
use crate::segment;
use crate::survey::{Problem, Surveyed, problem};

/// What a repair of the segments does.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) losses: Vec<Loss>,
    /// Records that no file has, or another reason for which the log does not open.
    pub(crate) missing: Option<Problem>,
    /// Segments to set aside, by their places.
    pub(crate) aside: Vec<usize>,
    pub(crate) action: SegmentRepair,
}

/// What is done beside setting segments aside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum SegmentRepair {
    /// Nothing has to be done.
    #[default]
    Nothing,
    /// The log goes on behind `upto`, which is the last record of the segment `last`; without one, a new segment begins.
    GoOn {
        upto: Sequence,
        last: Option<usize>,
        /// The segment `last` is cut here.
        cut: Option<u64>,
    },
    /// Segments are made anew with all records from the one after `base` to `upto`. What older segments have up to `base` goes into
    /// history first. The log goes on at `next`.
    Remake {
        base: Sequence,
        upto: Sequence,
        next: Sequence,
    },
}

/// Sequences from the first to the second, both included.
pub(crate) type Range = (Sequence, Sequence);

impl Plan {
    pub(crate) fn new<D: Disk>(disk: &D, look: &Look<D>, surveyed: &[Surveyed<D::File>]) -> Plan {
        let marks = look.marks;
        let settled_upto = marks.history_upto.min(marks.checkpoint_upto);
        let promised_upto = marks.history_upto.max(marks.checkpoint_upto);
        let available = available(surveyed);
        let contiguous = contiguous_upto(&available, settled_upto);
        let traced = surveyed.iter().map(Surveyed::reached);
        let top = traced.fold(promised_upto.max(look.durable_upto()), Sequence::max);
        let mut plan = Plan::default();
        if contiguous < promised_upto {
            plan.remake(surveyed, look, &available, top);
        } else {
            plan.go_on(surveyed, (settled_upto, contiguous, top));
        }
        let stated = look.opening.statement.as_ref();
        let stated_last = stated.and_then(|stated| stated.last);
        let is_last = |last: &usize| {
            let segment = surveyed[*last].segment.as_ref();
            let number = segment.map_or(0, |segment| segment.number);
            stated_last.is_none_or(|stated| stated.number <= number)
        };
        let damaged = surveyed.iter().find_map(|found| found.problem.as_ref());
        let is_whole = match &plan.action {
            SegmentRepair::GoOn {
                last: Some(last), ..
            } => is_last(last) && *last + 1 == surveyed.len(),
            SegmentRepair::GoOn { last: None, .. } => {
                surveyed.is_empty() && stated_last.is_none() && top == 0
            }
            _ => false,
        };
        if is_whole && damaged.is_none() && plan.losses.is_empty() {
            return Plan::default();
        }
        if damaged.is_none() {
            let sequence = contiguous + 1;
            // The last segment is stated; another one is known by what should be in it.
            let last_is_missing = stated_last.filter(|stated| {
                let mut segments = surveyed.iter().filter_map(|found| found.segment.as_ref());
                segments.all(|segment| segment.number < stated.number)
            });
            let within = surveyed.last().filter(|last| last.end == sequence);
            let name = match (last_is_missing, within) {
                (Some(stated), _) => segment::name(stated.first),
                (None, Some(last)) => last.name.clone(),
                (None, None) => segment::name(sequence),
            };
            let what = match plan.losses.first() {
                Some(loss) => format!("no segment has the records {} to {}", loss.from, loss.upto),
                None => "the segment is missing, and no record with it".to_owned(),
            };
            plan.missing = Some(problem(disk, &name, 0, sequence, what));
        }
        plan
    }

    /// Keeps everything up to the first record that is lost.
    fn go_on<F>(
        &mut self,
        surveyed: &[Surveyed<F>],
        (settled_upto, upto, top): (Sequence, Sequence, Sequence),
    ) {
        let holds = |found: &Surveyed<F>| {
            found.segment.is_some() && found.first <= upto + 1 && found.end == upto + 1
        };
        let last = surveyed.iter().rposition(holds);
        // Of the segments before, those stay that follow each other without damage.
        let mut first = last.unwrap_or(surveyed.len());
        while first > 0
            && surveyed.get(first).is_some_and(|found| found.follows)
            && surveyed[first - 1].problem.is_none()
            && surveyed[first - 1].segment.is_some()
        {
            first -= 1;
        }
        let behind = last.map_or(surveyed.len(), |last| last + 1);
        self.aside = (0..first).chain(behind..surveyed.len()).collect();
        let cut = last.map(|last| &surveyed[last]);
        let cut = cut.filter(|found| found.problem.is_some() || behind < surveyed.len());
        self.action = SegmentRepair::GoOn {
            upto,
            last,
            cut: cut.map(|found| found.end_position),
        };
        if top > upto {
            let behind = surveyed.iter().skip(behind);
            let intact = behind.filter(|found| found.problem.is_none() && found.first > upto + 1);
            let intact: Vec<_> = intact.collect();
            let damaged_upto = intact.first().map_or(top, |found| found.first - 1);
            let what = surveyed.iter().filter_map(|found| found.problem.as_ref());
            let what = what
                .filter(|what| what.sequence > settled_upto)
                .map(Problem::to_string);
            let what = what.into_iter().next();
            self.losses.push(Loss {
                from: upto + 1,
                upto: damaged_upto,
                what: what.unwrap_or_else(|| "no segment has these records".to_owned()),
            });
            for (i, found) in intact.iter().enumerate() {
                let end = intact.get(i + 1).map_or(top, |next| next.first - 1);
                if end >= found.first {
                    self.losses.push(Loss {
                        from: found.first,
                        upto: end,
                        what: format!("{}: it follows what is damaged", found.name),
                    });
                }
            }
        }
    }

    /// The damage reaches back before what history or the state store already rely on. They stay as they are, and everything that can
    /// still be read goes on behind them.
    fn remake<D: Disk>(
        &mut self,
        surveyed: &[Surveyed<D::File>],
        look: &Look<D>,
        available: &[Range],
        top: Sequence,
    ) {
        let marks = look.marks;
        let base = marks.checkpoint_upto;
        let upto = contiguous_upto(available, base.max(marks.history_upto));
        self.aside = (0..surveyed.len()).collect();
        // Numbers of records that are lost are not given again, where that can be avoided.
        let next = if upto == base { top + 1 } else { upto + 1 };
        self.action = SegmentRepair::Remake { base, upto, next };
        let kept = clip(available, (marks.history_upto + 1, base.max(upto)));
        for (from, upto) in gaps(&kept, (marks.history_upto + 1, top)) {
            let damaged = surveyed.iter().filter_map(|found| found.problem.as_ref());
            let mut damaged = damaged.filter(|what| (from..=upto).contains(&what.sequence));
            let what = damaged.next().map_or_else(
                || "no segment has these records, or what came before them is lost".to_owned(),
                Problem::to_string,
            );
            self.losses.push(Loss { from, upto, what });
        }
    }

    pub(crate) fn is_needed(&self) -> bool {
        self.action != SegmentRepair::Nothing
    }
}

impl<F> Surveyed<F> {
    /// The last record of which there is a trace.
    fn reached(&self) -> Sequence {
        match self.problem {
            Some(_) => self.traced_upto.max(self.end - 1),
            None => self.end - 1,
        }
    }
}

/// The records that segments have.
pub(crate) fn available<F>(surveyed: &[Surveyed<F>]) -> Vec<Range> {
    let sound = surveyed.iter().filter(|found| found.segment.is_some());
    sound
        .filter(|found| found.end > found.first)
        .map(|found| (found.first, found.end - 1))
        .collect()
}

/// Up to which record all after `from` are in one of the ranges, which are in order.
pub(crate) fn contiguous_upto(ranges: &[Range], from: Sequence) -> Sequence {
    ranges.iter().fold(from, |upto, (first, last)| {
        if *first <= upto + 1 {
            upto.max(*last)
        } else {
            upto
        }
    })
}

/// The parts of ranges that lie in another one.
fn clip(ranges: &[Range], (from, upto): Range) -> Vec<Range> {
    let clipped = ranges
        .iter()
        .map(|(first, last)| ((*first).max(from), (*last).min(upto)));
    clipped.filter(|(first, last)| first <= last).collect()
}

/// What is in `whole` and in none of the ranges, which are in order.
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
