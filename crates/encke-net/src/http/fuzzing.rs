//! The body of the fuzz target `request_head`, which a test runs over the saved corpus too.

use super::body::Incoming;
use super::head::Framing;
use super::take::{ParseStep, RequestLimits, take};

/// Reads `data` as what a connection brings, and panics when it is read in two ways.
///
/// The first byte chooses the pieces in which the rest comes. Whatever the pieces, the same requests must be found in it, and
/// each must be what a reader finds that shares nothing with ours: line by line, with one length or none.
pub fn request_head(data: &[u8]) {
    let Some((&seed, input)) = data.split_first() else {
        return;
    };
    let whole = read(input, |_| input.len());
    for taken in &whole.requests {
        check(taken, input);
    }
    let mut random = u32::from(seed) + 1;
    let random_pieces = read(input, |_| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 24) as usize % 40 + 1
    });
    let single_bytes = read(input, |_| 1);
    assert_eq!(whole, random_pieces, "in random pieces");
    assert_eq!(whole, single_bytes, "byte by byte");
}

/// What was found in an input.
#[derive(Debug, PartialEq, Eq)]
struct Read {
    requests: Vec<Taken>,
    /// What follows them was refused. Which of its faults was found first may depend on the pieces.
    refused: bool,
}

/// A request and where it was found.
#[derive(Debug, PartialEq, Eq)]
struct Taken {
    start: usize,
    /// Where its head ends, and its body begins.
    behind_head: usize,
    end: usize,
    method: String,
    path: String,
    query: Option<String>,
    fields: Vec<(String, Vec<u8>)>,
    framing: Framing,
    body: Vec<u8>,
}

/// Takes the input as a shard does, in pieces of these sizes.
fn read(input: &[u8], mut piece_bytes: impl FnMut(usize) -> usize) -> Read {
    let limits = RequestLimits {
        head_bytes_max: HEAD_BYTES_MAX,
        body_bytes_max: BODY_BYTES_MAX,
    };
    let mut found = Read {
        requests: Vec::new(),
        refused: false,
    };
    let mut body: Option<Incoming> = None;
    // What came and was not taken yet is `input[taken..came]`.
    let (mut taken, mut came) = (0, 0);
    let mut start = 0;
    while came < input.len() {
        came += piece_bytes(came).clamp(1, input.len() - came);
        while taken < came {
            let mut rest = &input[taken..came];
            let mut closes = false;
            let step = take(&mut body, &mut rest, limits, |head, fields, body| {
                closes = !head.keep_alive;
                let start = begin(input, start);
                found.requests.push(Taken {
                    start,
                    behind_head: start + head.bytes,
                    end: 0,
                    method: head.method.to_owned(),
                    path: head.path.to_owned(),
                    query: head.query.map(str::to_owned),
                    fields: fields
                        .iter()
                        .map(|(name, value)| ((*name).to_owned(), value.to_vec()))
                        .collect(),
                    framing: head.framing,
                    body,
                });
            });
            taken = came - rest.len();
            match step {
                Err(_) => {
                    found.refused = true;
                    return found;
                }
                Ok(ParseStep::More) => break,
                Ok(ParseStep::Head { .. }) => {}
                Ok(ParseStep::Request) => {
                    start = taken;
                    if let Some(last) = found.requests.last_mut() {
                        last.end = taken;
                    }
                    if closes {
                        return found;
                    }
                }
            }
        }
    }
    found
}

/// Where the request begins that is looked for from `start` on: empty lines are not a part of it.
fn begin(input: &[u8], start: usize) -> usize {
    let lines = input[start..].split_inclusive(|byte| *byte == b'\n');
    let empty = lines.take_while(|line| matches!(line, [b'\r', b'\n']));
    start + empty.map(<[u8]>::len).sum::<usize>()
}

/// Reads the request again, by nothing but its lines.
fn check(taken: &Taken, input: &[u8]) {
    let head = &input[taken.start..taken.behind_head];
    assert!(head.len() <= HEAD_BYTES_MAX);
    assert!(head.ends_with(b"\r\n\r\n"));
    assert!(!head.contains(&0), "a zero byte in a head");
    let lines: Vec<&[u8]> = head
        .split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .skip_while(|line| line.is_empty())
        .take_while(|line| !line.is_empty())
        .collect();
    let (line, fields) = lines.split_first().expect("a head has a request line");
    assert!(lines.iter().all(|line| !line.contains(&b'\r')));
    let mut words = line.split(|byte| *byte == b' ');
    assert_eq!(words.next(), Some(taken.method.as_bytes()));
    let target = words.next().expect("a request line has a target");
    let asked = match &taken.query {
        Some(query) => format!("{}?{query}", taken.path),
        None => taken.path.clone(),
    };
    assert!(
        target.ends_with(asked.as_bytes()) || taken.path == "/",
        "{asked} is asked for"
    );
    assert!(taken.path.starts_with('/') || taken.path == "*");
    assert!(matches!(words.next(), Some(b"HTTP/1.1" | b"HTTP/1.0")));
    assert_eq!(words.next(), None);
    assert_eq!(fields.len(), taken.fields.len());
    let mut lengths = Vec::new();
    let mut encodings = 0;
    for (line, (name, value)) in fields.iter().zip(&taken.fields) {
        let colon = line
            .iter()
            .position(|byte| *byte == b':')
            .expect("a field has a colon");
        assert_eq!(&line[..colon], name.as_bytes());
        assert_eq!(line[colon + 1..].trim_ascii(), value.trim_ascii());
        assert!(!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic()));
        match name.to_ascii_lowercase().as_str() {
            "content-length" => lengths.push(value),
            "transfer-encoding" => encodings += 1,
            _ => {}
        }
    }
    let sent = &input[taken.behind_head..taken.end];
    assert!(taken.body.len() <= BODY_BYTES_MAX);
    match (&lengths[..], encodings) {
        ([], 0) => assert_eq!((taken.framing, sent), (Framing::None, &b""[..])),
        ([length], 0) => {
            let digits = std::str::from_utf8(length).expect("digits are text").trim();
            assert!(digits.bytes().all(|byte| byte.is_ascii_digit()));
            assert_eq!(digits.parse(), Ok(sent.len()));
        }
        ([], 1) => {
            assert_eq!(taken.framing, Framing::Chunked);
            assert_eq!(unchunk(sent), taken.body);
            return;
        }
        several => panic!("the body's length is given in several ways: {several:?}"),
    }
    assert_eq!(taken.body, sent);
}

/// Takes a complete chunked body apart.
fn unchunk(mut sent: &[u8]) -> Vec<u8> {
    fn line<'a>(sent: &mut &'a [u8]) -> &'a [u8] {
        let end = sent
            .windows(2)
            .position(|pair| pair == b"\r\n")
            .expect("a line ends");
        let line = &sent[..end];
        *sent = &sent[end + 2..];
        line
    }
    let mut body = Vec::new();
    loop {
        let size = line(&mut sent);
        let digits = size.split(|byte| *byte == b';').next().unwrap_or(size);
        let digits = std::str::from_utf8(digits).expect("digits are text");
        let size = usize::from_str_radix(digits, 16).expect("a chunk has a size");
        if size == 0 {
            break;
        }
        body.extend_from_slice(&sent[..size]);
        sent = &sent[size..];
        assert_eq!(line(&mut sent), b"", "a chunk ends where its size says");
    }
    while !line(&mut sent).is_empty() {}
    assert_eq!(sent, b"", "nothing belongs to a body behind its end");
    body
}

/// Small, so that inputs reach them.
const HEAD_BYTES_MAX: usize = 1 << 10;
const BODY_BYTES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_saved_corpus_passes() {
        let corpus = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../fuzz/corpus/request_head"
        );
        let mut count = 0;
        for entry in std::fs::read_dir(corpus).expect("the corpus is part of the repository") {
            let path = entry.expect("it can be read").path();
            let data = std::fs::read(&path).expect("it can be read");
            eprintln!("{}", path.display());
            request_head(&data);
            count += 1;
        }
        assert!(count >= 40, "only {count} inputs");
    }

    #[test]
    fn what_is_found_is_what_was_sent() {
        let input = b"POST /a?b HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n123\
            GET http://x/c HTTP/1.1\r\nHost: x\r\n\r\n\
            PUT /d HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n45\r\n0\r\n\r\n\
            DELETE /e";
        let found = read(input, |_| 7);
        assert!(!found.refused);
        let seen: Vec<(&str, &str, &[u8])> = found
            .requests
            .iter()
            .map(|taken| (&*taken.method, &*taken.path, &taken.body[..]))
            .collect();
        let expected: [(&str, &str, &[u8]); 3] = [
            ("POST", "/a", b"123"),
            ("GET", "/c", b""),
            ("PUT", "/d", b"45"),
        ];
        assert_eq!(seen, expected);
        assert!(read(b"GET /\r\n\r\n", |_| 1).refused);
        assert!(read(&[b'a'; HEAD_BYTES_MAX + 1], |_| 100).refused);
    }
}
