use proptest::prelude::*;

use super::*;

fn task(name: &str) -> StreamTask {
    StreamTask {
        name: name.into(),
        source: format!("http://old.example/{name}"),
        query: None,
        destination: format!("http://new.example/v1/stream/{name}"),
    }
}

fn pair(number: u64, behind: u64) -> PositionPair {
    PositionPair {
        source: format!("{number:08}"),
        behind,
        offset: format!("{number:016x}_0000000000000000"),
        records: number + behind,
        bytes: number * 10,
        found: false,
        closed: false,
    }
}

fn pairs(directory: &Path, name: &str) -> Vec<PositionPair> {
    let mut reader = JournalReader::open(directory, name).unwrap().unwrap();
    std::iter::from_fn(|| reader.next().unwrap()).collect()
}

#[test]
fn nothing_is_written_before_the_first_pair() {
    let directory = tempfile::tempdir().unwrap();
    let (_, copied) = StreamJournal::find(directory.path(), &task("a/b")).unwrap();
    assert_eq!(copied, None);
    assert_eq!(directory.path().read_dir().unwrap().count(), 0);
    assert!(
        JournalReader::open(directory.path(), "a/b")
            .unwrap()
            .is_none()
    );
}

#[test]
fn the_part_that_was_copied_last_is_found_again() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = StreamJournal::find(directory.path(), &task("a/b")).unwrap();
    for number in 0..5_000 {
        journal.append(&pair(number, number % 3), true).unwrap();
    }
    let (mut journal, copied) = StreamJournal::find(directory.path(), &task("a/b")).unwrap();
    let (begin, end) = (pair(4_998, 0), pair(4_999, 1));
    assert_eq!(copied, Some(CopiedPart { begin, end }));
    journal.append(&pair(5_000, 0), true).unwrap();
    let all = pairs(directory.path(), "a/b");
    assert_eq!(all.len(), 5_001);
    assert!(
        all.iter()
            .zip(0..)
            .all(|(found, number)| found.source == format!("{number:08}"))
    );
    let reader = JournalReader::open(directory.path(), "a/b")
        .unwrap()
        .unwrap();
    assert!(reader.head.json);
    assert_eq!(reader.head.source, "http://old.example/a/b");
}

#[test]
fn a_journal_of_another_source_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = StreamJournal::find(directory.path(), &task("a")).unwrap();
    journal.append(&pair(1, 0), false).unwrap();
    let mut other = task("a");
    other.source = "http://other.example/a".into();
    let error = StreamJournal::find(directory.path(), &other).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("from http://old.example/a, and this one is from http://other.example/a"),
        "{text}"
    );
}

#[test]
fn a_damaged_line_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = StreamJournal::find(directory.path(), &task("a")).unwrap();
    journal.append(&pair(1, 0), false).unwrap();
    let path = directory.path().join("a.jsonl");
    let mut text = std::fs::read_to_string(&path).unwrap();
    let at = text.len();
    text.push_str("{\"source\":\n");
    std::fs::write(&path, text).unwrap();
    let error = StreamJournal::find(directory.path(), &task("a"))
        .unwrap_err()
        .to_string();
    assert!(error.contains(&format!("damaged at byte {at}")), "{error}");
}

#[test]
fn names_of_files_are_those_of_streams_as_far_as_possible() {
    assert_eq!(file_name("chat/ann b"), "chat%2Fann%20b.jsonl");
    assert_eq!(file_name(".."), "...jsonl");
    let long = "x/".repeat(200);
    assert!(file_name(&long).len() <= 255);
    assert_ne!(file_name(&long), file_name(&format!("{long}y")));
}

proptest! {
    /// Whatever a crash leaves of the file, the journal goes on behind the last whole line.
    #[test]
    fn a_cut_line_is_removed(lines in 0..20_u64, cut in 0..10_000_usize) {
        let directory = tempfile::tempdir().unwrap();
        let (mut journal, _) = StreamJournal::find(directory.path(), &task("a")).unwrap();
        for number in 0..lines {
            journal.append(&pair(number, 0), true).unwrap();
        }
        let path = directory.path().join("a.jsonl");
        if lines > 0 {
            let mut text = std::fs::read(&path).unwrap();
            text.truncate(text.len() - cut % (text.len() + 1));
            std::fs::write(&path, text).unwrap();
        }
        let whole = std::fs::read_to_string(&path).unwrap_or_default();
        let whole = (whole.matches('\n').count() as u64).saturating_sub(1);
        let (mut journal, copied) = StreamJournal::find(directory.path(), &task("a")).unwrap();
        let end = copied.map(|part| part.end);
        prop_assert_eq!(end, whole.checked_sub(1).map(|number| pair(number, 0)));
        journal.append(&pair(77, 0), true).unwrap();
        let all = pairs(directory.path(), "a");
        prop_assert_eq!(all.len() as u64, whole + 1);
        prop_assert_eq!(all.last(), Some(&pair(77, 0)));
    }

    #[test]
    fn names_of_streams_have_names_of_files_of_their_own(a in "[a-c/%~.]{1,6}", b in "[a-c/%~.]{1,6}") {
        prop_assert_eq!(a == b, file_name(&a) == file_name(&b));
    }
}
