//! Anything that may happen to a connection, in any order.

use proptest::prelude::*;

use crate::connection::testing::fuzzing::connection;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_nothing_is_left_and_responses_do_not_depend_on_splits(
        data in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        connection(&data);
    }
}

#[test]
fn the_saved_corpus_passes() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/connection");
    let mut count = 0;
    for entry in std::fs::read_dir(corpus).expect("the corpus is part of the repository") {
        let path = entry.expect("it can be read").path();
        connection(&std::fs::read(&path).expect("it can be read"));
        count += 1;
    }
    assert!(count >= 10, "only {count} inputs");
}
