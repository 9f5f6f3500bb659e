//! Channels of WebSocket in streams of HTTP/2.

use std::sync::Arc;
use std::time::Duration;

use encke_access::{Access, AccessConfig};
use encke_protocol::{Gate, Policy};
use encke_stream::Offset;
use h2::Reason;
use serde_json::Value;

use super::create;
use super::http2::{BODY, Pair, WINDOW};
use crate::clients::callers::CallerEnd;
use crate::connection::Event;
use crate::connection::close::CloseReason;
use crate::connection::effect::ConnectionEffect;
use crate::connection::exchange::ConnectionFacts;
use crate::connection::exchange_id::ExchangeId;
use crate::connection::testing::websocket_client::{
    CLOSE, PING, PONG, ReceivedFrame, frame, frames_in, text,
};
use crate::connection::testing::{ID, Rig, TestServer};
use crate::settings::NetSettings;
use crate::websocket::deflate::deflate;

const VERSION: (&str, &str) = ("sec-websocket-version", "13");
const EVENTS: &str = "/v1/events";
const SUBSCRIBE: &str = r#"{"type":"subscribe","id":1,"stream":"a","offset":"-1"}"#;

/// A client with some channels, and how much it has read of each.
struct Channels {
    pair: Pair,
    open: Vec<Channel>,
}

struct Channel {
    stream: usize,
    id: ExchangeId,
    read: usize,
}

impl Channels {
    fn new(count: usize) -> Self {
        let mut channels = Channels {
            pair: Pair::new(WINDOW),
            open: Vec::new(),
        };
        for _ in 0..count {
            let stream = channels
                .pair
                .client
                .connect("websocket", EVENTS, &[VERSION]);
            channels.pair.pump();
            assert_eq!(channels.pair.status(stream), Some(200));
            let id = *channels.pair.rig.server.ids.open.last().unwrap();
            channels.open.push(Channel {
                stream,
                id,
                read: 0,
            });
        }
        channels
    }

    fn id(&self, channel: usize) -> ExchangeId {
        self.open[channel].id
    }

    /// Sends bytes on a channel.
    fn send(&mut self, channel: usize, bytes: &[u8]) {
        let stream = self.open[channel].stream;
        self.pair.client.send(stream, bytes);
        self.pair.pump();
    }

    /// The frames that came on a channel since this was last called.
    fn frames(&mut self, channel: usize) -> Vec<ReceivedFrame> {
        let Channel { stream, read, .. } = &mut self.open[channel];
        let body = &self.pair.client.exchanges[*stream].body;
        let frames = frames_in(&body[*read..]);
        *read = body.len();
        frames
    }

    /// Sends a message, and returns those that come for it.
    fn ask(&mut self, channel: usize, message: &str) -> Vec<Value> {
        self.send(channel, &text(message));
        let frames = self.frames(channel);
        frames.iter().map(ReceivedFrame::json).collect()
    }

    fn set_takes(&mut self, channel: usize, takes: bool) {
        let stream = self.open[channel].stream;
        self.pair.client.exchanges[stream].takes = takes;
        self.pair.pump();
    }

    fn end_side(&mut self, channel: usize) {
        self.pair.client.end(self.open[channel].stream);
        self.pair.pump();
    }

    /// How the server has ended the stream of a channel.
    fn end_of(&self, channel: usize) -> Option<Result<(), Option<Reason>>> {
        self.pair.client.exchanges[self.open[channel].stream].ended
    }

    fn append(&mut self, channel: usize, id: u64, bytes: usize) -> Vec<Value> {
        self.ask(channel, &append(id, bytes))
    }

    /// Asserts that the connection answers requests.
    fn goes_on(&mut self) {
        let read = self.pair.get(BODY);
        assert_eq!(self.pair.status(read), Some(200));
        assert!(self.pair.is_complete(read));
    }
}

fn append(id: u64, bytes: usize) -> String {
    let data = "y".repeat(bytes);
    format!(r#"{{"type":"append","id":{id},"stream":"a","text":"{data}"}}"#)
}

#[test]
fn a_channel_is_opened_with_200_and_carries_messages_beside_requests() {
    let mut pair = Pair::new(WINDOW);
    let fields = [VERSION, ("sec-websocket-protocol", "other, encke.v1")];
    let stream = pair.client.connect("WebSocket", EVENTS, &fields);
    pair.pump();
    assert_eq!(pair.status(stream), Some(200));
    let fields = &pair.client.exchanges[stream].fields;
    assert_eq!(fields["sec-websocket-protocol"], "encke.v1");
    for none in ["sec-websocket-accept", "upgrade", "content-length"] {
        assert!(!fields.contains_key(none), "{none}");
    }
    pair.client.send(stream, &text(&append(1, 3)));
    pair.pump();
    let frames = frames_in(&pair.client.exchanges[stream].body);
    assert_eq!(frames[0].json()["type"], "appended");
    let read = pair.get(BODY);
    assert_eq!(pair.text(read), "xyyy");
    assert_eq!(pair.client.exchanges[stream].ended, None);
    assert_eq!(pair.rig.held_bytes(), 0, "an idle channel holds nothing");
}

#[test]
fn what_is_no_handshake_is_refused_and_closes_its_stream_only() {
    let mut pair = Pair::new(WINDOW);
    let old = ("sec-websocket-version", "8");
    let foreign = ("origin", "https://evil.example");
    for (protocol, path, fields, status, code) in [
        ("websocket", EVENTS, vec![], 400, "websocket_version"),
        ("websocket", EVENTS, vec![old], 400, "websocket_version"),
        (
            "connect-udp",
            EVENTS,
            vec![VERSION],
            501,
            "unknown_protocol",
        ),
        (
            "websocket",
            "/v1/stream/a",
            vec![VERSION],
            400,
            "no_websocket",
        ),
        ("websocket", EVENTS, vec![VERSION, foreign], 403, "origin"),
        (
            "websocket",
            EVENTS,
            vec![VERSION, ("host", "b")],
            400,
            "host",
        ),
    ] {
        let stream = pair.client.connect(protocol, path, &fields);
        pair.pump();
        assert_eq!(pair.status(stream), Some(status), "{code}");
        assert!(pair.text(stream).contains(code), "{}", pair.text(stream));
        assert!(pair.is_complete(stream), "{code}");
    }
    let get = pair.client.request("GET", EVENTS, &[VERSION], b"");
    let tunnel = http::Request::connect("a:443").body(()).unwrap();
    let tunnel = pair.client.begin(tunnel, false);
    pair.pump();
    for (stream, code) in [(get, "websocket_extended_connect"), (tunnel, "bad_target")] {
        assert_eq!(pair.status(stream), Some(400), "{code}");
        assert!(pair.text(stream).contains(code), "{}", pair.text(stream));
    }
    let read = pair.get(BODY);
    assert_eq!(pair.text(read), "x");
    assert_eq!(pair.rig.server.counts.http2_streams, 0);
    assert_eq!(pair.rig.held_bytes(), 0);
}

#[test]
fn messages_are_compressed_where_both_want_it() {
    let settings = NetSettings {
        websocket_inflated_bytes_max: 1000,
        ..NetSettings::default()
    };
    let mut rig = Rig::with(settings);
    create(&mut rig, "x");
    let mut pair = Pair::of(rig.reconnect(), WINDOW);
    let offer = ("sec-websocket-extensions", "permessage-deflate");
    let stream = pair.client.connect("websocket", EVENTS, &[VERSION, offer]);
    pair.pump();
    let agreed = &pair.client.exchanges[stream].fields["sec-websocket-extensions"];
    let agreed = agreed.to_str().unwrap();
    assert!(agreed.starts_with("permessage-deflate; "), "{agreed}");
    let message = deflate(append(1, 100).as_bytes()).expect("it becomes shorter");
    pair.client.send(stream, &frame(0xc1, &message));
    pair.pump();
    let frames = frames_in(&pair.client.exchanges[stream].body);
    assert_eq!(frames[0].json()["type"], "appended");
}

#[test]
fn the_subscription_of_the_url_comes_first() {
    let mut pair = Pair::new(WINDOW);
    let path = "/v1/stream/a?offset=-1&live=websocket";
    let stream = pair.client.connect("websocket", path, &[VERSION]);
    pair.pump();
    let frames = frames_in(&pair.client.exchanges[stream].body);
    assert_eq!(frames[0].json()["type"], "subscribed");
}

#[test]
fn what_arrives_before_the_handshake_is_answered_is_not_lost() {
    let mut pair = Pair::new(WINDOW);
    let stream = pair.client.connect("websocket", EVENTS, &[VERSION]);
    pair.client.send(stream, &text(&append(1, 3)));
    pair.pump();
    let frames = frames_in(&pair.client.exchanges[stream].body);
    assert_eq!(frames[0].json()["type"], "appended");
}

#[test]
fn messages_are_found_wherever_data_frames_split_them() {
    let mut channels = Channels::new(1);
    let bytes = [text(&append(1, 3)), frame(PING, b"p"), text(&append(2, 3))].concat();
    for at in 1..bytes.len() {
        channels.send(0, &bytes[..at]);
        channels.send(0, &bytes[at..]);
        let frames = channels.frames(0);
        let pongs = frames.iter().filter(|frame| frame.first == PONG).count();
        assert_eq!((frames.len(), pongs), (3, 1), "split at {at}");
    }
    assert_eq!(channels.pair.rig.held_bytes(), 0);
}

#[test]
fn a_client_that_does_not_read_a_channel_blocks_that_one_only() {
    let mut channels = Channels::new(3);
    channels.set_takes(0, false);
    let ping = frame(PING, &[b'p'; 125]);
    // Each is answered until the window of the stream is closed; the rest waits, and the client's window fills.
    let pings = ping.repeat(400 * 1024 / ping.len());
    channels.send(0, &pings);
    let id = channels.id(0);
    let connection = channels.pair.rig.connection.as_ref().unwrap();
    assert!(connection.is_blocked(id));
    assert!(!connection.is_blocked(channels.id(1)));
    for channel in [1, 2] {
        let appended = channels.append(channel, 5, 100 << 10);
        assert_eq!(appended[0]["id"], 5);
    }
    let held = channels.pair.rig.held_bytes();
    assert!(held > 100 << 10 && held < 900 << 10, "{held}");
    channels.goes_on();
    channels.set_takes(0, true);
    let answered = channels.frames(0);
    assert_eq!(answered.len(), 400 * 1024 / ping.len());
    assert!(answered.iter().all(|frame| frame.first == PONG));
    assert_eq!(channels.pair.rig.held_bytes(), 0);
}

#[test]
fn channels_that_are_not_looked_at_leave_the_window_of_the_connection_to_others() {
    let count = 8;
    let mut channels = Channels::new(count + 1);
    // Each has as many appends under way as it may, so that the rest of what comes waits.
    channels.pair.rig.held = true;
    for channel in 0..count {
        for id in 0..40 {
            channels.send(channel, &text(&append(id, 16 << 10)));
        }
    }
    let held = channels.pair.rig.held_bytes();
    assert!(held >= count * (256 << 10), "{held}");
    channels.send(count, &frame(PING, b"still here"));
    assert_eq!(channels.frames(count).len(), 1);
    let body = vec![b'z'; 600 << 10];
    let long = channels.pair.append(&body);
    assert_eq!(channels.pair.status(long), None);
    channels.pair.rig.release();
    channels.pair.pump();
    assert_eq!(channels.pair.status(long), Some(204));
    for channel in 0..count {
        assert_eq!(channels.frames(channel).len(), 40);
    }
    assert_eq!(channels.pair.rig.held_bytes(), 0);
}

#[test]
fn what_waits_in_a_channel_is_bounded_by_its_window() {
    let mut channels = Channels::new(1);
    channels.pair.rig.held = true;
    for id in 0..400 {
        channels.send(0, &text(&append(id, 16 << 10)));
    }
    let held = channels.pair.rig.held_bytes();
    assert!(held < 1 << 20, "{held} of 6.4 MB");
    channels.pair.rig.release();
    channels.pair.pump();
    assert_eq!(channels.frames(0).len(), 400);
}

#[test]
fn feeds_write_into_the_stream_of_their_channel() {
    let mut channels = Channels::new(2);
    let subscribed = channels.ask(0, SUBSCRIBE);
    assert_eq!(subscribed[0]["type"], "subscribed");
    let feed = channels.pair.subscriber();
    let id = channels.id(0);
    channels.set_takes(0, false);
    let records = text(&"r".repeat(100_000));
    let sent = channels.pair.send(id, &records, Offset::START);
    assert!(sent < records.len() && sent > 0, "{sent}");
    channels.set_takes(0, true);
    let is_deliver = |effect: &ConnectionEffect| matches!(effect, ConnectionEffect::Deliver(of, None) if *of == feed);
    assert_eq!(channels.pair.rig.count_noted(is_deliver), 1);
    let stream = channels.open[0].stream;
    let body = &channels.pair.client.exchanges[stream].body;
    assert!(body.ends_with(&records));
    // The feed ends, and the channel goes on.
    channels.open[0].read = body.len();
    let reason = CloseReason::Ended;
    channels.pair.rig.on(Event::Fail(feed, reason));
    assert_eq!(channels.pair.rig.ended, [(feed, reason)]);
    assert_eq!(channels.append(0, 2, 3)[0]["id"], 2);
    channels.goes_on();
}

#[test]
fn a_feed_that_is_dismissed_leaves_its_channel_open() {
    let mut channels = Channels::new(1);
    channels.ask(0, SUBSCRIBE);
    let feed = channels.pair.subscriber();
    let farewell = [0x81, 2, b'{', b'}'];
    let reason = CloseReason::NoLongerKept;
    channels
        .pair
        .rig
        .act(|connection, cx| connection.dismiss(feed, &farewell, reason, cx));
    channels.pair.pump();
    assert_eq!(channels.frames(0)[0].payload, b"{}");
    assert_eq!(channels.pair.rig.ended, [(feed, reason)]);
    assert_eq!(channels.append(0, 2, 3)[0]["id"], 2);
}

#[test]
fn a_close_frame_is_answered_and_ends_the_stream() {
    let mut channels = Channels::new(2);
    channels.ask(0, SUBSCRIBE);
    let feed = channels.pair.subscriber();
    let close = frame(CLOSE, &1000_u16.to_be_bytes());
    channels.send(0, &[close, text(&append(1, 3))].concat());
    assert_eq!(channels.frames(0)[0].close_code(), Some(1000));
    assert_eq!(channels.end_of(0), Some(Ok(())));
    assert_eq!(channels.pair.rig.ended, [(feed, CloseReason::HangUp)]);
    channels.end_side(0);
    let id = channels.id(0);
    assert_eq!(
        channels.pair.rig.ended.last(),
        Some(&(id, CloseReason::HangUp))
    );
    assert_eq!(channels.append(1, 2, 3)[0]["id"], 2);
    assert_eq!(channels.pair.rig.server.counts.http2_streams, 1);
}

#[test]
fn a_client_that_leaves_its_side_open_has_a_moment_to_end_it() {
    let mut channels = Channels::new(1);
    channels.send(0, &frame(0x83, b"no such opcode"));
    assert_eq!(channels.frames(0)[0].close_code(), Some(1002));
    assert_eq!(channels.end_of(0), Some(Ok(())));
    // What it still sends means nothing, and is taken.
    for _ in 0..40 {
        channels.send(0, &text(&append(1, 16 << 10)));
    }
    assert_eq!(channels.pair.rig.held_bytes(), 0);
    assert_eq!(channels.pair.rig.ended, []);
    channels.pair.rig.pass(Duration::from_secs(2));
    channels.pair.pump();
    let ended = [(channels.id(0), CloseReason::WebSocketViolation)];
    assert_eq!(channels.pair.rig.ended, ended);
    channels.goes_on();
}

#[test]
fn a_close_frame_waits_for_the_window() {
    let mut channels = Channels::new(1);
    channels.set_takes(0, false);
    channels.send(0, &frame(PING, &[b'p'; 125]).repeat(1000));
    let id = channels.id(0);
    let end = CallerEnd::Revoked;
    channels
        .pair
        .rig
        .act(|connection, cx| connection.end_caller(id, end, cx));
    channels.pair.pump();
    assert_eq!(channels.end_of(0), None);
    channels.set_takes(0, true);
    let frames = channels.frames(0);
    let [.., told, close] = &frames[..] else {
        panic!("{frames:?}");
    };
    assert_eq!(told.json()["code"], "credentials_ended");
    assert_eq!(close.close_code(), Some(4403));
    assert_eq!(channels.end_of(0), Some(Ok(())));
}

#[test]
fn a_client_that_has_ended_its_side_gets_a_close_frame_that_waited() {
    let mut channels = Channels::new(1);
    channels.set_takes(0, false);
    channels.send(0, &frame(PING, &[b'p'; 125]).repeat(1000));
    let id = channels.id(0);
    let end = CallerEnd::Expired;
    channels
        .pair
        .rig
        .act(|connection, cx| connection.end_caller(id, end, cx));
    channels.end_side(0);
    assert_eq!(channels.pair.rig.ended, []);
    channels.set_takes(0, true);
    assert_eq!(channels.frames(0).last().unwrap().close_code(), Some(4401));
    assert_eq!(channels.end_of(0), Some(Ok(())));
    assert_eq!(channels.pair.rig.ended, [(id, CloseReason::Expired)]);
}

#[test]
fn messages_of_a_turn_go_out_in_one_frame() {
    let mut channels = Channels::new(1);
    channels.pair.rig.held = true;
    let appends: Vec<u8> = (0..200).flat_map(|id| text(&append(id, 3))).collect();
    channels.send(0, &appends);
    let before = channels.pair.rig.taken.len();
    channels.pair.rig.release();
    // The head of a frame of data, of all of it or as much as every client takes in one.
    let frames = &channels.pair.rig.taken[before..];
    let bytes = u32::from_be_bytes([0, frames[0], frames[1], frames[2]]);
    assert_eq!(frames[3], 0);
    assert!(bytes > 15 << 10, "{bytes}");
    channels.pair.pump();
    assert_eq!(channels.frames(0).len(), 200);
}

#[test]
fn a_client_that_ends_its_side_or_resets_the_stream_hangs_up() {
    let mut channels = Channels::new(2);
    channels.ask(0, SUBSCRIBE);
    let feed = channels.pair.subscriber();
    let id = channels.id(0);
    channels.end_side(0);
    let ended = [(feed, CloseReason::HangUp), (id, CloseReason::HangUp)];
    assert_eq!(channels.pair.rig.ended, ended);
    assert_eq!(channels.end_of(0), Some(Ok(())), "the other side ends too");
    channels.pair.rig.held = true;
    channels.append(1, 1, 3);
    let stream = channels.open[1].stream;
    channels.pair.client.reset(stream);
    channels.pair.pump();
    let id = channels.id(1);
    assert_eq!(
        channels.pair.rig.ended.last(),
        Some(&(id, CloseReason::HangUp))
    );
    channels.pair.rig.release();
    assert_eq!(channels.pair.rig.server.ids.open, []);
    channels.goes_on();
}

#[test]
fn a_quiet_client_is_asked_once_and_then_closed() {
    let mut channels = Channels::new(2);
    let (quiet, other) = (channels.id(0), channels.id(1));
    channels.pair.rig.on(Event::Quiet(quiet));
    channels.pair.pump();
    assert_eq!(channels.frames(0)[0].first, PING);
    channels.send(0, &frame(PONG, b""));
    for id in [quiet, quiet, other] {
        channels.pair.rig.on(Event::Quiet(id));
    }
    channels.pair.pump();
    let frames = channels.frames(0);
    assert_eq!(
        (frames[0].first, frames[1].close_code()),
        (PING, Some(4408))
    );
    assert_eq!(channels.frames(1)[0].first, PING);
    assert_eq!(channels.end_of(1), None);
}

#[test]
fn a_stop_closes_channels_and_then_the_connection() {
    let mut channels = Channels::new(2);
    channels.ask(0, SUBSCRIBE);
    channels.pair.rig.server.stopping = true;
    channels.pair.rig.on(Event::Stopping);
    channels.pair.pump();
    for channel in [0, 1] {
        assert_eq!(channels.frames(channel)[0].close_code(), Some(1001));
        assert_eq!(channels.end_of(channel), Some(Ok(())));
        channels.end_side(channel);
    }
    assert!(channels.pair.rig.lingers || channels.pair.rig.closed.is_some());
    assert_eq!(channels.pair.rig.server.ids.open, []);
    assert_eq!(channels.pair.rig.held_bytes(), 0);
}

#[test]
fn a_node_without_its_fleet_closes_channels() {
    let mut channels = Channels::new(1);
    channels.pair.rig.on(Event::OutOfFleet);
    channels.pair.pump();
    assert_eq!(channels.frames(0)[0].close_code(), Some(4503));
    assert_eq!(channels.end_of(0), Some(Ok(())));
}

#[test]
fn a_channel_that_holds_the_most_memory_is_reset() {
    let mut channels = Channels::new(2);
    channels.pair.rig.held = true;
    channels.append(0, 1, 100 << 10);
    let id = channels.id(0);
    channels.pair.rig.on(Event::Shed(id));
    channels.pair.pump();
    assert_eq!(channels.end_of(0), Some(Err(Some(Reason::INTERNAL_ERROR))));
    assert_eq!(channels.pair.rig.held_bytes(), 0);
    channels.pair.rig.release();
    assert_eq!(channels.append(1, 2, 3)[0]["id"], 2);
}

#[test]
fn a_channel_whose_client_takes_nothing_is_reset_in_time() {
    let mut channels = Channels::new(2);
    channels.set_takes(0, false);
    channels.send(0, &frame(PING, &[b'p'; 125]).repeat(1000));
    let stall = channels.pair.rig.server.settings.stall_timeout;
    channels.pair.rig.pass(stall);
    channels.pair.pump();
    let ended = [(channels.id(0), CloseReason::Stalled)];
    assert_eq!(channels.pair.rig.ended, ended);
    assert_eq!(channels.append(1, 2, 3)[0]["id"], 2);
}

#[test]
fn a_client_that_does_not_say_who_it_is_has_a_bounded_time() {
    let access = Access::from_config(&AccessConfig::default(), &|_| Ok(Vec::new())).unwrap();
    let gate = Gate {
        access: Policy::Controlled(Arc::new(access)),
        ..Gate::default()
    };
    let server = TestServer::behind(gate, NetSettings::default());
    let timeout = server.settings.request_timeout;
    let mut pair = Pair::of(Rig::of(server, ConnectionFacts::default()), WINDOW);
    let without = pair.client.connect("websocket", EVENTS, &[VERSION]);
    let offer = [VERSION, ("sec-websocket-protocol", "encke.v1")];
    let streams = [(); 2].map(|()| pair.client.connect("websocket", EVENTS, &offer));
    pair.pump();
    assert_eq!(pair.status(without), Some(401));
    // That it takes nothing for a while gives it no more time.
    pair.client.exchanges[streams[0]].takes = false;
    let pings = frame(PING, &[b'p'; 125]).repeat(1000);
    pair.client.send(streams[0], &pings);
    pair.pump();
    pair.client.exchanges[streams[0]].takes = true;
    pair.pump();
    pair.rig.pass(timeout);
    pair.pump();
    for stream in streams {
        assert_eq!(pair.status(stream), Some(200));
        let frames = frames_in(&pair.client.exchanges[stream].body);
        assert_eq!(frames.last().unwrap().close_code(), Some(4408));
        assert!(pair.is_complete(stream));
    }
    assert_eq!(pair.rig.closed, None);
}

#[test]
fn nothing_is_left_of_channels_when_their_connection_closes() {
    let mut channels = Channels::new(2);
    channels.ask(0, SUBSCRIBE);
    channels.pair.rig.held = true;
    channels.append(1, 1, 100);
    channels.pair.rig.close(CloseReason::HangUp);
    assert_eq!(channels.pair.rig.ended.len(), 4);
    assert!(channels.pair.rig.ended.iter().all(|(id, _)| *id != ID));
    assert_eq!(channels.pair.rig.server.ids.open, []);
    assert_eq!(channels.pair.rig.server.counts.http2_streams, 0);
    assert_eq!(channels.pair.rig.held_bytes(), 0);
}

#[test]
fn a_channel_is_no_idle_connection() {
    let mut channels = Channels::new(1);
    channels.pair.rig.pass(Duration::from_hours(1));
    channels.pair.rig.on(Event::Swept(Duration::from_secs(60)));
    assert_eq!(channels.pair.rig.closed, None);
    assert_eq!(channels.append(0, 1, 3)[0]["id"], 1);
}
