//! The protocols, sans-IO.
//!
//! A protocol gets a parsed [`Request`] and returns an [`Action`]: a response, a command to commit, a part of a stream to
//! read, or a subscription. An action that waits for an event carries a continuation for exactly that event ([`OnCommit`],
//! [`OnRead`] and their like), which the reactor resumes. An [`Encoder`] turns the records of subscribers into bytes, once for
//! all subscribers at the same position.
//!
//! The one invariant: **a protocol never sees a socket, a clock or a file.** The time is in the request; the same request
//! over the same streams gets the same answer, under the reactor, under HTTP/2, under the fuzzer.
//!
//! A request passes the `gate` first: its path in one form, the host and origin that it names, and its caller. Protocols ask one
//! question, whether the caller may do something at a path. Each protocol is a `protocol::Protocol`: it declares its mounts, which rights
//! its requests need (`requirement`) and which header fields it has (`known_field`). `protocols` is the list of them, and finds the one of a
//! path.
//!
//! Protocols do not know each other. What they share stands beside them: `streams` finds streams by name, `payload`, `sse` and `ndjson`
//! write records, `append` makes commands of appends, `problem` writes every error.
//!
//! Start reading at [`Router::request`], then `protocol`, then `action`, then a protocol.

mod action;
mod admin;
mod append;
mod caller_needs;
mod channel;
mod coding;
mod content;
mod cross_origin;
mod data_lines;
mod durable_streams;
mod encoded_run;
mod encoder;
mod ephemeral;
pub mod events;
mod gate;
mod health_probe;
mod json;
mod known_field;
mod last_messages;
mod live_format;
pub mod long_record;
mod misspelled;
mod mount;
mod moved_channel;
mod ndjson;
mod number;
mod overview;
mod payload;
mod pool;
mod presence;
pub mod problem;
mod protocol;
mod protocols;
mod pusher;
mod quality;
mod query;
mod request;
mod requirement;
mod response;
mod resume;
mod router;
mod run;
mod sse;
mod status;
mod stream_list;
mod stream_rights;
mod streams;
mod subprotocol;
mod subscriptions;
mod text;
mod timestamp;
mod unknown_path;

pub use action::{
    Action, BodyPart, Broadcast, Channel, ChannelAction, ChannelClose, ChannelEnd, ChannelMessage,
    ChannelOpening, DispatchRequest, DispatchResponse, Dispatched, Failure, Feed, FeedBeside,
    FeedEnd, LoadName, MergeSource, NextPart, OnBroadcast, OnChange, OnCommit, OnDispatch, OnList,
    OnPart, OnRead, OnRecord, OnWorkerEvent, RegrantedChannel, SourceKind, Subscription,
    ViewedPattern, Wait, WorkerOutput,
};
pub use admin::{
    Admin, ConnectionName, ConnectionQuery, ExplainedRequest, GroupKind, GroupQuery, Inquiry,
    ListPosition, OperatorQuestion, PROBE, Probes, REVOCATIONS, ReadyState, StreamOrder,
    StreamQuery,
};
pub use caller_needs::{CallerJudgement, CallerNeeds};
pub use coding::{CodingOffer, ContentCoding};
pub use cross_origin::CrossOriginFields;
pub use durable_streams::DurableStreamsSettings;
pub use encoded_run::{EncodedRun, Mark, Omission};
pub use encoder::{
    AheadStream, Encoder, EncoderId, Encoders, Farewell, MergeEncoder, MergeEncoderId, MergedHead,
    MergedPosition, MergedRecord, RecordHead, StreamEnd, StreamGeneration, Variant,
};
pub use events::EventsSettings;
pub use gate::{Gate, HostList, Hosts, NotHosts, NotOrigins, OriginReader, Origins, Policy};
pub use moved_channel::{MovedChannel, MovedConversation};
pub use pool::PoolApiSettings;
pub use presence::{PresenceNames, PresenceRule, PresenceSeat, PresenceStreams};
pub use protocols::{PRESENCE_LIMITS, ProtocolSettings};
pub use pusher::{
    AppReporter, AppSecret, AppWebhook, BadPusherApp, BadPusherWebhook, BadWebhookKind, PusherApp,
    PusherSettings, PusherWebhook, ReportStream, WebhookBatch, WebhookKind,
};
pub use request::{CallerInfo, Headers, Request};
pub use requirement::{Paths, Requirement};
pub use response::{AuditNote, Body, CrossOrigin, Response};
pub use router::{BodyOwner, Routed, Router};
pub use run::Run;
pub use sse::for_event_source;
pub use status::phrase;
pub use text::CutCharacter;
