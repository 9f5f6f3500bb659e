//! The old way, as in the reports: one queue for everything, which is scanned for each reply.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use crate::BenchError;

/// An item of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Message {
    /// A message to be handled.
    Work,
    /// The answer to a question.
    Reply(u32),
}

/// A process as Erlang has it: what has arrived stays in its order until a receive takes it out, from wherever it is.
struct Process {
    arrivals: Receiver<Message>,
    waiting: VecDeque<Message>,
    /// Messages that were looked at.
    looked: u64,
}

/// The cost of handling a backlog.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handled {
    /// How long it took, in nanoseconds.
    pub(super) ns: u64,
    /// The number of looks at messages.
    pub(super) looked: u64,
}

impl Process {
    /// Takes out the oldest message for which `wanted` is true: scans all waiting messages, then each that arrives.
    fn receive(&mut self, wanted: impl Fn(Message) -> bool) -> Result<Message, BenchError> {
        let mut position = 0;
        loop {
            while let Some(&message) = self.waiting.get(position) {
                self.looked += 1;
                if wanted(message) {
                    self.waiting.remove(position);
                    return Ok(message);
                }
                position += 1;
            }
            let arrived = self.arrivals.recv();
            self.waiting
                .push_back(arrived.map_err(|_| BenchError::Thread("echo"))?);
        }
    }
}

/// Lets `messages` wait, then handles them, each with a question whose answer arrives in the same queue behind the rest.
pub(super) fn handle(messages: u64) -> Result<Handled, BenchError> {
    let (sender, arrivals) = channel();
    let (ask, questions) = channel::<u32>();
    let answers: Sender<Message> = sender.clone();
    let echo = std::thread::Builder::new()
        .name("echo".into())
        .spawn(move || {
            for number in questions {
                if answers.send(Message::Reply(number)).is_err() {
                    return;
                }
            }
        })
        .map_err(BenchError::system("start a thread"))?;
    let mut process = Process {
        arrivals,
        waiting: (0..messages).map(|_| Message::Work).collect(),
        looked: 0,
    };
    drop(sender);
    let begun = Instant::now();
    for number in 0..messages as u32 {
        process.receive(|message| message == Message::Work)?;
        ask.send(number).map_err(|_| BenchError::Thread("echo"))?;
        process.receive(|message| message == Message::Reply(number))?;
    }
    let ns = begun.elapsed().as_nanos() as u64;
    drop(ask);
    echo.join().map_err(|_| BenchError::Thread("echo"))?;
    Ok(Handled {
        ns,
        looked: process.looked,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_wanted_stays_in_its_order() {
        let (sender, arrivals) = channel();
        let mut process = Process {
            arrivals,
            waiting: VecDeque::from([Message::Reply(1), Message::Reply(2)]),
            looked: 0,
        };
        sender.send(Message::Work).unwrap();
        sender.send(Message::Reply(3)).unwrap();
        let work = process.receive(|m| m == Message::Work).unwrap();
        assert_eq!(work, Message::Work);
        let mut any = || process.receive(|_| true).unwrap();
        assert_eq!(
            [any(), any(), any()],
            [Message::Reply(1), Message::Reply(2), Message::Reply(3)]
        );
        drop(sender);
        assert!(process.receive(|_| true).is_err());
    }
}
