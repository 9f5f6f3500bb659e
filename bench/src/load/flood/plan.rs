//! The plan of a flood, computed from its options and the machine's limits.

use super::leaving::LEAVING_MAX;
use crate::BenchError;
use crate::load::args::{FloodArgs, To};
use crate::load::clock::{SECOND_NS, duration_ns};
use crate::load::kinds::SubscriberKind;
use crate::load::produce::{Choice, ProducerPlan, new_run};
use crate::load::requests;
use crate::load::socket::{Sources, check_descriptors, raise_descriptor_limit};
use crate::load::wire::payload::Format;
use crate::load::wire::target::{Requests, ServerUrl, Streams};

/// The streams' content type.
const CONTENT_TYPE: &str = "application/json";

/// How long the run's own producers try to connect again.
const RECONNECT_TIMEOUT_NS: u64 = 2 * SECOND_NS;

/// How long to wait for the last acknowledgements.
const GRACE_NS: u64 = 5 * SECOND_NS;

/// A flood, planned.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) target: ServerUrl,
    pub(crate) streams: Streams,
    pub(crate) requests: Requests,
    pub(crate) run: u32,
    kinds: Vec<SubscriberKind>,
    pub(crate) publishing: Option<ProducerPlan>,
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
        if args.kinds.is_empty() {
            return bad("--kinds needs a kind");
        }
        let target = ServerUrl::parse(&args.url, &args.trust)?;
        let streams = match &args.one {
            Some(name) => Streams::one(name),
            None => Streams::numbered(&args.prefix, args.subscribers),
        };
        let requests = Requests::new(&target, &streams, CONTENT_TYPE)?;
        let run = new_run();
        let publishers = args.publish.map_or(0, |_| args.publishers);
        // A client that hangs up holds a descriptor until the server notices, and can be back before.
        let leaving = if args.churn > 0.0 {
            LEAVING_MAX as u64
        } else {
            0
        };
        let clients = [args.subscribers, publishers, args.hostile].map(u64::from);
        let connections = clients.iter().sum::<u64>() + leaving;
        check_descriptors(raise_descriptor_limit(), connections)?;
        let publishing = args.publish.map(|_| ProducerPlan {
            run,
            producers: publishers,
            streams: streams.clone(),
            requests: requests.clone(),
            format: Format::Json,
            size: args.size,
            choice: if args.to == To::RoundRobin {
                Choice::RoundRobin
            } else {
                Choice::Random
            },
            messages: None,
        });
        Ok(Self {
            target,
            streams,
            requests,
            run,
            kinds: args.kinds.clone(),
            publishing,
        })
    }

    /// The kind of a subscriber.
    pub(crate) fn kind_of(&self, subscriber: u32) -> SubscriberKind {
        self.kinds[subscriber as usize % self.kinds.len()]
    }

    /// Whether there are several kinds.
    pub(crate) fn is_mixed(&self) -> bool {
        self.kinds.iter().any(|kind| *kind != self.kinds[0])
    }

    /// How the run's own producers make their requests.
    pub(crate) fn requests_plan(&self, args: &FloodArgs) -> requests::RequestPlan {
        requests::RequestPlan {
            servers: vec![self.target.address],
            sources: Sources::new(self.target.address, args.publishers)
                .encrypting(self.target.tls.as_ref()),
            lines: args.publishers as usize,
            depth: 1,
            rate: args.publish.filter(|rate| rate.is_finite()),
            duration_ns: args.duration.map_or(u64::MAX, duration_ns),
            mode: requests::Mode::KeepAlive {
                reconnect_timeout_ns: RECONNECT_TIMEOUT_NS,
            },
            grace_ns: GRACE_NS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                kinds: Vec::new(),
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
