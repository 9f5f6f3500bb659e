//! TLS: HTTP/1.1 over it, certificates that change, and clients that stop in the middle of a handshake.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;

use rustix::process::Signal;
use rustls::ClientConfig;

use crate::ports::fixed_port;
use crate::rig::{
    Authority, CertificateFiles, Encke, Ended, JSON, TlsClient, anonymous_memory_bytes, can_use,
    command, data_dir, eventually, path, serve, text,
};

/// A server with a certificate, and a client that trusts it.
pub(crate) struct Secure {
    pub(crate) encke: Encke,
    authority: Authority,
    pub(crate) client: Arc<ClientConfig>,
}

impl Secure {
    pub(crate) fn start(flags: &[&str]) -> Secure {
        let authority = Authority::new();
        let files = authority.issue("localhost");
        let flags = [&files.flags()[..], flags].concat();
        Secure {
            encke: Encke::start(&flags),
            client: authority.client(),
            authority,
        }
    }

    pub(crate) fn connect(&self) -> TlsClient {
        TlsClient::open(&self.encke, &self.client)
    }

    /// The value of a metric, over all its labels that hold `label`.
    pub(crate) fn metric(&self, name: &str, label: &str) -> f64 {
        let (head, body) = self.connect().ask("GET", "/metrics", &[], b"");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        let shown = String::from_utf8(body).expect("metrics are text");
        shown
            .lines()
            .filter_map(|line| line.rsplit_once(' '))
            .filter(|(key, _)| key.split('{').next() == Some(name) && key.contains(label))
            .map(|(_, value)| value.parse::<f64>().expect("a number"))
            .sum()
    }

    pub(crate) fn create(&self, stream: &str) {
        let (head, _) = self.connect().ask("PUT", &path(stream), &[JSON], b"");
        assert!(head.starts_with("HTTP/1.1 201 "), "{head}");
    }

    /// Subscribes from the beginning.
    pub(crate) fn subscribe(&self, stream: &str) -> TlsClient {
        let mut client = self.connect();
        let target = format!("{}?offset=-1&live=sse", path(stream));
        let sent = client.send(&crate::rig::request("GET", &target, &[], b""));
        sent.expect("the server reads");
        let head = client.until("\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        client
    }
}

fn append(client: &mut TlsClient, stream: &str, body: &str) {
    let (head, _) = client.ask("POST", &path(stream), &[JSON], body.as_bytes());
    assert!(head.starts_with("HTTP/1.1 204 "), "{head}");
}

#[test]
fn streams_are_created_appended_to_read_and_followed() {
    let secure = Secure::start(&[]);
    let mut client = secure.connect();
    let (head, _) = client.ask("PUT", &path("a"), &[JSON], b"");
    assert!(
        head.contains("\r\nLocation: https://encke.localhost/v1/stream/a\r\n"),
        "{head}"
    );
    let mut subscriber = secure.subscribe("a");
    for number in 0..20 {
        append(&mut client, "a", &format!("\"record {number}\""));
        subscriber.until(&format!("record {number}\""));
        // Between any two records either side may change its keys.
        client.change_keys();
        subscriber.change_keys();
    }
    let (_, body) = client.ask("GET", "/v1/stream/a?offset=-1", &[], b"");
    assert_eq!(
        String::from_utf8(body)
            .expect("JSON")
            .matches("record")
            .count(),
        20
    );
}

#[test]
fn a_client_that_does_not_read_gets_everything_later() {
    let secure = Secure::start(&[]);
    secure.create("a");
    let mut subscriber = secure.subscribe("a");
    let mut client = secure.connect();
    let filler = "x".repeat(60_000);
    for number in 0..200 {
        append(&mut client, "a", &format!("\"<{number}>{filler}\""));
    }
    assert!(secure.metric("encke_blocked_total", "") > 0.0);
    for number in 0..200 {
        // Each is found behind the one before, with nothing but filler and framing between.
        let before = subscriber.until(&format!("<{number}>"));
        assert_eq!(before.matches('<').count(), 1, "before {number}");
    }
    append(&mut client, "a", "\"the end\"");
    subscriber.until("the end");
}

#[test]
#[ignore = "make test-all builds with jemalloc"]
fn a_subscriber_gives_memory_back_when_it_begins_to_wait() {
    let secure = Secure::start(&[]);
    secure.create("a");
    let subscribe = |count: u64| -> Vec<_> { (0..count).map(|_| secure.subscribe("a")).collect() };
    // The first handshakes of a server take memory that later ones use again, so it is not counted.
    let _first = subscribe(32);
    let before = anonymous_memory_bytes(&secure.encke);
    let _subscribers = subscribe(SUBSCRIBERS);
    let grown = anonymous_memory_bytes(&secure.encke).saturating_sub(before);
    let each = grown / SUBSCRIBERS;
    assert!(each <= SUBSCRIBER_BYTES_MAX, "{each} bytes each");
}

#[test]
fn a_client_comes_back_by_its_ticket() {
    let secure = Secure::start(&[]);
    let mut first = secure.connect();
    assert!(!first.is_resumed());
    // The ticket comes before the first answer.
    first.ask("GET", "/healthz", &[], b"");
    let mut second = secure.connect();
    assert!(second.is_resumed());
    second.ask("GET", "/healthz", &[], b"");
    assert!(secure.metric("encke_tls_handshakes_total", "kind=\"resumed\"") >= 1.0);
    assert!(secure.metric("encke_tls_handshakes_total", "kind=\"full\"") >= 1.0);
}

#[test]
fn the_certificate_is_chosen_by_name() {
    let authority = Authority::new();
    let names = ["first.test", "second.test"].map(|name| authority.issue(name));
    let list = |file: fn(&CertificateFiles) -> &str| names.each_ref().map(file).join(",");
    let certificates = list(|files| text(&files.certificate));
    let keys = list(|files| text(&files.key));
    let encke = Encke::start(&["--tls-cert", &certificates, "--tls-key", &keys]);
    let client = authority.client();
    let shown = |name| TlsClient::open_as(encke.address, &client, name).certificate();
    let (first, second) = (shown("first.test"), shown("second.test"));
    assert_ne!(first, second);
    // Without a name, and for any other, it is the first.
    assert_eq!(shown("127.0.0.1"), first);
    let other = TlsClient::try_open(encke.address, &client, "third.test");
    assert!(other.is_err(), "the first certificate is not for this name");
}

#[test]
fn changed_files_are_read_again_and_connections_go_on() {
    let secure = Secure::start(&["--log", "info"]);
    secure.create("a");
    let (mut subscriber, mut client) = (secure.subscribe("a"), secure.connect());
    let first = client.certificate();
    // By themselves.
    secure.authority.issue("localhost");
    eventually("the new certificate is shown", || {
        secure.connect().certificate() != first
    });
    let second = secure.connect().certificate();
    // A file that is wrong changes nothing.
    let key = secure.authority.file().with_file_name("localhost.key");
    std::fs::write(key, "no key").expect("it can be written");
    secure.encke.signal(Signal::HUP);
    eventually("the error is logged", || {
        secure.encke.log().contains("no private key in PEM format")
    });
    assert_eq!(secure.connect().certificate(), second);
    // SIGHUP reads them at once.
    secure.authority.issue("localhost");
    secure.encke.signal(Signal::HUP);
    eventually("the next certificate is shown", || {
        secure.connect().certificate() != second
    });
    append(&mut client, "a", "\"still here\"");
    subscriber.until("still here");
    assert!(secure.metric("encke_tls_reloads_total", "result=\"failed\"") >= 1.0);
}

#[test]
fn clients_present_certificates_if_the_server_asks_for_them() {
    let (authority, others) = (Authority::new(), Authority::new());
    let files = authority.issue("localhost");
    let ca = authority.file();
    let flags = [&files.flags()[..], &["--tls-client-ca", text(&ca)]].concat();
    let own = authority.issue("worker-7");
    let foreign = others.issue("worker-7");
    let knows = |encke: &Encke, own: Option<&CertificateFiles>| {
        // The server's verdict follows the client's part of the handshake.
        let client = TlsClient::try_open(encke.address, &authority.client_with(own), "127.0.0.1");
        client.and_then(|mut client| {
            client.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
            client.read_to_end()
        })
    };
    let encke = Encke::start(&flags);
    let answer = knows(&encke, Some(&own)).expect("it is let in");
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
    assert!(knows(&encke, None).is_err());
    assert!(knows(&encke, Some(&foreign)).is_err());

    let flags = [&flags[..], &["--tuning", "tls-clients=optional"]].concat();
    let encke = Encke::start(&flags);
    assert!(knows(&encke, Some(&own)).is_ok());
    assert!(knows(&encke, None).is_ok());
    assert!(knows(&encke, Some(&foreign)).is_err());
}

#[test]
fn a_handshake_has_a_time_limit() {
    let secure = Secure::start(&["--tuning", "handshake-timeout=3s"]);
    let mut silent = TcpStream::connect(secure.encke.address).expect("the server listens");
    let mut left = Vec::new();
    silent.read_to_end(&mut left).expect("the server hangs up");
    let failed = || secure.metric("encke_tls_handshakes_failed_total", "reason=\"timeout\"");
    assert!(failed() >= 1.0);
    let closed = || secure.metric("encke_connections_closed_total", "reason=\"tls_handshake\"");
    eventually("the connection is counted as closed", || closed() >= 1.0);
}

#[test]
fn half_open_handshakes_do_not_stop_deliveries() {
    // So long that none is over before all are there.
    let secure = Secure::start(&[
        "--tuning",
        "handshake-timeout=10m",
        "--tuning",
        "handshakes-per-address=0",
    ]);
    secure.create("a");
    let (mut subscriber, mut client) = (secure.subscribe("a"), secure.connect());
    let half: Vec<_> = (0..500)
        .map(|_| {
            let mut socket = TcpStream::connect(secure.encke.address).expect("the server listens");
            // The beginning of a handshake message.
            let sent = socket.write_all(&[22, 3, 1, 2, 0, 1, 0]);
            sent.expect("the server reads");
            socket
        })
        .collect();
    eventually("the handshakes are under way", || {
        secure.metric("encke_tls_handshakes_under_way", "") >= 500.0
    });
    for number in 0..100 {
        append(&mut client, "a", &format!("\"record {number}\""));
        subscriber.until(&format!("record {number}\""));
    }
    drop(half);
    let failed = || secure.metric("encke_tls_handshakes_failed_total", "reason=\"hang_up\"");
    eventually("their end is noticed", || failed() >= 500.0);
}

#[test]
fn a_stop_ends_sessions_properly() {
    let secure = Secure::start(&[]);
    secure.create("a");
    let (mut subscriber, mut idle) = (secure.subscribe("a"), secure.connect());
    idle.ask("GET", "/healthz", &[], b"");
    let handshaking = TcpStream::connect(secure.encke.address).expect("the server listens");
    let stopped = secure.encke.terminate();
    assert_eq!(stopped.code, Some(0), "{}", stopped.log);
    // A connection that was cut would be an error.
    subscriber.read_to_end().expect("the session ends");
    idle.read_to_end().expect("the session ends");
    drop(handshaking);
}

#[test]
fn a_request_that_is_cut_is_not_performed() {
    let secure = Secure::start(&[]);
    secure.create("a");
    let mut client = secure.connect();
    let head = "POST /v1/stream/a HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
                Content-Length: 9\r\n\r\n\"1234";
    client.send(head.as_bytes()).expect("the server reads");
    client.cut();
    assert!(client.read_to_end().is_err(), "there is no answer");
    let (_, body) = secure
        .connect()
        .ask("GET", "/v1/stream/a?offset=-1", &[], b"");
    assert_eq!(body, b"[]");
}

#[test]
fn what_is_no_tls_gets_no_answer_and_disturbs_no_client() {
    let secure = Secure::start(&[]);
    for junk in [
        &[22, 3, 1, 0xff, 0xff][..],
        &[0; 100],
        &[22, 3, 3, 0, 4, 1, 0xff, 0xff, 0xff],
    ] {
        let mut socket = TcpStream::connect(secure.encke.address).expect("the server listens");
        socket.write_all(junk).expect("the server reads");
        // The server may have hung up already.
        let _ = socket.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        // An alert, or a reset.
        let _ = socket.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer[0] == 21, "{answer:?}");
    }
    let (head, _) = secure.connect().ask("GET", "/healthz", &[], b"");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(secure.metric("encke_tls_handshakes_failed_total", "") >= 3.0);
}

#[test]
fn a_header_of_the_proxy_protocol_comes_before_the_handshake() {
    let secure = Secure::start(&["--proxy-protocol", "--trust", "127.0.0.1"]);
    for cut in [0, 10] {
        let mut socket = TcpStream::connect(secure.encke.address).expect("the server listens");
        let header = b"PROXY TCP4 192.0.2.7 192.0.2.1 1234 443\r\n";
        socket.write_all(&header[..cut]).expect("the server reads");
        socket.write_all(&header[cut..]).expect("the server reads");
        let mut client =
            TlsClient::over(socket, &secure.client, "127.0.0.1").expect("the handshake succeeds");
        let (head, _) = client.ask("PUT", &path(&format!("a{cut}")), &[JSON], b"");
        assert!(head.contains("Location: https://"), "{head}");
    }
}

#[test]
fn plain_requests_are_redirected() {
    let redirect = format!("127.0.0.1:{}", fixed_port());
    let secure = Secure::start(&["--redirect-http", &redirect]);
    let ask = |request: &str| {
        let mut socket = TcpStream::connect(&redirect).expect("it listens");
        socket.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("it answers");
        answer
    };
    let answer = ask("GET /v1/stream/a?offset=-1 HTTP/1.1\r\nHost: push.example:80\r\n\r\n");
    let place = format!(
        "Location: https://push.example:{}/v1/stream/a?offset=-1\r\n",
        secure.encke.address.port()
    );
    assert!(
        answer.starts_with("HTTP/1.1 308 ") && answer.contains(&place),
        "{answer}"
    );
    let answer = ask("POST /v1/stream/a HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n1");
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    // Clients that say nothing take each other's places, and keep no one out.
    let silent: Vec<_> = (0..300)
        .map(|_| TcpStream::connect(&redirect).expect("it listens"))
        .collect();
    assert!(ask("HEAD / HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 308 "));
    drop(silent);
}

#[test]
fn wrong_files_are_named_at_the_start() {
    let (authority, data) = (Authority::new(), data_dir());
    let (files, other) = (authority.issue("localhost"), authority.issue("other"));
    let missing = authority.file().with_file_name("missing.pem");
    let fails = |certificate: &str, key: &str, ca: &str| {
        let flags = [
            "--tls-cert",
            certificate,
            "--tls-key",
            key,
            "--tls-client-ca",
            ca,
        ];
        let ended = Ended::of(&mut serve(data.path(), &flags));
        assert_eq!(ended.code, Some(2), "{ended:?}");
        ended.stderr
    };
    let (certificate, key) = (text(&files.certificate), text(&files.key));
    let (ca, gone) = (authority.file(), text(&missing));
    let said = fails(gone, key, text(&ca));
    assert!(
        said.contains(gone) && said.contains("No such file"),
        "{said}"
    );
    let said = fails(certificate, certificate, text(&ca));
    assert!(said.contains("has no private key in PEM format"), "{said}");
    let said = fails(key, key, text(&ca));
    assert!(said.contains("has no certificate in PEM format"), "{said}");
    let said = fails(certificate, text(&other.key), text(&ca));
    assert!(
        said.contains("the key belongs to another certificate"),
        "{said}"
    );
    let said = fails(certificate, key, key);
    assert!(said.contains("--tls-client-ca"), "{said}");

    // `--check` says the same without a start.
    let data = text(data.path());
    let place = [
        "serve",
        "--check",
        "--listen",
        "127.0.0.1:0",
        "--data",
        data,
    ];
    let flags = [&place[..], &["--tls-cert", gone, "--tls-key", key]].concat();
    let ended = Ended::of(&mut command(&flags));
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stdout.contains(gone), "{ended:?}");

    // One that has expired is served, with a warning.
    let expired = authority.issue_expired("localhost");
    let encke = Encke::start(&expired.flags());
    assert!(
        encke.log().contains("the certificate has expired"),
        "{}",
        encke.log()
    );
}

#[test]
fn curl_and_openssl_are_served() {
    let secure = Secure::start(&[]);
    secure.create("a");
    append(&mut secure.connect(), "a", "\"hello\"");
    let url = format!("https://{}/v1/stream/a?offset=-1", secure.encke.address);
    let ca = secure.authority.file();
    let runs = |tool: &str| Command::new(tool).arg("--version").output().is_ok();
    if can_use("curl", || runs("curl")) {
        let versions = ["--tlsv1.3", "--tls-max"];
        let protocols = [("--http1.1", "1.1"), ("--http2", "2")];
        for (version, (http, spoken)) in versions
            .iter()
            .flat_map(|version| protocols.map(|http| (version, http)))
        {
            let mut curl = Command::new("curl");
            curl.args(["--silent", "--show-error", "--cacert", text(&ca), http]);
            curl.args(["--write-out", " %{http_version}", version]);
            if *version == "--tls-max" {
                curl.arg("1.2");
            }
            let ended = Ended::of(curl.arg(&url));
            assert_eq!(ended.code, Some(0), "{ended:?}");
            // HTTP/2 is chosen in the handshake.
            assert_eq!(ended.stdout, format!("[\"hello\"] {spoken}"));
        }
    }
    if can_use("openssl", || runs("openssl")) {
        let address = secure.encke.address.to_string();
        for suite in [
            "-ciphersuites=TLS_AES_128_GCM_SHA256",
            "-ciphersuites=TLS_CHACHA20_POLY1305_SHA256",
            "-tls1_2=",
        ] {
            let (name, value) = suite.split_once('=').expect("a flag");
            let mut openssl = Command::new("openssl");
            openssl.args([
                "s_client",
                "-quiet",
                "-connect",
                &address,
                "-CAfile",
                text(&ca),
                name,
            ]);
            openssl.args(Some(value).filter(|value| !value.is_empty()));
            openssl.stdin(std::process::Stdio::piped());
            openssl.stdout(std::process::Stdio::piped());
            openssl.stderr(std::process::Stdio::null());
            let mut child = openssl.spawn().expect("it starts");
            let request =
                b"GET /v1/stream/a?offset=-1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            let mut input = child.stdin.take().expect("it was asked for");
            input.write_all(request).expect("it reads");
            // Its input stays open until the server has hung up.
            let output = child.wait_with_output().expect("it ends");
            drop(input);
            let shown = String::from_utf8_lossy(&output.stdout);
            assert!(shown.ends_with("[\"hello\"]"), "{suite}: {shown}");
        }
    }
}

/// Subscribers whose memory is measured.
const SUBSCRIBERS: u64 = 300;

/// The bound of decision 27 for a subscriber's memory. With its ciphers it takes 2.6 KB.
const SUBSCRIBER_BYTES_MAX: u64 = 2_000;
