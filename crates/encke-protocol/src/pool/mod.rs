//! The protocol of pools: job queues for workers that speak plain HTTP.
//!
//! ```text
//! PUT, GET, DELETE  /v1/pool/{name}                        create (settings in JSON), status, remove
//! PATCH             /v1/pool/{name}                        change settings
//! GET               /v1/pool                               all pools
//! POST              /v1/pool/{name}?key=&slot=&wait=       a job
//! POST, GET         /v1/pool/{name}/work?worker=&slot=     jobs as events, or one with ?wait=
//! GET               /v1/pool/{name}/job/{id}               the state of a job
//! POST              /v1/pool/{name}/job/{id}/ack?attempt=  done; the body is the result
//! POST              /v1/pool/{name}/job/{id}/refuse?attempt=   retry elsewhere; the body is the reason
//! POST              /v1/pool/{name}/job/{id}/extend?attempt=&by=   more time
//! DELETE            /v1/pool/{name}/worker/{worker}        remove a worker
//! ```
//!
//! `requests` parses requests, `responses` writes what the dispatcher answers. The rules are those of `encke-jobs`.

mod api_settings;
mod requests;
mod responses;
mod settings;
mod taking;

use std::sync::Arc;

pub use self::api_settings::PoolApiSettings;
use crate::action::{Action, DispatchRequest};
use crate::gate::Admitted;
use crate::known_field::KnownField;
use crate::request::Request;
use crate::requirement::{RequestLine, Requirement};
use crate::response::Response;

/// What a request for a path below `root` needs.
pub(crate) fn requirements<'a>(
    request: RequestLine<'a>,
    below: &str,
    root: &str,
) -> Result<Vec<Requirement<'a>>, Response> {
    Ok(vec![requests::requirement(root, below, request)])
}

/// Whether a request for a path below the root takes jobs, whatever its method.
pub(crate) fn takes_jobs(below: &str) -> bool {
    matches!(below.split('/').collect::<Vec<_>>()[..], [_, "work"])
}

/// The header fields of requests to pools: the type of a body, the form of the response, and the token of a job.
pub(crate) const FIELDS: &[KnownField] = &[
    KnownField::harmless("Content-Type"),
    KnownField::harmless("Accept"),
    // It proves that the client has the job, and allows nothing by itself.
    KnownField::harmless("Job-Token"),
];

/// The protocol of pools.
#[derive(Clone, Debug)]
pub(crate) struct PoolApi {
    settings: Arc<PoolApiSettings>,
}

impl PoolApi {
    pub(crate) fn new(settings: PoolApiSettings) -> Self {
        PoolApi {
            settings: Arc::new(settings),
        }
    }

    /// What to do for a request for the path below the root.
    pub(crate) fn request(
        &self,
        mut request: Request<'_>,
        path: &str,
        admitted: &Admitted<'_>,
    ) -> Action {
        let action = requests::parse(&self.settings, &mut request, path, admitted);
        action.unwrap_or_else(Action::Respond)
    }
}

/// Deletes a public stream that a removed pool has left.
pub(crate) fn delete_stream(pool: &str, stream: &str) -> Action {
    let request = DispatchRequest::DeleteStream {
        pool: pool.into(),
        stream: stream.into(),
    };
    requests::once("", request)
}
