//! Runs the fuzz targets over their saved corpus, and over random bytes.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.

use encke_log::fuzzing::log_recovery;
use encke_log::simulated::Random;
use std::path::Path;

#[test]
fn the_saved_corpus_of_log_recovery_holds() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/log_recovery");
    let mut inputs = 0;
    for entry in std::fs::read_dir(&corpus).unwrap() {
        let path = entry.unwrap().path();
        let data = std::fs::read(&path).unwrap();
        // The name is printed when the body panics.
        println!("{}", path.display());
        log_recovery(&data);
        inputs += 1;
    }
    assert!(inputs > 10, "there is no corpus in {}", corpus.display());
}

#[test]
fn noise_in_every_mode_holds() {
    let mut random = Random::new(7);
    for round in 0..3000_u32 {
        let mut data = vec![round as u8];
        let bytes = random.below(2000);
        data.extend((0..bytes).map(|_| {
            if random.below(3) == 0 {
                random.next() as u8
            } else {
                0
            }
        }));
        log_recovery(&data);
    }
}
