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

use encke_jobs::PoolRequest;

pub use self::api_settings::PoolApiSettings;
pub(crate) use self::responses::refusal;
use crate::action::Action;
use crate::gate::Admitted;
use crate::known_field::{KnownField, KnownFields};
use crate::mount::Mount;
use crate::protocol::{Protocol, is_unsafe};
use crate::request::Request;
use crate::requirement::{RequestHead, Requirement};
use crate::response::Response;

/// The protocol of pools.
#[derive(Debug)]
pub(crate) struct PoolApi {
    settings: PoolApiSettings,
    mounts: [Mount; 2],
}

impl PoolApi {
    pub(crate) fn new(settings: PoolApiSettings) -> Self {
        let list = settings.root.strip_suffix('/').unwrap_or(&settings.root);
        PoolApi {
            mounts: [
                Mount::at(list).for_operators_by_grant(),
                Mount::below(&settings.root).for_operators_by_grant(),
            ],
            settings,
        }
    }
}

impl Protocol for PoolApi {
    fn mounts(&self) -> &[Mount] {
        &self.mounts
    }

    fn methods(&self) -> &'static [&'static str] {
        requests::METHODS
    }

    fn fields(&self) -> &'static KnownFields {
        &FIELDS
    }

    fn overview(&self) -> &'static str {
        "Pools        PUT, PATCH, POST, GET, DELETE  /v1/pool/{name}\n\
         Work for one POST /v1/pool/{name}/work?worker={worker}\n"
    }

    fn requirements<'a>(&self, head: &RequestHead<'a>) -> Result<Vec<Requirement<'a>>, Response> {
        Ok(vec![requests::requirement(&self.settings.root, head)])
    }

    fn changes(&self, method: &str, below: &str) -> bool {
        is_unsafe(method) || takes_jobs(below)
    }

    fn opens_events(&self, below: &str, _query: Option<&str>) -> bool {
        takes_jobs(below)
    }

    fn request(&self, mut request: Request<'_>, admitted: &Admitted<'_>) -> Action {
        let action = requests::parse(&self.settings, &mut request, admitted);
        action.unwrap_or_else(Action::Respond)
    }
}

/// Whether a request for a path below the root takes jobs, whatever its method.
fn takes_jobs(below: &str) -> bool {
    matches!(below.split('/').collect::<Vec<_>>()[..], [_, "work"])
}

/// The header fields of requests to pools: the type of a body, the form of the response, and the token of a job.
const FIELDS: KnownFields = KnownFields {
    request: &[
        KnownField::harmless("Content-Type"),
        KnownField::harmless("Accept"),
        // It proves that the client has the job, and allows nothing by itself.
        KnownField::harmless("Job-Token"),
    ],
    response: &[
        "Location",
        "Retry-After",
        "Job-Id",
        "Job-Attempt",
        "Job-Deadline",
        "Job-Key",
        "Job-Token",
    ],
};

/// Deletes a public stream that a removed pool has left.
pub(crate) fn delete_stream(pool: &str, stream: &str) -> Action {
    let request = PoolRequest::DeleteStream {
        pool: pool.into(),
        stream: stream.into(),
    };
    requests::once("", request)
}
