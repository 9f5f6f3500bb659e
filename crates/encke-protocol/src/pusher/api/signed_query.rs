//! The signature of a request, in its query.

use encke_clock::WallTime;

use super::answer::unauthorised;
use crate::problem::error;
use crate::pusher::app::App;
use crate::query;
use crate::response::Response;

/// The parameters of a request whose signature was checked, without those of the signature.
#[derive(Debug, Default)]
pub(super) struct SignedQuery {
    parameters: Vec<(String, String)>,
    /// The digest of the body that was signed.
    body_digest: Option<String>,
}

/// The parts of a request that its signature covers. It covers the body by the digest in the query.
#[derive(Clone, Copy, Debug)]
pub(super) struct SignedParts<'a> {
    pub(super) method: &'a str,
    /// As it was sent.
    pub(super) path: &'a str,
    pub(super) query: Option<&'a str>,
}

impl SignedQuery {
    /// Checks the signature of a request by the key and secret of its app.
    pub(super) fn check(
        app: &App,
        signed: SignedParts<'_>,
        now: WallTime,
    ) -> Result<Self, Response> {
        let mut parameters = read(signed.query)?;
        let signature = take(&mut parameters, "auth_signature")?;
        let text = signed_text(signed, &parameters);
        let key = take(&mut parameters, "auth_key")?;
        if key != app.settings.key {
            return Err(unauthorised("auth_key is not the key of the app"));
        }
        let version = take(&mut parameters, "auth_version")?;
        if version != VERSION {
            return Err(unauthorised("auth_version must be 1.0"));
        }
        check_timestamp(&take(&mut parameters, "auth_timestamp")?, now)?;
        let body_digest = take(&mut parameters, BODY_DIGEST).ok();
        match app.signer.verifies(&text, &signature) {
            true => Ok(SignedQuery {
                parameters,
                body_digest,
            }),
            false => Err(unauthorised(
                "auth_signature is not the HMAC-SHA256, with the secret of the app, of the method, the path and the sorted query on a line each",
            )),
        }
    }

    /// Refuses a request whose body is still to come, and was not signed.
    pub(super) fn check_announced_body(&self) -> Result<(), Response> {
        match self.body_digest {
            Some(_) => Ok(()),
            None => Err(unauthorised(
                "body_md5 is missing, and the request has a body",
            )),
        }
    }

    /// Checks the body by the digest that was signed.
    pub(super) fn check_body(&self, body: &[u8]) -> Result<(), Response> {
        match &self.body_digest {
            None if body.is_empty() => Ok(()),
            None => self.check_announced_body(),
            Some(digest) => {
                let is_digest = format!("{:x}", md5::compute(body)).eq_ignore_ascii_case(digest);
                match is_digest {
                    true => Ok(()),
                    false => Err(unauthorised("body_md5 is not the MD5 of the body")),
                }
            }
        }
    }

    /// The value of a parameter.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        let mut parameters = self.parameters.iter();
        let found = parameters.find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// The parameters, sorted by their names in lower case. One that is there twice has no meaning.
fn read(query: Option<&str>) -> Result<Vec<(String, String)>, Response> {
    let bad = |why: String| error(400, "bad_query", why);
    let mut parameters = Vec::new();
    for parameter in query::parameters(query) {
        let (name, value) = parameter.map_err(|why| bad(format!("the query {why}")))?;
        parameters.push((name.to_ascii_lowercase(), value.into_owned()));
        if parameters.len() > PARAMETERS_MAX {
            return Err(bad(format!(
                "the query has more than {PARAMETERS_MAX} parameters"
            )));
        }
    }
    parameters.sort_unstable();
    match parameters.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        true => Err(bad("a parameter is there twice".to_owned())),
        false => Ok(parameters),
    }
}

fn take(parameters: &mut Vec<(String, String)>, name: &str) -> Result<String, Response> {
    let place = parameters.iter().position(|(known, _)| known == name);
    match place {
        Some(place) => Ok(parameters.remove(place).1),
        None => Err(unauthorised(&format!("the parameter {name} is missing"))),
    }
}

/// What is signed. The values are as they were before they were encoded for the URL.
fn signed_text(signed: SignedParts<'_>, parameters: &[(String, String)]) -> String {
    let pairs: Vec<String> = parameters
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    format!("{}\n{}\n{}", signed.method, signed.path, pairs.join("&"))
}

fn check_timestamp(text: &str, now: WallTime) -> Result<(), Response> {
    let seconds: u64 = text
        .parse()
        .map_err(|_| unauthorised("auth_timestamp is not a time in seconds since 1970"))?;
    let now_s = now.as_ms() / 1_000;
    match seconds.abs_diff(now_s) <= TIMESTAMP_AGE_MAX_S {
        true => Ok(()),
        false => Err(unauthorised(&format!(
            "auth_timestamp {seconds} is not within {TIMESTAMP_AGE_MAX_S} s of the server's time {now_s}"
        ))),
    }
}

const BODY_DIGEST: &str = "body_md5";

/// The only version of signatures.
const VERSION: &str = "1.0";

/// By how many seconds the clock of a client may differ, and for how long a request can be repeated.
const TIMESTAMP_AGE_MAX_S: u64 = 600;

/// Parameters of a request, which needs a handful.
const PARAMETERS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::message;
    use crate::pusher::settings::PusherApp;

    const KEY: &str = "278d425bdf160c739803";
    const BODY: &str = r#"{"name":"foo","channels":["project-3"],"data":"{\"some\":\"data\"}"}"#;

    fn check(query: &str, method: &str, path: &str, body: &str) -> Result<SignedQuery, String> {
        check_at(query, (method, path, body), 1_353_088_179_000)
    }

    fn check_at(
        query: &str,
        (method, path, body): (&str, &str, &str),
        now_ms: u64,
    ) -> Result<SignedQuery, String> {
        let app = App::new(
            PusherApp::new("3", KEY, "7ad3773142a6692b25b8".into()),
            std::sync::Arc::default(),
        );
        let signed = SignedParts {
            method,
            path,
            query: Some(query),
        };
        SignedQuery::check(&app, signed, WallTime::from_ms(now_ms))
            .and_then(|query| query.check_body(body.as_bytes()).map(|()| query))
            .map_err(|refused| format!("{} {}", refused.status, message(&refused)))
    }

    /// What the library `pusher` 5.3 for Node.js makes of the example of the documentation.
    const POST: &str = "auth_key=278d425bdf160c739803&auth_timestamp=1353088179&auth_version=1.0&body_md5=ec365a775a4cd0599faeb73354201b6f&auth_signature=da454824c97ba181a32ccc17a72625ba02771f50b50e1e7430e47a1f3f457e6c";
    const LIST: &str = "auth_key=278d425bdf160c739803&auth_timestamp=1353088179&auth_version=1.0&filter_by_prefix=presence-&info=user_count&auth_signature=16819168891cb5dfd72b5c7a5d3d602605b26c6ba1930033b5e2eeeb65010291";
    const ONE: &str = "auth_key=278d425bdf160c739803&auth_timestamp=1353088179&auth_version=1.0&info=subscription_count,cache&auth_signature=e9c01e80bd5f454bb6e2b4c92a32b8a859de081142b22b4a29b32e88f8f3d1d8";

    #[test]
    fn requests_of_a_library_are_authorised() {
        assert!(check(POST, "POST", "/apps/3/events", BODY).is_ok());
        let list = check(LIST, "GET", "/apps/3/channels", "").unwrap();
        assert_eq!(list.value("filter_by_prefix"), Some("presence-"));
        assert_eq!(list.value("info"), Some("user_count"));
        assert_eq!(list.value("auth_key"), None);
        assert!(check(ONE, "GET", "/apps/3/channels/a=@,.;b", "").is_ok());
        // Encoded for the URL, and in another order.
        let encoded = ONE.replace(',', "%2C").replace('_', "%5f");
        assert!(check(&encoded, "GET", "/apps/3/channels/a=@,.;b", "").is_ok());
        let mut reversed: Vec<&str> = POST.split('&').collect();
        reversed.reverse();
        assert!(check(&reversed.join("&"), "POST", "/apps/3/events", BODY).is_ok());
    }

    #[test]
    fn what_was_not_signed_is_not_authorised() {
        for (query, method, path, body, why) in [
            (POST, "PUT", "/apps/3/events", BODY, "auth_signature is not"),
            (
                POST,
                "POST",
                "/apps/4/events",
                BODY,
                "auth_signature is not",
            ),
            (
                POST,
                "POST",
                "/apps/3/batch_events",
                BODY,
                "auth_signature is not",
            ),
            (POST, "POST", "/apps/3/events", "{}", "body_md5 is not"),
            (POST, "POST", "/apps/3/events", "", "body_md5 is not"),
            (
                &POST.replace("1353088179", "1353088180"),
                "POST",
                "/apps/3/events",
                BODY,
                "auth_signature is not",
            ),
            (
                &format!("{POST}&info=x"),
                "POST",
                "/apps/3/events",
                BODY,
                "auth_signature is not",
            ),
            (
                &POST.replace("auth_key=2", "auth_key=3"),
                "POST",
                "/apps/3/events",
                BODY,
                "auth_key is not",
            ),
            (
                &POST.replace("1.0", "1.1"),
                "POST",
                "/apps/3/events",
                BODY,
                "auth_version must",
            ),
            (
                &POST.replace("da45", "da46"),
                "POST",
                "/apps/3/events",
                BODY,
                "auth_signature is not",
            ),
            (
                &POST.replace("da45", "da4"),
                "POST",
                "/apps/3/events",
                BODY,
                "auth_signature is not",
            ),
            (
                "",
                "POST",
                "/apps/3/events",
                BODY,
                "auth_signature is missing",
            ),
            (LIST, "GET", "/apps/3/channels", "{}", "body_md5 is missing"),
        ] {
            let refused = check(query, method, path, body).unwrap_err();
            assert!(
                refused.starts_with("401 ") && refused.contains(why),
                "{query}: {refused}"
            );
        }
    }

    #[test]
    fn a_parameter_has_one_value() {
        for twice in [
            format!("{POST}&auth_key=other"),
            format!("auth_key=other&{POST}"),
            format!("{POST}&Auth_Key=other"),
            format!("{POST}&body_md5="),
        ] {
            let refused = check(&twice, "POST", "/apps/3/events", BODY).unwrap_err();
            assert_eq!(refused, "400 a parameter is there twice");
        }
        let many: Vec<String> = (0..=PARAMETERS_MAX).map(|at| format!("p{at}=")).collect();
        let refused = check(&many.join("&"), "GET", "/", "").unwrap_err();
        assert!(refused.contains("more than 32 parameters"), "{refused}");
        let refused = check("a=%zz", "GET", "/", "").unwrap_err();
        assert!(refused.starts_with("400 the query is not"), "{refused}");
    }

    #[test]
    fn a_request_is_authorised_for_ten_minutes() {
        let request = ("POST", "/apps/3/events", BODY);
        let signed_ms = 1_353_088_179_000;
        for fine in [signed_ms - 600_000, signed_ms + 600_999] {
            assert!(check_at(POST, request, fine).is_ok());
        }
        for stale in [signed_ms - 601_000, signed_ms + 601_000, 0] {
            let refused = check_at(POST, request, stale).unwrap_err();
            assert!(refused.contains("is not within 600 s"), "{refused}");
        }
        let refused = check(&POST.replace("1353088179", "-1"), "POST", "/", BODY).unwrap_err();
        assert!(refused.contains("is not a time"), "{refused}");
    }
}
