//! The payload of close frames (RFC 6455, section 5.5.1).

use super::close_code::CloseCode;
use super::frame::{CONTROL_BYTES_MAX, ControlKind, encode_control};
use super::violation::Violation;

/// What a close frame says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Close {
    /// Why the connection is closed.
    pub(crate) code: CloseCode,
    /// A text for people, of at most [`REASON_BYTES_MAX`] bytes; possibly empty.
    pub(crate) reason: String,
}

impl Close {
    /// Parses the payload of a close frame. `None`: the frame has no payload, so the client gives no code.
    ///
    /// # Errors
    /// [`Violation::ShortClose`], [`Violation::CloseCode`] or [`Violation::CloseReason`].
    pub(crate) fn parse(payload: &[u8]) -> Result<Option<Close>, Violation> {
        let (number, reason) = match payload {
            [] => return Ok(None),
            [_] => return Err(Violation::ShortClose),
            [high, low, reason @ ..] => (u16::from_be_bytes([*high, *low]), reason),
        };
        let code = CloseCode::new(number).ok_or(Violation::CloseCode(number))?;
        let reason = std::str::from_utf8(reason).map_err(|_| Violation::CloseReason)?;
        Ok(Some(Close {
            code,
            reason: reason.to_owned(),
        }))
    }
}

/// Appends a close frame. A reason above [`REASON_BYTES_MAX`] is cut at the last character boundary before.
pub(crate) fn encode_close(code: CloseCode, reason: &str, out: &mut Vec<u8>) {
    let reason = &reason[..reason.floor_char_boundary(REASON_BYTES_MAX)];
    let mut payload = [0; CONTROL_BYTES_MAX];
    let length = CODE_BYTES + reason.len();
    payload[..CODE_BYTES].copy_from_slice(&code.number().to_be_bytes());
    payload[CODE_BYTES..length].copy_from_slice(reason.as_bytes());
    encode_control(ControlKind::Close, &payload[..length], out);
}

/// Appends a close frame without code, which answers one without code.
pub(crate) fn encode_empty_close(out: &mut Vec<u8>) {
    encode_control(ControlKind::Close, &[], out);
}

/// The most bytes of a reason: what the code leaves of a control frame.
pub(crate) const REASON_BYTES_MAX: usize = CONTROL_BYTES_MAX - CODE_BYTES;

const CODE_BYTES: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_reasons_are_cut_between_characters() {
        let frame = |reason: &str| {
            let mut out = Vec::new();
            encode_close(CloseCode::TRY_AGAIN_LATER, reason, &mut out);
            assert_eq!(out[..2], [0x88, out.len() as u8 - 2]);
            assert_eq!(out[2..4], [0x03, 0xf5]);
            String::from_utf8(out[4..].to_vec()).unwrap()
        };
        assert_eq!(frame(""), "");
        assert_eq!(frame(&"x".repeat(123)), "x".repeat(123));
        assert_eq!(frame(&"x".repeat(999)), "x".repeat(123));
        assert_eq!(frame(&"ä".repeat(99)), "ä".repeat(61));
        assert_eq!(
            frame(&format!("{}\u{1f680}", "x".repeat(120))),
            "x".repeat(120)
        );
        let mut out = Vec::new();
        encode_empty_close(&mut out);
        assert_eq!(out, [0x88, 0]);
    }

    #[test]
    fn every_number_is_a_code_or_must_not_be_sent() {
        let sent = (0..=u16::MAX).filter_map(CloseCode::new);
        assert_eq!(sent.count(), 4 + 8 + 2000);
        for number in [0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65535] {
            assert_eq!(CloseCode::new(number), None);
        }
    }
}
