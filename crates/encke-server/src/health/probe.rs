//! One probe: a subscriber on each shard, and a record that all of them must get.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use encke_net::now;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::link::{Connect, Link};

/// A probe in work.
pub(super) struct Probe<'a> {
    /// What the record holds, which no other record does.
    record: String,
    /// By shard.
    subscribers: Vec<Party<'a>>,
    /// By log.
    appends: Vec<Party<'a>>,
    /// When the records were sent.
    appended: Option<Instant>,
}

/// One request of the probe, repeated while the server has no room for it.
struct Party<'a> {
    open: Box<dyn Fn() -> io::Result<Link> + 'a>,
    link: Option<Link>,
    stage: Stage,
    /// When the request is sent again.
    again: Option<Instant>,
}

/// How far a request of the probe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is not sent, or there is no response that counts.
    Asking,
    /// The server has no room for it.
    NoRoom,
    /// It is subscribed, and has no record yet.
    Subscribed,
    /// A subscriber has the record, or the append is acknowledged, so long after the record was sent.
    Done(Duration),
    /// The log takes no record, which its own state explains.
    Refused,
}

/// What a probe has found.
#[derive(Debug)]
pub(crate) struct ProbeReport {
    /// How long each log took for the record, by index. `None`: it did not take it.
    pub(crate) commits: Vec<Option<Duration>>,
    /// How long it took until each shard had delivered the record.
    pub(crate) deliveries: Vec<Option<Duration>>,
    /// A log refuses records, so that nothing could be delivered.
    pub(crate) is_refused: bool,
    faults: Vec<Fault>,
}

/// A stage at which the probe did not arrive in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The shard answers no request.
    Unanswered { shard: usize },
    /// The mailbox of the log's sequencer is full all the time.
    MailboxFull { log: usize },
    /// The log has acknowledged nothing.
    Uncommitted { log: usize },
    /// The shard has delivered nothing, although the log has acknowledged the record.
    Undelivered { shard: usize },
}

impl<'a> Probe<'a> {
    pub(super) fn new(connect: Connect<'a>, shards: usize, logs: usize) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let record = format!(
            "probe-{}-{}-{count};",
            std::process::id(),
            now().wall.as_ms()
        );
        let subscribers =
            (0..shards).map(|shard| Party::new(move || Link::subscribe(connect, shard)));
        let appends = (0..logs).map(|log| {
            let record = record.clone();
            Party::new(move || Link::append(connect, log % shards, log, &record))
        });
        Probe {
            subscribers: subscribers.collect(),
            appends: appends.collect(),
            record,
            appended: None,
        }
    }

    /// Makes the probe, for at most `wait_max` of time in which the process runs, or until the server stops.
    pub(super) fn run(mut self, wait_max: Duration, stopping: &AtomicBool) -> ProbeReport {
        let until = now().steady.after(wait_max);
        self.step();
        while !self.is_over() && !stopping.load(Ordering::Relaxed) {
            let left = until.since(now().steady);
            // What has arrived while the process stood still is looked at before the end.
            self.wait(left.min(LOOK_EVERY));
            self.step();
            if left.is_zero() {
                break;
            }
        }
        self.report()
    }

    /// Waits until something arrives.
    fn wait(&self, wait_max: Duration) {
        let parties = self.subscribers.iter().chain(&self.appends);
        let links = parties.filter_map(|party| party.link.as_ref());
        let open = links.filter(|link| !link.is_over());
        let mut sockets: Vec<PollFd<'_>> = open
            .map(|link| PollFd::from_borrowed_fd(link.socket(), PollFlags::IN))
            .collect();
        let wait = Timespec::try_from(wait_max).ok();
        // After an error, such as a signal, everything is looked at again.
        let _ = poll(&mut sockets, wait.as_ref());
    }

    /// Sends what is to be sent, and takes what has arrived.
    fn step(&mut self) {
        for subscriber in &mut self.subscribers {
            subscriber.ask();
            subscriber.receive(self.appended, &self.record);
        }
        let waits = |party: &Party<'_>| matches!(party.stage, Stage::Asking | Stage::NoRoom);
        if self.appended.is_none() && self.subscribers.iter().any(waits) {
            return;
        }
        let appended = *self.appended.get_or_insert_with(Instant::now);
        for append in &mut self.appends {
            append.ask();
            append.receive(Some(appended), &self.record);
        }
    }

    /// Whether nothing more is to be waited for.
    fn is_over(&self) -> bool {
        let ends = |party: &Party<'_>| matches!(party.stage, Stage::Done(_) | Stage::Refused);
        let is_refused = self
            .appends
            .first()
            .is_some_and(|first| first.stage == Stage::Refused);
        self.appends.iter().all(ends) && (is_refused || self.subscribers.iter().all(ends))
    }

    fn report(&self) -> ProbeReport {
        let is_first_taken = matches!(self.appends[0].stage, Stage::Done(_));
        let unanswered =
            self.subscribers
                .iter()
                .enumerate()
                .filter_map(|(shard, party)| match party.stage {
                    Stage::Asking | Stage::NoRoom => Some(Fault::Unanswered { shard }),
                    Stage::Subscribed if is_first_taken => Some(Fault::Undelivered { shard }),
                    Stage::Subscribed | Stage::Done(_) | Stage::Refused => None,
                });
        let uncommitted = self.appends.iter().enumerate().filter_map(|(log, party)| {
            match party.stage {
                // A shard that answers nothing kept the record from being sent.
                Stage::Asking if self.appended.is_none() => None,
                Stage::Asking | Stage::Subscribed => Some(Fault::Uncommitted { log }),
                Stage::NoRoom => Some(Fault::MailboxFull { log }),
                Stage::Done(_) | Stage::Refused => None,
            }
        });
        ProbeReport {
            commits: self.appends.iter().map(Party::took).collect(),
            deliveries: self.subscribers.iter().map(Party::took).collect(),
            is_refused: self
                .appends
                .iter()
                .any(|append| append.stage == Stage::Refused),
            faults: uncommitted.chain(unanswered).collect(),
        }
    }
}

impl<'a> Party<'a> {
    fn new(open: impl Fn() -> io::Result<Link> + 'a) -> Self {
        Party {
            open: Box::new(open),
            link: None,
            stage: Stage::Asking,
            again: None,
        }
    }

    /// Sends the request, if it is to be sent now.
    fn ask(&mut self) {
        let waits = self.again.is_some_and(|again| Instant::now() < again);
        if self.link.is_some() || waits || matches!(self.stage, Stage::Done(_) | Stage::Refused) {
            return;
        }
        match (self.open)() {
            Ok(link) => self.link = Some(link),
            Err(_) => self.ask_again(Stage::Asking),
        }
    }

    /// Takes what has arrived. `appended`: when the record was sent.
    fn receive(&mut self, appended: Option<Instant>, record: &str) {
        let Some(link) = &mut self.link else {
            return;
        };
        link.receive();
        let took = || appended.map_or(Duration::ZERO, |appended| appended.elapsed());
        match link.status() {
            None => {}
            Some(200) if link.has(record) => self.stage = Stage::Done(took()),
            Some(200) if !link.is_over() => self.stage = Stage::Subscribed,
            Some(204) => self.stage = Stage::Done(took()),
            Some(409) => self.stage = Stage::Refused,
            // The stream is there now.
            Some(202) => {
                self.link = None;
                self.ask();
            }
            Some(503) => self.ask_again(Stage::NoRoom),
            Some(_) => self.ask_again(Stage::Asking),
        }
        if matches!(self.stage, Stage::Done(_) | Stage::Refused) {
            self.link = None;
        }
    }

    fn ask_again(&mut self, stage: Stage) {
        self.link = None;
        self.stage = stage;
        self.again = Some(Instant::now() + ASK_AGAIN);
    }

    fn took(&self) -> Option<Duration> {
        match self.stage {
            Stage::Done(took) => Some(took),
            _ => None,
        }
    }
}

impl ProbeReport {
    /// What stalled, if anything did.
    pub(super) fn stalled(&self, wait_max: Duration) -> Option<String> {
        let faults: Vec<String> = self.faults.iter().map(Fault::to_string).collect();
        let within = format!("within {} s ", wait_max.as_secs_f64());
        (!faults.is_empty()).then(|| within + &faults.join("; "))
    }

    /// How it ended, in a word.
    pub(crate) fn outcome(&self) -> &'static str {
        match (self.faults.is_empty(), self.is_refused) {
            (false, _) => STALLED,
            (true, true) => REFUSED,
            (true, false) => DELIVERED,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Unanswered { shard } => write!(f, "shard {shard} has answered no request"),
            Fault::MailboxFull { log } => {
                write!(
                    f,
                    "log {log} has taken no command, because its mailbox is full"
                )
            }
            Fault::Uncommitted { log } => {
                write!(
                    f,
                    "log {log} has made no record durable (its sequencer, or the write or sync of its disk)"
                )
            }
            Fault::Undelivered { shard } => {
                write!(
                    f,
                    "shard {shard} has delivered no record, although the log has it"
                )
            }
        }
    }
}

/// The words of [`ProbeReport::outcome`].
pub(crate) const OUTCOMES: [&str; 3] = [DELIVERED, REFUSED, STALLED];

const DELIVERED: &str = "delivered";
const REFUSED: &str = "refused";
const STALLED: &str = "stalled";

/// A request for which the server has no room is sent again after this time.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// Time between two looks at whether the probe's time is over.
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests;
