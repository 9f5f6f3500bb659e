//! A stream that is deleted and created again under its name is another stream: no position of the old one leads into it.

use crate::multi_stream::{MultiStream, append_all, ending, number};
use crate::rig::{Encke, JSON, data_dir, path};

fn delete(encke: &Encke, stream: &str) {
    let deleted = encke.ask("DELETE", &path(stream), &[], b"");
    assert_eq!(deleted.status, 204, "{deleted:?}");
}

fn recreate(encke: &Encke, stream: &str) {
    delete(encke, stream);
    encke.create(stream);
}

/// The status and code of a request that resumes at an id.
fn resumed(encke: &Encke, target: &str, id: &str) -> (u16, String) {
    let answer = encke.ask("GET", target, &[&format!("Last-Event-ID: {id}")], b"");
    (answer.status, answer.error_code())
}

#[test]
fn an_id_of_several_streams_does_not_lead_into_it() {
    for flags in [&[][..], &["--logs", "3"], &["--ack", "accepted"]] {
        let data = data_dir();
        let mut encke = Encke::start_in(data.path(), flags);
        let streams = ["r", "s", "t/1"];
        streams.iter().for_each(|stream| encke.create(stream));
        let alone = "stream=r@-1";
        let several = "stream=r@-1&stream=s@-1&stream=t/**@-1";
        let appended = append_all(&encke, &streams, 0..9);
        let alone_had = appended.iter().filter(|(stream, _)| stream == "r").count();
        let mut first = MultiStream::open(&encke, alone, None);
        first.numbers(alone_had);
        let mut both = MultiStream::open(&encke, several, None);
        both.numbers(appended.len());
        let before = both.id.clone();
        recreate(&encke, "r");
        // A live subscriber learns of the end, and goes on behind the beginning of the new stream.
        assert_eq!(ending(&both.event().unwrap()), ("r", "deleted"));
        encke.connect().append("r", 100);
        encke.connect().append("s", 101);
        assert_eq!(number(&both.event().unwrap()), ("s".into(), 101));
        let behind = both.id.clone();
        encke.connect().append("r", 102);
        for round in 0..2 {
            let (status, code) = resumed(&encke, &format!("/v1/events?{alone}"), &first.id);
            assert_eq!((status, &*code), (410, "before_start"), "{flags:?}");
            for id in [&before, &behind] {
                let mut again = MultiStream::open(&encke, several, Some(id));
                assert_eq!(ending(&again.event().unwrap()), ("r", "deleted"));
                if id == &before {
                    assert_eq!(number(&again.event().unwrap()), ("s".into(), 101));
                }
                // Only what comes next of the others: the records of the new stream are not among it.
                encke.connect().append("t/1", 103 + round);
                let of_the_other = |again: &mut MultiStream| {
                    std::iter::from_fn(|| again.event())
                        .map(|event| number(&event))
                        .inspect(|(stream, _)| assert_ne!(stream, "r"))
                        .find(|record| *record == ("t/1".to_owned(), 103 + round))
                };
                assert!(of_the_other(&mut again).is_some());
            }
            // Asked for by its name alone it is all there.
            let mut new = MultiStream::open(&encke, alone, None);
            assert_eq!(new.numbers(2), [("r".into(), 100), ("r".into(), 102)]);
            if round == 0 {
                assert_eq!(encke.terminate().code, Some(0));
                encke = Encke::start_in(data.path(), flags);
            }
        }
    }
}

#[test]
fn an_offset_does_not_lead_into_it() {
    let encke = Encke::start(&[]);
    encke.create("r");
    let offset = encke.connect().append("r", 1);
    recreate(&encke, "r");
    encke.connect().append("r", 2);
    let stream = path("r");
    for target in [
        format!("{stream}?offset={offset}"),
        format!("{stream}?offset={offset}&live=sse"),
        format!("{stream}?offset={offset}&live=long-poll"),
        format!("/v1/events?stream=r@{offset}"),
    ] {
        let answer = encke.ask("GET", &target, &[], b"");
        let refused = (answer.status, answer.error_code());
        assert_eq!(refused, (410, "before_start".into()), "{target}");
    }
    let (status, code) = resumed(&encke, &format!("{stream}?offset=-1&live=sse"), &offset);
    assert_eq!((status, &*code), (410, "before_start"));
}

#[test]
fn a_pattern_reports_the_end_before_the_records_of_the_new_stream() {
    let data = data_dir();
    let mut encke = Encke::start_in(data.path(), &[]);
    encke.create("a/r");
    let mut first = MultiStream::open(&encke, "stream=a/**", None);
    append_all(&encke, &["a/r"], 0..1);
    first.numbers(1);
    let id = first.id.clone();
    recreate(&encke, "a/r");
    let body = encke.ask("POST", &path("a/r"), &[JSON], b"[100]");
    assert_eq!(body.status, 204);
    for round in 0..2 {
        let mut again = MultiStream::open(&encke, "stream=a/**", Some(&id));
        assert_eq!(ending(&again.event().unwrap()), ("a/r", "deleted"));
        assert_eq!(number(&again.event().unwrap()), ("a/r".into(), 100));
        if round == 0 {
            assert_eq!(encke.terminate().code, Some(0));
            encke = Encke::start_in(data.path(), &[]);
        }
    }
}
