//! Every order in which threads can run, within loom's bounds, for properties that other tests cannot prove:
//! no wake-up is lost, no item is lost, no item is handed out twice.
//!
//! ```sh
//! RUSTFLAGS="--cfg encke_model" cargo test --release -p encke-mailbox --test model --target-dir target/model
//! ```
#![allow(unexpected_cfgs)]
#![cfg(encke_model)]

use encke_mailbox::{Bounds, Lane, NoReply, SendErrorKind, mailbox, mailbox_with_waker, reply};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// Every schedule with at most three preemptions: enough for all that has ever been found in such code, and it ends.
fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

fn room_for(items_max: usize) -> Bounds {
    Bounds {
        items_max,
        bytes_max: 100,
    }
}

#[test]
fn a_receiver_never_sleeps_through_an_item_or_the_end() {
    check(|| {
        let (tx, mut rx) = mailbox("model", room_for(8));
        let senders: Vec<_> = [(Lane::Data, 1), (Lane::Control, 2)]
            .into_iter()
            .map(|(lane, item)| {
                let tx = tx.clone();
                thread::spawn(move || tx.try_send(lane, item, 1).unwrap())
            })
            .collect();
        drop(tx);
        let mut all = Vec::new();
        let mut batch = Vec::new();
        while rx.recv_batch(&mut batch).is_ok() {
            all.append(&mut batch);
        }
        all.sort_unstable();
        assert_eq!(all, [1, 2]);
        senders
            .into_iter()
            .for_each(|sender| sender.join().unwrap());
    });
}

#[test]
fn one_by_one_nothing_is_left_and_control_is_never_behind() {
    check(|| {
        let (tx, mut rx) = mailbox("model", room_for(8));
        let sender = thread::spawn(move || {
            tx.try_send(Lane::Data, 1, 1).unwrap();
            tx.try_send(Lane::Control, 2, 1).unwrap();
            tx.try_send(Lane::Data, 3, 1).unwrap();
        });
        let mut all = Vec::new();
        while let Ok(item) = rx.recv() {
            all.push(item);
        }
        assert!(
            matches!(all.as_slice(), [1, 2, 3] | [2, 1, 3] | [1, 3, 2]),
            "{all:?}"
        );
        sender.join().unwrap();
    });
}

#[test]
fn senders_that_wait_are_let_in_one_after_another() {
    check(|| {
        let (tx, mut rx) = mailbox("model", room_for(1));
        let senders: Vec<_> = [[1, 2], [3, 4]]
            .into_iter()
            .map(|items| {
                let tx = tx.clone();
                thread::spawn(move || items.map(|item| tx.send(Lane::Data, item, 1).unwrap()))
            })
            .collect();
        drop(tx);
        let mut all = Vec::new();
        while let Ok(item) = rx.recv() {
            all.push(item);
        }
        assert_eq!(all.len(), 4);
        for [first, second] in [[1, 2], [3, 4]] {
            let at = |item| all.iter().position(|&i| i == item).unwrap();
            assert!(at(first) < at(second));
        }
        for sender in senders {
            sender.join().unwrap();
        }
    });
}

#[test]
fn a_dropped_receiver_wakes_all_senders() {
    check(|| {
        let (tx, mut rx) = mailbox("model", room_for(1));
        let item = Arc::new(());
        let senders: Vec<_> = (0..2)
            .map(|_| {
                let (tx, item) = (tx.clone(), item.clone());
                thread::spawn(move || tx.send(Lane::Data, item, 1).is_ok())
            })
            .collect();
        let taken = rx.try_recv().is_some();
        drop(rx);
        let sent = senders
            .into_iter()
            .map(|sender| sender.join().unwrap())
            .filter(|&sent| sent);
        assert!(sent.count() >= usize::from(taken));
        drop(tx);
        assert_eq!(Arc::strong_count(&item), 1, "nothing is left behind");
    });
}

#[test]
fn a_full_lane_admits_no_item_until_one_is_taken() {
    check(|| {
        let (tx, rx) = mailbox("model", room_for(1));
        tx.try_send(Lane::Data, 0, 1).unwrap();
        let senders: Vec<_> = (1..3)
            .map(|item| {
                let tx = tx.clone();
                thread::spawn(move || tx.send(Lane::Data, item, 1).unwrap_err().kind)
            })
            .collect();
        drop(rx);
        for sender in senders {
            assert_eq!(sender.join().unwrap(), SendErrorKind::Closed);
        }
    });
}

#[test]
fn a_receiver_that_sleeps_elsewhere_is_woken() {
    check(|| {
        let bell = Arc::new((Mutex::new(false), Condvar::new()));
        let (tx, mut rx) = {
            let bell = bell.clone();
            mailbox_with_waker("model", room_for(1), move || {
                *bell.0.lock().unwrap() = true;
                bell.1.notify_one();
            })
        };
        let senders: Vec<_> = (0..2)
            .map(|item| {
                let tx = tx.clone();
                thread::spawn(move || tx.send(Lane::Data, item, 1).unwrap())
            })
            .collect();
        let mut batch = Vec::new();
        let mut count = 0;
        while count < 2 {
            let mut rung = bell.0.lock().unwrap();
            while !*rung {
                rung = bell.1.wait(rung).unwrap();
            }
            *rung = false;
            drop(rung);
            count += rx.drain(&mut batch);
            batch.clear();
        }
        for sender in senders {
            sender.join().unwrap();
        }
        // Kept until here: the end wakes the receiver too, and would hide that an item did not.
        drop(tx);
    });
}

#[test]
fn a_reply_arrives_in_either_order() {
    check(|| {
        let (to, from) = reply();
        let answerer = thread::spawn(move || to.send(7));
        assert_eq!(from.wait(), Ok(7));
        answerer.join().unwrap().unwrap();
    });
}

#[test]
fn a_dropped_request_wakes_its_sender() {
    check(|| {
        let (to, from) = reply::<u8>();
        let answerer = thread::spawn(move || drop(to));
        assert_eq!(from.wait(), Err(NoReply));
        answerer.join().unwrap();
    });
}

#[test]
fn an_answer_that_comes_too_late_leaves_nothing_behind() {
    check(|| {
        let answer = Arc::new(());
        let (to, from) = reply();
        let answerer = {
            let answer = answer.clone();
            thread::spawn(move || to.send(answer).is_ok())
        };
        drop(from);
        // Accepted or returned: either way the answer is dropped.
        answerer.join().unwrap();
        assert_eq!(Arc::strong_count(&answer), 1);
    });
}
