"""The blocking client."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Callable, Optional, TypeVar, Union, cast

import httpx

from . import pools, process, streams, subscriptions
from .connections import Connections, build_request
from .follower import Follower, Notice, Record, Start, Streams
from .options import Options, Retry, Token
from .pools import JobState, Posted
from .producer import Producer
from .steps import SUCCESS, Answer, Call, Caller, Open, Opened, Receive, RenewToken, Send, Sleep, Step, Steps
from .streams import BEGINNING, Appended, Page, StreamInfo, Writers
from .subscriptions import Wake
from .tokens import Tokens

T = TypeVar("T")


class Encke:
    """A server, for programs that block. Threads may share one. `AsyncEncke` has the same methods as coroutines.

    A process that is forked has connections and producers of its own.

    `token` is one for all requests, or a function that makes one. The function is called before the first request, and again when the
    server refuses what it has made. A token is visible ASCII. Requests are repeated after cuts and refusals for a time, as `retry` says.
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
        self._session = Session(self._caller)

    # Streams

    def create(
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
        created = self._call(call)
        if created:
            self._process_session.writers.created(stream, content_type)
        return created

    def append(
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
        return cast(Appended, self.append_all(stream, [data], producer=producer, content_type=content_type, if_match=if_match))

    def append_all(
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
        with producer.turn(stream, self.options.retry.give_up_s):
            return self._run(writers.append(stream, messages, producer, content_type, if_match))

    def close_stream(self, stream: str, reason: Optional[str] = None) -> str:
        """Ends a stream, as `done`, `failed` or `stopped`; its last offset."""
        return self._call(streams.close(stream, reason))

    def read(self, stream: str, from_: str = BEGINNING, *, last: Optional[int] = None) -> Page:
        """All that a stream has behind an offset, or its last messages, in memory."""
        return self._run(streams.read(self._caller, stream, from_, last))

    def follow(
        self,
        streams: Streams,
        *,
        from_: Optional[str] = None,
        last: Optional[int] = None,
        after: Optional[str] = None,
        times: bool = False,
        on_notice: Optional[Callable[[Notice], None]] = None,
    ) -> Following:
        """The records of a stream, of several, or of a pattern (`chat/**`), each once, as long as they come.

        Begins at the beginning, at an offset (`from_`), at the last messages (`last`), or behind the `id` of a record of the same streams
        (`after`). Several streams can have an offset each, as a mapping. Connects again after every cut, and raises when records behind
        its position are removed (`GoneError`), or when the server refuses it for good.
        """
        return Following(self, Follower(self._caller, Start(streams, from_, last, after, times, on_notice)))

    def head(self, stream: str) -> StreamInfo:
        return self._run(streams.head(self._caller, stream))

    def list(self, prefix: str = "") -> Iterator[StreamInfo]:
        """The streams whose names begin with a prefix, in the order of their names."""
        after: Optional[str] = None
        while True:
            page, after = self._call(streams.page_of_list(prefix, after))
            yield from page
            if after is None:
                return

    def truncate(self, stream: str, before: str) -> str:
        """Removes all records before an offset, or all (`NOW`); where the rest begins."""
        return self._call(streams.truncate(stream, before))

    def delete(self, stream: str) -> None:
        self._call(streams.delete(stream))
        self._process_session.writers.forget(stream)

    def fork(self, stream: str, source: str, *, at: Optional[str] = None) -> bool:
        """Creates a stream that begins with the records of another, up to its end or up to an offset."""
        return self._call(streams.fork(stream, source, at))

    def stop(self, stream: str) -> None:
        """Asks the writer of a stream to stop: it learns it by `Appended.stop_requested`."""
        self._call(streams.stop(stream))

    # Jobs

    def create_pool(self, pool: str, type: str = "claim", **settings: Any) -> bool:
        """Creates a pool, with settings such as `ack_ms`; false if it is there with the same settings."""
        return self._call(pools.create(pool, type, settings))

    def post(
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
        return self._call(pools.post(pool, data, content_type, key, slot, wait_s, if_connected, timeout_s))

    def job(self, pool: str, job: int, *, token: Optional[str] = None) -> JobState:
        """A job as the server sees it. Callers without `read` at the pool need the token of `Posted`."""
        return self._call(pools.state(pool, job, token))

    # Subscriptions of workers

    def subscribe(
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
        return self._call(
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

    def unsubscribe(self, subscription: str) -> None:
        self._call(subscriptions.unsubscribe(subscription))

    def claim(self, subscription: str, worker: str) -> Optional[Wake]:
        """The work of a subscription; none if there is none, or another worker has it."""
        return self._run(subscriptions.claim(self._caller, subscription, worker))

    def ack(self, wake: Wake, offsets: Mapping[str, str], *, done: bool = False) -> bool:
        """Says up to where the streams are done, begins the lease anew, and ends the wake if it is `done`; whether there is more work."""
        return self._call(subscriptions.ack(wake, offsets, done))

    def release(self, wake: Wake) -> None:
        """Gives the work back."""
        self._call(subscriptions.release(wake))

    def jwks(self) -> Mapping[str, Any]:
        """The keys with which the server signs calls of webhooks; see `verify_webhook`."""
        return self._call(subscriptions.jwks())

    # Connections

    def close(self) -> None:
        """Closes all connections, with asyncio those of the loop that runs."""
        if self._session.process == process.identity():
            self._session.connections.close()

    def __enter__(self) -> Encke:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.close()

    def _call(self, call: Call[T]) -> T:
        return self._run(self._caller.call(call))

    def _run(self, steps: Steps[T]) -> T:
        return Driver(self).run(steps)

    @property
    def _process_session(self) -> Session:
        """The session of this process."""
        if self._session.process != process.identity():
            self._session = Session(self._caller)
        return self._session


class Session:
    """The connections, the token and the producers of a client in one process."""

    def __init__(self, caller: Caller) -> None:
        self.process = process.identity()
        self.connections = Connections(caller.options)
        self.tokens = Tokens(caller.options)
        self.writers = Writers(caller)


class Following:
    """The records of `Encke.follow`. `position` is where another one continues: an offset, or an id of several streams."""

    def __init__(self, client: Encke, follower: Follower) -> None:
        self._follower = follower
        self._driver = Driver(client)

    @property
    def position(self) -> Optional[str]:
        """Behind all records that were received, of which the last few may not have been taken yet."""
        return self._follower.feed.position

    def __iter__(self) -> Following:
        return self

    def __next__(self) -> Record:
        record = self._driver.run(self._follower.next())
        if record is None:
            raise StopIteration
        return record

    def close(self) -> None:
        """Ends the iteration. A `next` that waits in another thread or task ends when it receives something, which a heartbeat is, too."""
        self._follower.is_closed = True
        self._driver.close_idle()

    def __enter__(self) -> Following:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.close()


class Driver:
    """Does the steps of one operation at a time, with at most one open response."""

    def __init__(self, client: Encke) -> None:
        self._client = client
        self._options = client.options
        self._attach(client._process_session)

    def _attach(self, session: Session) -> None:
        self._session = session
        self._response: Optional[httpx.Response] = None
        self._pieces: Iterator[bytes] = iter(())
        # The steps that are done. No lock for all of their time: a signal handler may raise before the `try` that would release it.
        self._running: Optional[Steps[Any]] = None
        self._lock = threading.RLock()

    def run(self, steps: Steps[T]) -> T:
        if self._session is not self._client._process_session:
            self._attach(self._client._process_session)
        outcome: object = None
        try:
            with self._lock:
                if self._running is not None:
                    raise RuntimeError("another thread waits for the next record of this follower")
                self._running = steps
            while True:
                try:
                    step = steps.send(outcome)
                except StopIteration as end:
                    return cast(T, end.value)
                outcome = self._do(step)
        except BaseException:
            if self._running is steps:
                self.close()
            raise
        finally:
            if self._running is steps:
                self._running = None
            steps.close()

    def _do(self, step: Step) -> object:
        if isinstance(step, Send):
            return self._send(step)
        if isinstance(step, Open):
            return self._open(step)
        if isinstance(step, Receive):
            return self._receive()
        if isinstance(step, RenewToken):
            return self._session.tokens.token(step.refused)
        if isinstance(step, Sleep):
            time.sleep(step.seconds)
        else:
            self.close()
        return None

    def _send(self, step: Send) -> object:
        try:
            with self._session.connections.use() as http:
                response = http.send(build_request(http, self._options, step.request, step.token))
        except httpx.RequestError as error:
            return error
        return Answer(response.status_code, response.headers, response.content, response.url)

    def _open(self, step: Open) -> object:
        try:
            with self._session.connections.use() as http:
                response = http.send(build_request(http, self._options, step.request, step.token), stream=True)
        except httpx.RequestError as error:
            return error
        self._response = response
        if response.status_code == SUCCESS:
            self._pieces = response.iter_raw()
            process.open_bodies.add(self._pieces)
            return Opened(response.headers, response.url)
        try:
            with self._session.connections.use():
                return Answer(response.status_code, response.headers, response.read(), response.url)
        except httpx.RequestError as error:
            return error
        finally:
            self.close()

    def _receive(self) -> object:
        try:
            with self._session.connections.use():
                piece = next(self._pieces, None)
        except httpx.RequestError as error:
            self.close()
            return error
        if piece is None:
            self.close()
        return piece

    def close_idle(self) -> None:
        """Closes what is open, unless a thread uses it."""
        if self._session is self._client._process_session:
            with self._lock:
                if self._running is None:
                    self.close()

    def close(self) -> None:
        response, self._response = self._response, None
        self._pieces = iter(())
        if response is not None and self._session is self._client._process_session:
            with self._session.connections.use():
                response.close()
