//! The options of `encke-bench million`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::load::args::duration;

/// Holds a million connections to as many nodes of one fleet as that takes, and sends one message to one of them and one to all.
#[derive(Args, Debug, Clone)]
#[command(after_help = AFTER_HELP)]
pub struct MillionArgs {
    /// Connections
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    pub connections: u32,

    /// Connections per node and per client process [default: what the limit on open files allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub per_node: Option<u32>,

    /// One server by itself, without a fleet
    #[arg(long)]
    pub alone: bool,

    /// Time after which no further connection is opened
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = duration)]
    pub time_limit: Duration,

    /// Available memory in MiB below which no further connection is opened; below half of it the run ends
    #[arg(long, value_name = "MIB", default_value_t = 1_024)]
    pub memory_floor: u64,

    /// Directory for the data of brokers and nodes; the run makes a directory in it and removes it
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub data: PathBuf,

    /// The server's program [default: `encke` beside this program]
    #[arg(long, value_name = "FILE", env = "ENCKE_BIN")]
    pub encke: Option<PathBuf>,

    /// The broker's program
    #[arg(
        long,
        value_name = "FILE",
        env = "NATS_SERVER",
        default_value = "nats-server"
    )]
    pub broker: PathBuf,

    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// The clients of one node, in a process of their own. They obey standard input.
#[derive(Args, Debug, Clone)]
pub struct MillionClientsArgs {
    /// The node
    #[arg(long)]
    pub node: SocketAddr,

    /// The number of the first client
    #[arg(long)]
    pub first: u32,

    /// The number of clients
    #[arg(long)]
    pub count: u32,

    /// The part of the loopback network that they connect from: 127.BLOCK.1.1 and on
    #[arg(long)]
    pub block: u8,
}

const AFTER_HELP: &str = "\
Nodes, clients and the broker are processes of this machine. Each connection follows a stream of its own and one that all \
follow, over /v1/events. It needs about 10 KiB of memory per connection, most of it in the kernel, for both ends.

Exit codes: 0 all connected, and each message came to exactly whom it was for; 1 not so, or the run could not be made; 2 the \
command line is wrong.";
