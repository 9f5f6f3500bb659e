//! POST and DELETE: append, close, truncate, delete (sections 5.2 to 5.4).

use encke_access::Operation;
use encke_stream::{AppendExtras, Command, EndReason, Offset, Outcome, Refusal, Target};

use super::{DurableStreams, fields};
use crate::action::{Action, Broadcast, OnBroadcast, OnCommit};
use crate::append::AppendRequest;
use crate::ephemeral::{check_body, ephemeral_message};
use crate::gate::Admitted;
use crate::problem::{error, refused, unexpected};
use crate::request::{Headers, Request};
use crate::response::Response;

/// Waits for an append.
#[derive(Debug)]
struct AppendOutcome {
    /// It has data, so that success and repetition get different statuses.
    data: bool,
    /// The caller may append or read, and so may learn where the stream ends.
    shows_tail: bool,
    /// The number that its producer has given it.
    producer_seq: Option<u64>,
}

impl DurableStreams {
    pub(crate) fn post(
        &self,
        request: &mut Request<'_>,
        name: &str,
        admitted: &Admitted<'_>,
    ) -> Result<Action, Response> {
        let headers = request.headers;
        if fields::is_ephemeral(headers)? {
            return self.broadcast(request, name, admitted);
        }
        let closes = fields::says_closed(headers);
        let producer = fields::producer(headers)?;
        let writer_seq = fields::writer_seq(headers)?;
        let ack = fields::ack(headers)?;
        fields::refuse(headers, &ONLY_AT_CREATION, "PUT")?;
        let extras = AppendExtras {
            end: fields::end_reason(headers)?,
            asks_stop: fields::asks_stop(headers)?,
            metadata: fields::metadata(headers)?,
            if_tail: fields::if_match(headers)?,
        };
        let body = std::mem::take(&mut request.body);
        if let Some(before) = fields::truncation(headers)? {
            let does_more = !body.is_empty() || closes || extras != AppendExtras::default();
            if does_more || producer.is_some() || writer_seq.is_some() {
                return Err(error(
                    400,
                    "bad_field",
                    "a request with Encke-Truncate does nothing else: no body, no Stream-Closed, no producer, no Stream-Seq, no If-Match",
                ));
            }
            let command = Command::Truncate {
                target: Target::Known(self.streams.find_for(
                    name,
                    request.now,
                    &admitted.rights,
                )?),
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
        let mut append = AppendRequest {
            content_type: None,
            closes,
            producer,
            writer_seq,
            ack,
            body,
            extras,
        };
        append.check_not_empty()?;
        self.check_stop(&append, name, admitted)?;
        // Without a body the type means nothing, whatever it is (section 5.2).
        if !append.body.is_empty() {
            append.content_type = Some(sent_type(headers)?);
        }
        let stream = self.streams.find_for(name, request.now, &admitted.rights)?;
        let producer_seq = append.producer.as_ref().map(|producer| producer.seq);
        let (command, data) = append.command(stream)?;
        let rights = &self.streams.rights;
        let may = |operation| {
            let needed = rights.of_stream(operation, name, admitted.path);
            admitted.meet(&needed).is_ok()
        };
        let shows_tail = may(Operation::Append) || may(Operation::Read);
        let outcome = AppendOutcome {
            data,
            shows_tail,
            producer_seq,
        };
        Ok(Action::Commit(command, Box::new(outcome)))
    }

    /// Sends the body to those who are subscribed now. It is not stored.
    fn broadcast(
        &self,
        request: &mut Request<'_>,
        name: &str,
        admitted: &Admitted<'_>,
    ) -> Result<Action, Response> {
        let headers = request.headers;
        fields::check_ephemeral(headers)?;
        fields::refuse(headers, &ONLY_AT_CREATION, "PUT")?;
        let body = std::mem::take(&mut request.body);
        check_body(&self.streams, &body)?;
        let content_type = sent_type(headers)?;
        let stream = self.streams.find_for(name, request.now, &admitted.rights)?;
        let now = request.now.wall;
        let message = ephemeral_message(&stream, Some(content_type), body, now);
        Ok(Action::Broadcast(Box::new(Broadcast {
            message: message?,
            echoes: true,
            then: Box::new(MessageHandover),
        })))
    }

    /// Refuses what a request does beside stopping, unless its caller may append.
    fn check_stop(
        &self,
        append: &AppendRequest<'_>,
        name: &str,
        admitted: &Admitted<'_>,
    ) -> Result<(), Response> {
        let AppendExtras { end, asks_stop, .. } = &append.extras;
        let bad = |why: &str| Err(error(400, "bad_field", why));
        if end.is_some() && !append.closes {
            return bad(
                "Encke-End-Reason says why a stream is closed: it needs Stream-Closed: true",
            );
        }
        if *asks_stop && append.closes {
            return bad(
                "Encke-Stop asks the producer to close the stream: it needs no Stream-Closed",
            );
        }
        let is_append = !append.body.is_empty()
            || append.producer.is_some()
            || append.writer_seq.is_some()
            || append.extras.metadata.is_some()
            || append.extras.if_tail.is_some();
        if *asks_stop && is_append {
            return bad(
                "a request with Encke-Stop does nothing else: no body, no producer, no Stream-Seq, no Encke-Metadata, no If-Match",
            );
        }
        if *end != Some(EndReason::Stopped) || !is_append {
            return Ok(());
        }
        // A reader who may stop closes the stream, and does nothing else.
        let rights = &self.streams.rights;
        admitted.meet(&rights.of_stream(Operation::Append, name, admitted.path))
    }

    pub(crate) fn delete(
        &self,
        request: &Request<'_>,
        name: &str,
        admitted: &Admitted<'_>,
    ) -> Result<Action, Response> {
        let stream = self.streams.find_for(name, request.now, &admitted.rights)?;
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
                stop_asked,
                producer,
                duplicate,
            } => {
                let status = match producer {
                    // A producer's new data and a repetition have different statuses (section 5.2.1).
                    Some(_) if self.data && !duplicate => 200,
                    _ => 204,
                };
                Response::shared(status)
                    .field_if("Stream-Next-Offset", self.shows_tail.then_some(tail))
                    .field_if("Stream-Closed", closed.then_some("true"))
                    .field_if(
                        "Encke-Stop-Requested",
                        (stop_asked && !closed).then_some("true"),
                    )
                    .field_if("Producer-Epoch", producer.map(|(epoch, _)| epoch))
                    .field_if("Producer-Seq", producer.map(|(_, seq)| seq))
            }
            Outcome::Refused(Refusal::Closed { end, .. }) if !self.shows_tail => {
                let why = Refusal::Closed {
                    tail: Offset::START,
                    end,
                };
                let response = error(409, "closed", why.to_string())
                    .field("Stream-Closed", "true")
                    .field_if("Encke-End-Reason", end);
                self.numbered(response)
            }
            Outcome::Refused(refusal @ Refusal::Closed { .. }) => self.numbered(refused(&refusal)),
            other => unexpected(&other),
        }
    }
}

impl AppendOutcome {
    /// Says which request the conflict with a closed stream is about. The official client takes one without these for a gap at the
    /// beginning, and repeats it for ever.
    fn numbered(&self, conflict: Response) -> Response {
        conflict
            .field_if("Producer-Expected-Seq", self.producer_seq)
            .field_if("Producer-Received-Seq", self.producer_seq)
    }
}

/// The type of a body.
fn sent_type(headers: Headers<'_>) -> Result<&str, Response> {
    fields::content_type(headers)?.ok_or_else(|| {
        error(
            400,
            "missing_content_type",
            "an append with a body needs the Content-Type of the stream, such as application/json",
        )
    })
}

/// Waits until an ephemeral message is handed over.
#[derive(Debug)]
struct MessageHandover;

impl OnBroadcast for MessageHandover {
    fn handed_over(self: Box<Self>) -> Response {
        Response::shared(204)
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
            Outcome::Refused(Refusal::TruncateBeyondTail { asked, .. }) if !self.may_read => {
                let why = format!("the offset {asked} is beyond the stream's end");
                error(400, "beyond_tail", why)
            }
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

/// Fields that only a creation can have.
const ONLY_AT_CREATION: [&str; 3] = ["Encke-Owner", "Encke-Producer-Timeout", "Encke-Read-URL"];
