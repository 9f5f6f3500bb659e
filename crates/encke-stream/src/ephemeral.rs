//! Ephemeral messages: for those who are subscribed to a stream now, and for nobody else. They are never stored.
//!
//! No sequencer decides about them. A shard judges one by the committed facts of its stream, and hands it to the shards of its
//! [`LiveAudience`]. It names the last record that its sender may have seen acknowledged, so that no subscriber gets it before that record.

use encke_clock::WallTime;
use encke_log::{Sequence, StreamNo};
use serde::{Deserialize, Serialize};

use crate::machine::command::Data;
use crate::machine::outcome::Refusal;
use crate::stream::label::StreamLabel;
use crate::stream::number::{home, is_awaited};
use crate::view::View;
use crate::view::views::Views;
use crate::view::watchers::watcher;
use crate::{Life, MediaKind, Stream};

/// A message for those who are subscribed to a stream now.
#[derive(Debug, PartialEq, Eq)]
pub struct EphemeralMessage {
    /// The stream.
    pub stream: StreamNo,
    /// The stream's name, the kind of its data, and its owner.
    pub label: StreamLabel,
    /// A subscriber gets the message behind the stream's records up to this one.
    pub after: Sequence,
    /// When a server took it, by the time of day of that server.
    pub time: WallTime,
    /// The data: of a stream of JSON the messages, separated by commas.
    pub data: Data,
}

/// Who is subscribed to a stream now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveAudience {
    /// The patterns with subscribers that match the stream's name, by their numbers.
    pub patterns: Box<[StreamNo]>,
    /// The shards with subscribers, one bit each.
    shards: u64,
}

impl EphemeralMessage {
    /// A message to a stream, if the stream takes it. `content_type`: the type that the sender names for the data; the stream's own if
    /// `None`.
    ///
    /// # Errors
    /// The stream has ended or is closed, or its data has another type.
    pub fn new(
        stream: &Stream,
        content_type: Option<&str>,
        data: Data,
        time: WallTime,
    ) -> Result<Self, Refusal> {
        let facts = stream.facts();
        if facts.life != Life::Live {
            return Err(Refusal::NotFound);
        }
        if facts.closed {
            return Err(Refusal::Closed {
                tail: facts.tail,
                end: facts.end,
            });
        }
        if let Some(asked) = content_type.filter(|asked| !stream.media.matches(asked)) {
            return Err(Refusal::TypeDiffers {
                has: stream.media.name.clone(),
                asked: asked.into(),
            });
        }
        Ok(EphemeralMessage {
            stream: stream.no,
            label: StreamLabel::of(stream),
            after: facts.tail.sequence,
            time,
            data,
        })
    }

    /// A message of JSON to the subscribers of a name that no stream has yet, at this node. `None`: there are none.
    pub fn to_awaiting(
        views: &Views,
        name: &str,
        data: impl FnOnce() -> Data,
        time: WallTime,
    ) -> Option<Self> {
        let home = views.log(home(name, views.logs()));
        Some(EphemeralMessage {
            stream: home.awaited().number(name)?,
            label: StreamLabel {
                name: name.into(),
                kind: MediaKind::Json,
                owner: None,
            },
            after: 0,
            time,
            data: data(),
        })
    }

    /// The message as nodes of a fleet send it to each other.
    pub fn to_packet(&self) -> Vec<u8> {
        let packet = Packet {
            stream: self.stream,
            name: &self.label.name,
            kind: KINDS.iter().position(|kind| *kind == self.label.kind),
            owner: self.label.owner.as_deref(),
            after: self.after,
            time_ms: self.time.as_ms(),
            units: self.data.units,
            data: &self.data.bytes,
        };
        // Writing to a vector does not fail, and all of it has a form.
        postcard::to_extend(&packet, vec![PACKET_FORMAT]).unwrap_or_default()
    }

    /// The message in a packet. `None`: it is no packet of this format.
    pub fn from_packet(packet: &[u8]) -> Option<Self> {
        let (format, packet) = packet.split_first()?;
        if *format != PACKET_FORMAT {
            return None;
        }
        let packet: Packet<'_> = postcard::from_bytes(packet).ok()?;
        Some(EphemeralMessage {
            stream: packet.stream,
            label: StreamLabel {
                name: packet.name.into(),
                kind: *KINDS.get(packet.kind?)?,
                owner: packet.owner.map(Box::from),
            },
            after: packet.after,
            time: WallTime::from_ms(packet.time_ms),
            data: Data {
                bytes: packet.data.to_vec(),
                units: packet.units,
            },
        })
    }

    /// What it takes in memory, about.
    pub fn weight_bytes(&self) -> usize {
        let owner = self.label.owner.as_ref().map_or(0, |owner| owner.len());
        size_of::<Self>() + self.data.bytes.len() + self.label.name.len() + owner
    }
}

impl LiveAudience {
    /// Whether a shard has subscribers. All but the first 48 shards are asked if one of them has.
    pub fn has_shard(&self, shard: u16) -> bool {
        self.shards & watcher(shard) != 0
    }

    /// Whether nobody is subscribed.
    pub fn is_empty(&self) -> bool {
        self.shards == 0
    }
}

impl Views {
    /// Who is subscribed to the stream with that number and name, in memory or not.
    pub fn audience(&self, stream: StreamNo, name: &str) -> LiveAudience {
        self.of(stream).audience(stream, name)
    }
}

impl View {
    fn audience(&self, stream: StreamNo, name: &str) -> LiveAudience {
        let shards = match is_awaited(stream) {
            true => {
                let shards = self.awaited().shards(name);
                shards.iter().fold(0, |all, shard| all | watcher(*shard))
            }
            false => self.watchers_of(stream),
        };
        if self.patterns().is_empty() {
            return LiveAudience {
                patterns: Box::default(),
                shards,
            };
        }
        let found = self.patterns().of(name);
        let of_patterns = found.shards.iter();
        LiveAudience {
            patterns: found.patterns.into(),
            shards: of_patterns.fold(shards, |all, shard| all | watcher(*shard)),
        }
    }
}

/// A message on its way to another node.
#[derive(Serialize, Deserialize)]
struct Packet<'a> {
    stream: StreamNo,
    name: &'a str,
    /// The place in [`KINDS`].
    kind: Option<usize>,
    owner: Option<&'a str>,
    after: Sequence,
    time_ms: u64,
    units: u32,
    data: &'a [u8],
}

/// The first byte of a packet. A node drops packets of other formats.
const PACKET_FORMAT: u8 = 1;

/// The kinds of data, in the order of their numbers in packets.
const KINDS: [MediaKind; 3] = [MediaKind::Json, MediaKind::Text, MediaKind::Binary];

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use encke_clock::SteadyTime;

    use super::*;
    use crate::stream::{Facts, StreamSettings};
    use crate::{AckLevel, ByteCount, Lifetime, Media, MessageCount, Offset, Retention};

    fn stream(no: StreamNo, facts: impl FnOnce(&mut Facts)) -> Arc<Stream> {
        let mut of_stream = Facts {
            tail: Offset::behind(9),
            forks: 0,
            floor: 0,
            closed: false,
            end: None,
            counted: MessageCount::default(),
            appended: ByteCount::default(),
            stop_asked: false,
            life: Life::Live,
        };
        facts(&mut of_stream);
        let settings = StreamSettings {
            media: Arc::new(Media::new("text/plain")),
            lifetime: Lifetime::Unbounded,
            ack: AckLevel::Synced,
            retention: Retention::default(),
            owner: Some("ann".into()),
            producer_timeout_s: None,
            account: None,
        };
        let begin = SteadyTime::from_ms(0);
        Arc::new(Stream::new(
            no,
            "chat/a".into(),
            settings,
            None,
            of_stream,
            begin,
        ))
    }

    fn data() -> Data {
        Data {
            bytes: b"x".to_vec(),
            units: 1,
        }
    }

    #[test]
    fn a_message_is_judged_by_the_facts_of_its_stream() {
        let to = |stream: &Stream, content_type| {
            EphemeralMessage::new(stream, content_type, data(), WallTime::from_ms(5))
        };
        let open = stream(7, |_| ());
        let message = to(&open, Some("TEXT/plain; charset=utf-8")).unwrap();
        assert_eq!((message.stream, message.after), (7, 9));
        assert_eq!(message.label.owner.as_deref(), Some("ann"));
        assert_eq!(to(&open, None).unwrap(), message);
        let refused = to(&open, Some("application/json"));
        assert!(matches!(refused, Err(Refusal::TypeDiffers { .. })));
        let closed = stream(7, |facts| facts.closed = true);
        assert!(matches!(to(&closed, None), Err(Refusal::Closed { .. })));
        let ended = stream(7, |facts| facts.life = Life::Ended);
        assert_eq!(to(&ended, None), Err(Refusal::NotFound));
    }

    #[test]
    fn a_message_passes_to_another_node() {
        let message = EphemeralMessage::new(&stream(7, |_| ()), None, data(), WallTime::from_ms(5));
        let message = message.unwrap();
        let packet = message.to_packet();
        assert_eq!(EphemeralMessage::from_packet(&packet), Some(message));
        for length in 0..packet.len() {
            assert_eq!(EphemeralMessage::from_packet(&packet[..length]), None);
        }
        let other_format = [&[PACKET_FORMAT + 1], &packet[1..]].concat();
        assert_eq!(EphemeralMessage::from_packet(&other_format), None);
    }

    #[test]
    fn the_audience_has_the_shards_of_the_stream_and_of_matching_patterns() {
        let view = Arc::new(View::default());
        let views = Views::one(Arc::clone(&view));
        assert!(views.audience(7, "chat/a").is_empty());
        view.watch(&stream(7, |_| ()), 1);
        let no = view.watch_pattern(&"chat/**".parse().unwrap(), 0, 2);
        view.watch_pattern(&"other/**".parse().unwrap(), 0, 3);
        let audience = views.audience(7, "chat/a");
        let shards: Vec<u16> = (0..5).filter(|shard| audience.has_shard(*shard)).collect();
        assert_eq!((shards, &*audience.patterns), (vec![1, 2], &[no][..]));
        // Of a stream that is not in memory.
        let elsewhere = views.audience(8, "chat/b");
        assert!(!elsewhere.has_shard(1) && elsewhere.has_shard(2));
    }
}
