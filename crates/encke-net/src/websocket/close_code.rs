//! Close codes (RFC 6455, section 7.4).

/// A close code that may be sent in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CloseCode(u16);

impl CloseCode {
    /// The server shuts down, or the browser leaves the page.
    pub(crate) const GOING_AWAY: CloseCode = CloseCode(1001);
    /// The peer broke the protocol.
    pub(crate) const PROTOCOL_ERROR: CloseCode = CloseCode(1002);
    /// The kind of a message is not accepted, such as binary messages where only text is.
    pub(crate) const UNSUPPORTED_DATA: CloseCode = CloseCode(1003);
    /// The payload of a message does not fit its kind, such as text that is not UTF-8.
    pub(crate) const INVALID_PAYLOAD: CloseCode = CloseCode(1007);
    /// A message breaks a policy of the server for which no other code exists.
    pub(crate) const POLICY_VIOLATION: CloseCode = CloseCode(1008);
    /// A message exceeds the bound on its bytes.
    pub(crate) const MESSAGE_TOO_BIG: CloseCode = CloseCode(1009);
    /// The server failed.
    pub(crate) const INTERNAL_ERROR: CloseCode = CloseCode(1011);
    /// The server is overloaded; the client may try again later (IANA registry).
    #[cfg(test)]
    pub(crate) const TRY_AGAIN_LATER: CloseCode = CloseCode(1013);
    /// The time of the caller is over: its token or certificate has expired.
    pub(crate) const CALLER_EXPIRED: CloseCode = CloseCode(4401);
    /// The caller's credentials were revoked.
    pub(crate) const CALLER_REVOKED: CloseCode = CloseCode(4403);
    /// The client did not answer a ping, or did not say in time who it is.
    pub(crate) const TIMED_OUT: CloseCode = CloseCode(4408);
    /// Another node serves the client.
    pub(crate) const SERVED_ELSEWHERE: CloseCode = CloseCode(4503);

    /// The code with that number; `None` if it must not be sent.
    ///
    /// Codes that may be sent are 1000 to 1003, 1007 to 1014, 3000 to 3999 for libraries and frameworks, and 4000 to 4999 for private use
    /// (RFC 6455, section 7.4.2).
    pub(crate) const fn new(number: u16) -> Option<CloseCode> {
        match number {
            1000..=1003 | 1007..=1014 | 3000..=4999 => Some(CloseCode(number)),
            _ => None,
        }
    }

    /// The number in the frame.
    pub(crate) const fn number(self) -> u16 {
        self.0
    }
}
