//! A receiver of webhooks: it records the calls and responds as it is told.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::PATIENCE;

/// A receiver on a port of its own, until it is dropped.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
}

struct State {
    calls: Mutex<Vec<Call>>,
    answer: Mutex<Answer>,
    ends: AtomicBool,
}

/// A call as the receiver got it.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) body: Value,
    pub(crate) raw: Vec<u8>,
    /// Its fields, with names as they were sent.
    fields: Vec<(String, String)>,
}

/// How it responds.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// With this status and body.
    Says(u16, &'static str),
    /// With a redirect to there.
    Redirects(String),
    /// With 503 if the call has this text, and else with 200.
    Refuses(&'static str),
    /// Never.
    Waits,
}

impl Call {
    /// A field, by its name as it was sent; empty if there is none.
    pub(crate) fn field(&self, name: &str) -> &str {
        let named = self.fields.iter().find(|(of, _)| of == name);
        named.map_or("", |(_, value)| value)
    }
}

impl Receiver {
    pub(crate) fn start(answer: Answer) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let state = Arc::new(State {
            calls: Mutex::default(),
            answer: Mutex::new(answer),
            ends: AtomicBool::new(false),
        });
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                if shared.ends.load(Ordering::SeqCst) {
                    return;
                }
                let (socket, shared) = (socket.expect("a client"), Arc::clone(&shared));
                std::thread::spawn(move || shared.serve(socket));
            }
        });
        Receiver { address, state }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/webhook", self.address)
    }

    /// From now on it responds in this way.
    pub(crate) fn answers(&self, answer: Answer) {
        *self.state.answer.lock().expect("not poisoned") = answer;
    }

    /// All calls so far.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.state.calls.lock().expect("not poisoned").clone()
    }

    /// Waits for the call with this index.
    pub(crate) fn call(&self, index: usize) -> Call {
        let mut found = None;
        super::eventually("the webhook is called", || {
            found = self.calls().get(index).cloned();
            found.is_some()
        });
        found.expect("it was found")
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

impl State {
    /// Serves one call. A caller that is gone is no failure.
    fn serve(&self, socket: TcpStream) {
        let _ = self.try_serve(socket);
    }

    fn try_serve(&self, mut socket: TcpStream) -> std::io::Result<()> {
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut input = BufReader::new(socket.try_clone()?);
        let (mut length, mut fields) = (0, Vec::new());
        loop {
            let mut line = String::new();
            if input.read_line(&mut line)? == 0 || line == "\r\n" {
                break;
            }
            let Some((name, value)) = line.trim_end().split_once(": ") else {
                continue;
            };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.parse().expect("a length");
            }
            fields.push((name.to_owned(), value.to_owned()));
        }
        let mut raw = vec![0; length];
        input.read_exact(&mut raw)?;
        let Ok(body) = serde_json::from_slice(&raw) else {
            return Ok(());
        };
        let answer = self.answer.lock().expect("not poisoned").clone();
        let has = |text| String::from_utf8_lossy(&raw).contains(text);
        let answer = match answer {
            Answer::Refuses(text) => Answer::Says(if has(text) { 503 } else { 200 }, "{}"),
            other => other,
        };
        let call = Call { body, raw, fields };
        self.calls.lock().expect("not poisoned").push(call);
        match answer {
            Answer::Says(status, body) => write!(
                socket,
                "HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ),
            Answer::Redirects(to) => write!(
                socket,
                "HTTP/1.1 307 x\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n"
            ),
            // Until the caller hangs up.
            Answer::Waits | Answer::Refuses(_) => socket.read(&mut [0]).map(drop),
        }
    }
}
