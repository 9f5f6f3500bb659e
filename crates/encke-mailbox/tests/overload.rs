//! Full lanes, by count and by bytes, and ends that are dropped.
#![allow(unexpected_cfgs)]
#![allow(clippy::unwrap_used)]
#![cfg(not(encke_model))]

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use encke_mailbox::{
    Bounds, Closed, Lane, NoReply, Receiver, SendErrorKind, Sender, mailbox, reply,
};

const ITEMS: Bounds = Bounds {
    items_max: 4,
    bytes_max: 1_000,
};
const BYTES: Bounds = Bounds {
    items_max: 1_000,
    bytes_max: 40,
};

/// What an item counts, so that four of them fill either of the bounds.
const SIZE: usize = 10;

fn with(data: Bounds) -> (Sender<u32>, Receiver<u32>) {
    mailbox("test", data)
}

fn rest(rx: &mut Receiver<u32>) -> Vec<u32> {
    std::iter::from_fn(|| rx.try_recv()).collect()
}

#[test]
fn each_lane_refuses_at_its_own_bounds_and_accepts_when_there_is_room() {
    for bounds in [ITEMS, BYTES] {
        let (tx, mut rx) = with(bounds);
        for n in 0..6 {
            let sent = tx.try_send(Lane::Data, n, SIZE);
            let full =
                sent.is_err_and(|refused| matches!(refused.kind, SendErrorKind::Full { .. }));
            assert_eq!(full, n >= 4, "{bounds:?}: {n}");
        }
        tx.try_send(Lane::Control, 10, SIZE).unwrap();
        let gauge = tx.gauge();
        assert_eq!((gauge.control.refused, gauge.data.refused), (0, 2));
        assert_eq!((gauge.depth(), gauge.bytes(), gauge.refused()), (5, 50, 2));
        assert_eq!(rest(&mut rx), [10, 0, 1, 2, 3]);
        tx.try_send(Lane::Data, 4, SIZE).unwrap();
        assert_eq!(rest(&mut rx), [4]);
    }
}

#[test]
fn a_sender_that_dies_leaves_its_items_and_nothing_else() {
    let (tx, mut rx) = with(ITEMS);
    let (answer_to, answer) = reply::<()>();
    let kept = Arc::new(());
    let held = Arc::clone(&kept);
    let died = thread::spawn(move || {
        let _held = held;
        let _answer = answer;
        tx.send(Lane::Data, 1, SIZE).unwrap();
        panic!("on purpose");
    });
    died.join().unwrap_err();
    assert_eq!(rx.recv(), Ok(1), "what it sent is handled");
    assert_eq!(rx.recv(), Err(Closed), "and nobody waits for more");
    assert_eq!(
        answer_to.send(()),
        Err(()),
        "its answer is wanted by nobody"
    );
    assert_eq!(Arc::strong_count(&kept), 1);
}

#[test]
fn a_dropped_receiver_wakes_senders_that_wait_for_room_or_a_reply() {
    let (tx, rx) = mailbox(
        "test",
        Bounds {
            items_max: 1,
            bytes_max: 100,
        },
    );
    let (answer_to, answer) = reply::<()>();
    tx.send(Lane::Data, Some(answer_to), 1).unwrap();
    let waits = {
        let tx = tx.clone();
        thread::spawn(move || tx.send(Lane::Data, None, 1).unwrap_err().kind)
    };
    let asks = thread::spawn(move || answer.wait());
    let begun = Instant::now();
    while tx.gauge().data.waiting == 0 {
        assert!(begun.elapsed() < Duration::from_secs(20));
        thread::yield_now();
    }
    let died = thread::spawn(move || {
        let _rx = rx;
        panic!("on purpose");
    });
    died.join().unwrap_err();
    assert_eq!(waits.join().unwrap(), SendErrorKind::Closed);
    assert_eq!(asks.join().unwrap(), Err(NoReply));
    assert_eq!(tx.gauge().depth(), 0);
}

/// The processor time of this thread.
fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn an_idle_receiver_sleeps_and_does_not_spin() {
    let (tx, mut rx) = with(ITEMS);
    let idle = Duration::from_millis(300);
    let mut batch = Vec::new();
    let before = thread_cpu();
    assert_eq!(rx.recv_timeout(idle), Ok(None));
    assert_eq!(rx.recv_batch_timeout(&mut batch, idle), Ok(0));
    let spent = thread_cpu() - before;
    assert!(spent < idle / 5, "{spent:?} of {:?}", 2 * idle);
    drop(tx);
}
