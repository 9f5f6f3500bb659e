//! What can't be copied says why, and leaves what is there as it is.

use std::net::SocketAddr;
use std::time::Duration;

use encke_import::{BearerToken, Import, ImportError, ImportSettings};
use socket2::{Domain, Socket, Type};

use crate::faulty_server::Manners;
use crate::rig::{FLAWLESS, Rig, eventually, journal, run, token};

fn with_stream(content_type: &str, text: &str) -> Rig {
    let rig = Rig::flawless();
    rig.source.create("s", content_type);
    rig.source.append("s", vec![text.as_bytes().to_vec()]);
    rig
}

#[test]
fn a_destination_with_other_data_is_left_alone() {
    for (content_type, theirs, ours) in [
        ("text/plain", "theirs", "ours"),
        ("text/plain", "ours and more", "ours"),
        ("application/json", "{\"a\": 1}", "{\"a\":1}"),
    ] {
        let rig = with_stream(content_type, ours);
        rig.destination.create("s", content_type);
        rig.destination
            .append("s", vec![theirs.as_bytes().to_vec()]);
        let before = rig.destination.held("s");
        let failure = rig.failure("s");
        assert!(failure.contains("the destination differs"), "{failure}");
        assert_eq!(rig.destination.held("s"), before);
        assert!(!journal(rig.state.path(), "s").exists());
    }
}

#[test]
fn a_destination_of_another_type_or_state_is_left_alone() {
    let rig = with_stream("text/plain", "ours");
    rig.destination.create("s", "application/json");
    let failure = rig.failure("s");
    assert!(
        failure.contains("PUT") && failure.contains("409"),
        "{failure}"
    );

    let rig = with_stream("text/plain", "ours");
    rig.destination.create("s", "text/plain");
    rig.destination.change("s", |held| held.closed = true);
    let failure = rig.failure("s");
    assert!(
        failure.contains("closed there and open at the source"),
        "{failure}"
    );
}

#[test]
fn another_writer_at_the_destination_ends_the_copy() {
    let rig = with_stream("text/plain", "one ");
    assert!(rig.import(&["s"]).complete);
    rig.destination.append("s", vec![b"theirs".to_vec()]);
    let failure = rig.failure("s");
    assert!(
        failure.contains("6 bytes more than the source"),
        "{failure}"
    );
    rig.source.append("s", vec![b"two of them".to_vec()]);
    let failure = rig.failure("s");
    assert!(failure.contains("6 bytes behind its offset"), "{failure}");
    assert_eq!(rig.destination.held("s").unwrap().contents(), b"one theirs");
}

#[test]
fn a_destination_that_lost_what_was_copied_is_named() {
    let rig = with_stream("text/plain", "one ");
    assert!(rig.import(&["s"]).complete);
    rig.destination.change("s", |held| held.records.clear());
    let failure = rig.failure("s");
    assert!(
        failure.contains("the destination does not have offset"),
        "{failure}"
    );
    rig.destination.delete("s");
    let failure = rig.failure("s");
    assert!(
        failure.contains("use another directory for the state"),
        "{failure}"
    );
    assert_eq!(rig.destination.held("s"), None);
}

#[test]
fn a_source_that_has_less_than_was_copied_is_named() {
    let rig = with_stream("text/plain", &"x".repeat(2_500_000));
    // What the stream is, its creation, and one append.
    rig.destination.answer_only(3);
    let mut settings = rig.settings(&["s"]);
    settings.patience = Duration::from_millis(20);
    assert!(!run(settings).complete);
    rig.destination.answer_all(FLAWLESS);
    let copied = rig.destination.held("s");
    assert_eq!(copied.as_ref().unwrap().contents().len(), 1 << 20);
    rig.source
        .change("s", |held| held.records[0][0].truncate(1_000_000));
    let failure = rig.failure("s");
    assert!(failure.contains("differ from the copied ones"), "{failure}");
    assert_eq!(rig.destination.held("s"), copied);
}

#[test]
fn a_source_that_begins_anew_is_named() {
    let rig = with_stream("application/json", "1");
    rig.source.append("s", vec![b"2".to_vec()]);
    assert!(rig.import(&["s"]).complete);
    let copied = rig.destination.held("s");
    rig.source
        .change("s", |held| held.records = vec![vec![b"7".to_vec()]; 3]);
    let failure = rig.failure("s");
    assert!(failure.contains("was that stream made anew"), "{failure}");
    assert_eq!(rig.destination.held("s"), copied);
}

#[test]
fn a_source_whose_offset_does_not_advance_is_named() {
    for (content_type, copied) in [("application/json", "[1]"), ("text/plain", "1")] {
        let rig = with_stream(content_type, "1");
        rig.source.stand_still();
        let failure = rig.failure("s");
        assert!(failure.contains("which is not behind it"), "{failure}");
        let held = rig.destination.held("s").unwrap();
        assert_eq!(held.contents(), copied.as_bytes());
    }
}

#[test]
fn a_server_that_never_answered_is_not_waited_for() {
    let rig = with_stream("text/plain", "one");
    // The port is taken, and nothing listens.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket
        .bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())
        .unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let mut settings = rig.settings(&["s"]);
    settings.tasks[0].source = format!("http://{address}/v1/stream/s");
    let report = run(settings);
    let failure = report.of_streams[0].failure().unwrap();
    assert!(failure.contains("can't be reached"), "{failure}");
    assert_eq!(report.retries, 0);
}

#[test]
fn a_server_whose_first_connections_are_cut_is_waited_for() {
    let rig = with_stream("text/plain", "one");
    rig.source.answer_only(0);
    let settings = rig.settings(&["s"]);
    let import = std::thread::spawn(move || run(settings));
    eventually("requests are cut", || rig.source.requests() >= 2);
    rig.source.answer_all(FLAWLESS);
    let report = import.join().unwrap();
    assert!(report.complete, "{report:?}");
    rig.check("s");
}

#[test]
fn a_run_takes_over_from_one_whose_clock_was_ahead() {
    let rig = with_stream("text/plain", "one");
    assert!(rig.import(&["s"]).complete);
    let producer = format!("encke-import:{}/s", rig.source.url());
    rig.destination.fence("s", &producer, 1 << 52);
    rig.source.append("s", vec![b" two".to_vec()]);
    assert!(rig.import(&["s"]).complete);
    rig.check("s");
}

#[test]
fn a_server_that_stops_answering_is_given_up_after_the_patience() {
    let rig = with_stream("text/plain", "one");
    rig.destination.answer_only(1);
    let mut settings = rig.settings(&["s"]);
    settings.patience = Duration::from_millis(300);
    let report = run(settings);
    let failure = report.of_streams[0].failure().unwrap();
    assert!(
        failure.contains("given up after") && failure.contains("can't be reached"),
        "{failure}"
    );
    assert!(report.retries >= 1);
    rig.destination.answer_all(FLAWLESS);
    assert!(rig.import(&["s"]).complete);
    rig.check("s");
}

#[test]
fn a_token_is_sent_and_read_again_when_it_is_refused() {
    let rig = with_stream("text/plain", "one");
    rig.source.ask_for_token("first");
    let failure = rig.failure("s");
    assert!(failure.contains("got 401"), "{failure}");
    let mut settings = rig.settings(&["s"]);
    settings.source = token("first");
    assert!(run(settings).complete);

    let file = rig.state.path().join("token");
    std::fs::write(&file, "first\n").unwrap();
    let mut settings = rig.settings(&["s"]);
    settings.source.token = Some(BearerToken::File(file.clone()));
    let import = Import::new(settings).unwrap();
    rig.source.ask_for_token("second");
    std::fs::write(&file, "second\n").unwrap();
    let report = import.run(&std::sync::atomic::AtomicBool::new(false));
    assert!(report.complete, "{report:?}");
}

#[test]
fn a_page_of_a_cache_is_not_taken_for_the_end() {
    let rig = with_stream("text/plain", "one");
    rig.source.append("s", vec![b"two".to_vec()]);
    // Its pages say that they are the last.
    rig.source.answer_all(Manners {
        page_records: 1,
        ..FLAWLESS
    });
    rig.source.say_up_to_date();
    let mut settings = rig.settings(&["s"]);
    settings.patience = Duration::from_millis(200);
    let report = run(settings);
    assert!(report.complete, "{report:?}");
    assert!(report.retries >= 1, "it was asked again: {report:?}");
    rig.check("s");
}

#[test]
fn settings_that_can_not_be_used_are_named() {
    let rig = with_stream("text/plain", "one");
    let error = |change: &dyn Fn(&mut ImportSettings)| {
        let mut settings = rig.settings(&["s"]);
        change(&mut settings);
        Import::new(settings).unwrap_err()
    };
    let jobs = error(&|settings| settings.jobs = 0).to_string();
    assert!(jobs.contains("from 1 to 64"), "{jobs}");
    let many = error(&|settings| {
        settings.follow = true;
        settings.tasks = vec![settings.tasks[0].clone(); 1_001];
    });
    assert!(many.to_string().contains("1000 can"), "{many}");
    let token = error(&|settings| settings.source = token("two words")).to_string();
    assert!(token.contains("one word"), "{token}");

    let running = Import::new(rig.settings(&["s"])).unwrap();
    let second = Import::new(rig.settings(&["s"])).unwrap_err();
    assert!(matches!(second, ImportError::State { .. }), "{second}");
    assert!(second.to_string().contains("another import"), "{second}");
    drop(running);
    assert!(Import::new(rig.settings(&["s"])).is_ok());
}
