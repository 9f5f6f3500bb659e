//! Bounds the frames of a client that carry little or no content. Each costs the server work and the client next to nothing.

use std::time::Duration;

use crate::clients::rate_limit::RateLimit;

/// Counts the frames of one connection that carry little: control frames, fragments below [`FRAGMENT_BYTES_MIN`], and empty
/// messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LightFrameMeter {
    /// The time up to which the allowed frames are used, in nanoseconds.
    taken_ns: u64,
}

/// The client sent more frames without content than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameFlood {
    /// More than [`LIGHT_FRAMES_BURST`] frames at once and [`LIGHT_FRAMES_PER_S`] in a second.
    #[error("too many control frames, small fragments or empty messages")]
    Frames,
    /// More than [`SMALL_FRAGMENTS_MAX`] small fragments in one message.
    #[error("too many small fragments in one message")]
    Fragments,
}

impl LightFrameMeter {
    /// A meter that has counted nothing.
    pub(crate) fn new() -> Self {
        LightFrameMeter::default()
    }

    /// Counts one frame. `now` is the time since any moment that stays the same for this meter.
    ///
    /// # Errors
    /// [`FrameFlood::Frames`] if the frame exceeds the rate.
    pub(crate) fn count(&mut self, now: Duration) -> Result<(), FrameFlood> {
        LIGHT_FRAMES
            .take(&mut self.taken_ns, now.as_nanos() as u64)
            .map_err(|_wait_ns| FrameFlood::Frames)
    }

    /// Whether the whole burst is available again, so that a new meter can replace this one.
    #[cfg(test)]
    pub(crate) fn is_idle(&self, now: Duration) -> bool {
        u128::from(self.taken_ns) <= now.as_nanos()
    }
}

/// Frames with little content that a connection may send at once. The numbers are those of HTTP/2's control frames.
pub(crate) const LIGHT_FRAMES_BURST: u64 = 5_000;

/// Frames with little content that a connection may send in a second.
pub(crate) const LIGHT_FRAMES_PER_S: u64 = 1_000;

/// Bytes of payload from which on a fragment is not counted: it then costs the client more to send than its header.
pub(crate) const FRAGMENT_BYTES_MIN: usize = 64;

/// Fragments below [`FRAGMENT_BYTES_MIN`] that one message may have.
pub(crate) const SMALL_FRAGMENTS_MAX: u16 = 1_000;

const LIGHT_FRAMES: RateLimit = RateLimit::at(LIGHT_FRAMES_PER_S, LIGHT_FRAMES_BURST);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_then_the_rate() {
        let mut meter = LightFrameMeter::new();
        let now = Duration::from_secs(9);
        assert!(meter.is_idle(now));
        for _ in 0..LIGHT_FRAMES_BURST {
            meter.count(now).unwrap();
        }
        assert_eq!(meter.count(now), Err(FrameFlood::Frames));
        let interval = Duration::from_secs(1) / LIGHT_FRAMES_PER_S as u32;
        meter.count(now + interval).unwrap();
        assert_eq!(meter.count(now + interval), Err(FrameFlood::Frames));
        let rested = now + interval * (LIGHT_FRAMES_BURST as u32 + 1);
        assert!(meter.is_idle(rested));
        assert!(!meter.is_idle(rested - Duration::from_nanos(1)));
        assert_eq!(size_of::<LightFrameMeter>(), 8);
    }
}
