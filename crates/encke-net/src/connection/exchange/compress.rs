//! Responses that are compressed: a reader thread compresses a piece, and the exchange sends it.

use encke_protocol::{Body, CodingOffer, Failure, NextPart, Response, problem};

use super::state::Exchange;
use super::task::{CodedBody, PartCoding, StreamingStep, Task};
use super::writer::ResponseWriter;
use crate::compression::{COMPRESSED_BYTES_MIN, CompressedPiece, Compressor, STEP_BYTES};
use crate::connection::close::CloseReason;
use crate::connection::context::Context;
use crate::connection::effect::ConnectionEffect;

impl Exchange {
    /// Responds, in the coding that the client prefers if the body is worth it and a compressor is free.
    pub(super) fn respond_coded(
        &mut self,
        mut response: Response,
        offer: CodingOffer,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) {
        let bytes = response.body.as_ref().len();
        if bytes < COMPRESSED_BYTES_MIN && !offer.required {
            return self.respond(&response, out, cx);
        }
        let Some(mut compressor) = cx.compressors.begin(offer.coding, cx.metrics) else {
            return self.respond_uncoded(&response, offer, out, cx);
        };
        let body = match std::mem::take(&mut response.body) {
            Body::Bytes(bytes) => bytes,
            other => other.as_ref().to_vec(),
        };
        compressor.add(body, true);
        if bytes > STEP_BYTES {
            response = response.coded(offer.coding);
            response.body = Body::Parts(Vec::new());
            let coding = PartCoding::Coded(compressor);
            return self.stream(&response, StreamingStep::Over, coding, out, cx);
        }
        let coded = CodedBody { response, offer };
        self.task = Task::AwaitingCompression(Box::new(coded));
        cx.push(ConnectionEffect::Compress(self.place.exchange, compressor));
    }

    /// Begins a long body in the coding that the client prefers, if a compressor is free.
    pub(super) fn stream_coded(
        &mut self,
        mut response: Response,
        next: NextPart,
        offer: CodingOffer,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) {
        let step = StreamingStep::Next(Box::new(next));
        let Some(mut compressor) = cx.compressors.begin(offer.coding, cx.metrics) else {
            if offer.required {
                return self.respond(&problem::failed(Failure::Overloaded), out, cx);
            }
            return self.stream(&response, step, PartCoding::Identity, out, cx);
        };
        let first = std::mem::take(&mut response.body);
        compressor.add(first.as_ref().to_vec(), false);
        let mut response = response.coded(offer.coding);
        response.body = Body::Parts(Vec::new());
        self.stream(&response, step, PartCoding::Coded(compressor), out, cx);
    }

    /// Sends what a reader thread has compressed.
    pub(super) fn compressed(
        &mut self,
        piece: CompressedPiece,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) {
        let CompressedPiece {
            compressor,
            out: bytes,
        } = piece;
        match std::mem::take(&mut self.task) {
            Task::AwaitingCompression(coded) => {
                return self.respond_compressed(*coded, compressor, bytes, out, cx);
            }
            other => self.task = other,
        }
        let Task::Streaming { coding, .. } = &mut self.task else {
            return;
        };
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::error!(%error, "a response can't be compressed");
                return self.fail(CloseReason::Internal, cx);
            }
        };
        let is_finished = compressor.is_finished();
        cx.counts.compressed_bytes += bytes.len() as u64;
        *coding = PartCoding::Coded(compressor);
        if !bytes.is_empty() || is_finished {
            out.part(&bytes, is_finished, cx);
        }
        self.stream_on(out, cx);
    }

    /// The readers have no room for a compressor.
    pub(super) fn not_compressed(
        &mut self,
        compressor: Box<Compressor>,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) {
        match std::mem::take(&mut self.task) {
            Task::AwaitingCompression(coded) => {
                let CodedBody {
                    mut response,
                    offer,
                } = *coded;
                response.body = compressor.into_input().into();
                self.respond_uncoded(&response, offer, out, cx);
            }
            // The body keeps its place and tries again.
            Task::Streaming { step, .. } => {
                let coding = PartCoding::Coded(compressor);
                self.task = Task::Streaming { step, coding };
                cx.push(ConnectionEffect::Queue(self.place.exchange));
            }
            other => self.task = other,
        }
    }

    /// A whole body is compressed. One that did not become shorter is sent as it was.
    fn respond_compressed(
        &mut self,
        coded: CodedBody,
        compressor: Box<Compressor>,
        bytes: std::io::Result<Vec<u8>>,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) {
        let CodedBody { response, offer } = coded;
        let input = compressor.into_input();
        let response = match bytes {
            Ok(bytes) if bytes.len() < input.len() || offer.required => {
                cx.counts.compressed_bytes += bytes.len() as u64;
                response.coded(offer.coding).body(bytes)
            }
            Err(error) if offer.required => {
                tracing::error!(%error, "a response can't be compressed");
                problem::failed(Failure::Overloaded)
            }
            _ => response.body(input),
        };
        self.respond(&response, out, cx);
    }

    /// There is no compressor for a response.
    fn respond_uncoded(
        &mut self,
        response: &Response,
        offer: CodingOffer,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) {
        match offer.required {
            true => self.respond(&problem::failed(Failure::Overloaded), out, cx),
            false => self.respond(response, out, cx),
        }
    }
}
