//! The options of `encke-bench read`.

use super::records::RECORD_BYTES_MIN;
use crate::load::args::size;
use crate::load::servers::ServersArgs;
use clap::Args;

/// Reads a stream whole, again and again, from its beginning, as clients do that catch up, and reports the rate and what it
/// costs the server.
///
/// The stream is made by the run: records of one size, each an append. A first read checks every byte. All further reads only count
/// bytes, which the kernel discards without copying them to this tool. A read follows Stream-Next-Offset to the end of the stream.
#[derive(Args, Debug, Clone)]
#[command(after_help = AFTER_HELP)]
pub struct ReadArgs {
    /// The servers
    #[command(flatten)]
    pub servers: ServersArgs,

    /// Bytes per record
    #[arg(long, value_name = "BYTES", default_value_t = 100_000, value_parser = record_size)]
    pub size: usize,

    /// Megabytes (10^6 bytes) of the stream, to the next whole record
    #[arg(long, value_name = "MB", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub megabytes: u32,

    /// Readers at a time, each with a connection
    #[arg(short = 'n', long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub readers: u32,

    /// How often each reader reads the stream in a turn
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub times: u32,

    /// Read old records: append MB of other data behind them, and wait until the server has no full segment to sort in any more
    /// [default MB: 192, three segments of Encke's default size]
    #[arg(long, value_name = "MB", num_args = 0..=1, default_missing_value = "192", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub old: Option<u32>,

    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

const AFTER_HELP: &str = "\
The run makes the stream: records of one size, each an append. A first read checks every byte. All others only count bytes, which the \
kernel discards without copying them to this tool. A read follows Stream-Next-Offset to the end of the stream.

  encke-bench read -n 64 --start 'encke serve --listen 127.0.0.1:{port} --data {data}' \\
      --beside-start 'durable-streams-server --port {port} --data-dir {data}'

GB are 10^9 bytes. Others is the share of the processors' time that neither the server nor this tool used.";

fn record_size(text: &str) -> Result<usize, String> {
    match size(text)? {
        size if size >= RECORD_BYTES_MIN => Ok(size),
        _ => Err(format!(
            "a record has at least {RECORD_BYTES_MIN} bytes, its number"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser, Debug)]
    struct Line {
        #[command(flatten)]
        args: ReadArgs,
    }

    fn parse(line: &str) -> Result<ReadArgs, clap::Error> {
        Line::try_parse_from(line.split_ascii_whitespace()).map(|line| line.args)
    }

    #[test]
    fn servers_are_named_or_started() {
        let args = parse("x --size 5300000 -n 64 --old").unwrap();
        assert_eq!(
            (args.size, args.readers, args.old),
            (5_300_000, 64, Some(192))
        );
        assert_eq!(args.servers.url, "http://127.0.0.1:4437/v1/stream");
        let args = parse("x --start a{port} --beside http://b --beside-pid 7").unwrap();
        assert_eq!(args.servers.start.as_deref(), Some("a{port}"));
        assert_eq!(args.servers.beside_pid, Some(7));
        for wrong in [
            "x --start a --url http://b",
            "x --start a --server-pid 7",
            "x --beside-pid 7",
            "x --beside http://b --beside-start a",
            "x --size 15",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
