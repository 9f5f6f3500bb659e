//! Scans a segment frame by frame, and classifies its tail.

use crate::disk::DiskFile;
use crate::ids::Sequence;
use crate::segments::frame::{self, Flaw, Parsed};
use crate::segments::segment::{self, Segment};
use std::io;

/// Scans forward through a segment, beginning with the frame of a known sequence.
pub(crate) struct Scan<'s, F> {
    segment: &'s Segment<F>,
    /// Bytes that were read and not scanned yet: `buffer[at..]` begins at `position` in the file.
    buffer: Vec<u8>,
    at: usize,
    position: u64,
    /// The expected sequence of the next frame.
    due: Sequence,
    window_bytes: usize,
}

/// The result of a step.
pub(crate) enum Step<'a> {
    /// A record at this position.
    Record(u32, Parsed<'a>),
    /// A watermark; it is no record.
    Watermark(Sequence),
    /// No valid next frame at this position. What it means depends on what follows: see [`tail`].
    End(u64, Flaw),
}

impl<'s, F: DiskFile> Scan<'s, F> {
    /// Begins at the beginning of the segment.
    pub(crate) fn new(segment: &'s Segment<F>, window_bytes: usize) -> Self {
        Self::from(
            segment,
            segment::HEAD_BYTES as u32,
            segment.first,
            window_bytes,
        )
    }

    /// Begins with the frame of the record `due` at `position`.
    pub(crate) fn from(
        segment: &'s Segment<F>,
        position: u32,
        due: Sequence,
        window_bytes: usize,
    ) -> Self {
        Scan {
            segment,
            buffer: Vec::new(),
            at: 0,
            position: position.into(),
            due,
            window_bytes,
        }
    }

    /// The expected sequence of the next record.
    pub(crate) fn due(&self) -> Sequence {
        self.due
    }

    /// The position of the next frame.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The next frame. After [`Step::End`] it returns the same again.
    pub(crate) fn next(&mut self) -> io::Result<Step<'_>> {
        let position = self.position;
        let room = self.segment.bytes.saturating_sub(position);
        let mut length = [0; 4];
        let head = self.fill(4)?;
        length[..head.len()].copy_from_slice(head);
        let bytes = match frame::length(&length, room) {
            Ok(bytes) => bytes as usize,
            Err(flaw) => return Ok(Step::End(position, flaw)),
        };
        let (seed, due) = (self.segment.seed, self.due);
        if self.fill(bytes)?.len() < bytes {
            // The file was shortened since it was opened.
            return Ok(Step::End(position, Flaw::Length));
        }
        let parsed = match frame::parse(&self.buffer[self.at..self.at + bytes], seed) {
            Ok(parsed) if parsed.sequence == due => parsed,
            Ok(_) => return Ok(Step::End(position, Flaw::Sequence)),
            Err(flaw) => return Ok(Step::End(position, flaw)),
        };
        self.at += bytes;
        self.position += bytes as u64;
        if let (true, Some(durable_upto)) = (parsed.watermark, parsed.durable_upto) {
            return Ok(Step::Watermark(durable_upto));
        }
        self.due += 1;
        Ok(Step::Record(position as u32, parsed))
    }

    /// At least `bytes` bytes from the current position, or all that there are.
    fn fill(&mut self, bytes: usize) -> io::Result<&[u8]> {
        if self.buffer.len() - self.at < bytes {
            self.buffer.drain(..self.at);
            self.at = 0;
            let have = self.buffer.len();
            let from = self.position + have as u64;
            let left = self.segment.bytes.saturating_sub(from) as usize;
            let more = bytes.max(self.window_bytes).saturating_sub(have).min(left);
            self.buffer.resize(have + more, 0);
            let read = self.segment.file.read_at(&mut self.buffer[have..], from)?;
            self.buffer.truncate(have + read);
        }
        let end = self.buffer.len().min(self.at + bytes);
        Ok(&self.buffer[self.at..end])
    }
}

/// The bytes behind the last sound frame of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    /// Zeros, or the end of the file.
    Clean,
    /// Other bytes, without proof that they were ever durable. There is a trace of records up to this one.
    Torn { traced_upto: Sequence },
    /// Bytes that were durable: a later frame at `position` states that the log was durable up to `durable_upto`. There
    /// is a trace of records up to `traced_upto`.
    Confirmed {
        position: u64,
        durable_upto: Sequence,
        traced_upto: Sequence,
    },
}

/// Classifies the bytes of a segment from `position` on, where the frame of the record `due` is expected and missing.
pub(crate) fn tail<F: DiskFile>(
    segment: &Segment<F>,
    position: u64,
    due: Sequence,
) -> io::Result<Tail> {
    let Some(last) = last_nonzero(segment, position)? else {
        return Ok(Tail::Clean);
    };
    let mut bytes = vec![0; segment.bytes.saturating_sub(position) as usize];
    let read = segment.file.read_at(&mut bytes, position)?;
    bytes.truncate(read);
    let sequences = due..=due.saturating_add((bytes.len() / frame::HEAD_BYTES) as u64 + 1);
    let mut traced_upto = due;
    let mut confirmed = None;
    // A frame may end in zeros, so it may reach past the last nonzero byte; it can't begin there.
    let mut at = 0;
    while let Some(rest) = bytes.get(at..).filter(|_| position + at as u64 <= last) {
        let Some(frame) = frame::sound_at(rest, segment.seed, &sequences) else {
            at += 1;
            continue;
        };
        let durable_upto = frame.durable_upto.unwrap_or(0);
        if durable_upto >= due && confirmed.is_none() {
            confirmed = Some((position + at as u64, durable_upto));
        }
        let here = if frame.watermark {
            frame.sequence - 1
        } else {
            frame.sequence
        };
        traced_upto = traced_upto.max(durable_upto).max(here);
        at += frame.bytes as usize;
    }
    Ok(match confirmed {
        None => Tail::Torn { traced_upto },
        Some((position, durable_upto)) => Tail::Confirmed {
            position,
            durable_upto,
            traced_upto,
        },
    })
}

/// The last nonzero byte from `position` on. There is rarely one, and the search needs little memory.
fn last_nonzero<F: DiskFile>(segment: &Segment<F>, mut position: u64) -> io::Result<Option<u64>> {
    let mut window = vec![0; WINDOW_BYTES];
    let mut last = None;
    while let Some(data) = segment.file.data_from(position)? {
        position = data;
        let room = segment
            .bytes
            .saturating_sub(position)
            .min(WINDOW_BYTES as u64);
        let window = &mut window[..room as usize];
        let read = segment.file.read_at(window, position)?;
        let bytes = &window[..read];
        // Without an early exit in the loop, the compiler compares many bytes at once.
        if bytes.iter().fold(0, |all, byte| all | byte) != 0 {
            let here = bytes.iter().rposition(|byte| *byte != 0);
            last = here.map(|here| position + here as u64);
        }
        position += read as u64;
        if read < WINDOW_BYTES {
            break;
        }
    }
    Ok(last)
}

/// How much is read at once in a scan of a whole segment.
pub(crate) const WINDOW_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::SystemTime;

    /// A file of zeros, except for one byte; it notes the size of the largest read.
    #[derive(Debug)]
    struct Sparse {
        bytes: u64,
        one_at: Option<u64>,
        largest_read: AtomicUsize,
    }

    impl DiskFile for Sparse {
        fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
            self.largest_read.fetch_max(bytes.len(), Ordering::Relaxed);
            let read = (bytes.len() as u64).min(self.bytes.saturating_sub(offset)) as usize;
            bytes[..read].fill(0);
            let one = self.one_at.and_then(|at| at.checked_sub(offset));
            if let Some(one) = one.and_then(|at| bytes[..read].get_mut(at as usize)) {
                *one = 1;
            }
            Ok(read)
        }

        fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
            Ok(())
        }

        fn sync(&self) -> io::Result<()> {
            Ok(())
        }

        fn truncate(&self, _: u64) -> io::Result<()> {
            Ok(())
        }

        fn bytes(&self) -> io::Result<u64> {
            Ok(self.bytes)
        }

        fn written_at(&self) -> io::Result<SystemTime> {
            Ok(SystemTime::UNIX_EPOCH)
        }
    }

    fn segment_in<F>(file: F, bytes: u64) -> Segment<F> {
        Segment {
            number: 1,
            log_id: 0,
            first: 1,
            seed: 0,
            bytes,
            name: String::new(),
            file,
        }
    }

    fn segment(one_at: Option<u64>) -> Segment<Sparse> {
        let bytes = 4 * WINDOW_BYTES as u64 + 77;
        let file = Sparse {
            bytes,
            one_at,
            largest_read: AtomicUsize::new(0),
        };
        segment_in(file, bytes)
    }

    #[test]
    fn a_clean_tail_is_looked_through_a_window_at_a_time() {
        for position in [segment::HEAD_BYTES, WINDOW_BYTES as u64 + 5] {
            let segment = segment(None);
            assert_eq!(tail(&segment, position, 1).unwrap(), Tail::Clean);
            let largest_read = segment.file.largest_read.load(Ordering::Relaxed);
            assert!(largest_read <= WINDOW_BYTES, "{largest_read}");
        }
    }

    /// Space that is only reserved need not be read, and what was written to it is found, also before it is synced.
    #[test]
    fn data_in_reserved_space_is_found_in_a_file() {
        let bytes = 4 * WINDOW_BYTES as u64;
        for written in [
            None,
            Some(0),
            Some(WINDOW_BYTES as u64 + 77),
            Some(bytes - 1),
        ] {
            let file = tempfile::tempfile().unwrap();
            // Where this fails, the file has a hole instead.
            let reserved = rustix::fs::FallocateFlags::empty();
            let _ = rustix::fs::fallocate(&file, reserved, 0, bytes);
            file.set_len(bytes).unwrap();
            if let Some(at) = written {
                file.write_at(b"x", at).unwrap();
            }
            let segment = segment_in(file, bytes);
            let of_file = |from| last_nonzero(&segment, from).unwrap();
            assert_eq!(of_file(0), written);
            segment.file.sync_all().unwrap();
            assert_eq!(of_file(0), written);
            let behind = written.map_or(0, |at| at + 1);
            assert_eq!(of_file(behind), None);
        }
    }

    #[test]
    fn a_single_byte_anywhere_in_the_tail_is_found() {
        let (from, end) = (WINDOW_BYTES as u64 + 5, segment(None).bytes);
        let windows = [from, from + WINDOW_BYTES as u64];
        for at in windows
            .into_iter()
            .flat_map(|at| [at - 1, at, at + 1])
            .chain([end - 1])
        {
            let found = tail(&segment(Some(at)), from, 1).unwrap();
            let torn = Tail::Torn { traced_upto: 1 };
            assert_eq!(found, if at < from { Tail::Clean } else { torn }, "{at}");
        }
    }
}
