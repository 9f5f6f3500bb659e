//! Real brokers: nats-server with JetStream.

use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{can_use, data_dir, eventually, freeze};
use crate::ports::fixed_port;

/// Brokers that belong together; killed when dropped.
pub(crate) struct Brokers {
    brokers: Vec<Broker>,
    dir: TempDir,
    /// The user and the password that they ask for.
    login: Option<(&'static str, &'static str)>,
    /// The configuration file of brokers that start from now on.
    configuration: Option<&'static str>,
}

struct Broker {
    /// For clients and for the other brokers.
    ports: [u16; 2],
    child: Option<Child>,
}

/// The program that `make test` installs.
fn program() -> PathBuf {
    std::env::var_os("NATS_SERVER").map_or_else(|| "nats-server".into(), PathBuf::from)
}

impl Brokers {
    /// Starts so many brokers. `None` if there is no nats-server here.
    pub(crate) fn start(count: usize) -> Option<Brokers> {
        Brokers::start_for(count, None)
    }

    /// Starts a broker that asks for a user and a password.
    pub(crate) fn start_locked(user: &'static str, password: &'static str) -> Option<Brokers> {
        Brokers::start_for(1, Some((user, password)))
    }

    fn start_for(count: usize, login: Option<(&'static str, &'static str)>) -> Option<Brokers> {
        let works = || {
            let version = Command::new(program()).arg("--version").output();
            version.is_ok_and(|output| output.status.success())
        };
        if !can_use("nats-server", works) {
            return None;
        }
        let brokers = (0..count).map(|_| Broker {
            ports: [fixed_port(), fixed_port()],
            child: None,
        });
        let mut brokers = Brokers {
            brokers: brokers.collect(),
            dir: data_dir(),
            login,
            configuration: None,
        };
        (0..count).for_each(|number| brokers.run(number));
        Some(brokers)
    }

    /// Their addresses, as `--fleet` takes them.
    pub(crate) fn urls(&self) -> String {
        let urls = self
            .brokers
            .iter()
            .map(|broker| format!("nats://{}", broker.address()));
        urls.collect::<Vec<_>>().join(",")
    }

    /// The address of a broker.
    pub(crate) fn address(&self, number: usize) -> SocketAddr {
        self.brokers[number].address()
    }

    /// Starts a broker that runs again with this in its configuration file.
    pub(crate) fn reconfigure(&mut self, number: usize, configuration: &'static str) {
        self.kill(number);
        self.configuration = Some(configuration);
        self.run(number);
    }

    /// Starts a broker that does not run.
    pub(crate) fn run(&mut self, number: usize) {
        let [port, route] = self.brokers[number].ports;
        let routes = self.brokers.iter();
        let routes = routes.map(|other| format!("nats-route://127.0.0.1:{}", other.ports[1]));
        let routes = routes.collect::<Vec<_>>().join(",");
        let mut command = Command::new(program());
        command
            .args(["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd"])
            .arg(self.store(number))
            .args(["-n", &format!("broker-{number}")]);
        if let Some((user, password)) = self.login {
            command.args(["--user", user, "--pass", password]);
        }
        if let Some(configuration) = self.configuration {
            let file = self.dir.path().join("nats.conf");
            std::fs::write(&file, configuration).expect("it is ours");
            command.arg("-c").arg(file);
        }
        if self.brokers.len() > 1 {
            let cluster = format!("nats://127.0.0.1:{route}");
            command.args(["--cluster_name", "test", "--cluster", &cluster]);
            command.args(["--routes", &routes]);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it worked before");
        let broker = &mut self.brokers[number];
        broker.child = Some(child);
        let address = broker.address();
        eventually("the broker listens", || TcpStream::connect(address).is_ok());
    }

    /// Kills a broker as a crash would.
    pub(crate) fn kill(&mut self, number: usize) {
        if let Some(mut child) = self.brokers[number].child.take() {
            child.kill().expect("it is ours");
            child.wait().expect("it is ours");
        }
    }

    /// Stops a broker until it is continued.
    pub(crate) fn freeze(&self, number: usize) {
        if let Some(child) = &self.brokers[number].child {
            freeze(Pid::from_child(child));
        }
    }

    /// Continues a broker.
    pub(crate) fn thaw(&self, number: usize) {
        if let Some(child) = &self.brokers[number].child {
            kill_process(Pid::from_child(child), Signal::CONT).expect("it is ours");
        }
    }

    /// Where a broker stores messages.
    pub(crate) fn store(&self, number: usize) -> PathBuf {
        self.dir.path().join(number.to_string())
    }
}

impl Broker {
    fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.ports[0]))
    }
}

impl Drop for Brokers {
    fn drop(&mut self) {
        (0..self.brokers.len()).for_each(|number| self.kill(number));
    }
}
