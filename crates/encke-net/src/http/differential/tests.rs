use std::collections::BTreeSet;
use std::sync::LazyLock;

use proptest::prelude::*;

use super::differences::DIFFERENCES;
use super::*;

/// One line of the cases: which difference it shows, if any, and the bytes.
struct Case {
    line: usize,
    shows: String,
    input: Vec<u8>,
}

const CASES: &str = include_str!("../../../tests/http/cases.txt");

fn cases() -> Vec<Case> {
    let lines = CASES.lines().zip(1..);
    lines
        .filter(|(text, _)| !text.is_empty() && !text.starts_with('#'))
        .map(|(text, line)| {
            let (shows, bytes) = text.split_once("| ").expect("a bar, and a space behind it");
            Case {
                line,
                shows: shows.trim_end().to_owned(),
                input: unescape(bytes),
            }
        })
        .collect()
}

/// The bytes that a case's text stands for.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        if let Some(inner) = rest.strip_prefix('{')
            && let Some((inner, behind)) = inner.split_once('}')
            && let Some((part, count)) = inner.rsplit_once('*')
            && let Ok(count) = count.parse()
        {
            bytes.extend_from_slice(&unescape(part).repeat(count));
            rest = behind;
            continue;
        }
        let length = match (next, rest.as_bytes().get(1)) {
            ('\\', Some(b'x')) => {
                bytes.push(u8::from_str_radix(&rest[2..4], 16).expect("two digits"));
                4
            }
            ('\\', Some(letter)) => {
                bytes.push(match letter {
                    b'r' => b'\r',
                    b'n' => b'\n',
                    b't' => b'\t',
                    b'\\' => b'\\',
                    other => panic!("\\{} in {text}", char::from(*other)),
                });
                2
            }
            (plain, _) => {
                assert!((' '..='~').contains(&plain), "{text}");
                bytes.push(plain as u8);
                1
            }
        };
        rest = &rest[length..];
    }
    bytes
}

#[test]
fn every_case_is_as_the_table_says() {
    let mut wrong = Vec::new();
    let mut shown = BTreeSet::new();
    let cases = cases();
    for case in &cases {
        let mut seen = BTreeSet::new();
        for seed in 0..SEEDS {
            match compare(&case.input, seed) {
                Ok(None) => {}
                Ok(Some(difference)) => drop(seen.insert(difference.name)),
                Err(how) => wrong.push(format!("line {}: {how}", case.line)),
            }
        }
        let expected: BTreeSet<_> = [case.shows.as_str()]
            .into_iter()
            .filter(|s| *s != "same")
            .collect();
        if seen != expected {
            wrong.push(format!(
                "line {} shows {seen:?} instead of {expected:?}",
                case.line
            ));
        }
        shown.extend(seen);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(cases.len() > 500, "{} cases", cases.len());
    let listed: BTreeSet<_> = DIFFERENCES
        .iter()
        .map(|difference| difference.name)
        .collect();
    assert_eq!(shown, listed, "every difference has a case that shows it");
    for difference in DIFFERENCES {
        assert!(difference.section.contains("section"), "{difference:?}");
        assert!(difference.why.len() > 40, "{difference:?}");
    }
}

#[test]
fn the_saved_corpus_passes() {
    let mut count = 0;
    for corpus in ["request_hyper", "request_head"] {
        let folder = format!("{}/../../fuzz/corpus/{corpus}", env!("CARGO_MANIFEST_DIR"));
        for entry in std::fs::read_dir(folder).expect("the corpus is part of the repository") {
            let path = entry.expect("it can be read").path();
            eprintln!("{}", path.display());
            request_hyper(&std::fs::read(&path).expect("it can be read"));
            count += 1;
        }
    }
    assert!(count >= 200, "only {count} inputs");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Cases behind each other, with a few bytes changed, differ in no other way than those that are known.
    #[test]
    fn what_comes_of_the_cases_is_read_alike(
        picks in proptest::collection::vec(any::<proptest::sample::Index>(), 1..4),
        changes in proptest::collection::vec(
            (any::<proptest::sample::Index>(), 0..4_u8, prop_oneof![any::<u8>(), proptest::sample::select(TELLING)]),
            0..4,
        ),
        seed in 0..SEEDS,
    ) {
        static SHORT: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
            let inputs = cases().into_iter().map(|case| case.input);
            inputs.filter(|input| (1..500).contains(&input.len())).collect()
        });
        let mut input: Vec<u8> = Vec::new();
        for pick in picks {
            input.extend_from_slice(&SHORT[pick.index(SHORT.len())]);
        }
        for (index, change, byte) in changes {
            let at = index.index(input.len().max(1));
            match change {
                0 if at < input.len() => input[at] = byte,
                1 if at < input.len() => drop(input.remove(at)),
                2 if at < input.len() => input.truncate(at),
                _ => input.insert(at, byte),
            }
        }
        if let Err(how) = compare(&input, seed) {
            prop_assert!(false, "{how}");
        }
    }
}

/// Ways to cut an input into pieces: at once, byte by byte, and six at random.
const SEEDS: u8 = 8;

/// Bytes that mean something to a parser.
const TELLING: &[u8] = b"\r\n\t \0:;,/?#*@=%0159aAfF\x7f\x80";
