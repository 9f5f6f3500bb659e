//! When requests go through a proxy: never because of the environment, and never to an address that was not checked.

#![allow(clippy::unwrap_used)] // A test and its parts may panic.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc;

use encke_client::{ClientRules, checked_client, client};
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// A server that takes every method, CONNECT too, and reports the first line of each request.
fn server() -> (SocketAddr, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let sender = sender.clone();
            std::thread::spawn(move || serve(connection.unwrap(), &sender));
        }
    });
    (address, lines)
}

fn serve(mut connection: TcpStream, sender: &mpsc::Sender<String>) {
    let reader = BufReader::new(connection.try_clone().unwrap());
    let mut head = Vec::new();
    for line in reader.lines().map_while(Result::ok) {
        if !line.is_empty() {
            head.push(line);
            continue;
        }
        let first = std::mem::take(&mut head).swap_remove(0);
        let response: &[u8] = match first.starts_with("CONNECT ") {
            true => b"HTTP/1.1 200 OK\r\n\r\n",
            false => b"HTTP/1.1 204 No Content\r\n\r\n",
        };
        sender.send(first).unwrap();
        connection.write_all(response).unwrap();
    }
}

fn rules(proxy: SocketAddr) -> ClientRules {
    ClientRules {
        proxy: Some(format!("http://{proxy}").parse().unwrap()),
        ..ClientRules::default()
    }
}

#[test]
fn the_proxy_of_the_settings_is_asked_for_names() {
    let (proxy, lines) = server();
    let agent = client(rules(proxy).config().build());
    let response = agent.get("http://keys.example/set").call().unwrap();
    assert_eq!(response.status(), 204);
    assert_eq!(lines.recv().unwrap(), "CONNECT keys.example:80 HTTP/1.1");
    assert_eq!(lines.recv().unwrap(), "GET /set HTTP/1.1");
}

#[test]
fn servers_on_loopback_are_reached_without_the_proxy() {
    let (proxy, asked) = server();
    let (address, lines) = server();
    let agent = client(rules(proxy).config().build());
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("http://{host}:{}/", address.port());
        assert_eq!(agent.get(url).call().unwrap().status(), 204);
        assert_eq!(lines.recv().unwrap(), "GET / HTTP/1.1");
    }
    assert!(asked.try_recv().is_err());
}

/// A resolver that knows one name and refuses all others.
#[derive(Debug)]
struct OneName;

impl Resolver for OneName {
    fn resolve(
        &self,
        uri: &Uri,
        _: &Config,
        _: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let mut found = self.empty();
        if uri.host() == Some("hook.example") {
            found.push("203.0.113.9:80".parse().unwrap());
        }
        match found.is_empty() {
            true => Err(ureq::Error::HostNotFound),
            false => Ok(found),
        }
    }
}

#[test]
fn the_proxy_gets_the_checked_address_and_no_name() {
    let (proxy, lines) = server();
    let agent = checked_client(rules(proxy).config().build(), OneName);
    let response = agent.get("http://hook.example/in").call().unwrap();
    assert_eq!(response.status(), 204);
    assert_eq!(lines.recv().unwrap(), "CONNECT 203.0.113.9:80 HTTP/1.1");
    assert_eq!(lines.recv().unwrap(), "GET /in HTTP/1.1");
    assert!(agent.get("http://other.example/").call().is_err());
    assert!(lines.try_recv().is_err());
}

#[test]
fn a_name_of_loopback_is_not_reached_through_the_proxy() {
    let (proxy, asked) = server();
    let (address, lines) = server();
    let agent = checked_client(rules(proxy).config().build(), Loopback(address));
    for host in ["hook.example", "[::ffff:127.0.0.1]"] {
        let response = agent.get(format!("http://{host}/in")).call().unwrap();
        assert_eq!(response.status(), 204);
        assert_eq!(lines.recv().unwrap(), "GET /in HTTP/1.1");
    }
    assert!(asked.try_recv().is_err());
}

/// Run by the test below, in a process with proxies in its environment.
#[test]
fn requests_without_a_proxy() {
    let (address, lines) = server();
    for agent in [
        client(ClientRules::default().config().build()),
        checked_client(ClientRules::default().config().build(), Loopback(address)),
    ] {
        let response = agent.get(format!("http://{address}/")).call().unwrap();
        assert_eq!(response.status(), 204);
        assert_eq!(lines.recv().unwrap(), "GET / HTTP/1.1");
    }
}

#[derive(Debug)]
struct Loopback(SocketAddr);

impl Resolver for Loopback {
    fn resolve(
        &self,
        _: &Uri,
        _: &Config,
        _: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let mut found = self.empty();
        found.push(self.0);
        Ok(found)
    }
}

#[test]
fn variables_of_the_environment_name_no_proxy() {
    let (proxy, asked) = server();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "requests_without_a_proxy"]);
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        child.env(name, format!("http://{proxy}"));
        child.env(name.to_lowercase(), format!("http://{proxy}"));
    }
    child.env_remove("NO_PROXY").env_remove("no_proxy");
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
    assert!(asked.try_recv().is_err(), "the proxy was asked");
}
