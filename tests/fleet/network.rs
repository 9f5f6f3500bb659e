//! Network namespaces of the processes of a fleet, so that some of them can be cut off from others.
//!
//! Each process has a namespace of its own and a link to a hub, which forwards packets. A cut is a rule of the hub that drops the
//! packets from one address to another; established connections notice nothing but silence. The clients are in the hub and
//! reach all processes. Everything is gone with the processes that hold the namespaces: no name of it is visible outside.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The network of a fleet.
pub struct Network {
    /// Processes that do nothing and keep a namespace: the hub's, and one for each member.
    holders: Vec<Child>,
    /// From and to.
    cuts: Vec<(usize, usize)>,
}

impl Network {
    /// Makes a hub and this number of members, and moves this thread into the hub. Threads and processes that it starts are in the hub
    /// too.
    ///
    /// # Errors
    /// This user may not, or a program is missing.
    pub fn new(members: usize) -> Result<Network, String> {
        let before = File::open(OWN).map_err(|error| error.to_string())?;
        let network = Network::make(members);
        if network.is_err() {
            // Where it was, the loopback works.
            enter(&before)?;
        }
        network
    }

    fn make(members: usize) -> Result<Network, String> {
        let mut network = Network {
            holders: vec![hold()?],
            cuts: Vec::new(),
        };
        let hub = File::open(network.namespace(0)).map_err(|error| error.to_string())?;
        enter(&hub)?;
        run(ip("link set lo up"))?;
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")
            .map_err(|error| format!("ip_forward: {error}"))?;
        for member in 0..members {
            network.add(member)?;
        }
        Ok(network)
    }

    fn add(&mut self, member: usize) -> Result<(), String> {
        let holder = hold()?;
        let process = holder.id();
        self.holders.push(holder);
        let (hub, address) = (hub_address(member), address(member));
        run(ip(&format!(
            "link add h{member} type veth peer name eth0 netns {process}"
        )))?;
        run(ip(&format!("addr add {hub}/30 dev h{member}")))?;
        run(ip(&format!("link set h{member} up")))?;
        for inside in [
            "link set lo up",
            &format!("addr add {address}/30 dev eth0"),
            "link set eth0 up",
            &format!("route add default via {hub}"),
        ] {
            let mut command = self.command(member, "ip");
            command.args(inside.split(' '));
            run(command)?;
        }
        Ok(())
    }

    /// A program in the namespace of a member.
    pub fn command(&self, member: usize, program: impl Into<PathBuf>) -> Command {
        let mut command = Command::new("nsenter");
        let namespace = self.namespace(member + 1);
        command
            .arg(format!("--net={}", namespace.display()))
            .arg(program.into());
        command
    }

    fn namespace(&self, holder: usize) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.holders[holder].id()))
    }

    /// Drops the packets from some members to others.
    pub fn cut(&mut self, from: &[usize], to: &[usize]) {
        for from in from {
            for to in to.iter().filter(|to| *to != from) {
                run(rule("add", (*from, *to))).unwrap();
                self.cuts.push((*from, *to));
            }
        }
    }

    /// Ends all cuts.
    pub fn heal(&mut self) {
        for cut in self.cuts.drain(..) {
            run(rule("del", cut)).unwrap();
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for holder in &mut self.holders {
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}

/// The address of a member.
pub fn address(member: usize) -> IpAddr {
    Ipv4Addr::new(10, 77, member as u8, 2).into()
}

fn hub_address(member: usize) -> IpAddr {
    Ipv4Addr::new(10, 77, member as u8, 1).into()
}

fn enter(namespace: &File) -> Result<(), String> {
    let entered = move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network));
    entered.map_err(|error| format!("cannot enter a network namespace: {error}"))
}

fn rule(what: &str, (from, to): (usize, usize)) -> Command {
    let (from, to) = (address(from), address(to));
    ip(&format!("rule {what} from {from} to {to} blackhole"))
}

/// A process with a network namespace of its own. It ends by itself after the longest run.
fn hold() -> Result<Child, String> {
    let own = std::fs::read_link(OWN).map_err(|error| error.to_string())?;
    let child = Command::new("unshare")
        .args(["--net", "sleep", HOLD_SECONDS])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut child = child.map_err(|error| format!("cannot start unshare: {error}"))?;
    let namespace = format!("/proc/{}/ns/net", child.id());
    let begin = Instant::now();
    while std::fs::read_link(&namespace).map_or(true, |its| its == own) {
        let ended = child.try_wait().map_err(|error| error.to_string())?;
        if ended.is_some() || begin.elapsed() > Duration::from_secs(10) {
            let _ = child.kill();
            let _ = child.wait();
            return Err("this user may not make network namespaces".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(child)
}

fn ip(arguments: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(arguments.split(' '));
    command
}

fn run(mut command: Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{command:?}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

/// The namespace of this thread.
const OWN: &str = "/proc/thread-self/ns/net";

const HOLD_SECONDS: &str = "7200";
