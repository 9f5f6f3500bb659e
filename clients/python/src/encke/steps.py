"""Operations without I/O.

Each operation of a client is a generator: it yields what is to be done (`Send`, `Sleep`, ...) and gets the outcome. `client.py` does these
steps with blocking calls and `aio.py` with coroutines, so the rules for repetitions, positions and numbers are written once.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, Generic, Optional, TypeVar, Union
from urllib.parse import quote, urlencode

import httpx

from .errors import EnckeError, UnreachableError, refusal
from .options import Backoff, Options

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """A request but for its credentials."""

    method: str
    path: str
    query: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    # Seconds without a byte of the response; `Options.timeout_s` if it is left out.
    timeout_s: Optional[float] = None
    # A token for this request alone, such as that of a wake.
    token: Optional[str] = None

    @property
    def target(self) -> str:
        query = urlencode(self.query, quote_via=quote, safe="")
        return f"{self.path}?{query}" if query else self.path


@dataclass(frozen=True)
class Answer:
    """A whole response."""

    status: int
    headers: httpx.Headers
    body: bytes

    def error(self) -> EnckeError:
        return refusal(self.status, self.headers, self.body)


class Opened:
    """A response 200 whose body is received in pieces."""


@dataclass(frozen=True)
class Send:
    """Sends a request and receives the response: an `Answer`, or the error of the transport."""

    request: Request
    token: Optional[str]


@dataclass(frozen=True)
class Open:
    """Sends a request: `Opened`, an `Answer` with another status than 200, or the error of the transport."""

    request: Request
    token: Optional[str]


@dataclass(frozen=True)
class Receive:
    """The next bytes of what is open: none at its end, or the error of the transport. Both close it."""


@dataclass(frozen=True)
class Close:
    """Closes what is open."""


@dataclass(frozen=True)
class Sleep:
    seconds: float


@dataclass(frozen=True)
class RenewToken:
    """Calls the function that makes tokens: a token."""


Step = Union[Send, Open, Receive, Close, Sleep, RenewToken]
Steps = Generator[Step, Any, T]


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request with a whole response, and what the response means."""

    request: Request
    parse: Callable[[Answer], T]
    # Whether a second copy of the request does no harm.
    repeatable: bool = True
    # Seconds for repetitions; those of `Options.retry` if it is left out.
    give_up_s: Optional[float] = None
    # Codes of status 503 that are the answer, and no reason to come again.
    final: frozenset[str] = frozenset()
    # Statuses of a repetition that say that an earlier attempt was carried out.
    done_before: frozenset[int] = frozenset()


class Caller:
    """Makes calls with the token of a client, which all its operations share."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._token = options.token if isinstance(options.token, str) else None

    def token(self) -> Steps[Optional[str]]:
        if self._token is None and self.options.token is not None:
            self._token = yield RenewToken()
        return self._token

    def renew(self, refused: Optional[str]) -> Steps[bool]:
        """Whether there is another token than the one that was refused."""
        if not callable(self.options.token):
            return False
        if self._token == refused:
            self._token = yield RenewToken()
        return self._token != refused

    def call(self, call: Call[T]) -> Steps[T]:
        """Makes a call, and repeats it as far as it may be repeated."""
        give_up_s = self.options.retry.give_up_s if call.give_up_s is None else call.give_up_s
        backoff = Backoff(self.options.retry, give_up_s)
        may_be_done = renewed = False
        while True:
            own_token = call.request.token
            token = (yield from self.token()) if own_token is None else own_token
            outcome = yield Send(call.request, token)
            retry_after: Optional[str] = None
            if isinstance(outcome, Answer):
                if outcome.status == UNAUTHORIZED and own_token is None and not renewed:
                    renewed = yield from self.renew(token)
                    if renewed:
                        continue
                if outcome.status < BAD_REQUEST or (may_be_done and outcome.status in call.done_before):
                    return call.parse(outcome)
                error = outcome.error()
                again = outcome.status in REFUSED_FOR_NOW and error.code not in call.final
                if outcome.status in LOST_BY_PROXY and call.repeatable:
                    again = may_be_done = True
                retry_after = outcome.headers.get("Retry-After")
            else:
                error = unreachable(outcome)
                if not is_unsent(outcome):
                    may_be_done = True
                again = is_passing(outcome) and (call.repeatable or is_unsent(outcome))
            wait = backoff.wait(retry_after) if again else None
            if wait is None:
                error.may_be_done = may_be_done
                raise error
            yield Sleep(wait)


def unreachable(cause: Exception) -> UnreachableError:
    error = UnreachableError(f"{type(cause).__name__}: {cause}")
    error.__cause__ = cause
    return error


def is_unsent(error: Exception) -> bool:
    """Whether the request certainly did not reach the server."""
    return isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol))


def is_passing(error: Optional[BaseException]) -> bool:
    """Whether another attempt can succeed: not with a certificate that is refused, or an address that is none."""
    while error is not None:
        if isinstance(error, (ssl.SSLCertVerificationError, httpx.UnsupportedProtocol)):
            return False
        error = error.__cause__ or error.__context__
    return True


def path(*segments: str) -> str:
    """A path below /v1/; the slashes of a stream's name stay."""
    return "/v1/" + "/".join(quote(segment.strip("/"), safe="/") for segment in segments)


FOREVER = math.inf
BAD_REQUEST = 400
UNAUTHORIZED = 401
# The server has done nothing, and says when to come again.
REFUSED_FOR_NOW = {429, 503}
# A proxy had no response from the server: the request may have been carried out.
LOST_BY_PROXY = {502, 504}
