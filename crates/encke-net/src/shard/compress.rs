//! Responses that are compressed: a reader thread compresses a piece, and the shard sends it.

use encke_protocol::{Body, CodingOffer, Failure, NextPart, Response, problem};

use super::Shard;
use crate::compression::{COMPRESSED_BYTES_MIN, CompressedPiece, Compressor, STEP_BYTES};
use crate::connection::active::{CodedBody, PartCoding, StreamingStep, Task};
use crate::connection::close::CloseReason;
use crate::connection::slot::Token;
use crate::readers::CompressTask;

impl Shard {
    /// Responds, in the coding that the client prefers if the body is worth it and a compressor is free.
    pub(super) fn respond_coded(&mut self, index: u32, mut response: Response, offer: CodingOffer) {
        let bytes = response.body.as_ref().len();
        if bytes < COMPRESSED_BYTES_MIN && !offer.required {
            return self.respond(index, &response);
        }
        let Some(mut compressor) = self.begin_compression(offer) else {
            return self.respond_uncoded(index, response, offer);
        };
        let body = match std::mem::take(&mut response.body) {
            Body::Bytes(bytes) => bytes,
            other => other.as_ref().to_vec(),
        };
        compressor.add(body, true);
        if bytes > STEP_BYTES {
            response = response.coded(offer.coding);
            response.body = Body::Parts(Vec::new());
            self.stream_parts(
                index,
                &response,
                StreamingStep::Over,
                PartCoding::Coded(compressor),
            );
            return;
        }
        let coded = CodedBody { response, offer };
        self.connections
            .begin(index, Task::AwaitingCompression(Box::new(coded)));
        if let Err(compressor) = self.send_compression(index, compressor)
            && let Some(coded) = self.take_coded_body(index)
        {
            let mut response = coded.response;
            response.body = compressor.into_input().into();
            self.respond_uncoded(index, response, offer);
        }
    }

    /// Begins a long body in the coding that the client prefers, if a compressor is free.
    pub(super) fn stream_coded(
        &mut self,
        index: u32,
        mut response: Response,
        next: NextPart,
        offer: CodingOffer,
    ) {
        let step = StreamingStep::Next(Box::new(next));
        let Some(mut compressor) = self.begin_compression(offer) else {
            if offer.required {
                return self.respond(index, &problem::failed(Failure::Overloaded));
            }
            return self.stream_parts(index, &response, step, PartCoding::Identity);
        };
        let first = std::mem::take(&mut response.body);
        compressor.add(first.as_ref().to_vec(), false);
        let mut response = response.coded(offer.coding);
        response.body = Body::Parts(Vec::new());
        self.stream_parts(index, &response, step, PartCoding::Coded(compressor));
    }

    /// Sends what a reader thread has compressed.
    pub(super) fn compressed(&mut self, token: Token, piece: CompressedPiece) {
        let CompressedPiece { compressor, out } = piece;
        let Some(index) = self.connections.find(token) else {
            return;
        };
        if let Some(coded) = self.take_coded_body(index) {
            self.respond_compressed(index, *coded, compressor, out);
            return;
        }
        let active = self.connections.active_mut(index);
        let Some(Task::Streaming { coding, .. }) = active.map(|active| &mut active.task) else {
            return;
        };
        let out = match out {
            Ok(out) => out,
            Err(error) => {
                tracing::error!(%error, "a response can't be compressed");
                return self.cut(index, CloseReason::Internal);
            }
        };
        let finished = compressor.is_finished();
        self.counts.compressed_bytes += out.len() as u64;
        *coding = PartCoding::Coded(compressor);
        if !out.is_empty() || finished {
            self.send_part(index, &out, finished);
        }
        self.stream_on(index);
    }

    /// Hands a compressor with input to a reader thread. `Err`: the readers are overloaded.
    pub(super) fn send_compression(
        &mut self,
        index: u32,
        compressor: Box<Compressor>,
    ) -> Result<(), Box<Compressor>> {
        let token = self.connections.slots.token(index);
        self.context.readers.compress(CompressTask {
            compressor,
            token,
            sender: std::sync::Arc::clone(&self.context.sender),
        })
    }

    /// A whole body is compressed. One that did not become shorter is sent as it was.
    fn respond_compressed(
        &mut self,
        index: u32,
        coded: CodedBody,
        compressor: Box<Compressor>,
        out: std::io::Result<Vec<u8>>,
    ) {
        let CodedBody { response, offer } = coded;
        let input = compressor.into_input();
        let response = match out {
            Ok(out) if out.len() < input.len() || offer.required => {
                self.counts.compressed_bytes += out.len() as u64;
                response.coded(offer.coding).body(out)
            }
            Err(error) if offer.required => {
                tracing::error!(%error, "a response can't be compressed");
                problem::failed(Failure::Overloaded)
            }
            _ => response.body(input),
        };
        self.respond_later(index, &response);
    }

    /// There is no compressor for a response.
    fn respond_uncoded(&mut self, index: u32, response: Response, offer: CodingOffer) {
        match offer.required {
            true => self.respond(index, &problem::failed(Failure::Overloaded)),
            false => self.respond(index, &response),
        }
    }

    fn begin_compression(&self, offer: CodingOffer) -> Option<Box<Compressor>> {
        let metrics = &self.context.metrics;
        self.context.compressors.begin(offer.coding, metrics)
    }

    fn take_coded_body(&mut self, index: u32) -> Option<Box<CodedBody>> {
        let active = self.connections.active_mut(index)?;
        if !matches!(active.task, Task::AwaitingCompression(_)) {
            return None;
        }
        match std::mem::take(&mut active.task) {
            Task::AwaitingCompression(coded) => Some(coded),
            _ => None,
        }
    }
}
