//! POST and DELETE: append, close, truncate, delete (sections 5.2 to 5.4).

use encke_access::Operation;
use encke_stream::{Command, Data, MediaKind, Outcome, Target};

use super::{DurableStreams, fields};
use crate::action::{Action, OnCommit};
use crate::gate::Admitted;
use crate::json;
use crate::problem::{error, unexpected};
use crate::request::Request;
use crate::response::Response;

/// Waits for an append.
#[derive(Debug)]
struct AppendOutcome {
    /// It has data, so that success and repetition get different statuses.
    data: bool,
}

impl DurableStreams {
    pub(crate) fn post(
        &self,
        request: &mut Request<'_>,
        name: &str,
        admitted: &Admitted<'_>,
    ) -> Result<Action, Response> {
        let headers = request.headers;
        let closes = fields::says_closed(headers);
        let producer = fields::producer(headers)?;
        let writer_seq = fields::writer_seq(headers)?;
        let ack = fields::ack(headers)?;
        let body = std::mem::take(&mut request.body);
        if let Some(before) = fields::truncation(headers)? {
            if !body.is_empty() || closes || producer.is_some() || writer_seq.is_some() {
                return Err(error(
                    400,
                    "bad_field",
                    "a request with Encke-Truncate does nothing else: no body, no Stream-Closed, no producer, no Stream-Seq",
                ));
            }
            let command = Command::Truncate {
                target: Target::Known(self.streams.find(name, request.now)?),
                before,
                ack,
            };
            let readable = self
                .streams
                .rights
                .of_stream(Operation::Read, name, admitted.path);
            let may_read = admitted.meet(&readable).is_ok();
            return Ok(Action::Commit(command, Box::new(Truncation { may_read })));
        }
        if body.is_empty() && !closes {
            return Err(error(
                400,
                "empty_body",
                "an append needs a body, unless it closes the stream",
            ));
        }
        // Without a body the type means nothing, whatever it is (section 5.2).
        let content_type = match body.is_empty() {
            true => None,
            false => Some(fields::content_type(headers)?.ok_or_else(|| {
                error(
                    400,
                    "missing_content_type",
                    "an append with a body needs the Content-Type of the stream, such as application/json",
                )
            })?),
        };
        let stream = self.streams.find(name, request.now)?;
        let differs = content_type.filter(|asked| !stream.media.matches(asked));
        let data = if differs.is_none() && stream.media.kind == MediaKind::Json && !body.is_empty()
        {
            match messages(body)? {
                Data { units: 0, .. } => {
                    return Err(error(
                        400,
                        "empty_array",
                        "the array has no messages, and an append needs at least one",
                    ));
                }
                data => data,
            }
        } else {
            bytes(body)?
        };
        let then = AppendOutcome {
            data: data.units > 0,
        };
        let command = Command::Append(encke_stream::Append {
            target: Target::Known(stream),
            content_type: differs.map(Box::from),
            producer,
            writer_seq: writer_seq.map(Box::from),
            closes,
            ack,
            data,
        });
        Ok(Action::Commit(command, Box::new(then)))
    }

    pub(crate) fn delete(&self, request: &Request<'_>, name: &str) -> Result<Action, Response> {
        let stream = self.streams.find(name, request.now)?;
        let command = Command::Delete {
            target: Target::Known(stream),
            ack: fields::ack(request.headers)?,
        };
        Ok(Action::Commit(command, Box::new(Deletion)))
    }
}

impl OnCommit for AppendOutcome {
    fn committed(self: Box<Self>, outcome: Outcome) -> Response {
        match outcome {
            Outcome::Appended {
                tail,
                closed,
                producer,
                duplicate,
            } => {
                let status = match producer {
                    // A producer's new data and a repetition have different statuses (section 5.2.1).
                    Some(_) if self.data && !duplicate => 200,
                    _ => 204,
                };
                Response::shared(status)
                    .field("Stream-Next-Offset", tail)
                    .field_if("Stream-Closed", closed.then_some("true"))
                    .field_if("Producer-Epoch", producer.map(|(epoch, _)| epoch))
                    .field_if("Producer-Seq", producer.map(|(_, seq)| seq))
            }
            other => unexpected(&other),
        }
    }
}

/// Waits for a truncation.
#[derive(Debug)]
struct Truncation {
    /// The caller may read the stream, and so may learn how far it is.
    may_read: bool,
}

impl OnCommit for Truncation {
    fn committed(self: Box<Self>, outcome: Outcome) -> Response {
        match outcome {
            Outcome::Truncated { floor, tail } => Response::shared(204)
                .field_if("Encke-Floor", self.may_read.then_some(floor))
                .field_if("Stream-Next-Offset", self.may_read.then_some(tail)),
            other => unexpected(&other),
        }
    }
}

/// Waits for a deletion.
#[derive(Debug)]
struct Deletion;

impl OnCommit for Deletion {
    fn committed(self: Box<Self>, outcome: Outcome) -> Response {
        match outcome {
            Outcome::Deleted => Response::shared(204),
            other => unexpected(&other),
        }
    }
}

pub(super) fn messages(body: Vec<u8>) -> Result<Data, Response> {
    json::messages(body).map_err(|why| error(400, "bad_json", why.to_string()))
}

pub(super) fn bytes(bytes: Vec<u8>) -> Result<Data, Response> {
    match u32::try_from(bytes.len()) {
        Ok(units) => Ok(Data { bytes, units }),
        Err(_) => Err(error(
            413,
            "too_large",
            format!("a record holds at most {} bytes", u32::MAX),
        )),
    }
}
