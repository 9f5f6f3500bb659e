//! The bodies of the fuzz targets. Tests run them over the saved corpus.

use encke_clock::WallTime;

use crate::disk::file_name;
use crate::disk::simulated::SimulatedDisk;
use crate::segments::segment::{self, HEAD_BYTES};
use crate::{Frame, FrameView, Log, OpenError, Options, Sequence, repair_on};

/// Makes the files of a log from `data` and opens it. Panics when a record is returned that is in no file with a valid
/// checksum, when the opened log can't be written to and opened again, or when a log that was refused for damage does
/// not open after a repair.
///
/// The first byte is the mode: the number of files (bits 0 and 1), whether their heads are made sound (bit 2), and
/// whether frames get valid lengths (bit 3), sequences (bit 4) and checksums (bit 5).
pub fn log_recovery(data: &[u8]) {
    let Some((mode, data)) = data.split_first() else {
        return;
    };
    let data = &data[..data.len().min(DATA_BYTES_MAX)];
    let disk = SimulatedDisk::new(0);
    let mut sound = Vec::new();
    let mut next = 1;
    let files = usize::from(mode & 3) + 1;
    for (i, part) in data.chunks(data.len().div_ceil(files).max(1)).enumerate() {
        let file = make_file(*mode, part, i as u64 + 1, &mut next);
        let first = if file.len() < 32 || mode & 4 == 0 {
            i as u64 + 1
        } else {
            u64_at(&file, 24)
        };
        sound.extend(sound_frames(&file));
        disk.put(&file_name::segment(first.max(1)), &file);
    }
    match open(&disk) {
        Ok((log, records)) => check_opened(&disk, log, records, &sound),
        Err(
            OpenError::Damaged { .. } | OpenError::Missing { .. } | OpenError::NotASegment { .. },
        ) => {
            if let Ok(report) = repair_on(&disk, &mut |_| true) {
                let (log, records) =
                    open(&disk).unwrap_or_else(|error| panic!("{error}, after {report:?}"));
                check_opened(&disk, log, records, &sound);
            }
        }
        Err(OpenError::Version { .. } | OpenError::ByteOrder { .. }) => {}
        Err(error) => panic!("this disk never fails: {error}"),
    }
}

/// A record as it was returned, or as it lies in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    sequence: Sequence,
    time: WallTime,
    kind: u8,
    streams: Vec<u64>,
    payload: Vec<u8>,
}

impl Record {
    fn of(view: FrameView<'_>) -> Record {
        Record {
            sequence: view.sequence,
            time: view.time,
            kind: view.kind,
            streams: view.streams.iter().map(|(stream, _)| stream).collect(),
            payload: view.payload.to_vec(),
        }
    }
}

fn open(disk: &SimulatedDisk) -> Result<(Log<SimulatedDisk>, Vec<Record>), OpenError> {
    let options = Options {
        segment_bytes: 4096,
        ..Options::default()
    };
    let mut records = Vec::new();
    let log = Log::open_on(disk.clone(), options, &mut |view| {
        records.push(Record::of(view));
    })?;
    Ok((log, records))
}

/// Checks the records that were returned, reads them, appends one and opens the log again.
fn check_opened(
    disk: &SimulatedDisk,
    mut log: Log<SimulatedDisk>,
    mut records: Vec<Record>,
    sound: &[Record],
) {
    for (record, due) in records.iter().zip(1..) {
        assert_eq!(record.sequence, due, "there is a gap");
        assert!(sound.contains(record), "{record:?} is in no file");
    }
    let added = Record {
        sequence: log.next_sequence(),
        time: WallTime::from_ms(5),
        kind: 6,
        streams: vec![3],
        payload: b"added".to_vec(),
    };
    let frame = Frame {
        kind: added.kind,
        time: added.time,
        streams: &added.streams,
        payload: &[&added.payload],
    };
    assert_eq!(log.append(&frame), Ok(added.sequence));
    records.push(added);
    log.write()
        .and_then(|()| log.sync())
        .expect("this disk never fails");
    log.publish();
    let mut read = Vec::new();
    let end = log
        .reader()
        .read_all(0, Sequence::MAX, usize::MAX, &mut |_, _| {}, &mut |view| {
            read.push(Record::of(view));
        });
    assert_eq!(
        end.expect("what was found can be read").last,
        records.len() as u64
    );
    assert!(read == records, "another read gives something else");
    let mut of_stream = Vec::new();
    let end = log
        .reader()
        .read(3, 0, Sequence::MAX, usize::MAX, &mut |view| {
            of_stream.push(Record::of(view));
        });
    assert!(
        end.is_ok()
            && of_stream
                .iter()
                .eq(records.iter().filter(|record| record.streams.contains(&3)))
    );
    drop(log);
    let (log, found) = open(disk).expect("what was opened opens again");
    assert!(found == records, "another open gives something else");
    log.close().expect("this disk never fails");
}

/// A file of `part`, as sound as `mode` demands.
fn make_file(mode: u8, part: &[u8], number: u64, next: &mut Sequence) -> Vec<u8> {
    let (head_sound, lengths, sequences, checksums) =
        (mode & 4 != 0, mode & 8 != 0, mode & 16 != 0, mode & 32 != 0);
    let mut file = Vec::new();
    let mut rest = part;
    if head_sound {
        file.extend_from_slice(&segment::head(number, *next, number, 0));
    } else {
        let head;
        (head, rest) = part.split_at(part.len().min(HEAD_BYTES as usize));
        file.extend_from_slice(head);
    }
    let seed = segment::seed(number);
    while lengths && rest.len() >= 28 {
        // The length says how much of the rest is this frame. Its third byte, otherwise always zero, suppresses the
        // checksum.
        let bytes = 28 + usize::from(u16::from_le_bytes([rest[0], rest[1]])) % 300;
        let spared = rest[2] >= 0xF0;
        let frame;
        (frame, rest) = rest.split_at(bytes.min(rest.len()));
        let mut frame = frame.to_vec();
        let length = (frame.len() as u32).to_le_bytes();
        frame[..4].copy_from_slice(&length);
        frame[25] &= 3;
        if sequences {
            frame[8..16].copy_from_slice(&next.to_le_bytes());
        }
        if frame[25] & 2 == 0 {
            *next += 1;
        }
        if checksums && !spared {
            let checksum = checksum(&frame, seed).to_le_bytes();
            frame[4..8].copy_from_slice(&checksum);
        }
        file.extend_from_slice(&frame);
    }
    file.extend_from_slice(rest);
    file
}

/// All frames with a valid checksum from the beginning of a file to the first invalid one, found without the code under
/// test.
fn sound_frames(file: &[u8]) -> Vec<Record> {
    let mut records = Vec::new();
    if file.len() < HEAD_BYTES as usize {
        return records;
    }
    let seed = segment::seed(u64_at(file, 32));
    let mut at = HEAD_BYTES as usize;
    while let Some(frame) = file.get(at..) {
        let Some(length) = frame
            .first_chunk()
            .map(|length| u32::from_le_bytes(*length) as usize)
        else {
            break;
        };
        let Some(frame) = frame.get(..length).filter(|frame| frame.len() >= 28) else {
            break;
        };
        if u32::from_le_bytes([frame[4], frame[5], frame[6], frame[7]]) != checksum(frame, seed) {
            break;
        }
        at += length;
        let streams_from = if frame[25] & 1 == 0 { 28 } else { 36 };
        let streams_to =
            streams_from + 16 * usize::from(u16::from_le_bytes([frame[26], frame[27]]));
        let (Some(streams), Some(payload)) =
            (frame.get(streams_from..streams_to), frame.get(streams_to..))
        else {
            break;
        };
        records.push(Record {
            sequence: u64_at(frame, 8),
            time: WallTime::from_ms(u64_at(frame, 16)),
            kind: frame[24],
            streams: streams.chunks(16).map(|stream| u64_at(stream, 0)).collect(),
            payload: payload.to_vec(),
        });
    }
    records
}

fn checksum(frame: &[u8], seed: u32) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(seed, &frame[..4]), &frame[8..])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let word = bytes[at..]
        .first_chunk()
        .expect("the caller has checked the length");
    u64::from_le_bytes(*word)
}

/// Longer inputs find nothing that shorter ones do not.
const DATA_BYTES_MAX: usize = 32 << 10;
