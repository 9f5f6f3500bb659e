//! Catch-up reads: readers that read a stream whole, from its beginning, at the same time, again and again.
//!
//! Each server gets a stream of the same records, is read once with a check of every byte, and then takes turns with the other
//! server, if there is one.

mod args;
mod fill;
mod reader;
mod readers;
mod records;

pub use args::ReadArgs;
pub use records::RecordFaults;

use crate::BenchError;
use crate::client::HttpClient;
use crate::load::cost::CostMeter;
use crate::load::produce::new_run;
use crate::load::progress::Progress;
use crate::load::report::read::{ReadReport, ReadTurn};
use crate::load::scrape::Scrape;
use crate::load::servers::{MeasuredServer, letter};
use crate::load::socket::{check_descriptors, raise_descriptor_limit};
use crate::units::count;
use readers::{ReadPlan, Readers};
use records::{RecordCheck, Records};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Fills a stream in each server, and has it read until all rounds are over.
///
/// Progress goes to standard error.
///
/// # Errors
///
/// When the run can't be made, or is interrupted. Records that were lost, repeated or damaged, and reads of another length than
/// the stream's, are in the report; [`ReadReport::exit_code`] sums it up.
pub fn read(args: &ReadArgs, stop: &AtomicBool) -> Result<ReadReport, BenchError> {
    check_descriptors(raise_descriptor_limit(), u64::from(args.readers))?;
    let progress = Progress::new(None);
    let records = Records::new(args.size, u64::from(args.megabytes) * MEGABYTE);
    let name = format!("read/{:08x}", new_run());
    let servers = args.servers.open()?;
    let mut report = ReadReport {
        servers: servers.iter().map(|server| server.name.clone()).collect(),
        record_bytes: args.size as u64,
        records: records.count(),
        stream_bytes: records.bytes(),
        is_old: args.old.is_some(),
        readers: args.readers,
        times: args.times,
        first_reads: Vec::new(),
        rounds: Vec::new(),
    };
    for (number, server) in servers.iter().enumerate() {
        let say = |what: &str| progress.say(&format!("{}: {what}", letter(number)));
        say(&format!("appending {} records", count(records.count())));
        let all = (records.count(), args.size);
        let write = |record: u64, out: &mut Vec<u8>| records.write(record, out);
        fill::fill(&server.url, &name, all, write, stop)?;
        if let Some(megabytes) = args.old {
            say(&format!(
                "appending {} MB behind them",
                count(megabytes.into())
            ));
            grow_old(server, &name, megabytes, stop)?;
        }
        say("checking");
        let mut check = RecordCheck::new(&records);
        let plan = ReadPlan {
            server: &server.url,
            stream: &name,
            bytes: records.bytes(),
            readers: 1,
            times: 1,
        };
        Readers::connect(plan)?.run_checked(&mut check, stop)?;
        report.first_reads.push(check.finish());
    }
    for round in 1..=args.servers.rounds {
        progress.say(&format!("round {round}"));
        let turn = |server: &MeasuredServer| {
            let plan = ReadPlan {
                server: &server.url,
                stream: &name,
                bytes: records.bytes(),
                readers: args.readers,
                times: args.times,
            };
            run_turn(server, plan, stop)
        };
        let turns = servers.iter().map(turn).collect::<Result<_, _>>()?;
        report.rounds.push(turns);
    }
    Ok(report)
}

/// Measures one server once.
fn run_turn(
    server: &MeasuredServer,
    plan: ReadPlan<'_>,
    stop: &AtomicBool,
) -> Result<ReadTurn, BenchError> {
    let readers = Readers::connect(plan)?;
    let meter = CostMeter::begin(server.probe.as_ref())?;
    let reads = readers.run(stop)?;
    Ok(ReadTurn {
        bytes: reads.bytes,
        responses: reads.responses,
        wrong: reads.wrong,
        bytes_per_second: reads.bytes as f64 * 1e9 / reads.took_ns.max(1) as f64,
        read: reads.latencies.percentiles(),
        cost: meter.end()?,
    })
}

/// Appends other data, and waits until the server has brought all full segments into history.
fn grow_old(
    server: &MeasuredServer,
    name: &str,
    megabytes: u32,
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    let data = vec![b'x'; MEGABYTE as usize];
    let all = (u64::from(megabytes), data.len());
    let write = |_, out: &mut Vec<u8>| out.extend_from_slice(&data);
    fill::fill(&server.url, &format!("{name}-behind"), all, write, stop)?;
    loop {
        let mut client = HttpClient::connect(server.url.address)?;
        let (status, text) = client.request("GET", "/metrics", b"")?;
        // Only of Encke it is known how it says so.
        let metrics = Scrape::parse(&String::from_utf8_lossy(&text));
        if status != 200 || metrics.value("encke_log_segments_waiting") == 0.0 {
            return Ok(());
        }
        if stop.load(Ordering::Relaxed) {
            return Err(BenchError::Interrupted);
        }
        std::thread::sleep(LOOK);
    }
}

/// How often the server is asked whether segments wait.
const LOOK: Duration = Duration::from_millis(50);

const MEGABYTE: u64 = 1_000_000;
