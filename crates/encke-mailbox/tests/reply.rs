//! The promises of replies.
#![allow(unexpected_cfgs)]
#![allow(clippy::unwrap_used)]
#![cfg(not(encke_model))]

mod asleep;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle};

use asleep::Task;
use encke_mailbox::{Bounds, Lane, NoReply, mailbox, reply};

/// Starts a thread that calls `wait`, and returns when it sleeps there.
fn asleep<T: Send + 'static>(wait: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let (tasks, started) = channel();
    let thread = thread::spawn(move || {
        tasks.send(Task::current()).unwrap();
        wait()
    });
    started.recv().unwrap().wait_until_asleep();
    thread
}

#[test]
fn a_reply_reaches_a_sleeping_and_a_later_receiver() {
    let (to, from) = reply();
    let sleeper = asleep(move || from.wait());
    to.send(1).unwrap();
    assert_eq!(sleeper.join().unwrap(), Ok(1));

    let (to, from) = reply();
    to.send(2).unwrap();
    assert_eq!(from.wait(), Ok(2));
}

#[test]
fn a_reply_without_receiver_returns_to_its_sender() {
    let (to, from) = reply();
    drop(from);
    assert_eq!(to.send("late"), Err("late"));
}

#[test]
fn a_request_whose_receiver_is_dropped_fails() {
    let bounds = Bounds {
        items_max: 1,
        bytes_max: 10,
    };
    let (tx, rx) = mailbox("test", bounds);
    let (to, from) = reply::<()>();
    tx.try_send(Lane::Data, to, 1).unwrap();
    let waiting = asleep(move || from.wait());
    drop(rx);
    assert_eq!(waiting.join().unwrap(), Err(NoReply));
}

struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn an_answer_wakes_a_task_once_and_the_last_one_that_asked() {
    let (to, from) = reply();
    let mut from = pin!(from);
    let counts = [(); 2].map(|()| Arc::new(Count(AtomicUsize::new(0))));
    for count in &counts {
        let waker = Waker::from(count.clone());
        assert_eq!(
            from.as_mut().poll(&mut Context::from_waker(&waker)),
            Poll::Pending
        );
    }
    to.send(3).unwrap();
    assert_eq!(
        counts
            .each_ref()
            .map(|count| count.0.load(Ordering::SeqCst)),
        [0, 1]
    );
    let waker = Waker::noop();
    assert_eq!(
        from.poll(&mut Context::from_waker(waker)),
        Poll::Ready(Ok(3))
    );
}

#[test]
fn an_answer_reaches_a_thread_that_waits_for_what_a_task_polled_before() {
    let (to, mut from) = reply();
    let polled = pin!(&mut from).poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(polled, Poll::Pending);
    let sleeper = asleep(move || from.wait());
    to.send(4).unwrap();
    assert_eq!(sleeper.join().unwrap(), Ok(4));
}
