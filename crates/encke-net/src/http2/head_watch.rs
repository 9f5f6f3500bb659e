//! Finds what `h2` drops from requests without a word: the fragment of a `:path`, and pseudo-header fields in trailers. HTTP/1.1 refuses
//! such a target, because a proxy that compares paths may have let it pass as another one. Such trailers make a request malformed (RFC 9113,
//! section 8.1).
//!
//! This reads header blocks beside `h2`, as far as it takes to know which names begin with a colon, which values belong to `:path`, and
//! whether there is a `#` in one (RFC 7541). Of the dynamic table it keeps no texts, only their lengths. Whatever is malformed is for `h2` to refuse: it ends the
//! connection, and nothing is looked at behind it.

use std::collections::VecDeque;

use super::huffman;

/// The header blocks of one connection.
#[derive(Debug)]
pub(crate) struct HeadWatch {
    place: Place,
    /// The payload of a frame, as far as it has arrived.
    payload: Vec<u8>,
    /// A header block whose end has not arrived.
    block: Vec<u8>,
    block_bytes_max: usize,
    table: DynamicTable,
    /// Streams whose request has a fragment, and that were not asked about.
    found: Vec<u32>,
    /// The last stream that a client has begun: further header blocks of it, and of those before, are trailers.
    last_begun: u32,
    /// Streams whose trailers have pseudo-header fields, and that were not asked about.
    malformed: Vec<u32>,
    /// Something was malformed.
    over: bool,
}

/// Where the next byte stands.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// So many bytes before the next head that do not matter.
    Skipped(usize),
    /// In a head, of which so many bytes have arrived.
    Head {
        head: [u8; HEAD_BYTES],
        bytes: usize,
    },
    /// In the payload of a frame with a part of a header block.
    Payload(FrameHead),
}

#[derive(Clone, Copy, Debug)]
struct FrameHead {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

/// The client sent more than any client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManyFound;

/// The error of a header block that is not HPACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Malformed;

/// A text of a header block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Text {
    bytes: usize,
    has_hash: bool,
    is_path: bool,
    is_pseudo: bool,
}

/// The properties of a field's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Name {
    bytes: usize,
    is_path: bool,
    is_pseudo: bool,
}

/// The properties of a header block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Block {
    has_fragment: bool,
    has_pseudo: bool,
}

/// The dynamic table, without its texts.
#[derive(Debug)]
struct DynamicTable {
    /// The latest comes first.
    entries: VecDeque<Entry>,
    bytes: usize,
    bytes_max: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    name: Name,
    bytes: u16,
    has_hash: bool,
}

impl HeadWatch {
    /// For a connection of which no byte was read, and that allows heads of so many bytes.
    pub(crate) fn new(head_bytes_max: usize) -> Self {
        HeadWatch {
            block_bytes_max: BLOCK_FACTOR * head_bytes_max + BLOCK_FRAMES * FRAME_BYTES_MAX,
            place: Place::Skipped(PREFACE_BYTES),
            payload: Vec::new(),
            block: Vec::new(),
            table: DynamicTable {
                entries: VecDeque::new(),
                bytes: 0,
                bytes_max: TABLE_BYTES_MAX,
            },
            found: Vec::new(),
            last_begun: 0,
            malformed: Vec::new(),
            over: false,
        }
    }

    /// Reads what has arrived, before `h2` does.
    pub(crate) fn read(&mut self, mut bytes: &[u8]) -> Result<(), TooManyFound> {
        while !self.over && !bytes.is_empty() {
            match &mut self.place {
                Place::Skipped(left) => {
                    let skipped = (*left).min(bytes.len());
                    *left -= skipped;
                    bytes = &bytes[skipped..];
                    if *left == 0 {
                        self.place = Place::Head {
                            head: [0; HEAD_BYTES],
                            bytes: 0,
                        };
                    }
                }
                Place::Head { head, bytes: there } => {
                    let taken = (HEAD_BYTES - *there).min(bytes.len());
                    head[*there..*there + taken].copy_from_slice(&bytes[..taken]);
                    *there += taken;
                    bytes = &bytes[taken..];
                    if *there == HEAD_BYTES {
                        let head = FrameHead::of(*head);
                        self.begin_frame(head)?;
                    }
                }
                Place::Payload(head) => {
                    let head = *head;
                    let taken = (head.length - self.payload.len()).min(bytes.len());
                    self.payload.extend_from_slice(&bytes[..taken]);
                    bytes = &bytes[taken..];
                    if self.payload.len() == head.length {
                        self.end_frame(head)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Memory for the parts of a header block whose end has not arrived.
    pub(crate) fn bytes(&self) -> usize {
        self.payload.capacity() + self.block.capacity()
    }

    /// Whether the request of a stream has a fragment. To be asked once for each, in the order of the streams.
    pub(crate) fn take(&mut self, stream: u32) -> bool {
        let found = self.found.contains(&stream);
        // `h2` has refused what came before and was not asked about.
        self.found.retain(|other| *other > stream);
        found
    }

    /// Whether the trailers of a stream are malformed. To be asked once for each.
    pub(crate) fn take_malformed(&mut self, stream: u32) -> bool {
        let place = self.malformed.iter().position(|other| *other == stream);
        place
            .map(|place| self.malformed.swap_remove(place))
            .is_some()
    }

    fn begin_frame(&mut self, head: FrameHead) -> Result<(), TooManyFound> {
        if !matches!(head.kind, HEADERS | CONTINUATION) {
            self.place = Place::Skipped(head.length);
            return Ok(());
        }
        if head.length > FRAME_BYTES_MAX {
            self.over = true;
            return Ok(());
        }
        if self.block.len() + head.length > self.block_bytes_max {
            return Err(TooManyFound);
        }
        self.place = Place::Payload(head);
        match head.length {
            0 => self.end_frame(head),
            _ => Ok(()),
        }
    }

    fn end_frame(&mut self, head: FrameHead) -> Result<(), TooManyFound> {
        self.place = Place::Skipped(0);
        let payload = std::mem::take(&mut self.payload);
        let Some(part) = head.part_of_block(&payload) else {
            self.over = true;
            return Ok(());
        };
        if !self.block.is_empty() || head.flags & END_HEADERS == 0 {
            self.block.extend_from_slice(part);
        }
        if head.flags & END_HEADERS == 0 {
            return Ok(());
        }
        let joined = std::mem::take(&mut self.block);
        let block = if joined.is_empty() { part } else { &joined };
        match self.table.read_block(block) {
            Ok(block) => self.note(head.stream, block),
            Err(Malformed) => {
                self.over = true;
                Ok(())
            }
        }
    }

    fn note(&mut self, stream: u32, block: Block) -> Result<(), TooManyFound> {
        let are_trailers = stream <= self.last_begun;
        self.last_begun = self.last_begun.max(stream);
        let (list, is_found) = match are_trailers {
            true => (&mut self.malformed, block.has_pseudo),
            false => (&mut self.found, block.has_fragment),
        };
        if is_found && list.len() >= FOUND_MAX {
            return Err(TooManyFound);
        }
        if is_found {
            list.push(stream);
        }
        Ok(())
    }
}

impl FrameHead {
    fn of(head: [u8; HEAD_BYTES]) -> Self {
        let [a, b, c, kind, flags, stream @ ..] = head;
        FrameHead {
            length: u32::from_be_bytes([0, a, b, c]) as usize,
            kind,
            flags,
            stream: u32::from_be_bytes(stream) & STREAM_BITS,
        }
    }

    /// The part of a header block in a payload, without padding and priority (RFC 9113, section 6.2).
    fn part_of_block(self, payload: &[u8]) -> Option<&[u8]> {
        let mut part = payload;
        let mut padding = 0;
        if self.kind == HEADERS && self.flags & PADDED != 0 {
            let (bytes, rest) = part.split_first()?;
            (padding, part) = (usize::from(*bytes), rest);
        }
        if self.kind == HEADERS && self.flags & PRIORITY != 0 {
            part = part.get(PRIORITY_BYTES..)?;
        }
        part.get(..part.len().checked_sub(padding)?)
    }
}

impl DynamicTable {
    /// Reads a header block.
    fn read_block(&mut self, mut block: &[u8]) -> Result<Block, Malformed> {
        let mut found = Block::default();
        while let Some(&first) = block.first() {
            if first & 0x80 != 0 {
                let index = integer(&mut block, 7)?;
                let has_hash = self.entry(index)?.is_some_and(|entry| entry.has_hash);
                found.add(self.name(index)?, has_hash);
            } else if first & 0xe0 == 0x20 {
                self.bytes_max = integer(&mut block, 5)?;
                if self.bytes_max > TABLE_BYTES_MAX {
                    return Err(Malformed);
                }
                self.evict(0);
            } else {
                let remembered = first & 0x40 != 0;
                let index = integer(&mut block, if remembered { 6 } else { 4 })?;
                let name = match index {
                    0 => Name::of(text(&mut block)?),
                    _ => self.name(index)?,
                };
                let value = text(&mut block)?;
                found.add(name, value.has_hash);
                if remembered {
                    self.insert(name, value);
                }
            }
        }
        Ok(found)
    }

    /// The entry that an index names; `None`: one of the static table.
    fn entry(&self, index: usize) -> Result<Option<Entry>, Malformed> {
        match index {
            0 => Err(Malformed),
            1..=STATIC_ENTRIES => Ok(None),
            _ => {
                let entry = self.entries.get(index - STATIC_ENTRIES - 1);
                entry.copied().map(Some).ok_or(Malformed)
            }
        }
    }

    /// The name that an index names.
    fn name(&self, index: usize) -> Result<Name, Malformed> {
        Ok(match self.entry(index)? {
            Some(entry) => entry.name,
            None => Name {
                bytes: usize::from(STATIC_NAME_BYTES[index - 1]),
                is_path: STATIC_PATHS.contains(&index),
                is_pseudo: index <= STATIC_PSEUDO_FIELDS,
            },
        })
    }

    fn insert(&mut self, name: Name, value: Text) {
        let bytes = name.bytes + value.bytes + ENTRY_BYTES;
        self.evict(bytes);
        if bytes > self.bytes_max {
            return;
        }
        self.bytes += bytes;
        self.entries.push_front(Entry {
            name,
            // It is below the bound of the table.
            bytes: bytes as u16,
            has_hash: value.has_hash,
        });
    }

    /// Makes room for so many bytes, as far as there are entries.
    fn evict(&mut self, bytes: usize) {
        while self.bytes + bytes > self.bytes_max
            && let Some(oldest) = self.entries.pop_back()
        {
            self.bytes -= usize::from(oldest.bytes);
        }
    }
}

impl Block {
    fn add(&mut self, name: Name, value_has_hash: bool) {
        self.has_fragment |= name.is_path && value_has_hash;
        self.has_pseudo |= name.is_pseudo;
    }
}

impl Name {
    fn of(text: Text) -> Self {
        Name {
            bytes: text.bytes,
            is_path: text.is_path,
            is_pseudo: text.is_pseudo,
        }
    }
}

/// Reads an integer that begins in the last bits of the first byte (RFC 7541, section 5.1).
fn integer(block: &mut &[u8], bits: u32) -> Result<usize, Malformed> {
    let (first, mut rest) = block.split_first().ok_or(Malformed)?;
    let most = (1_usize << bits) - 1;
    let mut number = usize::from(*first) & most;
    if number == most {
        let mut shift = 0;
        loop {
            let (byte, behind) = rest.split_first().ok_or(Malformed)?;
            rest = behind;
            if shift > INTEGER_BITS_MAX {
                return Err(Malformed);
            }
            number += usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *block = rest;
    Ok(number)
}

/// Reads a text, coded by Huffman or not (RFC 7541, section 5.2).
fn text(block: &mut &[u8]) -> Result<Text, Malformed> {
    let coded = block.first().ok_or(Malformed)? & 0x80 != 0;
    let length = integer(block, 7)?;
    let (bytes, rest) = block.split_at_checked(length).ok_or(Malformed)?;
    *block = rest;
    let mut text = Text {
        is_path: true,
        ..Text::default()
    };
    let mut take = |byte: u8| {
        text.is_path &= PATH.get(text.bytes) == Some(&byte);
        text.is_pseudo |= text.bytes == 0 && byte == b':';
        text.has_hash |= byte == b'#';
        text.bytes += 1;
    };
    match coded {
        true => huffman::decode(bytes, &mut take).ok_or(Malformed)?,
        false => bytes.iter().copied().for_each(&mut take),
    }
    text.is_path &= text.bytes == PATH.len();
    Ok(text)
}

const PATH: &[u8] = b":path";

const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;
const PRIORITY_BYTES: usize = 5;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;
const STREAM_BITS: u32 = u32::MAX >> 1;

/// The largest frame that a client may send unless the server allows more (RFC 9113, section 4.2).
const FRAME_BYTES_MAX: usize = 16 << 10;

/// Bytes of a header block: as many heads, and full frames beside. `h2` allows fewer.
const BLOCK_FACTOR: usize = 2;
const BLOCK_FRAMES: usize = 8;

/// Requests with a fragment that `h2` has not handed over, and streams with malformed trailers that were not asked about. `h2` hands over
/// all that it does not refuse.
const FOUND_MAX: usize = 256;

/// The table that a client may use unless the server says something else, and what an entry counts beside its texts.
const TABLE_BYTES_MAX: usize = 4096;
const ENTRY_BYTES: usize = 32;

/// Bits of an integer before its last seven.
const INTEGER_BITS_MAX: u32 = 21;

const STATIC_ENTRIES: usize = STATIC_NAME_BYTES.len();

/// The entries of the static table whose name is `:path`.
const STATIC_PATHS: std::ops::RangeInclusive<usize> = 4..=5;

/// The first entries of the static table have pseudo-header fields.
const STATIC_PSEUDO_FIELDS: usize = 14;

/// The lengths of the names in the static table (RFC 7541, appendix A).
const STATIC_NAME_BYTES: [u8; 61] = [
    10, 7, 7, 5, 5, 7, 7, 7, 7, 7, 7, 7, 7, 7, 14, 15, 15, 13, 6, 27, 3, 5, 13, 13, 19, 16, 16, 14,
    16, 13, 12, 6, 4, 4, 6, 7, 4, 4, 8, 17, 13, 8, 19, 13, 4, 8, 12, 18, 19, 5, 7, 7, 11, 6, 10,
    25, 17, 10, 4, 3, 16,
];

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame with a part of a header block.
    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        frame
    }

    fn watch() -> HeadWatch {
        let mut watch = HeadWatch::new(16 << 10);
        watch.read(&[b'x'; PREFACE_BYTES]).unwrap();
        watch
    }

    /// A text that is not coded.
    fn plain(text: &[u8]) -> Vec<u8> {
        [&[text.len() as u8], text].concat()
    }

    /// Whether the request of a header block has a fragment.
    fn found(watch: &mut HeadWatch, stream: u32, block: &[u8]) -> bool {
        watch
            .read(&frame(HEADERS, END_HEADERS, stream, block))
            .unwrap();
        watch.take(stream)
    }

    #[test]
    fn a_fragment_is_found_however_the_field_is_written() {
        let path = plain(b"/a#b");
        // "/a#b": 011000 00011 111111111010 100011, and ones.
        let coded = [0x84, 0x60, 0x7f, 0xf5, 0x1f];
        let name = plain(b":path");
        // ":path": 1011100 101011 00011 01001 100111, and ones.
        let coded_name = [0x84, 0xb9, 0x58, 0xd3, 0x3f];
        let mut watch = watch();
        let blocks = [
            ([&[0x04], &path[..]].concat(), true),
            ([&[0x15], &path[..]].concat(), true),
            ([&[0x04], &coded[..]].concat(), true),
            ([&[0x00], &name[..], &path].concat(), true),
            ([&[0x10], &coded_name[..], &coded].concat(), true),
            ([&[0x04], &plain(b"/a")[..]].concat(), false),
            (vec![0x84, 0x85], false),
            // Another field may have one.
            ([&[0x0f, 0x24], &path[..]].concat(), false),
            ([&[0x00], &plain(b"path")[..], &path].concat(), false),
            ([&[0x00], &plain(b":paths")[..], &path].concat(), false),
        ];
        for (stream, (block, expected)) in (1..).zip(blocks) {
            assert_eq!(found(&mut watch, stream, &block), expected, "{block:x?}");
            assert!(!watch.over, "{block:x?}");
        }
    }

    #[test]
    fn what_is_remembered_is_known_until_it_is_evicted() {
        let mut watch = watch();
        let remembered = [&[0x44], &plain(b"/a#b")[..]].concat();
        assert!(found(&mut watch, 1, &remembered));
        assert!(found(&mut watch, 3, &[0x80 | 62]));
        // Another field moves it; a name of the dynamic table may be `:path` too.
        let other = [&[0x40], &plain(b"x")[..], &plain(b"#")[..]].concat();
        assert!(!found(&mut watch, 5, &other));
        assert!(!found(&mut watch, 7, &[0x80 | 62]));
        assert!(found(&mut watch, 9, &[0x80 | 63]));
        let by_name = [&[0x0f, 63 - 15], &plain(b"/#")[..]].concat();
        assert!(found(&mut watch, 11, &by_name));
        let by_name = [&[0x0f, 62 - 15], &plain(b"/#")[..]].concat();
        assert!(!found(&mut watch, 13, &by_name));
        // 41 bytes of one, 34 of the other: room for the later one only.
        assert!(!found(&mut watch, 15, &[0x3f, 41 - 31]));
        assert_eq!(watch.table.entries.len(), 1);
        assert!(!found(&mut watch, 17, &[0x80 | 62]));
        assert!(!found(&mut watch, 19, &[0x80 | 63]) && watch.over);
    }

    #[test]
    fn blocks_are_found_whatever_pieces_they_come_in() {
        let block = [&[0x82, 0x04], &plain(b"/a#b")[..], &[0x87]].concat();
        let padded = [&[2, 0, 0, 0, 0, 9], &block[..], &[0, 0]].concat();
        let mut bytes = vec![b'x'; PREFACE_BYTES];
        bytes.extend(frame(4, 0, 0, &[]));
        bytes.extend(frame(HEADERS, END_HEADERS | PADDED | PRIORITY, 1, &padded));
        bytes.extend(frame(0, 0, 1, b"\x04\x02/#"));
        bytes.extend(frame(HEADERS, 0, 3, &block[..4]));
        bytes.extend(frame(CONTINUATION, 0, 3, &[]));
        bytes.extend(frame(CONTINUATION, END_HEADERS, 3, &block[4..]));
        bytes.extend(frame(HEADERS, END_HEADERS, 5, &[0x82, 0x84, 0x87]));
        for piece in 1..bytes.len() {
            let mut watch = HeadWatch::new(16 << 10);
            for some in bytes.chunks(piece) {
                watch.read(some).unwrap();
            }
            assert_eq!(watch.found, [1, 3], "{piece}");
            assert!(!watch.take(2) && watch.take(3) && !watch.take(5) && !watch.over);
        }
    }

    #[test]
    fn pseudo_fields_are_found_in_trailers_however_they_are_written() {
        let mut watch = watch();
        let mut stream = 1;
        let head = [0x83, 0x86, 0x84, 0x01, 1, b'x'];
        let unknown = [&[0x40], &plain(b":x")[..], &plain(b"y")[..]].concat();
        let regular = [&[0x40], &plain(b"x:")[..], &plain(b":y")[..]].concat();
        for (trailers, expected) in [
            (vec![0x84], true),
            (vec![0x8e], true),
            // The entry of the static table behind all pseudo-header fields is 15.
            (vec![0x8f], false),
            (unknown, true),
            // The same from the dynamic table.
            (vec![0x80 | 62], true),
            (regular, false),
            (vec![0x80 | 62], false),
            (vec![0x80 | 63], true),
        ] {
            assert!(!found(&mut watch, stream, &head));
            assert!(!watch.take_malformed(stream), "{trailers:x?}");
            let bytes = frame(HEADERS, END_HEADERS, stream, &trailers);
            watch.read(&bytes).unwrap();
            assert_eq!(watch.take_malformed(stream), expected, "{trailers:x?}");
            assert!(!watch.take_malformed(stream) && !watch.over);
            stream += 2;
        }
    }

    #[test]
    fn what_h2_does_not_hand_over_is_bounded() {
        let mut watch = watch();
        let block = [&[0x04], &plain(b"/#")[..]].concat();
        for stream in 1..=FOUND_MAX as u32 {
            let bytes = frame(HEADERS, END_HEADERS, stream, &block);
            assert_eq!(watch.read(&bytes), Ok(()));
        }
        let bytes = frame(HEADERS, END_HEADERS, 1_001, &block);
        assert_eq!(watch.read(&bytes), Err(TooManyFound));
        let mut watch = self::watch();
        let bytes = frame(HEADERS, END_HEADERS, 1, &block);
        for _ in 0..=FOUND_MAX {
            assert_eq!(watch.read(&bytes), Ok(()));
        }
        assert_eq!(watch.read(&bytes), Err(TooManyFound));
    }

    proptest::proptest! {
        #[test]
        fn no_input_panics(junk: Vec<u8>, flags: u8) {
            let mut watch = watch();
            let _ = watch.read(&frame(HEADERS, flags | END_HEADERS, 1, &junk));
            let _ = watch.read(&junk);
        }
    }
}
