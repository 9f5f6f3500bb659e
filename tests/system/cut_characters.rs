//! Characters that are cut between two appends of a text stream: no reader gets a replacement for one, loses a byte or gets one
//! twice, wherever it begins or is cut off.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::rig::{Connection, Encke, data_dir, path, request};

const TEXT: &str = "Content-Type: text/plain; charset=utf-8";

/// A reader's last id, and all bytes that it had with that id.
type Position = (String, Vec<u8>);

/// A reader of one or several streams by events.
struct Reader {
    connection: Connection,
    id: String,
    bytes: Vec<u8>,
    /// Whether all events were text.
    all_text: bool,
    heartbeats: u32,
}

impl Reader {
    fn open(encke: &Encke, target: &str, id: Option<&str>) -> Reader {
        Reader::over(encke.connect(), target, id)
    }

    fn over(mut connection: Connection, target: &str, id: Option<&str>) -> Reader {
        let field = id.map(|id| format!("Last-Event-ID: {id}"));
        let fields: Vec<&str> = field.as_deref().into_iter().collect();
        connection.send(&request("GET", target, &fields, b""));
        let head = connection.head();
        assert_eq!(head.status, 200, "{target} {id:?}: {head:?}");
        Reader {
            connection,
            id: id.unwrap_or_default().to_owned(),
            bytes: Vec::new(),
            all_text: true,
            heartbeats: 0,
        }
    }

    /// Takes the next event. False: the response has ended.
    fn event(&mut self) -> bool {
        let Some(block) = self.connection.event() else {
            return false;
        };
        self.heartbeats += u32::from(block.starts_with(':'));
        assert!(self.heartbeats < 4, "nothing comes after {:?}", self.bytes);
        let values = |name: &str| {
            let lines = block.lines();
            let values = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let values = values.map(|value| value.strip_prefix(' ').unwrap_or(value).to_owned());
            values.collect::<Vec<_>>()
        };
        if let Some(id) = values("id").pop() {
            self.id = id;
        }
        let data = values("data").join("\n");
        let name = values("event").pop().unwrap_or_default();
        let (text, base64) = match &*name {
            "data" => (Some(data), None),
            "base64" => (None, Some(data)),
            "" if !data.is_empty() => {
                let data: serde_json::Value = serde_json::from_str(&data).expect("JSON");
                let text = |key: &str| data[key].as_str().map(str::to_owned);
                (text("text"), text("base64"))
            }
            "" | "control" | "end" => (None, None),
            other => panic!("an event {other:?}"),
        };
        self.bytes.extend(text.unwrap_or_default().into_bytes());
        if let Some(base64) = base64 {
            self.all_text = false;
            self.bytes.extend(STANDARD.decode(base64).expect("base64"));
        }
        true
    }

    /// Reads until it has that many bytes; the positions at which it was.
    fn read(&mut self, count: usize) -> Vec<Position> {
        let mut positions = Vec::new();
        while self.bytes.len() < count {
            assert!(self.event(), "it ends after {:?}", self.bytes);
            positions.push((self.id.clone(), self.bytes.clone()));
        }
        positions
    }

    /// Reads to the end.
    fn rest(mut self) -> Vec<u8> {
        while self.event() {}
        self.bytes
    }
}

fn create(encke: &Encke, stream: &str) {
    let made = encke.ask("PUT", &path(stream), &[TEXT], b"");
    assert_eq!(made.status, 201, "{made:?}");
}

fn append(encke: &Encke, stream: &str, bytes: &[u8]) -> String {
    let appended = encke.ask("POST", &path(stream), &[TEXT], bytes);
    assert_eq!(appended.status, 204, "{appended:?}");
    let offset = appended.field("Stream-Next-Offset").expect("an offset");
    offset.to_owned()
}

/// What a client gets that resumes at each position: the rest.
fn every_id_leads_to_the_rest(encke: &Encke, target: &str, positions: &[Position], all: &[u8]) {
    for (id, had) in positions {
        assert!(all.starts_with(had));
        let mut again = Reader::open(encke, target, Some(id));
        again.read(all.len() - had.len());
        assert_eq!([&had[..], &again.bytes].concat(), all, "{target} at {id}");
        assert!(again.all_text, "{target} at {id}");
        if target.starts_with("/v1/stream/") {
            let (stream, _) = target.split_once('?').expect("a query");
            let read = encke.ask("GET", &format!("{stream}?offset={id}"), &[], b"");
            assert_eq!((read.status, &*read.body), (200, &all[had.len()..]), "{id}");
        }
    }
}

/// Characters of one to four bytes, cut in all ways.
fn pieces() -> Vec<Vec<u8>> {
    let text = "aé€😀z";
    let mut pieces: Vec<Vec<u8>> = text.bytes().map(|byte| vec![byte]).collect();
    for size in [2, 3, 5] {
        pieces.extend(text.as_bytes().chunks(size).map(<[u8]>::to_vec));
    }
    pieces
}

#[test]
fn a_cut_character_comes_whole_and_no_position_claims_it_before() {
    for flags in [
        &[][..],
        &["--ack", "accepted"],
        &["--logs", "3"],
        &["--ring", "64KiB"],
    ] {
        let encke = Encke::start(flags);
        for stream in ["t", "u"] {
            create(&encke, stream);
        }
        let targets = [
            format!("{}?offset=-1&live=sse", path("t")),
            format!("{}?offset=now&live=sse", path("t")),
            "/v1/events?stream=t@-1".to_owned(),
            "/v1/events?stream=u&stream=t".to_owned(),
        ];
        let mut live: Vec<Reader> = targets
            .iter()
            .map(|target| Reader::open(&encke, target, None))
            .collect();
        let mut all = Vec::new();
        for piece in pieces() {
            append(&encke, "t", &piece);
            all.extend(piece);
        }
        for (reader, target) in live.iter_mut().zip(&targets) {
            let positions = reader.read(all.len());
            assert_eq!(reader.bytes, all, "{target}");
            assert!(reader.all_text, "{target}");
            every_id_leads_to_the_rest(&encke, target, &positions, &all);
        }
        // The same for a client that comes later.
        for target in [&targets[0], &targets[2]] {
            let mut late = Reader::open(&encke, target, None);
            late.read(all.len());
            assert_eq!((&late.bytes, late.all_text), (&all, true), "{target}");
        }
    }
}

#[test]
fn positions_survive_a_restart_while_a_character_is_cut() {
    let data = data_dir();
    let mut encke = Encke::start_in(data.path(), &[]);
    create(&encke, "t");
    create(&encke, "u");
    let targets = [
        format!("{}?offset=-1&live=sse", path("t")),
        "/v1/events?stream=t@-1&stream=u@-1".to_owned(),
    ];
    append(&encke, "t", b"ab\xf0\x9f");
    let ids = targets.each_ref().map(|target| {
        let mut reader = Reader::open(&encke, target, None);
        reader.read(2);
        // The rest is not claimed by any later id, though the log goes on.
        append(&encke, "u", b"u");
        if target.starts_with("/v1/events") {
            reader.read(3);
        }
        (reader.id.clone(), reader.bytes.len() - 2)
    });
    assert_eq!(encke.terminate().code, Some(0));
    encke = Encke::start_in(data.path(), &[]);
    append(&encke, "t", b"\x98\x80c");
    for (target, (id, others)) in targets.iter().zip(&ids) {
        let mut reader = Reader::open(&encke, target, Some(id));
        // The second stream had another record meanwhile.
        let more = usize::from(target.starts_with("/v1/events")) * (1 - others.min(&1));
        reader.read("😀c".len() + more);
        let text = String::from_utf8(reader.bytes).expect("only whole characters come");
        assert_eq!(text.replace('u', ""), "😀c", "{target} at {id}");
    }
}

#[test]
fn a_fork_and_its_source_each_get_a_cut_character_once() {
    let encke = Encke::start(&[]);
    create(&encke, "source");
    let begin = append(&encke, "source", b"a\xe2\x82");
    let from = [
        "Stream-Forked-From: /v1/stream/source",
        &format!("Stream-Fork-Offset: {begin}"),
    ];
    assert_eq!(encke.ask("PUT", &path("fork"), &from, b"").status, 201);
    append(&encke, "source", b"\xac");
    append(&encke, "fork", b"\xad");
    for (stream, text) in [("source", "a€"), ("fork", "a\u{20ad}")] {
        for target in [
            format!("{}?offset=-1&live=sse", path(stream)),
            format!("/v1/events?stream={stream}@-1"),
        ] {
            let mut reader = Reader::open(&encke, &target, None);
            let positions = reader.read(text.len());
            assert_eq!(reader.bytes, text.as_bytes(), "{target}");
            every_id_leads_to_the_rest(&encke, &target, &positions, text.as_bytes());
        }
    }
    // Both over one connection: they share a record.
    let target = "/v1/events?stream=source@-1&stream=fork@-1";
    let mut both = Reader::open(&encke, target, None);
    let positions = both.read(8);
    assert!(both.all_text);
    for (id, had) in positions {
        let mut again = Reader::open(&encke, target, Some(&id));
        again.read(8 - had.len());
        let mut characters: Vec<char> = String::from_utf8([had, again.bytes].concat())
            .expect("only whole characters come")
            .chars()
            .collect();
        characters.sort_unstable();
        assert_eq!(characters, ['a', 'a', '€', '\u{20ad}'], "{id}");
    }
}

#[test]
fn a_stream_that_has_ended_is_not_repeated_while_a_character_of_another_is_cut() {
    let encke = Encke::start(&[]);
    ["a", "b", "c"]
        .iter()
        .for_each(|stream| create(&encke, stream));
    append(&encke, "a", b"\xe2");
    append(&encke, "b", b"x");
    let target = "/v1/events?stream=a@-1&stream=b@-1&stream=c@-1";
    let mut reader = Reader::open(&encke, target, None);
    let mut positions = reader.read(1);
    let closed = encke.ask("POST", &path("b"), &[TEXT, "Stream-Closed: true"], b"y");
    assert_eq!(closed.status, 204, "{closed:?}");
    append(&encke, "c", b"1");
    positions.extend(reader.read(3));
    append(&encke, "c", b"2");
    positions.extend(reader.read(4));
    append(&encke, "c", b"3");
    let all = b"xy123";
    every_id_leads_to_the_rest(&encke, target, &positions, all);
    // Also from the first id of a response, which comes before its first record.
    for (id, had) in &positions {
        let mut again = Reader::open(&encke, target, Some(id));
        assert!(again.event());
        assert_eq!(again.bytes, b"");
        let first = [(again.id.clone(), had.clone())];
        every_id_leads_to_the_rest(&encke, target, &first, all);
    }
    // The character comes after all.
    append(&encke, "a", b"\x82\xac");
    reader.read(5 + "\u{20ac}".len());
    assert_eq!(reader.bytes, "xy123\u{20ac}".as_bytes());
}

#[test]
fn what_is_no_text_comes_in_base64() {
    let encke = Encke::start(&[]);
    create(&encke, "a/t");
    let inside = append(&encke, "a/t", "x€".as_bytes().split_at(2).0);
    let pieces = [&b"\x82\xac!"[..], b"\xff\xfe", b"ok\xe2", b"no", b"end\xe2"];
    let targets = [
        format!("{}?offset={inside}&live=sse", path("a/t")),
        format!("/v1/events?stream=a/t@{inside}"),
        "/v1/events?stream=a/**".to_owned(),
    ];
    let mut live: Vec<Reader> = targets
        .iter()
        .map(|target| Reader::open(&encke, target, None))
        .collect();
    for piece in pieces {
        append(&encke, "a/t", piece);
    }
    let closed = encke.ask("POST", &path("a/t"), &["Stream-Closed: true"], b"");
    assert_eq!(closed.status, 204, "{closed:?}");
    let all = pieces.concat();
    // A pattern itself does not end.
    let mut pattern = live.pop().expect("three");
    pattern.read(all.len());
    assert_eq!((pattern.bytes, pattern.all_text), (all.clone(), false));
    // The end of the stream releases what waits for its rest.
    let late = targets[..2].iter();
    let late = late.map(|target| Reader::open(&encke, target, None));
    for reader in late.collect::<Vec<_>>().into_iter().chain(live) {
        assert_eq!(reader.rest(), all);
    }
}

#[test]
fn a_slow_reader_is_left_at_characters() {
    let encke = Encke::start(&["--ring", "64KiB"]);
    create(&encke, "t");
    let connection = Connection::open_narrow(encke.address);
    let target = format!("{}?offset=-1&live=sse", path("t"));
    let mut slow = Reader::over(connection, &target, None);
    let narrow = Connection::open_narrow(encke.address);
    let mut several = Reader::over(narrow, "/v1/events?stream=t@-1", None);
    // Far more than sockets and recent records hold. Records end in the middle of characters of three bytes.
    let text = "€".repeat(9_000);
    let mut publisher = encke.connect();
    let mut all = Vec::new();
    for number in 0..200 {
        let bytes = &text.as_bytes()[all.len() % 3..][..20_000 + number % 3];
        let answer = publisher.ask("POST", &path("t"), &[TEXT], bytes);
        assert_eq!(answer.status, 204, "{answer:?}");
        all.extend_from_slice(bytes);
    }
    let rest = "€€".as_bytes()[all.len() % 3..].to_vec();
    append(&encke, "t", &rest);
    all.extend(rest);
    for reader in [&mut slow, &mut several] {
        while reader.bytes.len() < all.len() {
            assert!(reader.event());
        }
        assert!(reader.bytes == all && reader.all_text);
    }
}
