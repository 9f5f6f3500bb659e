//! Calls of webhooks over real sockets.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.

mod receiver;
mod rig;
mod tls;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use encke_clock::Now;
use encke_subscriptions::{DeliveryResult, RESPONSE_BYTES_MAX, ResolveNames, SystemNames};
use receiver::{Reaction, Received, receiver, response};
use rig::{FixedNames, LONG, Rig, failure, notice};

#[test]
fn a_call_is_a_signed_post() {
    let (address, received) = receiver(|| Reaction::Send(response("200 OK", r#"{"done":true}"#)));
    let rig = Rig::new();
    assert_eq!(
        rig.call(&format!("http://{address}/hook?x=1")),
        DeliveryResult::Done
    );
    let call = received.recv().unwrap();
    assert!(
        call.head.starts_with("POST /hook?x=1 HTTP/1.1\r\n"),
        "{}",
        call.head
    );
    assert_eq!(call.field("host"), address.to_string());
    assert_eq!(call.field("content-type"), "application/json");
    let at = Now::from_ms(1_700_000_000_000).wall;
    let signed = rig.key.sign(at, |bytes| notice().write_body(bytes));
    assert_eq!(call.body, signed.body());
    assert_eq!(call.field("webhook-signature"), signed.field());
    // The connection is not kept.
    call.closed.recv().unwrap();
}

#[test]
fn responses_say_what_has_happened() {
    let huge_head = format!(
        "HTTP/1.1 200 OK\r\nX: {}\r\n\r\n",
        "x".repeat(RESPONSE_BYTES_MAX)
    );
    let most = format!(
        r#"{{"done":true,"x":"{}"}}"#,
        "x".repeat(RESPONSE_BYTES_MAX - 20)
    );
    assert!(most.len() <= RESPONSE_BYTES_MAX);
    let more = format!(
        r#"{{"done":true,"x":"{}"}}"#,
        "x".repeat(RESPONSE_BYTES_MAX)
    );
    for (bytes, expected) in [
        (
            response("200 OK", r#"{"done":true}"#),
            Some(DeliveryResult::Done),
        ),
        (
            response("202 Accepted", r#"{"done":true}"#),
            Some(DeliveryResult::Done),
        ),
        (response("200 OK", "{}"), Some(DeliveryResult::Accepted)),
        (
            response("200 OK", "not JSON"),
            Some(DeliveryResult::Accepted),
        ),
        (
            b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(),
            Some(DeliveryResult::Accepted),
        ),
        (response("200 OK", &most), Some(DeliveryResult::Done)),
        // Nobody reads a word out of that much.
        (response("200 OK", &more), Some(DeliveryResult::Accepted)),
        (response("400 Bad Request", r#"{"done":true}"#), None),
        (response("500 No", ""), None),
        (huge_head.into_bytes(), None),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"done\":true}".to_vec(),
            None,
        ),
        (b"garbage\r\n\r\n".to_vec(), None),
        (Vec::new(), None),
    ] {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        let (address, _received) = receiver(move || Reaction::SendAndClose(bytes.clone()));
        let result = Rig::new().call(&format!("http://{address}/"));
        match expected {
            Some(expected) => assert_eq!(result, expected, "{shown:?}"),
            None => drop(failure(result)),
        }
    }
}

#[test]
fn a_response_without_end_is_not_read_to_its_end() {
    let begin = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000)).into_bytes();
    let (address, _received) =
        receiver(move || Reaction::SendForEver(begin.clone(), chunk.clone()));
    let result = Rig::new().call(&format!("http://{address}/"));
    assert_eq!(result, DeliveryResult::Accepted);
}

#[test]
fn redirects_are_not_followed() {
    let (other, elsewhere) = receiver(|| Reaction::Send(response("200 OK", r#"{"done":true}"#)));
    for status in [
        "301 Moved",
        "302 Found",
        "303 See Other",
        "307 Temporary",
        "308 Permanent",
    ] {
        let (address, received) = receiver(move || {
            let head = format!(
                "HTTP/1.1 {status}\r\nLocation: http://{other}/\r\nContent-Length: 0\r\n\r\n"
            );
            Reaction::Send(head.into_bytes())
        });
        let reason = failure(Rig::new().call(&format!("http://{address}/")));
        assert!(reason.contains(&status[..3]), "{reason}");
        received.recv().unwrap();
    }
    assert!(elsewhere.try_recv().is_err(), "a redirect was followed");
}

/// A listener that nobody may connect to.
fn forbidden() -> (SocketAddr, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    (listener.local_addr().unwrap(), listener)
}

#[test]
fn a_name_that_leads_to_a_private_address_is_refused() {
    let (address, listener) = forbidden();
    let names = || FixedNames::one("hook.example", &[address]);
    let scheme_and_networks: [(&str, &[&str]); 3] = [
        ("https", &[]),
        ("https", &["10.0.0.0/8"]),
        // Without TLS only listed networks may be called.
        ("http", &["10.0.0.0/8"]),
    ];
    for (scheme, networks) in scheme_and_networks {
        let rig = Rig::with(1, networks, names());
        let reason = failure(rig.call(&format!("{scheme}://hook.example/")));
        assert!(reason.contains("not public"), "{reason}");
    }
    // An address in the URL takes the same way.
    let rig = Rig::with(1, &[], Arc::new(SystemNames::default()));
    for url in [
        format!("http://{address}/"),
        format!("https://{address}/"),
        format!("https://[::ffff:127.0.0.1]:{}/", address.port()),
        format!("https://2130706433:{}/", address.port()),
    ] {
        failure(rig.call(&url));
    }
    let refused = listener.accept().unwrap_err();
    assert_eq!(
        refused.kind(),
        io::ErrorKind::WouldBlock,
        "there was a connection"
    );
}

#[test]
fn only_checked_addresses_are_connected_to() {
    let (private, listener) = forbidden();
    let (address, received) = receiver(|| Reaction::Send(response("200 OK", "{}")));
    let listed = SocketAddr::new([127, 0, 0, 1].into(), address.port());
    // Not listed: it is another address of this machine.
    let private = SocketAddr::new([127, 0, 0, 2].into(), private.port());
    let names = FixedNames::one("hook.example", &[private, listed]);
    let rig = Rig::with(1, &["127.0.0.1/32"], names);
    let result = rig.call("http://hook.example/");
    assert_eq!(result, DeliveryResult::Accepted);
    assert_eq!(received.recv().unwrap().field("host"), "hook.example");
    assert!(listener.accept().is_err());
}

#[test]
fn a_name_that_is_not_found_is_a_failure() {
    let rig = Rig::with(1, &[], Arc::new(FixedNames::default()));
    failure(rig.call("https://hook.example/"));
    let none = FixedNames::one("hook.example", &[]);
    failure(Rig::with(1, &[], none).call("https://hook.example/"));
}

#[test]
fn a_receiver_that_does_not_respond_delays_no_other() {
    let (silent, asked) = receiver(|| Reaction::Wait);
    let (good, _received) = receiver(|| Reaction::Send(response("200 OK", "{}")));
    let rig = Rig::new();
    let slow = rig.begin(&format!("http://{silent}/"), LONG);
    asked.recv().unwrap();
    for _ in 0..20 {
        let quick = rig.begin(&format!("http://{good}/"), LONG);
        assert_eq!(
            rig.results.recv().unwrap(),
            (quick, DeliveryResult::Accepted)
        );
    }
    assert_eq!(rig.deliverer.calls(), 1);
    assert!(rig.deliverer.stop(LONG));
    assert!(rig.results.recv().is_err(), "{slow} was reported");
}

#[test]
fn a_call_ends_with_its_timeout() {
    let (silent, asked) = receiver(|| Reaction::Wait);
    let rig = Rig::new();
    let number = rig.begin(&format!("http://{silent}/"), Duration::from_millis(200));
    let (reported, result) = rig.results.recv().unwrap();
    assert_eq!(reported, number);
    failure(result);
    // The connection is closed, so that the receiver knows.
    asked.recv().unwrap().closed.recv().unwrap();
    // A body that never ends takes no longer.
    let begin = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{".to_vec();
    let (address, _received) = receiver(move || Reaction::Send(begin.clone()));
    rig.begin(&format!("http://{address}/"), Duration::from_millis(200));
    failure(rig.results.recv().unwrap().1);
}

#[test]
fn there_are_no_more_calls_than_threads() {
    let (silent, asked) = receiver(|| Reaction::Wait);
    let rig = Rig::with(3, &["127.0.0.0/8"], Arc::new(SystemNames::default()));
    for _ in 0..3 {
        rig.begin(&format!("http://{silent}/"), LONG);
    }
    let last = rig.begin(&format!("http://{silent}/"), LONG);
    let (reported, result) = rig.results.recv().unwrap();
    assert_eq!(reported, last);
    assert!(failure(result).contains("too many"));
    let calls: Vec<Received> = (0..3).map(|_| asked.recv().unwrap()).collect();
    assert_eq!(rig.deliverer.calls(), 3);
    // Stopped, they end at once, and nothing is reported.
    assert!(rig.deliverer.stop(LONG));
    assert!(rig.results.recv().is_err());
    for call in calls {
        call.closed.recv().unwrap();
    }
}

#[test]
fn a_result_makes_room_for_the_next_call() {
    let (address, _received) = receiver(|| Reaction::Send(response("200 OK", "{}")));
    let rig = Rig::with(1, &["127.0.0.0/8"], Arc::new(SystemNames::default()));
    for _ in 0..200 {
        let result = rig.call(&format!("http://{address}/"));
        assert_eq!(result, DeliveryResult::Accepted);
    }
}

#[test]
fn threads_are_used_again() {
    let (address, _received) = receiver(|| Reaction::Send(response("200 OK", "{}")));
    let rig = Rig::with(2, &["127.0.0.0/8"], Arc::new(SystemNames::default()));
    for _ in 0..50 {
        assert_eq!(
            rig.call(&format!("http://{address}/")),
            DeliveryResult::Accepted
        );
    }
    assert!(rig.deliverer.stop(LONG));
}

/// A name server that does not respond until it is stopped.
#[derive(Debug)]
struct SilentNames {
    asked: std::sync::Mutex<mpsc::Sender<()>>,
    stopped: (std::sync::Mutex<bool>, std::sync::Condvar),
}

impl ResolveNames for SilentNames {
    fn resolve(&self, _: &str, _: Duration) -> io::Result<Vec<SocketAddr>> {
        self.asked.lock().unwrap().send(()).unwrap();
        let stopped = self.stopped.0.lock().unwrap();
        let _stopped = self
            .stopped
            .1
            .wait_while(stopped, |stopped| !*stopped)
            .unwrap();
        Err(io::Error::other("stopped"))
    }

    fn stop(&self) {
        *self.stopped.0.lock().unwrap() = true;
        self.stopped.1.notify_all();
    }
}

#[test]
fn look_ups_end_with_the_deliverer() {
    let (sender, asked) = mpsc::channel();
    let names = Arc::new(SilentNames {
        asked: std::sync::Mutex::new(sender),
        stopped: Default::default(),
    });
    let rig = Rig::with(1, &[], names);
    rig.begin("https://hook.example/", LONG);
    asked.recv().unwrap();
    assert!(rig.deliverer.stop(LONG));
}

#[test]
fn a_dropped_deliverer_lets_go_of_everything() {
    let rig = Rig::new();
    let Rig {
        deliverer, results, ..
    } = rig;
    drop(deliverer);
    assert!(results.recv().is_err());
}
