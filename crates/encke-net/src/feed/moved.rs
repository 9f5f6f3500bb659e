//! Feeds in a form in which another process takes them over: what a subscriber gets, and the position up to which it has it.

use std::sync::Arc;

use encke_log::StreamNo;
use encke_protocol::{
    AheadStream, Feed, MergeSource, PresenceStreams, SourceKind, StreamGeneration, ViewedPattern,
};
use encke_stream::{MEMORY_LOG, Offset, Stream, log_of};
use foldhash::HashMap;

use super::awaited::AwaitedName;
use super::feeds::Feeds;
use super::merged_feed::MergedFeed;
use super::slot::{SlotFeed, Slots};
use super::state::{FeedKind, SingleFeed};
use crate::moved::{MovedAhead, MovedFeed, MovedGeneration, MovedSource, MovedSourceKind};

/// Why a feed can't be taken over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FeedLost {
    /// Its stream is gone.
    #[error("the stream {0} is gone")]
    Stream(StreamNo),
    /// This version writes no records in its form.
    #[error("there is no encoder {0:?}")]
    Encoder(String),
    /// Its pattern is none.
    #[error("{0:?} is no pattern")]
    Pattern(String),
}

impl Feeds {
    /// The feed of a slot for another process, if it has one and is no long poll.
    pub(crate) fn moved(&self, index: u32, slots: &Slots) -> Option<MovedFeed> {
        let slot = &slots[index];
        let single = match slot.feed {
            SlotFeed::None => return None,
            SlotFeed::Plain(encoder) => SingleFeed {
                encoder,
                option: 0,
                position: None,
            },
            SlotFeed::InTable => match &self.states.get(index)?.kind {
                FeedKind::Single(single) => *single,
                FeedKind::Merged(merged) => return Some(self.moved_merged(merged, slot.cursor)),
                FeedKind::Poll(_) => return None,
            },
        };
        let topics = &self.fan_out.topics;
        let stream = topics.no(slot.topic);
        let encoder = self.encoders.name(single.encoder).to_owned();
        let option = single.option;
        if let Some(AwaitedName { name, group }) = topics.awaited_name(slot.topic) {
            return Some(MovedFeed::Awaited {
                name: (**name).into(),
                group: *group,
                at: slot.cursor,
                encoder,
                option,
            });
        }
        Some(match log_of(stream) {
            MEMORY_LOG => MovedFeed::Members {
                stream: topics.name(slot.topic).into(),
                encoder,
                option,
            },
            _ => MovedFeed::Single {
                stream,
                from: single.position.unwrap_or(Offset::behind(slot.cursor)),
                encoder,
                option,
            },
        })
    }

    /// The feed that was taken over.
    pub(crate) fn arrive(
        &self,
        moved: MovedFeed,
        streams: &HashMap<StreamNo, Arc<Stream>>,
        presence: &PresenceStreams,
    ) -> Result<Feed, FeedLost> {
        match moved {
            MovedFeed::Members {
                stream,
                encoder,
                option,
            } => Ok(Feed::Single {
                stream: presence.stream(&stream),
                from: Offset::START,
                encoder: self
                    .encoders
                    .named(&encoder)
                    .ok_or(FeedLost::Encoder(encoder))?,
                option,
            }),
            MovedFeed::Awaited {
                name,
                group,
                at,
                encoder,
                option,
            } => Ok(Feed::Awaited {
                name: name.into(),
                group,
                at,
                encoder: self
                    .encoders
                    .named(&encoder)
                    .ok_or(FeedLost::Encoder(encoder))?,
                option,
            }),
            MovedFeed::Single {
                stream,
                from,
                encoder,
                option,
            } => Ok(Feed::Single {
                stream: known(stream, streams)?,
                from,
                encoder: self
                    .encoders
                    .named(&encoder)
                    .ok_or(FeedLost::Encoder(encoder))?,
                option,
            }),
            MovedFeed::Merged {
                sources,
                after,
                generations,
                names,
                encoder,
                label,
                ended,
                ..
            } => {
                let sources = sources.into_iter();
                let sources = sources.map(|source| source.arrive(streams));
                Ok(Feed::Merged {
                    sources: sources.collect::<Result<_, _>>()?,
                    after,
                    generations: generations.into_iter().map(Into::into).collect(),
                    names,
                    encoder: self
                        .encoders
                        .merge_named(&encoder)
                        .ok_or(FeedLost::Encoder(encoder))?,
                    label,
                    ended: ended.into_iter().map(Into::into).collect(),
                })
            }
        }
    }

    fn moved_merged(&self, merged: &MergedFeed, cursor: u64) -> MovedFeed {
        let after = merged.all_after(cursor);
        let ahead = merged.ahead(&after);
        let position = merged.position(after, ahead, &[]);
        let at = position.merged();
        // The log of the first source has its turn.
        let (turn, others): (Vec<_>, Vec<_>) =
            (merged.members.iter()).partition(|member| member.log() == merged.log());
        let sources = turn.into_iter().chain(others).map(|member| {
            let ahead = at
                .ahead
                .iter()
                .find(|one| one.place == member.place && one.log == member.log());
            MovedSource {
                kind: match &member.kind {
                    SourceKind::Stream(stream) => MovedSourceKind::Stream(stream.no),
                    SourceKind::Pattern { pattern, log } => MovedSourceKind::Pattern {
                        names: pattern.names.to_string(),
                        viewer: pattern.viewer.clone(),
                        log: *log,
                    },
                },
                from: ahead.map_or(Offset::START, |one| one.at),
                place: member.place,
            }
        });
        let is_member = |one: &AheadStream| {
            let mut members = merged.members.iter();
            members.any(|member| member.place == one.place && member.log() == one.log)
        };
        let ended = at.ahead.iter().filter(|one| !is_member(one));
        MovedFeed::Merged {
            sources: sources.collect(),
            after: at.after.to_vec(),
            log: merged.log(),
            generations: at.generations.iter().map(Into::into).collect(),
            names: at.names,
            encoder: self.encoders.merge_name(merged.encoder).to_owned(),
            label: merged.label.clone(),
            ended: ended.map(Into::into).collect(),
        }
    }
}

impl MovedSource {
    fn arrive(self, streams: &HashMap<StreamNo, Arc<Stream>>) -> Result<MergeSource, FeedLost> {
        Ok(MergeSource {
            kind: match self.kind {
                MovedSourceKind::Stream(no) => SourceKind::Stream(known(no, streams)?),
                MovedSourceKind::Pattern { names, viewer, log } => {
                    let parsed = names.parse();
                    SourceKind::Pattern {
                        pattern: Arc::new(ViewedPattern {
                            names: Arc::new(parsed.map_err(|_| FeedLost::Pattern(names))?),
                            viewer,
                        }),
                        log,
                    }
                }
            },
            from: self.from,
            place: self.place,
        })
    }
}

fn known(no: StreamNo, streams: &HashMap<StreamNo, Arc<Stream>>) -> Result<Arc<Stream>, FeedLost> {
    streams.get(&no).cloned().ok_or(FeedLost::Stream(no))
}

impl From<&StreamGeneration> for MovedGeneration {
    fn from(one: &StreamGeneration) -> Self {
        MovedGeneration {
            log: one.log,
            born: one.born,
            places: one.places,
        }
    }
}

impl From<MovedGeneration> for StreamGeneration {
    fn from(one: MovedGeneration) -> Self {
        StreamGeneration {
            log: one.log,
            born: one.born,
            places: one.places,
        }
    }
}

impl From<&AheadStream> for MovedAhead {
    fn from(one: &AheadStream) -> Self {
        MovedAhead {
            log: one.log,
            at: one.at,
            place: one.place,
        }
    }
}

impl From<MovedAhead> for AheadStream {
    fn from(one: MovedAhead) -> Self {
        AheadStream {
            log: one.log,
            at: one.at,
            place: one.place,
        }
    }
}
