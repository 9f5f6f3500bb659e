//! How much is read ahead for the streams of an HTTP/2 connection. A connection of HTTP/1.1 has one body at a time, and the next
//! part of it is read when the socket has taken the last one. Here all streams together have about as much.

/// What the streams of a connection have read ahead, in bytes.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    bytes: usize,
}

/// What one of them has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamReadAhead {
    /// A reader thread reads so much for it.
    reading: usize,
    /// The windows and the socket have not taken so much.
    held: usize,
}

impl ReadAhead {
    /// How much of `wanted` may be read for a stream now. A little always, so that each of many streams goes on.
    pub(crate) fn grant(&mut self, stream: &mut StreamReadAhead, wanted: usize) -> usize {
        self.arrived(stream);
        let room = READ_AHEAD_BYTES_MAX.saturating_sub(self.bytes);
        stream.reading = wanted.min(room.max(READ_BYTES_MIN));
        self.bytes += stream.reading;
        stream.reading
    }

    /// What was read for a stream has arrived.
    pub(crate) fn arrived(&mut self, stream: &mut StreamReadAhead) {
        self.bytes -= std::mem::take(&mut stream.reading);
    }

    /// Notes what a stream holds now.
    pub(crate) fn hold(&mut self, stream: &mut StreamReadAhead, bytes: usize) {
        self.bytes = self.bytes - stream.held + bytes;
        stream.held = bytes;
    }

    /// A stream is gone.
    pub(crate) fn forget(&mut self, mut stream: StreamReadAhead) {
        self.arrived(&mut stream);
        self.hold(&mut stream, 0);
    }
}

/// Bytes that the streams of a connection read ahead together, beside what each may read at least: about a part of a long body.
const READ_AHEAD_BYTES_MAX: usize = 256 << 10;

/// Bytes that each of them may read at a time, whatever the others have.
const READ_BYTES_MIN: usize = 4 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_stream_reads_as_much_as_it_wants_and_many_share() {
        let mut connection = ReadAhead::default();
        let mut streams = [StreamReadAhead::default(); 250];
        assert_eq!(connection.grant(&mut streams[0], 256 << 10), 256 << 10);
        connection.arrived(&mut streams[0]);
        connection.hold(&mut streams[0], 0);
        let granted = streams
            .iter_mut()
            .map(|stream| connection.grant(stream, 32 << 10));
        assert!(granted.sum::<usize>() <= READ_AHEAD_BYTES_MAX + 250 * READ_BYTES_MIN);
        for stream in &mut streams {
            connection.arrived(stream);
            connection.hold(stream, 10_000);
        }
        assert_eq!(connection.grant(&mut streams[9], 32 << 10), READ_BYTES_MIN);
        for stream in streams {
            connection.forget(stream);
        }
        assert_eq!(connection.bytes, 0);
    }
}
