//! The clients of one node: a process that holds as many connections as it may have open files.

use std::borrow::Cow;
use std::io::{Write as _, stdin};

use serde::Deserialize;

use super::args::MillionClientsArgs;
use super::streams::{COMMON, inbox, pattern};
use super::words::{GroupState, REPORT, Receipts, STOP_OPENING, Word};
use crate::BenchError;
use crate::load::Latencies;
use crate::load::clock::{MILLISECOND_NS, monotonic_ns};
use crate::load::event_source::{Audience, EventSourcePlan, EventSources};
use crate::load::socket::{Sources, check_descriptors, raise_descriptor_limit};
use crate::load::wire::sse::EventData;

/// Connects and receives until standard input ends.
///
/// # Errors
/// The limit on open files is too low, or the process cannot wait for events.
pub fn clients(args: &MillionClientsArgs) -> Result<(), BenchError> {
    check_descriptors(raise_descriptor_limit(), u64::from(args.count))?;
    let sources = Sources::in_block(args.block, args.count).resetting();
    let mut clients = EventSources::new(EventSourcePlan {
        clients: args.count,
        servers: vec![args.node],
        sources,
        opening_max: OPENING_MAX,
        later_clients: 0,
        away_ns: 0,
    })?;
    clients.watch_pipe(stdin())?;
    let mut crowd = Crowd {
        first: args.first,
        common: vec![0; args.count as usize],
        own: Vec::new(),
        latencies: Latencies::new(),
        receipts: Receipts::default(),
    };
    let mut said = GroupState::default();
    let (mut said_ns, mut commands) = (0, String::new());
    loop {
        if clients.turn(monotonic_ns() + LOOK_NS, &mut crowd)? {
            let mut bytes = [0; 256];
            let read = rustix::io::read(stdin(), &mut bytes[..]);
            match read.map_err(BenchError::system("read standard input"))? {
                0 => return Ok(()),
                length => commands += &String::from_utf8_lossy(&bytes[..length]),
            }
            while let Some((command, rest)) = commands.split_once('\n') {
                match command {
                    STOP_OPENING => clients.stop_opening(),
                    REPORT => say(&Word::Receipts(crowd.receipts(&clients)))?,
                    other => return Err(BenchError::Option(format!("no command: {other:?}"))),
                }
                commands = rest.to_owned();
            }
        }
        let now_ns = monotonic_ns();
        if now_ns >= said_ns + LOOK_NS {
            let counts = clients.counts();
            let state = GroupState {
                subscribed: counts.subscribed,
                over: counts.over,
                settled: clients.is_settled(),
                common: crowd.latencies.count() as u32,
                own: crowd.own.len() as u32,
            };
            if state != said {
                said_ns = now_ns;
                said = state;
                say(&Word::State(said.clone()))?;
            }
        }
    }
}

fn say(word: &Word) -> Result<(), BenchError> {
    let line = serde_json::to_string(word).expect("structures of texts and numbers are JSON");
    let mut out = std::io::stdout().lock();
    let said = writeln!(out, "{line}").and_then(|()| out.flush());
    said.map_err(BenchError::system("write to standard output"))
}

/// What the clients have received.
struct Crowd {
    /// The number of the first client.
    first: u32,
    /// For each client, how often it has the message to all.
    common: Vec<u8>,
    own: Vec<(u32, u32, u64)>,
    latencies: Latencies,
    receipts: Receipts,
}

/// The data of an event.
#[derive(Deserialize)]
struct Record<'a> {
    #[serde(borrow)]
    stream: Cow<'a, str>,
    #[serde(borrow)]
    text: Cow<'a, str>,
}

impl Crowd {
    fn receipts(&self, clients: &EventSources) -> Receipts {
        let once = self.common.iter().filter(|&&count| count == 1).count();
        let again = self.common.iter().map(|&n| u64::from(n.saturating_sub(1)));
        Receipts {
            common_once: once as u32,
            common_again: again.sum(),
            common_ns: self.latencies.recorded().collect(),
            own: self.own.clone(),
            lost: clients.counts().lost,
            reasons: clients.counts().reasons.clone(),
            ..self.receipts.clone()
        }
    }
}

impl Audience for Crowd {
    fn target(&self, client: u32, _offset: Option<&[u8]>, out: &mut Vec<u8>) {
        let pattern = pattern(self.first + client);
        let target = write!(out, "/v1/events?stream={COMMON}&stream={pattern}");
        target.expect("writing to a vector can't fail");
    }

    fn record(&mut self, client: u32, data: EventData<'_>, now_ns: u64) {
        let record = match data {
            EventData::Line(line) => serde_json::from_slice::<Record<'_>>(line).ok(),
            EventData::None | EventData::Lines(_) => None,
        };
        let sent_ns = record.as_ref().and_then(|r| r.text.parse::<u64>().ok());
        let (Some(record), Some(sent_ns)) = (record, sent_ns) else {
            self.receipts.strays += 1;
            return;
        };
        let took_ns = now_ns.saturating_sub(sent_ns);
        let number = self.first + client;
        if record.stream == COMMON {
            let count = &mut self.common[client as usize];
            *count = count.saturating_add(1);
            if *count == 1 {
                self.latencies.record(took_ns);
            }
        } else if record.stream == inbox(number) {
            match self.own.iter_mut().find(|(other, ..)| *other == number) {
                Some((_, count, _)) => *count += 1,
                None => self.own.push((number, 1, took_ns)),
            }
        } else {
            self.receipts.strays += 1;
        }
    }
}

/// How many clients of a process may be connecting at a time.
const OPENING_MAX: u32 = 512;

/// How often the process says how far it is.
const LOOK_NS: u64 = 100 * MILLISECOND_NS;
