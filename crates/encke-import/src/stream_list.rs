//! Which streams are copied: their addresses at the source, and their names at the destination.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use ureq::http::Uri;

/// What is wrong with an address or a name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadStreams {
    /// It is no address of a server.
    #[error("{0:?} is no address of a server, such as https://streams.example/v1/stream: {1}")]
    NoUrl(String, &'static str),
    /// It is no name of a stream.
    #[error("{0:?} is no name of a stream, such as chat/ann: {1}")]
    NoName(String, &'static str),
    /// It is an address outside of the source.
    #[error("{0:?} is not below the source {1}")]
    Elsewhere(String, String),
    /// Two streams would become one.
    #[error("{0} and {1} would both be copied to the stream {2}")]
    SameName(String, String, String),
    /// The source has a query, which belongs to one stream only.
    #[error(
        "the source has a query, so it is the address of one stream; name no others, or leave the query out"
    )]
    QueryOfMany,
    /// There is nothing to copy.
    #[error("the list of streams is empty")]
    Nothing,
}

/// The address below which a server has its streams, or that of one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceRoot {
    /// Scheme and host.
    origin: String,
    /// With a slash at its beginning, if it is not empty, and none at its end.
    path: String,
    query: Option<String>,
}

/// A stream that is copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamTask {
    /// The stream's name at the destination, as it stands in addresses.
    pub name: String,
    /// Its address at the source, without a query.
    pub source: String,
    /// What stands behind the question mark of all requests to the source.
    pub query: Option<String>,
    /// Its address at the destination.
    pub destination: String,
}

impl SourceRoot {
    /// Reads the address of a server's streams, or of one stream.
    ///
    /// # Errors
    /// The text is no address over http or https, or it has a password.
    pub fn parse(text: &str) -> Result<Self, BadStreams> {
        let bad = |why| BadStreams::NoUrl(text.to_owned(), why);
        let text_of_url = text.trim().split('#').next().unwrap_or_default();
        let has_scheme = |scheme: &str| {
            let begin = text_of_url.get(..scheme.len());
            begin.is_some_and(|begin| begin.eq_ignore_ascii_case(scheme))
        };
        if !has_scheme("http://") && !has_scheme("https://") {
            return Err(bad("it begins with neither http:// nor https://"));
        }
        let escaped = utf8_percent_encode(text_of_url, NOT_IN_URLS).to_string();
        let uri: Uri = escaped.parse().map_err(|_| bad("it can't be parsed"))?;
        let scheme = uri.scheme_str().unwrap_or_default();
        let authority = uri.authority().ok_or_else(|| bad("it has no host"))?;
        if authority.as_str().contains('@') {
            // Not shown: it holds a password.
            let shown = format!("{scheme}://…@{}", authority.host());
            return Err(BadStreams::NoUrl(
                shown,
                "a user and a password belong into a header field",
            ));
        }
        let path = uri.path().trim_end_matches('/');
        if path.contains("//") {
            return Err(bad("its path has an empty segment"));
        }
        Ok(SourceRoot {
            origin: format!("{scheme}://{authority}"),
            path: path.to_owned(),
            query: uri
                .query()
                .filter(|query| !query.is_empty())
                .map(str::to_owned),
        })
    }

    /// Reads the address of a destination: of the server, or of its streams.
    ///
    /// # Errors
    /// The text is no address over http or https, or it has a query or a password.
    pub fn parse_destination(text: &str) -> Result<Self, BadStreams> {
        let mut root = SourceRoot::parse(text)?;
        if root.query.is_some() {
            return Err(BadStreams::NoUrl(
                text.to_owned(),
                "a destination has no query",
            ));
        }
        if root.path.is_empty() {
            MOUNT.trim_end_matches('/').clone_into(&mut root.path);
        }
        Ok(root)
    }

    /// The address, without a query.
    pub fn url(&self) -> String {
        format!("{}{}", self.origin, self.path)
    }

    /// The name of a stream that is named by its name, its path, or its address.
    fn name_of(&self, text: &str) -> Result<String, BadStreams> {
        let is_address = text.contains("://");
        if !is_address && !text.starts_with('/') {
            return name(text);
        }
        let elsewhere = || BadStreams::Elsewhere(text.to_owned(), self.url());
        let path = match is_address {
            true => {
                let other = SourceRoot::parse(text)?;
                if other.origin != self.origin || other.query.is_some() {
                    return Err(elsewhere());
                }
                other.path
            }
            false => utf8_percent_encode(text, NOT_IN_URLS).to_string(),
        };
        let below = path
            .strip_prefix(&*self.path)
            .and_then(|rest| rest.strip_prefix('/'));
        name(below.ok_or_else(elsewhere)?)
    }

    /// The name of the one stream whose address this is: what follows the mount of the protocol, or all of the path.
    fn own_name(&self) -> Result<String, BadStreams> {
        // With its end, so that the mount alone is no stream.
        let path = format!("{}/", self.path);
        let below = MOUNTS.iter().find_map(|mount| {
            let at = path.find(mount)?;
            Some(&path[at + mount.len()..])
        });
        match below.unwrap_or(&path).trim_matches('/') {
            "" => Err(BadStreams::NoUrl(
                self.url(),
                "it is no address of a stream; name the streams behind it, or give a list with --streams",
            )),
            text => name(text),
        }
    }
}

/// What to copy from `source` to `destination`: the streams of the list, or the one that `source` is the address of. A name that is
/// there twice counts once. `prefix` stands before all names at the destination.
///
/// # Errors
/// Which name is wrong, and why.
pub fn tasks(
    source: &SourceRoot,
    list: Option<&[String]>,
    prefix: &str,
    destination: &SourceRoot,
) -> Result<Vec<StreamTask>, BadStreams> {
    let task = |own: String, address: String| -> Result<StreamTask, BadStreams> {
        let full = name(&format!("{prefix}{own}"))?;
        Ok(StreamTask {
            destination: format!("{}/{full}", destination.url()),
            name: full,
            source: address,
            query: source.query.clone(),
        })
    };
    let Some(list) = list else {
        return Ok(vec![task(source.own_name()?, source.url())?]);
    };
    if source.query.is_some() {
        return Err(BadStreams::QueryOfMany);
    }
    let mut all: Vec<StreamTask> = Vec::new();
    let mut known: HashMap<String, String> = HashMap::new();
    for text in list {
        let own = source.name_of(text)?;
        let address = format!("{}/{own}", source.url());
        let task = task(own, address)?;
        // What is the same when it is decoded is one stream.
        let decoded = percent_encoding::percent_decode_str(&task.name);
        match known.entry(decoded.decode_utf8_lossy().into_owned()) {
            Entry::Vacant(free) => {
                free.insert(task.source.clone());
                all.push(task);
            }
            Entry::Occupied(taken) if *taken.get() == task.source => {}
            Entry::Occupied(taken) => {
                let (first, second) = (taken.get().clone(), task.source);
                return Err(BadStreams::SameName(first, second, task.name));
            }
        }
    }
    if all.is_empty() {
        return Err(BadStreams::Nothing);
    }
    Ok(all)
}

/// A name as it stands in addresses. Escapes stay as they are, and what addresses can't have is escaped.
fn name(text: &str) -> Result<String, BadStreams> {
    let bad = |why| Err(BadStreams::NoName(text.to_owned(), why));
    let mut escaped = String::with_capacity(text.len());
    for (number, part) in text.split('%').enumerate() {
        let is_escape =
            part.len() >= 2 && part.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
        match (number, is_escape) {
            (0, _) => {}
            (_, true) => escaped.push('%'),
            (_, false) => escaped.push_str("%25"),
        }
        escaped.extend(utf8_percent_encode(part, NOT_IN_NAMES));
    }
    let decoded = percent_encoding::percent_decode_str(&escaped);
    let Ok(decoded) = decoded.decode_utf8() else {
        return bad("it is no UTF-8");
    };
    if decoded.chars().any(char::is_control) {
        return bad("it has a control character");
    }
    match decoded
        .split('/')
        .find(|segment| matches!(*segment, "" | "." | ".."))
    {
        Some("") => bad("it has an empty segment, or is empty"),
        Some(_) => bad("its segments can't be . or .."),
        None => Ok(escaped),
    }
}

/// Where a destination has its streams.
const MOUNT: &str = "/v1/stream/";

/// Where servers have their streams.
const MOUNTS: [&str; 2] = [MOUNT, "/streams/"];

/// Characters that addresses of any kind are typed with, and that they can't have.
const NOT_IN_URLS: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'`')
    .add(b'{')
    .add(b'}');

/// Characters that a path can't have.
const NOT_IN_NAMES: &AsciiSet = &NOT_IN_URLS
    .add(b'?')
    .add(b'#')
    .add(b'\\')
    .add(b'^')
    .add(b'|')
    .add(b'[')
    .add(b']');

#[cfg(test)]
mod tests;
