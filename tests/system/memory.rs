//! The memory that connections hold beyond their slots: it is spent on requests whose head was admitted, and when it runs short
//! the client with the most loses some of it, whoever asks next.

use std::io::Read;
use std::path::PathBuf;
use std::process::Command;

use crate::access::{API_KEY, Guarded, bearer};
use crate::rig::http2::*;
use crate::rig::{
    Bystanders, Connection, Encke, Incompressible, JSON, data_dir, eventually, path, serve,
};

/// A head whose body of that many bytes is still to come.
fn head(target: &str, fields: &[&str], bytes: usize) -> Vec<u8> {
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    format!("POST {target} HTTP/1.1\r\nHost: x\r\n{fields}Content-Length: {bytes}\r\n\r\n").into()
}

/// Bytes that connections hold.
fn held(encke: &Encke) -> f64 {
    encke.metric("encke_buffered_bytes", "")
}

/// The same, as operators see it.
fn held_at(guarded: &Guarded) -> u64 {
    let answer = Connection::open(guarded.operators).ask("GET", "/metrics", &[], b"");
    let text = String::from_utf8(answer.body).expect("metrics are text");
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix("encke_buffered_bytes "));
    value.expect("a metric").parse().expect("a number")
}

#[test]
fn a_request_is_refused_by_its_head_before_its_body_is_received() {
    let guarded = Guarded::start(&[]);
    guarded.create("/v1/stream/s", b"[]");
    let reader = guarded.allowed("ann", "read=/v1/stream/**");
    let other = "Origin: https://evil.example";
    for (target, fields, status, code) in [
        ("/v1/stream/s", vec![], 401, "no_credentials"),
        (
            "/v1/stream/s",
            vec!["Authorization: Bearer x"],
            401,
            "unknown_api_key",
        ),
        ("/v1/stream/s", vec![&*reader], 403, "forbidden"),
        ("/v1/stream/t", vec![&*reader], 403, "forbidden"),
        (
            "/v1/stream/s",
            vec![&*reader, "Encke-Truncate: now"],
            403,
            "forbidden",
        ),
        (
            "/v1/stream/s",
            vec![&*reader, "Encke-Tuncate: now"],
            400,
            "bad_field",
        ),
        ("/v1/stream/s/..", vec![&*reader], 400, "bad_path"),
        (
            "/v1/events?stream=s",
            vec![&*reader],
            405,
            "method_not_allowed",
        ),
        ("/v1/pool/p", vec![&*reader], 404, "not_found"),
        (
            "/v1/pool/p/job/1/ack?attempt=1",
            vec![],
            401,
            "no_credentials",
        ),
        ("/v1/admin/revoke", vec![&*reader], 404, "not_found"),
        ("/v1/admin/revoke", vec![other], 401, "no_credentials"),
        ("/nothing", vec![&*reader], 404, "not_found"),
    ] {
        for expects in [false, true] {
            let mut fields = fields.clone();
            fields.push(JSON);
            if expects {
                fields.push("Expect: 100-continue");
            }
            let mut client = guarded.encke.connect();
            client.send(&head(target, &fields, 10_000_000));
            // No `100 Continue` comes first: the next bytes are the answer.
            let answer = client.answer();
            let line = format!("{target} {fields:?}: {answer:?}");
            assert_eq!(
                (answer.status, &*answer.error_code()),
                (status, code),
                "{line}"
            );
            assert!(answer.closes(), "{line}");
        }
        let mut client = Http2Client::open(guarded.encke.address, &[]);
        let mut own = Frame::fields("POST", target);
        let lower: Vec<(String, &str)> = fields
            .iter()
            .map(|field| field.split_once(": ").expect("a field"))
            .map(|(name, value)| (name.to_lowercase(), value))
            .collect();
        own.extend(lower.iter().map(|(name, value)| (&**name, *value)));
        own.push(("content-type", "application/json"));
        own.push(("expect", "100-continue"));
        // Longer values than the raw frames of this rig take are those of tokens.
        if own.iter().any(|(_, value)| value.len() > 126) {
            continue;
        }
        client.send(&Frame::headers(END_HEADERS, 1, &own));
        assert_eq!(client.error_code(1), code, "HTTP/2 {target} {fields:?}");
    }
    // With the right to append it is invited.
    let mut client = guarded.encke.connect();
    let fields = [
        &*guarded.allowed("ann", "append=/v1/stream/**"),
        JSON,
        "Expect: 100-continue",
    ];
    client.send(&head("/v1/stream/s", &fields, 1));
    let mut invited = [0; 25];
    client
        .socket
        .read_exact(&mut invited)
        .expect("an invitation");
    assert_eq!(&invited, b"HTTP/1.1 100 Continue\r\n\r\n");
    client.send(b"1");
    assert_eq!(client.answer().status, 204);
}

#[test]
fn a_client_that_holds_all_the_memory_loses_it_to_others() {
    let encke = Encke::start(&[
        "--buffers-max",
        "16MiB",
        "--body-max",
        "1MiB",
        "--exempt",
        "10.0.0.0/8",
    ]);
    encke.create("s");
    let part = [head(&path("s"), &[JSON], 1_000_000), vec![b' '; 900_000]].concat();
    let rest = [vec![b' '; 99_999], b"1".to_vec()].concat();
    let mut holders: Vec<Connection> = (0..25).map(|_| encke.connect_from(2)).collect();
    for (number, holder) in holders.iter_mut().enumerate() {
        holder.send_anyway(&part);
        // What the socket has taken is not read in an order that the client knows.
        eventually(
            "the part is held, or another one was given back for it",
            || held(&encke) > 800_000.0 * (number + 1).min(3) as f64,
        );
    }
    // Whoever holds the most gives back at another shard, perhaps, and when that has its turn.
    eventually("there is room for others", || {
        held(&encke) < 14.0 * 1048576.0
    });
    // Others hold nothing: none of them is refused.
    for _ in 0..10 {
        let mut newcomer = encke.connect_from(3);
        newcomer.send(&part);
        newcomer.send(&rest);
        assert_eq!(newcomer.answer().status, 204);
    }
    assert!(encke.metric("encke_buffers_shed_total", "") >= 8.0);
    let mut refused = 0;
    for mut holder in holders {
        holder.send_anyway(&rest);
        let answer = holder.answer();
        if answer.status == 503 {
            assert_eq!(answer.error_code(), "buffers_max");
            assert!(answer.field("Retry-After").is_some() && answer.closes());
            refused += 1;
        }
    }
    assert!(refused >= 8, "{refused}");
    eventually("all is given back", || held(&encke) == 0.0);
}

#[test]
fn a_client_holds_no_more_than_its_share() {
    let encke = Encke::start(&[
        "--tuning",
        "buffers-per-client=700KiB",
        "--exempt",
        "10.0.0.0/8",
        "--shards",
        "1",
    ]);
    encke.create("s");
    let small = [head(&path("s"), &[JSON], 300_001), vec![b' '; 300_000]].concat();
    let large = [head(&path("s"), &[JSON], 450_001), vec![b' '; 450_000]].concat();
    let mut first = encke.connect_from(2);
    first.send(&large);
    eventually("it is held", || held(&encke) >= 450_000.0);
    let mut second = encke.connect_from(2);
    second.send(&small);
    // The largest that the client holds makes room for what it asks next.
    assert_eq!(first.answer().error_code(), "buffers_max");
    let mut third = encke.connect_from(3);
    third.send(&small);
    for client in [&mut second, &mut third] {
        client.send(b"1");
        assert_eq!(client.answer().status, 204);
    }
    // One that needs more than a client's share alone is refused, and no other client notices.
    let mut too_large = encke.connect_from(2);
    too_large.send_anyway(&[head(&path("s"), &[JSON], 900_000), vec![b' '; 800_000]].concat());
    assert_eq!(too_large.answer().error_code(), "buffers_max");
    assert_eq!(encke.metric("encke_buffers_shed_total", ""), 2.0);
}

#[test]
fn callers_with_credentials_have_shares_of_their_own() {
    let guarded = Guarded::start(&["--tuning", "buffers-per-client=300KiB", "--shards", "1"]);
    guarded.create("/v1/stream/s", b"[]");
    let ann = guarded.allowed("ann", "append=/v1/stream/**");
    let bob = guarded.allowed("bob", "append=/v1/stream/**");
    let mut begun = Vec::new();
    // From one address: what a caller begins costs itself what it began before, and no other.
    for (number, (caller, bytes)) in [(&ann, 250_000), (&bob, 250_000), (&ann, 130_000)]
        .into_iter()
        .enumerate()
    {
        let mut client = guarded.encke.connect();
        client.send(&head("/v1/stream/s", &[caller, JSON], bytes + 1));
        client.send(&vec![b' '; bytes]);
        if number < 2 {
            let least = 250_000 * (number as u64 + 1);
            eventually("it is held", || held_at(&guarded) >= least);
        }
        begun.push(client);
    }
    assert_eq!(begun[0].answer().error_code(), "buffers_max");
    for client in &mut begun[1..] {
        client.send(b"1");
        assert_eq!(client.answer().status, 204);
    }
}

#[test]
fn callers_that_share_a_key_have_shares_by_address() {
    let flags = ["--tuning", "buffers-per-client=300KiB", "--shards", "1"];
    let guarded = Guarded::start(&[&flags[..], &["--exempt", "none"]].concat());
    guarded.create("/v1/stream/s", b"[]");
    let key = bearer(API_KEY);
    let begin = |address: u8, bytes: usize| {
        let mut client = guarded.encke.connect_from(address);
        client.send(&head("/v1/stream/s", &[&*key, JSON], bytes + 1));
        client.send(&vec![b' '; bytes]);
        client
    };
    let mut others = begin(2, 250_000);
    eventually("it is held", || held_at(&guarded) >= 250_000);
    // As much again with the same key, from elsewhere: first as much as its share, then more.
    let mut own = begin(3, 250_000);
    eventually("both are held", || held_at(&guarded) >= 500_000);
    let mut more = begin(3, 130_000);
    assert_eq!(own.answer().error_code(), "buffers_max");
    for client in [&mut others, &mut more] {
        client.send(b"1");
        assert_eq!(client.answer().status, 204);
    }
}

#[test]
fn strangers_that_fill_the_memory_take_it_from_no_caller() {
    let flags = ["--buffers-max", "16MiB", "--exempt", "none"];
    let guarded = Guarded::start(&[&flags[..], &["--shards", "1"]].concat());
    guarded.create("/v1/stream/s", b"[]");
    guarded.create("/v1/stream/public/s", b"[]");
    let key = bearer(API_KEY);
    // Strangers may read here, and do not read what they ask for.
    let record = format!("\"{}\"", "x".repeat(3_000_000));
    let (status, _) = guarded.ask("POST", "/v1/stream/public/s", &key, record.as_bytes());
    assert_eq!(status, 204);
    let mut strangers = Vec::new();
    // Of each a part of a piece of 64 KiB waits.
    for address in (2..12).cycle().take(300) {
        let mut stranger = guarded.encke.connect_from(address);
        let target = "/v1/stream/public/s?offset=-1&live=sse";
        stranger.send(format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
        strangers.push(stranger);
    }
    eventually("they hold a good part of it", || {
        held_at(&guarded) > 7_000_000
    });
    // More than any of them has.
    let upload = format!("\"{}\"", "y".repeat(6_000_000));
    for _ in 0..3 {
        let (status, code) = guarded.ask("POST", "/v1/stream/s", &key, upload.as_bytes());
        assert_eq!((status, &*code), (204, ""));
    }
}

#[test]
fn many_streams_of_a_connection_read_little_ahead() {
    let encke = Encke::start(&["--shards", "1", "--tuning", "http2-streams-max=300"]);
    encke.create("s");
    let record = format!("\"{}\"", "x".repeat(500));
    let mut publisher = encke.connect();
    for _ in 0..300 {
        let answer = publisher.ask("POST", &path("s"), &[JSON], record.as_bytes());
        assert_eq!(answer.status, 204);
    }
    let bystanders = Bystanders::of(&encke);
    let target = format!("{}?offset=-1", path("s"));
    let live = format!("{target}&live=sse");
    for window in [0, 1, 65_535] {
        let mut client = Http2Client::open(encke.address, &[(INITIAL_WINDOW_SIZE, window)]);
        for stream in 0..250 {
            let target = if stream % 2 == 0 { &target } else { &live };
            client.send(&Frame::get(2 * stream + 1, target));
        }
        encke.wait_for_metric("encke_http2_streams", 250.0);
        // Each response begins once its first part is read, or its subscription is there.
        let (mut begun, mut body) = (0, Vec::new());
        while begun < 250 {
            let frame = client.next().expect("the connection goes on");
            begun += u32::from(frame.kind == HEADERS);
            if (frame.kind, frame.stream) == (DATA, 1) {
                body.extend(frame.payload);
            }
        }
        let held = held(&encke);
        assert!(
            held < 3e6,
            "{held} bytes are held with a window of {window}"
        );
        // Those whose windows open go on to their end.
        client.send(&Frame::number(WINDOW_UPDATE, 0, 1 << 30));
        client.send(&Frame::number(WINDOW_UPDATE, 1, 1 << 30));
        body.extend(client.body(1));
        let messages: Vec<serde_json::Value> = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(messages.len(), 300);
        drop(client);
        encke.wait_for_metric("encke_http2_streams", 0.0);
    }
    bystanders.were_not_disturbed();
}

#[test]
fn large_records_for_windows_that_stay_closed_are_bounded() {
    let encke = Encke::start(&[
        "--shards",
        "1",
        "--body-max",
        "8MiB",
        "--tuning",
        "buffers-per-client=16MiB",
        "--tuning",
        "compressions-max=64",
    ]);
    encke.create("s");
    let record = format!("\"{}\"", Incompressible::default().text(3 << 20));
    let answer = encke.ask("POST", &path("s"), &[JSON], record.as_bytes());
    assert_eq!(answer.status, 204);
    let bystanders = Bystanders::of(&encke);
    // As they are, they wait in their files.
    let mut patient = read_60_times(&encke, "identity");
    for _ in 0..60 {
        patient.until(HEADERS);
    }
    assert!(held(&encke) < 100e3, "{}", held(&encke));
    patient.send(&Frame::number(WINDOW_UPDATE, 0, 1 << 30));
    patient.send(&Frame::number(WINDOW_UPDATE, 1, 1 << 30));
    assert_eq!(patient.body(1), format!("[{record}]").into_bytes());
    drop(patient);
    encke.wait_for_metric("encke_http2_streams", 0.0);
    // Each compressor is memory: that is bounded, but for what begins at a time.
    let _client = read_60_times(&encke, "gzip");
    eventually("many of them are cut", || {
        assert!(held(&encke) < 64e6, "{}", held(&encke));
        encke.metric("encke_http2_streams_cut_total", "reason=\"buffers_max\"") >= 30.0
    });
    eventually("no more is held than a client may", || held(&encke) < 20e6);
    // Of those that are left each goes on.
    assert!(encke.metric("encke_http2_streams", "") >= 1.0);
    bystanders.were_not_disturbed();
}

/// A client that takes none of 60 responses with all records of the stream `s`.
fn read_60_times(encke: &Encke, coding: &str) -> Http2Client {
    let mut client = Http2Client::open(encke.address, &[(INITIAL_WINDOW_SIZE, 0)]);
    let fields = Frame::fields("GET", "/v1/stream/s?offset=-1");
    let fields = [&fields[..], &[("accept-encoding", coding)]].concat();
    for stream in 0..60 {
        let request = Frame::headers(END_STREAM | END_HEADERS, 2 * stream + 1, &fields);
        client.send(&request);
    }
    client
}

/// A control group with a limit on memory.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// None: this user may make none here.
    fn start(bytes: u64) -> Option<MemoryGroup> {
        let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let path_of = |controllers: &str| {
            let line = own.lines().find_map(|line| line.split_once(controllers))?;
            Some(line.1.trim_start_matches('/').to_owned())
        };
        let (root, path, limit) = match path_of(":memory:") {
            Some(path) => ("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes"),
            None => ("/sys/fs/cgroup", path_of("0::")?, "memory.max"),
        };
        let name = format!("encke-test-{}", std::process::id());
        let group = MemoryGroup(PathBuf::from(root).join(path).join(name));
        let limited = std::fs::create_dir(&group.0)
            .and_then(|()| std::fs::write(group.0.join(limit), bytes.to_string()));
        match limited {
            Ok(()) => Some(group),
            Err(error) => {
                eprintln!("SKIPPED: {} can't be used: {error}", group.0.display());
                None
            }
        }
    }

    /// A command that runs in the group.
    fn run(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        inside.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        inside.arg(self.0.join("cgroup.procs"));
        inside.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // It is empty when the server has ended.
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_server_with_default_settings_fits_into_a_small_container() {
    let Some(group) = MemoryGroup::start(128 << 20) else {
        return;
    };
    let dir = data_dir();
    let flags = ["--log", "info", "--shards", "4"];
    let encke = Encke::start_by(&mut group.run(&serve(dir.path(), &flags)));
    let lowered = "the memory limit of the control group lowers these defaults";
    assert!(encke.log().contains(lowered), "{}", encke.log());
    encke.create("s");
    let body = format!("\"{}\"", "x".repeat(2 << 20));
    std::thread::scope(|scope| {
        for _ in 0..40 {
            scope.spawn(|| {
                for _ in 0..4 {
                    let answer = encke.ask("POST", &path("s"), &[JSON], body.as_bytes());
                    assert!([204, 503].contains(&answer.status), "{answer:?}");
                }
            });
        }
    });
    assert_eq!(encke.ask("GET", "/healthz", &[], b"").status, 200);
    assert_eq!(encke.terminate().code, Some(0));
}
