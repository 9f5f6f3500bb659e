//! The two directions of an HTTP/2 connection as buffers: what the shard has received, and what it has still to send.

use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The shard's end. Both ends belong to one thread, so the lock is never contended; it is there because a shard moves to its thread.
#[derive(Debug, Default)]
pub(crate) struct Wire(Arc<Mutex<Directions>>);

/// The end that `h2` reads from and writes to. A write always succeeds: the shard bounds what is written before it polls.
#[derive(Debug)]
pub(crate) struct WireEnd(Arc<Mutex<Directions>>);

#[derive(Debug, Default)]
struct Directions {
    input: Vec<u8>,
    /// How much of the input was read.
    read: usize,
    output: Vec<u8>,
}

impl Wire {
    pub(crate) fn end(&self) -> WireEnd {
        WireEnd(Arc::clone(&self.0))
    }

    /// Adds received bytes.
    pub(crate) fn receive(&self, bytes: &[u8]) {
        self.0.lock().input.extend_from_slice(bytes);
    }

    /// What the received bytes that were not read take in memory.
    pub(crate) fn input_bytes(&self) -> usize {
        self.0.lock().input.capacity()
    }

    /// Takes what is to be sent.
    pub(crate) fn take_output(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().output)
    }
}

impl AsyncRead for WireEnd {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let mut directions = self.0.lock();
        let left = &directions.input[directions.read..];
        if left.is_empty() {
            return Poll::Pending;
        }
        let count = left.len().min(into.remaining());
        into.put_slice(&left[..count]);
        directions.read += count;
        if directions.read == directions.input.len() {
            directions.input = Vec::new();
            directions.read = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for WireEnd {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        self.0.lock().output.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let output = &mut self.0.lock().output;
        let before = output.len();
        for slice in slices {
            output.extend_from_slice(slice);
        }
        Poll::Ready(Ok(output.len() - before))
    }

    fn is_write_vectored(&self) -> bool {
        // Longer data is then copied once, not twice.
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn bytes_pass_in_both_directions_and_nothing_waits_for_a_socket() {
        let wire = Wire::default();
        let mut end = wire.end();
        let mut cx = Context::from_waker(Waker::noop());
        let mut room = [0; 4];
        let mut into = ReadBuf::new(&mut room);
        assert!(
            Pin::new(&mut end)
                .poll_read(&mut cx, &mut into)
                .is_pending()
        );
        wire.receive(b"abcdef");
        for expected in [&b"abcd"[..], b"ef"] {
            into.clear();
            let read = Pin::new(&mut end).poll_read(&mut cx, &mut into);
            assert!(matches!(read, Poll::Ready(Ok(()))));
            assert_eq!(into.filled(), expected);
        }
        into.clear();
        assert!(
            Pin::new(&mut end)
                .poll_read(&mut cx, &mut into)
                .is_pending()
        );
        let slices = [IoSlice::new(b"gh"), IoSlice::new(b"i")];
        let written = Pin::new(&mut end).poll_write_vectored(&mut cx, &slices);
        assert!(matches!(written, Poll::Ready(Ok(3))));
        assert_eq!(wire.take_output(), b"ghi");
        assert!(wire.take_output().is_empty());
    }
}
