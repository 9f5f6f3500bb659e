"""Operations without I/O.

Each operation of a client is a generator: it yields what is to be done (`Send`, `Sleep`, ...) and gets the outcome. `client.py` does these
steps with blocking calls and `aio.py` with coroutines, so the rules for repetitions, positions and numbers are written once.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import ssl
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Generic, Optional, TypeVar, Union
from urllib.parse import quote, unquote, urlencode

import httpx

from .errors import BAD_TOKEN, HTTP_ERROR, NO_TOKEN, EnckeError, NotEnckeError, UnreachableError, refusal
from .options import Backoff, Options, check_fields

log = logging.getLogger("encke")
T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """A request but for its credentials."""

    method: str
    path: str
    # A query may have a signature, and fields a token of a job.
    query: Sequence[tuple[str, str]] = field(default=(), repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    body: bytes = field(default=b"", repr=False)
    # Seconds without a byte of the response; `Options.timeout_s` if it is left out.
    timeout_s: Optional[float] = None
    # A token for this request alone, such as that of a wake.
    token: Optional[str] = field(default=None, repr=False)
    # The address of a redirect, instead of the path and the query.
    url: Optional[str] = field(default=None, repr=False)
    # Whether the connection is closed behind the response.
    closes: bool = False

    def __post_init__(self) -> None:
        check_fields(self.headers)

    def __str__(self) -> str:
        return f"{self.method} {unquote(self.path)}"

    @property
    def target(self) -> str:
        if self.url is not None:
            return self.url
        query = urlencode(self.query, quote_via=quote, safe="")
        return f"{self.path}?{query}" if query else self.path


@dataclass(frozen=True)
class Answer:
    """A whole response."""

    status: int
    headers: httpx.Headers = field(repr=False)
    body: bytes = field(repr=False)
    # The address that has responded.
    url: httpx.URL = field(repr=False)
    # An earlier copy of the request may have reached the server.
    is_repetition: bool = False

    def error(self) -> EnckeError:
        return refusal(self.status, self.headers, self.body)


@dataclass(frozen=True)
class Opened:
    """A response 200 whose body is received in pieces."""

    headers: httpx.Headers = field(repr=False)
    url: httpx.URL = field(repr=False)


@dataclass(frozen=True)
class Send:
    """Sends a request and receives the response: an `Answer`, or the error of the transport."""

    request: Request
    token: Optional[str] = field(repr=False)


@dataclass(frozen=True)
class Open:
    """Sends a request: `Opened`, an `Answer` with another status than 200, or the error of the transport."""

    request: Request
    token: Optional[str] = field(repr=False)


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
    """Gets a token, from the function that makes them if the client has none or has the refused one; or the error of the function."""

    refused: Optional[str] = field(repr=False)


Step = Union[Send, Open, Receive, Close, Sleep, RenewToken]
Steps = Generator[Step, Any, T]


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request with a whole response, and what the response means."""

    request: Request
    # The statuses of a success that the protocol promises.
    statuses: frozenset[int]
    # Raises a KeyError, TypeError or ValueError if the response lacks what the protocol promises.
    parse: Callable[[Answer], T]
    # Whether a second copy of the request does no harm.
    repeatable: bool = True
    # Seconds for repetitions; those of `Options.retry` if it is left out.
    give_up_s: Optional[float] = None
    # Codes of status 503 that are the answer, and no reason to come again.
    final: frozenset[str] = frozenset()
    # Statuses of a repetition that say that an earlier attempt was carried out.
    statuses_of_done: frozenset[int] = frozenset()


class Caller:
    """Makes calls with the options of a client."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def token(self) -> Steps[Optional[str]]:
        token = self.options.token
        return (yield from self._made(None)) if callable(token) else token

    def renew(self, refused: Optional[str], forever: Optional[Backoff] = None) -> Steps[bool]:
        """Whether there is another token than the one that was refused. With `forever` a renewal that fails is repeated."""
        while callable(self.options.token):
            try:
                return (yield from self._made(refused)) != refused
            except EnckeError as error:
                wait = None if forever is None else forever.wait()
                if wait is None:
                    raise
                log.warning("the token is not renewed: %s", error)
            yield Sleep(wait)
        return False

    def _made(self, refused: Optional[str]) -> Steps[str]:
        made: Union[str, Exception] = yield RenewToken(refused)
        if isinstance(made, EnckeError) and made.code in {NO_TOKEN, BAD_TOKEN}:
            # Several calls may have this one.
            raise copy.copy(made)
        if isinstance(made, Exception):
            raise EnckeError(0, NO_TOKEN, f"the function that makes tokens raised {type(made).__name__}: {made}") from made
        return made

    def exchange(self, step: Union[Send, Open]) -> Steps[Any]:
        """Sends a request, also to where it is redirected: the outcome of the step. A redirect that is not followed is an error."""
        redirects = 0
        while True:
            outcome = yield step
            if not (isinstance(outcome, Answer) and MULTIPLE_CHOICES <= outcome.status < BAD_REQUEST):
                return outcome
            redirects += 1
            step = replace(step, request=replace(step.request, url=redirect_target(outcome, redirects)))

    def call(self, call: Call[T]) -> Steps[T]:
        """Makes a call, and repeats it as far as it may be repeated."""
        give_up_s = self.options.retry.give_up_s if call.give_up_s is None else call.give_up_s
        backoff = Backoff(self.options.retry, give_up_s)
        is_patient = give_up_s == FOREVER
        may_be_done = renewed = False
        cuts = foreign = 0
        error: EnckeError
        try:
            while True:
                own_token = call.request.token
                token = (yield from self.token()) if own_token is None else own_token
                outcome = yield from self.exchange(Send(call.request, token))
                retry_after: Optional[str] = None
                if isinstance(outcome, Answer):
                    outcome = replace(outcome, is_repetition=may_be_done)
                    if outcome.status == UNAUTHORIZED and own_token is None and not renewed:
                        renewed = yield from self.renew(token, backoff if is_patient else None)
                        if renewed:
                            continue
                    if outcome.status < BAD_REQUEST or (may_be_done and outcome.status in call.statuses_of_done):
                        try:
                            return parsed(call, outcome)
                        except NotEnckeError as unexpected:
                            # It may answer an earlier request on this connection, which would then answer each request with the one before.
                            error = unexpected
                            foreign += 1
                            call = replace(call, request=replace(call.request, closes=True))
                            may_be_done = True
                            again = call.repeatable and (is_patient or foreign < FOREIGN_RESPONSES_MAX)
                    else:
                        error, retry_after = outcome.error(), outcome.headers.get("Retry-After")
                        again = outcome.status in REFUSED_FOR_NOW and error.code not in call.final
                        if is_foreign(error) or is_uncertain(error, retry_after):
                            may_be_done = True
                            again = again or outcome.status in LOST_BY_PROXY or (is_patient and is_foreign(error))
                            again = again and call.repeatable
                else:
                    error = unreachable(outcome)
                    if not is_unsent(outcome):
                        may_be_done = True
                        cuts += 1
                    again = is_passing(outcome) and (call.repeatable or is_unsent(outcome))
                    # The server may cut the upload of a body that it does not take.
                    again = again and not (cuts >= LARGE_UPLOADS_MAX and len(call.request.body) > LARGE_BODY_BYTES)
                wait = backoff.wait(retry_after) if again else None
                if wait is None:
                    raise error
                log.log(logging.WARNING if is_patient and is_foreign(error) else logging.DEBUG, "%s is sent again: %s", call.request, error)
                yield Sleep(wait)
        except EnckeError as error:
            error.request = str(call.request)
            error.may_be_done = error.may_be_done or may_be_done
            raise


def is_foreign(error: EnckeError) -> bool:
    """Whether another program than Encke has responded, which may have forwarded the request. One that refuses it by 4xx has not."""
    return isinstance(error, NotEnckeError) or (error.code == HTTP_ERROR and error.status >= SERVER_ERROR)


def is_uncertain(error: EnckeError, retry_after: Optional[str]) -> bool:
    """Whether the server may have carried out a request that it refuses."""
    return error.code in UNCERTAIN or (error.code == UNCONFIRMED and not retry_after)


def parsed(call: Call[T], answer: Answer) -> T:
    """The meaning of a response, which is the server's only if it has what the protocol promises."""
    if answer.status < BAD_REQUEST and answer.status not in call.statuses:
        statuses = " or ".join(map(str, sorted(call.statuses)))
        raise NotEnckeError(answer.status, without_secrets(answer.url), f"its status is not {statuses}")
    try:
        return call.parse(answer)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else f"its body can't be read, {error}"
        raise NotEnckeError(answer.status, without_secrets(answer.url), why) from error


def redirect_target(answer: Answer, number: int) -> str:
    """The address of the `number`th redirect in a row, if a token may follow it: of the same origin, or of its host over https."""
    location, here, to = answer.headers.get(LOCATION, ""), answer.url, "an invalid address"
    with contextlib.suppress(httpx.InvalidURL, ValueError):
        target = here.join(location)
        to = without_secrets(target) if location else "no address"
        is_upgrade = (here.scheme, target.scheme) == ("http", "https")
        is_same = target.host == here.host and (is_upgrade or (target.scheme, target.port) == (here.scheme, here.port))
        if location and is_same and answer.status in REDIRECTS_FOLLOWED and number <= REDIRECTS_MAX:
            return str(target)
    allowed = f"only {REDIRECTS_MAX} redirects in a row by 307 or 308, to the same origin or to its host over https, are followed"
    why = f"{without_secrets(here)} redirects to {to}; {allowed}"
    error = EnckeError(answer.status, "redirected", why)
    error.may_be_done = True
    raise error


def without_secrets(url: httpx.URL) -> str:
    """An address without what may be secret: a password and the query."""
    return str(url.copy_with(userinfo=b"", query=None, fragment=None))


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
    """A path below /v1/; the slashes of a stream's name stay.

    Programs that read URLs remove the segments `.` and `..`, also if they are encoded, so a name with one would reach something else.
    """
    for segment in segments:
        if not {".", ".."}.isdisjoint(segment.split("/")):
            raise ValueError(f"the name {segment!r} has a segment that is . or .., which no name may have")
    return "/v1/" + "/".join(quote(segment.strip("/"), safe="/") for segment in segments)


FOREVER = math.inf
SUCCESS = 200
MULTIPLE_CHOICES = 300
# Redirects that keep the method and the body.
REDIRECTS_FOLLOWED = {307, 308}
REDIRECTS_MAX = 5
# The field in which the drivers give the address of a redirect.
LOCATION = "Encke-Client-Location"
BAD_REQUEST = 400
SERVER_ERROR = 500
UNAUTHORIZED = 401
# The server has done nothing, and says when to come again.
REFUSED_FOR_NOW = {429, 503}
# Codes of refused requests that may have been carried out.
UNCERTAIN = {"internal", "log_failed", "no_dispatcher"}
# The same, but not with `Retry-After`.
UNCONFIRMED = "unconfirmed"
# Responses of something else than Encke, after which a call fails. Workers, and followers that had a line, wait for the server.
FOREIGN_RESPONSES_MAX = 5
# A proxy had no response from the server: the request may have been carried out. Those above 511 are of content delivery networks.
LOST_BY_PROXY = {502, 504, *range(520, 525)}
# A larger body is not sent again after this number of cuts.
LARGE_BODY_BYTES = 2 << 20
LARGE_UPLOADS_MAX = 3
