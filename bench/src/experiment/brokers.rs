//! Brokers of a fleet, nats-server with JetStream, as processes of their own.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::BenchError;
use crate::client::HttpClient;
use crate::experiment::lab::{Lab, Scratch};

/// Brokers that belong together; killed when dropped.
#[derive(Debug)]
pub(crate) struct Brokers {
    brokers: Vec<Broker>,
    /// Dropped after the processes that write into it.
    _folder: Scratch,
}

#[derive(Debug)]
struct Broker {
    child: Child,
    address: SocketAddr,
}

impl Brokers {
    /// Starts `count` brokers, which sync everything that they confirm, and waits until they have a leader.
    pub(crate) fn start(lab: &Lab<'_>, count: usize) -> Result<Self, BenchError> {
        let folder = lab.scratch("brokers")?;
        let ports: Vec<[SocketAddr; 3]> = free_ports(count)?;
        let routes: Vec<_> = ports
            .iter()
            .map(|[_, route, _]| format!("nats-route://{route}"))
            .collect();
        let mut started = Self {
            brokers: Vec::new(),
            _folder: folder,
        };
        for (number, [address, route, monitor]) in ports.iter().enumerate() {
            let path = started._folder.path().join(number.to_string());
            let mut config = format!(
                "server_name: broker-{number}\nlisten: \"{address}\"\nhttp: \"{monitor}\"\n\
                 jetstream {{ store_dir: \"{}\", sync_interval: always }}\n",
                path.display()
            );
            if count > 1 {
                config += &format!(
                    "cluster {{ name: bench, listen: \"{route}\", routes: [{}] }}\n",
                    routes.join(", ")
                );
            }
            let file = path.with_extension("conf");
            std::fs::write(&file, config).map_err(BenchError::file("write", &file))?;
            let child = Command::new(&lab.broker)
                .arg("-c")
                .arg(&file)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .map_err(BenchError::file("start", &lab.broker))?;
            started.brokers.push(Broker {
                child,
                address: *address,
            });
        }
        for [_, _, monitor] in &ports {
            started.wait_until_healthy(lab, *monitor)?;
        }
        Ok(started)
    }

    /// Their addresses, as `--fleet` takes them.
    pub(crate) fn urls(&self) -> String {
        let urls = self.brokers.iter();
        let urls = urls.map(|broker| format!("nats://{}", broker.address));
        urls.collect::<Vec<_>>().join(",")
    }

    /// Their processes.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.brokers
            .iter()
            .map(|broker| broker.child.id())
            .collect()
    }

    fn wait_until_healthy(&mut self, lab: &Lab<'_>, monitor: SocketAddr) -> Result<(), BenchError> {
        let begun = Instant::now();
        loop {
            let asked = HttpClient::connect(monitor)
                .and_then(|mut client| client.succeed("GET", "/healthz", b""));
            let Err(error) = asked else { return Ok(()) };
            for broker in &mut self.brokers {
                if let Ok(Some(status)) = broker.child.try_wait() {
                    return Err(ended(&lab.broker, &status.to_string()));
                }
            }
            if begun.elapsed() > HEALTHY_WAIT {
                return Err(ended(&lab.broker, &format!("is not ready: {error}")));
            }
            lab.sleep(LOOK)?;
        }
    }
}

impl Drop for Brokers {
    fn drop(&mut self) {
        for broker in &mut self.brokers {
            let _ = broker.child.kill();
            let _ = broker.child.wait();
        }
    }
}

fn ended(program: &Path, reason: &str) -> BenchError {
    BenchError::Broker {
        program: program.to_owned(),
        reason: reason.to_owned(),
    }
}

/// Three ports of loopback for each broker, that nothing listens on.
fn free_ports(count: usize) -> Result<Vec<[SocketAddr; 3]>, BenchError> {
    // All at once, so that none comes twice.
    let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let listeners = (0..count)
        .map(|_| Ok([listen()?, listen()?, listen()?]))
        .collect::<Result<Vec<_>, std::io::Error>>();
    let listeners = listeners.map_err(BenchError::system("find free ports"))?;
    let addresses = listeners.iter().map(|three| {
        let [one, two, three] = three.each_ref().map(TcpListener::local_addr);
        Ok([one?, two?, three?])
    });
    let addresses: Result<_, std::io::Error> = addresses.collect();
    addresses.map_err(BenchError::system("find free ports"))
}

/// How long brokers may take to find a leader.
const HEALTHY_WAIT: Duration = Duration::from_secs(60);

const LOOK: Duration = Duration::from_millis(50);
