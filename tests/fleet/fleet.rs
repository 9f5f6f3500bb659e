//! Brokers and nodes as processes.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};

use crate::network::{self, Network};
use crate::ports::fixed_port;

/// A fleet on this machine; killed when dropped.
pub struct Fleet {
    directory: tempfile::TempDir,
    pub brokers: Vec<Process>,
    pub nodes: Vec<Process>,
    /// Without it, nothing can be cut off.
    pub network: Option<Network>,
}

/// A broker or a node.
pub struct Process {
    ip: IpAddr,
    port: u16,
    /// For other brokers, or for operators.
    second_port: u16,
    child: Option<Child>,
}

/// Random numbers that a seed repeats (xorshift64*).
pub struct Random(u64);

/// A seed that differs each time.
pub fn seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_nanos() as u64 % 1_000_000_000
}

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }
}

/// The program that `make test` installs.
fn nats_server() -> PathBuf {
    std::env::var_os("NATS_SERVER").map_or_else(|| "nats-server".into(), PathBuf::from)
}

impl Fleet {
    /// Starts brokers and nodes. `None` if there is no nats-server here.
    pub fn start(brokers: usize, nodes: usize) -> Option<Fleet> {
        let version = Command::new(nats_server()).arg("--version").output();
        if !version.is_ok_and(|output| output.status.success()) {
            return None;
        }
        let network = Network::new(brokers + nodes);
        if let Err(reason) = &network {
            println!("SKIPPED: no process is cut off from others: {reason}");
        }
        let process = |member| Process {
            ip: match network {
                Ok(_) => network::address(member),
                Err(_) => Ipv4Addr::LOCALHOST.into(),
            },
            port: fixed_port(),
            second_port: fixed_port(),
            child: None,
        };
        let mut fleet = Fleet {
            directory: tempfile::tempdir().unwrap(),
            brokers: (0..brokers).map(process).collect(),
            nodes: (brokers..brokers + nodes).map(process).collect(),
            network: network.ok(),
        };
        fleet.heal();
        Some(fleet)
    }

    /// The number of a node in the network. Brokers come first.
    pub fn member_of_node(&self, node: usize) -> usize {
        self.brokers.len() + node
    }

    /// The numbers of the brokers in the network.
    pub fn members_of_brokers(&self) -> Vec<usize> {
        (0..self.brokers.len()).collect()
    }

    /// A program at the place of a member of the network.
    fn command(&self, member: usize, program: PathBuf) -> Command {
        match &self.network {
            Some(network) => network.command(member, program),
            None => Command::new(program),
        }
    }

    /// Where the nodes serve.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(Process::address).collect()
    }

    fn urls(&self) -> String {
        let urls = self
            .brokers
            .iter()
            .map(|broker| format!("nats://{}", broker.address()));
        urls.collect::<Vec<_>>().join(",")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn start_broker(&mut self, number: usize) {
        let routes = self
            .brokers
            .iter()
            .map(|broker| format!("nats-route://{}", broker.second_address()));
        let routes = routes.collect::<Vec<_>>().join(", ");
        let config = self.path(&format!("broker-{number}.conf"));
        let broker = &self.brokers[number];
        let text = format!(
            "server_name: broker-{number}\nlisten: \"{}\"\njetstream {{ store_dir: {:?}, sync_interval: always }}\n\
             cluster {{ name: torture, listen: \"{}\", routes: [{routes}] }}\n",
            broker.address(),
            self.path(&format!("broker-{number}")),
            broker.second_address(),
        );
        std::fs::write(&config, text).unwrap();
        let log = File::create(self.path(&format!("broker-{number}.log"))).unwrap();
        let child = self
            .command(number, nats_server())
            .arg("-c")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.brokers[number].child = Some(child.unwrap());
    }

    pub fn start_node(&mut self, number: usize) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.path(&format!("node-{number}.log")))
            .unwrap();
        let node = &self.nodes[number];
        let child = self
            .command(
                self.member_of_node(number),
                env!("CARGO_BIN_EXE_encke").into(),
            )
            .args(["serve", "--open", "--listen", &node.address().to_string()])
            .args(["--admin-listen", &node.second_address().to_string()])
            .arg("--data")
            .arg(self.path(&format!("node-{number}")))
            .args(["--fleet", &self.urls(), "--node", &format!("n{number}")])
            .args(["--exempt", "127.0.0.0/8,10.77.0.0/16", "--log", "info"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.nodes[number].child = Some(child.unwrap());
    }

    /// Starts what does not run, and waits until every node is ready.
    pub fn heal(&mut self) {
        for number in 0..self.brokers.len() {
            self.brokers[number].signal(Signal::CONT);
            if !self.brokers[number].runs() {
                self.start_broker(number);
            }
        }
        let begin = Instant::now();
        loop {
            self.restart_ended();
            let mut operators = self.nodes.iter().map(Process::second_address);
            if operators.all(is_ready) {
                return;
            }
            assert!(
                begin.elapsed() < Duration::from_secs(120),
                "the fleet does not heal:\n{}",
                self.logs()
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Starts nodes that have ended by themselves: while the brokers have no leader, a node cannot start.
    pub fn restart_ended(&mut self) {
        for number in 0..self.nodes.len() {
            // The brokers have lost a part of the order with a damaged file, and the node needs that part.
            if readiness(self.nodes[number].second_address())
                .is_ok_and(|answer| answer.contains("the order lacks the messages"))
            {
                println!("          node {number} lacks a part of the order, and is started again");
                self.nodes[number].kill();
            }
            if !self.nodes[number].runs() {
                self.start_node(number);
                let begin = Instant::now();
                while self.nodes[number].runs()
                    && begin.elapsed() < Duration::from_secs(2)
                    && !is_ready(self.nodes[number].second_address())
                {
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        }
    }

    pub fn wait_ready(&mut self, node: usize) {
        let begin = Instant::now();
        while !is_ready(self.nodes[node].second_address()) {
            self.restart_ended();
            assert!(
                begin.elapsed() < Duration::from_secs(120),
                "node {node} does not become ready: {:?}\n{}",
                readiness(self.nodes[node].second_address()),
                self.logs()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Whether a node says that it is ready.
    pub fn is_ready(&self, node: usize) -> bool {
        is_ready(self.nodes[node].second_address())
    }

    /// Waits until all brokers follow the order again: faults of two of three at a time are not promised to lose nothing.
    pub fn wait_current(&self) {
        let begin = Instant::now();
        loop {
            let report = self.ask("status");
            let offline = report
                .as_ref()
                .and_then(|report| report["logs"][0]["offline"].as_array().map(Vec::len));
            if offline == Some(0) {
                return;
            }
            assert!(
                begin.elapsed() < Duration::from_secs(120),
                "the brokers do not come back: {report:?}"
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Whether all nodes and the brokers have the same order.
    pub fn verify(&self) -> bool {
        let report = self.ask("verify");
        let problems = report
            .as_ref()
            .and_then(|report| report["problems"].as_array());
        println!(
            "verify: {:?}",
            report.as_ref().map(|report| &report["compared"])
        );
        if problems.is_none_or(|problems| !problems.is_empty()) {
            println!("{report:?}");
        }
        problems.is_some_and(Vec::is_empty)
    }

    fn ask(&self, command: &str) -> Option<serde_json::Value> {
        let mut encke = Command::new(env!("CARGO_BIN_EXE_encke"));
        let output = encke
            .args(["fleet", command, "--json", "--fleet", &self.urls()])
            .stdin(Stdio::null())
            .output();
        serde_json::from_slice(&output.unwrap().stdout).ok()
    }

    fn logs(&self) -> String {
        let logs = (0..self.nodes.len()).map(|number| {
            let log = std::fs::read_to_string(self.path(&format!("node-{number}.log")))
                .unwrap_or_default();
            let lines: Vec<_> = log.lines().rev().take(15).collect();
            format!(
                "node {number}:\n{}\n",
                lines.into_iter().rev().collect::<Vec<_>>().join("\n")
            )
        });
        logs.collect()
    }
}

impl Process {
    fn address(&self) -> SocketAddr {
        (self.ip, self.port).into()
    }

    fn second_address(&self) -> SocketAddr {
        (self.ip, self.second_port).into()
    }

    fn runs(&mut self) -> bool {
        self.child
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.logs());
        }
        for process in self.nodes.iter_mut().chain(&mut self.brokers) {
            process.kill();
        }
    }
}

fn is_ready(address: SocketAddr) -> bool {
    readiness(address).is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// What a node says of its readiness.
fn readiness(address: SocketAddr) -> std::io::Result<String> {
    use std::io::{Read, Write};
    let mut socket = TcpStream::connect_timeout(&address, Duration::from_millis(500))?;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    socket.write_all(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    Ok(answer)
}
