//! What the dispatcher sends to clients and workers, as responses and events.

use std::fmt::Write as _;

use encke_clock::WallTime;
use encke_jobs::{
    DispatchedJob, JobError, JobId, JobInfo, JobState, JobToken, Payload, PoolStatus, content,
    string,
};
use encke_pool::PoolError;
use serde_json::json;

use crate::action::{DispatchResponse, Dispatched, OnDispatch, OnWorkerEvent, WorkerOutput};
use crate::problem::{error, refused};
use crate::response::{Body, Response};
use crate::sse;

/// Waits for the one answer to a request. Its field is the pool's URL, as in [`WaitForResult`].
#[derive(Debug)]
pub(super) struct Once {
    pub(super) pool: String,
}

/// Waits for a job's result.
#[derive(Debug)]
pub(super) struct WaitForResult {
    pub(super) pool: String,
}

/// Waits for one job, as JSON.
#[derive(Debug)]
pub(super) struct PollJson;

/// Waits for one job, as its content with fields that describe it.
#[derive(Debug)]
pub(super) struct PollRaw;

/// Waits until the worker is registered, then opens its stream of jobs.
#[derive(Debug)]
pub(super) struct OpenWorker {
    pub(super) worker: String,
}

/// Encodes a worker's jobs as events.
#[derive(Debug)]
struct WorkerEvents;

impl OnDispatch for Once {
    fn dispatched(self: Box<Self>, event: DispatchResponse) -> Dispatched {
        Dispatched::Respond(match event {
            DispatchResponse::Created { existed, status } => {
                let response = shown(if existed { 200 } else { 201 }, &status);
                response.field_if("Location", (!existed).then_some(self.pool))
            }
            DispatchResponse::Posted { id, token } => {
                posted(id, token).field("Location", format!("{}/job/{id}", self.pool))
            }
            DispatchResponse::Job(job) => state(200, &self.pool, &job),
            event => respond(event),
        })
    }

    fn waits_long(&self) -> bool {
        false
    }
}

impl OnDispatch for WaitForResult {
    fn dispatched(self: Box<Self>, event: DispatchResponse) -> Dispatched {
        Dispatched::Respond(match event {
            DispatchResponse::Job(job) => awaited(&self.pool, job),
            // The credentials of the request have ended before its job was in the log.
            DispatchResponse::Posted { id, token } => {
                posted(id, token).field("Location", format!("{}/job/{id}", self.pool))
            }
            event => respond(event),
        })
    }

    fn waits_long(&self) -> bool {
        true
    }
}

impl OnDispatch for PollJson {
    fn dispatched(self: Box<Self>, event: DispatchResponse) -> Dispatched {
        Dispatched::Respond(match event {
            DispatchResponse::Dispatched(handed) => {
                let mut body = object(&handed);
                body.push(b'\n');
                plain(200)
                    .field("Content-Type", "application/json")
                    .body(body)
            }
            event => respond(event),
        })
    }

    fn waits_long(&self) -> bool {
        true
    }
}

impl OnDispatch for PollRaw {
    fn dispatched(self: Box<Self>, event: DispatchResponse) -> Dispatched {
        Dispatched::Respond(respond(event))
    }

    fn waits_long(&self) -> bool {
        true
    }
}

impl OnDispatch for OpenWorker {
    fn dispatched(self: Box<Self>, event: DispatchResponse) -> Dispatched {
        match event {
            DispatchResponse::Registered { slot } => {
                Dispatched::Open(registered(&self.worker, slot), Box::new(WorkerEvents))
            }
            event => Dispatched::Respond(respond(event)),
        }
    }

    fn waits_long(&self) -> bool {
        true
    }
}

impl OnWorkerEvent for WorkerEvents {
    fn event(&self, event: DispatchResponse) -> WorkerOutput {
        match event {
            DispatchResponse::Dispatched(handed) => WorkerOutput::Send(job_event(&handed)),
            DispatchResponse::Stopping => {
                WorkerOutput::End(b"event: stopping\ndata: {}\n\n".to_vec())
            }
            DispatchResponse::Replaced => {
                WorkerOutput::End(b"event: replaced\ndata: {}\n\n".to_vec())
            }
            // A registered worker gets nothing else.
            _ => WorkerOutput::End(b"event: removed\ndata: {}\n\n".to_vec()),
        }
    }

    fn farewell(&self, why: &str) -> Vec<u8> {
        let mut event = b"event: removed\ndata: {\"reason\":".to_vec();
        string(why, &mut event);
        event.extend_from_slice(b"}\n\n");
        event
    }

    fn heartbeat(&self) -> &'static [u8] {
        sse::HEARTBEAT
    }
}

/// The response to a request that makes no difference to this event.
fn respond(event: DispatchResponse) -> Response {
    match event {
        DispatchResponse::Created { status, .. } | DispatchResponse::Described(status) => {
            shown(200, &status)
        }
        DispatchResponse::Listed(pools) => {
            let list = pools
                .iter()
                .map(|(name, settings)| json!({ "name": **name, "type": settings.strategy.name() }))
                .collect::<Vec<_>>();
            json_body(200, &json!({ "pools": list }))
        }
        DispatchResponse::Posted { id, token } => posted(id, token),
        DispatchResponse::Job(job) => state(200, "", &job),
        DispatchResponse::Dispatched(handed) => handed_raw(handed),
        DispatchResponse::Reported {
            deadline: Some(deadline),
        } => json_body(200, &json!({ "deadline_ms": deadline.as_ms() })),
        DispatchResponse::Reported { deadline: None }
        | DispatchResponse::Registered { .. }
        | DispatchResponse::NoJob
        | DispatchResponse::Removed => plain(204),
        DispatchResponse::Replaced => error(
            409,
            "worker_replaced",
            "the same caller has registered a worker of this name by another connection",
        ),
        DispatchResponse::PoolRemoved => error(404, "unknown_pool", "the pool was removed"),
        DispatchResponse::Stopping => refusal(&JobError::Stopping),
        DispatchResponse::Refused(error) => refusal(&error),
        DispatchResponse::Subscription(_) => error(
            500,
            "internal",
            "internal error: the subscriptions have answered a request to the pools",
        ),
    }
}

/// The response to a job that was posted.
fn posted(id: JobId, token: JobToken) -> Response {
    json_body(202, &json!({ "job": id, "token": token.to_string() }))
        .field("Job-Id", id)
        .field("Job-Token", token)
}

/// The head of a worker's events, and the first of them. Each registration is also sent under its former name, `hired`.
fn registered(worker: &str, slot: u32) -> Response {
    let mut data = b"{\"worker\":".to_vec();
    string(worker, &mut data);
    data.extend_from_slice(format!(",\"slot\":{slot}}}").as_bytes());
    let mut first = b"retry: 1000\n".to_vec();
    for name in ["registered", "hired"] {
        first.extend_from_slice(format!("event: {name}\ndata: ").as_bytes());
        first.extend_from_slice(&data);
        first.extend_from_slice(b"\n\n");
    }
    sse::head().body(Body::Open(first))
}

/// A job as an event, on one line.
fn job_event(handed: &DispatchedJob) -> Vec<u8> {
    let mut event = format!("event: job\nid: {}\ndata: ", handed.id).into_bytes();
    event.extend_from_slice(&object(handed));
    event.extend_from_slice(b"\n\n");
    event
}

fn object(handed: &DispatchedJob) -> Vec<u8> {
    let DispatchedJob {
        id,
        attempt,
        token,
        deadline,
        payload,
    } = handed;
    let deadline_ms = deadline.as_ms();
    let mut out = Vec::with_capacity(payload.body.len() + 128);
    out.extend_from_slice(
        format!(
            "{{\"job\":{id},\"attempt\":{attempt},\"token\":\"{token}\",\"deadline_ms\":{deadline_ms},"
        )
        .as_bytes(),
    );
    if let Some(key) = &payload.key {
        out.extend_from_slice(b"\"key\":");
        string(key, &mut out);
        out.push(b',');
    }
    content(payload, &mut out);
    out.push(b'}');
    out
}

/// A job as its content, for workers that know nothing but HTTP.
fn handed_raw(handed: DispatchedJob) -> Response {
    let DispatchedJob {
        id,
        attempt,
        token,
        deadline,
        payload,
    } = handed;
    raw(200, payload.clone())
        .field("Job-Id", id)
        .field("Job-Attempt", attempt)
        .field("Job-Token", token)
        .field("Job-Deadline", deadline.as_ms())
        .field_if("Job-Key", payload.key)
}

fn raw(status: u16, payload: Payload) -> Response {
    plain(status)
        .field("Content-Type", payload.content_type)
        .body(payload.body.to_vec())
}

/// The response to a client that waits for a result.
fn awaited(pool: &str, job: JobInfo) -> Response {
    let (id, token) = (job.id, job.token);
    let response = match job.state {
        JobState::Done {
            result: Some(result),
        } => raw(200, result),
        JobState::Dead { reason } => {
            let reason = reason.map(|reason| format!("; the last time: {reason}"));
            let times = match job.attempts {
                1 => "once".to_owned(),
                attempts => format!("{attempts} times"),
            };
            let reason = reason.unwrap_or_default();
            let why = format!("the job failed {times} and is given up{reason}");
            error(502, "job_failed", why)
        }
        _ => state(202, pool, &job),
    };
    response
        .field("Job-Id", id)
        .field("Job-Token", token)
        .field("Location", format!("{pool}/job/{id}"))
}

fn state(status: u16, pool: &str, job: &JobInfo) -> Response {
    let mut body = format!("{{\"job\":{},\"attempts\":{},", job.id, job.attempts).into_bytes();
    match &job.state {
        JobState::Waiting { not_before } => {
            body.extend_from_slice(b"\"state\":\"waiting\"");
            if let Some(at_ms) = not_before.map(WallTime::as_ms) {
                body.extend_from_slice(format!(",\"not_before_ms\":{at_ms}").as_bytes());
            }
        }
        JobState::Running { worker, deadline } => {
            body.extend_from_slice(b"\"state\":\"running\",\"worker\":");
            string(worker, &mut body);
            body.extend_from_slice(format!(",\"deadline_ms\":{}", deadline.as_ms()).as_bytes());
        }
        JobState::Done { result } => {
            body.extend_from_slice(b"\"state\":\"done\"");
            if let Some(result) = result {
                body.extend_from_slice(b",\"result\":{");
                content(result, &mut body);
                body.push(b'}');
            }
        }
        JobState::Dead { reason } => {
            body.extend_from_slice(b"\"state\":\"dead\"");
            if let Some(reason) = reason {
                body.extend_from_slice(b",\"reason\":");
                string(reason, &mut body);
            }
        }
    }
    body.extend_from_slice(b"}\n");
    let response = plain(status).field("Content-Type", "application/json");
    match status {
        200 => response.body(body),
        _ => response
            .field("Content-Location", format!("{pool}/job/{}", job.id))
            .body(body),
    }
}

fn shown(status: u16, info: &PoolStatus) -> Response {
    let figures = &info.stats;
    let workers: Vec<_> = info
        .workers
        .iter()
        .map(|worker| {
            json!({
                "name": *worker.name,
                "slot": worker.slot,
                "connected": worker.connected,
                "running": worker.running,
                "given": worker.given,
                "done": worker.done,
            })
        })
        .collect();
    let shown = json!({
        "name": *info.name,
        "settings": info.settings,
        "waiting": figures.waiting,
        "running": figures.running,
        "done": figures.done,
        "retried": figures.retried,
        "dead": figures.dead,
        "oldest_s": info.oldest_age_s,
        "workers": workers,
    });
    json_body(status, &shown)
}

/// The response to a request that was refused.
pub(crate) fn refusal(why: &JobError) -> Response {
    let (status, code) = match why {
        JobError::Log(refusal) => return refused(refusal),
        JobError::Pool(pool) => match pool {
            PoolError::UnknownWorker { .. } => (404, "unknown_worker"),
            PoolError::NameTaken { .. } => (409, "name_taken"),
            PoolError::SlotTaken { .. } => (409, "slot_taken"),
            PoolError::WorkerConnected { .. } => (409, "worker_connected"),
            PoolError::OutOfRange { .. } => (400, "out_of_range"),
            PoolError::WrongStrategy { .. } => (400, "wrong_type"),
            PoolError::NoWorkerConnected => (503, "nobody_connected"),
            PoolError::Full { .. } => (503, "full"),
            PoolError::NoRoom | PoolError::TooManyLeftClaimed => (503, "busy"),
        },
        JobError::Setting(_) => (400, "bad_settings"),
        JobError::UnknownPool(_) => (404, "unknown_pool"),
        JobError::RetentionIsSet => (403, "retention_is_set"),
        JobError::TooManyPools { .. } => (507, "too_many_pools"),
        JobError::SettingsDiffer { .. } => (409, "config_differs"),
        JobError::PoolChanging => (409, "pool_changes"),
        JobError::StreamTaken(_) => (409, "stream_taken"),
        JobError::PoolBusy { .. } => (409, "pool_busy"),
        JobError::TooManyJobs { .. } => (503, "too_many_jobs"),
        JobError::TooLarge { .. } => (413, "too_large"),
        JobError::WrongSelector(_) => (400, "no_aim"),
        JobError::UnknownJob(_) => (404, "unknown_job"),
        JobError::AttemptOver { .. } => (409, "attempt_over"),
        JobError::Overloaded => (503, "overloaded"),
        JobError::Stopping => (503, "stopping"),
        JobError::NoDispatcher => (503, "no_dispatcher"),
        JobError::WrongToken { .. } => (403, "wrong_token"),
        JobError::StreamOfPool(_) => (409, "pool_stream"),
        JobError::StreamClosed(_) => (409, "stream_closed"),
        JobError::StreamMissing => (503, "stream_missing"),
        JobError::CallerEnded => (401, "expired"),
    };
    let mut message = String::new();
    // Writing to a string does not fail.
    let _ = write!(message, "{why}");
    let response = error(status, code, message);
    match status {
        401 => response.field("WWW-Authenticate", "Bearer error=\"invalid_token\""),
        503 => response.field("Retry-After", RETRY_AFTER_S),
        _ => response,
    }
}

fn json_body(status: u16, body: &serde_json::Value) -> Response {
    plain(status)
        .field("Content-Type", "application/json")
        .body(format!("{body}\n"))
}

fn plain(status: u16) -> Response {
    Response::shared(status).field("Cache-Control", "no-store")
}

const RETRY_AFTER_S: u32 = 1;
