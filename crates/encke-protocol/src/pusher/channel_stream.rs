//! The stream of a channel: found, or about to be created.

use std::sync::Arc;

use encke_clock::Now;
use encke_stream::{
    Create, Lifetime, Lookup, Offset, Outcome, Payer, Refusal, Sequence, StorageExceeded,
    StorageLimit, Stream,
};

use super::app::App;
use crate::problem::{self, error, unexpected};
use crate::response::Response;
use crate::streams::StreamAccess;

/// What is known of the stream of a channel.
#[derive(Debug)]
pub(super) enum ChannelStream {
    /// Its name must be loaded first.
    Unknown,
    /// There is none. The command creates it.
    Missing(Box<Create>),
    Found(Arc<Stream>),
}

impl ChannelStream {
    /// Looks for the stream of that name.
    pub(super) fn find(
        streams: &StreamAccess,
        app: &App,
        name: &str,
        now: Now,
    ) -> Result<Self, Response> {
        let Some(known) = streams.known(name) else {
            return Ok(ChannelStream::Unknown);
        };
        match streams.find(name, now) {
            Ok(stream) => {
                check_stream(&stream)?;
                Ok(ChannelStream::Found(stream))
            }
            Err(response) if response.status == 404 => Ok(ChannelStream::Missing(Box::new(
                create(streams, app, name, known),
            ))),
            Err(response) => Err(response),
        }
    }
}

/// The source of the events of a subscription.
#[derive(Clone, Debug)]
pub(super) enum ChannelSource {
    Stream(Arc<Stream>),
    /// The stream that the first event creates. There was none when its log had this record.
    Awaited(Sequence),
}

impl ChannelSource {
    /// The position behind which the next event comes.
    pub(super) fn tail(&self) -> Offset {
        match self {
            ChannelSource::Stream(stream) => stream.facts().tail,
            ChannelSource::Awaited(at) => Offset::behind(*at),
        }
    }
}

/// Judges the outcome of a creation. A stream with other settings than those of the app, which may have changed since, is the channel's
/// all the same.
pub(super) fn check_created(outcome: &Outcome) -> Result<(), Response> {
    match outcome {
        Outcome::Created { .. } | Outcome::Refused(Refusal::Differs { .. }) => Ok(()),
        Outcome::Refused(Refusal::StorageExceeded(exceeded)) => Err(error(
            429,
            "channels_max",
            format!(
                "the app has {} channels, and may not have more (channels-max)",
                exceeded.max
            ),
        )),
        other => Err(unexpected(other)),
    }
}

/// Refuses a stream that was created by another protocol for something else, or by somebody whose it is.
pub(super) fn check_stream(stream: &Stream) -> Result<(), Response> {
    if stream.owner().is_some() {
        return Err(problem::refused(&Refusal::NotFound));
    }
    match stream.media.matches(MEDIA) {
        true => Ok(()),
        false => {
            let why = format!(
                "the stream {:?} has the type {}, and the events of a channel are {MEDIA}",
                stream.name, stream.media.name
            );
            Err(error(409, "type_differs", why))
        }
    }
}

fn create(streams: &StreamAccess, app: &App, name: &str, known: Lookup) -> Create {
    let settings = &app.settings;
    let mut create = Create {
        content_type: Some(MEDIA.into()),
        lifetime: settings.ttl_s.map(|ttl_s| Lifetime::Sliding { ttl_s }),
        ack: settings.ack,
        retention: settings.retention,
        known: vec![known],
        ..Create::new(name)
    };
    let max = settings.channels_max as u64;
    let used = streams.views.storage_used(app.account).streams;
    let exceeded = StorageExceeded {
        limit: StorageLimit::Streams,
        max,
    };
    create.extras.payer = Some(Box::new(Payer {
        account: app.account,
        exceeded: (used >= max).then_some(exceeded),
    }));
    create
}

/// The type of the streams of channels.
pub(super) const MEDIA: &str = "application/json";
