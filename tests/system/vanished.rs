//! Clients that vanish without a word: no packet of theirs arrives any more. Each test has a network of its own, which needs root.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::rig::http2::*;
use crate::rig::{Encke, eventually, path, request};

/// A network with a loopback interface only, which the thread that made it is in, and the processes that it starts.
struct OwnNetwork {
    /// Keeps it, until this is dropped.
    holder: Child,
    before: File,
}

impl OwnNetwork {
    /// `None`: this user may not have one.
    fn enter() -> Option<OwnNetwork> {
        let before = File::open("/proc/thread-self/ns/net").ok()?;
        let own = std::fs::read_link("/proc/thread-self/ns/net").ok()?;
        let mut holder = Command::new("unshare");
        holder.args(["--net", "sleep", "600"]).stderr(Stdio::null());
        let mut holder = holder.spawn().ok()?;
        let namespace = format!("/proc/{}/ns/net", holder.id());
        let is_own = || std::fs::read_link(&namespace).is_ok_and(|its| its != own);
        eventually("there is a network, or none is allowed", || {
            is_own() || holder.try_wait().is_ok_and(|ended| ended.is_some())
        });
        let entered = File::open(&namespace).is_ok_and(|namespace| {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).is_ok()
        });
        let network = OwnNetwork { holder, before };
        if !entered {
            return None;
        }
        ip("link set lo up");
        // The rules for addresses of this machine come first; those that drop packets shall come before.
        ip("rule add pref 100 lookup local");
        ip("rule del pref 0 lookup local");
        Some(network)
    }

    /// Drops all packets from an address.
    fn cut(&self, from: &str) {
        ip(&format!("rule add pref 10 from {from} blackhole"));
    }
}

impl Drop for OwnNetwork {
    fn drop(&mut self) {
        let _ = move_into_link_name_space(self.before.as_fd(), Some(LinkNameSpaceType::Network));
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.expect("the package iproute2 is installed");
    assert!(output.status.success(), "ip {arguments}: {output:?}");
}

#[test]
fn a_subscriber_that_vanishes_is_gone_after_some_heartbeats() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let network = OwnNetwork::enter().expect("root may have a network");
    let flags = ["heartbeat=1s", "stall-timeout=1s"];
    let flags: Vec<&str> = flags.iter().flat_map(|flag| ["--tuning", flag]).collect();
    let encke = Encke::start(&flags);
    encke.create("s");
    let live = format!("{}?offset=-1&live=sse", path("s"));
    let mut plain = encke.connect_from(9);
    plain.send(&request("GET", &live, &[], b""));
    assert_eq!(plain.head().status, 200);
    let mut http2 = Http2Client::over(encke.connect_from(9).socket, b"", &[]);
    http2.send(&Frame::get(1, &live));
    http2.until(HEADERS);
    let mut there = encke.connect_from(7);
    there.send(&request("GET", &live, &[], b""));
    assert_eq!(there.head().status, 200);
    encke.wait_for_metric("encke_subscribers", 3.0);
    network.cut("127.0.0.9");
    eventually("those that vanished are gone", || {
        let closed = encke.metric("encke_connections_closed_total", "reason=\"vanished\"");
        assert_eq!(
            encke.metric("encke_connections_closed_total", "reason=\"stalled\""),
            0.0
        );
        closed == 2.0
    });
    encke.wait_for_metric("encke_subscribers", 1.0);
}

#[test]
fn a_worker_that_comes_back_takes_the_place_of_the_connection_that_vanished() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let network = OwnNetwork::enter().expect("root may have a network");
    let encke = Encke::start(&[]);
    let put = |target: &str, body: &[u8]| encke.ask("PUT", target, &[], body).status;
    assert_eq!(put("/v1/pool/p", br#"{"type":"hash"}"#), 201);
    let work = request("POST", "/v1/pool/p/work?worker=anna", &[], b"");
    let mut before = encke.connect_from(9);
    before.send(&work);
    assert_eq!(before.head().status, 200);
    network.cut("127.0.0.9");
    let posted = encke.ask("POST", "/v1/pool/p?key=k", &[], b"picture");
    assert_eq!(posted.status, 202, "{posted:?}");
    // The kernel takes it; nobody gets it.
    eventually("the connection that vanished has the job", || {
        let shown = encke.ask("GET", "/v1/pool/p", &[], b"");
        String::from_utf8_lossy(&shown.body).contains("\"running\":1")
    });
    let mut after = encke.connect_from(7);
    after.send(&work);
    assert_eq!(after.head().status, 200);
    let job = std::iter::from_fn(|| after.event()).find(|event| event.contains("event: job"));
    // The attempt before counts if the job was on its way when its worker came back.
    let job = job.expect("the job comes again");
    assert!(
        ["\"attempt\":1", "\"attempt\":2"]
            .iter()
            .any(|attempt| job.contains(attempt)),
        "{job}"
    );
}
