//! What responses say to pages of other origins (Fetch, section 3.2.3).

use std::sync::LazyLock;

use crate::gate::OriginReader;
use crate::protocols::{ProtocolSettings, Protocols};
use crate::response::CrossOrigin;

/// The fields of cross-origin responses.
#[derive(Clone, Copy, Debug)]
pub struct CrossOriginFields<'a> {
    /// The origin that the response names.
    pub reader: &'a OriginReader,
    /// All origins are allowed.
    pub any: bool,
    /// Some origins are allowed and others are not, so that responses to different requests differ.
    pub vary: bool,
}

impl CrossOrigin {
    /// Appends the fields that a response gets.
    pub fn write(self, fields: CrossOriginFields<'_>, out: &mut Vec<u8>) {
        if self == CrossOrigin::Never {
            return;
        }
        let cacheable = self == CrossOrigin::Cacheable;
        match fields.reader {
            // Not every cache heeds `Vary: Origin`.
            OriginReader::Unnamed if cacheable && fields.any => out.extend_from_slice(ANY_ORIGIN),
            OriginReader::Unnamed => {
                if fields.vary && cacheable {
                    out.extend_from_slice(VARY);
                }
                return;
            }
            OriginReader::Any => out.extend_from_slice(ANY_ORIGIN),
            OriginReader::Origin(origin) => {
                out.extend_from_slice(b"Access-Control-Allow-Origin: ");
                out.extend_from_slice(origin.as_bytes());
                out.extend_from_slice(b"\r\nAccess-Control-Allow-Credentials: true\r\n");
                out.extend_from_slice(VARY);
            }
        }
        out.extend_from_slice(EXPOSED_FIELDS.as_bytes());
    }
}

/// The fields that scripts of allowed origins may read, as a field. No setting changes which fields responses have.
static EXPOSED_FIELDS: LazyLock<String> = LazyLock::new(|| {
    let protocols = Protocols::without_streams(&ProtocolSettings::default());
    let names = protocols.response_fields();
    format!("Access-Control-Expose-Headers: {names}\r\n")
});

const ANY_ORIGIN: &[u8] = b"Access-Control-Allow-Origin: *\r\n";
const VARY: &[u8] = b"Vary: Origin\r\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_may_read_the_fields_of_all_protocols() {
        assert_eq!(
            *EXPOSED_FIELDS,
            "Access-Control-Expose-Headers: Stream-Next-Offset, Stream-Cursor, Stream-Up-To-Date, Stream-Closed, Stream-TTL, \
             Stream-Expires-At, Stream-SSE-Data-Encoding, Producer-Epoch, Producer-Seq, Producer-Expected-Seq, Producer-Received-Seq, \
             ETag, Location, Retry-After, Encke-Ack, Encke-Retention, Encke-Floor, Encke-Messages, Encke-Owner, Encke-Metadata, \
             Encke-Producer-Timeout, Encke-End-Reason, Encke-Stop-Requested, Encke-Read-URL, Job-Id, Job-Attempt, Job-Deadline, Job-Key, \
             Job-Token, Date, X-Request-Id\r\n"
        );
    }
}
