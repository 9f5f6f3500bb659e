//! Tokens that are refused once they are verified: few of an address are verified, and what needs no verification passes.

use super::{API_KEY, Guarded, bearer};

/// The token with another signature.
fn forged(token: &str) -> String {
    let (signed, signature) = token.rsplit_once('.').expect("it has three parts");
    let other = match signature.starts_with('A') {
        true => "B",
        false => "A",
    };
    format!("{signed}.{other}{}", &signature[1..])
}

#[test]
fn an_address_whose_tokens_are_refused_has_few_verifications() {
    let guarded = Guarded::start(&["--exempt", "none"]);
    guarded.create("/v1/stream/a", b"[1]");
    let read = |credentials: &str| {
        let answer = guarded
            .encke
            .ask("GET", "/v1/stream/a", &[credentials], b"");
        (answer.status, answer)
    };
    let [known, new] = ["ann", "bob"].map(|name| guarded.allowed(name, "read=/v1/**"));
    assert_eq!(read(&known).0, 200);
    let forged = bearer(&forged(&guarded.token_of("eve", "read=/v1/**")));
    let refused = loop {
        match read(&forged) {
            (401, answer) => assert_eq!(answer.error_code(), "signature"),
            (_, answer) => break answer,
        }
    };
    assert_eq!(refused.status, 429, "{refused:?}");
    assert_eq!(refused.error_code(), "too_many_failures");
    assert_eq!(refused.field("Retry-After"), Some("1"));
    // A token that was verified before, and a key.
    assert_eq!(read(&known).0, 200);
    assert_eq!(read(&bearer(API_KEY)).0, 200);
    // Once some time has passed, another one.
    crate::rig::eventually("a new token is verified", || read(&new).0 == 200);
    let counted = guarded.metric("encke_access_denied_total{reason=\"too_many_failures\"}");
    assert!(counted > 0);
}
