//! Clients against listeners that speak for themselves.

use super::*;
use crate::load::wire::sse::EventData;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};

/// Notes what its only client hears.
#[derive(Default)]
struct Notes {
    subscribed: u32,
    data: Vec<String>,
}

impl Audience for Notes {
    fn target(&self, client: u32, _offset: Option<&[u8]>, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("/v1/events?stream=s{client}").as_bytes());
    }

    fn subscribed(&mut self, _client: u32, _took_ns: u64, _now_ns: u64) {
        self.subscribed += 1;
    }

    fn record(&mut self, _client: u32, data: EventData<'_>, _now_ns: u64) {
        let EventData::Line(line) = data else {
            panic!("one line was sent")
        };
        self.data.push(String::from_utf8(line.to_vec()).unwrap());
    }
}

/// Accepts a client and sends it these events, in two pieces. Returns its request and its connection.
fn answer(listener: &TcpListener, events: &str) -> (Vec<String>, TcpStream) {
    let (mut client, _) = listener.accept().unwrap();
    let lines = BufReader::new(&client).lines().map(Result::unwrap);
    let request = lines.take_while(|line| !line.is_empty()).collect();
    let (first, second) = events.split_at(events.len() / 2);
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
    client
        .write_all(format!("{head}{first}").as_bytes())
        .unwrap();
    client.write_all(second.as_bytes()).unwrap();
    (request, client)
}

#[test]
fn a_client_continues_at_the_next_server_with_its_last_id() {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let servers: Vec<_> = listeners.iter().map(|l| l.local_addr().unwrap()).collect();
    let mut sources = EventSources::new(EventSourcePlan {
        clients: 1,
        sources: Sources::new(servers[0], 1),
        servers,
        opening_max: 1,
        later_clients: 0,
        away_ns: 0,
    })
    .unwrap();
    let mut notes = Notes::default();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let (first, _) = answer(&listeners[0], "id:1\n\ndata: a\nid:2\n\n");
            let (second, open) = answer(&listeners[1], "id:2\n\n: quiet\n\ndata: b\nid:3\n\n");
            (first, second, open)
        });
        while notes.data.len() < 2 {
            sources
                .turn(monotonic_ns() + MILLISECOND_NS, &mut notes)
                .unwrap();
        }
        let (first, second, _open) = server.join().unwrap();
        assert_eq!(first[0], "GET /v1/events?stream=s0 HTTP/1.1");
        assert!(!first.iter().any(|line| line.starts_with("Last-Event-ID")));
        assert!(
            second.contains(&"Last-Event-ID: 2".to_owned()),
            "{second:?}"
        );
    });
    assert_eq!(
        (notes.subscribed, notes.data),
        (2, vec!["a".into(), "b".into()])
    );
    let counts = sources.counts();
    assert_eq!((counts.subscribed, counts.lost, counts.over), (1, 1, 0));
    assert_eq!(counts.reasons[CLOSED], 1);
    assert!(sources.is_settled());
}
