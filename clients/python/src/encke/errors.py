"""Errors. Every error of this package that a server or the network causes is an `EnckeError`."""

from __future__ import annotations

import contextlib
import json
from typing import Any, Optional, TypeVar

import httpx

E = TypeVar("E", bound=Exception)


class PicklableError(Exception):
    """An exception that pickle and copy restore from its attributes, without a call of its constructor."""

    def __reduce__(self) -> tuple[Any, ...]:
        return restore, (type(self), self.args), self.__dict__


def restore(kind: type[E], args: tuple[Any, ...]) -> E:
    return kind.__new__(kind, *args)


class EnckeError(PicklableError):
    """A refusal, by the body `application/problem+json` of the server.

    `code` is for programs and does not change; `message` says what was wrong and what is allowed. `request` is the method and the path that
    were refused, such as `POST /v1/stream/chat/1`. A refused request has changed nothing, except that of a request which was repeated after
    a cut an earlier attempt may have been carried out: `may_be_done`.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(status, code, message)
        self.status = status
        self.code = code
        self.message = message
        self.request = ""
        self.may_be_done = False

    def __str__(self) -> str:
        text = f"{self.code}: {self.message}" if self.status == 0 else f"{self.status} {self.code}: {self.message}"
        return f"{text} ({self.request})" if self.request else text


class UnreachableError(EnckeError):
    """The server did not respond in time, or the connection was cut. `status` is 0 and `code` is `unreachable`."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "unreachable", message)


class UncertainProducerError(EnckeError):
    """The producer's last append may have been made; only the application knows with which epoch it may continue."""

    def __init__(self) -> None:
        super().__init__(0, "uncertain", "the last append of this producer may have been made; continue with a higher epoch")


class ProducerInUseError(EnckeError):
    """Another writer has used the number of this append, or a proxy has repeated it. The record may be stored."""

    def __init__(self, stream: str, producer: str) -> None:
        message = (
            f"an append to stream {stream!r}, sent once, was acknowledged as a repetition: another writer uses the producer {producer}, "
            "or a proxy has repeated the request; the record may be stored"
        )
        super().__init__(0, "producer_in_use", message)
        self.may_be_done = True


class NotEnckeError(EnckeError):
    """A response that the protocol does not promise: another program than the server has sent it. `code` is `not_encke`."""

    def __init__(self, status: int, url: str, why: str) -> None:
        super().__init__(status, "not_encke", f"the response from {url} is not the server's: {why}")
        self.may_be_done = True


class NotFoundError(EnckeError):
    """404: the stream, pool or job does not exist, or the caller may not know that it does."""


class GoneError(EnckeError):
    """410: the stream was deleted, or records behind the position are removed (`no_longer_kept`)."""


class StreamClosedError(EnckeError):
    """409 `closed`: the stream takes no further records. `end_reason` is the reason that the writer gave, if any."""

    end_reason: Optional[str] = None


class TailDiffersError(EnckeError):
    """412 `tail_differs`: the stream ends at `next_offset`, and not where `if_match` said."""

    next_offset: str = ""


class StaleEpochError(EnckeError):
    """403 `stale_epoch`: another writer has taken over this producer with a higher epoch."""


def refusal(status: int, headers: httpx.Headers, body: bytes) -> EnckeError:
    """The error that a response stands for, also if a proxy sent it and its body is no problem."""
    # The response to HEAD has no body.
    code = CODES.get(status, HTTP_ERROR)
    message = body[:TEXT_MAX].decode("utf-8", "replace") or httpx.codes.get_reason_phrase(status)
    if headers.get("Content-Type", "").partition(";")[0].strip().lower() == PROBLEM_TYPE:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            error = json.loads(body)["error"]
            # Other servers have a number as the code.
            if isinstance(error["code"], str) and isinstance(error["message"], str):
                code, message = error["code"], error["message"]
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


# The type of the body of every refusal of the server.
PROBLEM_TYPE = "application/problem+json"
# The code of a refusal that does not say one, as that of a proxy.
HTTP_ERROR = "http_error"
BY_STATUS = {404: NotFoundError, 410: GoneError}
CODES = {404: "not_found", 410: "gone"}

# The code if the function that makes tokens raises or does not end, and if what it makes can't be sent.
NO_TOKEN, BAD_TOKEN = "no_token", "bad_token"

# Characters of a body that is no problem in the message of its error.
TEXT_MAX = 200
