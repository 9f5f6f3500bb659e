//! Plans the repair of segments, and its losses.
//!
//! A log opens when its segments hold, without a gap, every record after the older of two points: the last record that
//! history has with all before it, and the last record that the state store includes.

use crate::diagnosis::Diagnosis;
use crate::diagnosis::ranges::{Range, clip, contiguous_upto, gaps};
use crate::diagnosis::survey::{Problem, Surveyed, available, problem};
use crate::disk::Disk;
use crate::disk::file_name;
use crate::ids::Sequence;
use crate::repair::report::Loss;

/// The repair of the segments.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) losses: Vec<Loss>,
    /// Records that no file has, or another reason why the log does not open.
    pub(crate) missing: Option<Problem>,
    /// Segments to set aside, by index.
    pub(crate) aside: Vec<usize>,
    pub(crate) action: SegmentRepair,
}

/// The repair besides setting segments aside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum SegmentRepair {
    /// Nothing has to be done.
    #[default]
    Nothing,
    /// The log continues after `upto`, the last record of the segment `last`; without one, a new segment begins.
    Continue {
        upto: Sequence,
        last: Option<usize>,
        /// The segment `last` is cut here.
        cut: Option<u64>,
    },
    /// New segments are written with all records after `base` up to `upto`. Records of old segments up to `base` go
    /// into history first. The log continues at `next`.
    Rewrite {
        base: Sequence,
        upto: Sequence,
        next: Sequence,
    },
}

impl Plan {
    pub(crate) fn new<D: Disk>(
        disk: &D,
        diagnosis: &Diagnosis<D>,
        surveyed: &[Surveyed<D::File>],
    ) -> Plan {
        let marks = diagnosis.marks;
        let settled_upto = marks.history_upto.min(marks.checkpoint_upto);
        let required_upto = marks.history_upto.max(marks.checkpoint_upto);
        let available = available(surveyed);
        let contiguous = contiguous_upto(&available, settled_upto);
        let traced = surveyed.iter().map(Surveyed::reached);
        let top = traced.fold(required_upto.max(diagnosis.durable_upto()), Sequence::max);
        let mut plan = Plan::default();
        if contiguous < required_upto {
            plan.plan_rewrite(surveyed, diagnosis, &available, top);
        } else {
            plan.plan_continuation(surveyed, (settled_upto, contiguous, top));
        }
        let stated = diagnosis.directory.statement.as_ref();
        let stated_last = stated.and_then(|stated| stated.last);
        let is_last = |last: &usize| {
            let segment = surveyed[*last].segment.as_ref();
            let number = segment.map_or(0, |segment| segment.number);
            stated_last.is_none_or(|stated| stated.number <= number)
        };
        let damaged = surveyed.iter().find_map(|found| found.problem.as_ref());
        let is_whole = match &plan.action {
            SegmentRepair::Continue {
                last: Some(last), ..
            } => is_last(last) && *last + 1 == surveyed.len(),
            SegmentRepair::Continue { last: None, .. } => {
                surveyed.is_empty() && stated_last.is_none() && top == 0
            }
            _ => false,
        };
        if is_whole && damaged.is_none() && plan.losses.is_empty() {
            return Plan::default();
        }
        if damaged.is_none() {
            let sequence = contiguous + 1;
            // The last segment is in the statement. Another missing one is named by the first record that is missing.
            let last_is_missing = stated_last.filter(|stated| {
                let mut segments = surveyed.iter().filter_map(|found| found.segment.as_ref());
                segments.all(|segment| segment.number < stated.number)
            });
            let within = surveyed.last().filter(|last| last.end == sequence);
            let name = match (last_is_missing, within) {
                (Some(stated), _) => file_name::segment(stated.first),
                (None, Some(last)) => last.name.clone(),
                (None, None) => file_name::segment(sequence),
            };
            let what = match plan.losses.first() {
                Some(loss) => format!("no segment has the records {} to {}", loss.from, loss.upto),
                None => "the segment is missing; no record is lost with it".to_owned(),
            };
            plan.missing = Some(problem(disk, &name, 0, sequence, what));
        }
        plan
    }

    /// Keeps everything before the first lost record.
    fn plan_continuation<F>(
        &mut self,
        surveyed: &[Surveyed<F>],
        (settled_upto, upto, top): (Sequence, Sequence, Sequence),
    ) {
        let holds = |found: &Surveyed<F>| {
            found.segment.is_some() && found.first <= upto + 1 && found.end == upto + 1
        };
        let last = surveyed.iter().rposition(holds);
        // Of the earlier segments, those that follow each other without damage stay.
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
        self.action = SegmentRepair::Continue {
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

    /// The damage begins before the end of what history or the state store rely on. These stay unchanged, and all
    /// records that can be read continue after them.
    fn plan_rewrite<D: Disk>(
        &mut self,
        surveyed: &[Surveyed<D::File>],
        diagnosis: &Diagnosis<D>,
        available: &[Range],
        top: Sequence,
    ) {
        let marks = diagnosis.marks;
        let base = marks.checkpoint_upto;
        let upto = contiguous_upto(available, base.max(marks.history_upto));
        self.aside = (0..surveyed.len()).collect();
        // The sequences of lost records are not assigned again, where possible.
        let next = if upto == base { top + 1 } else { upto + 1 };
        self.action = SegmentRepair::Rewrite { base, upto, next };
        let kept = clip(available, (marks.history_upto + 1, base.max(upto)));
        for (from, upto) in gaps(&kept, (marks.history_upto + 1, top)) {
            let damaged = surveyed.iter().filter_map(|found| found.problem.as_ref());
            let mut damaged = damaged.filter(|what| (from..=upto).contains(&what.sequence));
            let what = damaged.next().map_or_else(
                || "no segment has these records, or earlier ones are lost".to_owned(),
                Problem::to_string,
            );
            self.losses.push(Loss { from, upto, what });
        }
    }

    pub(crate) fn is_needed(&self) -> bool {
        self.action != SegmentRepair::Nothing
    }
}
