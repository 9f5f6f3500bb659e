"""The token of a client, which its calls share and one of them renews for all."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Optional, Union

from .errors import BAD_TOKEN, NO_TOKEN, EnckeError
from .options import BAD_TOKEN_MESSAGE, TOKEN, Options


class IssuedToken(str):
    """A token of one call of the function, which differs from an equal one of another call by its identity."""


class Tokens:
    """The token of the threads of one process."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._token: Optional[IssuedToken] = None
        self._failure: Optional[Exception] = None
        # A signal handler may make a call while its thread makes a token.
        self._lock = threading.RLock()

    def token(self, refused: Optional[str]) -> Union[str, Exception]:
        """The token, made anew if it is the refused one, or the error of the function."""
        token = self._token
        if token is not None and token is not refused:
            return token
        failure = self._failure
        if not self._lock.acquire(timeout=min(self._options.timeout_s, threading.TIMEOUT_MAX)):
            return token_timeout(self._options)
        try:
            if self._token is None or self._token is refused:
                if self._failure is not None and self._failure is not failure:
                    # A renewal has failed while this one waited.
                    return self._failure
                self._token = self._make()
                self._failure = None
            return self._token
        except Exception as error:
            self._failure = error
            return error
        finally:
            self._lock.release()

    def _make(self) -> IssuedToken:
        make = self._options.token
        return issued(make() if callable(make) else make)


class AsyncTokens:
    """The token of the loops of one process."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._token: Optional[IssuedToken] = None
        self._making: Optional[asyncio.Task[IssuedToken]] = None

    async def token(self, refused: Optional[str]) -> Union[str, Exception]:
        """The token, made anew if it is the refused one, or the error of the function."""
        if self._token is not None and self._token is not refused:
            return self._token
        making = self._making
        if making is None or making.done() or making.get_loop() is not asyncio.get_running_loop():
            making = self._making = asyncio.ensure_future(self._make())
            # All that wait for it may be cancelled. Then it ends without a reader of its error.
            making.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        # The end of one of the calls that wait does not end the renewal for the others.
        await asyncio.wait({making}, timeout=self._options.timeout_s)
        if not making.done():
            making.cancel()
        if making.cancelled() or not making.done():
            self._making = None
            return token_timeout(self._options)
        error = making.exception()
        return making.result() if not isinstance(error, Exception) else error

    async def _make(self) -> IssuedToken:
        make = self._options.token
        token = make() if callable(make) else make
        if inspect.isawaitable(token):
            token = await token
        self._token = issued(token)
        return self._token


def issued(token: object) -> IssuedToken:
    if not isinstance(token, str):
        raise TypeError(f"the function that makes tokens returns a str, not {type(token).__name__}")
    if not TOKEN.fullmatch(token):
        raise EnckeError(0, BAD_TOKEN, BAD_TOKEN_MESSAGE)
    return IssuedToken(token)


def token_timeout(options: Options) -> EnckeError:
    return EnckeError(0, NO_TOKEN, f"the function that makes tokens has not ended after {options.timeout_s} s")
