//! The body of the fuzz target `proxies`, which a test runs over the saved corpus too.

use crate::clients::forwarded;
use crate::clients::forwarded::ForwardedBy;
use crate::networks::Networks;
use crate::proxy;

/// Reads any bytes as what proxies say, in front of a connection and in the fields of a request, and panics when a header is
/// understood otherwise than as a whole, or when a host could leave its place in a URL.
pub fn proxies(input: &[u8]) {
    if let Ok(Some(preface)) = proxy::parse(input) {
        let whole = &input[..preface.bytes];
        assert_eq!(proxy::parse(whole), Ok(Some(preface)));
        for end in 0..whole.len() {
            assert_eq!(proxy::parse(&whole[..end]), Ok(None), "{end}");
        }
    }
    let lines = input.split(|byte| *byte == b'\n');
    let fields: Vec<(&str, &[u8])> = FIELDS.into_iter().zip(lines).collect();
    for by in [ForwardedBy::XForwarded, ForwardedBy::Forwarded] {
        if let Ok(said) = forwarded::read(by, &Networks::loopback(), &fields) {
            let safe = |host: &str| !host.contains(['/', '?', '#', '@', ' ', '\r', '\n']);
            assert!(said.host.is_none_or(safe), "{said:?}");
        }
    }
}

const FIELDS: [&str; 4] = [
    "Forwarded",
    "X-Forwarded-For",
    "X-Forwarded-Proto",
    "X-Forwarded-Host",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_saved_corpus_passes() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/proxies");
        let mut count = 0;
        for entry in std::fs::read_dir(corpus).expect("the corpus is part of the repository") {
            let path = entry.expect("it can be read").path();
            proxies(&std::fs::read(&path).expect("it can be read"));
            count += 1;
        }
        assert!(count >= 10, "only {count} inputs");
    }
}
