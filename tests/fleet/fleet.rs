//! Brokers and nodes as processes, and what happens to them.

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};

use crate::ports::fixed_port;

/// A fleet on this machine; killed when dropped.
pub struct Fleet {
    directory: tempfile::TempDir,
    brokers: Vec<Process>,
    nodes: Vec<Process>,
}

struct Process {
    port: u16,
    /// For other brokers.
    route: u16,
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
        let process = || Process {
            port: fixed_port(),
            route: fixed_port(),
            child: None,
        };
        let mut fleet = Fleet {
            directory: tempfile::tempdir().unwrap(),
            brokers: (0..brokers).map(|_| process()).collect(),
            nodes: (0..nodes).map(|_| process()).collect(),
        };
        fleet.heal();
        Some(fleet)
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

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn start_broker(&mut self, number: usize) {
        let routes = self
            .brokers
            .iter()
            .map(|broker| format!("nats-route://127.0.0.1:{}", broker.route));
        let routes = routes.collect::<Vec<_>>().join(", ");
        let config = self.path(&format!("broker-{number}.conf"));
        let broker = &self.brokers[number];
        let text = format!(
            "server_name: broker-{number}\nlisten: 127.0.0.1:{}\njetstream {{ store_dir: {:?}, sync_interval: always }}\n\
             cluster {{ name: torture, listen: 127.0.0.1:{}, routes: [{routes}] }}\n",
            broker.port,
            self.path(&format!("broker-{number}")),
            broker.route,
        );
        std::fs::write(&config, text).unwrap();
        let log = File::create(self.path(&format!("broker-{number}.log"))).unwrap();
        let child = Command::new(nats_server())
            .arg("-c")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.brokers[number].child = Some(child.unwrap());
    }

    fn start_node(&mut self, number: usize) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.path(&format!("node-{number}.log")))
            .unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_encke"))
            .args([
                "serve",
                "--listen",
                &self.nodes[number].address().to_string(),
                "--data",
            ])
            .arg(self.path(&format!("node-{number}")))
            .args(["--fleet", &self.urls(), "--node", &format!("n{number}")])
            .args(["--exempt", "127.0.0.0/8", "--log", "info"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.nodes[number].child = Some(child.unwrap());
    }

    /// One fault after the other, for this long.
    pub fn suffer(&mut self, time: Duration, random: &mut Random) {
        let begin = Instant::now();
        while begin.elapsed() < time {
            std::thread::sleep(Duration::from_millis(1_000 + random.below(2_000) as u64));
            let (node, broker) = (
                random.below(self.nodes.len()),
                random.below(self.brokers.len()),
            );
            let left = time.saturating_sub(begin.elapsed());
            let pause = Duration::from_secs(1 + random.below(30) as u64).min(left);
            let at = begin.elapsed().as_secs_f64();
            let say = |what: &str| println!("{at:>6.1} s  {what}");
            // A damaged broker may lose what it had acknowledged (see docs/fleet.md): that is for long runs.
            match random.below(if time < LONG { 7 } else { 8 }) {
                0 | 1 => {
                    say(&format!("node {node} is killed"));
                    self.nodes[node].kill();
                    std::thread::sleep(pause.min(Duration::from_secs(3)));
                    self.start_node(node);
                }
                2 => {
                    say(&format!(
                        "node {node} stands still for {} s",
                        pause.as_secs()
                    ));
                    self.nodes[node].signal(Signal::STOP);
                    std::thread::sleep(pause);
                    self.nodes[node].signal(Signal::CONT);
                }
                3 => {
                    say(&format!("node {node} loses its directory"));
                    self.nodes[node].kill();
                    std::fs::remove_dir_all(self.path(&format!("node-{node}"))).unwrap();
                    self.start_node(node);
                    // The next fault waits until it has followed.
                    self.wait_ready(node);
                }
                4 => {
                    say(&format!("broker {broker} is killed"));
                    self.brokers[broker].kill();
                    std::thread::sleep(pause.min(Duration::from_secs(5)));
                    self.start_broker(broker);
                    self.wait_current();
                }
                5 => {
                    say(&format!(
                        "broker {broker} stands still for {} s",
                        pause.as_secs()
                    ));
                    self.brokers[broker].signal(Signal::STOP);
                    std::thread::sleep(pause);
                    self.brokers[broker].signal(Signal::CONT);
                    self.wait_current();
                }
                6 => {
                    say(&format!("node {node} and broker {broker} are killed"));
                    self.nodes[node].kill();
                    self.brokers[broker].kill();
                    std::thread::sleep(pause.min(Duration::from_secs(3)));
                    self.start_broker(broker);
                    self.start_node(node);
                    self.wait_current();
                }
                _ => {
                    say(&format!(
                        "a file of broker {broker} is damaged while it is down"
                    ));
                    self.brokers[broker].kill();
                    damage(&self.path(&format!("broker-{broker}")), random);
                    self.start_broker(broker);
                    self.wait_current();
                }
            }
            self.restart_ended();
        }
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
            let ready = self.addresses().into_iter().all(is_ready);
            if ready {
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
    fn restart_ended(&mut self) {
        for number in 0..self.nodes.len() {
            // Its broker has lost a part of the order with a damaged file, and the node needs that part.
            if readiness(self.nodes[number].address())
                .is_ok_and(|answer| answer.contains("the order lacks the messages"))
            {
                self.rejoin(number);
            }
            if !self.nodes[number].runs() {
                self.start_node(number);
                let begin = Instant::now();
                while self.nodes[number].runs()
                    && begin.elapsed() < Duration::from_secs(2)
                    && !is_ready(self.nodes[number].address())
                {
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        }
    }

    /// Copies the log of another node, as the manual says.
    fn rejoin(&mut self, number: usize) {
        println!("          node {number} copies the log of another node");
        self.nodes[number].kill();
        let data = self.path(&format!("node-{number}"));
        std::fs::remove_dir_all(&data).unwrap();
        let mut join = Command::new(env!("CARGO_BIN_EXE_encke"));
        let output = join
            .args(["fleet", "join", "--fleet", &self.urls(), "--data"])
            .arg(&data)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        if !output.status.success() {
            println!("{}", String::from_utf8_lossy(&output.stderr));
            let _ = std::fs::remove_dir_all(&data);
        }
    }

    fn wait_ready(&mut self, node: usize) {
        let begin = Instant::now();
        while !is_ready(self.nodes[node].address()) {
            self.restart_ended();
            assert!(
                begin.elapsed() < Duration::from_secs(120),
                "node {node} does not become ready: {:?}\n{}",
                readiness(self.nodes[node].address()),
                self.logs()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until all brokers follow the order again: faults of two of three at a time are not promised to lose nothing.
    fn wait_current(&self) {
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
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    fn runs(&mut self) -> bool {
        self.child
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn signal(&self, signal: Signal) {
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

/// A run that is at least this long damages files of brokers, too.
const LONG: Duration = Duration::from_secs(60);

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

/// Flips bytes in the newest block of messages of a broker.
fn damage(store: &Path, random: &mut Random) {
    let mut blocks = Vec::new();
    let mut directories = vec![store.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            // Only the order, not the brokers' own consensus.
            if path.is_dir() && !path.ends_with("$SYS") {
                directories.push(path);
            } else if path.extension().is_some_and(|end| end == "blk")
                && path.to_string_lossy().contains("encke_log")
            {
                blocks.push(path);
            }
        }
    }
    if blocks.is_empty() {
        return;
    }
    let block = &blocks[random.below(blocks.len())];
    let length = std::fs::metadata(block).map_or(0, |metadata| metadata.len());
    let Ok(file) = File::options().read(true).write(true).open(block) else {
        return;
    };
    for _ in 0..3 {
        let at = random.below(length.max(1) as usize) as u64;
        let mut byte = [0];
        if file.read_at(&mut byte, at).is_ok_and(|read| read == 1) {
            let _ = file.write_at(&[byte[0] ^ 0x55], at);
        }
    }
}
