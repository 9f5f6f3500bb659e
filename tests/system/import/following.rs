//! An import that follows, what it takes to end it, and its memory.

use super::importer::{Importer, append, contents, streams_of};
use crate::rig::{Encke, JSON, eventually, path};

#[test]
fn an_import_follows_until_it_is_stopped() {
    let (from, to) = (Encke::start(&[]), Encke::start(&[]));
    from.create("a");
    from.create("b");
    append(&from, "a", JSON, b"0");
    let importer = Importer::new(streams_of(&from), &to);
    let mut running = importer.start(&["a", "b", "--follow", "--verify"]);
    running.wait_until_it_follows();
    for number in 1..20_u64 {
        append(&from, "a", JSON, number.to_string().as_bytes());
        eventually("it is copied", || {
            to.numbers("a").len() as u64 == number + 1
        });
    }
    // Nothing waits for these.
    for number in 0..20_u64 {
        append(&from, "b", JSON, number.to_string().as_bytes());
    }
    let (code, report) = running.stop();
    assert_eq!(code, Some(0), "{report}");
    assert!(report.contains("a: 20 records"), "{report}");
    assert!(report.contains("b: 20 records"), "{report}");
    assert!(report.contains("the same at both sides"), "{report}");
    assert_eq!(to.numbers("a"), from.numbers("a"));
    assert_eq!(to.numbers("b"), from.numbers("b"));
    // What was appended while it was followed has a line of the map each.
    assert_eq!(importer.map("a").len(), 20);
}

#[test]
fn the_memory_of_an_import_is_bounded() {
    const TYPE: &str = "Content-Type: application/x-any";
    let (from, to) = (Encke::start(&[]), Encke::start(&[]));
    assert_eq!(from.ask("PUT", &path("large"), &[TYPE], b"").status, 201);
    let part: Vec<u8> = (0..8_u32 << 20)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    for _ in 0..12 {
        append(&from, "large", TYPE, &part);
    }
    let importer = Importer::new(streams_of(&from), &to);
    let mut running = importer.start(&["large", "--follow"]);
    running.wait_until_it_follows();
    let status = std::fs::read_to_string(format!("/proc/{}/status", running.child.id()));
    let status = status.expect("it runs");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak_kib: u64 = peak
        .and_then(|peak| peak.trim().strip_suffix(" kB")?.trim().parse().ok())
        .expect("a number");
    assert!(peak_kib < 64 << 10, "{peak_kib} KiB for 96 MiB");
    let (code, report) = running.stop();
    assert_eq!(code, Some(0), "{report}");
    assert_eq!(contents(&to, "large", "-1").len(), 12 * part.len());
}

#[test]
fn a_destination_that_others_append_to_is_left_while_it_is_followed() {
    let (from, to) = (Encke::start(&[]), Encke::start(&[]));
    from.create("a");
    append(&from, "a", JSON, b"1");
    let importer = Importer::new(streams_of(&from), &to);
    let mut running = importer.start(&["a", "--follow"]);
    running.wait_until_it_follows();
    append(&to, "a", JSON, b"100");
    append(&from, "a", JSON, b"2");
    // No stream is left to follow.
    assert_eq!(running.ended(), Some(1));
    let report = std::fs::read_to_string(&running.stdout).expect("it is ours");
    assert!(
        report.contains("somebody else writes to the stream at the destination"),
        "{report}"
    );
    assert_eq!(to.numbers("a"), [1, 100]);
}
