//! A request's head: the request line and the fields.

use std::mem::MaybeUninit;

use memchr::memchr_iter;

use super::Rejection;
use super::target;

/// A head, complete and fit to be answered.
#[derive(Debug)]
pub(crate) struct Head<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) query: Option<&'a str>,
    /// What an extended CONNECT of HTTP/2 asks for (`:protocol`).
    pub(crate) protocol: Option<&'a str>,
    pub(crate) framing: Framing,
    /// The minor version of HTTP/1, 0 for HTTP/1.0; 2 for HTTP/2.
    pub(crate) version: u8,
    /// Whether the client may send another request.
    pub(crate) keep_alive: bool,
    /// Whether the client waits for `100 Continue` before it sends the body.
    pub(crate) expects_continue: bool,
    /// How many bytes it took.
    pub(crate) bytes: usize,
}

/// How the body's end is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    None,
    Length(u64),
    Chunked,
}

/// Room for the fields of one head, so that parsing allocates nothing.
pub(crate) type Fields<'a> = [(&'a str, &'a [u8]); FIELDS_MAX];

/// Fields that a head may have: as many as common proxies pass on. Parsing takes 64 bytes of the stack for each.
pub(crate) const FIELDS_MAX: usize = 100;

/// No fields yet.
pub(crate) const NO_FIELDS: Fields<'static> = [("", &[]); FIELDS_MAX];

/// Parses a head and fills in its fields; also gives how many there are. `Ok(None)`: more is needed.
pub(crate) fn parse<'a>(
    input: &'a [u8],
    fields: &mut Fields<'a>,
) -> Result<Option<(Head<'a>, usize)>, Rejection> {
    let mut room = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut []);
    let bytes = match request.parse_with_uninit_headers(input, &mut room) {
        Ok(httparse::Status::Complete(bytes)) => bytes,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(too_many_fields());
        }
        Err(httparse::Error::Version) if names_version(input) => {
            return Err(Rejection::new(505, "version", "only HTTP/1.1 is supported"));
        }
        Err(error) => {
            return Err(Rejection::new(
                400,
                "malformed",
                format!("the request is not HTTP/1.1: {error}"),
            ));
        }
    };
    let (Some(method), Some(target), Some(version)) =
        (request.method, request.path, request.version)
    else {
        return Err(Rejection::new(
            400,
            "malformed",
            "the request line is incomplete",
        ));
    };
    // The parser accepts a lone LF as a line's end, as it may; a proxy before this server may not, and find another head
    // (RFC 9112, section 2.2).
    if memchr_iter(b'\n', &input[..bytes]).any(|at| at == 0 || input[at - 1] != b'\r') {
        return Err(bare_lf());
    }
    let mut facts = HeadFacts::default();
    let mut count = request.headers.len();
    for (field, header) in fields.iter_mut().zip(&*request.headers) {
        *field = (header.name, header.value);
        facts.take(header.name, header.value)?;
    }
    let target = target::split(method, target)?;
    let head = Head {
        method,
        path: target.path,
        query: target.query,
        protocol: None,
        framing: facts.framing(version)?,
        version,
        keep_alive: version == 1 && !facts.close,
        expects_continue: version == 1 && facts.expects_continue,
        bytes,
    };
    facts.check_host(version)?;
    match (target.authority, facts.host) {
        (Some((scheme, authority)), Some(host)) => {
            target::check_same_host(scheme, authority, host)?;
        }
        // A request of HTTP/1.0, which is for this host nevertheless.
        (Some((_, authority)), None) => {
            *fields.get_mut(count).ok_or_else(too_many_fields)? = ("Host", authority.as_bytes());
            count += 1;
        }
        (None, _) => {}
    }
    Ok(Some((head, count)))
}

/// What the fields say about the connection and the body.
#[derive(Default)]
pub(crate) struct HeadFacts<'a> {
    hosts: u32,
    host: Option<&'a [u8]>,
    length: Option<u64>,
    chunked: bool,
    close: bool,
    expects_continue: bool,
}

impl<'a> HeadFacts<'a> {
    /// Takes the next field.
    pub(crate) fn take(&mut self, name: &str, value: &'a [u8]) -> Result<(), Rejection> {
        // Lengths tell most fields apart at no cost.
        match name.len() {
            4 if name.eq_ignore_ascii_case("host") => {
                if !target::is_host(value) {
                    return Err(Rejection::new(
                        400,
                        "host",
                        "the Host field names a host, with or without a port",
                    ));
                }
                self.hosts += 1;
                self.host = Some(value);
            }
            6 if name.eq_ignore_ascii_case("expect") => {
                // A list (RFC 9110, section 10.1.1), which may be empty.
                let mut members = value
                    .split(|byte| *byte == b',')
                    .map(<[u8]>::trim_ascii)
                    .filter(|member| !member.is_empty())
                    .peekable();
                self.expects_continue |= members.peek().is_some();
                if !members.all(|member| member.eq_ignore_ascii_case(b"100-continue")) {
                    return Err(Rejection::new(
                        417,
                        "expectation",
                        "the only supported expectation is 100-continue",
                    ));
                }
            }
            10 if name.eq_ignore_ascii_case("connection") => {
                self.close |= value
                    .split(|byte| *byte == b',')
                    .any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"));
            }
            14 if name.eq_ignore_ascii_case("content-length") => {
                if self.length.is_some() {
                    return Err(Rejection::new(
                        400,
                        "two_lengths",
                        "Content-Length is given more than once",
                    ));
                }
                self.length = Some(length(value)?);
            }
            17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                if self.chunked || !value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                    return Err(Rejection::new(
                        501,
                        "transfer_encoding",
                        "the only supported transfer encoding is chunked, once",
                    ));
                }
                self.chunked = true;
            }
            _ => {}
        }
        Ok(())
    }

    /// Both lengths at once is how requests are smuggled past proxies (RFC 9112, section 11.2).
    fn framing(&self, version: u8) -> Result<Framing, Rejection> {
        match (self.length, self.chunked) {
            (Some(_), true) => Err(Rejection::new(
                400,
                "two_lengths",
                "Content-Length and Transfer-Encoding exclude each other",
            )),
            (None, true) if version == 0 => Err(Rejection::new(
                400,
                "transfer_encoding",
                "HTTP/1.0 has no transfer encodings",
            )),
            (None, true) => Ok(Framing::Chunked),
            (Some(0) | None, false) => Ok(Framing::None),
            (Some(length), false) => Ok(Framing::Length(length)),
        }
    }

    /// The length of the body, if a field gives it.
    pub(crate) fn length(&self) -> Option<u64> {
        self.length
    }

    /// Checks that there is one Host field, as every version but HTTP/1.0 demands.
    pub(crate) fn check_host(&self, version: u8) -> Result<(), Rejection> {
        match self.hosts {
            1 => Ok(()),
            0 if version == 0 => Ok(()),
            _ => Err(Rejection::new(
                400,
                "host",
                "HTTP/1.1 requests have one Host field",
            )),
        }
    }
}

pub(crate) fn too_many_fields() -> Rejection {
    Rejection::new(
        431,
        "too_many_fields",
        format!("a request has at most {FIELDS_MAX} fields"),
    )
}

/// The fields `Origin` in the whole lines of a head that may break a rule or lack its end, and whether the end is there. Values that no
/// browser sends are left out.
pub(crate) fn origin_fields(input: &[u8]) -> (Vec<(&str, &[u8])>, bool) {
    let mut fields = Vec::new();
    for line in input.split_inclusive(|byte| *byte == b'\n').skip(1) {
        let Some(line) = line.strip_suffix(b"\n") else {
            break;
        };
        let line = line.trim_ascii_end();
        if line.is_empty() {
            return (fields, true);
        }
        let Some(colon) = memchr::memchr(b':', line) else {
            continue;
        };
        let value = line[colon + 1..].trim_ascii();
        if line[..colon].eq_ignore_ascii_case(b"Origin") && value.iter().all(u8::is_ascii_graphic) {
            fields.push(("Origin", value));
        }
    }
    (fields, false)
}

/// A line that ends in LF alone.
pub(crate) fn bare_lf() -> Rejection {
    Rejection::new(400, "bare_lf", "the lines of a request's head end in CR LF")
}

/// Digits only: no sign, no list, no space within.
fn length(value: &[u8]) -> Result<u64, Rejection> {
    let digits = value.trim_ascii();
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits)
        .ok()
        .filter(|_| plain)
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| Rejection::new(400, "bad_length", "Content-Length is one whole number"))
}

/// Whether a request line that was refused for its version names one: what stands there may be no version at all.
fn names_version(input: &[u8]) -> bool {
    let line = input.trim_ascii_start().split(|byte| *byte == b'\n').next();
    let mut words = line
        .unwrap_or_default()
        .trim_ascii_end()
        .splitn(3, |byte| *byte == b' ');
    words.nth(2).is_some_and(|version| {
        version.strip_prefix(b"HTTP/").is_some_and(|number| {
            number
                .iter()
                .all(|byte| byte.is_ascii_digit() || *byte == b'.')
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Path, query, framing, and whether the connection is kept.
    type Parsed = (String, Option<String>, Framing, bool);

    fn parsed(input: &str) -> Result<Option<Parsed>, u16> {
        let mut fields = NO_FIELDS;
        match parse(input.as_bytes(), &mut fields) {
            Err(refused) => Err(refused.status),
            Ok(None) => Ok(None),
            Ok(Some((head, _))) => Ok(Some((
                head.path.into(),
                head.query.map(Into::into),
                head.framing,
                head.keep_alive,
            ))),
        }
    }

    #[test]
    fn finds_where_a_request_ends() {
        let get = "GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n";
        assert_eq!(
            parsed(get),
            Ok(Some(("/a".into(), Some("b=c".into()), Framing::None, true)))
        );
        for end in 0..get.len() {
            assert_eq!(parsed(&get[..end]), Ok(None), "{end}");
        }
        let post =
            "POST http://x/a HTTP/1.1\r\nhost: x\r\nCONTENT-LENGTH: 7\r\nConnection: close\r\n\r\n";
        assert_eq!(
            parsed(post),
            Ok(Some(("/a".into(), None, Framing::Length(7), false)))
        );
    }

    #[test]
    fn refuses_what_two_readers_could_read_in_two_ways() {
        let head = |fields: &str| format!("POST / HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n");
        for (fields, status) in [
            ("Content-Length: 1\r\nTransfer-Encoding: chunked", 400),
            ("Transfer-Encoding: chunked\r\nContent-Length: 1", 400),
            ("Content-Length: 1\r\nContent-Length: 2", 400),
            ("Content-Length: 1\r\nContent-Length: 1", 400),
            ("Content-Length: 1, 1", 400),
            ("Content-Length: +1", 400),
            ("Content-Length: 0x1", 400),
            ("Content-Length:", 400),
            ("Content-Length: 99999999999999999999", 400),
            ("Transfer-Encoding: gzip, chunked", 501),
            ("Transfer-Encoding: chunked, chunked", 501),
            (
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
                501,
            ),
            ("Transfer-Encoding: xchunked", 501),
            ("Transfer-Encoding : chunked", 400),
            ("Host: y", 400),
            ("A: b\r\n c", 400),
            ("A\0: b", 400),
            ("Expect: miracles", 417),
        ] {
            assert_eq!(parsed(&head(fields)), Err(status), "{fields:?}");
        }
        assert_eq!(parsed("GET / HTTP/1.1\r\n\r\n"), Err(400));
        assert_eq!(parsed("GET / HTTP/2.0\r\nHost: x\r\n\r\n"), Err(505));
        assert_eq!(parsed("GET /a b HTTP/1.1\r\nHost: x\r\n\r\n"), Err(400));
        assert_eq!(
            parsed("GET http:///a HTTP/1.1\r\nHost: x\r\n\r\n"),
            Err(400)
        );
        // A target for another host than the field says: one of them is looked at here, the other by a proxy.
        let other = "GET http://y/a HTTP/1.1\r\nHost: x\r\n\r\n";
        assert_eq!(parsed(other), Err(400));
        assert_eq!(parsed("GET x HTTP/1.1\r\nHost: x\r\n\r\n"), Err(400));
        let ten = "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(parsed(ten), Err(400));
    }

    #[test]
    fn the_host_of_an_absolute_target_counts_where_there_is_no_other() {
        let mut fields = NO_FIELDS;
        let input = b"GET http://y:1/a HTTP/1.0\r\nA: b\r\n\r\n";
        let (_, count) = parse(input, &mut fields).unwrap().unwrap();
        assert_eq!(fields[..count], [("A", &b"b"[..]), ("Host", b"y:1")]);
        let many = "A: b\r\n".repeat(FIELDS_MAX);
        let full = format!("GET http://y/a HTTP/1.0\r\n{many}\r\n");
        assert_eq!(parsed(&full), Err(431));
    }

    #[test]
    fn bounds_the_fields() {
        let head = |others: usize| {
            let others = "A: b\r\n".repeat(others);
            parsed(&format!("GET / HTTP/1.1\r\nHost: x\r\n{others}\r\n"))
        };
        // As many as proxies pass on.
        assert_eq!(FIELDS_MAX, 100);
        assert!(matches!(head(FIELDS_MAX - 1), Ok(Some(_))));
        assert_eq!(head(FIELDS_MAX), Err(431));
    }
}
