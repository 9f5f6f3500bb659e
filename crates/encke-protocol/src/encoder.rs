//! How records become bytes for subscribers. The reactor knows these traits and no format.

use std::fmt;

use encke_clock::WallTime;
use encke_stream::{EndReason, EphemeralMessage, Item, MediaKind, Offset, Sequence};

use crate::encoded_run::EncodedRun;
use crate::long_record::{RecordFacts, RecordForm, WrittenData};
use crate::payload::push_items;
use crate::run::Run;
use crate::text::CutCharacter;

/// Encodes the records of one stream. Subscribers with the same encoder, variant and position share one encoding.
pub trait Encoder: Send + Sync {
    /// Appends a run to `out`, and marks where a subscriber may be left.
    fn encode(&self, variant: Variant<'_>, run: &Run<'_>, now: WallTime, out: &mut EncodedRun);
    /// An upper bound of the bytes that the encoder adds to the data of a record, apart from escapes and base64.
    fn overhead(&self, variant: Variant<'_>, item: &Item<'_>) -> usize {
        LINE_OVERHEAD + variant.name.len() + item.take.saturating_sub(1) as usize
    }
    /// The form of a record that is too large to be encoded in one piece.
    fn form(&self, variant: Variant<'_>, record: &RecordHead<'_>, now: WallTime) -> RecordForm;
    /// Appends a message of a record whose form is [`DataForm::EachMessage`](crate::long_record::DataForm::EachMessage), with the position
    /// behind it.
    fn message(&self, _variant: Variant<'_>, _message: &[u8], _at: Offset, _out: &mut EncodedRun) {}
    /// Appends the last bytes to a subscriber whose connection the server closes although more records would follow.
    fn farewell(&self, variant: Variant<'_>, farewell: &Farewell, now: WallTime, out: &mut Vec<u8>);
    /// Appends that the stream was deleted, behind its last record. Nothing where the end of the response says it.
    fn deleted(&self, _variant: Variant<'_>, _out: &mut Vec<u8>) {}
    /// Appends an ephemeral message. Nothing where subscribers get none.
    fn ephemeral(&self, _message: &EphemeralMessage, _out: &mut Vec<u8>) {}
    /// Whether its subscribers get ephemeral messages.
    fn has_ephemeral(&self) -> bool {
        false
    }
    /// The bytes that keep a quiet connection alive.
    fn heartbeat(&self) -> &'static [u8];
    /// Whether it writes the names of streams. To others [`Variant::name`] is empty.
    fn names_streams(&self) -> bool {
        false
    }
}

/// Bytes of a line or a message without the data and the names in it, at most.
pub(crate) const LINE_OVERHEAD: usize = 192;

/// Encodes the records of several streams, one at a time. `label` is the one of the feed.
pub trait MergeEncoder: Send + Sync {
    /// The form of a record.
    fn form(&self, label: &str, record: &MergedHead<'_>) -> RecordForm;
    /// Appends a record.
    fn record(&self, label: &str, record: &MergedRecord<'_>, out: &mut Vec<u8>) {
        let (facts, data) = record.written();
        let head = MergedHead {
            name: record.name,
            facts,
            at: record.at,
        };
        self.form(label, &head).write_whole(&data, out);
    }
    /// Appends that the stream of this name has no further records. The subscriber's position is stated where other streams may
    /// be subscribed to by the same pattern.
    fn ended(
        &self,
        label: &str,
        name: &str,
        end: StreamEnd,
        at: Option<MergedPosition<'_>>,
        out: &mut Vec<u8>,
    );
    /// Appends that a reader of the stream of this name asks its producer to stop.
    fn stop_asked(&self, label: &str, name: &str, at: MergedPosition<'_>, out: &mut Vec<u8>);
    /// Appends that the stream of this name lacks records that are removed.
    fn gap(&self, label: &str, name: &str, at: MergedPosition<'_>, out: &mut Vec<u8>);
    /// Appends the subscriber's position.
    fn position(&self, label: &str, at: MergedPosition<'_>, out: &mut Vec<u8>);
    /// Appends an ephemeral message, which moves no position.
    fn ephemeral(&self, label: &str, message: &EphemeralMessage, out: &mut Vec<u8>);
    /// Appends the last bytes to a subscriber whose response ends although more records would follow. Its position is that of its last
    /// event.
    fn farewell(&self, label: &str, farewell: &Farewell, out: &mut Vec<u8>);
    /// The bytes that keep a quiet connection alive.
    fn heartbeat(&self) -> &'static [u8];
}

/// In which of its forms an encoder writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant<'a> {
    /// The name of the stream, for encoders that write it ([`Encoder::names_streams`]); empty otherwise.
    pub name: &'a str,
    /// The kind of the stream's data.
    pub kind: MediaKind,
    /// The encoder's own. A subscriber whose option is 0 needs no memory for it while it is idle.
    pub option: u64,
}

/// Why and where the server closes a subscriber's connection although more records would follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Farewell {
    /// Why: one line for the client.
    pub why: &'static str,
    /// The subscriber's position in its stream. `None`: the stream is not in memory, because nothing has happened for a while; then the
    /// subscriber has all of it, and its last event has said its position.
    pub at: Option<Offset>,
    /// The client may continue from there; otherwise retention has removed records that it lacks.
    pub resumable: bool,
    /// After which time an EventSource comes back, in milliseconds, if not after its usual one.
    pub retry_ms: Option<u32>,
}

/// A record of one stream, before its data.
#[derive(Clone, Copy, Debug)]
pub struct RecordHead<'a> {
    /// Its facts.
    pub facts: RecordFacts,
    /// The beginning of its data: at least the first 64 bytes.
    pub beginning: &'a [u8],
}

/// A record of a merged feed, without its data.
#[derive(Clone, Copy, Debug)]
pub struct MergedHead<'a> {
    /// The name of its stream.
    pub name: &'a str,
    /// Its facts.
    pub facts: RecordFacts,
    /// The client's position with this record.
    pub at: MergedPosition<'a>,
}

/// A record of a merged feed.
#[derive(Clone, Copy, Debug)]
pub struct MergedRecord<'a> {
    /// The name of its stream.
    pub name: &'a str,
    /// The kind of its data.
    pub kind: MediaKind,
    /// Its data.
    pub item: Item<'a>,
    /// Of text: the beginning of a character that was withheld before it, and the one that is withheld at its end.
    pub cut: [CutCharacter; 2],
    /// The client's position with this record.
    pub at: MergedPosition<'a>,
}

impl MergedRecord<'_> {
    /// Its facts, and the data that is written.
    fn written(&self) -> (RecordFacts, Vec<u8>) {
        let MergedRecord { kind, item, .. } = self;
        let [before, behind] = self.cut;
        let end = match behind.as_bytes().len() {
            0 => item.end,
            cut => item.position_before(cut),
        };
        let mut data = Vec::with_capacity(before.as_bytes().len() + item.data.len());
        data.extend_from_slice(before.as_bytes());
        push_items(*kind, std::slice::from_ref(item), true, &mut data);
        data.truncate(data.len().saturating_sub(behind.as_bytes().len()));
        let facts = RecordFacts {
            data: WrittenData::of(*kind, &data),
            end,
            time: item.time,
            withheld: behind,
        };
        (facts, data)
    }
}

/// A client's position in a merged feed.
#[derive(Clone, Copy, Debug)]
pub struct MergedPosition<'a> {
    /// The client has everything up to these sequences: one for each log, by index.
    pub after: &'a [Sequence],
    /// The sources of which it has more.
    pub ahead: &'a [AheadStream],
    /// The streams that it is a position of.
    pub generations: &'a [StreamGeneration],
    /// A digest of the names in the client's request.
    pub names: u32,
}

/// Which streams a client's position is of. A name alone does not say it: the stream can be deleted, and another one created.
///
/// The streams are those of these names that were created by the record `born` or before it. A stream that takes the name of one of
/// them later is created behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamGeneration {
    /// The index of the streams' log.
    pub log: usize,
    /// The last record that created one of them.
    pub born: Sequence,
    /// Their places in the request, as bits; the first place is the lowest.
    pub places: u128,
}

/// A source of a merged feed of which the client has more than of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AheadStream {
    /// The index of the source's log.
    pub log: usize,
    /// The client's position in the source.
    pub at: Offset,
    /// The source's place in the request, from 0.
    pub place: u8,
}

impl AheadStream {
    /// `Some` if the client's position in a source of that log is beyond `after`.
    pub fn of(log: usize, position: Offset, place: u8, after: &[Sequence]) -> Option<AheadStream> {
        let of_all = after.get(log).copied().unwrap_or_default();
        (position > Offset::behind(of_all)).then_some(AheadStream {
            log,
            at: position,
            place,
        })
    }
}

/// Why a stream has no further records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// It was closed, for that reason if one was said; its records can still be read.
    Closed(Option<EndReason>),
    /// It was deleted, or its lifetime is over.
    Deleted,
}

/// The number of an [`Encoder`]: a byte, because each subscriber has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderId(u8);

/// The number of a [`MergeEncoder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeEncoderId(u8);

/// The numbers of an encoder's two forms. They are two encoders, so that a subscriber needs no memory for its choice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncoderForms<I> {
    /// Without the times of records.
    pub(crate) plain: I,
    /// With them.
    pub(crate) timed: I,
}

impl<I: Copy> EncoderForms<I> {
    /// The form for a subscriber that asks for the times of records, or does not.
    pub(crate) fn choose(&self, has_times: bool) -> I {
        match has_times {
            true => self.timed,
            false => self.plain,
        }
    }
}

/// The encoders of all protocols. Protocols register theirs at the start.
#[derive(Default)]
pub struct Encoders {
    encoders: Vec<(&'static str, Box<dyn Encoder>)>,
    merge_encoders: Vec<(&'static str, Box<dyn MergeEncoder>)>,
}

impl Encoders {
    /// Registers an encoder. Its name must not change: another version takes over subscribers by it.
    pub(crate) fn add(&mut self, name: &'static str, encoder: impl Encoder + 'static) -> EncoderId {
        self.encoders.push((name, Box::new(encoder)));
        // Each protocol registers a few at the start.
        EncoderId((self.encoders.len() - 1) as u8)
    }

    /// Registers an encoder of merged feeds, as above.
    pub(crate) fn add_merge(
        &mut self,
        name: &'static str,
        encoder: impl MergeEncoder + 'static,
    ) -> MergeEncoderId {
        self.merge_encoders.push((name, Box::new(encoder)));
        MergeEncoderId((self.merge_encoders.len() - 1) as u8)
    }

    /// The encoder of that number.
    pub fn encoder(&self, id: EncoderId) -> &dyn Encoder {
        &*self.encoders[usize::from(id.0)].1
    }

    /// The encoder of merged feeds of that number.
    pub fn merge_encoder(&self, id: MergeEncoderId) -> &dyn MergeEncoder {
        &*self.merge_encoders[usize::from(id.0)].1
    }

    /// The name of an encoder, by which another version knows it.
    pub fn name(&self, id: EncoderId) -> &'static str {
        self.encoders[usize::from(id.0)].0
    }

    /// The name of an encoder of merged feeds.
    pub fn merge_name(&self, id: MergeEncoderId) -> &'static str {
        self.merge_encoders[usize::from(id.0)].0
    }

    /// The encoder of that name.
    pub fn named(&self, name: &str) -> Option<EncoderId> {
        let at = self.encoders.iter().position(|(known, _)| *known == name)?;
        Some(EncoderId(at as u8))
    }

    /// The encoder of merged feeds of that name.
    pub fn merge_named(&self, name: &str) -> Option<MergeEncoderId> {
        let mut names = self.merge_encoders.iter();
        let at = names.position(|(known, _)| *known == name)?;
        Some(MergeEncoderId(at as u8))
    }
}

impl fmt::Debug for Encoders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Encoders")
    }
}
