//! The list of all protocols, and what is made of it: which of them serves a path, and which fields requests and responses have.

use std::sync::Arc;

use encke_access::{Access, CallersIn, CanonicalPath, PathError};
use encke_presence::{Presence, PresenceLimits};
use encke_stream::{View, Views};
use encke_subscriptions::PublishedSubscriptions;

use crate::admin::{Admin, AdminApi, Probes, ReadyState};
use crate::channel::Channels;
use crate::durable_streams::{DurableStreams, DurableStreamsSettings};
use crate::encoder::Encoders;
use crate::events::{Events, EventsSettings, MergePlanner};
use crate::gate::{Admitted, AllowedRequests, Rights, joined};
use crate::known_field::KnownField;
use crate::misspelled::is_own_field;
use crate::mount::{AtOperators, Mount, MountPattern};
use crate::moved_channel::MovedChannel;
use crate::overview::Overview;
use crate::pool::{PoolApi, PoolApiSettings};
use crate::presence::PresenceStreams;
use crate::presence::api::PresenceApi;
use crate::problem;
use crate::protocol::{ChannelMovedIn, Protocol, is_unsafe};
use crate::pusher::{Pusher, PusherSettings};
use crate::request::Headers;
use crate::requirement::{RequestHead, Requirement};
use crate::response::Response;
use crate::stream_list::StreamList;
use crate::stream_rights::StreamRights;
use crate::streams::StreamAccess;
use crate::subscriptions::SubscriptionApi;

/// The settings of all protocols.
#[derive(Clone, Debug)]
pub struct ProtocolSettings {
    /// Of Durable Streams.
    pub durable_streams: DurableStreamsSettings,
    /// Of subscriptions to several streams.
    pub events: EventsSettings,
    /// Of pools.
    pub pool: PoolApiSettings,
    /// Of the Pusher protocol.
    pub pusher: PusherSettings,
    /// Who is subscribed to what.
    pub presence: Arc<PresenceStreams>,
    /// State of the subscriptions of workers that requests need, such as the key of their tokens.
    pub subscriptions: Arc<PublishedSubscriptions>,
    /// Other nodes change the same streams: what is said of a stream includes everything that any node has acknowledged before the
    /// request.
    pub in_fleet: bool,
    /// Bytes of an ephemeral message.
    pub ephemeral_bytes_max: usize,
}

impl Default for ProtocolSettings {
    fn default() -> Self {
        ProtocolSettings {
            durable_streams: DurableStreamsSettings::default(),
            events: EventsSettings::default(),
            pool: PoolApiSettings::default(),
            pusher: PusherSettings::default(),
            presence: PresenceStreams::new(Presence::new(PRESENCE_LIMITS)),
            subscriptions: Arc::default(),
            in_fleet: false,
            ephemeral_bytes_max: 16 << 10,
        }
    }
}

/// What a server knows of members at most, unless it is configured otherwise.
pub const PRESENCE_LIMITS: PresenceLimits = PresenceLimits {
    members_max: 1_000_000,
    bytes_max: 256 << 20,
    remote_members_max: 1_000_000,
};

/// The protocols of a server, and the table of their mounts.
#[derive(Debug)]
pub(crate) struct Protocols {
    protocols: Vec<Box<dyn Protocol>>,
    /// All mounts, those with the longest patterns first.
    mounted: Vec<Mounted>,
    /// The requests that scripts of other origins may send.
    allowed: AllowedRequests,
    /// The fields of requests to which only this server gives a meaning.
    own_fields: Vec<&'static str>,
}

/// A pattern at which a protocol is mounted: the one of a mount, or an alias.
#[derive(Debug)]
struct Mounted {
    pattern: MountPattern,
    is_alias: bool,
    /// Its mount, by the indices of the protocol and of the protocol's mounts.
    protocol: usize,
    mount: usize,
}

/// Where a path leads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination<'p> {
    /// The protocol that serves it, and by which mount. `None`: there is nothing.
    served_by: Option<(&'p dyn Protocol, &'p Mount)>,
    /// Where the part of the path begins that the mount's `**` stands for.
    below_at: usize,
}

impl ProtocolSettings {
    /// The path that is authorised for a request's path: the same, unless it is an alias.
    ///
    /// # Errors
    /// The path that the alias stands for is refused.
    pub fn resolve<'a>(&self, path: CanonicalPath<'a>) -> Result<CanonicalPath<'a>, PathError> {
        Protocols::without_streams(self).resolve(path)
    }

    /// All rights that a request needs at a server with these settings. None: it needs no grant.
    ///
    /// # Errors
    /// What the server says about a request that it refuses whoever sends it.
    pub fn requirements(
        &self,
        method: &str,
        path: &CanonicalPath<'_>,
        query: Option<&str>,
        headers: Headers<'_>,
    ) -> Result<Vec<Requirement<'static>>, String> {
        let protocols = Protocols::without_streams(self);
        let path = protocols.resolve(path.clone());
        let path = path.map_err(|why| why.to_string())?;
        let destination = protocols.find(path.as_str());
        let head = destination.head(method, path.as_str(), query, headers);
        let needed = destination.requirements(&head);
        let needed = needed.map_err(|refused| problem::message(&refused))?;
        Ok(needed.into_iter().map(Requirement::into_owned).collect())
    }
}

/// All protocols. A new one is a line here.
fn registered(
    settings: &ProtocolSettings,
    streams: &StreamAccess,
    (admin, access): (Admin, Option<Arc<Access>>),
    encoders: &mut Encoders,
) -> Vec<Box<dyn Protocol>> {
    let planner = MergePlanner {
        streams: streams.clone(),
        streams_max: settings.events.streams_max(),
        root: settings.durable_streams.root.as_str().into(),
    };
    let channels = Channels::new(planner.clone(), access.clone(), encoders);
    let mut protocols: Vec<Box<dyn Protocol>> = vec![
        Box::new(DurableStreams::new(
            streams.clone(),
            &settings.durable_streams,
            channels.clone(),
            access.clone(),
            encoders,
        )),
        Box::new(StreamList::new(streams.clone())),
        Box::new(PresenceApi::new(
            streams.clone(),
            Arc::clone(&settings.presence),
            encoders,
        )),
        Box::new(SubscriptionApi::new(
            streams.clone(),
            Arc::clone(&settings.subscriptions),
        )),
        Box::new(Events::new(planner, channels, encoders)),
        Box::new(PoolApi::new(settings.pool.clone())),
        Box::new(AdminApi::new(admin, access, streams.clone(), encoders)),
    ];
    // Without an app nothing is mounted.
    if let Some(pusher) = Pusher::new(&settings.pusher, streams, &settings.presence, encoders) {
        protocols.push(Box::new(pusher.sockets()));
        protocols.push(Box::new(pusher.api()));
    }
    protocols
}

impl Protocols {
    /// All protocols over the committed streams. `access`: the access control, if there is one.
    pub(crate) fn new(
        views: Arc<Views>,
        settings: &ProtocolSettings,
        admin: Admin,
        access: Option<Arc<Access>>,
        encoders: &mut Encoders,
    ) -> Self {
        let streams = StreamAccess {
            views,
            name_bytes_max: settings.durable_streams.name_bytes_max,
            ephemeral_bytes_max: settings.ephemeral_bytes_max,
            in_fleet: settings.in_fleet,
            rights: StreamRights::new(&settings.pool.root),
            root: settings.durable_streams.root.as_str().into(),
        };
        Protocols::of(registered(settings, &streams, (admin, access), encoders))
    }

    /// All protocols, for what they say about requests and not for requests themselves.
    pub(crate) fn without_streams(settings: &ProtocolSettings) -> Self {
        let views = Views::one(Arc::new(View::default()));
        let probes = Probes {
            readiness: Arc::new(|| ReadyState::Ready),
            metrics: Arc::new(Vec::new),
        };
        let admin = Admin::new(probes);
        Protocols::new(views, settings, admin, None, &mut Encoders::default())
    }

    /// These protocols, and the text at `/` about them.
    pub(crate) fn of(mut protocols: Vec<Box<dyn Protocol>>) -> Self {
        let overview = Overview::of(&protocols);
        protocols.push(Box::new(overview));
        let mut mounted = Vec::new();
        for (protocol, one) in protocols.iter().enumerate() {
            for (mount, at) in one.mounts().iter().enumerate() {
                let own = [(at.pattern(), false)].into_iter();
                let aliases = at.aliases().iter().map(|alias| (alias, true));
                mounted.extend(own.chain(aliases).map(|(pattern, is_alias)| Mounted {
                    pattern: pattern.clone(),
                    is_alias,
                    protocol,
                    mount,
                }));
            }
        }
        mounted.sort_by_key(|one| std::cmp::Reverse(one.pattern.len()));
        let methods = protocols.iter().flat_map(|one| one.methods());
        let fields = protocols.iter().flat_map(|one| one.fields().request);
        let names = fields.clone().map(|field| field.name);
        Protocols {
            allowed: AllowedRequests::of(methods.copied(), fields),
            own_fields: names.filter(|name| is_own_field(name)).collect(),
            mounted,
            protocols,
        }
    }

    /// Takes a channel over from another process. `None`: no protocol has channels of its kind.
    pub(crate) fn move_in(
        &self,
        channel: &MovedChannel,
        callers: &CallersIn,
    ) -> Option<ChannelMovedIn> {
        let mut protocols = self.protocols.iter();
        protocols.find_map(|protocol| protocol.move_in(channel, callers))
    }

    /// The requests that scripts of other origins may send.
    pub(crate) fn allowed(&self) -> &AllowedRequests {
        &self.allowed
    }

    /// The fields of requests to which only this server gives a meaning.
    pub(crate) fn own_fields(&self) -> &[&'static str] {
        &self.own_fields
    }

    /// The fields of responses that scripts of other origins may read.
    pub(crate) fn response_fields(&self) -> String {
        let fields = self.protocols.iter().flat_map(|one| one.fields().response);
        joined(fields.copied().chain(ADDED_BY_REACTOR))
    }

    /// The path that is authorised and routed for a request's path: the same, unless it is an alias.
    pub(crate) fn resolve<'a>(
        &self,
        path: CanonicalPath<'a>,
    ) -> Result<CanonicalPath<'a>, PathError> {
        let target = match self.best_match(path.as_str()) {
            Some((mounted, below)) if mounted.is_alias => {
                let (_, mount) = self.mount_of(mounted);
                format!("{}{below}", mount.pattern().as_str())
            }
            _ => return Ok(path),
        };
        CanonicalPath::from_decoded(target)
    }

    /// Where a path leads.
    pub(crate) fn find(&self, path: &str) -> Destination<'_> {
        match self.best_match(path) {
            Some((mounted, below)) => Destination {
                served_by: Some(self.mount_of(mounted)),
                below_at: path.len() - below.len(),
            },
            None => Destination {
                served_by: None,
                below_at: path.len(),
            },
        }
    }

    /// The longest pattern that matches a path, and the part of the path that its `**` stands for.
    fn best_match<'a>(&self, path: &'a str) -> Option<(&Mounted, &'a str)> {
        let mut mounted = self.mounted.iter();
        mounted.find_map(|one| Some((one, one.pattern.match_path(path)?)))
    }

    /// The patterns of all mounts and aliases.
    #[cfg(test)]
    pub(crate) fn patterns(&self) -> impl Iterator<Item = String> {
        self.mounted.iter().map(|one| one.pattern.to_string())
    }

    fn mount_of(&self, mounted: &Mounted) -> (&dyn Protocol, &Mount) {
        let protocol = &*self.protocols[mounted.protocol];
        (protocol, &protocol.mounts()[mounted.mount])
    }

    /// What is served at the address for operators, for people.
    pub(crate) fn for_operators(&self) -> String {
        let mounts = self.protocols.iter().flat_map(|one| one.mounts());
        let mounts = mounts.filter(|mount| mount.at_operators != AtOperators::Missing);
        let paths: Vec<&str> = mounts.map(|mount| mount.pattern().as_str()).collect();
        match paths.split_last() {
            Some((last, [])) => (*last).to_owned(),
            Some((last, before)) => format!("{} and {last}", before.join(", ")),
            None => String::new(),
        }
    }
}

impl<'p> Destination<'p> {
    /// The protocol that serves the path. `None`: there is nothing.
    pub(crate) fn protocol(&self) -> Option<&'p dyn Protocol> {
        self.served_by.map(|(protocol, _)| protocol)
    }

    /// The parameters of a request that a signed URL does not sign, see [`Protocol::free_parameters`].
    pub(crate) fn free_parameters(&self, method: &str, path: &str) -> &'static [&'static str] {
        match self.served_by {
            Some((protocol, _)) if !is_unsafe(method) => protocol.free_parameters(self.below(path)),
            _ => &[],
        }
    }

    /// Whether requests need no credentials.
    pub(crate) fn is_public(&self) -> bool {
        self.served_by.is_some_and(|(_, mount)| mount.is_public)
    }

    /// Whether requests have credentials that only the protocol knows, see [`Protocol::has_own_credentials`].
    pub(crate) fn has_own_credentials(&self, method: &str, path: &str) -> bool {
        self.protocol()
            .is_some_and(|protocol| protocol.has_own_credentials(method, self.below(path)))
    }

    /// Whether it is served at the address for operators, and to whom.
    pub(crate) fn at_operators(&self) -> AtOperators {
        let served_by = self.served_by;
        served_by.map_or(AtOperators::Missing, |(_, mount)| mount.at_operators)
    }

    /// The part of the path that the mount's `**` stands for.
    pub(crate) fn below<'a>(&self, path: &'a str) -> &'a str {
        path.get(self.below_at..).unwrap_or_default()
    }

    /// The pattern of the mount that serves it; empty if there is none.
    pub(crate) fn route(&self) -> String {
        let pattern = self.served_by.map(|(_, mount)| mount.pattern().to_string());
        pattern.unwrap_or_default()
    }

    /// The head of a request for the path.
    pub(crate) fn head<'a>(
        &self,
        method: &'a str,
        path: &'a str,
        query: Option<&'a str>,
        headers: Headers<'a>,
    ) -> RequestHead<'a> {
        RequestHead {
            method,
            path,
            below: self.below(path),
            query,
            headers,
        }
    }

    /// A request for the path, with the rights of its caller.
    pub(crate) fn admitted<'a>(
        &self,
        method: &'a str,
        path: &'a str,
        rights: Rights,
    ) -> Admitted<'a> {
        Admitted {
            path,
            below: self.below(path),
            method,
            rights,
        }
    }

    /// All rights that a request needs.
    ///
    /// # Errors
    /// The response to a request that is refused whoever sends it.
    pub(crate) fn requirements<'a>(
        &self,
        head: &RequestHead<'a>,
    ) -> Result<Vec<Requirement<'a>>, Response> {
        match self.protocol() {
            Some(protocol) => protocol.requirements(head),
            None => Ok(Vec::new()),
        }
    }

    /// The header fields of requests that the protocol reads.
    pub(crate) fn request_fields(&self) -> &'static [KnownField] {
        self.protocol()
            .map_or(&[], |protocol| protocol.fields().request)
    }

    /// Whether a request may change something.
    pub(crate) fn changes(&self, method: &str, path: &str) -> bool {
        match self.protocol() {
            Some(protocol) => protocol.changes(method, self.below(path)),
            None => is_unsafe(method),
        }
    }

    /// Whether a GET opens a channel if it asks for one.
    pub(crate) fn opens_channel(&self, path: &str, query: Option<&str>) -> bool {
        self.protocol()
            .is_some_and(|protocol| protocol.opens_channel(self.below(path), query))
    }

    /// Whether its protocol judges itself which pages may open a channel.
    pub(crate) fn judges_origins(&self, path: &str) -> bool {
        self.protocol()
            .is_some_and(|protocol| protocol.judges_origins(self.below(path)))
    }

    /// Whether a GET, if it is served, opens a stream of server-sent events.
    pub(crate) fn opens_events(&self, path: &str, query: Option<&str>) -> bool {
        self.protocol()
            .is_some_and(|protocol| protocol.opens_events(self.below(path), query))
    }
}

/// Fields that the reactor adds to responses of all protocols.
const ADDED_BY_REACTOR: [&str; 2] = ["Date", "X-Request-Id"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_find_the_longest_mount() {
        let protocols = Protocols::without_streams(&ProtocolSettings::default());
        for (path, mount, below) in [
            ("/v1/stream/a/b", "/v1/stream/", "a/b"),
            ("/v1/events", "/v1/events", ""),
            ("/v1/stream", "/v1/stream", ""),
            ("/v1/pool", "/v1/pool", ""),
            ("/v1/pool/p/work", "/v1/pool/", "p/work"),
            ("/v1/stream/__ds", "/v1/stream/__ds", ""),
            ("/v1/stream/__ds/x", "/v1/stream/__ds/", "x"),
            ("/v1/stream/__ds/jwks.json", "/v1/stream/__ds/jwks.json", ""),
            ("/streams/__ds/x", "/v1/stream/__ds/", "x"),
            ("/v1/stream/__dsx", "/v1/stream/", "__dsx"),
            ("/v1/stream/a/__ds/x", "/v1/stream/", "a/__ds/x"),
            ("/metrics", "/metrics", ""),
            ("/v1/admin/revoke", "/v1/admin/", "revoke"),
            ("/", "/", ""),
        ] {
            let found = protocols.find(path);
            let pattern = found.served_by.map(|(_, mount)| mount.pattern().as_str());
            assert_eq!((pattern, found.below(path)), (Some(mount), below));
        }
        for path in [
            "/v1/streams",
            "/v1/events/a",
            "/v1/pools",
            "/v1",
            "/metrics/a",
        ] {
            assert!(protocols.find(path).protocol().is_none(), "{path}");
        }
    }

    #[test]
    fn no_pattern_has_two_protocols() {
        let protocols = Protocols::without_streams(&ProtocolSettings::default());
        for (at, one) in protocols.mounted.iter().enumerate() {
            let mut others = protocols.mounted[..at].iter();
            assert!(others.all(|other| other.pattern != one.pattern), "{one:?}");
        }
    }

    #[test]
    fn the_address_for_operators_and_public_paths_are_those_of_mounts() {
        let protocols = Protocols::without_streams(&ProtocolSettings::default());
        assert_eq!(
            protocols.for_operators(),
            "/v1/stream/, /v1/stream, /v1/presence/, /v1/pool, /v1/pool/, /healthz, /readyz, /metrics, /v1/admin/, /admin and /admin/"
        );
        let is_public = |path: &&str| protocols.find(path).is_public();
        let paths = [
            "/",
            "/healthz",
            "/readyz",
            "/metrics",
            "/v1/events",
            "/v1/pool",
            "/v1/stream/__ds",
            "/v1/stream/__ds/jwks.json",
            "/v1/stream/__ds/subscriptions/x/ack",
            "/none",
        ];
        let public: Vec<_> = paths.into_iter().filter(is_public).collect();
        assert_eq!(
            public,
            ["/", "/healthz", "/readyz", "/v1/stream/__ds/jwks.json"]
        );
    }

    #[test]
    fn lists_of_fields_are_those_of_protocols() {
        let protocols = Protocols::without_streams(&ProtocolSettings::default());
        let own = [
            "Encke-Ack",
            "Encke-Retention",
            "Encke-Truncate",
            "Encke-Owner",
            "Encke-Metadata",
            "Encke-Producer-Timeout",
            "Encke-End-Reason",
            "Encke-Stop",
            "Encke-Ephemeral",
            "Encke-Read-URL",
        ];
        assert_eq!(protocols.own_fields(), own);
        let response = protocols.allowed().preflight(Headers(&[]));
        let fields = String::from_utf8(response.fields).expect("fields are text");
        let allowed = "\r\nAccess-Control-Allow-Methods: GET, HEAD, PUT, POST, DELETE, OPTIONS, PATCH\r\n\
            Access-Control-Allow-Headers: Content-Type, Authorization, If-None-Match, Last-Event-ID, Stream-Seq, Stream-TTL, \
            Stream-Expires-At, Stream-Closed, Stream-Forked-From, Stream-Fork-Offset, Stream-Fork-Sub-Offset, Producer-Id, \
            Producer-Epoch, Producer-Seq, Encke-Ack, Encke-Retention, Encke-Truncate, If-Match, Encke-Owner, Encke-Metadata, \
            Encke-Producer-Timeout, Encke-End-Reason, Encke-Stop, Encke-Ephemeral, Encke-Read-URL, Job-Token, X-Request-Id, Traceparent, \
            Tracestate\r\n";
        assert!(fields.contains(allowed), "{fields}");
    }
}
