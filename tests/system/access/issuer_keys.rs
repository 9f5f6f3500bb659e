//! Keys that are fetched from an issuer: rotation and withdrawal while the server runs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use serde_json::{Value, json};

use super::{Guarded, bearer, configuration};
use crate::rig::{Slowed, data_dir, eventually, request, strace_works};

/// Serves a key set.
struct Issuer {
    address: SocketAddr,
    keys: Arc<Mutex<Value>>,
}

impl Issuer {
    fn start(keys: Value) -> Issuer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let address = listener.local_addr().expect("it has one");
        let keys = Arc::new(Mutex::new(keys));
        let served = Arc::clone(&keys);
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let Ok(mut socket) = socket else {
                    continue;
                };
                let body = served.lock().expect("no test panics with it").to_string();
                let _ = socket.read(&mut [0; 4_096]);
                let _ = write!(
                    socket,
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                );
            }
        });
        Issuer { address, keys }
    }

    fn set(&self, keys: Value) {
        *self.keys.lock().expect("no test panics with it") = keys;
    }
}

fn key() -> KeyPair {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key can be made")
}

/// A key set of one key.
fn key_set(kid: &str, key: &KeyPair) -> Value {
    let point = &key.public_key_raw()[1..];
    let (x, y) = point.split_at(point.len() / 2);
    let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    json!({"keys": [{"kty": "EC", "crv": "P-256", "kid": kid, "x": encode(x), "y": encode(y)}]})
}

/// A server that fetches the keys of `issuer`, and a token that is signed by the private key `one`.
fn fetching(one: &KeyPair, host: &str, issuer: &Issuer) -> (Guarded, String) {
    let (folder, data) = (data_dir(), data_dir());
    let pem = folder.path().join("one.pem");
    std::fs::write(&pem, one.serialize_pem()).expect("a file can be written");
    let config = folder.path().join("encke.toml");
    let entry = format!(
        "{}\n[[access.issuers]]\nname = \"fetched\"\nissuer = \"https://fetched.example\"\naudience = \"encke\"\n\
         algorithms = [\"ES256\"]\njwks-url = \"http://{host}:{}/keys\"\nprivate-key-file = \"one.pem\"\nkid = \"one\"\n",
        configuration(),
        issuer.address.port()
    );
    std::fs::write(&config, entry).expect("a file can be written");
    let mut guarded = Guarded::again(&config, folder, data.path(), &[]);
    guarded._data = Some(data);
    guarded.create("/v1/stream/a", b"[1]");
    let token = guarded.token(&["--issuer", "fetched", "--allow", "read=/v1/**"]);
    (guarded, token)
}

/// The token with the name of another key.
fn with_kid(token: &str, kid: &str) -> String {
    let (_, rest) = token.split_once('.').expect("a token has three parts");
    let header = json!({"alg": "ES256", "kid": kid}).to_string();
    format!("{}.{rest}", URL_SAFE_NO_PAD.encode(header))
}

#[test]
fn a_thread_that_the_system_refuses_costs_one_fetch() {
    if !strace_works() {
        return;
    }
    let one = key();
    let issuer = Issuer::start(key_set("one", &one));
    let (guarded, token) = fetching(&one, "localhost", &issuer);
    let read = |token: &str| guarded.ask("GET", "/v1/stream/a?offset=-1", &bearer(token), b"");
    assert_eq!(read(&token).0, 200);
    // Looking the name of the issuer up takes a thread.
    let refused = "clone,clone3:error=EAGAIN";
    let slowed = Slowed::new(&guarded.encke, "jwks", refused);
    let (status, code) = read(&with_kid(&token, "invented"));
    assert_eq!((status, &*code), (503, "keys_unavailable"));
    assert_eq!(read(&token).0, 200, "the keys of before stay");
    drop(slowed);
    // The next fetch works, and finds that there is no such key.
    eventually("keys are fetched again", || {
        let (status, code) = read(&with_kid(&token, "another"));
        (status, &*code) == (401, "unknown_key")
    });
    assert_eq!(guarded.encke.terminate().code, Some(0));
}

#[test]
fn a_fetch_that_hangs_has_an_answer() {
    if !strace_works() {
        return;
    }
    let one = key();
    let issuer = Issuer::start(key_set("one", &one));
    let (guarded, token) = fetching(&one, "127.0.0.1", &issuer);
    // Longer than the test, whatever the thread does.
    let hangs = "clone,clone3,futex,socket:delay_enter=600000000";
    let slowed = Slowed::new(&guarded.encke, "jwks", hangs);
    let request = request(
        "GET",
        "/v1/stream/a?offset=-1",
        &[&bearer(&with_kid(&token, "invented"))],
        b"",
    );
    let mut waiting: Vec<_> = (0..3).map(|_| guarded.encke.connect()).collect();
    for connection in &mut waiting {
        connection.send(&request);
    }
    let read = |token: &str| guarded.ask("GET", "/v1/stream/a?offset=-1", &bearer(token), b"");
    assert_eq!(read(&token).0, 200, "others are served");
    for connection in &mut waiting {
        let answer = connection.answer();
        assert_eq!(answer.status, 503, "{answer:?}");
        assert_eq!(answer.error_code(), "keys_unknown");
    }
    drop(slowed);
    assert_eq!(guarded.encke.terminate().code, Some(0));
}

#[test]
fn a_subscription_ends_when_its_issuer_withdraws_the_key() {
    let (one, two) = (key(), key());
    let issuer = Issuer::start(key_set("one", &one));
    let (guarded, token) = fetching(&one, "127.0.0.1", &issuer);
    let follow = |token: &str| {
        let mut connection = guarded.encke.connect();
        let target = "/v1/stream/a?offset=-1&live=sse";
        connection.send(&request("GET", target, &[&bearer(token)], b""));
        connection
    };
    let mut followed = follow(&token);
    assert_eq!(followed.head().status, 200);
    issuer.set(key_set("two", &two));
    // A token of any key that is not known makes the server look for it.
    let invented = follow(&with_kid(&token, "invented")).answer();
    assert_eq!(
        (invented.status, invented.error_code()),
        (401, "unknown_key".to_owned())
    );
    let text = String::from_utf8(followed.rest()).expect("events are text");
    assert!(
        text.contains(": closed by the server: the token was revoked"),
        "{text}"
    );
    let again = follow(&token).answer();
    assert_eq!(
        (again.status, again.error_code()),
        (401, "unknown_key".to_owned())
    );
}
