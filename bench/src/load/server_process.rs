//! A server that the run has started with a command, on a free port and with its data in an empty directory.

use crate::BenchError;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::DirBuilder;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server that runs until this is dropped; then its data is removed.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    child: Child,
    address: SocketAddr,
    _data: DataDirectory,
}

/// A directory that is removed with this.
#[derive(Debug)]
struct DataDirectory(PathBuf);

impl ServerProcess {
    /// Makes the directory `data`, starts the command, and waits until the server accepts connections. The words of the
    /// command are separated by spaces; `{port}` and `{data}` are replaced. What the server says on standard error is shown.
    pub(crate) fn start(command: &str, data: PathBuf) -> Result<Self, BenchError> {
        if !command.contains("{port}") {
            return Err(BenchError::Option(format!(
                "the command {command:?} starts a server on no port that is known: it needs {{port}}"
            )));
        }
        // For this user alone: a server may refuse or warn otherwise.
        let mut directory = DirBuilder::new();
        let made = directory.mode(0o700).create(&data);
        made.map_err(BenchError::file("make", &data))?;
        let data = DataDirectory(data);
        let port = free_port()?;
        let mut words = words(command, port, &data.0).into_iter();
        let program = words.next().unwrap_or_default();
        let child = Command::new(&program)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(BenchError::file("start", Path::new(&program)))?;
        let mut started = Self {
            child,
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            _data: data,
        };
        started.wait_until_it_listens()?;
        Ok(started)
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait_until_it_listens(&mut self) -> Result<(), BenchError> {
        let begun = Instant::now();
        while TcpStream::connect(self.address).is_err() {
            let ended = self.child.try_wait();
            if let Some(status) = ended.map_err(BenchError::system("wait for the server"))? {
                return Err(BenchError::Server(format!("did not come up: {status}")));
            }
            if begun.elapsed() > START_WAIT {
                return Err(BenchError::Server("does not listen on {port}".into()));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // In good order if it can: what a server says when it is killed would be taken for a fault.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && begun.elapsed() < STOP_WAIT {
            std::thread::sleep(LOOK);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for DataDirectory {
    fn drop(&mut self) {
        // What can't be removed is not worth an error any more.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn words(command: &str, port: u16, data: &Path) -> Vec<String> {
    let port = port.to_string();
    let data = data.to_string_lossy();
    let words = command.split_ascii_whitespace();
    let replaced = words.map(|word| word.replace("{port}", &port).replace("{data}", &data));
    replaced.collect()
}

/// A port that nothing uses now.
fn free_port() -> Result<u16, BenchError> {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|one| one.local_addr());
    let address = bound.map_err(BenchError::system("find a free port"))?;
    Ok(address.port())
}

/// How long a server may take until it listens, and until it has stopped.
const START_WAIT: Duration = Duration::from_secs(60);
const STOP_WAIT: Duration = Duration::from_secs(20);

/// How often it is looked at meanwhile.
const LOOK: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_in_a_command_are_filled() {
        assert_eq!(
            words(
                "a  --listen 127.0.0.1:{port} --data={data}/x",
                7,
                "/d".as_ref()
            ),
            ["a", "--listen", "127.0.0.1:7", "--data=/d/x"]
        );
    }

    #[test]
    fn what_does_not_come_up_is_an_error_and_leaves_no_data() {
        let folder = tempfile::tempdir().unwrap();
        let start = |command: &str| ServerProcess::start(command, folder.path().join("data"));
        for (command, message) in [
            ("true {port}", "did not come up: exit status: 0"),
            (
                "/nonexistent/server {port}",
                "cannot start /nonexistent/server",
            ),
            ("sleep 100", "it needs {port}"),
        ] {
            let error = start(command).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }
}
