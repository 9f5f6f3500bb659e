//! What the protocol works with: the streams, its settings, and the encoders for live subscribers.

use std::sync::Arc;

use encke_access::Access;

use super::{encode, lines};
use crate::channel::Channels;
use crate::encoder::{EncoderForms, EncoderId, Encoders};
use crate::mount::Mount;
use crate::streams::{ALIAS_ROOT, StreamAccess};

/// The protocol over the committed streams.
#[derive(Debug)]
pub(crate) struct DurableStreams {
    pub(super) mounts: [Mount; 1],
    pub(super) streams: StreamAccess,
    pub(super) channels: Channels,
    pub(super) reads: ReadContext,
    /// The access control, if there is one: it knows callers and signs URLs.
    pub(super) access: Option<Arc<Access>>,
}

/// What all reads share.
#[derive(Clone, Debug)]
pub(super) struct ReadContext {
    pub(super) streams: StreamAccess,
    /// See [`DurableStreamsSettings::poll_wait_ms`].
    pub(super) poll_wait_ms: u64,
    /// See [`DurableStreamsSettings::page_bytes`].
    pub(super) page_bytes: usize,
    /// See [`DurableStreamsSettings::first_page_bytes`].
    pub(super) first_page_bytes: usize,
    /// Of server-sent events.
    pub(super) event_encoder: EncoderId,
    /// Of lines of JSON.
    pub(super) line_encoders: EncoderForms<EncoderId>,
}

/// The settings of the protocol.
#[derive(Clone, Debug)]
pub struct DurableStreamsSettings {
    /// The path above the streams; starts and ends with `/`.
    pub root: String,
    /// Bytes of a stream's name, decoded.
    pub name_bytes_max: usize,
    /// How long a long poll waits for data, in milliseconds.
    pub poll_wait_ms: u64,
    /// Bytes of data that are read at a time, and that one response to a long poll holds, approximately.
    pub page_bytes: usize,
    /// Bytes of the first part of a long body, approximately. Each part is twice as large as the one before it, up to
    /// `page_bytes`, so that a client that reads nothing costs little.
    pub first_page_bytes: usize,
}

impl Default for DurableStreamsSettings {
    fn default() -> Self {
        DurableStreamsSettings {
            root: "/v1/stream/".into(),
            name_bytes_max: 1024,
            poll_wait_ms: 20_000,
            page_bytes: 256 << 10,
            first_page_bytes: 32 << 10,
        }
    }
}

impl DurableStreams {
    pub(crate) fn new(
        streams: StreamAccess,
        settings: &DurableStreamsSettings,
        channels: Channels,
        access: Option<Arc<Access>>,
        encoders: &mut Encoders,
    ) -> Self {
        DurableStreams {
            mounts: [Mount::below(&settings.root)
                .alias(&format!("{ALIAS_ROOT}**"))
                .for_operators_by_grant()],
            streams: streams.clone(),
            channels,
            reads: ReadContext {
                streams,
                poll_wait_ms: settings.poll_wait_ms,
                page_bytes: settings.page_bytes,
                first_page_bytes: settings.first_page_bytes,
                event_encoder: encoders.add("stream-events", encode::EventEncoder),
                line_encoders: EncoderForms {
                    plain: encoders.add("stream-lines", lines::LineEncoder { has_times: false }),
                    timed: encoders
                        .add("stream-lines-timed", lines::LineEncoder { has_times: true }),
                },
            },
            access,
        }
    }
}
