//! Reads every segment of a log that is not open, and changes nothing.

use crate::diagnosis::ranges::Range;
use crate::disk::{Disk, DiskFile};
use crate::error::OpenError;
use crate::ids::{Sequence, StreamNo};
use crate::segments::frame::{Flaw, Parsed, Position};
use crate::segments::scan::{self, Scan, Step, Tail, WINDOW_BYTES};
use crate::segments::segment::{self, Segment};
use crate::superblock::statement::Statement;
use hashbrown::HashMap;
use std::io;
use std::path::PathBuf;

/// Something that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file, or the directory of history.
    pub file: PathBuf,
    /// The position in the file, in bytes; 0 for the whole file.
    pub position: u64,
    /// The damaged or missing record, or the first of them.
    pub sequence: Sequence,
    /// What is wrong.
    pub what: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Problem {
            file,
            position,
            sequence,
            what,
        } = self;
        write!(
            f,
            "{} at byte {position}, record {sequence}: {what}",
            file.display()
        )
    }
}

/// The content of the file of a segment.
#[derive(Debug)]
pub(crate) struct Surveyed<F> {
    pub(crate) name: String,
    /// The sequence in its name.
    pub(crate) first: Sequence,
    /// `None` when its head is damaged.
    pub(crate) segment: Option<Segment<F>>,
    /// The sequence after its last sound record, and the end of that record.
    pub(crate) end: Sequence,
    pub(crate) end_position: u64,
    /// The last record that left a trace here: beyond the end when something is wrong.
    pub(crate) traced_upto: Sequence,
    /// Whether its number follows that of the segment before.
    pub(crate) follows: bool,
    /// Whether it ends without damage before the next one begins, as when the one in between is missing.
    pub(crate) ends_early: bool,
    /// Whether it is the last one and ends in a torn batch, which is no damage.
    pub(crate) torn: bool,
    /// The first record with a wrong position of the previous record of its stream. Nothing is lost by that.
    pub(crate) broken_chain: Option<Problem>,
    /// Damage that makes everything from its end on unusable.
    pub(crate) problem: Option<Problem>,
}

impl<F> Surveyed<F> {
    /// The last record that left a trace.
    pub(crate) fn reached(&self) -> Sequence {
        match self.problem {
            Some(_) => self.traced_upto.max(self.end - 1),
            None => self.end - 1,
        }
    }
}

/// The sound records of segments.
pub(crate) fn available<F>(surveyed: &[Surveyed<F>]) -> Vec<Range> {
    let sound = surveyed.iter().filter(|found| found.segment.is_some());
    sound
        .filter(|found| found.end > found.first)
        .map(|found| (found.first, found.end - 1))
        .collect()
}

/// The progress of a survey.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SurveyProgress<'s> {
    pub(crate) name: &'s str,
    pub(crate) done_bytes: u64,
    pub(crate) total_bytes: u64,
}

/// Reads every segment, oldest first, and gives `each` every sound record. Records are sound up to the first problem of
/// their segment.
pub(crate) fn survey<D: Disk>(
    disk: &D,
    stated: Option<&Statement>,
    each: &mut dyn FnMut(&Parsed<'_>, SurveyProgress<'_>),
) -> Result<Vec<Surveyed<D::File>>, OpenError> {
    let firsts = segment::names(disk)?;
    let mut chain = Chain::default();
    let mut seen = SurveyProgress {
        name: "",
        done_bytes: 0,
        total_bytes: 0,
    };
    for (_, name) in &firsts {
        let bytes = disk.open(name).and_then(|file| file.bytes());
        seen.total_bytes += bytes.map_err(|e| OpenError::io(&disk.path(name), "measure", e))?;
    }
    let mut surveyed = Vec::with_capacity(firsts.len());
    let mut number_before: Option<u64> = None;
    for (i, (first, name)) in firsts.iter().enumerate() {
        let next_first = firsts.get(i + 1).map(|(first, _)| *first);
        let mut found = Surveyed {
            name: name.clone(),
            first: *first,
            segment: None,
            end: *first,
            end_position: 0,
            traced_upto: next_first.map_or(*first, |next| next - 1),
            follows: true,
            ends_early: false,
            torn: false,
            broken_chain: None,
            problem: None,
        };
        // The expected number, also after a segment that is damaged.
        let due = number_before.map(|before| before + 1);
        number_before = due;
        match Segment::open(disk, name) {
            Ok(segment) if stated.is_some_and(|stated| !stated.is_of(&segment)) => {
                let what = "the segment is of another log".to_owned();
                found.problem = Some(problem(disk, name, 0, *first, what));
            }
            Ok(segment) => {
                let from = SurveyProgress { name, ..seen };
                let mut each = |frame: &Parsed<'_>, position: u32| {
                    let done_bytes = from.done_bytes + u64::from(position);
                    each(frame, SurveyProgress { done_bytes, ..from });
                };
                seen.done_bytes += segment.bytes;
                walk(
                    disk,
                    &segment,
                    next_first,
                    (&mut chain, &mut found),
                    &mut each,
                )
                .map_err(|e| OpenError::io(&disk.path(name), "read", e))?;
                number_before = Some(segment.number);
                found.follows = due.is_none_or(|due| due == segment.number);
                let before: Option<&Surveyed<D::File>> = surveyed.last();
                let adjoins = before.is_some_and(|before| before.end == *first);
                if let (false, true, Some(due)) = (found.follows, adjoins, due) {
                    // No segment is missing, so this one is misplaced.
                    let what = format!(
                        "it is the segment numbered {}, where {due} is expected",
                        segment.number
                    );
                    found.problem = Some(problem(disk, name, 0, *first, what));
                    (found.end, found.end_position) = (*first, 0);
                    surveyed.push(found);
                    continue;
                }
                if let Some(stated) = stated.and_then(|stated| stated.last)
                    && found.problem.is_none()
                    && stated.number == segment.number
                    && segment.bytes < stated.bytes
                {
                    let what = format!(
                        "the file has {} bytes, and {} are stated",
                        segment.bytes, stated.bytes
                    );
                    let (position, end) = (found.end_position, found.end);
                    found.problem = Some(problem(disk, name, position, end, what));
                }
                found.segment = Some(segment);
            }
            Err(OpenError::Damaged { mut what, .. }) => {
                if next_first.is_none() {
                    what.push_str(", so the number of its records is unknown");
                }
                found.problem = Some(problem(disk, name, 0, *first, what));
            }
            Err(OpenError::NotASegment { .. }) => {
                let what = "it does not begin as a segment".to_owned();
                found.problem = Some(problem(disk, name, 0, *first, what));
            }
            Err(error) => return Err(error),
        }
        if !found.follows
            && let Some(before) = surveyed.last_mut().filter(|before| before.ends_early)
        {
            // It is whole; the one in between is missing.
            before.problem = None;
        }
        if found.problem.is_some() || !found.follows {
            // The previous record of a stream may be in the part that could not be read.
            chain = Chain::default();
        }
        surveyed.push(found);
    }
    Ok(surveyed)
}

/// Scans a segment and fills in `found`.
fn walk<D: Disk>(
    disk: &D,
    segment: &Segment<D::File>,
    next_first: Option<Sequence>,
    (chain, found): (&mut Chain, &mut Surveyed<D::File>),
    each: &mut dyn FnMut(&Parsed<'_>, u32),
) -> io::Result<()> {
    let mut scan = Scan::new(segment, WINDOW_BYTES);
    let mut flaw = None;
    while flaw.is_none() && next_first.is_none_or(|next| scan.due() < next) {
        let (position, due) = (scan.position(), scan.due());
        match scan.next()? {
            Step::Record(at, frame) => {
                if let (Err(what), None) = (
                    chain.follow(segment.number, at, &frame),
                    &found.broken_chain,
                ) {
                    found.broken_chain = Some(problem(disk, &segment.name, position, due, what));
                }
                each(&frame, at);
            }
            Step::Watermark(_) => {}
            Step::End(_, ended) => flaw = Some(ended),
        }
    }
    (found.end, found.end_position) = (scan.due(), scan.position());
    found.traced_upto = scan.due() - 1;
    found.ends_early = matches!(flaw, Some(Flaw::Nothing)) && next_first.is_some();
    let Some(flaw) = flaw.map(Flaw::text) else {
        return Ok(());
    };
    let what = match (
        scan::tail(segment, scan.position(), scan.due())?,
        next_first,
    ) {
        (_, Some(next)) => {
            found.traced_upto = next - 1;
            format!("{flaw}, and the next segment begins with record {next}")
        }
        (
            Tail::Confirmed {
                durable_upto,
                traced_upto,
                ..
            },
            None,
        ) => {
            found.traced_upto = traced_upto;
            format!(
                "{flaw}, and a later frame states that the log was durable up to record {durable_upto}"
            )
        }
        (Tail::Torn { .. }, None) => {
            found.torn = true;
            return Ok(());
        }
        (Tail::Clean, None) => return Ok(()),
    };
    found.problem = Some(problem(
        disk,
        &segment.name,
        scan.position(),
        scan.due(),
        what,
    ));
    Ok(())
}

/// The last position of each stream, to compare with the next record of it.
#[derive(Debug, Default)]
struct Chain {
    last: HashMap<StreamNo, Position, foldhash::fast::FixedState>,
}

impl Chain {
    fn follow(&mut self, segment: u64, at: u32, frame: &Parsed<'_>) -> Result<(), String> {
        let here = Position::new(segment, at);
        let mut followed = Ok(());
        for (stream, previous) in frame.streams.iter() {
            let last = self.last.insert(stream, here);
            // A frame has no previous position when that record was in history, and its position may be in a segment
            // that was removed.
            if let Some(last) = last.filter(|last| !previous.is_none() && previous != *last) {
                followed = Err(format!(
                    "the previous record of stream {stream} is at {last:?}, not at {previous:?}"
                ));
            }
        }
        followed
    }
}

pub(crate) fn problem<D: Disk>(
    disk: &D,
    name: &str,
    position: u64,
    sequence: Sequence,
    what: String,
) -> Problem {
    Problem {
        file: disk.path(name),
        position,
        sequence,
        what,
    }
}
