//! Reads responses of HTTP/1.1 as a client does.

/// A response, as far as it has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedResponse {
    pub(crate) status: u16,
    /// The status line and the fields, with their last line end.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// Its end has arrived, and not by the end of the connection.
    pub(crate) is_complete: bool,
}

impl ReceivedResponse {
    /// A field's value.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (field, value) = line.split_once(": ")?;
            field.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    /// The body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// The responses in what a connection has sent, without those that only invite a body. `is_head`: the request of the response
/// with that number was HEAD.
///
/// # Panics
/// Something is no response.
pub(crate) fn responses(
    mut bytes: &[u8],
    is_head: impl Fn(usize) -> bool,
) -> Vec<ReceivedResponse> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let Some(end) = memchr::memmem::find(bytes, b"\r\n\r\n") else {
            break;
        };
        let head = std::str::from_utf8(&bytes[..end + 2]).expect("heads are text");
        let status = head
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3));
        let status = status.unwrap_or_else(|| panic!("no response begins with {head:?}"));
        let mut received = ReceivedResponse {
            status: status.parse().expect("a status is a number"),
            head: head.to_owned(),
            body: Vec::new(),
            is_complete: true,
        };
        bytes = &bytes[end + 4..];
        if received.status < 200 {
            continue;
        }
        let is_bodiless = is_head(all.len()) || matches!(received.status, 204 | 304);
        if is_bodiless {
            // Nothing follows.
        } else if received.field("Transfer-Encoding") == Some("chunked") {
            received.is_complete = take_chunks(&mut bytes, &mut received.body);
        } else if let Some(length) = received.field("Content-Length") {
            let length: usize = length.parse().expect("a length is a number");
            let count = length.min(bytes.len());
            received.body.extend_from_slice(&bytes[..count]);
            received.is_complete = count == length;
            bytes = &bytes[count..];
        } else {
            received.body.extend_from_slice(bytes);
            received.is_complete = false;
            bytes = &[];
        }
        all.push(received);
    }
    all
}

/// Takes chunks off the input. Whether the last one was there.
fn take_chunks(bytes: &mut &[u8], body: &mut Vec<u8>) -> bool {
    loop {
        let Some(end) = memchr::memmem::find(bytes, b"\r\n") else {
            *bytes = &[];
            return false;
        };
        let size = std::str::from_utf8(&bytes[..end]).expect("sizes are text");
        let size = usize::from_str_radix(size, 16).expect("sizes are numbers");
        let rest = &bytes[end + 2..];
        body.extend_from_slice(&rest[..size.min(rest.len())]);
        if rest.len() < size + 2 {
            *bytes = &[];
            return false;
        }
        assert_eq!(&rest[size..size + 2], b"\r\n", "a chunk ends as it says");
        *bytes = &rest[size + 2..];
        if size == 0 {
            return true;
        }
    }
}
