//! A server of the S3 protocol with one bucket in memory, which can be late, throttle, lose and lie.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;

pub(crate) struct S3Server {
    port: u16,
    state: Arc<Mutex<State>>,
}

/// How the server fails.
#[derive(Default)]
pub(crate) struct Faults {
    /// How late lists are.
    pub(crate) list_delay: Duration,
    /// Refusals of every other request, with status and code.
    pub(crate) refusals: Vec<(u16, &'static str)>,
    /// The next uploads that are confirmed and not stored.
    pub(crate) puts_lost: u32,
    /// The next uploads of which the first half is stored.
    pub(crate) puts_cut: u32,
    /// Lists begin anew at their end.
    pub(crate) endless_list: bool,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Object>,
    /// All changes, oldest first: a late list shows the old ones only.
    changes: Vec<(Instant, String, Option<Object>)>,
    faults: Faults,
    has_refused: bool,
}

#[derive(Clone)]
struct Object {
    content: Vec<u8>,
    written: Timestamp,
}

impl S3Server {
    pub(crate) fn start() -> S3Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(Mutex::new(State::default()));
        let served = Arc::clone(&state);
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let (connection, served) = (connection.unwrap(), Arc::clone(&served));
                std::thread::spawn(move || serve(connection, &served));
            }
        });
        S3Server { port, state }
    }

    pub(crate) fn place(&self) -> String {
        "s3://bucket/one/server".to_owned()
    }

    pub(crate) fn setting(&self, name: &str) -> Option<String> {
        match name {
            "AWS_ACCESS_KEY_ID" | "AWS_SECRET_ACCESS_KEY" => Some("any".to_owned()),
            "AWS_ENDPOINT_URL" => Some(format!("http://127.0.0.1:{}", self.port)),
            _ => None,
        }
    }

    pub(crate) fn faults(&self) -> FaultsGuard<'_> {
        FaultsGuard(self.state.lock().unwrap())
    }

    /// Waits until lists have all objects.
    pub(crate) fn wait_for_list(&self) {
        let is_listed = || {
            let state = self.state.lock().unwrap();
            state.listed().keys().eq(state.objects.keys())
        };
        while !is_listed() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Removes some pieces.
    pub(crate) fn lose_pieces(&self, count: usize) {
        let mut state = self.state.lock().unwrap();
        let keys: Vec<_> = state.pieces().take(count).collect();
        keys.iter().for_each(|key| state.change(key, None));
    }

    /// Changes a byte of a piece.
    pub(crate) fn damage_piece(&self) {
        let mut state = self.state.lock().unwrap();
        let key = state.pieces().next().unwrap();
        let mut content = state.objects[&key].content.clone();
        content[0] ^= 1;
        state.change(&key, Some(content));
    }
}

pub(crate) struct FaultsGuard<'s>(MutexGuard<'s, State>);

impl std::ops::Deref for FaultsGuard<'_> {
    type Target = Faults;

    fn deref(&self) -> &Faults {
        &self.0.faults
    }
}

impl std::ops::DerefMut for FaultsGuard<'_> {
    fn deref_mut(&mut self) -> &mut Faults {
        &mut self.0.faults
    }
}

impl State {
    /// The keys of the pieces of the last backup. The next backup does not look for a piece that only an older one has.
    fn pieces(&self) -> impl Iterator<Item = String> {
        let keys = || self.objects.keys();
        let backup = keys().rfind(|key| key.contains("/backups/")).unwrap();
        let list = std::str::from_utf8(&self.objects[backup].content).unwrap();
        let pieces = keys().filter(|key| key.contains("/pieces/"));
        pieces
            .filter(|key| list.contains(key.rsplit('/').next().unwrap()))
            .cloned()
    }

    fn change(&mut self, key: &str, content: Option<Vec<u8>>) {
        let object = content.map(|content| Object {
            content,
            written: Timestamp::try_from(SystemTime::now()).unwrap(),
        });
        self.changes
            .push((Instant::now(), key.to_owned(), object.clone()));
        match object {
            Some(object) => drop(self.objects.insert(key.to_owned(), object)),
            None => drop(self.objects.remove(key)),
        }
    }

    /// The objects that a list shows.
    fn listed(&self) -> BTreeMap<String, Object> {
        let now = Instant::now();
        let old = |at: &Instant| now.duration_since(*at) >= self.faults.list_delay;
        let mut listed = BTreeMap::new();
        for (_, key, object) in self.changes.iter().take_while(|(at, ..)| old(at)) {
            match object {
                Some(object) => drop(listed.insert(key.clone(), object.clone())),
                None => drop(listed.remove(key)),
            }
        }
        listed
    }
}

struct Request {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    body: Vec<u8>,
}

fn serve(connection: TcpStream, state: &Mutex<State>) {
    let mut to = connection.try_clone().unwrap();
    let mut from = BufReader::new(connection);
    while let Some(request) = read_request(&mut from) {
        let (status, head, body) = answer(&request, &mut state.lock().unwrap());
        let length = match head.contains("content-length") {
            true => String::new(),
            false => format!("content-length: {}\r\n", body.len()),
        };
        let mut response = format!("HTTP/1.1 {status} S\r\n{head}{length}\r\n").into_bytes();
        response.extend(body);
        if to.write_all(&response).is_err() {
            return;
        }
    }
}

fn read_request(from: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    from.read_line(&mut line).ok()?;
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let query = pairs.map(|(name, value)| (decoded(name), decoded(value)));
    let (path, query) = (decoded(path), query.collect());
    let mut bytes = 0;
    loop {
        let mut field = String::new();
        from.read_line(&mut field).ok()?;
        match field.trim_end().split_once(':') {
            None => break,
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                bytes = value.trim().parse().unwrap();
            }
            Some(_) => {}
        }
    }
    let mut body = vec![0; bytes];
    from.read_exact(&mut body).ok()?;
    Some(Request {
        method,
        path,
        query,
        body,
    })
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).unwrap()
}

/// Status, fields and body.
fn answer(request: &Request, state: &mut State) -> (u16, String, Vec<u8>) {
    state.has_refused = !state.has_refused && !state.faults.refusals.is_empty();
    if state.has_refused {
        let (status, code) = state.faults.refusals.remove(0);
        let body = format!("<Error><Code>{code}</Code></Error>");
        let body = match &*request.method {
            "HEAD" => Vec::new(),
            _ => body.into_bytes(),
        };
        return (status, String::new(), body);
    }
    let key = request.path.strip_prefix("/bucket/").unwrap_or_default();
    match &*request.method {
        "GET" if key.is_empty() => (200, String::new(), list(request, state).into_bytes()),
        "GET" | "HEAD" => match state.objects.get(key) {
            None => (404, String::new(), Vec::new()),
            Some(object) => {
                let time = object.written.strftime("%a, %d %b %Y %H:%M:%S GMT");
                let (tag, bytes) = (tag(object), object.content.len());
                let head = format!(
                    "etag: \"{tag}\"\r\nlast-modified: {time}\r\ncontent-length: {bytes}\r\n"
                );
                let body = match &*request.method {
                    "GET" => object.content.clone(),
                    _ => Vec::new(),
                };
                (200, head, body)
            }
        },
        "PUT" => {
            let mut content = request.body.clone();
            let faults = &mut state.faults;
            if faults.puts_lost > 0 {
                faults.puts_lost -= 1;
            } else {
                if faults.puts_cut > 0 {
                    faults.puts_cut -= 1;
                    content.truncate(content.len() / 2);
                }
                state.change(key, Some(content));
            }
            (200, String::new(), Vec::new())
        }
        "DELETE" => {
            state.change(key, None);
            (204, String::new(), Vec::new())
        }
        method => panic!("no request of a backup: {method}"),
    }
}

/// A page of a list.
fn list(request: &Request, state: &State) -> String {
    let field = |name: &str| request.query.get(name).map_or("", |value| &**value);
    let (prefix, after) = (field("prefix"), field("continuation-token"));
    let after = match state.faults.endless_list {
        true => "",
        false => after,
    };
    let listed = state.listed();
    let mut keys = listed
        .iter()
        .filter(|(key, _)| key.starts_with(prefix) && &***key > after);
    let page: Vec<_> = keys.by_ref().take(PAGE).collect();
    let mut text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
        <ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>bucket</Name>"
        .to_owned();
    let is_truncated = keys.next().is_some();
    write!(
        text,
        "<Prefix>{prefix}</Prefix><KeyCount>{}</KeyCount><MaxKeys>{PAGE}</MaxKeys><IsTruncated>{is_truncated}</IsTruncated>",
        page.len()
    )
    .unwrap();
    if let (true, Some((last, _))) = (is_truncated, page.last()) {
        write!(
            text,
            "<NextContinuationToken>{last}</NextContinuationToken>"
        )
        .unwrap();
    }
    for (key, object) in page {
        let (time, tag, bytes) = (object.written, tag(object), object.content.len());
        write!(
            text,
            "<Contents><Key>{key}</Key><LastModified>{time:.3}</LastModified><ETag>&quot;{tag}&quot;</ETag>\
             <Size>{bytes}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        )
        .unwrap();
    }
    text + "</ListBucketResult>"
}

fn tag(object: &Object) -> String {
    format!("{:x}", md5::compute(&object.content))
}

/// Objects on a page of a list.
const PAGE: usize = 3;
