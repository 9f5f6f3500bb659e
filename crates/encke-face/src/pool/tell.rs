//! What clients and workers are told.

use std::fmt::Write as _;

use encke_jobs::{
    DispatchedJob, JobError, JobInfo, JobState, Payload, PoolResponse, PoolStatus, content, string,
};
use encke_pool::PoolError;
use serde_json::json;

use super::{Asked, Saying};
use crate::durable_streams::{answer, error, refused};
use crate::{Body, Response};

/// Writes an answer, or a part of one.
pub(crate) fn told(asked: &Asked, told: PoolResponse) -> Saying {
    let response = match (asked, told) {
        (Asked::Stream { worker }, PoolResponse::Registered { slot }) => {
            return Saying::Open(registered(worker, slot));
        }
        (Asked::Stream { .. }, PoolResponse::Dispatched(handed)) => {
            return Saying::Send(event(&handed));
        }
        (Asked::Stream { .. }, PoolResponse::PoolRemoved) => {
            return Saying::End(b"event: removed\ndata: {}\n\n".to_vec());
        }
        (Asked::Stream { .. }, PoolResponse::Stopping) => {
            return Saying::End(b"event: stopping\ndata: {}\n\n".to_vec());
        }
        (_, PoolResponse::Registered { .. }) => plain(204),
        (Asked::PollJson, PoolResponse::Dispatched(handed)) => {
            let mut body = object(&handed);
            body.push(b'\n');
            plain(200)
                .field("Content-Type", "application/json")
                .body(body)
        }
        (_, PoolResponse::Dispatched(handed)) => handed_plain(handed),
        (_, PoolResponse::NoJob | PoolResponse::Removed) => plain(204),
        (_, PoolResponse::PoolRemoved) => error(404, "unknown_pool", "the pool was removed".into()),
        (_, PoolResponse::Stopping) => refusal(&JobError::Stopping),
        (
            Asked::Once { pool } | Asked::Result { pool },
            PoolResponse::Created { existed, status },
        ) => {
            let response = shown(if existed { 200 } else { 201 }, &status);
            match existed {
                true => response,
                false => response.field("Location", pool),
            }
        }
        (_, PoolResponse::Created { status, .. }) => shown(200, &status),
        (_, PoolResponse::Described(info)) => shown(200, &info),
        (_, PoolResponse::Listed(pools)) => {
            let list = pools
                .iter()
                .map(|(name, settings)| json!({ "name": **name, "type": settings.strategy.name() }))
                .collect::<Vec<_>>();
            json_body(200, &json!({ "pools": list }))
        }
        (asked, PoolResponse::Posted { id }) => {
            let response = json_body(202, &json!({ "job": id }));
            let response = response.field("Job-Id", id);
            match asked {
                Asked::Once { pool } => response.field("Location", format!("{pool}/job/{id}")),
                _ => response,
            }
        }
        (Asked::Result { pool }, PoolResponse::Job(job)) => awaited(pool, job),
        (Asked::Once { pool }, PoolResponse::Job(job)) => state(200, pool, &job),
        (_, PoolResponse::Job(job)) => state(200, "", &job),
        (_, PoolResponse::Reported { deadline_ms }) => match deadline_ms {
            Some(deadline_ms) => json_body(200, &json!({ "deadline_ms": deadline_ms })),
            None => plain(204),
        },
        (_, PoolResponse::Refused(error)) => refusal(&error),
    };
    Saying::Respond(response)
}

/// The response head and first events of a worker's event stream.
fn registered(worker: &str, slot: u32) -> Response {
    let mut data = b"{\"worker\":".to_vec();
    string(worker, &mut data);
    data.extend_from_slice(format!(",\"slot\":{slot}}}\n\n").as_bytes());
    let mut first = b"retry: 1000\n".to_vec();
    // `hired` is the former name of the event, for workers that wait for it.
    for name in ["registered", "hired"] {
        first.extend_from_slice(format!("event: {name}\ndata: ").as_bytes());
        first.extend_from_slice(&data);
    }
    answer(200)
        .field("Content-Type", "text/event-stream")
        .field("Cache-Control", "no-cache")
        .field("X-Accel-Buffering", "no")
        .body(Body::Open(first))
}

/// A job as an event: its name, and everything on one line.
fn event(handed: &DispatchedJob) -> Vec<u8> {
    let mut event = format!("event: job\nid: {}\ndata: ", handed.id).into_bytes();
    event.extend_from_slice(&object(handed));
    event.extend_from_slice(b"\n\n");
    event
}

fn object(handed: &DispatchedJob) -> Vec<u8> {
    let DispatchedJob {
        id,
        attempt,
        deadline_ms,
        payload,
    } = handed;
    let mut out = Vec::with_capacity(payload.body.len() + 128);
    out.extend_from_slice(
        format!("{{\"job\":{id},\"attempt\":{attempt},\"deadline_ms\":{deadline_ms},").as_bytes(),
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

/// A job as it is, for workers that know nothing but HTTP.
fn handed_plain(handed: DispatchedJob) -> Response {
    let DispatchedJob {
        id,
        attempt,
        deadline_ms,
        payload,
    } = handed;
    raw(200, payload.clone())
        .field("Job-Id", id)
        .field("Job-Attempt", attempt)
        .field("Job-Deadline", deadline_ms)
        .field_if("Job-Key", payload.key)
}

fn raw(status: u16, payload: Payload) -> Response {
    plain(status)
        .field("Content-Type", payload.content_type)
        .body(payload.body.to_vec())
}

/// What a client gets that waits for a result.
fn awaited(pool: &str, job: JobInfo) -> Response {
    let id = job.id;
    let response = match job.state {
        JobState::Done {
            result: Some(result),
        } => raw(200, result),
        JobState::Dead => error(
            502,
            "job_failed",
            format!("the job failed {} times and is given up", job.attempts),
        ),
        _ => state(202, pool, &job),
    };
    response
        .field("Job-Id", id)
        .field("Location", format!("{pool}/job/{id}"))
}

fn state(status: u16, pool: &str, job: &JobInfo) -> Response {
    let mut body = format!("{{\"job\":{},\"attempts\":{},", job.id, job.attempts).into_bytes();
    match &job.state {
        JobState::Waiting => body.extend_from_slice(b"\"state\":\"waiting\""),
        JobState::Running {
            worker,
            deadline_ms,
        } => {
            body.extend_from_slice(b"\"state\":\"running\",\"worker\":");
            string(worker, &mut body);
            body.extend_from_slice(format!(",\"deadline_ms\":{deadline_ms}").as_bytes());
        }
        JobState::Done { result } => {
            body.extend_from_slice(b"\"state\":\"done\"");
            if let Some(result) = result {
                body.extend_from_slice(b",\"result\":{");
                content(result, &mut body);
                body.push(b'}');
            }
        }
        JobState::Dead => body.extend_from_slice(b"\"state\":\"dead\""),
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
        "oldest_s": figures.oldest_s,
        "workers": workers,
    });
    json_body(status, &shown)
}

/// What is answered when nothing has changed.
fn refusal(why: &JobError) -> Response {
    let (status, code) = match why {
        JobError::Log(refusal) => return refused(refusal),
        JobError::Pool(pool) => match pool {
            PoolError::UnknownWorker { .. } => (404, "unknown_worker"),
            PoolError::NameTaken { .. } => (409, "name_taken"),
            PoolError::SlotTaken { .. } => (409, "slot_taken"),
            PoolError::WorkerConnected { .. } => (409, "worker_connected"),
            PoolError::OutOfRange { .. } => (400, "out_of_range"),
            PoolError::WrongStrategy { .. } => (400, "wrong_type"),
            PoolError::NobodyConnected => (503, "nobody_connected"),
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
    };
    let mut message = String::new();
    // Writing to a string does not fail.
    let _ = write!(message, "{why}");
    let response = error(status, code, message);
    match status {
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
    answer(status).field("Cache-Control", "no-store")
}

const RETRY_AFTER_S: u32 = 1;
