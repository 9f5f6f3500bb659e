//! Spray: producers only, at a rate or as fast as they are acknowledged.

use crate::BenchError;
use crate::load::ack_log::AckLog;
use crate::load::args::SprayArgs;
use crate::load::clock::{SECOND_NS, duration_ns};
use crate::load::create;
use crate::load::probe::Probe;
use crate::load::produce::{Choice, ProducerPlan, Producers, new_run};
use crate::load::progress::{Progress, Speed};
use crate::load::report::spray::{NotAcknowledged, SprayReport};
use crate::load::requests::{self, Mode, RequestPlan};
use crate::load::socket::{Sources, check_descriptors, raise_descriptor_limit};
use crate::load::wire::payload::Format;
use crate::load::wire::target::{Requests, ServerUrl, Streams};
use crate::units::{count, per_second};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How often progress is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// How long to wait for the last acknowledgements.
const GRACE_NS: u64 = 5 * SECOND_NS;

/// Sprays until the duration or the number of messages is reached, every producer has lost its
/// server, or SIGINT or SIGTERM arrives; whichever it is, it ends with the report.
///
/// Progress goes to standard error. A second signal ends the process.
///
/// # Errors
///
/// When the run can't be made at all, or the acknowledgement log can't be written. What the server
/// refuses is in the report; [`SprayReport::exit_code`] sums it up.
pub fn spray(args: &SprayArgs, stop: &AtomicBool) -> Result<SprayReport, BenchError> {
    spray_counting(args, stop, &AtomicU64::new(0))
}

/// The same; `acknowledged` is the number of acknowledged messages so far, updated every [`LOOK`].
pub(crate) fn spray_counting(
    args: &SprayArgs,
    stop: &AtomicBool,
    acknowledged: &AtomicU64,
) -> Result<SprayReport, BenchError> {
    check_descriptors(raise_descriptor_limit(), u64::from(args.producers))?;
    let target = ServerUrl::parse(&args.url, &args.trust)?;
    let mut servers = vec![target.address];
    for url in &args.also {
        servers.push(ServerUrl::parse(url, &args.trust)?.address);
    }
    let streams = match &args.one {
        Some(name) => Streams::one(name),
        None => Streams::numbered(&args.prefix, args.streams),
    };
    let requests = Requests::new(&target, &streams, &args.content_type)?;
    let log = args.ack_log.as_deref().map(AckLog::open).transpose()?;
    let probe = args.server_pid.map(Probe::new).transpose()?;
    let mut progress = Progress::new(args.progress);
    let create_seconds = match args.no_create {
        true => None,
        false => {
            progress.say(&format!(
                "creating {} streams",
                count(streams.count().into())
            ));
            Some(create::create(&target, &requests, streams.count(), stop)?)
        }
    };
    let orders = ProducerPlan {
        run: new_run(),
        producers: args.producers,
        streams: streams.clone(),
        requests,
        format: Format::of(&args.content_type),
        size: args.size,
        choice: Choice::Random,
        messages: args.messages,
    };
    let plan = RequestPlan {
        servers,
        sources: Sources::new(target.address, args.producers).encrypting(target.tls.as_ref()),
        lines: args.producers as usize,
        depth: args.pipeline as usize,
        rate: args.rate,
        duration_ns: args.duration.map_or(u64::MAX, duration_ns),
        mode: Mode::KeepAlive {
            reconnect_timeout_ns: duration_ns(args.reconnect_timeout),
        },
        grace_ns: GRACE_NS,
    };
    let mut producers = Producers::new(orders, log);
    let gauge = producers.gauge();
    let cpu_before_ns = probe.as_ref().map(Probe::cpu_ns).transpose()?;
    let outcome = std::thread::scope(|scope| {
        let engine = scope.spawn(|| requests::run(plan, &mut producers, stop));
        let mut speed = Speed::new();
        while !engine.is_finished() {
            acknowledged.store(gauge.acknowledged(), Ordering::Relaxed);
            progress.when_due(|| {
                format!(
                    "acknowledged {}  refused {}  rate {}",
                    count(gauge.acknowledged()),
                    count(gauge.refused()),
                    per_second(speed.of(gauge.acknowledged()))
                )
            });
            std::thread::sleep(LOOK);
        }
        engine
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    // A server that has died in the run, as in a crash test, has no processor time to read.
    let cpu_ns = probe
        .as_ref()
        .and_then(|probe| probe.cpu_ns().ok())
        .zip(cpu_before_ns);
    let account = producers.account();
    let seconds = (outcome.ended_ns - outcome.started_ns) as f64 / SECOND_NS as f64;
    let per_message = |(after, before): (u64, u64)| {
        (after - before) as f64 / 1e3 / account.acknowledged.max(1) as f64
    };
    Ok(SprayReport {
        url: args.url.clone(),
        producers: args.producers,
        streams: streams.count(),
        content_type: args.content_type.clone(),
        size: args.size,
        pipeline: args.pipeline,
        create_seconds,
        seconds,
        sent: account.sent,
        acknowledged: account.acknowledged,
        acknowledged_per_second: account.acknowledged as f64 / seconds.max(1e-9),
        acknowledgement: account.latency.percentiles(),
        lateness: args.rate.and_then(|_| account.lateness.percentiles()),
        refused: NotAcknowledged::new(account, &outcome),
        server_cpu_per_message_us: cpu_ns.map(per_message),
    })
}
