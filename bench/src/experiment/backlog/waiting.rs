//! Encke's way: an `encke_mailbox`, and replies that go directly to the waiting thread.

use std::time::Instant;

use encke_mailbox::{Bounds, Lane, Receiver, ReplyTo, Sender, mailbox, reply};

use crate::BenchError;
use crate::machine::cpu_seconds;

/// An item of the mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Message {
    /// A message to be handled, with its number.
    Work(u32),
    /// Something urgent.
    Control,
}

/// A request to the other thread.
struct Question {
    number: u64,
    reply_to: ReplyTo<u64>,
    /// Before it answers, it sends something urgent here.
    urgent: Option<Sender<Message>>,
}

/// A thread that answers whatever it is asked.
pub(super) struct Echo {
    sender: Option<Sender<Question>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Messages that were handled one after the other, and what that took.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Turn {
    pub(super) messages: u64,
    /// How long it took, in nanoseconds.
    pub(super) ns: u64,
    /// The processor time of both threads in it, in nanoseconds.
    pub(super) cpu_ns: u64,
}

impl Turn {
    pub(super) fn add(&mut self, other: Turn) {
        self.messages += other.messages;
        self.ns += other.ns;
        self.cpu_ns += other.cpu_ns;
    }
}

/// The measurements of a backlog.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handled {
    /// The messages that were handled, and what that took.
    pub(super) cost: Turn,
    /// Messages that were handled between the sending of a control message and its own handling, for one that was sent
    /// behind the whole backlog before anything was handled.
    pub(super) before_first: u64,
    /// The same for one that the other thread sent while a message was in work: that one counts.
    pub(super) before_second: u64,
}

impl Echo {
    pub(super) fn start() -> Result<Self, BenchError> {
        let bounds = Bounds {
            items_max: ECHO_MAX,
            bytes_max: ECHO_MAX,
        };
        let (sender, mut receiver) = mailbox::<Question>("echo", bounds);
        let thread = std::thread::Builder::new()
            .name("echo".into())
            .spawn(move || {
                while let Ok(question) = receiver.recv() {
                    if let Some(sender) = question.urgent {
                        // If it is refused, it will be missed.
                        let _ = send_control(&sender);
                    }
                    // The other thread can be gone when a run fails.
                    let _ = question.reply_to.send(question.number);
                }
            })
            .map_err(BenchError::system("start a thread"))?;
        Ok(Self {
            sender: Some(sender),
            thread: Some(thread),
        })
    }

    /// Asks, and waits for the answer.
    fn ask(&self, number: u64, urgent: Option<Sender<Message>>) -> Result<(), BenchError> {
        const GONE: BenchError = BenchError::Thread("echo");
        let (reply_to, answer) = reply();
        let question = Question {
            number,
            reply_to,
            urgent,
        };
        let sender = self.sender.as_ref().ok_or(GONE)?;
        sender.send(Lane::Data, question, 1).map_err(|_| GONE)?;
        match answer.wait() {
            Ok(answer) if answer == number => Ok(()),
            _ => Err(GONE),
        }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            // It ends with its mailbox; it has nothing that could panic.
            let _ = thread.join();
        }
    }
}

/// Lets `messages` wait, then handles them, each with a question to `echo` whose answer is awaited.
pub(super) fn handle(messages: u64, echo: &Echo) -> Result<Handled, BenchError> {
    Backlog::new(messages)?.end(echo)
}

/// Messages that wait, to be handled a part at a time; only the handling is measured.
pub(super) struct Backlog {
    receiver: Receiver<Message>,
    /// The last sender: when the question with it has been answered, nothing more can come.
    sender: Option<Sender<Message>>,
    messages: u64,
    /// Messages that were handled.
    count: u64,
    /// How many had been when each control message was.
    controls: Vec<u64>,
    cost: Turn,
}

impl Backlog {
    /// `messages` messages, and a control message behind them.
    pub(super) fn new(messages: u64) -> Result<Self, BenchError> {
        let (sender, receiver) = filled(messages)?;
        send_control(&sender)?;
        Ok(Self {
            receiver,
            sender: Some(sender),
            messages,
            count: 0,
            controls: Vec::new(),
            cost: Turn::default(),
        })
    }

    /// Handles messages until `upto` of all are handled.
    pub(super) fn handle(&mut self, upto: u64, echo: &Echo) -> Result<Turn, BenchError> {
        let before = self.count;
        let cpu = cpu_seconds();
        let begun = Instant::now();
        while self.count < upto {
            match self.receiver.recv() {
                Ok(message) => self.take(message, echo)?,
                Err(_) => break,
            }
        }
        let turn = Turn {
            messages: self.count - before,
            ns: begun.elapsed().as_nanos() as u64,
            cpu_ns: ((cpu_seconds() - cpu) * 1e9) as u64,
        };
        self.cost.add(turn);
        Ok(turn)
    }

    /// Handles the rest of the messages. Returns the measurements.
    pub(super) fn end(mut self, echo: &Echo) -> Result<Handled, BenchError> {
        self.handle(u64::MAX, echo)?;
        let [first, second] = self.controls[..] else {
            return Err(BenchError::Thread("echo"));
        };
        Ok(Handled {
            cost: self.cost,
            before_first: first,
            before_second: second - self.half(),
        })
    }

    fn take(&mut self, message: Message, echo: &Echo) -> Result<(), BenchError> {
        match message {
            Message::Work(number) if u64::from(number) != self.count => Err(BenchError::Option(
                "messages must come in their order".into(),
            )),
            Message::Work(_) => {
                let urgent = match self.count == self.half() {
                    true => self.sender.take(),
                    false => None,
                };
                echo.ask(self.count, urgent)?;
                self.count += 1;
                Ok(())
            }
            Message::Control => {
                self.controls.push(self.count);
                Ok(())
            }
        }
    }

    /// When the other thread sends its control message.
    fn half(&self) -> u64 {
        self.messages / 2
    }
}

/// A mailbox in which `messages` messages wait.
fn filled(messages: u64) -> Result<(Sender<Message>, Receiver<Message>), BenchError> {
    let bounds = Bounds {
        items_max: messages as usize,
        bytes_max: messages as usize,
    };
    let (sender, receiver) = mailbox("backlog", bounds);
    for number in 0..messages as u32 {
        sender
            .try_send(Lane::Data, Message::Work(number), 1)
            .map_err(|_| BenchError::Option("a backlog must fit into its mailbox".into()))?;
    }
    Ok((sender, receiver))
}

fn send_control(sender: &Sender<Message>) -> Result<(), BenchError> {
    sender
        .try_send(Lane::Control, Message::Control, 1)
        .map_err(|_| BenchError::Thread("backlog"))
}

/// Questions that may wait for the echo: one does.
const ECHO_MAX: usize = 16;
