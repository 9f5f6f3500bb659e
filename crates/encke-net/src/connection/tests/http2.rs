//! HTTP/2: many exchanges on a connection.

use std::time::Duration;

use encke_stream::Offset;

use super::{append, create, get, rig_with_stream, statuses};
use crate::clients::callers::CallerEnd;
use crate::connection::Event;
use crate::connection::close::CloseReason;
use crate::connection::effect::ConnectionEffect;
use crate::connection::exchange_id::ExchangeId;
use crate::connection::outbound::Outbound;
use crate::connection::testing::{Http2Client, Rig};

/// A client at a rig whose server has the stream `a`.
pub(super) struct Pair {
    pub(super) rig: Rig,
    pub(super) client: Http2Client,
    /// How much of what the rig has sent the client has.
    seen: usize,
}

impl Pair {
    pub(super) fn new(window_bytes: u32) -> Self {
        Pair::of(rig_with_stream("x"), window_bytes)
    }

    pub(super) fn of(rig: Rig, window_bytes: u32) -> Self {
        let mut pair = Pair {
            rig,
            client: Http2Client::new(window_bytes),
            seen: 0,
        };
        pair.pump();
        pair
    }

    /// Carries bytes between both until neither has any.
    pub(super) fn pump(&mut self) {
        loop {
            let received = self.rig.taken[self.seen..].to_vec();
            self.seen = self.rig.taken.len();
            let sent = self.client.exchange(&received);
            if !sent.is_empty() {
                self.rig.receive(&sent);
            } else if self.seen == self.rig.taken.len() {
                return;
            }
        }
    }

    pub(super) fn get(&mut self, path: &str) -> usize {
        let number = self.client.request("GET", path, &[], b"");
        self.pump();
        number
    }

    pub(super) fn append(&mut self, body: &[u8]) -> usize {
        let fields = [("content-type", "text/plain")];
        let number = self.client.request("POST", "/v1/stream/a", &fields, body);
        self.pump();
        number
    }

    pub(super) fn status(&self, number: usize) -> Option<u16> {
        self.client.exchanges[number].status
    }

    pub(super) fn text(&self, number: usize) -> String {
        self.client.exchanges[number].text()
    }

    pub(super) fn is_complete(&self, number: usize) -> bool {
        self.client.exchanges[number].ended == Some(Ok(()))
    }

    /// The exchange that has subscribed last.
    pub(super) fn subscriber(&self) -> ExchangeId {
        let noted = self.rig.noted.iter().rev();
        let mut ids = noted.filter_map(|effect| match effect {
            ConnectionEffect::Subscribe(id, ..) => Some(*id),
            _ => None,
        });
        ids.next().unwrap()
    }

    /// Sends bytes of a feed as the shard does; what is not taken is kept. Returns how many are taken.
    pub(super) fn send(&mut self, id: ExchangeId, bytes: &[u8], reached: Offset) -> usize {
        let mut sent = 0;
        self.rig.act(|connection, cx| {
            sent = connection.send_on(id, bytes, false, cx);
            if sent < bytes.len() {
                let mut outbound = Outbound::new(bytes[sent..].to_vec());
                outbound.reached = Some(reached);
                connection.block_on(id, outbound, cx);
            }
        });
        self.pump();
        sent
    }
}

pub(super) const WINDOW: u32 = 65_535;
pub(super) const BODY: &str = "/v1/stream/a?offset=-1";
const LIVE: &str = "/v1/stream/a?offset=now&live=sse";

#[test]
fn a_preface_switches_the_wire_wherever_it_is_split() {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    for split in 1..preface.len() {
        let mut rig = Rig::new();
        rig.receive(&preface[..split]);
        rig.receive(&preface[split..]);
        assert_eq!(rig.closed, None, "{split}");
        // A frame of settings, of stream 0.
        assert_eq!(rig.taken[3], 4, "{split}");
        assert_eq!(rig.server.counts.http2_connections, 1);
        rig.close(CloseReason::HangUp);
        assert_eq!(rig.server.counts.http2_connections, 0);
        assert_eq!(rig.held_bytes(), 0);
    }
}

#[test]
fn a_preface_behind_a_request_is_none() {
    let mut rig = rig_with_stream("x");
    assert_eq!(statuses(&rig.request(&get(BODY))), [200]);
    rig.taken.clear();
    rig.receive(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert!(rig.text().starts_with("HTTP/1.1 "), "{}", rig.text());
    assert!(rig.lingers);
}

#[test]
fn exchanges_do_not_wait_for_each_other() {
    let mut pair = Pair::new(WINDOW);
    pair.rig.held = true;
    let first = pair.append(b"y");
    let missing = pair.get("/v1/stream/a?offset=nonsense");
    assert_eq!(
        (pair.status(first), pair.status(missing)),
        (None, Some(400))
    );
    pair.rig.release();
    pair.pump();
    assert_eq!(pair.status(first), Some(204));
    let read = pair.get(BODY);
    assert_eq!(pair.text(read), "xy");
    assert!(pair.is_complete(read));
    assert_eq!(pair.rig.server.counts.http2_streams, 0);
    assert_eq!(pair.rig.server.ids.open, []);
}

#[test]
fn a_long_body_goes_on_as_the_windows_open() {
    let mut rig = Rig::new();
    create(&mut rig, "");
    for _ in 0..30 {
        rig.receive(append(&"x".repeat(100_000)).as_bytes());
    }
    let rig = rig.reconnect();
    let mut pair = Pair {
        rig,
        client: Http2Client::new(WINDOW),
        seen: 0,
    };
    pair.pump();
    let long = pair.client.request("GET", BODY, &[], b"");
    pair.client.exchanges[long].takes = false;
    pair.pump();
    let other = pair.get("/v1/stream/none");
    assert_eq!(pair.status(other), Some(404), "the others go on");
    assert!(pair.rig.held_bytes() < 3_000_000);
    assert_eq!(pair.rig.server.counts.behind, 1);
    pair.client.exchanges[long].takes = true;
    pair.pump();
    assert_eq!(pair.text(long).len(), 3_000_000);
    assert!(pair.is_complete(long));
    assert_eq!(pair.rig.server.counts.behind, 0);
}

#[test]
fn a_subscriber_is_blocked_by_its_window_only() {
    let mut pair = Pair::new(10);
    let live = pair.get(LIVE);
    let id = pair.subscriber();
    let before = pair.text(live);
    pair.client.exchanges[live].takes = false;
    let at = Offset {
        sequence: 5,
        units: 0,
    };
    assert_eq!(pair.send(id, b"0123456789abc", at), 10);
    assert!(pair.rig.connection.as_ref().unwrap().is_blocked(id));
    assert!(pair.rig.held_bytes() > 0);
    pair.client.exchanges[live].takes = true;
    pair.pump();
    assert_eq!(pair.text(live), before + "0123456789abc");
    let is_deliver = |effect: &ConnectionEffect| matches!(effect, ConnectionEffect::Deliver(of, Some(reached)) if *of == id && *reached == at);
    assert_eq!(pair.rig.count_noted(is_deliver), 1);
}

#[test]
fn a_stream_that_is_reset_ends_its_exchange_and_nothing_else() {
    let mut pair = Pair::new(WINDOW);
    let live = pair.get(LIVE);
    let id = pair.subscriber();
    pair.client.reset(live);
    pair.pump();
    assert_eq!(pair.rig.ended, [(id, CloseReason::HangUp)]);
    let read = pair.get(BODY);
    assert_eq!(pair.text(read), "x");
    assert_eq!(pair.rig.server.counts.http2_streams, 0);
}

#[test]
fn a_request_in_work_whose_stream_is_reset_is_done_nevertheless() {
    let mut pair = Pair::new(WINDOW);
    pair.rig.held = true;
    let first = pair.append(b"y");
    pair.client.reset(first);
    pair.pump();
    pair.rig.release();
    let read = pair.get(BODY);
    assert_eq!(pair.text(read), "xy");
}

#[test]
fn a_stop_ends_subscriptions_completes_requests_and_closes_behind_them() {
    let mut pair = Pair::new(WINDOW);
    let live = pair.get(LIVE);
    pair.rig.held = true;
    let append = pair.append(b"y");
    pair.rig.server.stopping = true;
    pair.rig.on(Event::Stopping);
    pair.pump();
    // The response is whole, and says itself that its stream goes on.
    assert_eq!(pair.client.exchanges[live].ended, Some(Ok(())));
    assert!(pair.text(live).ends_with("bye"));
    assert_eq!(pair.rig.closed, None);
    pair.rig.release();
    pair.pump();
    assert_eq!(pair.status(append), Some(204));
    // The client may have left first, once it knew that nothing follows.
    assert!(pair.rig.lingers || pair.rig.closed == Some(CloseReason::Stopping));
    assert_eq!(pair.rig.held_bytes(), 0);
    assert_eq!(pair.rig.server.counts.http2_streams, 0);
}

#[test]
fn half_a_connection_of_many_is_none() {
    let mut pair = Pair::new(WINDOW);
    pair.get(LIVE);
    pair.rig.half_close();
    assert_eq!(pair.rig.closed, Some(CloseReason::HangUp));
    assert_eq!(pair.rig.server.counts.http2_streams, 0);
    assert_eq!(pair.rig.ended.len(), 1);
}

#[test]
fn an_idle_connection_is_ended_with_a_goaway() {
    let mut pair = Pair::new(WINDOW);
    let idle = Duration::from_secs(120);
    pair.rig.pass(Duration::from_secs(119));
    pair.rig.on(Event::Swept(idle));
    assert_eq!(pair.rig.closed, None);
    // Two, because a part of the first second may have passed before.
    pair.rig.pass(Duration::from_secs(2));
    pair.rig.on(Event::Swept(idle));
    pair.pump();
    assert_eq!(pair.rig.closed, Some(CloseReason::Idle));
    assert_eq!(pair.client.over, Some(Ok(())));
}

#[test]
fn what_violates_the_protocol_is_answered_with_a_goaway() {
    let mut pair = Pair::new(WINDOW);
    let before = pair.rig.taken.len();
    pair.rig.receive(b"\0\0\x01\x06\0\0\0\0\0x");
    let sent = &pair.rig.taken[before..];
    // A frame of type GOAWAY.
    assert_eq!(sent.get(3), Some(&7), "{sent:?}");
    assert!(pair.rig.lingers);
    assert_eq!(pair.rig.server.counts.http2_connections, 0);
}

#[test]
fn the_end_of_a_caller_dismisses_its_exchange_only() {
    let mut pair = Pair::new(WINDOW);
    pair.get(LIVE);
    let id = pair.subscriber();
    let end = CallerEnd::Revoked;
    pair.rig
        .act(|connection, cx| connection.end_caller(id, end, cx));
    let is_dismiss = |effect: &ConnectionEffect| matches!(effect, ConnectionEffect::Dismiss(of, CloseReason::Revoked) if *of == id);
    assert_eq!(pair.rig.count_noted(is_dismiss), 1);
    assert_eq!(pair.rig.closed, None);
}

#[test]
fn a_client_that_takes_nothing_of_a_stream_is_reset_there() {
    let mut pair = Pair::new(1);
    let read = pair.client.request("GET", "/v1/stream/none", &[], b"");
    pair.client.exchanges[read].takes = false;
    pair.pump();
    let stall = pair.rig.server.settings.stall_timeout;
    pair.rig.pass(stall);
    pair.pump();
    assert_eq!(pair.rig.ended.len(), 1);
    assert_eq!(pair.rig.ended[0].1, CloseReason::Stalled);
    assert_eq!(pair.rig.closed, None, "the connection goes on");
}

#[test]
fn requests_beyond_the_bound_of_a_connection_end_it_behind_them() {
    let settings = crate::settings::NetSettings {
        requests_per_connection: 2,
        ..crate::settings::NetSettings::default()
    };
    let mut pair = Pair {
        rig: Rig::with(settings),
        client: Http2Client::new(WINDOW),
        seen: 0,
    };
    pair.pump();
    for _ in 0..2 {
        let number = pair.get("/v1/stream/none");
        assert_eq!(pair.status(number), Some(404));
    }
    assert!(pair.rig.lingers);
    assert_eq!(pair.client.over, Some(Ok(())));
}
