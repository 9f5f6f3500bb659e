//! Receivers of webhooks on sockets of this machine.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;

/// A request that a receiver has got.
#[derive(Debug)]
pub(crate) struct Received {
    /// The request line and the fields, without the empty line.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// Whether the connection was closed behind the response.
    pub(crate) closed: mpsc::Receiver<()>,
}

impl Received {
    /// The value of a field.
    pub(crate) fn field(&self, name: &str) -> &str {
        let mut lines = self.head.lines();
        let line = lines.find_map(|line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then_some(value.trim())
        });
        line.unwrap_or_else(|| panic!("no {name} in {}", self.head))
    }
}

/// What a receiver does with a request.
pub(crate) enum Reaction {
    /// It sends these bytes.
    Send(Vec<u8>),
    /// It sends these bytes, then the same ones again and again until it cannot.
    SendForEver(Vec<u8>, Vec<u8>),
    /// It sends these bytes and closes the connection.
    SendAndClose(Vec<u8>),
    /// It never responds.
    Wait,
}

/// Starts a receiver that reacts to each request alike.
pub(crate) fn receiver(
    reaction: impl Fn() -> Reaction + Send + 'static,
) -> (SocketAddr, mpsc::Receiver<Received>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, received) = mpsc::channel();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let (connection, sender) = (connection.unwrap(), sender.clone());
            let reaction = reaction();
            std::thread::spawn(move || serve(connection, &sender, reaction));
        }
    });
    (address, received)
}

fn serve(mut connection: TcpStream, sender: &mpsc::Sender<Received>, reaction: Reaction) {
    let (closes, closed) = mpsc::channel();
    let Some((head, body)) = request(&mut connection) else {
        return;
    };
    let _ = sender.send(Received { head, body, closed });
    match reaction {
        Reaction::Send(bytes) => connection.write_all(&bytes).unwrap(),
        Reaction::SendForEver(begin, more) => {
            let mut sent = connection.write_all(&begin);
            while sent.is_ok() {
                sent = connection.write_all(&more);
            }
        }
        Reaction::SendAndClose(bytes) => {
            connection.write_all(&bytes).unwrap();
            return;
        }
        Reaction::Wait => {}
    }
    // Until the other end closes.
    let _ = connection.read(&mut [0]);
    let _ = closes.send(());
}

/// Reads a request with a body of a known length.
pub(crate) fn request(connection: &mut impl Read) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4_096];
    loop {
        if let Some(end) = bytes.windows(4).position(|part| part == b"\r\n\r\n") {
            let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
            let mut lines = head.lines();
            let length = lines.find_map(|line| {
                let (field, value) = line.split_once(':')?;
                let is_length = field.eq_ignore_ascii_case("content-length");
                is_length.then(|| value.trim().parse::<usize>().unwrap())
            });
            let length = length.expect("a length");
            if bytes.len() >= end + 4 + length {
                return Some((head, bytes[end + 4..].to_vec()));
            }
        }
        match connection.read(&mut buffer) {
            Ok(0) | Err(_) => return None,
            Ok(read) => bytes.extend_from_slice(&buffer[..read]),
        }
    }
}

/// A response with that status and body.
pub(crate) fn response(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
}
