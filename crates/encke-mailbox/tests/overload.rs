//! What a full lane does, for each of its modes, by count and by bytes, and when that ends.
#![allow(unexpected_cfgs)]
#![allow(clippy::unwrap_used)]
#![cfg(not(encke_model))]

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use encke_mailbox::{
    Bounds, Closed, Lane, LaneOptions, Mode, NoReply, Options, Overload, Receiver, Sender, Why,
    mailbox, reply,
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

fn with(data: LaneOptions) -> (Sender<u32>, Receiver<u32>) {
    mailbox("test", Options::default().data(data))
}

fn rest(rx: &mut Receiver<u32>) -> Vec<u32> {
    std::iter::from_fn(|| rx.try_recv()).collect()
}

#[test]
fn refusing_begins_at_either_bound_and_ends_at_the_mark_of_both() {
    for bounds in [ITEMS, BYTES] {
        let data = LaneOptions::new(bounds).overload(Overload::Refuse);
        let (tx, mut rx) = with(data.resume_percent(50));
        for n in 0..4 {
            tx.try_send(Lane::Data, n, SIZE).unwrap();
        }
        assert_eq!(tx.gauge().data.mode, Mode::Open);
        let why = tx.try_send(Lane::Data, 4, SIZE).unwrap_err().why;
        assert!(matches!(why, Why::Full { .. }), "{why:?}");
        assert_eq!(tx.gauge().data.mode, Mode::Refusing);
        // One in hand and three that wait: there is room, but the mark is two.
        assert_eq!(rx.recv(), Ok(0));
        assert_eq!(rx.recv(), Ok(1));
        let why = tx.try_send(Lane::Data, 4, SIZE).unwrap_err().why;
        assert!(matches!(why, Why::Shedding { .. }), "{bounds:?}: {why:?}");
        assert_eq!(rx.recv(), Ok(2));
        tx.try_send(Lane::Data, 4, SIZE).unwrap();
        assert_eq!(tx.gauge().data.mode, Mode::Open);
        assert_eq!(rest(&mut rx), [3, 4]);
        assert_eq!(rx.gauge().data.refused, 2);
    }
}

#[test]
fn the_oldest_are_shed_at_either_bound() {
    for bounds in [ITEMS, BYTES] {
        let (tx, mut rx) = with(LaneOptions::new(bounds).overload(Overload::ShedOldest));
        for n in 0..6 {
            tx.send(Lane::Data, n, SIZE).unwrap();
        }
        let gauge = tx.gauge().data;
        assert_eq!(
            (gauge.shed, gauge.queued, gauge.mode),
            (2, 4, Mode::Shedding)
        );
        assert_eq!(rest(&mut rx), [2, 3, 4, 5]);
        assert_eq!(tx.gauge().data.mode, Mode::Open, "{bounds:?}");
    }
}

#[test]
fn all_that_waits_is_flushed_at_either_bound() {
    for bounds in [ITEMS, BYTES] {
        let (tx, mut rx) = with(LaneOptions::new(bounds).overload(Overload::Flush));
        for n in 0..6 {
            tx.send(Lane::Data, n, SIZE).unwrap();
        }
        let gauge = tx.gauge().data;
        assert_eq!((gauge.shed, gauge.queued), (4, 2), "{bounds:?}");
        assert_eq!(rest(&mut rx), [4, 5]);
    }
}

#[test]
fn an_overloaded_lane_says_so_until_it_is_worked_off_to_its_mark() {
    for overload in [Overload::ShedOldest, Overload::Flush] {
        let data = LaneOptions::new(ITEMS).overload(overload);
        let (tx, mut rx) = with(data.resume_percent(0));
        // A flush leaves the newest alone: below the bound, above the mark.
        for n in 0..7 {
            tx.try_send(Lane::Data, n, SIZE).unwrap();
        }
        let shed = tx.gauge().data.shed;
        let mut modes = Vec::new();
        while rx.try_recv().is_some() {
            // What finds room is taken all the same: hysteresis is for who would be refused.
            modes.push(rx.gauge().data.mode);
        }
        assert_eq!(modes.first(), Some(&Mode::Shedding), "{overload:?}");
        tx.try_send(Lane::Data, 10, SIZE).unwrap();
        assert_eq!(tx.gauge().data.mode, Mode::Open, "{overload:?}");
        assert_eq!(tx.gauge().data.shed, shed);
    }
}

#[test]
fn waiting_comes_before_each_of_the_other_modes_where_it_is_told_to() {
    for overload in [Overload::Refuse, Overload::ShedOldest, Overload::Flush] {
        let (tx, mut rx) = with(LaneOptions::new(ITEMS).overload(overload).wait_percent(50));
        tx.send(Lane::Data, 0, SIZE).unwrap();
        tx.send(Lane::Data, 1, SIZE).unwrap();
        // Half full: who can wait does.
        let soon = Duration::from_millis(20);
        let why = tx.send_timeout(Lane::Data, 2, SIZE, soon).unwrap_err().why;
        assert_eq!(why, Why::TimedOut, "{overload:?}");
        assert_eq!(tx.gauge().data.mode, Mode::Open);
        // Who can't goes on until the lane is full, and then meets the mode.
        tx.try_send(Lane::Data, 3, SIZE).unwrap();
        tx.try_send(Lane::Data, 4, SIZE).unwrap();
        let fifth = tx
            .try_send(Lane::Data, 5, SIZE)
            .map_err(|refused| refused.item);
        let (answer, left) = match overload {
            Overload::ShedOldest => (Ok(()), vec![1, 3, 4, 5]),
            Overload::Flush => (Ok(()), vec![5]),
            _ => (Err(5), vec![0, 1, 3, 4]),
        };
        assert_eq!((fifth, rest(&mut rx)), (answer, left), "{overload:?}");
    }
}

#[test]
fn each_lane_has_its_own_bounds_and_mode() {
    let control = LaneOptions::new(ITEMS).overload(Overload::Refuse);
    let data = LaneOptions::new(ITEMS).overload(Overload::ShedOldest);
    let (tx, mut rx) = mailbox("test", Options::default().control(control).data(data));
    for n in 0..6 {
        assert_eq!(tx.try_send(Lane::Control, n, SIZE).is_ok(), n < 4);
        assert!(tx.try_send(Lane::Data, 10 + n, SIZE).is_ok());
    }
    let gauge = tx.gauge();
    assert_eq!((gauge.control.refused, gauge.control.shed), (2, 0));
    assert_eq!((gauge.data.refused, gauge.data.shed), (0, 2));
    assert_eq!((gauge.depth(), gauge.bytes(), gauge.drops()), (8, 80, 4));
    assert_eq!(rest(&mut rx), [0, 1, 2, 3, 12, 13, 14, 15]);
}

#[test]
fn a_sender_that_dies_leaves_its_items_and_nothing_else() {
    let (tx, mut rx) = with(LaneOptions::new(ITEMS));
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
    assert!(answer_to.is_unwanted());
    assert_eq!(
        answer_to.send(()),
        Err(()),
        "its answer is wanted by nobody"
    );
    assert_eq!(Arc::strong_count(&kept), 1);
}

#[test]
fn a_receiver_that_dies_wakes_all_who_wait_for_room_or_an_answer() {
    let (tx, rx) = mailbox(
        "test",
        Options::new(Bounds {
            items_max: 1,
            bytes_max: 100,
        }),
    );
    let (answer_to, answer) = reply::<()>();
    tx.send(Lane::Data, Some(answer_to), 1).unwrap();
    let waits = {
        let tx = tx.clone();
        thread::spawn(move || tx.send(Lane::Data, None, 1).unwrap_err().why)
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
    assert_eq!(waits.join().unwrap(), Why::Closed);
    assert_eq!(asks.join().unwrap(), Err(NoReply::Dropped));
    assert_eq!(tx.gauge().depth(), 0);
}

/// The processor time of this thread.
fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn an_idle_receiver_sleeps_and_does_not_spin() {
    let (tx, mut rx) = with(LaneOptions::new(ITEMS));
    let idle = Duration::from_millis(300);
    let mut batch = Vec::new();
    let before = thread_cpu();
    assert_eq!(rx.recv_timeout(idle), Ok(None));
    assert_eq!(rx.recv_batch_timeout(&mut batch, idle), Ok(0));
    let spent = thread_cpu() - before;
    assert!(spent < idle / 5, "{spent:?} of {:?}", 2 * idle);
    drop(tx);
}
