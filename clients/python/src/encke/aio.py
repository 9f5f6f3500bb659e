"""The client for asyncio. `Encke` documents its methods, which are the same."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Any, Callable, Optional, TypeVar, Union, cast

import httpx

from . import pools, process, streams, subscriptions
from .connections import AsyncConnections, build_request
from .follower import Follower, Notice, Record, Start, Streams
from .options import Options, Retry, Token
from .pools import JobState, Posted
from .producer import Producer
from .steps import SUCCESS, Answer, Call, Caller, Open, Opened, Receive, RenewToken, Send, Sleep, Step, Steps
from .streams import BEGINNING, Appended, Page, StreamInfo, Writers
from .subscriptions import Wake
from .tokens import AsyncTokens

T = TypeVar("T")


class AsyncEncke:
    """As `Encke`, with coroutines. The function that makes tokens may be a coroutine function.

    Each loop of asyncio has connections and producers of its own, so a client outlives `asyncio.run`.
    """

    def __init__(
        self,
        url: str,
        *,
        token: Optional[Token] = None,
        verify: Union[ssl.SSLContext, bool] = True,
        http2: bool = False,
        headers: Optional[Mapping[str, str]] = None,
        timeout_s: float = 30.0,
        quiet_s: float = 75.0,
        retry: Optional[Retry] = None,
    ) -> None:
        self.options = Options(url, token, verify, http2, headers or {}, timeout_s, quiet_s, retry or Retry())
        self._caller = Caller(self.options)
        self._session = AsyncSession(self._caller)

    # Streams

    async def create(
        self,
        stream: str,
        content_type: str = "application/json",
        data: Any = None,
        *,
        ttl_s: Optional[int] = None,
        expires_at: Optional[str] = None,
        closed: bool = False,
        ack: Optional[str] = None,
        retention: Optional[str] = None,
        metadata: Optional[Mapping[str, Any]] = None,
        owner: Optional[str] = None,
        producer_timeout_s: Optional[int] = None,
    ) -> bool:
        """Creates a stream, with `data` as its first record; false if it is there with the same settings."""
        call = streams.create(
            stream,
            content_type,
            data,
            ttl_s=ttl_s,
            expires_at=expires_at,
            closed=closed,
            ack=ack,
            retention=retention,
            metadata=metadata,
            owner=owner,
            producer_timeout_s=producer_timeout_s,
        )
        created = await self._call(call)
        if created:
            self._process_session.writers.created(stream, content_type)
        return created

    async def append(
        self,
        stream: str,
        data: Any,
        *,
        producer: Optional[Producer] = None,
        content_type: Optional[str] = None,
        if_match: Optional[str] = None,
    ) -> Appended:
        """Appends once: a JSON value to a stream of JSON, text or bytes to another.

        The request is numbered, and repeated with its number. After an error with `may_be_done` the append was made or never will be,
        once another append of this client was made. With `if_match` it is made only if the stream ends at that offset. Without
        `content_type` the client asks for it before its first append, which needs the right to read.
        """
        return cast(
            Appended,
            await self.append_all(stream, [streams.snapshot(data)], producer=producer, content_type=content_type, if_match=if_match),
        )

    async def append_all(
        self,
        stream: str,
        messages: Iterable[Any],
        *,
        producer: Optional[Producer] = None,
        content_type: Optional[str] = None,
        if_match: Optional[str] = None,
    ) -> Optional[Appended]:
        """Appends messages in their order, those of JSON in batches; none if there are none."""
        writers = self._process_session.writers
        producer = producer or writers.producer(stream)
        async with producer.async_turn(stream, self.options.retry.give_up_s):
            return await self._run(writers.append(stream, messages, producer, content_type, if_match))

    async def close_stream(self, stream: str, reason: Optional[str] = None) -> str:
        """Ends a stream, as `done`, `failed` or `stopped`; its last offset."""
        return await self._call(streams.close(stream, reason))

    async def read(self, stream: str, from_: str = BEGINNING, *, last: Optional[int] = None) -> Page:
        """All that a stream has behind an offset, or its last messages, in memory."""
        return await self._run(streams.read(self._caller, stream, from_, last))

    def follow(
        self,
        streams: Streams,
        *,
        from_: Optional[str] = None,
        last: Optional[int] = None,
        after: Optional[str] = None,
        times: bool = False,
        on_notice: Optional[Callable[[Notice], None]] = None,
    ) -> AsyncFollowing:
        """The records of a stream, of several, or of a pattern (`chat/**`), each once, as long as they come.

        Begins at the beginning, at an offset (`from_`), at the last messages (`last`), or behind the `id` of a record of the same streams
        (`after`). Several streams can have an offset each, as a mapping. Connects again after every cut, and raises when records behind
        its position are removed (`GoneError`), or when the server refuses it for good.
        """
        return AsyncFollowing(self, Follower(self._caller, Start(streams, from_, last, after, times, on_notice)))

    async def head(self, stream: str) -> StreamInfo:
        return await self._run(streams.head(self._caller, stream))

    async def list(self, prefix: str = "") -> AsyncIterator[StreamInfo]:
        """The streams whose names begin with a prefix, in the order of their names."""
        after: Optional[str] = None
        while True:
            page, after = await self._call(streams.page_of_list(prefix, after))
            for info in page:
                yield info
            if after is None:
                return

    async def truncate(self, stream: str, before: str) -> str:
        """Removes all records before an offset, or all (`NOW`); where the rest begins."""
        return await self._call(streams.truncate(stream, before))

    async def delete(self, stream: str) -> None:
        await self._call(streams.delete(stream))
        self._process_session.writers.forget(stream)

    async def fork(self, stream: str, source: str, *, at: Optional[str] = None) -> bool:
        """Creates a stream that begins with the records of another, up to its end or up to an offset."""
        return await self._call(streams.fork(stream, source, at))

    async def stop(self, stream: str) -> None:
        """Asks the writer of a stream to stop: it learns it by `Appended.stop_requested`."""
        await self._call(streams.stop(stream))

    # Jobs

    async def create_pool(self, pool: str, type: str = "claim", **settings: Any) -> bool:
        """Creates a pool, with settings such as `ack_ms`; false if it is there with the same settings."""
        return await self._call(pools.create(pool, type, settings))

    async def post(
        self,
        pool: str,
        data: Any,
        *,
        content_type: Optional[str] = None,
        key: Optional[str] = None,
        slot: Optional[int] = None,
        wait_s: Optional[int] = None,
        if_connected: bool = False,
    ) -> Posted:
        """Posts a job: bytes or text as they are, anything else as JSON.

        With `wait_s` it waits for the result, which is missing when the time is over; 502 `job_failed` says that all attempts have failed.
        A cut may leave a job that was posted: then the error has `may_be_done`, and the request is not repeated.
        """
        timeout_s = self.options.timeout_s
        return await self._call(pools.post(pool, data, content_type, key, slot, wait_s, if_connected, timeout_s))

    async def job(self, pool: str, job: int, *, token: Optional[str] = None) -> JobState:
        """A job as the server sees it. Callers without `read` at the pool need the token of `Posted`."""
        return await self._call(pools.state(pool, job, token))

    # Subscriptions of workers

    async def subscribe(
        self,
        subscription: str,
        *,
        pattern: Optional[str] = None,
        streams: Optional[Iterable[str]] = None,
        wake_stream: Optional[str] = None,
        webhook_url: Optional[str] = None,
        lease_ttl_ms: Optional[int] = None,
        description: Optional[str] = None,
    ) -> bool:
        """Creates a subscription: a webhook with `webhook_url`, or a pull-wake with `wake_stream`."""
        return await self._call(
            subscriptions.subscribe(
                subscription,
                {
                    "type": "pull-wake" if webhook_url is None else "webhook",
                    "pattern": pattern,
                    "streams": None if streams is None else [*streams],
                    "wake_stream": wake_stream,
                    "webhook": None if webhook_url is None else {"url": webhook_url},
                    "lease_ttl_ms": lease_ttl_ms,
                    "description": description,
                },
            )
        )

    async def unsubscribe(self, subscription: str) -> None:
        await self._call(subscriptions.unsubscribe(subscription))

    async def claim(self, subscription: str, worker: str) -> Optional[Wake]:
        """The work of a subscription; none if there is none, or another worker has it."""
        return await self._run(subscriptions.claim(self._caller, subscription, worker))

    async def ack(self, wake: Wake, offsets: Mapping[str, str], *, done: bool = False) -> bool:
        """Says up to where the streams are done, begins the lease anew, and ends the wake if it is `done`; whether there is more work."""
        return await self._call(subscriptions.ack(wake, offsets, done))

    async def release(self, wake: Wake) -> None:
        """Gives the work back."""
        await self._call(subscriptions.release(wake))

    async def jwks(self) -> Mapping[str, Any]:
        """The keys with which the server signs calls of webhooks; see `verify_webhook`."""
        return await self._call(subscriptions.jwks())

    # Connections

    async def close(self) -> None:
        """Closes all connections, with asyncio those of the loop that runs."""
        if self._session.process == process.identity():
            await self._session.connections.close()

    async def __aenter__(self) -> AsyncEncke:
        return self

    async def __aexit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        await self.close()

    async def _call(self, call: Call[T]) -> T:
        return await self._run(self._caller.call(call))

    async def _run(self, steps: Steps[T]) -> T:
        return await Driver(self).run(steps)

    @property
    def _process_session(self) -> AsyncSession:
        """The session of this process."""
        if self._session.process != process.identity():
            self._session = AsyncSession(self._caller)
        return self._session


class AsyncSession:
    """The connections, the token and the producers of a client in one process."""

    def __init__(self, caller: Caller) -> None:
        self.process = process.identity()
        self.connections = AsyncConnections(caller.options)
        self.tokens = AsyncTokens(caller.options)
        self._caller = caller
        self._writers: dict[asyncio.AbstractEventLoop, Writers] = {}
        self._lock = threading.Lock()

    @property
    def writers(self) -> Writers:
        """Those of the loop that runs. A new loop takes over those of a closed one, so its appends are behind the earlier ones."""
        loop = asyncio.get_running_loop()
        with self._lock:
            writers = self._writers.get(loop)
            if writers is None:
                closed = next((other for other in self._writers if other.is_closed()), None)
                writers = self._writers[loop] = Writers(self._caller) if closed is None else self._writers.pop(closed)
            return writers


class AsyncFollowing:
    """The records of `AsyncEncke.follow`. `position` is where another one continues: an offset, or an id of several streams."""

    def __init__(self, client: AsyncEncke, follower: Follower) -> None:
        self._follower = follower
        self._driver = Driver(client)

    @property
    def position(self) -> Optional[str]:
        """Behind all records that were received, of which the last few may not have been taken yet."""
        return self._follower.feed.position

    def __aiter__(self) -> AsyncFollowing:
        return self

    async def __anext__(self) -> Record:
        record = await self._driver.run(self._follower.next())
        if record is None:
            raise StopAsyncIteration
        return record

    async def close(self) -> None:
        """Ends the iteration. A `next` that waits in another thread or task ends when it receives something, which a heartbeat is, too."""
        self._follower.is_closed = True
        await self._driver.close()

    async def __aenter__(self) -> AsyncFollowing:
        return self

    async def __aexit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        await self.close()


class Driver:
    """Does the steps of one operation at a time, with at most one open response."""

    def __init__(self, client: AsyncEncke) -> None:
        self._client = client
        self._options = client.options
        self._http: Optional[httpx.AsyncClient] = None
        self._response: Optional[httpx.Response] = None
        self._pieces: Optional[AsyncIterator[bytes]] = None
        self._is_running = False

    async def run(self, steps: Steps[T]) -> T:
        http = self._client._process_session.connections.current()
        if self._http is not http:
            # The response is that of another loop or process.
            self._http, self._response, self._pieces, self._is_running = http, None, None, False
        if self._is_running:
            raise RuntimeError("another task waits for the next record of this follower")
        self._is_running = True
        outcome: object = None
        try:
            while True:
                try:
                    step = steps.send(outcome)
                except StopIteration as end:
                    return cast(T, end.value)
                outcome = await self._do(http, step)
        except BaseException:
            # Also a cancellation: what the response had is not received twice, since the position is not behind it.
            await self.close()
            raise
        finally:
            self._is_running = False
            steps.close()

    async def _do(self, http: httpx.AsyncClient, step: Step) -> object:
        if isinstance(step, Send):
            return await self._send(http, step)
        if isinstance(step, Open):
            return await self._open(http, step)
        if isinstance(step, Receive):
            return await self._receive()
        if isinstance(step, RenewToken):
            return await self._client._process_session.tokens.token(step.refused)
        if isinstance(step, Sleep):
            await asyncio.sleep(step.seconds)
        else:
            await self.close()
        return None

    async def _send(self, http: httpx.AsyncClient, step: Send) -> object:
        try:
            response = await http.send(build_request(http, self._options, step.request, step.token))
        except httpx.RequestError as error:
            return error
        return Answer(response.status_code, response.headers, response.content, response.url)

    async def _open(self, http: httpx.AsyncClient, step: Open) -> object:
        try:
            response = await http.send(build_request(http, self._options, step.request, step.token), stream=True)
        except httpx.RequestError as error:
            return error
        self._response = response
        if response.status_code == SUCCESS:
            self._pieces = response.aiter_raw()
            process.open_bodies.add(self._pieces)
            return Opened(response.headers, response.url)
        try:
            return Answer(response.status_code, response.headers, await response.aread(), response.url)
        except httpx.RequestError as error:
            return error
        finally:
            await self.close()

    async def _receive(self) -> object:
        if self._pieces is None:
            return None
        try:
            return await self._pieces.__anext__()
        except StopAsyncIteration:
            await self.close()
            return None
        except httpx.RequestError as error:
            await self.close()
            return error

    async def close(self) -> None:
        response, self._response = self._response, None
        self._pieces = None
        if response is not None and self._http is self._client._process_session.connections.current():
            await response.aclose()
