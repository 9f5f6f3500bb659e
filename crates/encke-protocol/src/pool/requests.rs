//! Requests of clients and workers.

use std::borrow::Cow;

use encke_access::{LAST_EVENT_ID, Operation, SIGNING_PARAMETERS};
use encke_jobs::{
    AttemptAction, AttemptReport, BadToken, JobError, JobId, JobToken, NewJob, Payload,
    PoolRequest, Registration, WorkerCaller,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::responses::{Once, OpenWorker, PollJson, PollRaw, WaitForResult, refusal};
use super::{PoolApiSettings, settings, taking};
use crate::action::{Action, DispatchRequest, OnDispatch};
use crate::gate::Admitted;
use crate::misspelled;
use crate::problem::{check_method, error, not_allowed};
use crate::query;
use crate::request::Request;
use crate::requirement::{RequestHead, Requirement};
use crate::response::Response;

/// The parameters of a request, each at most once.
#[derive(Debug, Default)]
struct Query<'a> {
    key: Option<Cow<'a, str>>,
    slot: Option<u32>,
    wait_ms: Option<u64>,
    by_ms: Option<u64>,
    after_ms: Option<u64>,
    attempt: Option<u16>,
    worker: Option<Cow<'a, str>>,
    if_connected: bool,
    force: bool,
}

/// What to do for a request for the path below the root.
pub(super) fn parse(
    settings: &PoolApiSettings,
    request: &mut Request<'_>,
    admitted: &Admitted<'_>,
) -> Result<Action, Response> {
    Parser { settings }.request(request, admitted)
}

/// What a request for a path below the root needs: a right at its pool, or at its own path if that names none. A client that posts
/// jobs may look at its own, which it proves by their tokens.
pub(super) fn requirement<'a>(root: &str, request: &RequestHead<'a>) -> Requirement<'a> {
    let parts: Vec<&str> = request.below.split('/').collect();
    let (pool, below) = match parts[..] {
        [""] => return Requirement::at(Operation::List, request.path),
        [pool, ref below @ ..] => (format!("{root}{pool}"), below),
        [] => (root.to_owned(), &[][..]),
    };
    let has_token = request.headers.first(JOB_TOKEN).is_some();
    match (below, request.method) {
        ([], "PUT" | "PATCH") => Requirement::at(Operation::Create, pool),
        ([], "POST") => Requirement::at(Operation::Post, pool),
        ([], "DELETE") | (["worker", ..], _) => Requirement::at(Operation::Delete, pool),
        (["job", _], _) if has_token => Requirement::at(Operation::Read, pool).or(Operation::Post),
        ([] | ["job", _], _) => Requirement::at(Operation::Read, pool),
        _ => Requirement::at(Operation::Work, pool),
    }
}

/// Checks names and times against the settings.
struct Parser<'a> {
    settings: &'a PoolApiSettings,
}

impl Parser<'_> {
    fn request(
        &self,
        request: &mut Request<'_>,
        admitted: &Admitted<'_>,
    ) -> Result<Action, Response> {
        let parts: Vec<&str> = admitted.below.split('/').collect();
        let query = self.query(request.query, parameters_of(request.method, &parts))?;
        let head = admitted.head(request);
        let method = request.method;
        if let [""] = parts[..] {
            check_method(method, &["GET"])?;
            admitted.meet(&requirement(&self.settings.root, &head))?;
            return Ok(once("", PoolRequest::List));
        }
        let pool = self.check_name("pool", parts[0])?;
        let encoded = utf8_percent_encode(&pool, ENCODED);
        let url = format!("{}{}{encoded}", request.base(), self.settings.root);
        admitted.meet(&requirement(&self.settings.root, &head))?;
        match parts[1..] {
            [] => match method {
                "PUT" => {
                    let settings =
                        settings::parse(&request.body).map_err(|why| bad("bad_settings", why))?;
                    Ok(once(&url, PoolRequest::Create { pool, settings }))
                }
                "PATCH" => {
                    let change = settings::parse_change(&request.body);
                    let change = change.map_err(|why| bad("bad_settings", why))?;
                    Ok(once(&url, PoolRequest::Change { pool, change }))
                }
                "GET" => Ok(once(&url, PoolRequest::Describe { pool })),
                "DELETE" => {
                    let force = query.force;
                    Ok(once(&url, PoolRequest::Remove { pool, force }))
                }
                "POST" => post(request, query, pool, url, admitted),
                _ => Err(not_allowed(method, METHODS)),
            },
            ["work"] => {
                check_method(method, &["POST", "GET"])?;
                if method == "GET" {
                    taking::check_get(request)?;
                }
                self.work(request, query, pool, admitted)
            }
            ["worker", worker] => {
                check_method(method, &["DELETE"])?;
                let worker = self.check_name("worker", worker)?;
                Ok(once(&url, PoolRequest::RemoveWorker { pool, worker }))
            }
            ["job", id] => {
                check_method(method, &["GET"])?;
                let id = job(id)?;
                let path = self.pool_path(&pool);
                let token = match admitted.may_at(Operation::Read, &path) {
                    true => None,
                    // Its poster.
                    false => match job_token(request)? {
                        Some(Ok(token)) => Some(token),
                        Some(Err(BadToken)) => return Err(refusal(&JobError::UnknownJob(id))),
                        None => {
                            return Err(admitted
                                .require_at(Operation::Read, &path)
                                .err()
                                .unwrap_or_else(nothing_here));
                        }
                    },
                };
                Ok(once(&url, PoolRequest::DescribeJob { pool, id, token }))
            }
            ["job", id, what] => {
                let id = job(id)?;
                let action = match what {
                    "ack" => AttemptAction::Ack {
                        result: payload(request, None)?,
                    },
                    "refuse" => AttemptAction::Refuse {
                        reason: reason(&request.body),
                        after_ms: query.after_ms,
                    },
                    "extend" => AttemptAction::Extend { ms: query.by_ms },
                    _ => return Err(nothing_here()),
                };
                check_method(method, &["POST"])?;
                let attempt = query.attempt.ok_or_else(|| {
                    bad(
                        "missing_attempt",
                        "name the attempt that the worker got, such as ?attempt=1",
                    )
                })?;
                let token = match job_token(request)? {
                    Some(Ok(token)) => Some(token),
                    Some(Err(BadToken)) => {
                        return Err(refusal(&JobError::WrongToken { id, attempt }));
                    }
                    // Without access control all clients are alike.
                    None if admitted.rights.caller().is_none() => None,
                    None => {
                        return Err(bad(
                            "missing_token",
                            "send the field Job-Token with the token that the worker got with the attempt",
                        ));
                    }
                };
                let report = AttemptReport {
                    pool,
                    id,
                    attempt,
                    token,
                    action,
                };
                Ok(once(&url, PoolRequest::Report(report)))
            }
            _ => Err(nothing_here()),
        }
    }

    fn pool_path(&self, pool: &str) -> String {
        format!("{}{pool}", self.settings.root)
    }

    fn work(
        &self,
        request: &Request<'_>,
        query: Query<'_>,
        pool: Box<str>,
        admitted: &Admitted<'_>,
    ) -> Result<Action, Response> {
        let worker = query
            .worker
            .ok_or_else(|| bad("missing_worker", "name the worker, such as ?worker=anna"))?;
        let worker = self.check_name("worker", &worker)?;
        let accepts = |what: &[u8]| {
            let accept = request.headers.first("Accept").unwrap_or_default();
            accept.windows(what.len()).any(|part| part == what)
        };
        let json = accepts(b"application/json");
        let (poll_ms, then): (_, Box<dyn OnDispatch>) = match query.wait_ms {
            None if !json => (
                None,
                Box::new(OpenWorker {
                    worker: worker.to_string(),
                }),
            ),
            wait_ms if json => (Some(wait_ms.unwrap_or(POLL_MS)), Box::new(PollJson)),
            wait_ms => (wait_ms, Box::new(PollRaw)),
        };
        let work = Registration {
            pool,
            worker,
            slot: query.slot,
            poll_ms: poll_ms.map(|ms| within_credentials(ms, request, admitted)),
            caller: match admitted.rights.caller().map(|caller| caller.identity()) {
                None => WorkerCaller::Anyone,
                Some(Some(identity)) => WorkerCaller::Known(identity.into()),
                Some(None) => WorkerCaller::Unknown,
            },
        };
        Ok(Action::Dispatch(
            DispatchRequest::Pool(PoolRequest::Register(work)),
            then,
        ))
    }

    /// The parameters of a request; `known` are those of its kind, if there is such a kind.
    fn query<'a>(
        &self,
        text: Option<&'a str>,
        known: Option<&[&str]>,
    ) -> Result<Query<'a>, Response> {
        let mut query = Query::default();
        for pair in query::parameters(text) {
            let (name, value) = pair.map_err(|why| bad("bad_query", format!("the query {why}")))?;
            let is_general = name == LAST_EVENT_ID || SIGNING_PARAMETERS.contains(&&*name);
            if let Some(known) = known
                && !is_general
                && !known.contains(&&*name)
            {
                return Err(misspelled::unknown_parameter(&name, known));
            }
            match &*name {
                "key" => query.key = Some(value),
                "worker" => query.worker = Some(value),
                "slot" => query.slot = Some(number("slot", &value)?),
                "attempt" => query.attempt = Some(number("attempt", &value)?),
                "wait" => {
                    query.wait_ms = Some(milliseconds("wait", &value, self.settings.wait_s_max)?);
                }
                "by" => query.by_ms = Some(milliseconds("by", &value, SECONDS_MAX)?),
                "after" => query.after_ms = Some(milliseconds("after", &value, SECONDS_MAX)?),
                "if" if value == "connected" => query.if_connected = true,
                "force" if matches!(&*value, "" | "true" | "1") => query.force = true,
                "if" => {
                    let why = format!("if={value} is not if=connected");
                    return Err(bad("bad_query", why));
                }
                "force" => {
                    let why = format!("force={value} is not force=true");
                    return Err(bad("bad_query", why));
                }
                // Those of a signed URL are checked with its signature. An event's id means nothing: jobs are not sent again.
                _ => {}
            }
        }
        Ok(query)
    }

    fn check_name(&self, of: &str, name: &str) -> Result<Box<str>, Response> {
        let most = self.settings.name_bytes_max;
        let why = if name.is_empty() {
            format!("the {of} has no name")
        } else if name.len() > most {
            format!(
                "the {of}'s name has {} bytes, at most {most} are allowed",
                name.len()
            )
        } else if name.chars().any(char::is_control) || name.contains('/') {
            format!("the {of}'s name holds a control character or a slash")
        } else if matches!(name, "." | "..") {
            format!("the {of}'s name is `.` or `..`")
        } else {
            return Ok(name.into());
        };
        Err(bad("bad_name", why))
    }
}

fn post(
    request: &mut Request<'_>,
    query: Query<'_>,
    pool: Box<str>,
    url: String,
    admitted: &Admitted<'_>,
) -> Result<Action, Response> {
    let wait_ms = query.wait_ms;
    let post = NewJob {
        pool,
        payload: payload(request, query.key)?,
        slot: query.slot,
        wait_ms: wait_ms.map(|ms| within_credentials(ms, request, admitted)),
        if_connected: query.if_connected,
    };
    let then: Box<dyn OnDispatch> = match post.wait_ms {
        None => Box::new(Once { pool: url }),
        Some(_) => Box::new(WaitForResult { pool: url }),
    };
    Ok(Action::Dispatch(
        DispatchRequest::Pool(PoolRequest::Post(post)),
        then,
    ))
}

fn payload(request: &mut Request<'_>, key: Option<Cow<'_, str>>) -> Result<Payload, Response> {
    let content_type = request.headers.text("Content-Type");
    let content_type = content_type
        .map_err(|_| bad("bad_content_type", "the Content-Type is not UTF-8"))?
        .filter(|content_type| !content_type.is_empty())
        .unwrap_or("application/octet-stream");
    if key.as_ref().is_some_and(|key| key.len() > KEY_BYTES_MAX) {
        let why = format!("a key has at most {KEY_BYTES_MAX} bytes");
        return Err(bad("bad_key", why));
    }
    Ok(Payload {
        content_type: content_type.into(),
        key: key.map(|key| key.into()),
        body: std::mem::take(&mut request.body).into(),
    })
}

pub(super) fn once(pool: &str, request: PoolRequest) -> Action {
    let pool = pool.to_owned();
    Action::Dispatch(DispatchRequest::Pool(request), Box::new(Once { pool }))
}

/// A time to wait that ends with the credentials of the request.
fn within_credentials(wait_ms: u64, request: &Request<'_>, admitted: &Admitted<'_>) -> u64 {
    let caller = admitted.rights.caller();
    let ends_at = caller.and_then(|caller| caller.ends_at());
    let left = ends_at.map(|ends_at| ends_at.since(request.now.wall));
    left.map_or(wait_ms, |left| wait_ms.min(left.as_millis() as u64))
}

/// The token of a job or of an attempt that the request has.
fn job_token(request: &Request<'_>) -> Result<Option<Result<JobToken, BadToken>>, Response> {
    let token = request.headers.text(JOB_TOKEN);
    let token = token.map_err(|_| bad("bad_field", "the field Job-Token is not UTF-8"))?;
    Ok(token.map(str::parse))
}

fn bad(code: &'static str, why: impl AsRef<str>) -> Response {
    error(400, code, why)
}

fn job(id: &str) -> Result<JobId, Response> {
    id.parse().map_err(|_| {
        bad(
            "bad_job",
            format!("{id:?} is not the number of a job, such as 9"),
        )
    })
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, Response> {
    value.parse().map_err(|_| {
        bad(
            "bad_query",
            format!("{name}={value} is not a whole number in range, such as {name}=1"),
        )
    })
}

/// Seconds, possibly with a fraction.
fn milliseconds(name: &str, value: &str, most_s: u64) -> Result<u64, Response> {
    match value.parse::<f64>() {
        Ok(seconds) if (0.0..=most_s as f64).contains(&seconds) => Ok((seconds * 1_000.0) as u64),
        _ => Err(bad(
            "bad_query",
            format!(
                "{name}={value} is not a number of seconds from 0 to {most_s}, such as {name}=30"
            ),
        )),
    }
}

fn reason(body: &[u8]) -> Box<str> {
    let text = String::from_utf8_lossy(body);
    let end = text
        .char_indices()
        .map(|(at, _)| at)
        .find(|at| *at >= REASON_BYTES_MAX);
    text[..end.unwrap_or(text.len())].trim().into()
}

fn nothing_here() -> Response {
    error(
        404,
        "not_found",
        "not found: below a pool there are /work, /worker/{name} and /job/{id}, and below a job /ack, /refuse and /extend",
    )
}

/// The methods of a pool. Other paths have some of them.
pub(super) const METHODS: &[&str] = &["GET", "PUT", "PATCH", "POST", "DELETE"];

/// The field with which a client proves that a job or an attempt is its own.
const JOB_TOKEN: &str = "Job-Token";

/// How long a poll waits by default.
const POLL_MS: u64 = 30_000;
const KEY_BYTES_MAX: usize = 1_024;
/// Bytes of a refusal's reason that are kept.
const REASON_BYTES_MAX: usize = 1_024;
/// What is not encoded in a URL (RFC 3986, section 2.3) is left as it is.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// A day.
const SECONDS_MAX: u64 = 86_400;

/// The parameters of a request for the path below the root. None: there is nothing at it.
fn parameters_of(method: &str, parts: &[&str]) -> Option<&'static [&'static str]> {
    Some(match (parts, method) {
        ([_], "POST") => &["key", "slot", "wait", "if"],
        ([_], "DELETE") => &["force"],
        ([_, "work"], _) => &["worker", "slot", "wait"],
        ([_, "job", _, "ack"], _) => &["attempt"],
        ([_, "job", _, "refuse"], _) => &["attempt", "after"],
        ([_, "job", _, "extend"], _) => &["attempt", "by"],
        ([_] | [_, "worker" | "job", _], _) => &[],
        _ => return None,
    })
}
