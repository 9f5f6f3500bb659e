//! The gauge, read while items move.
#![allow(unexpected_cfgs)]
#![cfg(not(encke_model))]

use std::thread;

use encke_mailbox::{Bounds, Lane, mailbox};

#[test]
fn a_concurrent_gauge_never_shows_more_than_the_bounds() {
    const ITEMS: u64 = 6_000;
    let bounds = Bounds {
        items_max: 16,
        bytes_max: 160,
    };
    let (tx, mut rx) = mailbox("test", bounds);
    let sender = tx.clone();
    let sending = thread::spawn(move || {
        for n in 0..ITEMS {
            sender.send(Lane::Data, n, 10).unwrap();
        }
    });
    let receiving = thread::spawn(move || {
        let mut batch = Vec::new();
        while let Ok(taken) = rx.recv_batch(&mut batch) {
            rx.handled(taken);
            batch.clear();
        }
    });
    // More readers than processors, so that some are interrupted in the middle of a reading.
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !sending.is_finished() {
                    let gauge = tx.gauge().data;
                    // As many again gather while a batch is in hand.
                    assert!(gauge.depth() <= 32 && gauge.bytes() <= 320, "{gauge:?}");
                }
            });
        }
    });
    sending.join().unwrap();
    drop(tx);
    receiving.join().unwrap();
}
