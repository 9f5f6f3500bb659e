//! Which protocol serves a path, and what its requests need.

use std::sync::Arc;

use crate::admin;
use crate::durable_streams;
use crate::events;
use crate::known_field::KnownField;
use crate::pool;
use crate::requirement::{RequestLine, Requirement};
use crate::response::Response;
use crate::stream_rights::StreamRights;

/// Where the protocols are served.
#[derive(Clone, Debug)]
pub(crate) struct Mounts {
    /// The paths above the streams and above the pools; they begin and end with a slash.
    streams: Arc<str>,
    pools: Arc<str>,
    rights: StreamRights,
}

/// What serves a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mount<'a> {
    /// The stream of this name.
    Stream(&'a str),
    /// Several streams.
    Events,
    /// The path below the root of the pools.
    Pools(&'a str),
    /// Endpoints for operators, and everything else.
    Admin,
}

impl Mounts {
    pub(crate) fn new(streams: &str, pools: &str) -> Self {
        Mounts {
            streams: streams.into(),
            pools: pools.into(),
            rights: StreamRights::new(pools),
        }
    }

    /// What serves a canonical path.
    pub(crate) fn find<'a>(&self, path: &'a str) -> Mount<'a> {
        if path == events::PATH {
            return Mount::Events;
        }
        if let Some(name) = path.strip_prefix(&*self.streams) {
            return Mount::Stream(name);
        }
        let pools = path
            .strip_prefix(&*self.pools)
            .or_else(|| (self.pools.strip_suffix('/') == Some(path)).then_some(""));
        pools.map_or(Mount::Admin, Mount::Pools)
    }

    /// Whether a request may change something: by its method, or because it takes a job.
    pub(crate) fn changes(&self, method: &str, path: &str) -> bool {
        match self.find(path) {
            _ if !matches!(method, "GET" | "HEAD") => true,
            Mount::Pools(below) => pool::takes_jobs(below),
            Mount::Stream(_) | Mount::Events | Mount::Admin => false,
        }
    }

    /// Whether a GET, if it is served, opens a stream of events.
    pub(crate) fn opens_events(&self, path: &str, query: Option<&str>) -> bool {
        let has = |pair: &str| query.unwrap_or_default().split('&').any(|one| one == pair);
        match self.find(path) {
            Mount::Stream(_) => has("live=sse"),
            Mount::Events => true,
            Mount::Pools(below) => pool::takes_jobs(below),
            Mount::Admin => false,
        }
    }

    /// All rights that a request needs. None: anybody may send it, or there is nothing at its path.
    pub(crate) fn requirements<'a>(
        &self,
        request: RequestLine<'a>,
    ) -> Result<Vec<Requirement<'a>>, Response> {
        match self.find(request.path) {
            Mount::Stream(name) => {
                durable_streams::requirements(request, name, &self.streams, &self.rights)
            }
            Mount::Events => events::requirements(request, &self.streams, &self.rights),
            Mount::Pools(below) => pool::requirements(request, below, &self.pools),
            Mount::Admin => Ok(admin::requirement(request.path).into_iter().collect()),
        }
    }
}

impl Mount<'_> {
    /// The header fields that its protocol reads.
    pub(crate) fn known_fields(self) -> &'static [KnownField] {
        match self {
            Mount::Stream(_) => durable_streams::FIELDS,
            Mount::Events => events::FIELDS,
            Mount::Pools(_) => pool::FIELDS,
            Mount::Admin => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::REQUEST_FIELDS;
    use crate::misspelled;

    fn all_known() -> Vec<&'static str> {
        let mounts = [
            Mount::Stream("a"),
            Mount::Events,
            Mount::Pools(""),
            Mount::Admin,
        ];
        let fields = mounts.into_iter().flat_map(Mount::known_fields);
        fields.map(|field| field.name).collect()
    }

    #[test]
    fn paths_find_their_protocol() {
        let mounts = Mounts::new("/v1/stream/", "/v1/pool/");
        for (path, mount) in [
            ("/v1/stream/a/b", Mount::Stream("a/b")),
            ("/v1/stream", Mount::Admin),
            ("/v1/events", Mount::Events),
            ("/v1/events/a", Mount::Admin),
            ("/v1/pool", Mount::Pools("")),
            ("/v1/pool/p/work", Mount::Pools("p/work")),
            ("/v1/pools", Mount::Admin),
            ("/", Mount::Admin),
        ] {
            assert_eq!(mounts.find(path), mount, "{path}");
        }
    }

    #[test]
    fn known_fields_are_the_same_everywhere() {
        let known = all_known();
        let ours = |name: &&&str| name.starts_with("Encke-");
        let of_protocols: Vec<_> = misspelled::FIELDS.iter().filter(ours).collect();
        let mut declared: Vec<_> = known.iter().filter(ours).collect();
        declared.sort_unstable();
        assert_eq!(of_protocols, declared);
        // What a browser sets itself, or may set without asking (Fetch, section 2.2.2).
        let unasked = ["Accept", "Accept-Encoding"];
        let allowed: Vec<_> = REQUEST_FIELDS.split(',').map(str::trim).collect();
        for name in known {
            assert!(unasked.contains(&name) || allowed.contains(&name), "{name}");
        }
    }
}
