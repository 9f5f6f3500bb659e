//! Clients of TLS: silent ones shut out no other, none outlives its certificate, no keys of theirs are left behind, and those that do not
//! speak it are told to.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, SystemTime};

use rustix::process::Signal;

use crate::rig::{
    Authority, Connection, Encke, Ended, JSON, TlsClient, can_use, connect_from, data_dir,
    eventually, found_on_stacks, operators_address, path, request, serve, text,
};
use crate::tls::Secure;

/// Eight places for handshakes, of which an address has four.
const PLACES: [&str; 6] = [
    "--tuning",
    "handshakes-max=8",
    "--tuning",
    "handshakes-per-address=4",
    "--tuning",
    "handshake-threads=1",
];

/// That many connections from 127.0.0.`client` that say nothing.
fn silent(encke: &Encke, client: u8, count: usize) -> Vec<TcpStream> {
    let connect = |_| connect_from(client, encke.address);
    (0..count).map(connect).collect()
}

/// Whether the server has closed a connection.
fn is_closed(socket: &mut TcpStream) -> bool {
    socket.set_nonblocking(true).expect("it is a TCP socket");
    // It sends nothing before.
    let read = socket.read(&mut [0]);
    !read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn silent_connections_of_one_address_shut_out_no_other() {
    // None of them is over before all are there.
    let timeout = ["--tuning", "handshake-timeout=10m"];
    let secure = Secure::start(&[&timeout[..], &PLACES].concat());
    let mut silent = silent(&secure.encke, 2, 300);
    let waiting = || secure.metric("encke_tls_handshakes_waiting", "");
    eventually("all but its share wait", || waiting() >= 296.0);
    for _ in 0..50 {
        secure.connect().ask("GET", "/healthz", &[], b"");
    }
    // Nothing was refused for them.
    assert_eq!(secure.metric("encke_tls_handshakes_failed_total", ""), 0.0);
    assert!(!silent.iter_mut().any(is_closed));
    drop(silent);
    eventually("all are over", || waiting() == 0.0);
}

#[test]
fn an_address_at_its_share_loses_handshakes_of_its_own() {
    let flags = ["--shards", "1", "--tuning", "handshake-timeout=80s"];
    let secure = Secure::start(&[&flags[..], &PLACES].concat());
    // As old as those of the other address, and in the way of none.
    let mut other = silent(&secure.encke, 3, 1);
    let mut own = silent(&secure.encke, 2, 8);
    let failed = |reason: &str| {
        let label = format!("reason=\"{reason}\"");
        secure.metric("encke_tls_handshakes_failed_total", &label)
    };
    eventually("it has lost as many as waited", || {
        failed("address_crowded") >= 4.0
    });
    // They are counted before their shard closes them.
    eventually("the oldest are gone", || own[..4].iter_mut().all(is_closed));
    assert!(!own[4..].iter_mut().any(is_closed), "the others are not");
    assert!(!is_closed(&mut other[0]));
    assert_eq!(failed("crowded"), 0.0);
}

#[test]
fn silent_clients_of_all_addresses_keep_others_out_for_a_short_time_only() {
    let secure = Secure::start(&[
        "--tuning",
        "handshakes-max=4",
        "--tuning",
        "handshake-timeout=20s",
        "--tuning",
        "handshake-threads=1",
    ]);
    let silent = [silent(&secure.encke, 2, 3), silent(&secure.encke, 3, 3)];
    // Each look is by a connection that needs a place, and gets one when these have had a tenth of their time: all of them at
    // once, and not one after the other.
    let failed = || secure.metric("encke_tls_handshakes_failed_total", "reason=\"crowded\"");
    eventually("the silent have lost their places", || failed() >= 4.0);
    drop(silent);
    assert!(secure.metric("encke_tls_handshakes_held_total", "") >= 1.0);
}

/// A server behind a proxy that names its clients.
struct Proxied {
    encke: Encke,
    authority: Authority,
    operators: SocketAddr,
    _data: tempfile::TempDir,
}

impl Proxied {
    fn start() -> Proxied {
        let (authority, data) = (Authority::new(), data_dir());
        let files = authority.issue("localhost");
        let flags = [
            "--proxy-protocol",
            "--trust",
            "127.0.0.1",
            "--admin-listen",
            "127.0.0.1:0",
            "--tuning",
            "handshake-timeout=10m",
        ];
        let flags = [&files.flags()[..], &flags, &PLACES].concat();
        let mut encke = Encke::start_by(&mut serve(data.path(), &flags));
        let operators = operators_address(&mut encke.take_stdout());
        Proxied {
            encke,
            authority,
            operators,
            _data: data,
        }
    }

    /// A connection of the proxy that has not said yet whose it is.
    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.encke.address).expect("the server listens")
    }

    /// A connection of the proxy for a client at 192.0.2.`client`.
    fn connect_for(&self, client: u8) -> TcpStream {
        let mut socket = self.connect();
        name_client(&mut socket, client);
        socket
    }

    /// Waits until the metrics have that line.
    fn await_metric(&self, line: &str) {
        eventually(line, || {
            let shown = Connection::open(self.operators).ask("GET", "/metrics", &[], b"");
            let shown = String::from_utf8(shown.body).expect("text");
            shown.lines().any(|shown| shown == line)
        });
    }
}

/// Says whose connection it is.
fn name_client(socket: &mut TcpStream, client: u8) {
    let header = format!("PROXY TCP4 192.0.2.{client} 192.0.2.1 1234 443\r\n");
    let written = socket.write_all(header.as_bytes());
    written.expect("the kernel takes it");
}

#[test]
fn silent_clients_behind_a_proxy_shut_out_no_other() {
    let proxied = Proxied::start();
    let mut silent: Vec<_> = (0..100).map(|_| proxied.connect_for(7)).collect();
    // All but its share.
    proxied.await_metric("encke_tls_handshakes_waiting 96");
    for _ in 0..20 {
        let socket = proxied.connect_for(8);
        let client = TlsClient::over(socket, &proxied.authority.client(), "127.0.0.1");
        let (head, _) = client
            .expect("it is let in")
            .ask("GET", "/healthz", &[], b"");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    }
    assert!(!silent.iter_mut().any(is_closed));
}

/// More handshakes may be on their way to a thread than there are places: shards accept at the same time, and here the connections
/// have been accepted before it is known that they begin their handshakes.
#[test]
fn clients_whose_handshakes_begin_at_the_same_moment_are_not_refused() {
    let proxied = Proxied::start();
    let mut clients: Vec<_> = (0..200).map(|_| proxied.connect()).collect();
    // One of them asks.
    proxied.await_metric("encke_connections 201");
    proxied.encke.freeze();
    for client in &mut clients {
        name_client(client, 7);
    }
    proxied.encke.signal(Signal::CONT);
    proxied.await_metric("encke_tls_handshakes_waiting 196");
    assert!(!clients.iter_mut().any(is_closed));
}

/// A server that lets in clients with certificates, and grants to one of them.
fn with_certificates(authority: &Authority) -> (Encke, tempfile::TempDir) {
    let data = data_dir();
    let files = authority.issue("localhost");
    let config = data.path().join("encke.toml");
    let grants = r#"{ actions = ["read", "append", "create"], paths = ["/v1/stream/**"] }"#;
    let table = format!("[[access.certificates]]\nname = \"worker-7\"\ngrants = [{grants}]\n");
    std::fs::write(&config, table).expect("it can be written");
    let ca = authority.file();
    let own = [
        "--config",
        text(&config),
        "--admin-listen",
        "none",
        "--tls-client-ca",
        text(&ca),
    ];
    let flags = [&files.flags()[..], &own].concat();
    let encke = Encke::start_by(&mut serve(&data.path().join("data"), &flags));
    (encke, data)
}

#[test]
fn what_a_certificate_allows_ends_with_it() {
    let authority = Authority::new();
    let (encke, _data) = with_certificates(&authority);
    // Long enough for a slow machine to make the connections; if it was not, longer.
    let mut lifetime = Duration::from_secs(4);
    let (client, mut kept, mut follower, mut poller) = loop {
        let last = SystemTime::now() + lifetime;
        let own = authority.issue_until("worker-7", last);
        let client = authority.client_with(Some(&own));
        let connect = || TlsClient::try_open(encke.address, &client, "127.0.0.1");
        if let Ok((kept, follower, poller)) = begin(connect)
            && SystemTime::now() < last
        {
            break (client, kept, follower, poller);
        }
        lifetime *= 2;
    };
    // Event streams end between two events, and say why.
    let farewell = follower.until("the client certificate has expired; continue at offset ");
    assert!(farewell.contains(": closed by the server: "), "{farewell}");
    follower.read_to_end().expect("the session ends properly");
    // A long poll is answered, and asks in vain the next time.
    let answer = poller.until("\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 204 "), "{answer}");
    // A kept connection serves no further request.
    for client in [&mut kept, &mut poller] {
        let (head, _) = client.ask("GET", &path("a"), &[], b"");
        assert!(head.starts_with("HTTP/1.1 401 "), "{head}");
        assert!(head.contains("\r\nConnection: close\r\n"), "{head}");
        client.read_to_end().expect("the session ends properly");
    }
    // The ticket of the first session does not help.
    let resumed = TlsClient::try_open(encke.address, &client, "127.0.0.1");
    let answer = resumed.and_then(|mut client| {
        assert!(client.is_resumed());
        client.send(&request("GET", &path("a"), &[], b""))?;
        client.read_to_end()
    });
    let error = answer.expect_err("there is no answer").to_string();
    assert!(error.contains("CertificateExpired"), "{error}");
}

#[test]
fn a_page_of_another_site_embeds_nothing_of_a_client_with_a_certificate() {
    let authority = Authority::new();
    let (encke, _data) = with_certificates(&authority);
    let own = authority.issue_until("worker-7", SystemTime::now() + Duration::from_secs(3_600));
    let client = authority.client_with(Some(&own));
    let mut client = TlsClient::try_open(encke.address, &client, "127.0.0.1").expect("a session");
    let mut ask = |method, fields: &[&str], body: &[u8]| {
        let (head, _) = client.ask(method, &path("a"), fields, body);
        head
    };
    assert!(ask("PUT", &[JSON], b"[1]").starts_with("HTTP/1.1 201 "));
    let image = [
        "Sec-Fetch-Site: same-site",
        "Sec-Fetch-Mode: no-cors",
        "Sec-Fetch-Dest: image",
    ];
    let head = ask("GET", &image, b"");
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    assert!(ask("GET", &[], b"").starts_with("HTTP/1.1 200 "));
}

/// Connects with a certificate, in all ways that last. An error, if it has ended meanwhile.
fn begin(
    connect: impl Fn() -> std::io::Result<TlsClient>,
) -> std::io::Result<(TlsClient, TlsClient, TlsClient)> {
    let succeed = |head: String| match head.starts_with("HTTP/1.1 20") {
        true => Ok(()),
        false => Err(std::io::Error::other(head)),
    };
    let mut kept = connect()?;
    kept.send(&request("PUT", &path("a"), &[JSON], b""))?;
    succeed(kept.try_until("\r\n\r\n")?)?;
    let (mut follower, mut poller) = (connect()?, connect()?);
    assert!(follower.is_resumed());
    for (client, live) in [(&mut follower, "sse"), (&mut poller, "long-poll")] {
        let target = format!("{}?offset=now&live={live}", path("a"));
        client.send(&request("GET", &target, &[], b""))?;
    }
    succeed(follower.try_until("\r\n\r\n")?)?;
    Ok((kept, follower, poller))
}

#[test]
#[ignore = "long: make test-all"]
fn keys_of_sessions_are_left_on_no_stack() {
    let secure = Secure::start(&[]);
    let memory = format!("/proc/{}/mem", secure.encke.pid());
    if !can_use("the memory of another process", || {
        std::fs::File::open(&memory).is_ok()
    }) {
        return;
    }
    let mut clients: Vec<_> = (0..8).map(|_| secure.connect()).collect();
    for client in &mut clients {
        client.ask("GET", "/healthz", &[], b"");
    }
    for client in clients {
        let (_socket, keys) = client.into_keys();
        for key in keys {
            let found = found_on_stacks(secure.encke.pid(), &key);
            assert_eq!(found, 0, "the key of a session is on a stack");
        }
    }
}

#[test]
fn a_request_without_tls_is_told_to_use_it() {
    let secure = Secure::start(&[]);
    let mut socket = TcpStream::connect(secure.encke.address).expect("the server listens");
    for part in [&b"POST /v1/stream/a HTTP/1.1\r\nHo"[..], b"st: x\r\n\r\n"] {
        socket.write_all(part).expect("the server reads");
    }
    let mut answer = String::new();
    socket
        .read_to_string(&mut answer)
        .expect("the answer is whole");
    let (head, body) = answer.split_once("\r\n\r\n").expect("it has a head");
    assert!(head.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(
        head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())),
        "{answer}"
    );
    assert!(body.contains("https"), "{answer}");
    let failed = || secure.metric("encke_tls_handshakes_failed_total", "reason=\"plain_http\"");
    eventually("it is counted", || failed() >= 1.0);
}

#[test]
fn browsers_are_told_to_use_https_only_if_that_is_set() {
    let field = "\r\nStrict-Transport-Security: max-age=3600\r\n";
    let secure = Secure::start(&["--tuning", "hsts-max-age=1h"]);
    let mut client = secure.connect();
    for target in ["/healthz", "/v1/stream/none", "/v1/admin/none?x=#"] {
        let (head, _) = client.ask("GET", target, &[], b"");
        assert!(head.contains(field), "{head}");
    }
    let (head, _) = Secure::start(&[])
        .connect()
        .ask("GET", "/healthz", &[], b"");
    assert!(!head.contains("Strict-Transport"), "{head}");
    // Browsers ignore it over plain connections, and a server that speaks them can't mean it.
    let data = data_dir();
    let flags = ["--tuning", "hsts-max-age=1h"];
    let ended = Ended::of(&mut serve(data.path(), &flags));
    assert!(ended.stderr.contains("tuning.hsts-max-age"), "{ended:?}");
}
