//! The requests of the health probe, which the server sends to itself: they go the way of any client's requests and deliveries.
//!
//! The first log has a stream that no client can name. A GET subscribes to it, a POST appends its body to it. Where the stream is
//! missing, both create it and respond 202, and the probe asks again. A POST with `log=N` in its query is for another log, whose
//! stream has no subscribers. On a node of a fleet it only passes the order of that log, because nodes of earlier versions do not
//! know a stream of this kind there.

use encke_clock::WallTime;
use encke_stream::{
    AckLevel, Append, Command, Create, Data, FleetCommand, Outcome, Retention, Target, probe_stream,
};

use crate::action::{Action, Feed, OnCommit, Subscription};
use crate::encoded_run::EncodedRun;
use crate::encoder::{Encoder, EncoderId, Encoders, Farewell, RecordHead, Variant};
use crate::long_record::{DataForm, RecordForm};
use crate::problem::{check_method, error, unexpected};
use crate::request::Request;
use crate::response::{Body, Response};
use crate::run::Run;
use crate::streams::{StreamAccess, load};

/// Serves the requests of the health probe.
#[derive(Debug)]
pub(crate) struct HealthProbe {
    streams: StreamAccess,
    encoder: EncoderId,
}

/// Waits for what a probe appends, or for its stream.
#[derive(Debug)]
struct ProbeCommitted;

/// Writes records as they are, each on a line.
struct ProbeEncoder;

impl HealthProbe {
    pub(crate) fn new(streams: StreamAccess, encoders: &mut Encoders) -> Self {
        HealthProbe {
            streams,
            encoder: encoders.add("probe", ProbeEncoder),
        }
    }

    /// What to do for a request. The caller has seen that it is a probe's ([`CallerInfo::probe`](crate::CallerInfo::probe)).
    pub(crate) fn request(&self, request: &Request<'_>) -> Action {
        let action =
            check_method(request.method, &["GET", "POST"]).and_then(|()| self.act(request));
        action.unwrap_or_else(Action::Respond)
    }

    fn act(&self, request: &Request<'_>) -> Result<Action, Response> {
        let log = self.log(request)?;
        let subscribes = request.method == "GET";
        if log > 0 && self.streams.in_fleet {
            let barrier = Command::Fleet(FleetCommand::Barrier { log });
            return Ok(Action::Commit(barrier, Box::new(ProbeCommitted)));
        }
        let name = probe_stream(log);
        // Held until the action is decided, so that the stream stays in memory.
        let Some(_known) = self.streams.known(&name) else {
            return Ok(load(&name, request.body.clone()));
        };
        let Ok(stream) = self.streams.find(&name, request.now) else {
            let create = Create {
                retention: Some(Retention {
                    records: Some(RECORDS_KEPT),
                    ..Retention::default()
                }),
                ..Create::new(name)
            };
            let create = Command::Create(create);
            return Ok(Action::Commit(create, Box::new(ProbeCommitted)));
        };
        if subscribes {
            let from = stream.facts().tail;
            return Ok(Action::Subscribe(Subscription {
                beside: None,
                response: Response::plain_text(200).body(Body::Open(Vec::new())),
                feed: Feed::Single {
                    stream,
                    from,
                    encoder: self.encoder,
                    option: 0,
                },
            }));
        }
        let append = Append {
            ack: Some(AckLevel::Synced),
            data: Data {
                units: request.body.len() as u32,
                bytes: request.body.clone(),
            },
            ..Append::to(Target::Known(stream))
        };
        let append = Command::Append(append);
        Ok(Action::Commit(append, Box::new(ProbeCommitted)))
    }

    /// The log that a request names in its query, the first if it names none.
    fn log(&self, request: &Request<'_>) -> Result<usize, Response> {
        let logs = self.streams.views.logs();
        let named = request.query.and_then(|query| query.strip_prefix("log="));
        let log = named.map_or(Some(0), |log| log.parse().ok());
        log.filter(|log| *log < logs)
            .ok_or_else(|| error(400, "bad_query", format!("log is a number below {logs}")))
    }
}

impl OnCommit for ProbeCommitted {
    fn committed(self: Box<Self>, outcome: Outcome) -> Response {
        match outcome {
            Outcome::Appended { .. } | Outcome::Done => Response::new(204),
            Outcome::Created { .. } => Response::new(202),
            // The order has decided, and what the log lacks is told by its own state.
            Outcome::Refused(refusal) => Response::plain_text(409).body(refusal.to_string()),
            other => unexpected(&other),
        }
    }
}

impl Encoder for ProbeEncoder {
    fn encode(&self, _: Variant<'_>, run: &Run<'_>, _: WallTime, out: &mut EncodedRun) {
        for item in run.items {
            out.bytes.extend_from_slice(item.part());
            out.bytes.push(b'\n');
            out.mark(item.end);
        }
        if out.marks.is_empty() {
            out.mark(run.end);
        }
    }

    fn form(&self, _: Variant<'_>, _: &RecordHead<'_>, _: WallTime) -> RecordForm {
        RecordForm {
            head: Vec::new(),
            data: DataForm::Messages,
            tail: b"\n".to_vec(),
        }
    }

    fn farewell(&self, _: Variant<'_>, _: &Farewell, _: WallTime, _: &mut Vec<u8>) {}

    fn heartbeat(&self) -> &'static [u8] {
        b"\n"
    }
}

/// Records of the stream that stay. With fewer, each append would also remove one.
const RECORDS_KEPT: u64 = 16;
