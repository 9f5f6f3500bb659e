//! The floor: the kernel's cost of sending the same bytes over as many loopback sockets.
//!
//! A bare loop of send(2) in one thread, a reader in another; the processor time of the sending thread is the cost of
//! the sends alone. No server that sends each event to each socket can cost less.

use crate::BenchError;
use crate::load::clock::{SECOND_NS, monotonic_ns, thread_cpu_ns};
use crate::load::poller::Poller;
use crate::load::socket::{Sources, check_descriptors, listen, raise_descriptor_limit};
use rustix::io::Errno;
use serde::Serialize;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

/// The largest piece that is sent at once; beyond it, copying outweighs all else anyway.
const SEND_BYTES_MAX: usize = 256 * 1024;

/// How long all readers together may take to connect.
const ACCEPT_NS_MAX: u64 = 30 * SECOND_NS;

/// The plan of the loop.
#[derive(Debug, Clone)]
pub(crate) struct FloorPlan {
    /// Over how many sockets.
    pub(crate) sockets: u32,
    /// Bytes per send.
    pub(crate) bytes: usize,
    /// Events per second.
    pub(crate) rate: f64,
    /// To how many sockets each event goes, one after another.
    pub(crate) sends_per_event: u32,
    /// For how long.
    pub(crate) duration_ns: u64,
}

/// The cost of the loop.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Floor {
    /// Sockets that were sent to.
    pub sockets: u32,
    /// Bytes per send.
    pub bytes: usize,
    /// Sends that were made.
    pub sends: u64,
    /// How long the loop ran, in seconds.
    pub seconds: f64,
    /// Processor time per send, user and system, in microseconds.
    pub cpu_per_send_us: f64,
    /// The server's processor time per delivery divided by the floor's per send, where the
    /// server's is known.
    pub ratio: Option<f64>,
}

/// Runs the loop.
pub(crate) fn measure(orders: &FloorPlan, stop: &AtomicBool) -> Result<Floor, BenchError> {
    // Both ends of each connection are in this process.
    let descriptors = 2 * u64::from(orders.sockets);
    check_descriptors(raise_descriptor_limit(), descriptors)?;
    let listener = listen()?;
    let address = listener
        .local_addr()
        .map_err(BenchError::system("listen"))?;
    let count = orders.sockets;
    let reader = std::thread::spawn(move || swallow(address, count));
    let sockets = accept(&listener, count)?;
    let floor = send(orders, &sockets, stop);
    // The end of the connections ends the reader.
    drop(sockets);
    let read = reader.join().map_err(|_| BenchError::Thread("reader"))?;
    read.and(floor)
}

fn accept(listener: &TcpListener, count: u32) -> Result<Vec<TcpStream>, BenchError> {
    let poller = Poller::new()?;
    listener
        .set_nonblocking(true)
        .map_err(BenchError::system("listen"))?;
    poller
        .add_readable(listener, 0)
        .map_err(BenchError::system("watch a listener"))?;
    let until_ns = monotonic_ns() + ACCEPT_NS_MAX;
    let mut sockets = Vec::with_capacity(count as usize);
    while sockets.len() < count as usize {
        match listener.accept() {
            Ok((socket, _)) => {
                socket
                    .set_nodelay(true)
                    .map_err(BenchError::system("accept"))?;
                sockets.push(socket);
            }
            Err(error) if error.kind() != ErrorKind::WouldBlock || monotonic_ns() >= until_ns => {
                return Err(BenchError::system("accept the readers of the send loop")(
                    error,
                ));
            }
            Err(_) => poller.wait(until_ns, |_| ())?,
        }
    }
    Ok(sockets)
}

fn send(orders: &FloorPlan, sockets: &[TcpStream], stop: &AtomicBool) -> Result<Floor, BenchError> {
    let payload = vec![b'x'; orders.bytes.clamp(1, SEND_BYTES_MAX)];
    let poller = Poller::new()?;
    let (mut sends, mut events, mut next) = (0u64, 0u64, 0usize);
    let start_ns = monotonic_ns();
    let mut cpu_ns = 0;
    loop {
        let due_ns = start_ns + (events as f64 / orders.rate * SECOND_NS as f64) as u64;
        let now_ns = monotonic_ns();
        if now_ns >= start_ns + orders.duration_ns || stop.load(Ordering::Relaxed) {
            break;
        }
        if due_ns > now_ns {
            poller.wait(due_ns, |_| ())?;
            continue;
        }
        events += 1;
        // Only the sends are counted, not the waiting for the next event's time.
        let before_ns = thread_cpu_ns();
        for _ in 0..orders.sends_per_event {
            let socket = &sockets[next % sockets.len()];
            next += 1;
            let flags = rustix::net::SendFlags::NOSIGNAL;
            match rustix::net::send(socket, &payload, flags) {
                Ok(_) => sends += 1,
                Err(Errno::INTR) => {}
                Err(error) => return Err(BenchError::system("send")(error)),
            }
        }
        cpu_ns += thread_cpu_ns() - before_ns;
    }
    let seconds = (monotonic_ns() - start_ns) as f64 / SECOND_NS as f64;
    Ok(Floor {
        sockets: orders.sockets,
        bytes: payload.len(),
        sends,
        seconds,
        cpu_per_send_us: cpu_ns as f64 / 1e3 / sends.max(1) as f64,
        ratio: None,
    })
}

/// Connects `count` times and reads until all connections are closed.
fn swallow(server: SocketAddr, count: u32) -> Result<(), BenchError> {
    let poller = Poller::new()?;
    let mut sources = Sources::new(server, count);
    let mut sockets = Vec::with_capacity(count as usize);
    for token in 0..u64::from(count) {
        let socket = sources
            .connect(server)
            .map_err(BenchError::system("connect"))?;
        poller
            .add_socket(&socket, token)
            .map_err(BenchError::system("watch a socket"))?;
        sockets.push(Some(socket));
    }
    let mut open = sockets.len();
    let mut buffer = vec![0; SEND_BYTES_MAX];
    let mut ready = Vec::new();
    while open > 0 {
        poller.wait(u64::MAX, |event| ready.push(event))?;
        for event in ready.drain(..).filter(|event| event.readable) {
            let place = &mut sockets[event.token as usize];
            while let Some(socket) = place {
                match rustix::io::read(&*socket, &mut buffer) {
                    Err(Errno::AGAIN) => break,
                    Ok(length) if length > 0 => {
                        if length < buffer.len() && !event.ended {
                            break;
                        }
                    }
                    // An attempt to connect that has failed ends like a connection that was closed.
                    _ => {
                        *place = None;
                        open -= 1;
                    }
                }
            }
        }
    }
    Ok(())
}
