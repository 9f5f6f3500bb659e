//! Readers that read one stream at the same time, each several times, in one epoll loop.

use super::reader::{Reader, Received, Room};
use super::records::RecordCheck;
use crate::BenchError;
use crate::load::clock::{MILLISECOND_NS, SECOND_NS, monotonic_ns};
use crate::load::latency::Latencies;
use crate::load::poller::Poller;
use crate::load::wire::target::ServerUrl;
use std::sync::atomic::{AtomicBool, Ordering};

/// What readers do.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadPlan<'a> {
    pub(super) server: &'a ServerUrl,
    /// The stream's name.
    pub(super) stream: &'a str,
    /// How many bytes it has.
    pub(super) bytes: u64,
    pub(super) readers: u32,
    /// How often each of them reads it.
    pub(super) times: u32,
}

/// What readers have read.
#[derive(Debug)]
pub(super) struct Reads {
    /// From the first request to the end of the last read, in nanoseconds.
    pub(super) took_ns: u64,
    /// Bytes of bodies.
    pub(super) bytes: u64,
    pub(super) responses: u64,
    /// Reads that had another number of bytes than the stream.
    pub(super) wrong: u64,
    /// The time of each whole read.
    pub(super) latencies: Latencies,
}

/// Readers that are connected.
pub(super) struct Readers<'a> {
    plan: ReadPlan<'a>,
    poller: Poller,
    /// Those that have not read as often as they should.
    readers: Vec<Option<Reader>>,
    busy: usize,
    reads: Reads,
    room: Room,
}

impl<'a> Readers<'a> {
    /// Connects all readers.
    pub(super) fn connect(plan: ReadPlan<'a>) -> Result<Self, BenchError> {
        let poller = Poller::new()?;
        let reader = |index: u32| Reader::connect(plan.server, &poller, index.into()).map(Some);
        let readers = (0..plan.readers).map(reader).collect::<Result<_, _>>()?;
        Ok(Self {
            readers,
            busy: plan.readers as usize,
            reads: Reads {
                took_ns: 0,
                bytes: 0,
                responses: 0,
                wrong: 0,
                latencies: Latencies::new(),
            },
            room: Room::new(false),
            poller,
            plan,
        })
    }

    /// Reads until every reader has read the stream as often as it should.
    pub(super) fn run(self, stop: &AtomicBool) -> Result<Reads, BenchError> {
        self.run_with(None, stop)
    }

    /// The same with a check of all bytes: for a single reader that reads once.
    pub(super) fn run_checked(
        mut self,
        check: &mut RecordCheck<'_>,
        stop: &AtomicBool,
    ) -> Result<Reads, BenchError> {
        debug_assert_eq!((self.plan.readers, self.plan.times), (1, 1));
        self.room = Room::new(true);
        self.run_with(Some(check), stop)
    }

    fn run_with(
        mut self,
        mut check: Option<&mut RecordCheck<'_>>,
        stop: &AtomicBool,
    ) -> Result<Reads, BenchError> {
        let begun_ns = monotonic_ns();
        for reader in self.readers.iter_mut().flatten() {
            reader.rewind();
            reader.ask(self.plan.server, self.plan.stream, &mut self.room)?;
        }
        let mut ready = Vec::new();
        let mut heard_ns = begun_ns;
        while self.busy > 0 {
            let until_ns = monotonic_ns() + LOOK_NS;
            self.poller
                .wait(until_ns, |event| ready.push(event.token))?;
            if stop.load(Ordering::Relaxed) {
                return Err(BenchError::Interrupted);
            }
            let now_ns = monotonic_ns();
            if !ready.is_empty() {
                heard_ns = now_ns;
            } else if now_ns > heard_ns + SILENCE_NS_MAX {
                return Err(BenchError::Server("did not answer in time".into()));
            }
            for token in ready.drain(..) {
                self.serve(token, check.as_deref_mut())?;
            }
        }
        self.reads.took_ns = monotonic_ns() - begun_ns;
        Ok(self.reads)
    }

    /// Takes what has come for one reader, but not without end, because others wait.
    fn serve(
        &mut self,
        token: u64,
        mut check: Option<&mut RecordCheck<'_>>,
    ) -> Result<(), BenchError> {
        for _ in 0..RECEIVES_PER_TURN {
            let Some(reader) = &mut self.readers[token as usize] else {
                return Ok(());
            };
            match reader.receive(&mut self.room, check.as_deref_mut())? {
                Received::Nothing => return Ok(()),
                Received::Part => {}
                Received::Response(is_last) => return self.next_response(token, is_last),
            }
        }
        Ok(())
    }

    /// A response has ended: requests the next one, if there is one.
    fn next_response(&mut self, token: u64, is_last: bool) -> Result<(), BenchError> {
        let slot = &mut self.readers[token as usize];
        let Some(reader) = slot else { return Ok(()) };
        self.reads.responses += 1;
        if is_last {
            self.reads.bytes += reader.bytes;
            self.reads.wrong += u64::from(reader.bytes != self.plan.bytes);
            self.reads
                .latencies
                .record(monotonic_ns() - reader.since_ns);
            reader.times += 1;
            if reader.times == self.plan.times {
                self.busy -= 1;
                *slot = None;
                return Ok(());
            }
            reader.rewind();
        }
        reader.reopen(self.plan.server, &self.poller, token)?;
        reader.ask(self.plan.server, self.plan.stream, &mut self.room)
    }
}

/// How often one reader receives before the others have their turn.
const RECEIVES_PER_TURN: u32 = 8;

/// How often the loop looks at its stop flag when nothing happens.
const LOOK_NS: u64 = 100 * MILLISECOND_NS;

/// How long a server may send nothing at all before the run is given up.
const SILENCE_NS_MAX: u64 = 30 * SECOND_NS;
