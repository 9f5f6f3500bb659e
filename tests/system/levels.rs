//! Levels of acknowledgement, of streams and of requests.

use crate::rig::{
    Encke, Fault, JSON, data_dir, eventually, path, request, strace_works, wait_for_sync,
};

fn create(encke: &Encke, stream: &str, level: &str) {
    let level = format!("Encke-Ack: {level}");
    let answer = encke.ask("PUT", &path(stream), &[JSON, &level], b"");
    assert_eq!(answer.status, 201, "{answer:?}");
}

#[test]
#[ignore = "long: make test-all"]
fn weaker_levels_are_acknowledged_during_a_sync_and_nothing_is_visible_early() {
    if !strace_works() {
        return;
    }
    let dir = data_dir();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).expect("the directory is ours");
    // Far longer than a client needs to see what is visible meanwhile.
    let fault = Fault::new(&data, dir.path(), "fdatasync:delay_enter=6000000");
    let encke = Encke::start_by(&mut fault.serve(&data, &[]));
    for level in ["synced", "written", "accepted"] {
        create(&encke, level, level);
    }
    let mut connections = [(); 3].map(|()| encke.connect());
    let append = |stream: &str, body: &[u8]| request("POST", &path(stream), &[JSON], body);
    fault.arm();
    // The first one keeps the disk busy, so that the others are one batch.
    let mut first = encke.connect();
    first.send(&append("synced", b"1"));
    wait_for_sync(&encke);
    for (connection, stream) in connections
        .iter_mut()
        .zip(["synced", "written", "accepted"])
    {
        connection.send(&append(stream, b"2"));
    }
    let [synced, written, accepted] = &mut connections;
    assert_eq!(accepted.answer().status, 204);
    assert_eq!(written.answer().status, 204);
    assert!(
        !encke.numbers("synced").contains(&2),
        "seen before its sync"
    );
    assert_eq!(encke.numbers("written"), [2]);
    assert_eq!(encke.numbers("accepted"), [2]);
    assert_eq!(synced.answer().status, 204);
    assert_eq!(encke.numbers("synced"), [1, 2]);
    // Acknowledged early, not visible early.
    let fields = [JSON, "Encke-Ack: accepted"];
    let answer = synced.ask("POST", &path("synced"), &fields, b"3");
    assert_eq!(answer.status, 204);
    assert!(
        !encke.numbers("synced").contains(&3),
        "seen before its sync"
    );
    eventually("it is seen", || encke.numbers("synced") == [1, 2, 3]);
}

#[test]
fn a_stream_says_its_level_and_keeps_what_it_promises_over_a_kill() {
    let data = data_dir();
    let encke = Encke::start_in(data.path(), &["--ack", "accepted"]);
    create(&encke, "w", "written");
    create(&encke, "s", "synced");
    encke.create("plain");
    let level = |encke: &Encke, stream: &str| {
        let answer = encke.ask("HEAD", &path(stream), &[], b"");
        answer.field("Encke-Ack").map(str::to_owned)
    };
    assert_eq!(level(&encke, "plain").as_deref(), Some("accepted"));
    let answer = encke.ask("PUT", &path("w"), &[JSON, "Encke-Ack: synced"], b"");
    assert_eq!(
        (answer.status, &*answer.error_code()),
        (409, "config_differs")
    );
    let answer = encke.ask("POST", &path("w"), &[JSON, "Encke-Ack: soon"], b"7");
    assert_eq!((answer.status, &*answer.error_code()), (400, "bad_field"));
    let mut connection = encke.connect();
    for number in 0..20 {
        let body = number.to_string();
        for (stream, field) in [
            ("w", "Accept: */*"),
            ("s", "Accept: */*"),
            ("plain", "Encke-Ack: written"),
        ] {
            let answer = connection.ask("POST", &path(stream), &[JSON, field], body.as_bytes());
            assert_eq!(answer.status, 204, "{answer:?}");
        }
    }
    encke.kill();
    let encke = Encke::start_in(data.path(), &[]);
    let all: Vec<u64> = (0..20).collect();
    for (stream, said) in [("w", "written"), ("s", "synced"), ("plain", "accepted")] {
        assert_eq!(encke.numbers(stream), all, "{stream}");
        assert_eq!(level(&encke, stream).as_deref(), Some(said));
    }
}
