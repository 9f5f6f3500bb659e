//! A connection to a broker that holds or changes what the broker sends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::eventually;

/// Forwards all connections to a broker. Ends with the test's process.
pub(crate) struct BrokerProxy {
    address: SocketAddr,
    faults: Arc<Faults>,
}

struct Faults {
    /// Bytes that the broker has sent.
    sent: AtomicU64,
    /// The proxy holds everything behind this number of bytes.
    hold_at: AtomicU64,
    held: AtomicBool,
    /// A byte of a large message after so many bytes is changed.
    flip_at: AtomicU64,
    flipped: AtomicBool,
    /// The version that the broker seems to have.
    version: Option<&'static str>,
}

impl Faults {
    fn none() -> Faults {
        Faults {
            sent: AtomicU64::new(0),
            hold_at: AtomicU64::new(u64::MAX),
            held: AtomicBool::new(false),
            flip_at: AtomicU64::new(u64::MAX),
            flipped: AtomicBool::new(false),
            version: None,
        }
    }
}

impl BrokerProxy {
    pub(crate) fn start(broker: SocketAddr) -> BrokerProxy {
        BrokerProxy::start_with(broker, Faults::none())
    }

    /// Forwards to a broker that seems to have this version.
    pub(crate) fn with_version(broker: SocketAddr, version: &'static str) -> BrokerProxy {
        let version = Some(version);
        BrokerProxy::start_with(
            broker,
            Faults {
                version,
                ..Faults::none()
            },
        )
    }

    fn start_with(broker: SocketAddr, faults: Faults) -> BrokerProxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let address = listener.local_addr().expect("it is bound");
        let faults = Arc::new(faults);
        let shared = Arc::clone(&faults);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(broker) = TcpStream::connect(broker) else {
                    continue;
                };
                let (up, down) = (client.try_clone(), broker.try_clone());
                let (up, down) = (up.expect("a socket"), down.expect("a socket"));
                let faults = Arc::clone(&shared);
                std::thread::spawn(move || pump(up, broker, &Faults::none()));
                std::thread::spawn(move || pump(down, client, &faults));
            }
        });
        BrokerProxy { address, faults }
    }

    /// Its address, as `--fleet` takes it.
    pub(crate) fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Holds what the broker sends after so many further bytes.
    pub(crate) fn hold_after(&self, bytes: u64) {
        let sent = self.faults.sent.load(Ordering::SeqCst);
        self.faults.held.store(false, Ordering::SeqCst);
        self.faults.hold_at.store(sent + bytes, Ordering::SeqCst);
    }

    pub(crate) fn wait_until_held(&self) {
        eventually("the proxy holds", || {
            self.faults.held.load(Ordering::SeqCst)
        });
    }

    pub(crate) fn release(&self) {
        self.faults.hold_at.store(u64::MAX, Ordering::SeqCst);
    }

    /// Changes a byte of a large message after so many further bytes.
    pub(crate) fn flip_after(&self, bytes: u64) {
        let sent = self.faults.sent.load(Ordering::SeqCst);
        self.faults.flip_at.store(sent + bytes, Ordering::SeqCst);
    }

    pub(crate) fn has_flipped(&self) -> bool {
        self.faults.flipped.load(Ordering::SeqCst)
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, faults: &Faults) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        let bytes = &mut buffer[..read];
        let sent = faults.sent.fetch_add(read as u64, Ordering::SeqCst) + read as u64;
        // A large read is inside of a large message, but for what begins a message.
        let middle = read / 2;
        let begins = |at: &[u8]| at == b"MSG ";
        if sent > faults.flip_at.load(Ordering::SeqCst)
            && read > 16 << 10
            && !bytes[middle - 256..middle + 256].windows(4).any(begins)
            && !faults.flipped.swap(true, Ordering::SeqCst)
        {
            bytes[middle] ^= 0x10;
        }
        while faults.sent.load(Ordering::SeqCst) > faults.hold_at.load(Ordering::SeqCst) {
            faults.held.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
        let written = match faults.version.filter(|_| bytes.starts_with(b"INFO ")) {
            Some(version) => to.write_all(&with_version(bytes, version)),
            None => to.write_all(bytes),
        };
        if written.is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}

/// The message INFO with another version.
fn with_version(info: &[u8], version: &str) -> Vec<u8> {
    let text = String::from_utf8_lossy(info);
    let (before, from) = text.split_once("\"version\":\"").expect("a version");
    let (_, after) = from.split_once('"').expect("its end");
    format!("{before}\"version\":\"{version}\"{after}").into_bytes()
}
