"""The token of a client, which its calls share and one of them renews for all."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Optional

from .errors import EnckeError
from .options import Options


class Made(str):
    """A token as one call of the function has made it: another call may make an equal one."""


class Tokens:
    """The token of the threads of one process."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._token: Optional[Made] = None
        # A signal handler may make a call while its thread makes a token.
        self._lock = threading.RLock()

    def token(self, refused: Optional[str]) -> str:
        """The token, made anew if it is the refused one."""
        token = self._token
        if token is not None and token is not refused:
            return token
        if not self._lock.acquire(timeout=min(self._options.timeout_s, threading.TIMEOUT_MAX)):
            raise late(self._options)
        try:
            if self._token is None or self._token is refused:
                self._token = Made(self._make())
            return self._token
        finally:
            self._lock.release()

    def _make(self) -> str:
        make = self._options.token
        token = make() if callable(make) else make
        if not isinstance(token, str):
            raise TypeError("the function that makes tokens of a blocking client returns a str")
        return token


class AsyncTokens:
    """The token of the loops of one process."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._token: Optional[Made] = None
        self._making: Optional[asyncio.Task[Made]] = None

    async def token(self, refused: Optional[str]) -> str:
        """The token, made anew if it is the refused one."""
        if self._token is not None and self._token is not refused:
            return self._token
        making = self._making
        if making is None or making.done() or making.get_loop() is not asyncio.get_running_loop():
            making = self._making = asyncio.ensure_future(self._make())
        # The end of one of the calls that wait does not end the renewal for the others.
        await asyncio.wait({making}, timeout=self._options.timeout_s)
        if not making.done():
            making.cancel()
        if making.cancelled() or not making.done():
            self._making = None
            raise late(self._options)
        return making.result()

    async def _make(self) -> Made:
        make = self._options.token
        token = make() if callable(make) else make
        if inspect.isawaitable(token):
            token = await token
        if not isinstance(token, str):
            raise TypeError("the function that makes tokens returns a str")
        self._token = Made(token)
        return self._token


def late(options: Options) -> EnckeError:
    return EnckeError(0, "no_token", f"the function that makes tokens has not ended after {options.timeout_s} s")
