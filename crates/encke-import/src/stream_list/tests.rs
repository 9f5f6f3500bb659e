use proptest::prelude::*;

use super::*;

fn root(text: &str) -> SourceRoot {
    SourceRoot::parse(text).unwrap()
}

fn here() -> SourceRoot {
    SourceRoot::parse_destination("http://127.0.0.1:4437").unwrap()
}

fn named(source: &str, names: &[&str], prefix: &str) -> Result<Vec<(String, String)>, BadStreams> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let tasks = tasks(&root(source), Some(&names), prefix, &here())?;
    Ok(tasks
        .into_iter()
        .map(|task| (task.name, task.source))
        .collect())
}

#[test]
fn streams_are_named_by_name_path_or_address() {
    let source = "https://old.example/v1/stream/svc/";
    let expected = (
        "chat/ann".to_owned(),
        "https://old.example/v1/stream/svc/chat/ann".to_owned(),
    );
    for text in [
        "chat/ann",
        "/v1/stream/svc/chat/ann",
        "https://old.example/v1/stream/svc/chat/ann",
    ] {
        assert_eq!(
            named(source, &[text], "").unwrap(),
            std::slice::from_ref(&expected),
            "{text}"
        );
    }
    let prefixed = named(source, &["chat/ann"], "old/").unwrap();
    assert_eq!(prefixed[0].0, "old/chat/ann");
    // A server without a mount.
    let whole = named("http://old.example", &["/a/b"], "").unwrap();
    assert_eq!(
        whole,
        [("a/b".to_owned(), "http://old.example/a/b".to_owned())]
    );
}

#[test]
fn one_stream_is_named_by_its_address() {
    for (address, name) in [
        ("https://old.example/v1/stream/svc/chat", "svc/chat"),
        ("https://old.example/api/streams/chat", "chat"),
        ("https://old.example/chat/ann", "chat/ann"),
    ] {
        let tasks = tasks(&root(address), None, "", &here()).unwrap();
        assert_eq!(tasks[0].name, name);
        assert_eq!(tasks[0].source, address);
        let destination = format!("http://127.0.0.1:4437/v1/stream/{name}");
        assert_eq!(tasks[0].destination, destination);
    }
    let signed = root("https://old.example/v1/stream/a?signature=s");
    let tasks = tasks(&signed, None, "", &here()).unwrap();
    assert_eq!(tasks[0].query.as_deref(), Some("signature=s"));
    assert!(!tasks[0].source.contains("signature"));
}

#[test]
fn a_destination_may_have_a_mount_of_its_own() {
    let destination = SourceRoot::parse_destination("https://push.example/api/stream/").unwrap();
    assert_eq!(destination.url(), "https://push.example/api/stream");
    assert_eq!(here().url(), "http://127.0.0.1:4437/v1/stream");
    assert!(SourceRoot::parse_destination("http://a/?b=c").is_err());
}

#[test]
fn what_is_typed_is_escaped_once() {
    for (text, name) in [
        ("a b", "a%20b"),
        ("a%20b", "a%20b"),
        ("100%", "100%25"),
        ("a?b#c", "a%3Fb%23c"),
        ("caf\u{e9}", "caf%C3%A9"),
    ] {
        assert_eq!(
            named("http://old.example/", &[text], "").unwrap()[0].0,
            name,
            "{text}"
        );
    }
}

#[test]
fn mistakes_are_named() {
    let errors = |source: &str| SourceRoot::parse(source).unwrap_err().to_string();
    assert!(errors("old.example/a").contains("neither http:// nor https://"));
    assert!(errors("ftp://old.example/a").contains("neither http:// nor https://"));
    assert!(errors("http://").contains("such as https://"));
    let password = errors("https://ann:secret@old.example/a");
    assert!(
        password.contains("header field") && !password.contains("secret"),
        "{password}"
    );

    let source = "https://old.example/v1/stream";
    let error = |names: &[&str]| named(source, names, "").unwrap_err().to_string();
    assert!(error(&["a//b"]).contains("an empty segment"));
    assert!(error(&["../b"]).contains(". or .."));
    assert!(error(&["a/%2e%2e/b"]).contains(". or .."));
    assert!(error(&["a\u{7}"]).contains("control character"));
    assert!(error(&["%ff"]).contains("UTF-8"));
    assert!(error(&["https://other.example/v1/stream/a"]).contains("not below the source"));
    assert!(error(&["/v2/stream/a"]).contains("not below the source"));
    assert!(error(&["/v1/streams/a"]).contains("not below the source"));
    assert!(error(&["a%2Fb", "a/b"]).contains("would both be copied to the stream"));
    assert!(error(&[]).contains("the list of streams is empty"));
    let many = tasks(&root("https://a/b?c=d"), Some(&["e".into()]), "", &here());
    assert_eq!(many, Err(BadStreams::QueryOfMany));
    let none = tasks(&root("https://a/v1/stream/"), None, "", &here()).unwrap_err();
    assert!(none.to_string().contains("name the streams"), "{none}");
}

#[test]
fn a_name_that_is_there_twice_counts_once() {
    let names = ["a", "b", "a", "/v1/stream/b"];
    let tasks = named("https://old.example/v1/stream", &names, "").unwrap();
    assert_eq!(tasks.len(), 2);
}

proptest! {
    /// What is escaped stays as it is when it is read again, and means what was typed.
    #[test]
    fn names_are_escaped_once(text in "[^%\\p{Cc}]{1,20}") {
        if let Ok(escaped) = name(&text) {
            prop_assert_eq!(name(&escaped), Ok(escaped.clone()));
            let decoded = percent_encoding::percent_decode_str(&escaped).decode_utf8().unwrap();
            prop_assert_eq!(&*decoded, &*text);
            let uri = format!("http://a/{escaped}").parse::<Uri>();
            let path = format!("/{escaped}");
            prop_assert!(uri.is_ok_and(|uri| uri.path() == path));
        }
    }
}
