//! Why connections are closed.

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// The client closed it, or its socket failed.
    HangUp,
    /// The client has acknowledged nothing of what was sent to it for too long.
    Vanished,
    /// The client of a refused request has had time to read the response.
    Lingered,
    /// The response was the last one.
    Done,
    /// The connection has had as many requests as it may.
    RequestsPerConnection,
    /// All streams of the subscription have ended.
    Ended,
    /// The stream of a channel's feed was deleted before the client could be told.
    Deleted,
    /// The server stops.
    Stopping,
    /// The server has moved to another process, and what the connection was doing could not.
    Moved,
    /// No request for too long.
    Idle,
    /// The client has not read for too long.
    Stalled,
    /// The subscriber is too many bytes behind.
    LagMax,
    /// The subscriber has been behind for too long.
    LagAgeMax,
    /// Retention has removed what the client would get next.
    NoLongerKept,
    /// All connections together hold too much memory.
    BuffersMax,
    /// The data could not be read.
    Unreadable,
    /// The credentials of its caller have expired.
    Expired,
    /// The certificate of its client has expired.
    CertificateExpired,
    /// The credentials of its caller were revoked.
    Revoked,
    /// An operator has closed it.
    Disconnected,
    /// This node does not follow its fleet.
    OutOfFleet,
    /// A subscriber sent too much.
    Talkative,
    /// No session of TLS came about.
    Handshake,
    /// What the client sent is no record of its session of TLS, or must not come then.
    Tls,
    /// The client violated HTTP/2.
    Http2Violation,
    /// The client sent more HTTP/2 frames without content than it may.
    Http2Flood,
    /// The client reset more HTTP/2 streams than it may.
    Http2Resets,
    /// The client exceeded another bound of an HTTP/2 connection.
    Http2Excess,
    /// The client of a WebSocket did not answer a ping.
    NoPong,
    /// A message over WebSocket could not be served, and the client repeats only what a connection begins with.
    Unserved,
    /// The client did not say in time who it is.
    Unauthenticated,
    /// A message over WebSocket did not come to its end in time.
    SlowMessage,
    /// The client violated WebSocket.
    WebSocketViolation,
    /// The protocol of a WebSocket has closed it, by a code of its own, for which this stands in metrics.
    ByProtocol(&'static str),
    /// There was no room for it, and its request did not come in time.
    ConnectionsMax,
    /// A newcomer at the operators' address has its place.
    OperatorPlaces,
    /// The kernel cannot watch the socket.
    Epoll,
    /// A fault of the server.
    Internal,
}

impl CloseReason {
    /// The label in metrics of the connections that the server closes; `None` for the others.
    pub(crate) fn label(self) -> Option<&'static str> {
        Some(match self {
            CloseReason::HangUp | CloseReason::Lingered => return None,
            CloseReason::Vanished => "vanished",
            CloseReason::Done => "done",
            CloseReason::RequestsPerConnection => "requests_per_connection",
            CloseReason::Ended => "ended",
            CloseReason::Deleted => "deleted",
            CloseReason::Stopping => "stopping",
            CloseReason::Moved => "moved",
            CloseReason::Idle => "idle",
            CloseReason::Stalled => "stalled",
            CloseReason::LagMax => "lag_max",
            CloseReason::LagAgeMax => "lag_age_max",
            CloseReason::NoLongerKept => "no_longer_kept",
            CloseReason::BuffersMax => "buffers_max",
            CloseReason::Unreadable => "unreadable",
            CloseReason::Expired => "expired",
            CloseReason::CertificateExpired => "certificate_expired",
            CloseReason::Revoked => "revoked",
            CloseReason::Disconnected => "disconnected",
            CloseReason::OutOfFleet => "out_of_fleet",
            CloseReason::Talkative => "talkative",
            CloseReason::Handshake => "tls_handshake",
            CloseReason::Tls => "tls",
            CloseReason::Http2Violation => "http2_violation",
            CloseReason::Http2Flood => "http2_flood",
            CloseReason::Http2Resets => "http2_resets",
            CloseReason::Http2Excess => "http2_excess",
            CloseReason::NoPong => "no_pong",
            CloseReason::Unserved => "unserved",
            CloseReason::Unauthenticated => "unauthenticated",
            CloseReason::SlowMessage => "slow_message",
            CloseReason::WebSocketViolation => "websocket_violation",
            CloseReason::ByProtocol(label) => label,
            CloseReason::ConnectionsMax => "connections_max",
            CloseReason::OperatorPlaces => "operator_places",
            CloseReason::Epoll => "epoll",
            CloseReason::Internal => "internal",
        })
    }

    /// Its name in the access log.
    pub(crate) fn name(self) -> &'static str {
        match self {
            CloseReason::HangUp => "hang_up",
            CloseReason::Lingered => "lingered",
            other => other.label().unwrap_or_default(),
        }
    }

    /// One line for the client, where it is sent a farewell.
    pub(crate) fn why(self) -> &'static str {
        match self {
            CloseReason::LagMax => "the client reads too slowly and is too far behind",
            CloseReason::LagAgeMax => "the client has been behind for too long",
            CloseReason::NoLongerKept => "what follows is no longer kept",
            CloseReason::Expired => "the token has expired",
            CloseReason::CertificateExpired => "the client certificate has expired",
            CloseReason::Revoked => "the token was revoked",
            CloseReason::Disconnected => "an operator has closed the connection",
            CloseReason::Stopping => "the server stops",
            CloseReason::Unserved => "the server can't serve this now; connect again",
            CloseReason::OutOfFleet => {
                "this node does not follow its fleet; connect to another one"
            }
            other => other.name(),
        }
    }

    /// Whether a subscriber is sent a farewell before it is closed for this reason.
    pub(crate) fn is_dismissal(self) -> bool {
        matches!(
            self,
            CloseReason::LagMax
                | CloseReason::LagAgeMax
                | CloseReason::NoLongerKept
                | CloseReason::Expired
                | CloseReason::CertificateExpired
                | CloseReason::Revoked
                | CloseReason::Disconnected
                | CloseReason::Stopping
                | CloseReason::OutOfFleet
        )
    }
}
