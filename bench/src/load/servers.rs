//! The servers that are measured, one or two in turn: those at a URL, and those that the run starts.

use crate::BenchError;
use crate::load::args::{DEFAULT_URL, TrustArgs};
use crate::load::probe::Probe;
use crate::load::server_process::ServerProcess;
use crate::load::wire::target::ServerUrl;
use clap::Args;
use std::path::PathBuf;

/// Which servers are measured, and how often.
#[derive(Args, Debug, Clone)]
pub struct ServersArgs {
    /// URL of the streams (http:// only)
    #[arg(long, value_name = "URL", default_value = DEFAULT_URL)]
    pub url: String,

    /// Process id of the server, to report the CPU and memory of it and its child processes
    #[arg(long, value_name = "PID")]
    pub server_pid: Option<u32>,

    /// Start the server with this command, in which {port} and {data} stand for a free port and an empty directory
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["url", "server_pid"])]
    pub start: Option<String>,

    /// URL of a second server, measured in turn with the first
    #[arg(long, value_name = "URL")]
    pub beside: Option<String>,

    /// Process id of the second server
    #[arg(long, value_name = "PID", requires = "beside")]
    pub beside_pid: Option<u32>,

    /// Start the second server with this command
    #[arg(long, value_name = "COMMAND", conflicts_with = "beside")]
    pub beside_start: Option<String>,

    /// Directory for the data of started servers, which is removed afterwards
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub data: PathBuf,

    /// Number of turns of each server
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rounds: u32,
}

/// A server that is measured. If the run has started it, it ends when this is dropped, and its data is removed.
#[derive(Debug)]
pub(crate) struct MeasuredServer {
    /// Its URL, or the command that started it.
    pub(crate) name: String,
    pub(crate) url: ServerUrl,
    /// Its process, if that is known.
    pub(crate) probe: Option<Probe>,
    _process: Option<ServerProcess>,
}

impl ServersArgs {
    /// Finds or starts the servers: the first one, and the second one if there is one.
    pub(crate) fn open(&self) -> Result<Vec<MeasuredServer>, BenchError> {
        let first = match &self.start {
            Some(command) => self.start(command, "a")?,
            None => MeasuredServer::at(&self.url, self.server_pid)?,
        };
        let second = match (&self.beside_start, &self.beside) {
            (Some(command), _) => Some(self.start(command, "b")?),
            (None, Some(url)) => Some(MeasuredServer::at(url, self.beside_pid)?),
            (None, None) => None,
        };
        Ok([first].into_iter().chain(second).collect())
    }

    fn start(&self, command: &str, name: &str) -> Result<MeasuredServer, BenchError> {
        let directory = format!("encke-bench-{}-{name}", std::process::id());
        let process = ServerProcess::start(command, self.data.join(directory))?;
        let url = format!("http://{}/v1/stream", process.address());
        Ok(MeasuredServer {
            name: command.to_owned(),
            url: ServerUrl::parse(&url, &TrustArgs::default())?,
            probe: Some(Probe::new(process.pid())?),
            _process: Some(process),
        })
    }
}

impl MeasuredServer {
    fn at(url: &str, pid: Option<u32>) -> Result<Self, BenchError> {
        if url.starts_with("https:") {
            return Err(BenchError::BadUrl {
                url: url.to_owned(),
                reason: "this command measures http:// only",
            });
        }
        Ok(Self {
            name: url.to_owned(),
            url: ServerUrl::parse(url, &TrustArgs::default())?,
            probe: pid.map(Probe::new).transpose()?,
            _process: None,
        })
    }
}

/// The letter of a server in a report.
pub(crate) fn letter(server: usize) -> char {
    ['A', 'B'][server]
}
