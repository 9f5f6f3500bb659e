//! Server-sent events, cut out of a stream of bytes without copying whenever an event arrives whole.
//!
//! Line ends may be LF, CRLF or CR, as the HTML standard has it. One liberty is taken: when the
//! bytes at hand end in a bare CR, the event waits for the byte after it, which might be its LF.

use super::http::{EVENT_BYTES_MAX, WireError};

/// How much is copied at once to complete an event that was held back.
const HELD_BLOCK_BYTES: usize = 4 * 1024;

/// Finds events in the pieces of one response body.
///
/// Invariant: `held` is `None` exactly when all that was fed belongs to complete events.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    held: Option<Box<HeldEvent>>,
}

/// The beginning of an event whose end has not arrived.
#[derive(Debug, Default)]
struct HeldEvent {
    bytes: Vec<u8>,
    scan: Scan,
}

/// How far a search for the end of an event has come.
#[derive(Debug, Default, Clone, Copy)]
struct Scan {
    /// Where the search goes on.
    position: usize,
    /// Where the line at `position` began.
    line_start: usize,
}

impl Splitter {
    /// Whether no part of an event is being held back.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_none()
    }

    /// Takes the next bytes and calls `on_event` for each event that they complete.
    ///
    /// Blocks of nothing but comments come through as events without data.
    pub(crate) fn feed(
        &mut self,
        whole: &[u8],
        mut on_event: impl FnMut(Event<'_>) -> Result<(), WireError>,
    ) -> Result<(), WireError> {
        let mut bytes = whole;
        if let Some(mut held) = self.held.take() {
            // Only as much is copied as it takes to end the held event: the rest may be long.
            let end = loop {
                let block = bytes.len().min(HELD_BLOCK_BYTES);
                held.bytes.extend_from_slice(&bytes[..block]);
                bytes = &bytes[block..];
                if let Some(end) = held.scan.event_end(&held.bytes) {
                    break end;
                }
                if held.bytes.len() > EVENT_BYTES_MAX {
                    return Err(WireError::EventTooLong);
                }
                if bytes.is_empty() {
                    self.held = Some(held);
                    return Ok(());
                }
            };
            on_event(Event::parse(&held.bytes[..end]))?;
            let surplus = held.bytes.len() - end;
            bytes = &whole[whole.len() - bytes.len() - surplus..];
        }
        loop {
            let (event, end) = match plain_event(bytes) {
                Some(found) => found,
                None => {
                    let mut scan = Scan::default();
                    let Some(end) = scan.event_end(bytes) else {
                        if !bytes.is_empty() {
                            let bytes = bytes.to_vec();
                            self.held = Some(Box::new(HeldEvent { bytes, scan }));
                        }
                        return Ok(());
                    };
                    (Event::parse(&bytes[..end]), end)
                }
            };
            on_event(event)?;
            bytes = &bytes[end..];
        }
    }
}

impl Scan {
    /// Where the first event of `bytes` ends, its blank line included.
    fn event_end(&mut self, bytes: &[u8]) -> Option<usize> {
        while let Some(found) = memchr::memchr2(b'\n', b'\r', &bytes[self.position..]) {
            let at = self.position + found;
            let next = match (bytes[at], bytes.get(at + 1)) {
                (b'\n', _) => at + 1,
                (_, Some(b'\n')) => at + 2,
                (_, Some(_)) => at + 1,
                (_, None) => {
                    self.position = at;
                    return None;
                }
            };
            if at == self.line_start {
                return Some(next);
            }
            *self = Self {
                position: next,
                line_start: next,
            };
        }
        self.position = bytes.len();
        None
    }
}

/// An event in the form that nearly all have, found in one pass: a type, one line of data, LF.
fn plain_event(bytes: &[u8]) -> Option<(Event<'_>, usize)> {
    let rest = bytes.strip_prefix(b"event:")?;
    let kind_end = memchr::memchr2(b'\n', b'\r', rest)?;
    let kind = &rest[..kind_end];
    let line = rest[kind_end..].strip_prefix(b"\ndata:")?;
    let line_end = memchr::memchr2(b'\n', b'\r', line)?;
    let after = line[line_end..].strip_prefix(b"\n\n")?;
    let event = Event {
        kind: kind.strip_prefix(b" ").unwrap_or(kind),
        data: EventData::Line(
            line[..line_end]
                .strip_prefix(b" ")
                .unwrap_or(&line[..line_end]),
        ),
        id: None,
    };
    Some((event, bytes.len() - after.len()))
}

/// One event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event<'a> {
    /// Its type: `message` unless it names another.
    pub(crate) kind: &'a [u8],
    /// Its data.
    pub(crate) data: EventData<'a>,
    /// Its id, if it has one: where a client that comes back continues.
    pub(crate) id: Option<&'a [u8]>,
}

/// The data of an event.
#[derive(Debug, Clone, Copy)]
pub(crate) enum EventData<'a> {
    /// None, as in a comment that keeps the connection alive.
    None,
    /// One line.
    Line(&'a [u8]),
    /// Several lines, somewhere in these.
    Lines(Block<'a>),
}

/// All lines of an event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block<'a> {
    bytes: &'a [u8],
}

impl<'a> Event<'a> {
    fn parse(bytes: &'a [u8]) -> Self {
        let block = Block { bytes };
        let mut event = Self {
            kind: b"message",
            data: EventData::None,
            id: None,
        };
        for (name, value) in block.fields() {
            match (name, event.data) {
                (b"event", _) => event.kind = value,
                (b"id", _) => event.id = Some(value),
                (b"data", EventData::None) => event.data = EventData::Line(value),
                (b"data", _) => event.data = EventData::Lines(block),
                _ => {}
            }
        }
        event
    }
}

impl<'a> Block<'a> {
    /// The lines of data, in order.
    pub(crate) fn data(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.fields()
            .filter(|(name, _)| *name == b"data")
            .map(|(_, value)| value)
    }

    fn fields(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        Lines { rest: self.bytes }.map(|line| match memchr::memchr(b':', line) {
            Some(colon) => {
                let value = &line[colon + 1..];
                (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
            }
            None => (line, &[][..]),
        })
    }
}

struct Lines<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let Some(at) = memchr::memchr2(b'\n', b'\r', self.rest) else {
            return Some(std::mem::take(&mut self.rest));
        };
        let line = &self.rest[..at];
        let crlf = self.rest[at] == b'\r' && self.rest.get(at + 1) == Some(&b'\n');
        self.rest = &self.rest[at + 1 + usize::from(crlf)..];
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Plain = (Vec<u8>, Vec<Vec<u8>>);

    fn split(pieces: &[&[u8]]) -> (Vec<Plain>, bool) {
        let mut splitter = Splitter::default();
        let mut events = Vec::new();
        for piece in pieces {
            splitter
                .feed(piece, |event| {
                    let data = match event.data {
                        EventData::None => return Ok(()),
                        EventData::Line(line) => vec![line.to_vec()],
                        EventData::Lines(block) => block.data().map(<[u8]>::to_vec).collect(),
                    };
                    events.push((event.kind.to_vec(), data));
                    Ok(())
                })
                .unwrap();
        }
        (events, splitter.is_empty())
    }

    fn plain(kind: &str, data: &[&str]) -> Plain {
        let data = data.iter().map(|line| line.as_bytes().to_vec()).collect();
        (kind.as_bytes().to_vec(), data)
    }

    #[test]
    fn data_and_control_with_and_without_the_space() {
        let text = b": hello\n\nevent: data\ndata: [\ndata:{\"n\":1},\ndata: ]\nid: 4\n\n\
            event:control\ndata:{}\n\ndata: half";
        let (events, empty) = split(&[text]);
        let expected = [
            plain("data", &["[", "{\"n\":1},", "]"]),
            plain("control", &["{}"]),
        ];
        assert_eq!(events, expected);
        assert!(!empty);
    }

    #[test]
    fn ids_come_with_their_event_or_alone() {
        let mut ids = Vec::new();
        let mut splitter = Splitter::default();
        let text = b"id:1\n\ndata: x\nid: 2\n\ndata: y\n\n";
        let fed = splitter.feed(text, |event| {
            ids.push(event.id.map(<[u8]>::to_vec));
            Ok(())
        });
        assert_eq!(fed, Ok(()));
        assert_eq!(ids, [Some(b"1".to_vec()), Some(b"2".to_vec()), None]);
    }

    #[test]
    fn all_three_line_ends_and_colons_in_values() {
        let (events, _) = split(&[b"event: a:b\r\ndata:  x\r\n\r\ndata\rdata: y\r\rdata: z\n\n"]);
        let expected = [
            plain("a:b", &[" x"]),
            plain("message", &["", "y"]),
            plain("message", &["z"]),
        ];
        assert_eq!(events, expected);
    }

    #[test]
    fn an_event_over_the_bound_is_refused() {
        let mut splitter = Splitter::default();
        let piece = vec![b'a'; EVENT_BYTES_MAX / 4 + 1];
        let mut results = (0..4).map(|_| splitter.feed(&piece, |_| Ok(())));
        assert!(results.by_ref().take(3).all(|result| result.is_ok()));
        assert_eq!(results.next(), Some(Err(WireError::EventTooLong)));
    }

    /// The standard's algorithm, line by line and with no care for speed.
    fn by_the_book(text: &str) -> Vec<Plain> {
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let mut events = Vec::new();
        let (mut kind, mut data) = (b"message".to_vec(), Vec::new());
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        for line in complete.split('\n') {
            if line.is_empty() {
                if !data.is_empty() {
                    events.push((kind, std::mem::take(&mut data)));
                }
                kind = b"message".to_vec();
                data.clear();
                continue;
            }
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value).as_bytes().to_vec();
            match name {
                "event" => kind = value,
                "data" => data.push(value),
                _ => {}
            }
        }
        events
    }

    proptest! {
        #[test]
        fn events_are_those_of_the_standard_however_they_are_cut(
            lines in prop::collection::vec(
                (
                    "(data|event|id|)(: ?[a-c:]{0,6})?|event: ?[ab]\ndata: ?[a-c]{0,6}",
                    "(\n|\r\n|\r|\n\n|\r\r|\r\n\r\n)",
                ),
                0..24,
            ),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
        ) {
            let mut text: String = lines.iter().map(|(line, end)| format!("{line}{end}")).collect();
            // A last byte that is no CR, so that nothing waits for what might follow one.
            text.push_str("\n\n:");
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len())).collect();
            at.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for to in at {
                pieces.push(&text.as_bytes()[from..to]);
                from = to;
            }
            pieces.push(&text.as_bytes()[from..]);
            prop_assert_eq!(split(&pieces).0, by_the_book(&text));
        }
    }
}
