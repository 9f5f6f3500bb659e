//! Traces: a collector gets one connected trace from a request to the deliveries of its record, and no collector holds the server up.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

use crate::rig::{Encke, Ended, JSON, command, data_dir, eventually, path};

/// A collector that answers each export with the next of its statuses, the last one for ever.
struct Collector {
    url: String,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    spans: Vec<Span>,
    services: Vec<String>,
    heads: Vec<String>,
}

impl Collector {
    fn start(statuses: &'static [u16]) -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it listens");
        let taken = Arc::new(Mutex::new(Taken::default()));
        let shared = Arc::clone(&taken);
        std::thread::spawn(move || {
            let mut statuses = statuses.iter().copied().peekable();
            for socket in listener.incoming() {
                let socket = socket.expect("a connection");
                while let Some((head, body)) = read_request(&socket) {
                    let status = match statuses.len() {
                        1 => *statuses.peek().expect("one is left"),
                        _ => statuses.next().expect("several are left"),
                    };
                    let mut taken = shared.lock().expect("it does not panic");
                    taken.heads.push(head);
                    if status == 200 {
                        taken.take(&body);
                    }
                    let answer = format!("HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n");
                    (&socket).write_all(answer.as_bytes()).expect("it reads");
                }
            }
        });
        Collector {
            url: format!("http://{address}/v1/traces"),
            taken,
        }
    }

    /// Waits until there are spans of which `enough` is true.
    fn wait(&self, what: &str, enough: impl Fn(&[Span]) -> bool) -> Vec<Span> {
        eventually(what, || {
            enough(&self.taken.lock().expect("it does not panic").spans)
        });
        self.spans()
    }

    fn spans(&self) -> Vec<Span> {
        self.taken.lock().expect("it does not panic").spans.clone()
    }
}

impl Taken {
    fn take(&mut self, body: &[u8]) {
        let request = ExportTraceServiceRequest::decode(body).expect("it is OTLP");
        for of_service in request.resource_spans {
            let resource = of_service.resource.expect("it is named");
            self.services
                .push(text(&resource.attributes, "service.name").expect("a name"));
            let scopes = of_service.scope_spans.into_iter();
            self.spans.extend(scopes.flat_map(|scope| scope.spans));
        }
    }
}

/// The head and the body of the next request, unless the connection has ended.
fn read_request(mut socket: &TcpStream) -> Option<(String, Vec<u8>)> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if socket.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).expect("it is text").to_lowercase();
    let length = head.split_once("content-length: ")?.1.split_once("\r\n")?.0;
    let mut body = vec![0; length.parse().expect("a number")];
    socket.read_exact(&mut body).ok()?;
    Some((head, body))
}

fn value<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a Value> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    found.value.as_ref()?.value.as_ref()
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    match value(attributes, key)? {
        Value::StringValue(text) => Some(text.clone()),
        other => panic!("{key} is {other:?}"),
    }
}

fn number(attributes: &[KeyValue], key: &str) -> i64 {
    match value(attributes, key) {
        Some(Value::IntValue(number)) => *number,
        other => panic!("{key} is {other:?}"),
    }
}

fn traced(collector: &Collector, ratio: &str) -> Vec<String> {
    let flags = [
        "--traces",
        &collector.url,
        "--tuning",
        &format!("traces-ratio={ratio}"),
    ];
    flags.map(str::to_owned).to_vec()
}

fn start(flags: &[String], more: &[&str]) -> Encke {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Encke::start(&[&flags, more].concat())
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn traceparent(flags: &str) -> String {
    format!("Traceparent: 00-{TRACE}-{PARENT}-{flags}")
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn one_trace_leads_from_a_request_to_its_subscribers() {
    for (level, stages) in [
        (
            "synced",
            &["queue", "decide", "write", "sync", "publish"][..],
        ),
        ("written", &["queue", "decide", "write", "publish"]),
        ("accepted", &["queue", "decide", "publish"]),
    ] {
        let collector = Collector::start(&[200]);
        let headers = data_dir();
        let file = headers.path().join("headers");
        std::fs::write(&file, "Authorization: Bearer secret\n").expect("it can be written");
        let setting = format!("traces-headers={}", file.display());
        let more = ["--shards", "2", "--ack", level, "--tuning", &setting];
        // The client says that its request is traced.
        let encke = start(
            &traced(&collector, "0"),
            &[&more[..], &["--tuning", "traces-service=push"]].concat(),
        );
        encke.create("s");
        // Behind what there is: a record that is read from the log for a subscriber is in no round.
        let mut subscribers = [(); 2].map(|()| encke.subscribe("s", "now"));
        encke.wait_for_metric("encke_subscribers", 2.0);
        let field = traceparent("01");
        let appended = encke.ask("POST", &path("s"), &[JSON, &field], b"7");
        assert_eq!(appended.status, 204);
        for subscriber in &mut subscribers {
            assert_eq!(subscriber.numbers(1), [7]);
        }
        let delivered = |spans: &[Span]| {
            let of_rounds = spans.iter().filter(|span| span.name == "deliver");
            of_rounds
                .map(|span| number(&span.attributes, "encke.subscribers"))
                .sum::<i64>()
        };
        let spans = collector.wait("all spans come", |spans| {
            delivered(spans) == 2 && spans.iter().any(|span| span.name.starts_with("POST"))
        });
        assert!(
            spans.iter().all(|span| hex(&span.trace_id) == TRACE),
            "{spans:#?}"
        );
        let named = |name: &str| {
            let mut found = spans.iter().filter(|span| span.name == name);
            let span = found
                .next()
                .unwrap_or_else(|| panic!("no {name} in {spans:#?}"));
            assert!(name == "deliver" || found.next().is_none(), "two {name}");
            span
        };
        let request = named("POST /v1/stream/**");
        assert_eq!(hex(&request.parent_span_id), PARENT);
        assert_eq!(
            number(&request.attributes, "http.response.status_code"),
            204
        );
        for (key, expected) in [
            ("http.route", "/v1/stream/**"),
            ("http.request.method", "POST"),
            ("url.path", "/v1/stream/s"),
            ("encke.caller", "anonymous"),
            ("encke.end", "complete"),
        ] {
            assert_eq!(text(&request.attributes, key).as_deref(), Some(expected));
        }
        let append = named("append");
        assert_eq!(append.parent_span_id, request.span_id);
        let mut began = append.start_time_unix_nano;
        for name in stages {
            let stage = named(name);
            assert_eq!(stage.parent_span_id, append.span_id);
            // One stage follows the other.
            assert_eq!(stage.start_time_unix_nano, began, "{level} {name}");
            assert!(stage.end_time_unix_nano >= began);
            began = stage.end_time_unix_nano;
        }
        assert_eq!(began, append.end_time_unix_nano);
        let others = spans
            .iter()
            .filter(|span| !["deliver", "append", &request.name].contains(&&*span.name));
        assert_eq!(others.count(), stages.len(), "{spans:#?}");
        for delivery in spans.iter().filter(|span| span.name == "deliver") {
            assert_eq!(delivery.parent_span_id, append.span_id);
            assert!(delivery.start_time_unix_nano >= append.end_time_unix_nano);
            assert_eq!(number(&delivery.attributes, "encke.subscribers_behind"), 0);
        }
        let taken = collector.taken.lock().expect("it does not panic");
        assert!(taken.services.iter().all(|service| service == "push"));
        let has_field = |head: &String| head.contains("authorization: bearer secret\r\n");
        assert!(taken.heads.iter().all(has_field), "{:?}", taken.heads);
    }
}

#[test]
fn reads_and_jobs_are_parts_of_their_requests() {
    let collector = Collector::start(&[200]);
    let encke = start(&traced(&collector, "1"), &[]);
    encke.create("s");
    assert_eq!(encke.ask("POST", &path("s"), &[JSON], b"1").status, 204);
    assert_eq!(encke.numbers("s"), [1]);
    assert_eq!(
        encke
            .ask("PUT", "/v1/pool/p", &[], br#"{"type":"claim"}"#)
            .status,
        201
    );
    let spans = collector.wait("both parts come", |spans| {
        ["read", "dispatch"]
            .iter()
            .all(|name| spans.iter().any(|span| span.name == *name))
            && spans.iter().any(|span| span.name == "PUT /v1/pool/**")
    });
    for (part, request) in [
        ("read", "GET /v1/stream/**"),
        ("dispatch", "PUT /v1/pool/**"),
    ] {
        let part = spans
            .iter()
            .find(|span| span.name == part)
            .expect("it came");
        let request = spans
            .iter()
            .find(|span| span.name == request)
            .expect("it came");
        assert_eq!(
            (&part.parent_span_id, &part.trace_id),
            (&request.span_id, &request.trace_id)
        );
    }
}

#[test]
fn the_ratio_counts_where_the_client_says_nothing() {
    let bad = [
        "Traceparent: 00",
        "Traceparent: 00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "Traceparent: ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "Traceparent: 00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "Traceparent: \u{e4}",
    ];
    let long = format!("Traceparent: {}", "0".repeat(8_000));
    for (ratio, traced_ones) in [("0", 0), ("1", bad.len() + 3)] {
        let collector = Collector::start(&[200]);
        let encke = start(&traced(&collector, ratio), &[]);
        let get =
            |fields: &[&str]| assert_eq!(encke.ask("GET", "/healthz", fields, b"").status, 200);
        // Never: the client says that it does not record its span.
        get(&[&traceparent("00")]);
        get(&[]);
        for field in bad {
            get(&[field]);
        }
        get(&[&long]);
        let field = traceparent("01");
        get(&[&field, &field]);
        // Always, and behind the others.
        get(&[&traceparent("03")]);
        let spans = collector.wait("the last one comes", |spans| {
            spans.iter().any(|span| hex(&span.trace_id) == TRACE)
        });
        assert_eq!(spans.len(), traced_ones + 1, "{spans:#?}");
        let own = spans.iter().filter(|span| span.parent_span_id.is_empty());
        assert_eq!(own.count(), traced_ones);
    }
}

#[test]
fn a_collector_that_fails_for_a_while_gets_the_same_spans_later() {
    let collector = Collector::start(&[503, 429, 200]);
    let encke = start(&traced(&collector, "1"), &[]);
    assert_eq!(encke.ask("GET", "/healthz", &[], b"").status, 200);
    collector.wait("the span comes", |spans| !spans.is_empty());
    assert_eq!(encke.metric("encke_trace_spans_dropped_total", ""), 0.0);
    // A stop sends what waits.
    assert_eq!(encke.ask("GET", "/v1/stream", &[], b"").status, 200);
    assert_eq!(encke.terminate().code, Some(0));
    assert!(
        collector
            .spans()
            .iter()
            .any(|span| span.name == "GET /v1/stream")
    );
}

#[test]
#[ignore = "long: make test-all"]
fn no_collector_holds_the_server_up() {
    // One that accepts and never answers, one that refuses, and none.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent_url = format!(
        "http://{}/v1/traces",
        silent.local_addr().expect("it listens")
    );
    let refusing = Collector::start(&[400]);
    let gone = TcpListener::bind("127.0.0.1:0").expect("a port");
    let gone_url = format!(
        "http://{}/v1/traces",
        gone.local_addr().expect("it listens")
    );
    drop(gone);
    for (url, reason) in [
        (silent_url, "queue_full"),
        (refusing.url.clone(), "export_failed"),
        (gone_url, "export_failed"),
    ] {
        let tuning = ["--tuning", "traces-ratio=1", "--tuning", "traces-queue=5"];
        let encke = Encke::start(&[&["--traces", &url][..], &tuning].concat());
        encke.create("s");
        let mut connection = encke.connect();
        let mut appended = 0;
        eventually("spans are dropped", || {
            for _ in 0..20 {
                let answer = connection.ask("POST", &path("s"), &[JSON], b"1");
                assert_eq!(answer.status, 204);
                appended += 1;
            }
            encke.metric(
                "encke_trace_spans_dropped_total",
                &format!("reason=\"{reason}\""),
            ) > 0.0
        });
        assert_eq!(encke.numbers("s").len(), appended);
        assert_eq!(encke.terminate().code, Some(0));
    }
}

#[test]
fn mistakes_are_named_and_secrets_are_not_shown() {
    let folder = data_dir();
    let file = folder.path().join("headers");
    let headers = format!("traces-headers={}", file.display());
    let check = |more: &[&str]| Ended::of(command(&["serve", "--check"]).args(more));
    let collector = ["--traces", "https://collector.example/v1/traces"];
    std::fs::write(&file, "Authorization: hush\n").expect("it can be written");
    let shown = check(&[&collector[..], &["--tuning", &headers]].concat());
    assert_eq!(shown.code, Some(0), "{shown:?}");
    assert!(!format!("{shown:?}").contains("hush"), "{shown:?}");
    let refused = |more: &[&str], why: &str| {
        let ended = check(more);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(why), "{ended:?}");
        assert!(!ended.stderr.contains("hush"), "{ended:?}");
    };
    refused(
        &["--tuning", &headers],
        "tuning.traces-headers needs --traces",
    );
    refused(&["--traces", "collector:4318"], "must be a URL");
    refused(
        &["--tuning", "traces-ratio=2"],
        "must be a number from 0 to 1",
    );
    refused(&["--tuning", "traces-queue=0"], "traces-queue");
    std::fs::write(&file, "x: y\nhush\n").expect("it can be written");
    refused(
        &[&collector[..], &["--tuning", &headers]].concat(),
        "line 2: must be a header field",
    );
}
