//! Reconnect storms: all subscribers hang up and reconnect at once, as after a restart of the server.
//!
//! One thread and one epoll instance, because the server is measured: every client connects right after the one before it,
//! sends its request when it is connected, and is served when the head of a 200 has arrived. Clients do not retry, so that
//! refused and lost connections are counted.

use crate::BenchError;
use crate::load::args::StormArgs;
use crate::load::clock::{SECOND_NS, duration_ns, monotonic_ns};
use crate::load::create;
use crate::load::latency::{Latencies, Percentiles};
use crate::load::poller::{Poller, Ready};
use crate::load::probe::Probe;
use crate::load::socket::{Sources, check_descriptors, connected, raise_descriptor_limit};
use crate::load::wire::http::parse_head;
use crate::load::wire::target::{Requests, ServerUrl, Streams};
use crate::load::wire::transport::Wire;
use crate::report::Table;
use crate::units::{count, micros, percentiles};
use rustix::net::sockopt;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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
    let mut run = Run {
        sources: Sources::new(target.address, args.subscribers).encrypting(target.tls.as_ref()),
        poller: Poller::new()?,
        patience_ns: duration_ns(args.patience),
        target,
        requests,
        clients: Vec::new(),
    };
    let mut storms = Vec::new();
    for _ in 0..args.storms {
        run.hang_up();
        std::thread::sleep(args.away);
        if stop.load(Ordering::Relaxed) {
            break;
        }
        storms.push(run.storm(args.subscribers, probe.as_ref(), stop)?);
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

impl StormReport {
    /// The report as tables.
    pub(crate) fn tables(&self) -> Vec<Table> {
        let mut table = Table::default();
        let t = &mut table;
        let asked = count(u64::from(self.subscribers));
        t.line(
            "storm",
            format!("{asked} subscribers at once at {}", self.url),
        );
        for (number, storm) in (1..).zip(&self.storms) {
            let mut text = format!(
                "{} of {asked} served in {:.2} s, {} refused",
                count(storm.served),
                storm.seconds,
                count(storm.refused())
            );
            if let Some(cpu_us) = storm.server_cpu_us {
                text += &format!(", {} of server cpu each", micros(cpu_us));
            }
            t.line(format!("  {number}"), text);
            if storm.resumed > 0 {
                t.line("    resumed", count(storm.resumed));
            }
            if let Some(latency) = &storm.latency {
                t.line("    waited", percentiles(latency));
            }
            for (reason, number) in &storm.unserved {
                t.line("    not served", format!("{}: {reason}", count(*number)));
            }
        }
        vec![table]
    }
}

struct Run {
    target: ServerUrl,
    requests: Requests,
    sources: Sources,
    poller: Poller,
    patience_ns: u64,
    clients: Vec<Visitor>,
}

struct Visitor {
    socket: Wire,
    since_ns: u64,
    stage: Stage,
}

enum Stage {
    Connecting,
    /// What has come of the head.
    Asked(Vec<u8>),
    /// Served, or given up.
    Settled,
}

impl Run {
    /// Closes all connections with a reset, so that no port stays in TIME_WAIT.
    fn hang_up(&mut self) {
        for client in self.clients.drain(..) {
            // Where it fails the connection is gone already.
            let _ = sockopt::set_socket_linger(&client.socket, Some(Duration::ZERO));
        }
    }

    fn storm(
        &mut self,
        subscribers: u32,
        probe: Option<&Probe>,
        stop: &AtomicBool,
    ) -> Result<Storm, BenchError> {
        let mut storm = Storm::default();
        let mut latencies = Latencies::new();
        let cpu_before_ns = probe.map(Probe::cpu_ns).transpose()?;
        let start_ns = monotonic_ns();
        let mut last_ns = start_ns;
        let mut left = u64::from(subscribers);
        let mut buffer = vec![0; 64 << 10];
        let mut ready = Vec::new();
        let mut to_come = 0..subscribers;
        while left > 0 && !stop.load(Ordering::Relaxed) {
            let now_ns = monotonic_ns();
            if now_ns > start_ns + self.patience_ns {
                *storm.unserved.entry(NOT_IN_TIME.into()).or_default() += left;
                break;
            }
            // Enough connections to make one poll worth it.
            for _ in to_come.by_ref().take(CONNECTS_AT_ONCE) {
                if let Err(reason) = self.connect() {
                    left -= 1;
                    *storm.unserved.entry(reason).or_default() += 1;
                }
            }
            let until_ns = match to_come.is_empty() {
                true => now_ns + SECOND_NS / 10,
                false => now_ns,
            };
            self.poller.wait(until_ns, |event| ready.push(event))?;
            for event in ready.drain(..) {
                match self.serve(event, &mut buffer) {
                    None => {}
                    Some(Ok(since_ns)) => {
                        left -= 1;
                        storm.served += 1;
                        last_ns = monotonic_ns();
                        latencies.record(last_ns.saturating_sub(since_ns));
                    }
                    Some(Err(reason)) => {
                        left -= 1;
                        *storm.unserved.entry(reason).or_default() += 1;
                    }
                }
            }
        }
        storm.resumed = self
            .clients
            .iter()
            .filter(|client| client.socket.is_resumed())
            .count() as u64;
        storm.seconds = (last_ns - start_ns) as f64 / SECOND_NS as f64;
        storm.latency = latencies.percentiles();
        if let (Some(probe), Some(before_ns)) = (probe, cpu_before_ns) {
            let cpu_ns = probe.cpu_ns()?.saturating_sub(before_ns);
            storm.server_cpu_us = Some(cpu_ns as f64 / 1e3 / f64::from(subscribers));
        }
        Ok(storm)
    }

    fn connect(&mut self) -> Result<(), String> {
        let text = |error: rustix::io::Errno| error.to_string();
        let since_ns = monotonic_ns();
        let socket = self.sources.open(self.target.address).map_err(text)?;
        let token = self.clients.len() as u64;
        self.poller.add_socket(&socket, token).map_err(text)?;
        self.clients.push(Visitor {
            socket,
            since_ns,
            stage: Stage::Connecting,
        });
        Ok(())
    }

    /// Goes on with a client. Something once it is served, with when it began, or once it will not be.
    fn serve(&mut self, event: Ready, buffer: &mut [u8]) -> Option<Result<u64, String>> {
        let client = self.clients.get_mut(event.token as usize)?;
        let outcome = match &client.stage {
            Stage::Settled => return None,
            Stage::Connecting if event.writable => {
                match ask(client, &self.requests, event.token as u32) {
                    // Epoll does not report again what has arrived with this event.
                    Ok(()) if event.readable => read(client, buffer),
                    Ok(()) => None,
                    Err(reason) => Some(Err(reason)),
                }
            }
            Stage::Connecting => None,
            Stage::Asked(_) => match client.socket.flush() {
                Err(error) => Some(Err(error.to_string())),
                Ok(()) if event.readable => read(client, buffer),
                Ok(()) => None,
            },
        };
        if outcome.is_some() {
            client.stage = Stage::Settled;
        }
        outcome
    }
}

fn ask(client: &mut Visitor, requests: &Requests, stream: u32) -> Result<(), String> {
    let text = |error: rustix::io::Errno| error.to_string();
    connected(&client.socket).map_err(text)?;
    let mut request = Vec::new();
    requests.read(stream, "now", "&live=sse", &mut request);
    // A few hundred bytes always fit into a socket that has nothing else to send.
    let sent = client.socket.send(&request).map_err(text)?;
    if sent < request.len() {
        return Err("request cut short".into());
    }
    client.stage = Stage::Asked(Vec::new());
    Ok(())
}

fn read(client: &mut Visitor, buffer: &mut [u8]) -> Option<Result<u64, String>> {
    let Stage::Asked(head) = &mut client.stage else {
        return None;
    };
    loop {
        match client.socket.read(buffer) {
            Ok(0) => return Some(Err("closed without an answer".into())),
            Ok(length) => head.extend_from_slice(&buffer[..length]),
            Err(rustix::io::Errno::INTR) => continue,
            Err(rustix::io::Errno::AGAIN) => return None,
            Err(error) => return Some(Err(error.to_string())),
        }
        match parse_head(head) {
            Ok(Some((parsed, _))) if parsed.status == 200 => return Some(Ok(client.since_ns)),
            Ok(Some((parsed, _))) => return Some(Err(format!("status {}", parsed.status))),
            Ok(None) => {}
            Err(error) => return Some(Err(error.to_string())),
        }
    }
}

/// Connections that are begun before the others are polled.
const CONNECTS_AT_ONCE: usize = 64;

/// The reason of clients that were still waiting.
const NOT_IN_TIME: &str = "not in time";

const CONTENT_TYPE: &str = "application/json";
