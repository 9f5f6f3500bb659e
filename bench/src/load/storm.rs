//! Reconnect storms: all subscribers hang up and reconnect at once, as after a restart of the server.
//!
//! Every client connects right after the one before it, sends its request when it is connected, and is served when the head
//! of a 200 has arrived, or that of a 101 for a WebSocket. Clients do not retry, so that refused and lost connections are counted.

use crate::BenchError;
use crate::load::args::StormArgs;
use crate::load::clock::{SECOND_NS, duration_ns, monotonic_ns};
use crate::load::create;
use crate::load::kinds::SubscriberKind;
use crate::load::latency::{Latencies, Percentiles};
use crate::load::probe::Probe;
use crate::load::requests::{self, Mode, RequestPlan, Traffic};
use crate::load::socket::{Sources, check_descriptors, raise_descriptor_limit};
use crate::load::wire::target::{Requests, ServerUrl, Streams};
use crate::load::wire::websocket::SWITCHING_PROTOCOLS;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Lets storms loose until all are over or SIGINT or SIGTERM arrives.
///
/// # Errors
///
/// When the run can't be made at all. Clients that were not served are in the report;
/// [`StormReport::exit_code`] sums it up.
pub fn storm(args: &StormArgs, stop: &AtomicBool) -> Result<StormReport, BenchError> {
    let target = ServerUrl::parse(&args.url, &args.trust)?;
    check_descriptors(raise_descriptor_limit(), u64::from(args.subscribers))?;
    let streams = Streams::numbered(&args.prefix, args.subscribers);
    let requests = Requests::new(&target, &streams, CONTENT_TYPE)?;
    let probe = args.server_pid.map(Probe::new).transpose()?;
    if !args.no_create {
        create::create(&target, &requests, args.subscribers, stop)?;
    }
    let sources = Sources::new(target.address, args.subscribers).encrypting(target.tls.as_ref());
    let plan = RequestPlan {
        servers: vec![target.address],
        sources: sources.resetting(),
        lines: args.subscribers as usize,
        depth: 1,
        rate: None,
        duration_ns: duration_ns(args.serve_timeout),
        mode: Mode::OneRequest,
        grace_ns: 0,
    };
    let kind = match args.websocket {
        true => SubscriberKind::Websocket,
        false => SubscriberKind::Http1,
    };
    let mut storms = Vec::new();
    for _ in 0..args.storms {
        std::thread::sleep(args.away);
        if stop.load(Ordering::Relaxed) {
            break;
        }
        storms.push(run_one(
            plan.clone(),
            kind,
            &requests,
            probe.as_ref(),
            stop,
        )?);
    }
    Ok(StormReport {
        url: args.url.clone(),
        subscribers: args.subscribers,
        storms,
    })
}

/// What storms came to.
#[derive(Debug, Clone, Serialize)]
pub struct StormReport {
    /// The server.
    pub url: String,
    /// How many came at once, each to a stream of its own.
    pub subscribers: u32,
    /// Each storm, in order.
    pub storms: Vec<Storm>,
}

/// One storm.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Storm {
    /// Clients that were served.
    pub served: u64,
    /// Those that were not, by reason: a status, an error, or `not in time`.
    pub unserved: BTreeMap<String, u64>,
    /// Clients of TLS that were served and resumed an earlier session.
    pub resumed: u64,
    /// From the first attempt to the last head, in seconds.
    pub seconds: f64,
    /// From a client's own attempt to its head.
    pub latency: Option<Percentiles>,
    /// The server's processor time for each client, in microseconds, if its process is known.
    pub server_cpu_us: Option<f64>,
}

impl Storm {
    /// How many were refused: with a status, or by a refused or closed connection.
    pub fn refused(&self) -> u64 {
        let late = self.unserved.get(NOT_IN_TIME).copied().unwrap_or(0);
        self.unserved.values().sum::<u64>() - late
    }
}

impl StormReport {
    /// 0 when all were served in every storm, 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        let all = |storm: &Storm| storm.served == u64::from(self.subscribers);
        u8::from(self.storms.is_empty() || !self.storms.iter().all(all))
    }
}

/// Runs one storm. Its connections are reset on return, after the server's processor time was read.
fn run_one(
    plan: RequestPlan,
    kind: SubscriberKind,
    requests: &Requests,
    probe: Option<&Probe>,
    stop: &AtomicBool,
) -> Result<Storm, BenchError> {
    let subscribers = plan.lines as u64;
    let mut arrivals = Arrivals {
        kind,
        requests,
        since_ns: vec![0; plan.lines],
        last_ns: 0,
        latencies: Latencies::new(),
        storm: Storm::default(),
    };
    let cpu_before_ns = probe.map(Probe::cpu_ns).transpose()?;
    let outcome = requests::run(plan, &mut arrivals, stop)?;
    let mut storm = arrivals.storm;
    if let (Some(probe), Some(before_ns)) = (probe, cpu_before_ns) {
        let cpu_ns = probe.cpu_ns()?.saturating_sub(before_ns);
        storm.server_cpu_us = Some(cpu_ns as f64 / 1e3 / subscribers as f64);
    }
    let late = subscribers - storm.served - storm.unserved.values().sum::<u64>();
    if late > 0 && !stop.load(Ordering::Relaxed) {
        storm.unserved.insert(NOT_IN_TIME.into(), late);
    }
    let resumed = outcome.answered.iter().filter(|wire| wire.is_resumed());
    storm.resumed = resumed.count() as u64;
    storm.seconds = arrivals.last_ns.saturating_sub(outcome.started_ns) as f64 / SECOND_NS as f64;
    storm.latency = arrivals.latencies.percentiles();
    Ok(storm)
}

/// The subscribers of one storm, as they are served or not.
struct Arrivals<'a> {
    kind: SubscriberKind,
    requests: &'a Requests,
    /// When each began to connect.
    since_ns: Vec<u64>,
    /// When the last one was served.
    last_ns: u64,
    latencies: Latencies,
    storm: Storm,
}

impl Arrivals<'_> {
    fn refuse(&mut self, reason: String) {
        *self.storm.unserved.entry(reason).or_default() += 1;
    }
}

impl Traffic for Arrivals<'_> {
    fn connecting(&mut self, line: usize) {
        self.since_ns[line] = monotonic_ns();
    }

    fn next(&mut self, line: usize, _due_ns: u64, out: &mut Vec<u8>) -> bool {
        self.requests.subscribe(self.kind, line as u32, "now", out);
        true
    }

    fn done(&mut self, line: usize, status: u16, now_ns: u64) {
        let accepted = match self.kind {
            SubscriberKind::Websocket => SWITCHING_PROTOCOLS,
            SubscriberKind::Http1 | SubscriberKind::Http2 => 200,
        };
        if status != accepted {
            return self.refuse(format!("status {status}"));
        }
        self.storm.served += 1;
        self.last_ns = now_ns;
        self.latencies
            .record(now_ns.saturating_sub(self.since_ns[line]));
    }

    /// A lost connection is also given up, with the reason; one without an answer at the end is not in time.
    fn lost(&mut self, _line: usize) {}

    fn given_up(&mut self, _line: usize, reason: &str) {
        self.refuse(reason.to_owned());
    }
}

/// The reason of clients that were still waiting.
const NOT_IN_TIME: &str = "not in time";

const CONTENT_TYPE: &str = "application/json";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::args::TrustArgs;
    use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    fn storm_at(listener: &TcpListener, subscribers: u32, serve_timeout: Duration) -> StormReport {
        run(listener, subscribers, serve_timeout, false)
    }

    fn run(
        listener: &TcpListener,
        subscribers: u32,
        serve_timeout: Duration,
        websocket: bool,
    ) -> StormReport {
        let args = StormArgs {
            url: format!("http://{}", listener.local_addr().unwrap()),
            trust: TrustArgs::default(),
            websocket,
            subscribers,
            storms: 1,
            away: Duration::ZERO,
            serve_timeout,
            prefix: "s".into(),
            no_create: true,
            server_pid: None,
            json: false,
        };
        storm(&args, &AtomicBool::new(false)).unwrap()
    }

    /// Answers the request for s0 with 200, for s1 with 503, for s2 with something else than HTTP, and closes the others.
    fn answer(mut client: TcpStream) -> Option<TcpStream> {
        let request: Vec<_> = BufReader::new(&client)
            .lines()
            .map(Result::unwrap)
            .take_while(|line| !line.is_empty())
            .collect();
        let target = request[0].strip_prefix("GET /s").unwrap();
        let answer = match &target[..1] {
            "0" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nevent",
            "1" => "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
            "2" => "SSH-2.0-other\r\n\r\n",
            _ => return None,
        };
        client.write_all(answer.as_bytes()).unwrap();
        Some(client)
    }

    #[test]
    fn a_storm_ends_when_all_are_served_or_refused_and_then_hangs_up_with_a_reset() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let report = std::thread::scope(|scope| {
            scope.spawn(|| {
                let clients = listener.incoming().take(5).map(Result::unwrap);
                let open: Vec<_> = clients.filter_map(answer).collect();
                for mut client in open {
                    let ended = client.read(&mut [0]).unwrap_err();
                    assert_eq!(ended.kind(), ErrorKind::ConnectionReset);
                }
            });
            storm_at(&listener, 5, Duration::from_secs(3_600))
        });
        let storm = &report.storms[0];
        assert_eq!((storm.served, storm.refused()), (1, 4), "{report}");
        let reasons = [
            ("closed without an answer", 2),
            ("status 503", 1),
            ("the response head is not valid HTTP/1.x", 1),
        ];
        let reasons = reasons.map(|(reason, number)| (reason.to_owned(), number));
        assert_eq!(storm.unserved, BTreeMap::from(reasons));
        assert_eq!(storm.latency.unwrap().count, 1);
        assert_eq!(report.exit_code(), 1);
    }

    #[test]
    fn a_websocket_is_served_when_the_protocol_is_switched() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let report = std::thread::scope(|scope| {
            scope.spawn(|| {
                let clients = listener.incoming().take(2).map(Result::unwrap);
                let heads = [
                    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
                    "HTTP/1.1 200 OK\r\n\r\n",
                ];
                let open = clients.zip(heads).map(|(mut client, head)| {
                    let lines = BufReader::new(&client).lines().map(Result::unwrap);
                    let fields: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
                    assert!(fields.contains(&"Upgrade: websocket".into()), "{fields:?}");
                    client.write_all(head.as_bytes()).unwrap();
                    client
                });
                for mut client in open.collect::<Vec<_>>() {
                    client.read(&mut [0]).unwrap_err();
                }
            });
            run(&listener, 2, Duration::from_secs(3_600), true)
        });
        let storm = &report.storms[0];
        assert_eq!((storm.served, storm.refused()), (1, 1), "{report}");
        assert_eq!(storm.unserved["status 200"], 1, "{report}");
    }

    #[test]
    fn subscribers_of_a_silent_server_are_not_served_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let report = storm_at(&listener, 3, Duration::from_millis(50));
        let storm = &report.storms[0];
        assert_eq!(storm.unserved, BTreeMap::from([(NOT_IN_TIME.into(), 3)]));
        assert_eq!((storm.served, storm.refused()), (0, 0), "{report}");
    }
}
