use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;

use encke_clock::Now;

use super::*;

/// A key set that works for ES256.
const KEYS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","kid":"k",
    "x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;

/// A server that gives one response to each connection, in turn, and reports the first line of each request.
fn server(responses: Vec<Vec<u8>>) -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/keys?x=1", listener.local_addr().unwrap());
    let (sender, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for response in responses {
            let (mut connection, _) = listener.accept().unwrap();
            let mut request = [0; 4_096];
            let bytes = connection.read(&mut request).unwrap();
            let request = String::from_utf8_lossy(&request[..bytes]).into_owned();
            let _ = sender.send(request.lines().next().unwrap_or_default().to_owned());
            match response.is_empty() {
                // Never responds; the client gives up and closes.
                true => drop(connection.read(&mut [0; 1])),
                false => drop(connection.write_all(&response)),
            }
        }
    });
    (url, requests)
}

fn ok(body: &str) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    (head + body).into_bytes()
}

/// A configuration with these issuers: name and URL.
fn config(issuers: &[(&str, &str)]) -> AccessConfig {
    let issuer = |&(name, url): &(&str, &str)| {
        serde_json::json!({
            "issuer": name, "audience": "a", "algorithms": ["ES256"], "jwks-url": url,
        })
    };
    let issuers: Vec<_> = issuers.iter().map(issuer).collect();
    serde_json::from_value(serde_json::json!({ "issuers": issuers })).unwrap()
}

fn access(config: &AccessConfig) -> Arc<Access> {
    Arc::new(Access::from_config(config, &|_| Err(io::ErrorKind::NotFound.into())).unwrap())
}

#[test]
fn keys_are_fetched_from_exactly_the_configured_url() {
    let (url, requests) = server(vec![ok(KEYS)]);
    let fetched = fetch(&agent(&ClientRules::default(), LONG), &url).unwrap();
    assert_eq!(fetched, KEYS.as_bytes());
    assert_eq!(requests.recv().unwrap(), "GET /keys?x=1 HTTP/1.1");
}

/// A response in gzip.
fn in_gzip(body: &str) -> Vec<u8> {
    let mut coder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    coder.write_all(body.as_bytes()).unwrap();
    let coded = coder.finish().unwrap();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        coded.len()
    );
    [head.into_bytes(), coded].concat()
}

#[test]
fn a_set_in_gzip_is_read_within_the_same_bound() {
    let (url, _) = server(vec![in_gzip(KEYS), in_gzip(&"x".repeat(10 << 20))]);
    assert_eq!(
        fetch(&agent(&ClientRules::default(), LONG), &url).unwrap(),
        KEYS.as_bytes()
    );
    let error = format!(
        "{:#}",
        fetch(&agent(&ClientRules::default(), LONG), &url).unwrap_err()
    );
    assert!(error.contains("65536 bytes"), "{error}");
    let head = b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 1\r\n\r\nx";
    let (url, _) = server(vec![head.to_vec()]);
    let error = fetch(&agent(&ClientRules::default(), LONG), &url)
        .unwrap_err()
        .to_string();
    assert!(error.contains("\"br\"; gzip is accepted"), "{error}");
}

#[test]
fn redirects_other_statuses_and_large_sets_are_refused() {
    let (other, elsewhere) = server(vec![ok(KEYS)]);
    let large = "x".repeat(10 << 20);
    for (response, message) in [
        (
            format!("HTTP/1.1 302 Found\r\nLocation: {other}\r\nContent-Length: 0\r\n\r\n")
                .into_bytes(),
            "302",
        ),
        (
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec(),
            "404",
        ),
        (ok(&large), "65536 bytes"),
        (
            format!("HTTP/1.1 200 OK\r\n\r\n{large}").into_bytes(),
            "65536 bytes",
        ),
    ] {
        let (url, _) = server(vec![response]);
        let error = format!(
            "{:#}",
            fetch(&agent(&ClientRules::default(), LONG), &url).unwrap_err()
        );
        assert!(error.contains(message), "{message}: {error}");
    }
    assert!(elsewhere.try_recv().is_err(), "a redirect was followed");
}

#[test]
fn a_server_that_does_not_respond_is_given_up() {
    let (url, requests) = server(vec![Vec::new()]);
    assert!(
        fetch(
            &agent(&ClientRules::default(), Duration::from_millis(300)),
            &url
        )
        .is_err()
    );
    assert!(requests.recv().is_ok());
}

#[test]
fn the_thread_fetches_at_once_and_survives_failures() {
    let failure = b"HTTP/1.1 500 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec();
    let (url, _requests) = server(vec![failure, ok(KEYS)]);
    let config = config(&[("i", &url)]);
    let (access, fetcher, ended) = fetching(&config);
    assert_eq!(ended.recv().unwrap(), ("i".to_owned(), false));
    // A token with an unknown key asks for the next fetch, but not at once behind one that has failed.
    let token = unverified_token();
    let path = encke_access::CanonicalPath::parse("/").unwrap();
    let request = encke_access::Credentials {
        method: "GET",
        path: &path,
        query: None,
        headers: &[("authorization", token.as_bytes())],
        client_certificate: None,
        address: None,
        free_parameters: &[],
    };
    for (now_ms, reason) in [(1_000, "keys_unavailable"), (20_000, "keys_unknown")] {
        let denied = access.resolve(&request, Now::from_ms(now_ms)).unwrap_err();
        assert_eq!(denied.reason(), reason);
    }
    assert_eq!(ended.recv().unwrap(), ("i".to_owned(), true));
    assert_eq!(access.counts().keys, 1);
    drop(fetcher);
}

#[test]
fn an_issuer_that_does_not_respond_delays_no_other() {
    let (silent, _asked) = server(vec![Vec::new()]);
    let (good, _requests) = server(vec![ok(KEYS)]);
    let config = AccessConfig {
        jwks_timeout: LONG,
        ..config(&[("silent", &silent), ("good", &good)])
    };
    let (_access, fetcher, ended) = fetching(&config);
    assert_eq!(ended.recv().unwrap(), ("good".to_owned(), true));
    drop(fetcher);
}

/// Starts to fetch keys; each fetch that ends sends its issuer, and whether it went well.
fn fetching(config: &AccessConfig) -> (Arc<Access>, KeyFetcher, mpsc::Receiver<(String, bool)>) {
    let access = access(config);
    let (sender, ended) = mpsc::channel();
    let sender = std::sync::Mutex::new(sender);
    access.when_keys_arrive(move |issuer, is_good| {
        let _ = sender.lock().unwrap().send((issuer.to_owned(), is_good));
    });
    let fetcher = KeyFetcher::start(Arc::clone(&access), config, &ClientRules::default());
    (access, fetcher.unwrap().unwrap(), ended)
}

/// A token of the issuer `i` for the key `k` of ES256, with a signature that nobody made.
fn unverified_token() -> String {
    use base64::Engine;
    let encode = |text: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
    let header = encode(r#"{"alg":"ES256","kid":"k"}"#);
    format!("Bearer {header}.{}.AAAA", encode(r#"{"iss":"i"}"#))
}

/// Longer than any fetch of a test that ends by itself.
const LONG: Duration = Duration::from_secs(60);
