//! Objects in a bucket of S3, or of what is compatible with it.

use std::io::Read;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use encke_client::client;
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use rusty_s3::actions::ListObjectsV2;
use rusty_s3::{Bucket as S3Bucket, Credentials, S3Action, UrlStyle};
use ureq::Agent;
use ureq::http::HeaderMap;

use super::objects::{BucketAccess, Storage, StoredObject};
use crate::error::BackupError;
use crate::manifest::Hash;

/// A part of a bucket.
#[derive(Debug)]
pub(super) struct Bucket {
    bucket: S3Bucket,
    credentials: Credentials,
    /// Before each key; empty, or with `/` at its end.
    prefix: String,
    agent: Agent,
}

impl Bucket {
    /// `place` is `BUCKET` or `BUCKET/PREFIX`.
    pub(super) fn at(place: &str, access: &BucketAccess<'_>) -> Result<Bucket, BackupError> {
        let (name, prefix) = place.split_once('/').unwrap_or((place, ""));
        let wrong = |why: String| BackupError::Place(format!("s3://{place}: {why}"));
        if name.is_empty() {
            return Err(wrong("the name of the bucket is missing".to_owned()));
        }
        let needed = |variable: &str| {
            let value = (access.setting)(variable).filter(|value| !value.is_empty());
            value.ok_or_else(|| wrong(format!("the variable {variable} is not set")))
        };
        let (key, secret) = (
            needed("AWS_ACCESS_KEY_ID")?,
            needed("AWS_SECRET_ACCESS_KEY")?,
        );
        let credentials = match needed("AWS_SESSION_TOKEN") {
            Ok(token) => Credentials::new_with_token(key, secret, token),
            Err(_) => Credentials::new(key, secret),
        };
        let region = needed("AWS_REGION").unwrap_or_else(|_| "us-east-1".to_owned());
        let (endpoint, style) = match needed("AWS_ENDPOINT_URL") {
            // What is compatible has rarely a name for each bucket.
            Ok(endpoint) => (endpoint, UrlStyle::Path),
            Err(_) => {
                let endpoint = format!("https://s3.{region}.amazonaws.com");
                (endpoint, UrlStyle::VirtualHost)
            }
        };
        let endpoint = endpoint
            .parse()
            .map_err(|error| wrong(format!("AWS_ENDPOINT_URL is no URL: {error}")))?;
        let bucket = S3Bucket::new(endpoint, style, name.to_owned(), region)
            .map_err(|error| wrong(error.to_string()))?;
        let prefix = prefix.trim_matches('/');
        let config = access
            .client
            .config()
            .timeout_connect(Some(CONNECT))
            .timeout_per_read(Some(SILENCE_MAX))
            .timeout_per_write(Some(SILENCE_MAX))
            .build();
        Ok(Bucket {
            bucket,
            credentials,
            prefix: match prefix {
                "" => String::new(),
                prefix => format!("{prefix}/"),
            },
            agent: client(config),
        })
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Makes a request until there is an answer that another attempt would not change. Its body is read up to one byte beyond `bytes_max`, or beyond the
    /// size of an error.
    fn ask(
        &self,
        (action, key): (&'static str, &str),
        bytes_max: u64,
        request: &dyn Fn() -> Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<BucketAnswer, BackupError> {
        let failed = |reason: String| BackupError::Bucket {
            action,
            key: key.to_owned(),
            reason,
        };
        let mut waits = WAITS.iter();
        loop {
            let answered = request().and_then(|mut response| {
                let mut body = Vec::new();
                let bytes_max = bytes_max.max(ERROR_BYTES_MAX).saturating_add(1);
                let reader = response.body_mut().as_reader();
                reader.take(bytes_max).read_to_end(&mut body)?;
                Ok(BucketAnswer {
                    status: response.status().as_u16(),
                    headers: response.into_parts().0.headers,
                    body,
                })
            });
            let reason = match answered {
                Ok(answer) if matches!(answer.status, 200 | 204 | 404) => return Ok(answer),
                Ok(answer) => {
                    let said = String::from_utf8_lossy(&answer.body);
                    let said: String = said.chars().take(SAID_CHARS_MAX).collect();
                    let reason = format!("status {} {said}", answer.status);
                    if !may_pass(answer.status, &said) {
                        return Err(failed(reason));
                    }
                    reason
                }
                Err(error) => error.to_string(),
            };
            match waits.next() {
                Some(wait) => std::thread::sleep(*wait),
                None => return Err(failed(reason)),
            }
        }
    }
}

impl Storage for Bucket {
    fn put(&self, key: &str, content: &[u8]) -> Result<(), BackupError> {
        let key = self.key(key);
        let mut action = self.bucket.put_object(Some(&self.credentials), &key);
        // Some servers store what has arrived of an upload that is cut off, unless they know what it must be.
        let checksum = STANDARD.encode(md5::compute(content).0);
        action.headers_mut().insert(CHECKSUM, checksum.as_str());
        let request = || {
            self.agent
                .put(action.sign(SIGNED_FOR).as_str())
                .header(CHECKSUM, &checksum)
                .send(content)
        };
        match self.ask(("put", &key), 0, &request)?.status {
            404 => Err(BackupError::Bucket {
                action: "put",
                reason: format!("there is no bucket {}", self.bucket.name()),
                key,
            }),
            _ => Ok(()),
        }
    }

    /// The server had made each object durable when it answered.
    fn settle(&self) -> Result<(), BackupError> {
        Ok(())
    }

    fn get(&self, key: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, BackupError> {
        let key = self.key(key);
        let action = self.bucket.get_object(Some(&self.credentials), &key);
        let request = || self.agent.get(action.sign(SIGNED_FOR).as_str()).call();
        let answer = self.ask(("get", &key), bytes_max, &request)?;
        Ok((answer.status == 200).then_some(answer.body))
    }

    fn look(&self, key: &str) -> Result<Option<StoredObject>, BackupError> {
        let key = self.key(key);
        let action = self.bucket.head_object(Some(&self.credentials), &key);
        let request = || self.agent.head(action.sign(SIGNED_FOR).as_str()).call();
        let answer = self.ask(("look for", &key), 0, &request)?;
        if answer.status != 200 {
            return Ok(None);
        }
        let field = |name: &str| {
            answer
                .headers
                .get(name)
                .and_then(|value| value.to_str().ok())
        };
        let bytes = field("content-length").and_then(|bytes| bytes.parse().ok());
        let bytes = bytes.ok_or_else(|| BackupError::Bucket {
            action: "look for",
            key,
            reason: "the answer has no size".to_owned(),
        })?;
        let written = field("last-modified").and_then(|time| rfc2822::parse(time).ok());
        let written = written.map(|time| time.timestamp());
        Ok(Some(stored(bytes, field("etag").unwrap_or(""), written)))
    }

    /// The server's answer does not prove what it has stored.
    fn is_remote(&self) -> bool {
        true
    }

    fn list(
        &self,
        prefix: &str,
        each: &mut dyn FnMut(&str, StoredObject),
    ) -> Result<(), BackupError> {
        let prefix = self.key(prefix);
        let mut next: Option<String> = None;
        loop {
            let mut action = self.bucket.list_objects_v2(Some(&self.credentials));
            action.with_prefix(prefix.as_str());
            if let Some(next) = &next {
                action.with_continuation_token(next.as_str());
            }
            let request = || self.agent.get(action.sign(SIGNED_FOR).as_str()).call();
            let BucketAnswer { status, body, .. } =
                self.ask(("list", &prefix), PAGE_BYTES_MAX, &request)?;
            let failed = |reason: String| BackupError::Bucket {
                action: "list",
                key: prefix.clone(),
                reason,
            };
            if status == 404 {
                let name = self.bucket.name();
                return Err(failed(format!("there is no bucket {name}")));
            }
            let text = String::from_utf8_lossy(&body);
            let page = ListObjectsV2::parse_response(&text);
            let page = page.map_err(|error| failed(format!("the list is no list: {error}")))?;
            for object in &page.contents {
                if let Some(key) = object.key.strip_prefix(&*self.prefix) {
                    let written = object.last_modified.as_deref();
                    let written = written.and_then(|time| time.parse().ok());
                    // Without a size it is looked for by its key.
                    let bytes = object.size.unwrap_or(u64::MAX);
                    let tag = object.etag.as_deref().unwrap_or_default();
                    each(key, stored(bytes, tag, written));
                }
            }
            match (page.next_continuation_token, &next) {
                (None, _) => return Ok(()),
                (Some(again), Some(before)) if again == *before => {
                    return Err(failed("the list does not end".to_owned()));
                }
                (following, _) => next = following,
            }
        }
    }

    fn remove(&self, key: &str) -> Result<(), BackupError> {
        let key = self.key(key);
        let action = self.bucket.delete_object(Some(&self.credentials), &key);
        let request = || self.agent.delete(action.sign(SIGNED_FOR).as_str()).call();
        self.ask(("remove", &key), 0, &request).map(|_| ())
    }
}

/// An answer of the server.
struct BucketAnswer {
    status: u16,
    headers: HeaderMap,
    body: Vec<u8>,
}

/// Whether a later attempt may succeed. S3 sends `RequestTimeout` with status 400.
fn may_pass(status: u16, said: &str) -> bool {
    match status {
        400 => said.contains("<Code>RequestTimeout</Code>"),
        status => matches!(status, 408 | 409 | 429 | 500..=599),
    }
}

/// The version of an object is its tag and its time, in seconds: a list may have it more precisely.
fn stored(bytes: u64, tag: &str, written: Option<Timestamp>) -> StoredObject {
    let tag = tag.trim_matches('"');
    let version = format!("{tag} {:?}", written.map(Timestamp::as_second));
    let [a, b, c, d, e, f, g, h, ..] = Hash::of(version.as_bytes()).0;
    StoredObject {
        bytes,
        stamp: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
    }
}

/// The field with the MD5 of an object, which S3 and what is compatible compare. It protects from accidents only.
const CHECKSUM: &str = "content-md5";

/// How long a signature is good.
const SIGNED_FOR: Duration = Duration::from_secs(600);
const CONNECT: Duration = Duration::from_secs(10);
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Before further attempts.
const WAITS: [Duration; 4] = [
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(15),
];
/// The longest page of a list, of 1,000 objects.
const PAGE_BYTES_MAX: u64 = 16 << 20;
/// Bytes that are read of the answer to a failed request.
const ERROR_BYTES_MAX: u64 = 64 << 10;
/// What is repeated of an error.
const SAID_CHARS_MAX: usize = 300;
