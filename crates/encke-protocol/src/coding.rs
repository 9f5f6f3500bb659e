//! Content codings: which one a client prefers (RFC 9110, section 12.5.3).

use crate::quality::weight;
use crate::request::Headers;

/// A coding that compresses a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentCoding {
    /// `zstd` (RFC 8878).
    Zstd,
    /// `gzip` (RFC 1952).
    Gzip,
}

/// A body may be sent in a coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodingOffer {
    /// The coding that the client prefers.
    pub coding: ContentCoding,
    /// The client refuses a body that is not coded.
    pub required: bool,
}

/// No coding of this server, and no body without one, is acceptable to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotAcceptable;

impl ContentCoding {
    /// All codings, the one that the server prefers first.
    pub const ALL: [ContentCoding; 2] = [ContentCoding::Zstd, ContentCoding::Gzip];

    /// Its name in `Content-Encoding`.
    pub fn name(self) -> &'static str {
        match self {
            ContentCoding::Zstd => "zstd",
            ContentCoding::Gzip => "gzip",
        }
    }
}

/// What a client's `Accept-Encoding` says. `None`: the body is to be sent as it is.
pub(crate) fn negotiate(headers: Headers<'_>) -> Result<Option<CodingOffer>, NotAcceptable> {
    let mut accepted = Accepted::default();
    for list in headers.all("Accept-Encoding") {
        accepted.list(list);
    }
    let weight = |named: Option<u16>| named.or(accepted.others).unwrap_or(0);
    let [zstd, gzip] = [weight(accepted.zstd), weight(accepted.gzip)];
    let (coding, weight) = match gzip > zstd {
        true => (ContentCoding::Gzip, gzip),
        false => (ContentCoding::Zstd, zstd),
    };
    // Unless it is excluded by name, or by `*`, a body without a coding is acceptable.
    let required = accepted.identity.or(accepted.others) == Some(0);
    if weight == 0 {
        return match required {
            true => Err(NotAcceptable),
            false => Ok(None),
        };
    }
    let preferred = accepted.identity.is_some_and(|identity| identity > weight);
    Ok((!preferred).then_some(CodingOffer { coding, required }))
}

/// The weights of codings in thousandths; `None` for one that is not named.
#[derive(Default)]
struct Accepted {
    zstd: Option<u16>,
    gzip: Option<u16>,
    identity: Option<u16>,
    /// `*`: all that are not named.
    others: Option<u16>,
}

impl Accepted {
    fn list(&mut self, list: &[u8]) {
        for member in list.split(|byte| *byte == b',') {
            let mut parts = member.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
            let name = parts.next().unwrap_or_default();
            // A member with parameters that mean nothing is ignored as a whole: it may be a refusal.
            let weight = match (parts.next(), parts.next()) {
                (None, _) => Some(1000),
                (Some(parameter), None) => weight(parameter),
                (Some(_), Some(_)) => None,
            };
            let Some(weight) = weight else {
                continue;
            };
            let place = match () {
                () if name.eq_ignore_ascii_case(b"zstd") => &mut self.zstd,
                // RFC 9110, section 8.4.1.3.
                () if name.eq_ignore_ascii_case(b"gzip") => &mut self.gzip,
                () if name.eq_ignore_ascii_case(b"x-gzip") => &mut self.gzip,
                () if name.eq_ignore_ascii_case(b"identity") => &mut self.identity,
                () if name == b"*" => &mut self.others,
                () => continue,
            };
            *place = Some(place.map_or(weight, |before| before.max(weight)));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn negotiated(fields: &[&str]) -> Result<Option<CodingOffer>, NotAcceptable> {
        let fields: Vec<_> = fields
            .iter()
            .map(|value| ("accept-encoding", value.as_bytes()))
            .collect();
        negotiate(Headers(&fields))
    }

    #[test]
    fn the_coding_with_the_highest_weight_is_taken() {
        let offer = |coding, required| Ok(Some(CodingOffer { coding, required }));
        let gzip = || offer(ContentCoding::Gzip, false);
        let zstd = || offer(ContentCoding::Zstd, false);
        for (fields, expected) in [
            (&[][..], Ok(None)),
            (&[""], Ok(None)),
            (&["identity"], Ok(None)),
            (&["br, deflate"], Ok(None)),
            (&["gzip"], gzip()),
            (&["GZip"], gzip()),
            (&["x-gzip"], gzip()),
            (&["gzip, deflate, br"], gzip()),
            (&["gzip, deflate, br, zstd"], zstd()),
            (&["br", "gzip"], gzip()),
            (&["gzip;q=1, zstd;q=0.9"], gzip()),
            (&["gzip ; q=0.001"], gzip()),
            (&["gzip;Q=1.000"], gzip()),
            (&["gzip;q=0"], Ok(None)),
            (&["gzip;q=0.000, zstd;q=0"], Ok(None)),
            (&["*"], zstd()),
            (&["*;q=0.5, zstd;q=0"], gzip()),
            (&["gzip, *;q=0"], offer(ContentCoding::Gzip, true)),
            (&["gzip, identity;q=0"], offer(ContentCoding::Gzip, true)),
            (&["identity;q=0, *"], offer(ContentCoding::Zstd, true)),
            (&["*;q=0, identity;q=0.1, gzip"], gzip()),
            (&["identity;q=1, gzip;q=0.5"], Ok(None)),
            (&["identity;q=0.5, gzip;q=0.5"], gzip()),
            (&["*;q=0"], Err(NotAcceptable)),
            (&["identity;q=0"], Err(NotAcceptable)),
            (&["br, identity;q=0"], Err(NotAcceptable)),
            // What cannot be read is not there.
            (&["gzip;q=2"], Ok(None)),
            (&["gzip;q=1.001"], Ok(None)),
            (&["gzip;q=0.0001"], Ok(None)),
            (&["gzip;q=.5"], Ok(None)),
            (&["gzip;q="], Ok(None)),
            (&["gzip;level=1"], Ok(None)),
            (&["gzip;q=1;x"], Ok(None)),
            (&[",,gzip,,"], gzip()),
        ] {
            assert_eq!(negotiated(fields), expected, "{fields:?}");
        }
    }

    proptest! {
        #[test]
        fn weights_are_read_as_the_grammar_has_them(text in "q=[01]?[.]?[0-9]{0,4}") {
            let value = &text[2..];
            let (whole, fraction) = value.split_once('.').unwrap_or((value, ""));
            let number: Option<f64> = value.parse().ok();
            let good = ["0", "1"].contains(&whole) && fraction.len() <= 3 && number.unwrap() <= 1.0;
            let expected = good.then(|| (number.unwrap() * 1000.0).round() as u16);
            prop_assert_eq!(weight(text.as_bytes()), expected);
        }

        #[test]
        fn no_list_panics(list in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = negotiate(Headers(&[("Accept-Encoding", &list)]));
        }
    }
}
