"""The numbers that make appends happen once."""

from __future__ import annotations

import asyncio
import secrets
import threading
from typing import Optional

from .errors import EnckeError, UncertainProducerError


class Producer:
    """One writer of one stream: an id, an epoch, and the number of the next append.

    Invariant: no two bodies are sent with the same id, epoch and number. So after an append that may have been made, the number can't be
    used again. A client's own producers go on with the next epoch: from its first append on the server refuses what may still be on its
    way. A producer that the application has named stops with `UncertainProducerError`, since another writer may have taken the next epoch.
    """

    def __init__(self, id: Optional[str] = None, epoch: int = 0, next_seq: int = 0) -> None:
        self.id = id if id is not None else secrets.token_urlsafe(12)
        self.epoch = epoch
        self.next_seq = next_seq
        self.is_named = id is not None
        self._is_uncertain = False
        # Appends of one producer go one after the other. A producer belongs to one client, which uses one of these.
        self.lock = threading.Lock()
        self.async_lock = AsyncLock()

    def begin(self) -> dict[str, str]:
        """The fields of the next append. One of the others must follow; without it the append counts as uncertain."""
        if self._is_uncertain:
            if self.is_named:
                raise UncertainProducerError()
            self.epoch += 1
            self.next_seq = 0
        self._is_uncertain = True
        return {"Producer-Id": self.id, "Producer-Epoch": str(self.epoch), "Producer-Seq": str(self.next_seq)}

    def made(self) -> None:
        self._is_uncertain = False
        self.next_seq += 1

    def failed(self, error: EnckeError) -> None:
        self._is_uncertain = error.may_be_done


class AsyncLock:
    """An `asyncio.Lock` that is made where it is used first: in Python 3.9 it belongs to the loop of that moment."""

    def __init__(self) -> None:
        self._lock: Optional[asyncio.Lock] = None

    async def __aenter__(self) -> None:
        if self._lock is None:
            self._lock = asyncio.Lock()
        await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.release()
