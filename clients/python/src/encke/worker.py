"""Workers of a pool: take a job, keep its attempt alive while the handler runs, and report what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import signal
from collections.abc import Awaitable, Generator
from typing import Any, Callable, Optional

from . import pools
from .aio import AsyncEncke
from .client import Encke
from .errors import EnckeError
from .pools import Job, RetryLater
from .steps import Call

log = logging.getLogger("encke")


class AsyncWorker:
    """A worker whose handler is a coroutine function.

    What the handler returns is the result: bytes or text as they are, none for an empty result, anything else as JSON. An exception
    refuses the job, with the exception as the reason; `RetryLater` says when it may come again. While the handler runs the attempt is
    extended by `lease_s`, three times in that time; so the job of a worker that dies goes to another one after `lease_s` at most, or
    after `ack_ms` of the pool if it dies sooner than that. When the attempt is over all the same, the handler is cancelled.
    """

    def __init__(
        self,
        client: AsyncEncke,
        pool: str,
        name: str,
        handler: Callable[[Job], Awaitable[Any]],
        *,
        lease_s: float = 30.0,
        poll_s: int = 20,
    ) -> None:
        self._client = client
        self._pool = pool
        self._name = name
        self._handler = handler
        self._lease_s = lease_s
        self._poll_s = poll_s
        self._is_stopping = False
        self._stopped: Optional[asyncio.Event] = None
        self._loop: Optional[asyncio.AbstractEventLoop] = None

    async def run(self, *, stop_on_signals: bool = False) -> None:
        """Takes jobs until `stop`: the job that runs then is finished, and no other is taken.

        With `stop_on_signals` SIGTERM and SIGINT call `stop`, instead of what the program does with them, as long as this runs. It is for a
        program that does nothing else, and needs the main thread.
        """
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        with self._signals(self._loop) if stop_on_signals else contextlib.nullcontext():
            while not self._is_stopping:
                job = await self._take()
                if job is not None:
                    await self._work(job)

    def stop(self) -> None:
        """Ends `run`. Any thread may call it."""
        self._is_stopping = True
        if self._loop is not None and self._stopped is not None:
            with contextlib.suppress(RuntimeError):  # The loop has ended already.
                self._loop.call_soon_threadsafe(self._stopped.set)

    @contextlib.contextmanager
    def _signals(self, loop: asyncio.AbstractEventLoop) -> Generator[None]:
        installed: list[signal.Signals] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            # Only on Unix can a loop take signals.
            with contextlib.suppress(NotImplementedError):
                loop.add_signal_handler(number, self._interrupt, loop, number)
                installed.append(number)
        try:
            yield
        finally:
            for number in installed:
                loop.remove_signal_handler(number)

    def _interrupt(self, loop: asyncio.AbstractEventLoop, number: signal.Signals) -> None:
        log.info("%s: the worker %s finishes its job", number.name, self._name)
        # The second signal ends the process.
        loop.remove_signal_handler(number)
        self.stop()

    async def _take(self) -> Optional[Job]:
        assert self._stopped is not None, "run has made it"
        call = pools.poll(self._pool, self._name, self._poll_s, self._client.options.timeout_s)
        polled = asyncio.ensure_future(self._client._call(call))
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({polled, stopped}, return_when=asyncio.FIRST_COMPLETED)
            # A job that came together with the stop is done: it has no other worker.
            return polled.result() if polled.done() else None
        finally:
            for task in (polled, stopped):
                task.cancel()
            await asyncio.gather(polled, stopped, return_exceptions=True)

    async def _work(self, job: Job) -> None:
        work = asyncio.ensure_future(self._handle(job))
        beat = asyncio.ensure_future(self._extend(job, work))
        try:
            await asyncio.wait({work})
        finally:
            for task in (work, beat):
                task.cancel()
            await asyncio.gather(work, beat, return_exceptions=True)
        if job.is_lost:
            log.warning("job %d: attempt %d is over, its result is dropped", job.id, job.attempt)
        elif work.cancelled():
            await self._report(job, pools.refuse(job, "the handler was cancelled", None))
        else:
            await self._report(job, self._outcome(job, work))

    async def _handle(self, job: Job) -> Any:
        return await self._handler(job)

    def _outcome(self, job: Job, work: asyncio.Future[Any]) -> Call[None]:
        error = work.exception()
        if error is None:
            try:
                return pools.acknowledge(job, work.result())
            except (TypeError, ValueError) as reason:
                error = reason  # The result is no JSON.
        if isinstance(error, RetryLater):
            return pools.refuse(job, str(error), error.after_s)
        if not isinstance(error, Exception):
            raise error
        log.warning("job %d: attempt %d has failed", job.id, job.attempt, exc_info=error)
        return pools.refuse(job, f"{type(error).__name__}: {error}", None)

    async def _report(self, job: Job, call: Call[None]) -> None:
        try:
            await self._client._call(call)
        except EnckeError as error:
            # The job goes to another worker, or has gone there.
            log.warning("job %d: the report on attempt %d is refused: %s", job.id, job.attempt, error)

    async def _extend(self, job: Job, work: asyncio.Future[Any]) -> None:
        # The first time sooner if the pool allows less.
        wait_s = min(self._lease_s / 3, max(job.rest_s / 3, WAIT_S_MIN))
        while True:
            await asyncio.sleep(wait_s)
            wait_s = self._lease_s / 3
            try:
                await self._client._call(pools.extend(job, self._lease_s))
            except EnckeError as error:
                log.warning("job %d: attempt %d is not extended: %s", job.id, job.attempt, error)
                if error.status in OVER:
                    job.is_lost = True
                    work.cancel()
                    return


class Worker:
    """A worker whose handler is a function, which runs in a thread. As `AsyncWorker` otherwise.

    A thread can't be cancelled: a handler that runs for long looks at `Job.is_lost`.
    """

    def __init__(
        self,
        client: Encke,
        pool: str,
        name: str,
        handler: Callable[[Job], Any],
        *,
        lease_s: float = 30.0,
        poll_s: int = 20,
    ) -> None:
        self._options = client.options
        self._handler = handler
        # Its connections are made in `run`, in the loop that uses them.
        self._client = AsyncEncke(**{field.name: getattr(client.options, field.name) for field in dataclasses.fields(client.options)})
        self._worker = AsyncWorker(self._client, pool, name, self._in_thread, lease_s=lease_s, poll_s=poll_s)

    def run(self, *, stop_on_signals: bool = False) -> None:
        """Takes jobs until `stop`: the job that runs then is finished, and no other is taken. Once.

        With `stop_on_signals` SIGTERM and SIGINT call `stop`, instead of what the program does with them, as long as this runs. It needs
        the main thread.
        """
        asyncio.run(self._run(stop_on_signals))

    def stop(self) -> None:
        """Ends `run`. Any thread may call it."""
        self._worker.stop()

    async def _run(self, stop_on_signals: bool) -> None:
        async with self._client:
            await self._worker.run(stop_on_signals=stop_on_signals)

    async def _in_thread(self, job: Job) -> Any:
        running = asyncio.ensure_future(asyncio.to_thread(self._handle, job))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            # The next job waits for the end of the thread.
            await asyncio.gather(running, return_exceptions=True)
            raise

    def _handle(self, job: Job) -> Any:
        try:
            return self._handler(job)
        except StopIteration as error:
            # No future can have this exception.
            raise RuntimeError("the handler raised StopIteration") from error


# Seconds before an extension, however short the attempt is.
WAIT_S_MIN = 0.2
# Statuses of an extension that say that the attempt is over.
OVER = {404, 409}
