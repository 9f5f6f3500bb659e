//! The redirect from http to https: a listener of its own, with one thread, that answers each request and hangs up.
//!
//! A request that is not GET or HEAD is refused: its body has crossed the network readable already, and a client that is
//! redirected without a word would go on sending it so.

use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::Duration;

use encke_net::{NetSettings, OneShotListener, OneShotResponder, OneShotStop};
use encke_protocol::{CrossOrigin, Headers, OriginReader, Router};
use encke_threads::spawn_restarting;

use crate::errors::StartError;

/// The listener, and its thread once it serves. The thread ends when this is dropped.
pub(crate) struct Redirect {
    address: SocketAddr,
    stop: OneShotStop,
    /// Until it serves.
    bound: Option<(OneShotListener, Redirector)>,
    thread: Option<JoinHandle<()>>,
}

/// Redirects to the port of https at the host that a client names.
struct Redirector {
    https_port: u16,
    router: Router,
}

impl Redirect {
    /// Listens on `address`, to redirect to `https_port` of the host that a client names.
    pub(crate) fn bind(
        settings: &NetSettings,
        address: SocketAddr,
        https_port: u16,
        router: Router,
    ) -> Result<Self, StartError> {
        let listener = OneShotListener::bind(settings, address)?;
        Ok(Redirect {
            address: listener.address(),
            stop: listener.stop_handle(),
            bound: Some((listener, Redirector { https_port, router })),
            thread: None,
        })
    }

    /// Starts to serve, if it does not yet.
    pub(crate) fn serve(&mut self) -> Result<(), StartError> {
        let Some((mut listener, redirector)) = self.bound.take() else {
            return Ok(());
        };
        self.thread = Some(spawn_restarting("redirect", move || {
            while let Err(error) = listener.run(&redirector) {
                tracing::error!(%error, "epoll failed; plain requests wait to be redirected");
                std::thread::sleep(RETRY_PAUSE);
            }
        })?);
        Ok(())
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops. `false`: the thread panicked.
    pub(crate) fn stop(mut self) -> bool {
        self.end()
    }

    fn end(&mut self) -> bool {
        self.stop.stop();
        let thread = self.thread.take();
        thread.is_none_or(|thread| thread.join().is_ok())
    }
}

impl Drop for Redirect {
    fn drop(&mut self) {
        self.end();
    }
}

impl OneShotResponder for Redirector {
    fn respond(&self, head: &[u8]) -> Option<String> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut request = httparse::Request::new(&mut fields);
        let reader = match request.parse(head) {
            Ok(_) => {
                let fields = request.headers.iter();
                let fields: Vec<_> = fields.map(|field| (field.name, field.value)).collect();
                self.router.reader(Headers(&fields), false)
            }
            Err(_) => self.router.reader_of_any(),
        };
        let response = respond(head, self.https_port)?;
        Some(self.readable(&response, &reader))
    }

    fn head_too_long(&self) -> String {
        let response = refusal(431, "Request Header Fields Too Large");
        self.readable(&response, &self.router.reader_of_any())
    }
}

impl Redirector {
    /// Adds the fields for pages of other origins behind the status line.
    fn readable(&self, response: &str, reader: &OriginReader) -> String {
        let mut fields = b"\r\n".to_vec();
        CrossOrigin::WhenAsked.write(self.router.cross_origin(reader), &mut fields);
        response.replacen("\r\n", &String::from_utf8_lossy(&fields), 1)
    }
}

/// The response to a request. `None`: its head is not complete.
fn respond(head: &[u8], https_port: u16) -> Option<String> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(_) => return Some(refusal(400, "Bad Request")),
    }
    if !matches!(request.method, Some("GET" | "HEAD")) {
        return Some(refusal(403, "Forbidden"));
    }
    let host = request
        .headers
        .iter()
        .find(|field| field.name.eq_ignore_ascii_case("host"))
        .and_then(|field| std::str::from_utf8(field.value).ok())
        .and_then(host_name);
    let (Some(host), Some(path)) = (host, request.path.filter(|path| path.starts_with('/'))) else {
        return Some(refusal(400, "Bad Request"));
    };
    let port = match https_port {
        443 => String::new(),
        port => format!(":{port}"),
    };
    Some(format!(
        "HTTP/1.1 308 Permanent Redirect\r\nLocation: https://{host}{port}{path}\r\nContent-Length: 0\r\n\
         Connection: close\r\n\r\n"
    ))
}

/// The name in a Host field, without its port.
fn host_name(host: &str) -> Option<&str> {
    let name = match host.strip_prefix('[').and_then(|rest| rest.find(']')) {
        Some(end) => &host[..end + 2],
        None => host.split(':').next()?,
    };
    let allowed =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '[' | ']' | ':');
    (!name.is_empty() && name.chars().all(allowed)).then_some(name)
}

fn refusal(status: u16, phrase: &str) -> String {
    let text = "this port only redirects GET and HEAD to https; use https\n";
    format!(
        "HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{text}",
        text.len()
    )
}

/// Between two attempts to wait for sockets.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Fields of a request.
const FIELDS_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn location(head: &str, port: u16) -> Option<String> {
        let response = respond(head.as_bytes(), port)?;
        let line = response.lines().find(|line| line.starts_with("Location"));
        Some(line.unwrap_or(&response[..12]).to_owned())
    }

    #[test]
    fn requests_that_read_are_redirected() {
        for (head, port, answer) in [
            (
                "GET /a?b=c HTTP/1.1\r\nHost: x.example:80\r\n\r\n",
                443,
                "Location: https://x.example/a?b=c",
            ),
            (
                "HEAD / HTTP/1.1\r\nhost: [::1]:8080\r\n\r\n",
                4437,
                "Location: https://[::1]:4437/",
            ),
            ("POST / HTTP/1.1\r\nHost: x\r\n\r\n", 443, "HTTP/1.1 403"),
            ("GET / HTTP/1.1\r\n\r\n", 443, "HTTP/1.1 400"),
            ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 443, "HTTP/1.1 400"),
            (
                "GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
                443,
                "HTTP/1.1 400",
            ),
            ("\u{1}\u{2}\r\n\r\n", 443, "HTTP/1.1 400"),
        ] {
            assert_eq!(location(head, port).as_deref(), Some(answer), "{head}");
        }
        assert_eq!(location("GET / HTTP/1.1\r\nHost: x\r\n", 443), None);
    }
}
