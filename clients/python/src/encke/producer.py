"""The numbers that make appends happen once."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from collections.abc import AsyncGenerator, Generator
from typing import Optional

from . import process
from .errors import EnckeError, UncertainProducerError


class Producer:
    """One writer of one stream: an id, an epoch, and the number of the next append.

    Invariant: no two bodies are sent with the same id, epoch and number. So after an append that may have been made, the number can't be
    used again. A client's own producers continue with the next epoch: from its first append on the server refuses what may still be on its
    way. A producer that the application has named stops with `UncertainProducerError`, since another writer may have taken the next epoch.
    """

    def __init__(self, id: Optional[str] = None, epoch: int = 0, next_seq: int = 0) -> None:
        self.id = id if id is not None else secrets.token_urlsafe(12)
        self.epoch = epoch
        self.next_seq = next_seq
        self.is_named = id is not None
        self._is_uncertain = False
        self._process = process.identity()
        # Appends of a producer are sent one after the other. A producer belongs to one client, which uses one of these. A signal handler
        # can take the lock that its thread has.
        self._lock = threading.RLock()
        self._is_appending = False
        self._async_lock: Optional[asyncio.Lock] = None
        self._loop: Optional[asyncio.AbstractEventLoop] = None

    @contextlib.contextmanager
    def turn(self, stream: str, wait_s: float) -> Generator[None]:
        """Waits for the end of earlier appends, for a time."""
        self._check_process()
        if not self._lock.acquire(timeout=min(wait_s, threading.TIMEOUT_MAX)):
            raise busy(stream, wait_s)
        try:
            if self._is_appending:
                raise RuntimeError(
                    f"an append to {stream!r} within another append of the same producer in this thread, as in a signal handler; "
                    "use another producer or another thread"
                )
            try:
                self._is_appending = True
                yield
            finally:
                self._is_appending = False
        finally:
            self._lock.release()

    @contextlib.asynccontextmanager
    async def async_turn(self, stream: str, wait_s: float) -> AsyncGenerator[None]:
        """Waits for the end of earlier appends, for a time."""
        self._check_process()
        lock = self._lock_of_loop()
        acquiring = asyncio.ensure_future(lock.acquire())
        try:
            await asyncio.wait({acquiring}, timeout=min(wait_s, threading.TIMEOUT_MAX))
            if not acquiring.done():
                raise busy(stream, wait_s)
            acquiring.result()
            yield
        finally:
            if acquiring.done() and not acquiring.cancelled():
                lock.release()
            else:
                acquiring.cancel()

    def _lock_of_loop(self) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        if self._async_lock is None or self._loop is not loop:
            if self._loop is not None and self._loop.is_running() and self._async_lock is not None and self._async_lock.locked():
                raise RuntimeError(f"the producer {self.id} appends in another event loop")
            # In Python 3.9 a lock belongs to the loop in which it is made.
            self._async_lock, self._loop = asyncio.Lock(), loop
        return self._async_lock

    def _check_process(self) -> None:
        if self._process != process.identity():
            raise RuntimeError(
                f"the producer {self.id!r} was made before this process was forked, and its numbers are those of the other process; "
                "make one in each process, with an id of its own or a higher epoch"
            )

    def begin(self) -> dict[str, str]:
        """The fields of the next append. `made` or `failed` must follow; without one of them the append counts as uncertain."""
        # A process may have been forked within the append.
        self._check_process()
        if self._is_uncertain:
            if self.is_named:
                raise UncertainProducerError()
            self.epoch += 1
            self.next_seq = 0
        self._is_uncertain = True
        return {"Producer-Id": self.id, "Producer-Epoch": str(self.epoch), "Producer-Seq": str(self.next_seq)}

    def made(self) -> None:
        # In this order: a signal handler may raise between them, and the number is used.
        self.next_seq += 1
        self._is_uncertain = False

    def failed(self, error: EnckeError) -> None:
        self._is_uncertain = error.may_be_done


def busy(stream: str, wait_s: float) -> EnckeError:
    return EnckeError(0, "busy", f"earlier appends to {stream!r} have not ended after {wait_s} s; this one was not sent")
