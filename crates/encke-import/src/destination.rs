//! A stream of the destination, to which the import appends.

use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{SHA256, digest};

use crate::copy_failure::CopyFailure;
use crate::http_server::{Ask, HttpReply};
use crate::protocol_stream::{ProtocolStream, StreamFacts};

/// A stream of the destination. Each run appends in an epoch of its own, so that a run that was cut off can append nothing more.
#[derive(Debug)]
pub(crate) struct DestinationStream {
    stream: ProtocolStream,
    producer: String,
    epoch: u64,
    /// The number of the next append.
    seq: u64,
    /// Where the stream ends, as far as the import knows.
    tail: String,
}

impl DestinationStream {
    /// The copy of the stream at `source`.
    pub(crate) fn new(stream: ProtocolStream, source: &str) -> Self {
        // What another run has had is either lower or, with a clock that was set back, taken over.
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        DestinationStream {
            stream,
            producer: producer_id(source),
            epoch: since_1970.map_or(0, |time| time.as_millis() as u64),
            seq: 0,
            tail: String::new(),
        }
    }

    pub(crate) fn stream(&self) -> &ProtocolStream {
        &self.stream
    }

    pub(crate) fn tail(&self) -> &str {
        &self.tail
    }

    /// Creates the stream with what the source is, or finds that it is there and is the same. Whether it is new, and so has nothing.
    pub(crate) fn prepare(&mut self, source: &StreamFacts) -> Result<bool, CopyFailure> {
        let there = self.stream.head()?;
        let closed = there.as_ref().is_some_and(|facts| facts.closed);
        if closed && !source.closed {
            return Err(CopyFailure::Differs {
                why: "the stream is closed there and open at the source".into(),
            });
        }
        let mut fields = vec![("Content-Type", &*source.content_type)];
        if let Some((name, value)) = &source.lifetime {
            fields.push((name, value));
        }
        if closed {
            fields.push(("Stream-Closed", "true"));
        }
        // The destination compares what is there with what is asked for.
        let reply = self.ask("PUT", &fields, Some(b""))?;
        match reply.status {
            200 | 201 => {}
            409 => {
                return Err(CopyFailure::Differs {
                    why: reply.refused().to_string(),
                });
            }
            _ => return Err(reply.refused()),
        }
        let is_new = reply.status == 201;
        // A caller that may create and not read gets no position of a stream that is there.
        let tail = reply.field("Stream-Next-Offset").map(str::to_owned);
        reply.discard();
        let tail = tail.or(there.map(|facts| facts.tail));
        self.tail = tail.ok_or_else(|| CopyFailure::Protocol {
            url: self.stream.url.clone(),
            why: "the response to the creation has no Stream-Next-Offset".into(),
        })?;
        Ok(is_new)
    }

    /// Appends data behind the end that the import knows, once. The end is [`tail`](Self::tail) then.
    pub(crate) fn append(&mut self, content_type: &str, data: &[u8]) -> Result<(), CopyFailure> {
        let mut has_taken_over = false;
        loop {
            let (epoch, seq) = (self.epoch.to_string(), self.seq.to_string());
            let reply = self.ask(
                "POST",
                &[
                    ("Content-Type", content_type),
                    ("Producer-Id", &self.producer),
                    ("Producer-Epoch", &epoch),
                    ("Producer-Seq", &seq),
                    ("If-Match", &self.tail),
                ],
                Some(data),
            )?;
            match reply.status {
                200 | 204 => {
                    let tail = reply.next_offset()?;
                    if tail == self.tail {
                        return Err(reply.protocol(
                            "an append was acknowledged, but the stream ends where it ended before",
                        ));
                    }
                    reply.discard();
                    self.tail = tail;
                    self.seq += 1;
                    return Ok(());
                }
                403 => {
                    let theirs = reply
                        .field("Producer-Epoch")
                        .and_then(|epoch| epoch.parse().ok());
                    let Some(theirs) = theirs else {
                        return Err(reply.refused());
                    };
                    if self.seq > 0 || has_taken_over {
                        return Err(CopyFailure::WrittenByOthers {
                            why: "another import of the stream has begun".into(),
                        });
                    }
                    reply.discard();
                    has_taken_over = true;
                    self.epoch = u64::saturating_add(theirs, 1);
                }
                409 | 412 => {
                    let why = reply.refused().to_string();
                    return Err(CopyFailure::WrittenByOthers { why });
                }
                _ => return Err(reply.refused()),
            }
        }
    }

    /// Closes the stream where the import has come to.
    pub(crate) fn close(&mut self) -> Result<(), CopyFailure> {
        let fields = [("Stream-Closed", "true"), ("If-Match", &*self.tail)];
        let reply = self.ask("POST", &fields, None)?;
        match reply.status {
            200 | 204 => {
                reply.discard();
                Ok(())
            }
            409 | 412 => {
                let why = reply.refused().to_string();
                Err(CopyFailure::WrittenByOthers { why })
            }
            _ => Err(reply.refused()),
        }
    }

    fn ask(
        &self,
        method: &'static str,
        fields: &[(&'static str, &str)],
        body: Option<&[u8]>,
    ) -> Result<HttpReply, CopyFailure> {
        let ask = Ask {
            method,
            url: &self.stream.url,
            query: "",
            fields,
            body: Some(body.unwrap_or_default()),
            patience: COMMIT,
        };
        let patience = self.stream.patience;
        self.stream
            .server
            .ask_patiently(ask, patience, &self.stream.progress)
    }
}

/// The name of the producer that copies the stream at `source`: that address, or its hash if it is too long for the destination.
fn producer_id(source: &str) -> String {
    let id = format!("encke-import:{source}");
    if id.len() <= PRODUCER_ID_BYTES_MAX {
        return id;
    }
    let hash = digest(&SHA256, source.as_bytes());
    let hash: String = hash
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("encke-import:{hash}")
}

/// Encke's bound.
const PRODUCER_ID_BYTES_MAX: usize = 256;

/// How long the destination may take to commit.
const COMMIT: Duration = Duration::from_secs(60);
