//! The options of `encke-bench answers`.

use crate::load::args::{DEFAULT_TYPE, duration, positive_rate, size};
use crate::load::servers::ServersArgs;
use clap::Args;
use std::time::Duration;

/// Streams answers of language models: each answer is a stream that an idempotent producer appends to token by token, and that
/// three readers follow as server-sent events.
///
/// One reader is there from the first token to the last, one is cut and returns with its last id, and one joins in the middle. The
/// run checks that each gets every token once and in order, and that it learns of the end. A latency is from the moment in which an
/// append is sent to the receipt of its tokens, of tokens that were sent while their reader was there.
#[derive(Args, Debug, Clone)]
#[command(after_help = AFTER_HELP)]
pub struct AnswersArgs {
    /// The servers
    #[command(flatten)]
    pub servers: ServersArgs,

    /// Answers at a time
    #[arg(short = 'n', long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub answers: u32,

    /// Tokens per second of each answer
    #[arg(long, value_name = "PER_SECOND", default_value_t = 50.0, value_parser = positive_rate)]
    pub rate: f64,

    /// Length of an answer
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub duration: Duration,

    /// Tokens per append. The time in which the first of them waits for the last is not a part of the latency
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub batch: u32,

    /// Bytes per token, with its number and its time
    #[arg(long, value_name = "BYTES", default_value_t = 100, value_parser = size)]
    pub size: usize,

    /// Content type of the streams: JSON streams carry objects, all others lines of text
    #[arg(long, value_name = "TYPE", default_value = DEFAULT_TYPE)]
    pub content_type: String,

    /// Connections that the producers share [default: one for each, at most 2000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub connections: Option<u32>,

    /// Encke-Producer-Timeout of the streams, in whole seconds; 0s: none, for servers that do not know it
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub producer_timeout: Duration,

    /// Time without a token after which the rest counts as missing
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub drain: Duration,

    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

const AFTER_HELP: &str = "\
Each answer is a stream that an idempotent producer appends to token by token, and closes. Three readers follow it as server-sent events: \
one from the first token to the last, one that is cut and returns with its last id, and one that joins in the middle. The run checks that \
each gets every token once and in order, and learns of the end.

A latency is from the sending of an append to the receipt of each of its tokens, of tokens that were sent while their reader was there. \
It holds what this tool adds: appends late is how long after its time an append was sent, batches how long a token may have waited in the \
readers' loop, and woke late what the machine adds to any time. Others is the share of the processors' time that neither the server nor \
this tool used.";
