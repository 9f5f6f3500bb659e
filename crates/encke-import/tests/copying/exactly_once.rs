//! Whatever fails, and wherever a run ends, the destination has each message once and in order.

use std::time::Duration;

use proptest::prelude::*;

use crate::faulty_server::Manners;
use crate::rig::{FLAWLESS, Rig, journal, run};

/// What ends a run, and what happens to its journal before the next.
#[derive(Clone, Debug)]
struct Interruption {
    /// The server that answers no more, after so many requests.
    of_source: bool,
    requests: u64,
    journal: Damage,
}

#[derive(Clone, Debug)]
enum Damage {
    None,
    /// So many bytes at its end are missing.
    Cut(usize),
    Lost,
}

#[derive(Clone, Debug)]
struct Case {
    content_type: &'static str,
    records: Vec<Vec<Datum>>,
    closed: bool,
    ttl: Option<String>,
    source: Manners,
    destination: Manners,
    interruptions: Vec<Interruption>,
}

/// A message of JSON, or a piece of other data. Large ones are short when a case is printed.
#[derive(Clone, Debug)]
enum Datum {
    Text(String),
    Bytes(Vec<u8>),
    Arrays,
    LongText(usize),
    LongBytes(usize),
}

impl Datum {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Datum::Text(text) => serde_json::json!({ "text": text }).to_string().into_bytes(),
            Datum::Bytes(bytes) => bytes.clone(),
            Datum::Arrays => b"[[1, 2], []]".to_vec(),
            Datum::LongText(size) => format!("\"{}\"", "x".repeat(*size)).into_bytes(),
            Datum::LongBytes(size) => (0..*size).map(|at| (at % 251) as u8).collect(),
        }
    }
}

fn record(content_type: &str) -> BoxedStrategy<Vec<Datum>> {
    if content_type.starts_with("application/json") {
        let message = prop_oneof![
            6 => "[a-z\\[\\],\"]{0,12}".prop_map(Datum::Text),
            2 => Just(Datum::Arrays),
            1 => (300_000..700_000_usize).prop_map(Datum::LongText),
        ];
        prop::collection::vec(message, 1..4).boxed()
    } else {
        let piece = prop_oneof![
            6 => prop::collection::vec(any::<u8>(), 1..20).prop_map(Datum::Bytes),
            1 => (1_000_000..2_500_000_usize).prop_map(Datum::LongBytes),
        ];
        piece.prop_map(|piece| vec![piece]).boxed()
    }
}

fn manners() -> impl Strategy<Value = Manners> {
    (any::<u64>(), 0..12_u64, 1..6_usize).prop_map(|(seed, faults_of_100, page_records)| Manners {
        seed,
        faults_of_100,
        page_records,
    })
}

fn interruption() -> impl Strategy<Value = Interruption> {
    let damage = prop_oneof![
        3 => Just(Damage::None),
        2 => (1..300_usize).prop_map(Damage::Cut),
        1 => Just(Damage::Lost),
    ];
    (any::<bool>(), 1..20_u64, damage).prop_map(|(of_source, requests, journal)| Interruption {
        of_source,
        requests,
        journal,
    })
}

fn case() -> impl Strategy<Value = Case> {
    let types = [
        "application/json",
        "application/json; charset=utf-8",
        "text/plain",
        "application/x-any",
    ];
    prop::sample::select(types.to_vec()).prop_flat_map(|content_type| {
        (
            prop::collection::vec(record(content_type), 0..25),
            any::<bool>(),
            prop::option::of((1..1_000_u32).prop_map(|ttl| ttl.to_string())),
            manners(),
            manners(),
            prop::collection::vec(interruption(), 0..4),
        )
            .prop_map(
                move |(records, closed, ttl, source, destination, interruptions)| Case {
                    content_type,
                    records,
                    closed,
                    ttl,
                    source,
                    destination,
                    interruptions,
                },
            )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 40, ..ProptestConfig::default() })]

    #[test]
    fn each_message_is_copied_once_and_in_order(case in case()) {
        let rig = Rig::start(case.source, case.destination);
        rig.source.create("s", case.content_type);
        rig.source.change("s", |held| {
            let record = |record: &Vec<Datum>| record.iter().map(Datum::bytes).collect();
            held.records = case.records.iter().map(record).collect();
            held.ttl.clone_from(&case.ttl);
            held.closed = case.closed;
        });
        let mut settings = rig.settings(&["s"]);
        // Two failures after each other end a run.
        settings.patience = Duration::from_millis(20);
        for interruption in &case.interruptions {
            let ended = match interruption.of_source {
                true => &rig.source,
                false => &rig.destination,
            };
            ended.answer_only(interruption.requests);
            run(settings.clone());
            rig.source.answer_all(case.source);
            rig.destination.answer_all(case.destination);
            let path = journal(rig.state.path(), "s");
            match (&interruption.journal, std::fs::read(&path)) {
                (Damage::Cut(bytes), Ok(mut text)) => {
                    text.truncate(text.len().saturating_sub(*bytes));
                    std::fs::write(&path, text).unwrap();
                }
                (Damage::Lost, Ok(_)) => std::fs::remove_file(&path).unwrap(),
                _ => {}
            }
        }
        settings.patience = Duration::from_secs(60);
        settings.verify = true;
        let report = run(settings);
        prop_assert!(report.complete, "{:?}", report);
        rig.check("s");
    }
}

#[test]
fn a_second_run_takes_only_what_is_new() {
    let rig = Rig::flawless();
    rig.source.create("s", "application/json");
    let record = |number: u32| vec![number.to_string().into_bytes()];
    (0..40).for_each(|number| rig.source.append("s", record(number)));
    let report = rig.import(&["s"]);
    assert!(report.complete, "{report:?}");
    assert_eq!((report.records, report.records_copied), (40, 40));
    (40..50).for_each(|number| rig.source.append("s", record(number)));
    let report = rig.import(&["s"]);
    assert_eq!((report.records, report.records_copied), (50, 10));
    rig.check("s");
    // Nothing is left to do: what both are, the page that was copied last, and one page of nothing.
    let before = (rig.source.requests(), rig.destination.requests());
    let report = rig.import(&["s"]);
    assert_eq!((report.records, report.records_copied), (50, 0));
    let asked = (
        rig.source.requests() - before.0,
        rig.destination.requests() - before.1,
    );
    assert!(asked.0 <= 4 && asked.1 <= 6, "{asked:?}");
}

#[test]
fn a_map_has_each_offset_at_which_a_page_ended() {
    let rig = Rig::flawless();
    rig.source.create("s", "text/plain");
    for number in 0..30 {
        rig.source
            .append("s", vec![format!("line {number}\n").into_bytes()]);
        rig.import(&["s"]);
    }
    let pairs = crate::rig::map(rig.state.path(), "s");
    let offsets: Vec<String> = pairs.into_iter().map(|(source, _)| source).collect();
    let given = rig.source.held("s").unwrap().offsets();
    assert_eq!(offsets[offsets.len() - 30..], given[1..]);
    rig.check("s");
}

#[test]
fn a_run_with_a_lost_state_compares_and_goes_on() {
    let rig = Rig::flawless();
    for (name, content_type) in [("j", "application/json"), ("t", "text/plain")] {
        rig.source.create(name, content_type);
        (0..30_u32).for_each(|number| {
            rig.source
                .append(name, vec![number.to_string().into_bytes()]);
        });
    }
    assert!(rig.import(&["j", "t"]).complete);
    for name in ["j", "t"] {
        std::fs::remove_file(journal(rig.state.path(), name)).unwrap();
        rig.source.append(name, vec![b"77".to_vec()]);
    }
    let report = rig.import(&["j", "t"]);
    assert!(report.complete, "{report:?}");
    assert_eq!(report.bytes_copied, 4);
    rig.check("j");
    rig.check("t");
}

#[test]
fn many_streams_are_copied_at_a_time_and_one_failure_is_one_failure() {
    let rig = Rig::start(FLAWLESS, FLAWLESS);
    let names: Vec<String> = (0..40).map(|number| format!("s{number}")).collect();
    for name in &names {
        rig.source.create(name, "text/plain");
        rig.source.append(name, vec![name.clone().into_bytes()]);
    }
    let mut all: Vec<&str> = names.iter().map(String::as_str).collect();
    all.insert(7, "missing");
    let report = rig.import(&all);
    assert_eq!(
        (report.streams, report.failed, report.complete),
        (41, 1, false)
    );
    let failure = report.of_streams[7].failure().unwrap();
    assert!(
        failure.contains("the source has no such stream"),
        "{failure}"
    );
    assert_eq!(rig.destination.held("missing"), None);
    names.iter().for_each(|name| rig.check(name));
}
