//! What a flood is to be, worked out from its options and from what the machine allows.

use super::leaving::LEAVING_MAX;
use super::pipe::Work;
use crate::BenchError;
use crate::load::args::{FloodArgs, To};
use crate::load::clock::{SECOND_NS, duration_ns};
use crate::load::produce::{Choice, Orders, new_run};
use crate::load::requests;
use crate::load::socket::{
    DESCRIPTORS_RESERVED, Sources, check_descriptors, raise_descriptor_limit,
};
use crate::load::wire::payload::Format;
use crate::load::wire::target::{Requests, Streams, Target};

/// How long the run's own producers try to connect again.
const PATIENCE_NS: u64 = 2 * SECOND_NS;

/// How long to wait for the last acknowledgements.
const GRACE_NS: u64 = 5 * SECOND_NS;

/// The most worker processes.
const WORKERS_MAX: u64 = 1_000;

/// A flood, planned.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) target: Target,
    pub(crate) streams: Streams,
    pub(crate) requests: Requests,
    pub(crate) format: Format,
    pub(crate) run: u32,
    pub(crate) workers: u32,
    /// Whether workers are processes; else there is one, in a thread.
    pub(crate) processes: bool,
    pub(crate) publishing: Option<Orders>,
}

impl Plan {
    /// Works out a plan, or says why there can't be one.
    pub(crate) fn new(args: &FloodArgs) -> Result<Self, BenchError> {
        let bad = |text: &str| Err(BenchError::Option(text.into()));
        if args.slow > args.subscribers {
            return bad("there can't be more slow subscribers than subscribers");
        }
        if args.floor.is_some() && args.publish.is_none() {
            return bad("--floor compares deliveries, so it needs --publish");
        }
        if args.slow > 0 && args.publish.is_none() {
            return bad("the slow pause when publishing begins, so --slow needs --publish");
        }
        if args.hostile > 0 && (args.publish.is_none() || args.duration.is_none() || args.slow > 0)
        {
            return bad(
                "--hostile compares the second half of the time with the first, so it needs --publish and --duration, and \
                 no --slow",
            );
        }
        if args.endure && args.server_pid.is_none() {
            return bad(
                "--endure judges the server's memory and descriptors, so it needs --server-pid",
            );
        }
        let target = Target::parse(&args.url)?;
        let streams = match &args.one {
            Some(name) => Streams::one(name),
            None => Streams::numbered(&args.prefix, args.subscribers),
        };
        let requests = Requests::new(&target, &streams, &args.content_type)?;
        let format = Format::of(&args.content_type);
        let run = new_run();
        let limit = raise_descriptor_limit();
        let publishers = args.publish.map_or(0, |_| args.publishers);
        check_descriptors(limit, u64::from(publishers) + u64::from(args.hostile))?;
        let limit = limit - u64::from(args.hostile);
        // Whoever hangs up holds a descriptor until the server notices, and may be back before.
        let leaving = if args.churn > 0.0 {
            LEAVING_MAX as u64
        } else {
            0
        };
        let limit = limit.saturating_sub(leaving);
        let (workers, processes) = spread(args.subscribers, publishers, limit, args.workers)?;
        let publishing = args.publish.map(|_| Orders {
            run,
            producers: publishers,
            // Publishing to the first of many needs no others.
            streams: match (args.to, &args.one) {
                (To::One, None) => Streams::numbered(&args.prefix, 1),
                _ => streams.clone(),
            },
            requests: requests.clone(),
            format,
            size: args.size,
            choice: if args.to == To::RoundRobin {
                Choice::RoundRobin
            } else {
                Choice::Random
            },
            messages: None,
            idempotent: false,
        });
        Ok(Self {
            target,
            streams,
            requests,
            format,
            run,
            workers,
            processes,
            publishing,
        })
    }

    /// What worker `number` is to do.
    pub(crate) fn work(&self, args: &FloodArgs, number: u32) -> Work {
        let workers = f64::from(self.workers);
        Work {
            url: args.url.clone(),
            name: args.one.clone().unwrap_or_else(|| args.prefix.clone()),
            streams: if args.one.is_some() {
                0
            } else {
                self.streams.count()
            },
            content_type: args.content_type.clone(),
            format: self.format,
            long_poll: args.long_poll,
            run: self.run,
            first: number,
            step: self.workers,
            subscribers: args.subscribers,
            rate: args.rate / workers,
            sources: args.sources,
            receive_buffer: args.receive_buffer,
            slow: args.slow,
            churn: args.churn / workers,
            away_ns: duration_ns(args.away),
        }
    }

    /// How the run's own producers make their requests.
    pub(crate) fn requests_plan(&self, args: &FloodArgs) -> requests::Plan {
        requests::Plan {
            server: self.target.address,
            sources: Sources::new(self.target.address, args.publishers, None),
            lines: args.publishers as usize,
            depth: 1,
            rate: args.publish.filter(|rate| rate.is_finite()),
            duration_ns: args.duration.map_or(u64::MAX, duration_ns),
            patience_ns: PATIENCE_NS,
            grace_ns: GRACE_NS,
        }
    }
}

/// How many workers it takes, and whether they must be processes of their own.
fn spread(
    subscribers: u32,
    publishers: u32,
    limit: u64,
    asked: Option<u32>,
) -> Result<(u32, bool), BenchError> {
    let fits_here = u64::from(subscribers) + u64::from(publishers) + DESCRIPTORS_RESERVED <= limit;
    if fits_here && asked.is_none_or(|asked| asked == 1) {
        return Ok((1, false));
    }
    let room = limit.saturating_sub(DESCRIPTORS_RESERVED).max(1);
    let needed = u64::from(subscribers).div_ceil(room);
    let workers = asked.map_or(needed, |asked| u64::from(asked.min(subscribers)));
    if needed > workers.min(WORKERS_MAX) {
        let wanted =
            u64::from(subscribers).div_ceil(workers.min(WORKERS_MAX)) + DESCRIPTORS_RESERVED;
        return Err(BenchError::TooFewDescriptors { limit, wanted });
    }
    // At most WORKERS_MAX or what was asked for, both of which fit.
    Ok((workers as u32, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_as_many_as_the_limit_asks_for() {
        assert_eq!(spread(1_000, 64, 20_000, None).unwrap(), (1, false));
        assert_eq!(spread(1_000, 64, 20_000, Some(1)).unwrap(), (1, false));
        assert_eq!(spread(1_000, 64, 20_000, Some(2)).unwrap(), (2, true));
        assert_eq!(spread(19_936, 0, 20_000, None).unwrap(), (1, false));
        assert_eq!(spread(19_936, 1, 20_000, None).unwrap(), (1, true));
        assert_eq!(spread(19_937, 0, 20_000, None).unwrap(), (2, true));
        assert_eq!(spread(1_000_000, 64, 20_000, None).unwrap(), (51, true));
        assert_eq!(spread(3, 0, 20_000, Some(8)).unwrap(), (3, true));
        assert!(spread(100_000, 0, 20_000, Some(4)).is_err());
    }

    #[test]
    fn options_that_make_no_sense_together_are_refused() {
        for args in [
            FloodArgs {
                slow: 5,
                publish: Some(1.0),
                subscribers: 4,
                ..FloodArgs::default()
            },
            FloodArgs {
                slow: 5,
                ..FloodArgs::default()
            },
            FloodArgs {
                hostile: 5,
                publish: Some(1.0),
                ..FloodArgs::default()
            },
            FloodArgs {
                endure: true,
                ..FloodArgs::default()
            },
            FloodArgs {
                floor: Some(std::time::Duration::from_secs(1)),
                ..FloodArgs::default()
            },
        ] {
            assert!(matches!(Plan::new(&args), Err(BenchError::Option(_))));
        }
    }
}
