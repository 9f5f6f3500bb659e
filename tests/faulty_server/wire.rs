//! Requests and responses in bytes, and what goes wrong with them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::Held;

/// A request.
pub(super) struct Asked {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: BTreeMap<String, String>,
    pub(super) fields: BTreeMap<String, String>,
    pub(super) body: Vec<u8>,
}

/// A response.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) fields: Vec<(&'static str, String)>,
    pub(super) body: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    Unavailable,
    TooMany,
    /// The connection closes before the request is done.
    CloseBefore,
    /// The request is done, and the connection closes before the response.
    CloseBehind,
    /// The body of the response ends too early.
    Cut,
    Slow,
}

impl Answer {
    pub(super) fn error(status: u16) -> Answer {
        Answer {
            status,
            fields: Vec::new(),
            body: format!("status {status}").into_bytes(),
        }
    }

    pub(super) fn of(status: u16, held: &Held) -> Answer {
        let mut fields = vec![("Content-Type", held.content_type.clone())];
        fields.extend(held.ttl.clone().map(|ttl| ("Stream-TTL", ttl)));
        if held.closed {
            fields.push(("Stream-Closed", "true".into()));
        }
        Answer {
            status,
            fields,
            body: Vec::new(),
        }
    }

    pub(super) fn field(mut self, name: &'static str, value: String) -> Answer {
        self.fields.push((name, value));
        self
    }
}

/// Reads a request; nothing at the end of the connection.
pub(super) fn read_request(input: &mut BufReader<&TcpStream>) -> Option<Asked> {
    let mut line = String::new();
    input.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut fields = BTreeMap::new();
    loop {
        let mut line = String::new();
        input.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        fields.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = fields
        .get("content-length")
        .and_then(|length| length.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    input.read_exact(&mut body).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let query = query.split('&').filter_map(|pair| pair.split_once('='));
    Some(Asked {
        method,
        path: path.to_owned(),
        query: query
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        fields,
        body,
    })
}

/// Sends a response, with its length or in chunks; an error ends the connection.
pub(super) fn send(
    mut socket: &TcpStream,
    asked: &Asked,
    answer: &Answer,
    fault: Fault,
    dice: &mut Dice,
) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {} Any\r\n", answer.status);
    for (name, value) in &answer.fields {
        head += &format!("{name}: {value}\r\n");
    }
    let is_bodyless = asked.method == "HEAD" || answer.status == 204;
    let body = if is_bodyless { &[][..] } else { &answer.body };
    let chunked = !is_bodyless && dice.roll(2) == 0;
    if chunked {
        head += "Transfer-Encoding: chunked\r\n\r\n";
    } else if answer.status == 204 {
        head += "\r\n";
    } else {
        head += &format!("Content-Length: {}\r\n\r\n", body.len());
    }
    socket.write_all(head.as_bytes())?;
    let sent = match fault {
        Fault::Cut => dice.roll(body.len() as u64) as usize,
        _ => body.len(),
    };
    for part in body[..sent].chunks(1 + dice.roll(20_000) as usize) {
        if fault == Fault::Slow {
            std::thread::sleep(Duration::from_millis(1));
        }
        match chunked {
            true => {
                socket.write_all(format!("{:x}\r\n", part.len()).as_bytes())?;
                socket.write_all(part)?;
                socket.write_all(b"\r\n")?;
            }
            false => socket.write_all(part)?,
        }
    }
    if fault == Fault::Cut && !is_bodyless {
        return Err(std::io::Error::other("cut"));
    }
    match chunked {
        true => socket.write_all(b"0\r\n\r\n"),
        false => Ok(()),
    }
}

/// Random numbers of a seed (SplitMix64).
pub(super) struct Dice(pub(super) u64);

impl Dice {
    /// A number below `sides`, or 0.
    pub(super) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % sides.max(1)
    }
}

/// What can go wrong.
pub(super) const FAULTS: [Fault; 6] = [
    Fault::Unavailable,
    Fault::TooMany,
    Fault::CloseBefore,
    Fault::CloseBehind,
    Fault::Cut,
    Fault::Slow,
];
