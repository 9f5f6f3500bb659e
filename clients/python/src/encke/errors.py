"""What can go wrong. Every error of this package that a server or the network causes is an `EnckeError`."""

from __future__ import annotations

import json
from typing import Optional

import httpx


class EnckeError(Exception):
    """A refusal, by the body `application/problem+json` of the server.

    `code` is for programs and does not change; `message` says what was wrong and what is allowed. A refused request has changed nothing,
    except that of a request which was repeated after a cut an earlier attempt may have been carried out: `may_be_done`.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}" if status == 0 else f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.may_be_done = False


class UnreachableError(EnckeError):
    """The server did not respond in time, or the connection was cut. `status` is 0 and `code` is `unreachable`."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "unreachable", message)


class UncertainProducerError(EnckeError):
    """The producer's last append may have been made; only the application knows with which epoch it may go on."""

    def __init__(self) -> None:
        super().__init__(0, "uncertain", "the last append of this producer may have been made; continue with a higher epoch")


class NotFoundError(EnckeError):
    """404: the stream, pool or job does not exist, or the caller may not know that it does."""


class GoneError(EnckeError):
    """410: the stream was deleted, or records behind the position are removed (`no_longer_kept`)."""


class StreamClosedError(EnckeError):
    """409 `closed`: the stream takes no more records. `end_reason` is why, if the writer said so."""

    end_reason: Optional[str] = None


class TailDiffersError(EnckeError):
    """412 `tail_differs`: the stream ends at `next_offset`, and not where `if_match` said."""

    next_offset: str = ""


class StaleEpochError(EnckeError):
    """403 `stale_epoch`: another writer has taken over this producer with a higher epoch."""


def refusal(status: int, headers: httpx.Headers, body: bytes) -> EnckeError:
    """The error that a response stands for, also if a proxy sent it and its body is no problem."""
    # The response to HEAD has no body.
    code = CODES.get(status, "http_error")
    message = body[:TEXT_MAX].decode("utf-8", "replace") or httpx.codes.get_reason_phrase(status)
    try:
        error = json.loads(body)["error"]
        code, message = str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        pass
    if code == "closed":
        closed = StreamClosedError(status, code, message)
        closed.end_reason = headers.get("Encke-End-Reason")
        return closed
    if code == "tail_differs":
        differs = TailDiffersError(status, code, message)
        differs.next_offset = headers.get("Stream-Next-Offset", "")
        return differs
    if code == "stale_epoch":
        return StaleEpochError(status, code, message)
    return BY_STATUS.get(status, EnckeError)(status, code, message)


BY_STATUS = {404: NotFoundError, 410: GoneError}
CODES = {404: "not_found", 410: "gone"}

# Characters of a body that is no problem in the message of its error.
TEXT_MAX = 200
