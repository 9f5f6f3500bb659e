"""Pools of connections, each for the calls that can share it."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Optional, Union

import httpx

from .options import Options
from .steps import BAD_REQUEST, LOCATION, MULTIPLE_CHOICES, Request


class Connections:
    """The pools of the threads of one process.

    A thread that is interrupted by a signal may hold the lock of a pool. So a call that a signal handler makes within another call of its
    thread has a pool of its own.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        # By the number of calls that a thread has interrupted.
        self._pools = {0: self._make()}
        self._thread = threading.local()

    @contextmanager
    def use(self) -> Generator[httpx.Client]:
        depth: int = getattr(self._thread, "depth", 0)
        self._thread.depth = depth + 1
        try:
            yield self._pools.get(depth) or self._pools.setdefault(depth, self._make())
        finally:
            self._thread.depth = depth

    def close(self) -> None:
        for pool in [*self._pools.values()]:
            pool.close()

    def _make(self) -> httpx.Client:
        return httpx.Client(**settings(self._options), event_hooks={"response": [rename_location]})


class AsyncConnections:
    """The pools of the loops of one process. Connections belong to the loop that has made them."""

    def __init__(self, options: Options) -> None:
        self._options = options
        # This pool belongs to the first loop. It is made here so that settings which are wrong are refused at once.
        self._first: Optional[httpx.AsyncClient] = self._make()
        self._pools: dict[asyncio.AbstractEventLoop, httpx.AsyncClient] = {}
        # Each thread may run a loop.
        self._lock = threading.Lock()

    def current(self) -> httpx.AsyncClient:
        """The pool of the loop that runs."""
        loop = asyncio.get_running_loop()
        with self._lock:
            pool = self._pools.get(loop)
            if pool is None:
                pool, self._first = self._first or self._make(), None
                # The connections of a loop that is closed can't be closed any more.
                self._pools = {other: used for other, used in self._pools.items() if not other.is_closed()}
                self._pools[loop] = pool
            return pool

    async def close(self) -> None:
        await self.current().aclose()

    def _make(self) -> httpx.AsyncClient:
        async def rename(response: httpx.Response) -> None:
            rename_location(response)

        return httpx.AsyncClient(**settings(self._options), event_hooks={"response": [rename]})


def settings(options: Options) -> dict[str, Any]:
    return {
        # httpx logs addresses.
        "base_url": httpx.URL(options.url).copy_with(userinfo=b""),
        "verify": options.verify,
        "http2": options.http2,
        "headers": options.headers,
        "limits": LIMITS,
        "timeout": options.timeout_s,
    }


def rename_location(response: httpx.Response) -> None:
    """Hides the address of a redirect from httpx, which parses it and raises for some even if it follows none."""
    if MULTIPLE_CHOICES <= response.status_code < BAD_REQUEST and "Location" in response.headers:
        response.headers[LOCATION] = response.headers.pop("Location")


def build_request(http: Union[httpx.Client, httpx.AsyncClient], options: Options, request: Request, token: Optional[str]) -> httpx.Request:
    """A request of httpx."""
    headers = dict(request.headers)
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    elif options.userinfo is not None:
        headers["Authorization"] = "Basic " + base64.b64encode(":".join(options.userinfo).encode()).decode()
    if request.closes and not options.http2:
        headers["Connection"] = "close"
    timeout = httpx.Timeout(options.timeout_s, read=request.timeout_s or options.timeout_s)
    return http.build_request(request.method, request.target, headers=headers, content=request.body, timeout=timeout)


# Each follower has a connection, but over HTTP/2.
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20)
