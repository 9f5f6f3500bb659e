//! The options of the load tools.

use super::kinds::{HostileKind, SubscriberKind};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// Whom the clients of an https:// URL trust.
#[derive(Args, Debug, Clone, Default)]
pub struct TrustArgs {
    /// Certificates that an https:// URL may be signed by, in PEM format
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,

    /// Take any certificate of an https:// URL
    #[arg(long, conflicts_with = "tls_ca")]
    pub insecure: bool,
}

/// Opens subscribers, publishes to them, and reports deliveries, order, latency and the server's cost.
///
/// Each message carries its producer, its number and its time, so gaps, duplicates and reorderings show, whichever run publishes:
/// this run (--publish) or a spray at the same time.
#[derive(Args, Debug, Clone)]
pub struct FloodArgs {
    /// URL of the streams
    #[arg(long, value_name = "URL", default_value = DEFAULT_URL)]
    pub url: String,

    /// Whom to trust with https://
    #[command(flatten)]
    pub trust: TrustArgs,

    /// Number of subscribers
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub subscribers: u32,

    /// Kinds of subscribers, separated by commas and taken in turn: event streams over `http1` or `http2`, or `websocket`
    #[arg(
        long,
        value_name = "KINDS",
        value_enum,
        value_delimiter = ',',
        default_value = "http1",
        hide_possible_values = true
    )]
    pub kinds: Vec<SubscriberKind>,

    /// Connections to open per second; 0 opens all at once
    #[arg(long, value_name = "PER_SECOND", default_value_t = 2_000.0, value_parser = rate)]
    pub rate: f64,

    /// Prefix of the streams' names; each subscriber has its own stream: PREFIX0, PREFIX1, ...
    #[arg(long, value_name = "PREFIX", default_value = DEFAULT_PREFIX)]
    pub prefix: String,

    /// One stream for all subscribers
    #[arg(long, value_name = "NAME", conflicts_with = "prefix")]
    pub one: Option<String>,

    /// Use existing streams
    #[arg(long)]
    pub no_create: bool,

    /// Receive buffer of each subscriber (SO_RCVBUF) [default: the system's]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..))]
    pub receive_buffer: Option<u32>,

    /// Time to run once all are connected, such as 60s, 10m, 24h [default: until interrupted]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,

    /// Time between lines of progress [default: 1s on a terminal, else 10s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub progress: Option<Duration>,

    /// Process id of the server, to report the memory, CPU and open files of it and its child processes
    #[arg(long, value_name = "PID")]
    pub server_pid: Option<u32>,

    /// Messages to publish per second, or `max`: as fast as they are acknowledged
    #[arg(long, value_name = "PER_SECOND", value_parser = rate_or_max)]
    pub publish: Option<f64>,

    /// Bytes per message
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_SIZE, value_parser = size)]
    pub size: usize,

    /// The stream of the next message: `random` or `round-robin`
    #[arg(long, value_name = "WHICH", value_enum, default_value_t = To::Random, hide_possible_values = true)]
    pub to: To,

    /// Connections to publish over, each with one message in flight
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub publishers: u32,

    /// Subscribers that stop reading for --pause
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub slow: u32,

    /// How long slow subscribers stop reading
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub pause: Duration,

    /// When slow subscribers stop reading, from the first message
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    pub pause_after: Duration,

    /// Subscribers per second that hang up and resume from their offset
    #[arg(long, value_name = "PER_SECOND", default_value_t = 0.0, value_parser = rate)]
    pub churn: f64,

    /// Time between a hang-up and the return
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = duration)]
    pub away: Duration,

    /// The longest time in which the server must notice a hang-up
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = duration)]
    pub notice: Duration,

    /// Fail also if memory drifts, a hang-up is noticed late or never, or sockets stay open
    #[arg(long, requires = "server_pid")]
    pub endure: bool,

    /// The most that memory may drift in the last nine tenths of the run
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0, value_parser = rate)]
    pub drift_max: f64,

    /// Hostile clients in the second half of the run, which take the ways of their kind in turn
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub hostile: u32,

    /// Hostile clients of `http1` are silent, slow to send, or not reading; those of `websocket` send no pongs, half frames, pings
    /// or fragments without end, or do not read
    #[arg(long, value_name = "KIND", value_enum, default_value_t = HostileKind::Http1, hide_possible_values = true)]
    pub hostile_kind: HostileKind,

    /// Time without a message after which the rest counts as missing
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub drain: Duration,

    /// Afterwards measure a bare send(2) loop over as many sockets for TIME [default TIME: 5s]
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "5s", value_parser = duration)]
    pub floor: Option<Duration>,

    /// Write a line of figures per second to this CSV file
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Plot memory, connections and messages over time to this SVG file
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,

    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Connects all subscribers at once, hangs up all at once, and repeats that, as after a restart of the server.
///
/// Reports how soon each is served, and which are not.
#[derive(Args, Debug, Clone)]
pub struct StormArgs {
    /// URL of the streams
    #[arg(long, value_name = "URL", default_value = DEFAULT_URL)]
    pub url: String,

    /// Whom to trust with https://
    #[command(flatten)]
    pub trust: TrustArgs,

    /// Number of subscribers, each with its own stream
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub subscribers: u32,

    /// Open a WebSocket each, not an event stream
    #[arg(long)]
    pub websocket: bool,

    /// Number of storms
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub storms: u32,

    /// Time between a hang-up and the next storm
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    pub away: Duration,

    /// Time after which a subscriber counts as not served; none tries twice
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub serve_timeout: Duration,

    /// Prefix of the streams' names
    #[arg(long, value_name = "PREFIX", default_value = DEFAULT_PREFIX)]
    pub prefix: String,

    /// Use existing streams
    #[arg(long)]
    pub no_create: bool,

    /// Process id of the server, to report the CPU of it and its child processes
    #[arg(long, value_name = "PID")]
    pub server_pid: Option<u32>,

    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Appends messages over many connections, at a rate or as fast as they are acknowledged, and reports the latency of
/// acknowledgements.
#[derive(Args, Debug, Clone)]
pub struct SprayArgs {
    /// URL of the streams
    #[arg(long, value_name = "URL", default_value = DEFAULT_URL)]
    pub url: String,

    /// URL of the same streams at another node of the fleet; the producers take turns. May be repeated
    #[arg(long, value_name = "URL", conflicts_with = "beside")]
    pub also: Vec<String>,

    /// Whom to trust with https://
    #[command(flatten)]
    pub trust: TrustArgs,

    /// Number of producers, each with its own connection
    #[arg(short, long, value_name = "P", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub producers: u32,

    /// Number of streams to append to, at random
    #[arg(short = 'm', long, value_name = "M", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub streams: u32,

    /// Prefix of the streams' names: PREFIX0, PREFIX1, ...
    #[arg(long, value_name = "PREFIX", default_value = DEFAULT_PREFIX)]
    pub prefix: String,

    /// One stream for all producers
    #[arg(long, value_name = "NAME", conflicts_with_all = ["prefix", "streams"])]
    pub one: Option<String>,

    /// Use existing streams
    #[arg(long)]
    pub no_create: bool,

    /// Content type of the streams: JSON streams carry objects, all others lines of text
    #[arg(long, value_name = "TYPE", default_value = DEFAULT_TYPE)]
    pub content_type: String,

    /// Messages per second [default: as fast as they are acknowledged]
    #[arg(long, value_name = "PER_SECOND", value_parser = positive_rate)]
    pub rate: Option<f64>,

    /// Bytes per message
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_SIZE, value_parser = size)]
    pub size: usize,

    /// Time to run, such as 60s, 10m, 24h [default: until interrupted, or until --messages]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,

    /// Number of messages [default: no limit]
    #[arg(long, value_name = "N")]
    pub messages: Option<u64>,

    /// Appends in flight per connection
    #[arg(long, value_name = "DEPTH", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub pipeline: u32,

    /// Append each acknowledged message to this file, for `verify`
    #[arg(long, value_name = "FILE")]
    pub ack_log: Option<PathBuf>,

    /// Time for which a producer tries to reconnect
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    pub reconnect_timeout: Duration,

    /// Time between lines of progress [default: 1s on a terminal, else 10s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub progress: Option<Duration>,

    /// Process id of the server, to report the CPU of it and its child processes
    #[arg(long, value_name = "PID")]
    pub server_pid: Option<u32>,

    /// URL of a second server, sprayed in turn with the first for a side-by-side comparison
    #[arg(long, value_name = "URL", conflicts_with = "ack_log")]
    pub beside: Option<String>,

    /// Process id of the second server
    #[arg(long, value_name = "PID", requires = "beside")]
    pub beside_pid: Option<u32>,

    /// Number of turns of each server
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000), requires = "beside")]
    pub rounds: u32,

    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Reads back the streams of an acknowledgement log and checks that every acknowledged message is there, in order, once.
#[derive(Args, Debug, Clone)]
pub struct VerifyArgs {
    /// URL of the streams
    #[arg(long, value_name = "URL", default_value = DEFAULT_URL)]
    pub url: String,

    /// Whom to trust with https://
    #[command(flatten)]
    pub trust: TrustArgs,

    /// The log that `spray --ack-log` wrote
    #[arg(value_name = "FILE")]
    pub ack_log: PathBuf,

    /// Content type of the streams
    #[arg(long, value_name = "TYPE", default_value = DEFAULT_TYPE)]
    pub content_type: String,

    /// Connections to read over
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub connections: u32,

    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// The stream of the next message.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    /// Any stream, with equal chances
    Random,
    /// One stream after the other
    RoundRobin,
}

pub(super) const DEFAULT_URL: &str = "http://127.0.0.1:4437/v1/stream";
const DEFAULT_PREFIX: &str = "flood/";
pub(super) const DEFAULT_TYPE: &str = "application/json";
const DEFAULT_SIZE: usize = 128;

/// The largest message that can be asked for, in bytes.
const SIZE_MAX: usize = 32 * 1024 * 1024;

/// The longest time that can be asked for: a year.
const DURATION_MAX: Duration = Duration::from_secs(365 * 86_400);

/// Options with every default, as a program rather than a command line wants them.
macro_rules! defaults {
    ($args:ty, $($words:expr),*) => {
        impl Default for $args {
            fn default() -> Self {
                #[derive(clap::Parser)]
                struct Line {
                    #[command(flatten)]
                    args: $args,
                }
                let line = <Line as clap::Parser>::try_parse_from(["line", $($words),*]);
                line.expect("the defaults are valid").args
            }
        }
    };
}

defaults!(FloodArgs,);
defaults!(SprayArgs,);
defaults!(VerifyArgs, "acks");

/// A time such as `100ms`, `90s`, `10m` or `24h`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let parsed: Result<jiff::SignedDuration, _> = text.parse();
    let duration = parsed.ok().and_then(|time| Duration::try_from(time).ok());
    match duration {
        Some(duration) if duration <= DURATION_MAX => Ok(duration),
        Some(_) => Err("no run is longer than a year".into()),
        None => Err("a time is a number with a unit, such as 100ms, 90s, 10m or 24h".into()),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (0.0..=1e9).contains(&rate) => Ok(rate),
        _ => Err("a rate is a number from 0 to 1000000000".into()),
    }
}

pub(super) fn positive_rate(text: &str) -> Result<f64, String> {
    rate(text).and_then(|rate| {
        if rate > 0.0 {
            Ok(rate)
        } else {
            Err("this rate must be more than 0".into())
        }
    })
}

/// A rate; infinity for `max`.
fn rate_or_max(text: &str) -> Result<f64, String> {
    match text {
        "max" => Ok(f64::INFINITY),
        rate => positive_rate(rate),
    }
}

pub(super) fn size(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(size) if size <= SIZE_MAX => Ok(size),
        _ => Err(format!("a size is a number of bytes up to {SIZE_MAX}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser, Debug)]
    enum Line {
        Flood(FloodArgs),
        Spray(SprayArgs),
        Verify(VerifyArgs),
    }

    #[test]
    fn times_have_units() {
        for (text, ms) in [
            ("1.5s", 1_500),
            ("100ms", 100),
            ("2m", 120_000),
            ("24h", 86_400_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "90", "-1s", "10000h", "nan"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn one_command_says_it_all() {
        let Line::Flood(args) = Line::parse_from(
            "x flood -n 10000 --publish 1000 --size 200 --to random --duration 60s --floor --server-pid 7"
                .split(' '),
        ) else {
            panic!("not a flood")
        };
        assert_eq!(
            (args.subscribers, args.publish, args.size),
            (10_000, Some(1_000.0), 200)
        );
        assert_eq!(
            (args.duration, args.floor),
            (Some(Duration::from_secs(60)), Some(Duration::from_secs(5)))
        );
        assert!(Line::try_parse_from(["x", "flood", "--publish", "0"]).is_err());
        assert_eq!(args.kinds, [SubscriberKind::Http1]);
        let Line::Flood(args) = Line::parse_from(["x", "flood", "--kinds", "websocket,http2"])
        else {
            panic!("not a flood")
        };
        assert_eq!(
            args.kinds,
            [SubscriberKind::Websocket, SubscriberKind::Http2]
        );
        let Line::Flood(args) = Line::parse_from(["x", "flood", "--publish", "max"]) else {
            panic!("not a flood")
        };
        assert_eq!(args.publish, Some(f64::INFINITY));
        assert!(Line::try_parse_from(["x", "flood", "--one", "a", "--prefix", "b"]).is_err());
        assert_eq!(SprayArgs::default().producers, 64);
        assert_eq!(VerifyArgs::default().connections, 8);
    }
}
