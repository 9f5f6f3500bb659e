//! Many hostile clients beside a publisher and a subscriber: each hostile client is closed at its timeout, the subscriber gets every
//! record, and the server's memory for all of them is bounded.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use crate::rig::{
    Bystanders, Connection, Encke, JSON, SetWhenDropped, anonymous_memory_bytes, eventually, path,
    raise_descriptors, request,
};

#[test]
fn hostile_clients_of_every_kind() {
    raise_descriptors();
    let encke = Encke::start(&[
        "--tuning",
        "request-timeout=1s",
        "--tuning",
        "body-timeout=2s",
        "--tuning",
        "idle-timeout=1s",
        "--tuning",
        "stall-timeout=1s",
        "--buffers-max",
        "16MiB",
        "--ring",
        "4MiB",
        // So short that most deferred work is put off repeatedly, behind deliveries.
        "--tuning",
        "deferred-time=1us",
    ]);
    fill_unread_stream(&encke);
    let bystanders = Bystanders::of(&encke);
    let over = AtomicBool::new(false);
    let buffered_bytes_max = scope(|scope| {
        let end_of_attack = SetWhenDropped(&over);
        let attackers = Attack::ALL.map(|attack| {
            let (address, over) = (encke.address, &over);
            scope.spawn(move || attack.repeat(address, over))
        });
        let mut buffered_bytes_max = 0.0_f64;
        eventually(
            "every limit has closed many connections beside many records",
            || {
                buffered_bytes_max =
                    buffered_bytes_max.max(encke.metric("encke_buffered_bytes", ""));
                closed(&encke, "idle") >= 50.0
                    && closed(&encke, "stalled") >= 50.0
                    && encke.refused("timeout") >= 50
                    && encke.refused("body_timeout") >= 50
                    && encke.metric("encke_records_total", "") > 1_000.0
            },
        );
        drop(end_of_attack);
        for (attack, attacker) in Attack::ALL.into_iter().zip(attackers) {
            let times = attacker.join().expect("the attacker ends");
            assert!(times >= 10, "{attack:?}: closed {times} times");
        }
        buffered_bytes_max
    });
    bystanders.were_not_disturbed();
    assert!(buffered_bytes_max > 0.0, "the gauge counts buffers");
    // `--buffers-max` of the server.
    let allowed = f64::from(16 << 20);
    assert!(buffered_bytes_max < allowed, "{buffered_bytes_max} bytes");
    assert!(encke.metric("encke_deferred_put_off_total", "") > 0.0);
    let used = anonymous_memory_bytes(&encke);
    assert!(used < 200 << 20, "{used} bytes are used");
    eventually("nothing is left of them", || {
        encke.metric("encke_buffered_bytes", "") == 0.0
            // The request for the metrics has a connection of its own.
            && encke.metric("encke_connections", "") <= 1.0
            && encke.metric("encke_clients_behind", "") == 0.0
    });
}

/// One way to hold a connection open at the server's expense.
#[derive(Debug, Clone, Copy)]
enum Attack {
    /// Sends nothing.
    Silent,
    /// Sends a request head that never ends, a byte at a time.
    SlowHead,
    /// Announces a large body and sends it a byte at a time.
    SlowBody,
    /// Subscribes to a stream with more records than a socket holds, and does not read.
    UnreadEvents,
    /// Requests all records of that stream, and does not read.
    UnreadAnswer,
}

impl Attack {
    const ALL: [Attack; 5] = [
        Attack::Silent,
        Attack::SlowHead,
        Attack::SlowBody,
        Attack::UnreadEvents,
        Attack::UnreadAnswer,
    ];

    /// Runs [`CLIENTS`] clients that reconnect when they are closed. Returns how often the server closed one.
    fn repeat(self, server: SocketAddr, over: &AtomicBool) -> u64 {
        let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| self.begin(server)).collect();
        let mut closed = 0;
        while !over.load(Ordering::Relaxed) {
            for client in &mut clients {
                if self.next(client).is_err() {
                    closed += 1;
                    *client = self.begin(server);
                }
            }
            sleep(Duration::from_millis(100));
        }
        closed
    }

    fn begin(self, server: SocketAddr) -> TcpStream {
        let mut socket = match self {
            // The less the client's socket holds, the more stays in the server.
            Attack::UnreadEvents | Attack::UnreadAnswer => Connection::open_narrow(server).socket,
            _ => TcpStream::connect(server).expect("the server accepts"),
        };
        let stream = path("unread");
        let first = match self {
            Attack::Silent => Vec::new(),
            Attack::SlowHead => b"GET / HTTP/1.1\r\nHost: x\r\nX: y".to_vec(),
            Attack::SlowBody => {
                format!("POST {stream} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
                    .into_bytes()
            }
            Attack::UnreadEvents => {
                request("GET", &format!("{stream}?offset=-1&live=sse"), &[], b"")
            }
            Attack::UnreadAnswer => request("GET", &format!("{stream}?offset=-1"), &[], b""),
        };
        socket.set_nonblocking(true).expect("a socket can do that");
        socket.write_all(&first).expect("a new socket has room");
        socket
    }

    /// Sends the next byte, if this attack sends any. Fails when the server has closed the connection.
    fn next(self, socket: &mut TcpStream) -> std::io::Result<()> {
        match self {
            Attack::SlowHead | Attack::SlowBody => would_block_is_ok(socket.write(b"y"))?,
            Attack::Silent | Attack::UnreadEvents | Attack::UnreadAnswer => {}
        }
        match self {
            Attack::UnreadEvents | Attack::UnreadAnswer => has_hung_up(socket),
            Attack::Silent | Attack::SlowHead | Attack::SlowBody => {
                let mut answer = [0; 4096];
                match socket.read(&mut answer) {
                    Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
                    result => would_block_is_ok(result),
                }
            }
        }
    }
}

fn would_block_is_ok(result: std::io::Result<usize>) -> std::io::Result<()> {
    match result {
        Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
        _ => Ok(()),
    }
}

/// Fails when the server has closed the connection; reads nothing.
fn has_hung_up(socket: &TcpStream) -> std::io::Result<()> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::new(socket, PollFlags::RDHUP)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    match poll(&mut polled, Some(&at_once))? {
        0 => Ok(()),
        _ => Err(ErrorKind::ConnectionReset.into()),
    }
}

/// Appends more than the sockets of a client and of the server hold.
fn fill_unread_stream(encke: &Encke) {
    encke.create("unread");
    let body = format!("\"{}\"", "x".repeat(64 << 10));
    let mut connection = encke.connect();
    for _ in 0..64 {
        let answer = connection.ask("POST", &path("unread"), &[JSON], body.as_bytes());
        assert_eq!(answer.status, 204, "{answer:?}");
    }
}

fn closed(encke: &Encke, reason: &str) -> f64 {
    let label = format!("reason=\"{reason}\"");
    encke.metric("encke_connections_closed_total", &label)
}

/// Clients of each attack at a time.
const CLIENTS: usize = 32;
