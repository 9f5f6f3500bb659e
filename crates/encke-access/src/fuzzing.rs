//! The body of the fuzz target `credentials`. A test runs it over the saved corpus.

use encke_clock::{Now, WallTime};

use crate::{
    Access, AccessConfig, CanonicalPath, ClientCertificate, Credentials, Operation, PathPattern,
};

/// Takes a request from `data` (lines: method, target, and header fields with a colon) and resolves its caller. Panics when a path
/// that was accepted is not canonical, when a signature that was not made by the key is accepted, or when a pattern that
/// was read is not what it is written as.
///
/// No input has a valid credential, so every caller must be the anonymous one or the one of the certificate.
pub fn credentials(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.split('\n');
    let method = lines.next().unwrap_or_default();
    let target = lines.next().unwrap_or_default();
    let headers: Vec<(&str, &[u8])> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name, value.trim().as_bytes()))
        .collect();
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    if let Ok(pattern) = path.parse::<PathPattern>() {
        assert_eq!(pattern.to_string().parse().as_ref(), Ok(&pattern));
    }
    let Ok(path) = CanonicalPath::parse(path) else {
        return;
    };
    check_canonical(path.as_str());
    let access = access();
    let certificate = ClientCertificate {
        names: vec![method.to_owned()],
        ends_at: WallTime::from_ms(u64::MAX),
    };
    let request = Credentials {
        method,
        path: &path,
        query,
        headers: &headers,
        client_certificate: Some(&certificate),
        address: None,
        free_parameters: &["offset"],
    };
    for now in [Now::default(), Now::from_ms(NOW_MS)] {
        match access.resolve(&request, now) {
            Ok(resolved) => {
                let name = resolved.caller.name();
                assert!(matches!(name, "anonymous" | "PUT"), "{name}");
                assert!(!resolved.by_cookie && resolved.signed_url.is_none());
                // Whoever it is, nothing grants this.
                assert!(!resolved.caller.may(Operation::Admin, path.as_str()));
            }
            Err(denied) => {
                let challenge = denied.challenge();
                assert!(!challenge.contains(['\r', '\n']), "{challenge}");
            }
        }
    }
}

fn check_canonical(path: &str) {
    assert!(path.starts_with('/') && !path.chars().any(char::is_control));
    assert!(path == "/" || (!path.ends_with('/') && !path.contains("//")));
    assert!(!path.split('/').any(|segment| matches!(segment, "." | "..")));
    // Encoded as a whole, it is the same path.
    let bytes = path.bytes().skip(1).map(|byte| format!("%{byte:02x}"));
    let encoded = format!("/{}", bytes.collect::<String>());
    let again = CanonicalPath::parse(&encoded);
    assert_eq!(again.as_ref().map(CanonicalPath::as_str), Ok(path));
}

fn access() -> Access {
    let config: AccessConfig =
        serde_json::from_str(CONFIG).expect("the configuration above is one");
    Access::from_config(&config, &|_| Err(std::io::ErrorKind::NotFound.into()))
        .expect("the configuration above is valid")
}

/// Some time in 2026.
const NOW_MS: u64 = 1_790_000_000_000;

/// Secrets that no input knows: the fuzzer does not see this file, and can't make digests.
const CONFIG: &str = r#"{
    "cookie": "token",
    "anonymous": {"grants": [{"actions": ["read"], "paths": ["/public/**"]}]},
    "issuers": [{
        "issuer": "i", "audience": "a", "algorithms": ["HS256"], "secret": "dF8mW2qLx9vPzR4tYb6NhJ3kGsC7eQ1u",
        "grants": [{"actions": ["read"], "paths": ["/**"]}]
    }],
    "api-keys": [{
        "name": "key", "sha256": "0000000000000000000000000000000000000000000000000000000000000000",
        "grants": [{"actions": ["read"], "paths": ["/**"]}]
    }],
    "signing-keys": [{"kid": "k", "secret": "Vn5cX8zA2wQ7rT4yU9iO1pL6kJ3hG0fD"}],
    "certificates": [{"name": "PUT", "grants": [{"actions": ["create"], "paths": ["/**"]}]}]
}"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_saved_corpus_of_credentials_holds() {
        let folder = format!(
            "{}/../../fuzz/corpus/credentials",
            env!("CARGO_MANIFEST_DIR")
        );
        let mut inputs = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            // The name is printed when the body panics.
            println!("{}", path.display());
            credentials(&std::fs::read(&path).unwrap());
            inputs += 1;
        }
        assert!(inputs >= 20, "{inputs} inputs");
    }

    proptest::proptest! {
        #[test]
        fn noise_holds(
            target in "[/%a-f0-9.?&=]{0,30}",
            signed in "(&?(signature|kid|expires|x)=[a-z0-9%]{0,8}){0,5}",
            value in "(Bearer )?[-_.A-Za-z0-9]{0,60}",
        ) {
            let text = format!("PUT\n/{target}?{signed}\nAuthorization:{value}\nCookie:token={value}");
            credentials(text.as_bytes());
        }
    }
}
