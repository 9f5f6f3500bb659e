//! The options of flood, spray and verify, as a command line has them.

use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// Opens many subscribers, publishes to them if asked to, and reports what arrived, how late,
/// and what it cost the server.
///
/// Every message carries who sent it, its number and its time, so that gaps, duplicates and
/// reorderings are found whoever publishes: this run (`--publish`) or a spray beside it.
#[derive(Args, Debug, Clone)]
#[command(next_line_help = false)]
pub struct FloodArgs {
    /// Where the streams live, such as http://127.0.0.1:4437/v1/stream
    #[arg(long, value_name = "URL", default_value = DEFAULT_URL)]
    pub url: String,

    /// How many subscribers to open
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub subscribers: u32,

    /// Connections to open per second, in all; 0 opens them all at once
    #[arg(long, value_name = "PER_SECOND", default_value_t = 2_000.0, value_parser = rate)]
    pub rate: f64,

    /// Streams are called PREFIX0, PREFIX1, …; each subscriber has its own
    #[arg(long, value_name = "PREFIX", default_value = DEFAULT_PREFIX)]
    pub prefix: String,

    /// All subscribers share this one stream instead
    #[arg(long, value_name = "NAME", conflicts_with = "prefix")]
    pub one: Option<String>,

    /// Don't create the streams first: they exist
    #[arg(long)]
    pub no_create: bool,

    /// What the system may keep of what a subscriber has not read yet (SO_RCVBUF) [default: the system's, and it grows]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..))]
    pub receive_buffer: Option<u32>,

    /// How long to run once all are connected, such as 60s, 10m, 24h [default: until interrupted]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,

    /// Time between lines of progress [default: 1s on a terminal, else 10s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub progress: Option<Duration>,

    /// The server's process, to report its memory and processor time
    #[arg(long, value_name = "PID")]
    pub server_pid: Option<u32>,

    /// Publish so many messages per second, in all, or max: as fast as they are acknowledged
    #[arg(long, value_name = "PER_SECOND", value_parser = rate_or_max)]
    pub publish: Option<f64>,

    /// Bytes per published message, its padding included
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_SIZE, value_parser = size)]
    pub size: usize,

    /// Which stream gets the next message
    #[arg(long, value_name = "WHICH", value_enum, default_value_t = To::Random)]
    pub to: To,

    /// Connections to publish over, each waiting for its acknowledgement before the next message
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub publishers: u32,

    /// So many of the subscribers stop reading for a while, and must get everything afterwards
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub slow: u32,

    /// How long the slow stop reading
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub pause: Duration,

    /// When the slow stop reading, counted from the first message
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    pub pause_after: Duration,

    /// So many subscribers per second hang up, and come back to the offset where they were
    #[arg(long, value_name = "PER_SECOND", default_value_t = 0.0, value_parser = rate)]
    pub churn: f64,

    /// How long they stay away
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = duration)]
    pub away: Duration,

    /// A hang-up that the server notices later than this counts as late
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = duration)]
    pub notice: Duration,

    /// Fail also when the server's memory drifts, when it notices a hang-up late or never, or when
    /// sockets are left open in it at the end
    #[arg(long, requires = "server_pid")]
    pub endure: bool,

    /// By how many percent memory may drift in the last nine tenths of the run
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0, value_parser = rate)]
    pub drift_max: f64,

    /// So many hostile clients join for the second half of the time: silent, with slow heads and bodies, or reading nothing
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub hostile: u32,

    /// How long to wait, once all is published, while nothing more arrives
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub drain: Duration,

    /// Afterwards measure a bare send(2) loop over as many sockets for so long, for comparison
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "5s", value_parser = duration)]
    pub floor: Option<Duration>,

    /// Write a line of figures (CSV) to this file every second, as the run goes
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Draw memory, connections and messages over time into this SVG file at the end
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,

    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Has many subscribers come at once, hang up at once and come back at once, as after a restart of
/// the server, and reports how soon each was served and who was not.
#[derive(Args, Debug, Clone)]
pub struct StormArgs {
    /// Where the streams live, such as http://127.0.0.1:4437/v1/stream
    #[arg(long, value_name = "URL", default_value = DEFAULT_URL)]
    pub url: String,

    /// How many subscribers come at once, each to a stream of its own, by server-sent events
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub subscribers: u32,

    /// How many times; nobody is there before the first
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub storms: u32,

    /// How long all stay away in between
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    pub away: Duration,

    /// Who is not served so long after a storm began is counted as not served; nobody tries twice
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub patience: Duration,

    /// Streams are called PREFIX0, PREFIX1, …
    #[arg(long, value_name = "PREFIX", default_value = DEFAULT_PREFIX)]
    pub prefix: String,

    /// Don't create the streams first: they exist
    #[arg(long)]
    pub no_create: bool,

    /// The server's process, to report its processor time
    #[arg(long, value_name = "PID")]
    pub server_pid: Option<u32>,

    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Appends messages over many connections, at a rate or as fast as they are acknowledged, and
/// reports how long acknowledgements took.
#[derive(Args, Debug, Clone)]
pub struct SprayArgs {
    /// Where the streams live, such as http://127.0.0.1:4437/v1/stream
    #[arg(long, value_name = "URL", default_value = DEFAULT_URL)]
    pub url: String,

    /// Producers, each with a connection of its own
    #[arg(short, long, value_name = "P", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub producers: u32,

    /// Streams to append to, at random
    #[arg(short = 'm', long, value_name = "M", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub streams: u32,

    /// Streams are called PREFIX0, PREFIX1, …
    #[arg(long, value_name = "PREFIX", default_value = DEFAULT_PREFIX)]
    pub prefix: String,

    /// All producers append to this one stream instead
    #[arg(long, value_name = "NAME", conflicts_with_all = ["prefix", "streams"])]
    pub one: Option<String>,

    /// Don't create the streams first: they exist
    #[arg(long)]
    pub no_create: bool,

    /// Content type of the streams: JSON streams carry objects, all others lines of text
    #[arg(long, value_name = "TYPE", default_value = DEFAULT_TYPE)]
    pub content_type: String,

    /// Messages per second in all [default: as fast as they are acknowledged]
    #[arg(long, value_name = "PER_SECOND", value_parser = positive_rate)]
    pub rate: Option<f64>,

    /// Bytes per message, its padding included
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_SIZE, value_parser = size)]
    pub size: usize,

    /// How long to run, such as 60s, 10m, 24h [default: until interrupted, or until --messages]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,

    /// How many messages in all [default: no such limit]
    #[arg(long, value_name = "N")]
    pub messages: Option<u64>,

    /// Appends in flight per connection, written without waiting for the answers between them
    #[arg(long, value_name = "DEPTH", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub pipeline: u32,

    /// Append each acknowledged message to this file, for `verify`
    #[arg(long, value_name = "FILE")]
    pub ack_log: Option<PathBuf>,

    /// How long a producer tries to connect before it gives up
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    pub patience: Duration,

    /// Time between lines of progress [default: 1s on a terminal, else 10s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub progress: Option<Duration>,

    /// The server's process, to report its processor time
    #[arg(long, value_name = "PID")]
    pub server_pid: Option<u32>,

    /// Spray this second server too, in turn with the first, and set the two side by side
    #[arg(long, value_name = "URL", conflicts_with = "ack_log")]
    pub beside: Option<String>,

    /// The second server's process
    #[arg(long, value_name = "PID", requires = "beside")]
    pub beside_pid: Option<u32>,

    /// How many times each of the two has its turn
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000), requires = "beside")]
    pub rounds: u32,

    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Reads back the streams that an acknowledgement log names, and checks that everything
/// acknowledged is there, in order, once.
#[derive(Args, Debug, Clone)]
pub struct VerifyArgs {
    /// Where the streams live, such as http://127.0.0.1:4437/v1/stream
    #[arg(long, value_name = "URL", default_value = DEFAULT_URL)]
    pub url: String,

    /// The log that `spray --ack-log` has written
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

/// Which stream a message goes to.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    /// Any stream, with equal chances
    Random,
    /// One stream after the other
    RoundRobin,
}

const DEFAULT_URL: &str = "http://127.0.0.1:4437/v1/stream";
const DEFAULT_PREFIX: &str = "flood/";
const DEFAULT_TYPE: &str = "application/json";
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

/// A time such as `90`, `90s`, `100ms`, `10m` or `24h`; seconds unless it says otherwise.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let split = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let seconds = match unit {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        _ => return Err("a time is a number with ms, s, m or h".into()),
    };
    let number: f64 = number
        .trim()
        .parse()
        .map_err(|_| "a time is a number with ms, s, m or h")?;
    let duration = Duration::try_from_secs_f64(number * seconds).map_err(|e| e.to_string())?;
    if duration > DURATION_MAX {
        return Err("no run is longer than a year".into());
    }
    Ok(duration)
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (0.0..=1e9).contains(&rate) => Ok(rate),
        _ => Err("a rate is a number from 0 to 1000000000".into()),
    }
}

fn positive_rate(text: &str) -> Result<f64, String> {
    rate(text).and_then(|rate| {
        if rate > 0.0 {
            Ok(rate)
        } else {
            Err("this rate must be more than 0".into())
        }
    })
}

/// A rate, of which infinity stands for as fast as it goes.
fn rate_or_max(text: &str) -> Result<f64, String> {
    match text {
        "max" => Ok(f64::INFINITY),
        rate => positive_rate(rate),
    }
}

fn size(text: &str) -> Result<usize, String> {
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
    fn the_definitions_hold_together_and_every_option_is_explained() {
        use clap::CommandFactory as _;
        Line::command().debug_assert();
        for sub in Line::command().get_subcommands() {
            for arg in sub.get_arguments() {
                assert!(
                    arg.get_help().is_some(),
                    "{} {}",
                    sub.get_name(),
                    arg.get_id()
                );
            }
        }
    }

    #[test]
    fn times_have_units() {
        for (text, ms) in [
            ("90", 90_000),
            ("1.5s", 1_500),
            ("100ms", 100),
            ("2m", 120_000),
            ("24h", 86_400_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "-1s", "1d", "1e300", "nan"] {
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
        let Line::Flood(args) = Line::parse_from(["x", "flood", "--publish", "max"]) else {
            panic!("not a flood")
        };
        assert_eq!(args.publish, Some(f64::INFINITY));
        assert!(Line::try_parse_from(["x", "flood", "--one", "a", "--prefix", "b"]).is_err());
        assert_eq!(SprayArgs::default().producers, 64);
        assert_eq!(VerifyArgs::default().connections, 8);
    }
}
