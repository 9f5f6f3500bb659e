//! The promises of the mailbox, one per test.
#![allow(unexpected_cfgs)]
#![cfg(not(encke_model))]

mod asleep;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use asleep::Task;
use encke_mailbox::{
    Bounds, Closed, Lane, Receiver, SendErrorKind, Sender, mailbox, mailbox_with_waker,
};

const SOON: Duration = Duration::from_millis(50);
const NEVER: Duration = Duration::from_secs(60);

fn small<T: Send>(items_max: usize, bytes_max: usize) -> (Sender<T>, Receiver<T>) {
    mailbox(
        "test",
        Bounds {
            items_max,
            bytes_max,
        },
    )
}

/// Waits until `done` says so, and fails when it never does.
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < NEVER, "{what} never happened");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn control_overtakes_data_in_batches() {
    let (tx, mut rx) = small(10, 100);
    tx.try_send(Lane::Data, 1, 1).unwrap();
    tx.try_send(Lane::Data, 2, 1).unwrap();
    assert!(!rx.control_pending());
    tx.try_send(Lane::Control, 3, 1).unwrap();
    assert!(rx.control_pending());
    let mut batch = Vec::new();
    assert_eq!(rx.drain(&mut batch), 3);
    assert_eq!(batch, [3, 1, 2]);
    assert!(!rx.control_pending());
    assert_eq!(rx.drain(&mut batch), 0);
}

#[test]
fn control_overtakes_a_backlog_that_is_already_in_hand() {
    let (tx, mut rx) = small(1_000, 10_000);
    for n in 0..1_000 {
        tx.try_send(Lane::Data, n, 1).unwrap();
    }
    assert_eq!(rx.recv(), Ok(0));
    tx.try_send(Lane::Control, -1, 1).unwrap();
    tx.try_send(Lane::Control, -2, 1).unwrap();
    assert_eq!(rx.recv(), Ok(-1));
    assert_eq!(rx.recv(), Ok(-2));
    assert_eq!(rx.recv(), Ok(1));
}

#[test]
fn both_bounds_hold_and_the_refusal_says_which() {
    let (tx, mut rx) = small(2, 10);
    tx.try_send(Lane::Data, "a", 4).unwrap();
    let refused = tx.try_send(Lane::Data, "b", 7).unwrap_err();
    assert_eq!(refused.item, "b");
    assert_eq!(
        refused.kind,
        SendErrorKind::Full {
            items: 1,
            bytes: 4,
            items_max: 2,
            bytes_max: 10
        }
    );
    tx.try_send(Lane::Data, "c", 6).unwrap();
    assert!(matches!(
        tx.try_send(Lane::Data, "d", 0).unwrap_err().kind,
        SendErrorKind::Full { items: 2, .. }
    ));
    assert_eq!(
        tx.try_send(Lane::Data, "e", 11).unwrap_err().kind,
        SendErrorKind::TooLarge {
            bytes: 11,
            bytes_max: 10
        }
    );
    let mut batch = Vec::new();
    rx.drain(&mut batch);
    assert_eq!(batch, ["a", "c"]);
    assert_eq!(rx.gauge().data.refused, 3);
}

#[test]
fn what_is_drained_still_counts_but_does_not_keep_the_next_batch_out() {
    let (tx, mut rx) = small(2, 100);
    tx.try_send(Lane::Data, 1, 10).unwrap();
    tx.try_send(Lane::Data, 2, 20).unwrap();
    let mut batch = Vec::new();
    rx.drain(&mut batch);
    let gauge = rx.gauge().data;
    assert_eq!((gauge.depth(), gauge.queued, gauge.in_hand), (2, 0, 2));
    assert_eq!(gauge.bytes(), 30);
    // The next gathers meanwhile.
    tx.try_send(Lane::Data, 3, 1).unwrap();
    tx.try_send(Lane::Data, 4, 1).unwrap();
    assert_eq!(tx.gauge().depth(), 4);
    rx.handled(1);
    assert_eq!(rx.gauge().data.in_hand_bytes, 20);
    batch.clear();
    rx.drain(&mut batch);
    assert_eq!(batch, [3, 4]);
    assert_eq!(rx.gauge().depth(), 2);
    batch.clear();
    rx.drain(&mut batch);
    let gauge = rx.gauge().data;
    assert_eq!(
        (gauge.depth(), gauge.bytes(), gauge.oldest_age),
        (0, 0, None)
    );
    assert_eq!(
        (gauge.accepted, gauge.handled, gauge.depth_high_water),
        (4, 4, 4)
    );
}

#[test]
fn a_receiver_that_hoards_takes_room_from_senders_until_it_has_handled() {
    let (tx, mut rx) = small(2, 100);
    let mut hoard = Vec::new();
    for n in 0..4 {
        tx.try_send(Lane::Data, n, 1).unwrap();
        if n % 2 == 1 {
            rx.drain(&mut hoard);
        }
    }
    assert_eq!(hoard, [0, 1, 2, 3]);
    // Twice the bound is in hand, and that is all there will ever be.
    assert!(matches!(
        tx.try_send(Lane::Data, 4, 1).unwrap_err().kind,
        SendErrorKind::Full { .. }
    ));
    assert_eq!(
        rx.recv_batch(&mut hoard),
        Ok(0),
        "no sleep on unhandled work"
    );
    rx.handled(2);
    hoard.drain(..2);
    assert!(matches!(
        tx.try_send(Lane::Data, 4, 1).unwrap_err().kind,
        SendErrorKind::Full { .. }
    ));
    rx.handled(1);
    hoard.remove(0);
    tx.try_send(Lane::Data, 4, 1).unwrap();
    rx.drain(&mut hoard);
    assert_eq!(hoard, [3, 4]);
    assert_eq!(rx.gauge().depth(), 2);
}

#[test]
fn send_waits_for_room_first_come_first_served() {
    let (tx, mut rx) = small(1, 100);
    tx.try_send(Lane::Data, 0, 1).unwrap();
    let mut threads = Vec::new();
    for n in 1..=5 {
        let tx2 = tx.clone();
        threads.push(thread::spawn(move || tx2.send(Lane::Data, n, 1)));
        eventually("waiting", || tx.gauge().data.waiting == n);
    }
    for n in 0..=5 {
        assert_eq!(rx.recv(), Ok(n));
        assert!(rx.gauge().data.queued <= 1);
    }
    for thread in threads {
        thread.join().unwrap().unwrap();
    }
}

#[test]
fn waiting_senders_are_not_overtaken() {
    let (tx, mut rx) = small(10, 10);
    tx.try_send(Lane::Data, 0, 5).unwrap();
    let large = {
        let tx = tx.clone();
        thread::spawn(move || tx.send(Lane::Data, 1, 6))
    };
    eventually("waiting", || tx.gauge().data.waiting == 1);
    // There is room for a small one, but the large one was first.
    assert!(matches!(
        tx.try_send(Lane::Data, 2, 1).unwrap_err().kind,
        SendErrorKind::Full { .. }
    ));
    let mut batch = Vec::new();
    rx.drain(&mut batch);
    large.join().unwrap().unwrap();
    tx.try_send(Lane::Data, 2, 1).unwrap();
    rx.drain(&mut batch);
    assert_eq!(batch, [0, 1, 2]);
}

#[test]
fn when_the_receiver_goes_everyone_hears_it_and_gets_the_item_back() {
    let (tx, rx) = small(1, 10);
    let dropped = Arc::new(());
    tx.try_send(Lane::Data, dropped.clone(), 1).unwrap();
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (tx, item) = (tx.clone(), dropped.clone());
            thread::spawn(move || tx.send(Lane::Data, item, 1).unwrap_err().kind)
        })
        .collect();
    eventually("waiting", || tx.gauge().data.waiting == 3);
    drop(rx);
    for thread in threads {
        assert_eq!(thread.join().unwrap(), SendErrorKind::Closed);
    }
    assert_eq!(
        tx.try_send(Lane::Data, dropped.clone(), 1)
            .unwrap_err()
            .kind,
        SendErrorKind::Closed
    );
    assert!(tx.is_closed());
    assert_eq!(Arc::strong_count(&dropped), 1, "nothing is left behind");
    assert_eq!(tx.gauge().depth(), 0);
}

#[test]
fn when_all_senders_are_gone_the_rest_is_handed_out_first() {
    let (tx, mut rx) = small(10, 10);
    tx.try_send(Lane::Data, 1, 1).unwrap();
    drop(tx.clone());
    assert!(!rx.is_closed());
    drop(tx);
    assert!(rx.is_closed());
    let mut batch = Vec::new();
    assert_eq!(rx.recv_batch(&mut batch), Ok(1));
    batch.clear();
    assert_eq!(rx.recv_batch(&mut batch), Err(Closed));
    assert_eq!(rx.recv(), Err(Closed));
}

#[test]
fn a_sleeping_receiver_wakes_for_an_item_for_time_and_for_the_end() {
    let (tx, mut rx) = small(10, 10);
    let mut batch = Vec::new();
    assert_eq!(rx.recv_batch_timeout(&mut batch, SOON), Ok(0));
    assert_eq!(rx.recv_timeout(SOON), Ok(None));
    let receiver = Task::current();
    let (again, woken) = std::sync::mpsc::channel();
    let sender = thread::spawn(move || {
        receiver.wait_until_asleep();
        tx.try_send(Lane::Data, 1, 1).unwrap();
        woken.recv().unwrap();
        receiver.wait_until_asleep();
        drop(tx);
    });
    assert_eq!(rx.recv_batch(&mut batch), Ok(1));
    batch.clear();
    again.send(()).unwrap();
    assert_eq!(rx.recv_batch_timeout(&mut batch, NEVER), Err(Closed));
    sender.join().unwrap();
}

#[test]
fn many_at_once_go_in_as_far_as_they_fit() {
    let (tx, mut rx) = small(3, 10);
    let mut items: Vec<_> = (0..5).map(|n| (n, 1)).collect();
    assert_eq!(tx.try_send_many(Lane::Data, &mut items), 3);
    assert_eq!(items, [(3, 1), (4, 1)]);
    assert_eq!(tx.try_send_many(Lane::Data, &mut items), 0);
    assert_eq!(items.len(), 2);
    let mut batch = Vec::new();
    rx.drain(&mut batch);
    assert_eq!(tx.try_send_many(Lane::Data, &mut items), 2);
    assert!(items.is_empty());
    rx.drain(&mut batch);
    assert_eq!(batch, [0, 1, 2, 3, 4]);
}

#[test]
fn the_waker_is_called_once_for_a_burst() {
    let calls = Arc::new(AtomicUsize::new(0));
    let bounds = Bounds {
        items_max: 2,
        bytes_max: 100,
    };
    let (tx, mut rx) = {
        let calls = calls.clone();
        mailbox_with_waker("test", bounds, move || {
            calls.fetch_add(1, Ordering::SeqCst);
        })
    };
    let called = || calls.swap(0, Ordering::SeqCst);
    let mut batch = Vec::new();
    tx.try_send(Lane::Data, 1, 1).unwrap();
    tx.try_send(Lane::Control, 2, 1).unwrap();
    assert_eq!(called(), 1);
    rx.drain(&mut batch);
    rx.drain(&mut batch);
    assert_eq!(called(), 0);
    batch.clear();
    rx.drain(&mut batch);
    tx.try_send(Lane::Data, 3, 1).unwrap();
    tx.try_send(Lane::Data, 4, 1).unwrap();
    assert_eq!(called(), 1);
    // One that waits is let in by the drain, which must come back for it.
    let waiting = {
        let tx = tx.clone();
        thread::spawn(move || tx.send(Lane::Data, 5, 1))
    };
    eventually("waiting", || tx.gauge().data.waiting == 1);
    rx.drain(&mut batch);
    assert_eq!((called(), batch.len()), (1, 2));
    waiting.join().unwrap().unwrap();
    batch.clear();
    rx.drain(&mut batch);
    assert_eq!((called(), batch.as_slice()), (0, [5].as_slice()));
    drop(tx);
    assert_eq!(called(), 1, "the end is told");
}

#[test]
fn the_age_is_that_of_the_oldest_wherever_it_is() {
    let (tx, mut rx) = small(10, 100);
    assert_eq!(tx.gauge().oldest_age(), None);
    tx.try_send(Lane::Data, 1, 1).unwrap();
    let first_sent = Instant::now();
    thread::sleep(SOON);
    let tick = Duration::from_millis(10);
    assert!(tx.gauge().oldest_age().unwrap() >= SOON - tick);
    let mut batch = Vec::new();
    rx.drain(&mut batch);
    let second_sent = Instant::now();
    tx.try_send(Lane::Data, 2, 1).unwrap();
    let waited = first_sent.elapsed();
    assert!(
        tx.gauge().oldest_age().unwrap() >= waited - tick,
        "in hand, but not handled"
    );
    batch.clear();
    rx.drain(&mut batch);
    // The second one is at most as old as this, however long the test was interrupted.
    let age = tx.gauge().oldest_age().unwrap();
    assert!(age <= second_sent.elapsed() + tick, "{age:?}");
    assert!(age < first_sent.elapsed() - tick, "{age:?}");
}

#[test]
fn nothing_is_lost_or_doubled_between_threads() {
    const SENDERS: u64 = 8;
    const EACH: u64 = 20_000;
    let (tx, mut rx) = small(64, 10_000);
    let threads: Vec<_> = (0..SENDERS)
        .map(|s| {
            let tx = tx.clone();
            thread::spawn(move || {
                for n in 0..EACH {
                    tx.send(Lane::Data, (s, n), 8).unwrap();
                }
            })
        })
        .collect();
    drop(tx);
    let mut next = [0; SENDERS as usize];
    let mut batch = Vec::new();
    while rx.recv_batch(&mut batch).is_ok() {
        assert!(rx.gauge().data.queued <= 64);
        for (s, n) in batch.drain(..) {
            assert_eq!(n, next[s as usize], "each sender's items in its order");
            next[s as usize] += 1;
        }
    }
    assert_eq!(next, [EACH; SENDERS as usize]);
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn the_memory_of_a_burst_is_given_back() {
    const BURST: usize = 100_000;
    let (tx, mut rx) = small(BURST, BURST);
    for n in 0..BURST {
        tx.try_send(Lane::Data, n, 1).unwrap();
    }
    let mut batch = Vec::new();
    rx.drain(&mut batch);
    assert!(batch.capacity() >= BURST);
    for n in 0..10 {
        batch.clear();
        tx.try_send(Lane::Data, n, 1).unwrap();
        rx.drain(&mut batch);
        assert_eq!(batch, [n]);
    }
    assert!(batch.capacity() < BURST / 10, "{}", batch.capacity());
}
