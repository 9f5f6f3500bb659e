//! Leaves credentials out of texts with URLs: who reads a log must not be able to use what it holds.
//!
//! The server itself accepts a signature in a URL only. Clients put tokens there as well, by mistake or as RFC 6750 allows elsewhere, and
//! all of it counts, however it is encoded: logs are read by more people and programs than may use a credential.

use std::borrow::Cow;

use percent_encoding::percent_decode;

/// A text with URLs or their queries, with `-` instead of the value of each parameter whose name says that it is secret.
pub(crate) fn without_secrets(text: &[u8]) -> Cow<'_, [u8]> {
    let mut out: Option<Vec<u8>> = None;
    let mut start = 0;
    while start < text.len() {
        let rest = &text[start..];
        let end = rest.iter().position(|byte| ENDS_VALUE.contains(byte));
        let part = &rest[..end.unwrap_or(rest.len())];
        match kept(part, DECODINGS_MAX) {
            None => {
                if let Some(out) = &mut out {
                    out.extend_from_slice(part);
                }
            }
            Some(kept) => {
                let out = out.get_or_insert_with(|| text[..start].to_vec());
                out.extend_from_slice(&part[..kept]);
                out.extend_from_slice(REMOVED);
            }
        }
        start += part.len();
        if let (Some(delimiter), Some(out)) = (text.get(start), &mut out) {
            out.push(*delimiter);
        }
        start += 1;
    }
    out.map_or(Cow::Borrowed(text), Cow::Owned)
}

/// How many bytes of a part of a text are kept, if it holds a secret behind them.
fn kept(part: &[u8], decodings: usize) -> Option<usize> {
    for equals in memchr::memchr_iter(b'=', part) {
        let before = &part[..equals];
        let name = before.iter().rposition(|byte| STARTS_NAME.contains(byte));
        if is_secret(&before[name.map_or(0, |at| at + 1)..]) {
            return Some(equals + 1);
        }
    }
    // A URL as the value of a parameter, or a name whose `=` is encoded as well.
    if decodings == 0 || memchr::memchr(b'%', part).is_none() {
        return None;
    }
    let decoded = decode(part);
    let mut parts = decoded.split(|byte| ENDS_VALUE.contains(byte));
    parts
        .any(|part| kept(part, decodings - 1).is_some())
        .then(|| memchr::memchr(b'=', part).map_or(0, |equals| equals + 1))
}

fn is_secret(name: &[u8]) -> bool {
    let mut name = Cow::Borrowed(name);
    for _ in 0..DECODINGS_MAX {
        if memchr::memchr(b'%', &name).is_none() {
            break;
        }
        name = decode(&name).into_owned().into();
    }
    // Such as the brackets of a list.
    let letters = name.iter().rposition(u8::is_ascii_alphanumeric);
    let name = &name[..letters.map_or(0, |last| last + 1)];
    let ends_with = |end: &&[u8]| {
        let tail = name.len().checked_sub(end.len()).map(|at| &name[at..]);
        tail.is_some_and(|tail| tail.eq_ignore_ascii_case(end))
    };
    SECRET_ENDS.iter().any(ends_with)
}

/// Decodes once, and leaves as it is what is not percent-encoded.
fn decode(text: &[u8]) -> Cow<'_, [u8]> {
    percent_decode(text).into()
}

/// The ends of the names of secret parameters: also `X-Amz-Signature`, `access_token`, `id_token`.
const SECRET_ENDS: [&[u8]; 11] = [
    b"signature",
    b"token",
    b"secret",
    b"password",
    b"api_key",
    b"api-key",
    b"apikey",
    b"jwt",
    b"authorization",
    b"bearer",
    b"sig",
];

/// What ends the value of a parameter.
const ENDS_VALUE: &[u8] = b"&# ";

/// What may stand before the name of a parameter, beside that.
const STARTS_NAME: &[u8] = b"?/;,=";

/// How often a text may be encoded: a URL in the query of a URL in the query of another one.
const DECODINGS_MAX: usize = 3;

/// Stands for a secret.
const REMOVED: &[u8] = b"-";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn secrets_are_left_out_however_they_are_written() {
        for (text, kept) in [
            ("", ""),
            ("a=b&offset=-1#x", "a=b&offset=-1#x"),
            ("a=b&signature=c2ln&kid=k", "a=b&signature=-&kid=k"),
            ("signature=a&x&signature=b", "signature=-&x&signature=-"),
            ("signature=", "signature=-"),
            ("signature=a=b/c;d?e", "signature=-"),
            ("%73ignature=c2ln&x=1", "%73ignature=-&x=1"),
            ("%2573ignature=c2ln", "%2573ignature=-"),
            ("signatur%65=c2ln", "signatur%65=-"),
            ("SIGNATURE=c2ln", "SIGNATURE=-"),
            ("signature%3Dc2ln&x", "-&x"),
            ("a=1&access_token=ey.J.x", "a=1&access_token=-"),
            ("access%5Ftoken=ey.J.x", "access%5Ftoken=-"),
            ("token=x&api_key=y&API-Key=z", "token=-&api_key=-&API-Key=-"),
            (
                "https://h/p?signature=x#signature=y",
                "https://h/p?signature=-#signature=-",
            ),
            (
                "https://h/p?next=%2Fv1%3Fa%26signature%3Dx&b=c",
                "https://h/p?next=-&b=c",
            ),
            ("next=%252Fv1%253Fsignature%253Dx", "next=-"),
            ("/v1/stream/a;signature=x", "/v1/stream/a;signature=-"),
            ("/v1/stream/a%3Fsignature=x", "/v1/stream/a%3Fsignature=-"),
            (
                "signature%00=a&signature%20=b&x=1",
                "signature%00=-&signature%20=-&x=1",
            ),
            ("signature[]=a&x=1", "signature[]=-&x=1"),
            (
                "authorization=a&bearer=b&sig=c",
                "authorization=-&bearer=-&sig=-",
            ),
            ("tokens=1&design=2&signature", "tokens=1&design=2&signature"),
            ("100%&%zz=%", "100%&%zz=%"),
        ] {
            let found = without_secrets(text.as_bytes());
            assert_eq!(String::from_utf8_lossy(&found), kept, "{text}");
        }
    }

    proptest! {
        /// A secret is no part of what is left, and the rest is.
        #[test]
        fn no_secret_is_left(
            before in "[a-z%=&?;/#]{0,12}",
            name in prop::sample::select(&["signature", "%73ignature", "access_token", "x-api-key"][..]),
            secret in "[0-9A-Z]{6,20}",
            after in "[a-z%=&#]{0,12}",
        ) {
            let text = format!("{before}&{name}={secret}&{after}");
            let left = without_secrets(text.as_bytes());
            let left = String::from_utf8_lossy(&left).into_owned();
            prop_assert!(!left.contains(&secret), "{text} {left}");
            prop_assert_eq!(without_secrets(left.as_bytes()).into_owned(), left.as_bytes());
        }
    }
}
