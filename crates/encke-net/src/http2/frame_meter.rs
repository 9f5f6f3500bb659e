//! Bounds the frames of a client that carry no request and no body. Each costs the server work and the client next to nothing:
//! `h2` bounds what they take in memory, this bounds how many come.

use std::time::Duration;

use crate::clients::rate_limit::RateLimit;

/// Counts the frames of one connection, by the heads in the bytes that arrive.
#[derive(Debug)]
pub(crate) struct FrameMeter {
    place: Place,
    control: RateLimit,
    control_taken_ns: u64,
    resets: RateLimit,
    resets_taken_ns: u64,
    /// Since when the fields of a request arrive, until they are complete.
    head_since: Option<Duration>,
    /// The frame in work is the last one of them.
    head_ends: bool,
}

/// Where the next byte stands.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// In the preface, or in the payload of a frame: so many bytes before the next head.
    Payload(u32),
    /// In a head, of which so many bytes have arrived: the length and the kind so far.
    Head { bytes: u8, length: u32, kind: u8 },
}

/// The client sent more of such frames than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flood {
    /// PING, SETTINGS, PRIORITY, WINDOW_UPDATE, CONTINUATION and frames of unknown kinds.
    Control,
    /// RST_STREAM.
    Resets,
}

impl FrameMeter {
    /// For a connection of which no byte was counted.
    pub(crate) fn new() -> Self {
        FrameMeter {
            place: Place::Payload(PREFACE_BYTES),
            control: CONTROL,
            control_taken_ns: 0,
            resets: RESETS,
            resets_taken_ns: 0,
            head_since: None,
            head_ends: false,
        }
    }

    /// Counts the frames that begin in these bytes. `now` is a time since any moment that stays the same.
    pub(crate) fn count(&mut self, mut bytes: &[u8], now: Duration) -> Result<(), Flood> {
        while let Some(&byte) = bytes.first() {
            match self.place {
                Place::Payload(0) => {
                    self.end_frame();
                    self.place = Place::Head {
                        bytes: 0,
                        length: 0,
                        kind: 0,
                    }
                }
                Place::Payload(left) => {
                    let skipped = bytes.len().min(left as usize);
                    self.place = Place::Payload(left - skipped as u32);
                    bytes = &bytes[skipped..];
                }
                Place::Head {
                    bytes: before,
                    mut length,
                    mut kind,
                } => {
                    match before {
                        0..3 => length = length << 8 | u32::from(byte),
                        3 => kind = byte,
                        4 if matches!(kind, HEADERS | CONTINUATION) => {
                            self.head_since.get_or_insert(now);
                            self.head_ends = byte & END_HEADERS != 0;
                        }
                        _ => {}
                    }
                    bytes = &bytes[1..];
                    if before + 1 < HEAD_BYTES {
                        self.place = Place::Head {
                            bytes: before + 1,
                            length,
                            kind,
                        };
                        continue;
                    }
                    self.place = Place::Payload(length);
                    self.frame(kind, now)?;
                }
            }
        }
        if matches!(self.place, Place::Payload(0)) {
            self.end_frame();
        }
        Ok(())
    }

    /// Since when the fields of a request arrive that are not complete.
    pub(crate) fn head_since(&self) -> Option<Duration> {
        self.head_since
    }

    fn end_frame(&mut self) {
        if std::mem::take(&mut self.head_ends) {
            self.head_since = None;
        }
    }

    /// Data was sent, of a response or of several: the client may update two windows for each of its frames.
    pub(crate) fn sent_data(&mut self, bytes: usize) {
        // A client that opens its window by single bytes pays for its updates.
        if bytes >= EARNING_BYTES_MIN {
            let frames = bytes.div_ceil(FRAME_BYTES) as u64;
            self.control
                .give_back(&mut self.control_taken_ns, 2 * frames);
        }
    }

    fn frame(&mut self, kind: u8, now: Duration) -> Result<(), Flood> {
        let now_ns = now.as_nanos() as u64;
        match kind {
            // `h2` bounds those without content, and more streams than allowed.
            DATA | HEADERS => Ok(()),
            RST_STREAM => self
                .resets
                .take(&mut self.resets_taken_ns, now_ns)
                .map_err(|_| Flood::Resets),
            _ => self
                .control
                .take(&mut self.control_taken_ns, now_ns)
                .map_err(|_| Flood::Control),
        }
    }
}

const PREFACE_BYTES: u32 = 24;
const HEAD_BYTES: u8 = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;

/// The flag of the last frame with fields.
const END_HEADERS: u8 = 4;

/// Control frames that a connection may send at once, and in a second. Each frame with data that it gets allows two more.
pub(crate) const CONTROL_FRAMES_BURST: u64 = 5_000;
pub(crate) const CONTROL_FRAMES_PER_S: u64 = 1_000;

/// Streams that a connection may reset at once, and in a second: a browser resets all of a page's when it leaves the page.
pub(crate) const RESETS_BURST: u64 = 1_000;
pub(crate) const RESETS_PER_S: u64 = 100;

/// A send has at least one frame for each 8 KiB: a frame has 16 KiB, and less at the end of a window.
const FRAME_BYTES: usize = 8 << 10;

/// Bytes of data for which a client may update its windows.
const EARNING_BYTES_MIN: usize = 64;

const CONTROL: RateLimit = RateLimit::at(CONTROL_FRAMES_PER_S, CONTROL_FRAMES_BURST);
const RESETS: RateLimit = RateLimit::at(RESETS_PER_S, RESETS_BURST);

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: usize) -> Vec<u8> {
        let mut frame = vec![0, (payload >> 8) as u8, payload as u8, kind, 0, 0, 0, 0, 1];
        frame.resize(9 + payload, 3);
        frame
    }

    /// How many frames of a kind a new connection may send at once.
    fn allowed(kind: u8) -> (u64, Flood) {
        let mut meter = FrameMeter::new();
        meter.count(&[b'x'; 24], Duration::from_secs(9)).unwrap();
        for count in 0.. {
            if let Err(flood) = meter.count(&frame(kind, 8), Duration::from_secs(9)) {
                return (count, flood);
            }
        }
        unreachable!()
    }

    #[test]
    fn floods_of_each_kind_end_at_their_bound() {
        for kind in [2, 4, 6, 8, 9, 77] {
            assert_eq!(allowed(kind), (CONTROL_FRAMES_BURST, Flood::Control));
        }
        assert_eq!(allowed(RST_STREAM), (RESETS_BURST, Flood::Resets));
    }

    #[test]
    fn frames_are_found_whatever_pieces_they_come_in() {
        let mut bytes = vec![b'x'; 24];
        for payload in [0, 1, 300] {
            bytes.extend(frame(DATA, payload));
            bytes.extend(frame(RST_STREAM, 4));
        }
        for piece in 1..bytes.len() {
            let mut meter = FrameMeter::new();
            for _ in 0..3 {
                meter.place = Place::Payload(PREFACE_BYTES);
                for some in bytes.chunks(piece) {
                    meter.count(some, Duration::ZERO).unwrap();
                }
            }
            let used_ns = meter.resets_taken_ns;
            assert_eq!(used_ns, 9 * 1_000_000_000 / RESETS_PER_S, "{piece}");
            assert_eq!(meter.control_taken_ns, 0);
        }
    }

    #[test]
    fn time_and_sent_data_allow_more() {
        let mut meter = FrameMeter::new();
        meter.place = Place::Payload(0);
        let update = frame(8, 4);
        let at = Duration::from_secs(1);
        for _ in 0..CONTROL_FRAMES_BURST {
            meter.count(&update, at).unwrap();
        }
        meter.sent_data(EARNING_BYTES_MIN - 1);
        assert_eq!(meter.count(&update, at), Err(Flood::Control));
        // The rest of a frame that is refused is not counted, because the connection ends there.
        meter.place = Place::Payload(0);
        meter.sent_data(EARNING_BYTES_MIN);
        meter.count(&update, at).unwrap();
        meter.count(&update, at).unwrap();
        assert_eq!(meter.count(&update, at), Err(Flood::Control));
        // Four frames of 16 KiB, and the ends of windows.
        meter.place = Place::Payload(0);
        meter.sent_data(64 << 10);
        for _ in 0..16 {
            meter.count(&update, at).unwrap();
        }
        assert_eq!(meter.count(&update, at), Err(Flood::Control));
        meter.place = Place::Payload(0);
        let later = at + Duration::from_millis(10);
        meter.count(&update, later).unwrap();
    }

    #[test]
    fn the_fields_of_a_request_are_timed_until_they_are_complete() {
        let at = Duration::from_secs;
        let frame = |kind: u8, flags: u8| {
            let mut frame = frame(kind, 10);
            frame[4] = flags;
            frame
        };
        let mut meter = FrameMeter::new();
        meter.count(&[b'x'; 24], at(1)).unwrap();
        assert_eq!(meter.head_since(), None);
        meter.count(&frame(HEADERS, END_HEADERS), at(2)).unwrap();
        assert_eq!(meter.head_since(), None);
        // In three frames, which come byte by byte.
        for (number, frame) in [
            frame(HEADERS, 1),
            frame(CONTINUATION, 0),
            frame(CONTINUATION, END_HEADERS),
        ]
        .iter()
        .enumerate()
        {
            for (place, byte) in frame.iter().enumerate() {
                let is_last = number == 2 && place + 1 == frame.len();
                meter.count(&[*byte], at(3 + place as u64)).unwrap();
                let began = (number > 0 || place >= 4) && !is_last;
                assert_eq!(
                    meter.head_since(),
                    began.then_some(at(7)),
                    "{number} {place}"
                );
            }
        }
        // Another frame's flag of the same value says nothing.
        meter.count(&frame(HEADERS, 1), at(50)).unwrap();
        meter.count(&frame(DATA, END_HEADERS), at(51)).unwrap();
        assert_eq!(meter.head_since(), Some(at(50)));
    }
}
