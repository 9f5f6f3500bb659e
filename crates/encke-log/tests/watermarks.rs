//! How the log states that records are durable: watermarks, and the numbers of segments.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.

use encke_clock::WallTime;
use encke_log::simulated::{Faults, SimulatedDisk};
use encke_log::{DumpFilter, Frame, FrameView, Log, OpenError, Options};
use std::ops::ControlFlow;

/// A log of small segments.
fn open(disk: &SimulatedDisk) -> Result<Log<SimulatedDisk>, OpenError> {
    let options = Options {
        segment_bytes: 4096,
        history: false,
        ..Options::default()
    };
    Log::open_on(disk.clone(), options, &mut |_| {})
}

fn append(log: &mut Log<SimulatedDisk>, payload: &[u8]) {
    let frame = Frame {
        kind: 1,
        time: WallTime::from_ms(1),
        streams: &[1],
        payload: &[payload],
    };
    log.append(&frame).unwrap();
}

/// A watermark whose sync fails is in memory only, and the records before it are durable. A killed process leaves it
/// there, and the kernel considers it clean. Records that the next process writes after it must not be lost with it.
#[test]
fn a_watermark_whose_sync_failed_is_written_again() {
    // With these lengths the watermark lies on two sectors, and the next frame on the second one only.
    for bytes in 350..400 {
        let disk = SimulatedDisk::new(bytes);
        let payload = vec![b'x'; bytes as usize];
        let append = |log: &mut Log<SimulatedDisk>| {
            append(log, &payload);
            log.write().unwrap();
            log.sync().unwrap();
        };
        let mut log = open(&disk).unwrap();
        append(&mut log);
        disk.set_faults(Faults {
            failing_operation: Some(2),
            ..Faults::default()
        });
        log.mark_durable().unwrap();
        log.sync().unwrap_err();
        drop(log);
        disk.set_faults(Faults::default());
        let mut log = open(&disk).unwrap();
        append(&mut log);
        drop(log);
        disk.cut_power();
        assert_eq!(open(&disk).unwrap().next_sequence(), 3, "{bytes} bytes");
    }
}

/// A closed log states that all of it is durable, however full its last segment is.
#[test]
fn damage_to_the_last_record_of_a_closed_log_is_found() {
    for bytes in 700..1000 {
        let disk = SimulatedDisk::new(1);
        let mut log = open(&disk).unwrap();
        for _ in 0..3 {
            append(&mut log, &[b'x'; 1000]);
        }
        append(&mut log, &vec![b'z'; bytes]);
        log.close().unwrap();
        let holds = |name: &&str| disk.contents(name).is_some_and(|held| held.contains(&b'z'));
        let segments = [
            "00000000000000000001.segment",
            "00000000000000000004.segment",
        ];
        let name = segments.into_iter().find(holds).unwrap();
        let mut held = disk.contents(name).unwrap();
        let at = held.iter().rposition(|byte| *byte == b'z').unwrap();
        held[at] = b'y';
        disk.put(name, &held);
        assert!(open(&disk).is_err(), "{bytes} bytes");
    }
}

/// When the head of a segment is damaged, the records of later segments are lost too, and reported. They can be read in the
/// files that were set aside.
#[test]
fn a_repair_reports_losses_behind_a_damaged_head() {
    let disk = SimulatedDisk::new(1);
    let mut log = open(&disk).unwrap();
    for _ in 0..9 {
        append(&mut log, &[b'x'; 1000]);
    }
    log.close().unwrap();
    let second = "00000000000000000004.segment";
    let mut held = disk.contents(second).unwrap();
    held[14] ^= 8;
    disk.put(second, &held);
    let plan = encke_log::repair_on(&disk, &mut |_| false).unwrap();
    let lost: Vec<_> = plan
        .losses
        .iter()
        .map(|loss| (loss.from, loss.upto))
        .collect();
    assert_eq!(lost, [(4, 6), (7, 9)], "{plan:?}");
    encke_log::repair_on(&disk, &mut |_| true).unwrap();
    assert_eq!(open(&disk).unwrap().next_sequence(), 4);
    let elsewhere = SimulatedDisk::new(2);
    let third = "00000000000000000007.segment";
    let aside = disk.contents(&format!("{third}.dropped")).unwrap();
    elsewhere.put(third, &aside);
    let mut dumped = Vec::new();
    let mut each = |view: FrameView<'_>| {
        assert_eq!(view.payload, [b'x'; 1000]);
        dumped.push(view.sequence);
        ControlFlow::Continue(())
    };
    encke_log::dump_on(&elsewhere, DumpFilter::default(), &mut each).unwrap();
    assert_eq!(dumped, [7, 8, 9]);
}
