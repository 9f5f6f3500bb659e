use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
enum Line {
    Token(TokenArgs),
    Sign(SignArgs),
}

const CONFIG: &str = "listen = '127.0.0.1:1'
[access]
[[access.issuers]]
name = 'mine'
issuer = 'https://issuer.example'
audience = 'encke'
algorithms = ['HS256']
secret = '0123456789abcdef0123456789abcdef'
[[access.signing-keys]]
kid = 'urls'
secret = '0123456789abcdef0123456789abcdef'
";

struct Folder(tempfile::TempDir, String);

fn folder(config: &str) -> Folder {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("encke.toml");
    std::fs::write(&path, config).unwrap();
    let path = path.to_str().unwrap().to_owned();
    Folder(folder, path)
}

fn line(words: &[&str]) -> Result<Line, clap::Error> {
    Line::try_parse_from([&["encke"], words].concat())
}

fn mint(words: &[&str]) -> anyhow::Result<String> {
    match line(&[&["token"], words].concat()).unwrap() {
        Line::Token(args) => new_token(&args.new),
        Line::Sign(_) => unreachable!(),
    }
}

fn explained(config: &str, words: &[&str]) -> (String, bool) {
    match line(&[&["token", "explain", "--config", config], words].concat()).unwrap() {
        Line::Token(TokenArgs {
            command: Some(TokenCommand::Explain(args)),
            ..
        }) => explanation(&args).unwrap(),
        _ => unreachable!(),
    }
}

#[test]
fn a_token_is_made_and_explained() {
    let Folder(_folder, config) = &folder(CONFIG);
    let allow = "read,append=/v1/stream/chat/{sub}/**";
    let token = mint(&["--config", config, "--sub", "alice", "--allow", allow]).unwrap();
    let (text, is_allowed) = explained(config, &[&token, "GET", "/v1/%73tream/chat/alice/x"]);
    assert!(is_allowed, "{text}");
    for part in [
        "caller: alice",
        "issuer: mine",
        "read on /v1/stream/chat/alice/x is allowed by",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for (method, path, reason) in [
        (
            "GET",
            "/v1/stream/chat/bob/x",
            "no grant of the caller allows read",
        ),
        (
            "DELETE",
            "/v1/stream/chat/alice/x",
            "no grant of the caller allows delete",
        ),
        ("GET", "/v1/stream/chat/alice/%2e%2e", "segment `.` or `..`"),
    ] {
        let (text, is_allowed) = explained(config, &[&token, method, path]);
        assert!(!is_allowed && text.contains(reason), "{path}: {text}");
    }
    let (text, is_allowed) = explained(config, &["x.y.z", "GET", "/"]);
    assert!(!is_allowed && text.starts_with("refused: "), "{text}");
    assert!(explained(config, &[&token, "GET", "/healthz"]).1);
}

#[test]
fn an_explanation_names_what_the_server_asks_for() {
    let Folder(_folder, config) = &folder(CONFIG);
    let token = |allow: &str| mint(&["--config", config, "--allow", allow]).unwrap();
    let appends = &token("read,append=/v1/stream/a");
    let works = &token("work=/v1/pool/p");
    let creates = &token("create=/v1/stream/**");
    let truncate = ["--field", "Encke-Truncate: now"];
    let fork = ["--field", "stream-forked-from: a"];
    for (token, request, fields, expected) in [
        (appends, "POST /v1/stream/a", &[][..], None),
        // Its fields make the request another one.
        (
            appends,
            "POST /v1/stream/a",
            &truncate,
            Some("no grant of the caller allows delete on /v1/stream/a"),
        ),
        (creates, "PUT /v1/stream/b", &[], None),
        (
            creates,
            "PUT /v1/stream/b",
            &fork,
            Some("no grant of the caller allows read on /v1/stream/a"),
        ),
        // The streams are in the query, and the rights of a pool are those at its own path.
        (appends, "GET /v1/events?stream=a", &[], None),
        (
            appends,
            "GET /v1/events?stream=a&stream=b",
            &[],
            Some("no grant of the caller allows read on /v1/stream/b"),
        ),
        (
            appends,
            "GET /v1/events?stream=a/**",
            &[],
            Some("allows read on everything that /v1/stream/a/* stands for"),
        ),
        (works, "GET /v1/pool/p/work?worker=w", &[], None),
        (
            works,
            "PATCH /v1/stream/a",
            &[],
            Some("refused: PATCH is not allowed here"),
        ),
    ] {
        let (method, path) = request.split_once(' ').unwrap();
        let (text, is_allowed) = explained(config, &[&[token, method, path], fields].concat());
        assert_eq!(is_allowed, expected.is_none(), "{request}: {text}");
        let expected = expected.unwrap_or("allowed: ");
        assert!(text.contains(expected), "{request}: {text}");
    }
}

#[test]
fn mistakes_are_named() {
    let Folder(_folder, config) = &folder(CONFIG);
    for (words, message) in [
        (vec!["--sub", "a"], "--config is missing"),
        (vec!["--config", config, "--issuer", "x"], "is no issuer"),
        (vec!["--config", config, "--claim", "exp=1"], "claim exp"),
    ] {
        let error = format!("{:#}", mint(&words).unwrap_err());
        assert!(error.contains(message), "{words:?}: {error}");
    }
    for words in [
        ["token", "--allow", "/v1/stream/a"],
        ["token", "--allow", "reed=/a"],
        ["token", "--allow", "read=a"],
        ["token", "--claim", "x"],
        ["token", "--expires", "1"],
        ["sign", "--field", "a b: c"],
    ] {
        assert!(line(&words).is_err(), "{words:?}");
    }
    let Folder(_other, without) = &folder("listen = '127.0.0.1:1'");
    let error = mint(&["--config", without]).unwrap_err().to_string();
    assert!(error.contains("no table [access]"), "{error}");
}

#[test]
fn a_url_is_signed_behind_its_host() {
    let Folder(_folder, config) = &folder(CONFIG);
    let sign = |url: &str| match line(&["sign", "--config", config, url]).unwrap() {
        Line::Sign(args) => signed(&args),
        Line::Token(_) => unreachable!(),
    };
    let url = sign("https://push.example/v1/stream/a?offset=-1#x").unwrap();
    let begin = "https://push.example/v1/stream/a?offset=-1&expires=";
    assert!(url.starts_with(begin), "{url}");
    let table = AccessTable::read(Path::new(config)).unwrap();
    let access = table.access().unwrap();
    let path = CanonicalPath::parse("/v1/stream/a").unwrap();
    let query = url.split_once('?').map(|(_, query)| query);
    let mut request = Credentials {
        method: "HEAD",
        path: &path,
        query,
        headers: &[],
        client_certificate: None,
        address: None,
        free_parameters: &[],
    };
    let resolved = access.resolve(&request, encke_net::now()).unwrap();
    assert_eq!(resolved.caller.name(), "urls");
    let alias = sign("/streams/a").unwrap();
    assert!(alias.starts_with("/streams/a?expires="), "{alias}");
    request.query = alias.split_once('?').map(|(_, query)| query);
    assert!(access.resolve(&request, encke_net::now()).is_ok());
    request.method = "POST";
    assert!(access.resolve(&request, encke_net::now()).is_err());
    let closed = "Stream-Closed: true";
    let field = [
        "sign", "--config", config, "--field", closed, "--field", "X",
    ];
    let Line::Sign(args) = line(&[&field[..], &["/v1/stream/a"]].concat()).unwrap() else {
        unreachable!()
    };
    let url = signed(&args).unwrap();
    assert!(url.contains("&signed-fields=stream-closed,x*&"), "{url}");
    assert!(sign("https://push.example").is_err());
    assert!(sign("/v1/stream/a?signature=x").is_err());
}

#[test]
fn a_new_key_is_known_by_the_entry_that_is_printed() {
    let text = new_key(&NewKeyArgs { name: "b".into() }).unwrap();
    let (key, entry) = text.split_once('\n').unwrap();
    let Folder(_folder, config) = &folder(entry);
    assert!(explained(config, &[key, "POST", "/v1/stream/a"]).1);
    let (text, is_allowed) = explained(config, &["garbage", "POST", "/v1/stream/a"]);
    let expected = "refused: the credential is no JSON Web Token and no known API key\n";
    assert_eq!((&*text, is_allowed), (expected, false));
    assert!(!explained(config, &[&key[1..], "POST", "/v1/stream/a"]).1);
    assert!(!entry.contains(key));
}

#[test]
fn a_key_set_from_a_file_replaces_a_fetch() {
    let config = "[[access.issuers]]\nissuer = 'i'\naudience = 'a'\nalgorithms = ['ES256']\n\
                  jwks-url = 'http://127.0.0.1:1/none'\n";
    let Folder(folder, config) = &folder(config);
    let keys = folder.path().join("keys.json");
    std::fs::write(&keys, r#"{"keys":[{"kty":"EC","crv":"P-256","kid":"k",
        "x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#).unwrap();
    // {"alg":"ES256","kid":"k"} . {"iss":"i"} . no signature
    let token = "eyJhbGciOiJFUzI1NiIsImtpZCI6ImsifQ.eyJpc3MiOiJpIn0.AAAA";
    let keys = keys.to_str().unwrap();
    let (text, is_allowed) = explained(config, &["--jwks", keys, token, "GET", "/"]);
    assert_eq!(
        (&*text, is_allowed),
        ("refused: the signature is wrong\n", false)
    );
}
