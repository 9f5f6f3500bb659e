//! How a client breaks the protocol, and the close code that says so.

use super::close_code::CloseCode;
use super::frame_meter::FrameFlood;

/// A rule that the client broke. The server sends a close frame with [`Violation::close_code`] and ends the connection (RFC 6455,
/// section 7.1.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    /// RSV2 or RSV3 is set, or RSV1 where no negotiated extension defines it (RFC 6455, section 5.2; RFC 7692, section 6).
    #[error("a reserved bit is set that no negotiated extension defines")]
    ReservedBit,
    /// Opcodes 3 to 7 and 11 to 15 are reserved (RFC 6455, section 5.2).
    #[error("opcode {0} is reserved")]
    ReservedOpcode(u8),
    /// Clients mask every frame (RFC 6455, section 5.1).
    #[error("the frame is not masked")]
    Unmasked,
    /// Control frames are not fragmented (RFC 6455, section 5.5).
    #[error("the control frame is fragmented")]
    FragmentedControl,
    /// The payload of a control frame has at most 125 bytes (RFC 6455, section 5.5).
    #[error("the control frame has more than 125 bytes")]
    LongControl,
    /// The shortest encoding of a length is required (RFC 6455, section 5.2).
    #[error("the length of the payload is not encoded in the shortest form")]
    LengthNotMinimal,
    /// The most significant bit of a 64-bit length is 0 (RFC 6455, section 5.2).
    #[error("the length of the payload has more than 63 bits")]
    LengthTooLarge,
    /// A continuation frame without a message to continue (RFC 6455, section 5.4).
    #[error("a continuation frame continues no message")]
    UnexpectedContinuation,
    /// A new message inside a fragmented one (RFC 6455, section 5.4).
    #[error("a message begins before the last fragment of another")]
    ExpectedContinuation,
    /// A close frame with a payload of one byte, which holds no code (RFC 6455, section 5.5.1).
    #[error("the close frame has a payload of one byte")]
    ShortClose,
    /// A code that must not be sent in a close frame (RFC 6455, section 7.4).
    #[error("close code {0} must not be sent")]
    CloseCode(u16),
    /// The reason of a close frame is not UTF-8 (RFC 6455, section 5.5.1).
    #[error("the reason for closing is not UTF-8")]
    CloseReason,
    /// A text message is not UTF-8 (RFC 6455, section 8.1).
    #[error("the text message is not UTF-8")]
    InvalidUtf8,
    /// A compressed message is not complete DEFLATE data (RFC 7692, section 7.2.2).
    #[error("the compressed message is not valid DEFLATE data")]
    InvalidDeflate,
    /// The message, or what it inflates to, exceeds the bound, in bytes.
    #[error("the message has more than {bytes_max} bytes")]
    MessageTooBig {
        /// The bound in bytes.
        bytes_max: usize,
    },
    /// More frames without content than a client needs.
    #[error("{0}")]
    Flood(#[from] FrameFlood),
}

impl Violation {
    /// The code of the close frame that answers the violation (RFC 6455, section 7.4.1).
    pub(crate) fn close_code(self) -> CloseCode {
        match self {
            Violation::ReservedBit
            | Violation::ReservedOpcode(_)
            | Violation::Unmasked
            | Violation::FragmentedControl
            | Violation::LongControl
            | Violation::LengthNotMinimal
            | Violation::LengthTooLarge
            | Violation::UnexpectedContinuation
            | Violation::ExpectedContinuation
            | Violation::ShortClose
            | Violation::CloseCode(_) => CloseCode::PROTOCOL_ERROR,
            Violation::CloseReason | Violation::InvalidUtf8 | Violation::InvalidDeflate => {
                CloseCode::INVALID_PAYLOAD
            }
            Violation::MessageTooBig { .. } => CloseCode::MESSAGE_TOO_BIG,
            Violation::Flood(_) => CloseCode::POLICY_VIOLATION,
        }
    }
}
