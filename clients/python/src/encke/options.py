"""How a client connects, waits and repeats."""

from __future__ import annotations

import math
import random
import re
import ssl
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Callable, Optional, Union

import httpx

# A token, or a function that makes one. A function is called before the first request, and again when the server refuses what it has made.
Token = Union[str, Callable[[], Union[str, Awaitable[str]]]]


@dataclass(frozen=True)
class Retry:
    """Waits between attempts: they double from `first_s` to `most_s`, and jitter takes up to half of each off."""

    first_s: float = 0.25
    most_s: float = 10.0
    # How long one request is repeated, and how long an append waits for earlier ones of its producer. Followers and workers repeat theirs
    # until they are stopped.
    give_up_s: float = 60.0

    def __post_init__(self) -> None:
        # Comparisons with a number that is none are false.
        if not (0 < self.first_s <= self.most_s <= WAIT_S_MAX and self.give_up_s >= 0):
            raise ValueError(f"{self}: 0 < first_s <= most_s <= {WAIT_S_MAX} and give_up_s >= 0")


@dataclass(frozen=True)
class Options:
    """The settings of a client."""

    # The address may have a password; a token and other fields are secrets.
    url: str = field(repr=False)
    token: Optional[Token] = field(default=None, repr=False)
    # As in httpx: a context holds the certificates of an authority, or that of the client.
    verify: Union[ssl.SSLContext, bool] = True
    http2: bool = False
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    # Seconds for a connection, and without a byte of a response.
    timeout_s: float = 30.0
    # Seconds without a line after which a follower connects anew. The server sends a heartbeat every 30 s, `tuning.heartbeat`.
    quiet_s: float = 75.0
    retry: Retry = field(default_factory=Retry)

    def __post_init__(self) -> None:
        if isinstance(self.token, str) and not TOKEN.fullmatch(self.token):
            raise ValueError(BAD_TOKEN_MESSAGE)
        check_fields(self.headers)
        if self.token is not None and self.userinfo is not None:
            raise ValueError("the address has a name or a password, and there is a token: a request can have only one of both")

    @property
    def userinfo(self) -> Optional[tuple[str, str]]:
        """The name and the password of the address."""
        url = httpx.URL(self.url)
        return (url.username, url.password) if url.userinfo else None


def check_fields(fields: Mapping[str, str]) -> None:
    """Refuses fields that can't be sent. The error has no value, which may be a secret."""
    for name, value in fields.items():
        if not (NAME.fullmatch(name) and VALUE.fullmatch(value)):
            raise ValueError(f"the field {name!r} of the request has a character that can't be sent: only ASCII without controls can")


class Backoff:
    """The waits between the attempts at one thing."""

    def __init__(self, retry: Retry, give_up_s: float = math.inf) -> None:
        self._retry = retry
        self._give_up_s = give_up_s
        self.reset()

    def reset(self) -> None:
        """Begins anew, after a success."""
        self._failures = 0
        self._begin: Optional[float] = None

    def wait(self, retry_after: Optional[str] = None) -> Optional[float]:
        """Seconds to the next attempt, at least those of a field `Retry-After` up to its limit; none if it would be too late.

        A `Retry-After` that is a date or no whole number of seconds counts as missing.
        """
        now = time.monotonic()
        if self._begin is None:
            self._begin = now
        longest = min(self._retry.most_s, self._retry.first_s * 2 ** min(self._failures, EXPONENT_MAX))
        self._failures += 1
        # Jitter, so that the clients of a server that was restarted do not come back together. It is no secret.
        wait: float = longest * random.uniform(0.5, 1.0)
        if retry_after is not None and retry_after.isascii() and retry_after.isdecimal():
            # A float, since Python limits the digits of an int.
            wait += min(float(retry_after), RETRY_AFTER_S_MAX)
        return wait if now + wait - self._begin <= self._give_up_s else None


TOKEN = re.compile("[!-~]+")
BAD_TOKEN_MESSAGE = "the token has a character that can't be sent, or none at all: only visible ASCII can"
NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Without spaces around it.
VALUE = re.compile(r"([!-~]([\t -~]*[!-~])?)?")
# The longest `most_s`: an hour.
WAIT_S_MAX = 3600
# The longest wait that a field Retry-After causes. A server that asks for more is asked again after this time.
RETRY_AFTER_S_MAX = 300
# 2 to this power exceeds every quotient of waits.
EXPONENT_MAX = 30
