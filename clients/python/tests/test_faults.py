"""Appends to the real server while its process ends and its connections are cut: each is stored once, and each call settles."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import unittest
from typing import Any, Callable

from rig import PATIENCE_S, RETRY, ROOT
from test_cases import unhandled

import encke

WRITERS = 4
# Appends of a writer for asyncio that are under way.
WINDOW = 5
SETTLE_S = 2 * PATIENCE_S
POLL_S = 0.02


class Faults:
    """The server under faults, as a process with lines of JSON: `ends` of its process, or `cuts` of its connections."""

    def __init__(self, kind: str) -> None:
        command = ["node", str(ROOT / "clients" / "cases" / "faults.mjs"), kind]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url: str = self._line()["url"]

    def ask(self, **members: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(members) + "\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the server under faults has failed, and says why on its standard error"
        members: dict[str, Any] = json.loads(line)
        return members

    def stop(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        self._process.stdout.close()


class Load:
    """The appends of all writers."""

    def __init__(self) -> None:
        self.acknowledged = {f"writer-{index}": 0 for index in range(WRITERS)}
        self.is_over = threading.Event()
        self.errors: list[BaseException] = []

    def watch(self, faults: Faults) -> None:
        """Waits until all faults are over, or a writer has failed."""
        while not self.errors and not faults.ask(count=sum(self.acknowledged.values()))["isOver"]:
            self.is_over.wait(POLL_S)
        self.is_over.set()

    def write(self, url: str, name: str) -> None:
        try:
            with encke.Encke(url, retry=RETRY) as client:
                while not self.is_over.is_set():
                    client.append("load", [name, self.acknowledged[name]], content_type="application/json")
                    self.acknowledged[name] += 1
        except BaseException as error:
            self.errors.append(error)

    def write_blocking(self, url: str) -> list[threading.Thread]:
        threads = [threading.Thread(target=self.write, args=(url, name), daemon=True) for name in self.acknowledged]
        for thread in threads:
            thread.start()
        return threads

    def write_async(self, url: str) -> list[threading.Thread]:
        async def append(client: encke.AsyncEncke, name: str, number: int) -> None:
            await client.append("load", [name, number], content_type="application/json")
            self.acknowledged[name] += 1

        async def write(name: str) -> None:
            async with encke.AsyncEncke(url, retry=RETRY) as client:
                while not self.is_over.is_set():
                    first = self.acknowledged[name]
                    await asyncio.gather(*(append(client, name, number) for number in range(first, first + WINDOW)))

        async def write_all() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: self.errors.append(AssertionError(context)))
            await asyncio.gather(*map(write, self.acknowledged))

        def run() -> None:
            try:
                asyncio.run(write_all())
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return [thread]


class FaultsTest(unittest.TestCase):
    def test_of_the_blocking_client_over_ends(self) -> None:
        self._check("ends", Load.write_blocking)

    def test_of_the_blocking_client_over_cuts(self) -> None:
        self._check("cuts", Load.write_blocking)

    def test_of_the_client_for_asyncio_over_ends(self) -> None:
        self._check("ends", Load.write_async)

    def test_of_the_client_for_asyncio_over_cuts(self) -> None:
        self._check("cuts", Load.write_async)

    def _check(self, kind: str, begin: Callable[[Load, str], list[threading.Thread]]) -> None:
        faults = Faults(kind)
        self.addCleanup(faults.stop)
        load = Load()
        with unhandled() as errors:
            threads = begin(load, faults.url)
            load.watch(faults)
            for thread in threads:
                thread.join(SETTLE_S)
                self.assertFalse(thread.is_alive(), "each call settles")
            self.assertEqual(load.errors, [])
        self.assertEqual(errors, [])
        self.assertGreater(faults.ask(acknowledged=load.acknowledged)["stored"], 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
