use super::*;
use crate::load::clock::{SECOND_NS, monotonic_ns};
use crate::load::socket::Sources;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::Ordering;

/// What became of a line.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    Done(u16),
    Lost,
    GivenUp(String),
}

/// Makes requests until `answers` have come.
struct Recorder<'a> {
    seen: Vec<Seen>,
    answers: usize,
    stop: &'a AtomicBool,
}

impl Traffic for Recorder<'_> {
    fn next(&mut self, _line: usize, _due_ns: u64, out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(b"GET / HTTP/1.1\r\n\r\n");
        true
    }

    fn done(&mut self, _line: usize, status: u16, now_ns: u64) {
        assert!(now_ns <= monotonic_ns());
        self.seen.push(Seen::Done(status));
        self.answers -= 1;
        self.stop.store(self.answers == 0, Ordering::Relaxed);
    }

    fn lost(&mut self, _line: usize) {
        self.seen.push(Seen::Lost);
    }

    fn given_up(&mut self, _line: usize, reason: &str) {
        self.seen.push(Seen::GivenUp(reason.to_owned()));
    }
}

/// Makes requests of `listener` until `answers` have come.
fn run_until(
    listener: &TcpListener,
    lines: usize,
    mode: Mode,
    answers: usize,
) -> (Outcome, Vec<Seen>) {
    let server = listener.local_addr().unwrap();
    let plan = RequestPlan {
        servers: vec![server],
        sources: Sources::new(server, lines as u32).resetting(),
        lines,
        depth: 1,
        rate: None,
        duration_ns: u64::MAX,
        mode,
        grace_ns: 0,
    };
    let stop = AtomicBool::new(false);
    let mut recorder = Recorder {
        seen: Vec::new(),
        answers,
        stop: &stop,
    };
    let outcome = run(plan, &mut recorder, &stop).unwrap();
    (outcome, recorder.seen)
}

/// Accepts a client and reads its request.
fn accept(listener: &TcpListener) -> TcpStream {
    let (client, _) = listener.accept().unwrap();
    let request = BufReader::new(&client).lines().map(Result::unwrap);
    assert_eq!(request.take_while(|line| !line.is_empty()).count(), 1);
    client
}

#[test]
fn a_line_of_one_request_is_answered_by_a_head_and_stays_connected() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ((outcome, mut seen), mut answered, _silent) = std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let [mut served, mut refused, silent] = [(); 3].map(|()| accept(&listener));
            served
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nbody")
                .unwrap();
            refused
                .write_all(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
                .unwrap();
            ([served, refused], silent)
        });
        let (outcome, seen) = run_until(&listener, 3, Mode::OneRequest, 2);
        let (answered, silent) = server.join().unwrap();
        ((outcome, seen), answered, silent)
    });
    seen.sort();
    assert_eq!(seen, [Seen::Done(200), Seen::Done(503), Seen::Lost]);
    assert_eq!(outcome.answered.len(), 2);
    for client in &mut answered {
        client.set_nonblocking(true).unwrap();
        let open = client.read(&mut [0]).unwrap_err();
        assert_eq!(open.kind(), ErrorKind::WouldBlock);
        client.set_nonblocking(false).unwrap();
    }
    drop(outcome);
    for client in &mut answered {
        let reset = client.read(&mut [0]).unwrap_err();
        assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
    }
}

#[test]
fn a_line_that_keeps_alive_connects_again_after_a_loss() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let reconnect_timeout_ns = 3_600 * SECOND_NS;
    let (outcome, seen) = std::thread::scope(|scope| {
        scope.spawn(|| {
            drop(accept(&listener));
            let mut client = accept(&listener);
            client
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                .unwrap();
            client.read(&mut [0]).unwrap_err()
        });
        run_until(
            &listener,
            1,
            Mode::KeepAlive {
                reconnect_timeout_ns,
            },
            1,
        )
    });
    assert_eq!(seen, [Seen::Lost, Seen::Done(200)]);
    assert_eq!((outcome.lost, outcome.given_up), (1, 0));
    assert!(outcome.answered.is_empty());
}
