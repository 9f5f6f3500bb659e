"""The cases that all clients share (clients/cases): faults of a scripted server, and the outcome of each call."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
import unittest
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from typing import Any, Union

from rig import ROOT

import encke

# Plays at the same time.
PLAYS = 16
# The time in which a call settles when its limit is over, also on a busy machine.
SETTLE_S = 30.0

Outcome = dict[str, Any]


class Script:
    """The scripted server, as a process with lines of JSON."""

    def __init__(self) -> None:
        command = ["node", str(ROOT / "clients" / "cases" / "server.mjs"), "python"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._waiting: dict[int, Future[Outcome]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._receive, daemon=True).start()

    def ask(self, what: str, **members: Any) -> Outcome:
        assert self._process.stdin is not None
        with self._lock:
            id = len(self._waiting)
            reply = self._waiting[id] = Future()
            self._process.stdin.write(json.dumps({"id": id, "do": what, **members}) + "\n")
            self._process.stdin.flush()
        return reply.result(SETTLE_S)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()

    def _receive(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                reply = json.loads(line)
                self._waiting[reply["id"]].set_result(reply)


class Cases(unittest.TestCase):
    def test_of_the_blocking_client(self) -> None:
        with unhandled() as errors:
            self._play_all(blocking)
        self.assertEqual(errors, [])

    def test_of_the_client_for_asyncio(self) -> None:
        with unhandled() as errors:

            def play(case: Outcome, origin: str, recreate: Callable[[], object]) -> list[Outcome]:
                return asyncio.run(asynchronous(case, origin, recreate, errors))

            self._play_all(play)
        self.assertEqual(errors, [])

    def _play_all(self, play: Callable[[Outcome, str, Callable[[], object]], list[Outcome]]) -> None:
        script = Script()
        self.addCleanup(script.close)

        def once(index: int, case: Outcome, position: int | None = None) -> Outcome:
            begun = script.ask("play", index=index, position=position)
            results = play(case, begun["origin"], lambda: script.ask("recreate", play=begun["play"]))
            return script.ask("end", play=begun["play"], results=results)

        cases = script.ask("cases")["cases"]
        self.assertGreater(len(cases), 100)
        with ThreadPoolExecutor(PLAYS) as threads:
            ends = [threads.submit(once, index, case) for index, case in enumerate(cases)]
            for index, (case, end) in enumerate(zip(cases, ends)):
                with self.subTest(case["name"]):
                    ended = end.result()
                    if not any(answer.get("at") == "every" for answer in case.get("answers", [])):
                        self.assertEqual(ended["failures"], [])
                        continue
                    # This play has shown how long the response is.
                    self.assertGreater(ended["length"], 0)
                    positions = [threads.submit(once, index, case, position) for position in range(ended["length"])]
                    found = [(at, one.result()["failures"]) for at, one in enumerate(positions)]
                    self.assertEqual([failed for failed in found if failed[1]][:3], [])


def options(case: Outcome) -> Outcome:
    limit_s = case["limitMs"] / 1000
    retry = encke.Retry(first_s=0.1, most_s=1.0, give_up_s=limit_s)
    return {"token": "secret", "verify": False, "timeout_s": limit_s, "quiet_s": limit_s, "retry": retry}


def blocking(case: Outcome, origin: str, recreate: Callable[[], object]) -> list[Outcome]:
    with encke.Encke(origin, **options(case)) as client:

        def call(text: str) -> Any:
            name, argument = parse(text)
            if name == "recreate":
                return recreate()
            if name == "follow":
                ends: list[encke.Notice] = []
                with client.follow("s", on_notice=ends.append) as records:
                    return followed([record.data for record in records], ends)
            return operation(client, name, argument)

        def settle(text: str) -> Outcome:
            try:
                return value(call(text))
            except Exception as error:
                return refusal(error)

        def begin(text: str) -> Future[Outcome]:
            # A call that does not settle must not keep the process: the threads of an executor would.
            outcome: Future[Outcome] = Future()
            threading.Thread(target=lambda: outcome.set_result(settle(text)), daemon=True).start()
            return outcome

        def wait(outcome: Future[Outcome]) -> Outcome:
            try:
                return outcome.result(case["limitMs"] / 1000 + SETTLE_S)
            except FutureTimeoutError:
                return {"error": "not settled"}

        if case.get("together"):
            return [wait(outcome) for outcome in [begin(text) for text in case["calls"]]]
        return [wait(begin(text)) for text in case["calls"]]


async def asynchronous(case: Outcome, origin: str, recreate: Callable[[], object], errors: list[object]) -> list[Outcome]:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with encke.AsyncEncke(origin, **options(case)) as client:

        async def call(text: str) -> Any:
            name, argument = parse(text)
            if name == "recreate":
                return await asyncio.to_thread(recreate)
            if name == "follow":
                ends: list[encke.Notice] = []
                async with client.follow("s", on_notice=ends.append) as records:
                    return followed([record.data async for record in records], ends)
            return await operation(client, name, argument)

        async def settle(text: str) -> Outcome:
            try:
                return value(await asyncio.wait_for(call(text), case["limitMs"] / 1000 + SETTLE_S))
            except Exception as error:
                return refusal(error)

        if case.get("together"):
            return list(await asyncio.gather(*map(settle, case["calls"])))
        return [await settle(text) for text in case["calls"]]


def parse(call: str) -> tuple[str, str]:
    name, _, argument = call.partition(" ")
    return name, argument


def operation(client: Union[encke.Encke, encke.AsyncEncke], name: str, argument: str) -> Any:
    """The result of a call, or the awaitable of one."""
    calls: dict[str, Callable[[], Any]] = {
        "create": lambda: client.create(argument or "s"),
        "append": lambda: client.append("s", json.loads(argument), content_type="application/json"),
        "close": lambda: client.close_stream("s", "done"),
        "stop": lambda: client.stop("s"),
        "delete": lambda: client.delete("s"),
        "read": lambda: client.read("s"),
        "post": lambda: client.post("p", json.loads(argument)),
    }
    return calls[name]()


def followed(data: list[object], notices: list[encke.Notice]) -> Outcome:
    ends = [notice.end_reason for notice in notices if isinstance(notice, encke.End)]
    return {"messages": data, "end": ends[0] if ends else None}


def value(result: Any) -> Outcome:
    """A result as the cases have it."""
    if isinstance(result, encke.Appended):
        return {"ok": True, "next": result.next_offset, "duplicate": result.repeated}
    if isinstance(result, encke.Posted):
        return {"ok": True, "job": result.id, "token": result.token}
    if isinstance(result, encke.Page):
        return {"ok": True, "messages": result.data}
    return {"ok": True, **(result if isinstance(result, dict) and "messages" in result else {})}


def refusal(error: Exception) -> Outcome:
    if isinstance(error, encke.EnckeError):
        return {"error": error.code, "status": error.status}
    return {"error": type(error).__name__, "message": str(error)}


@contextmanager
def unhandled() -> Iterator[list[object]]:
    """Collects the errors that have no handler."""
    errors: list[object] = []
    old, old_thread = sys.unraisablehook, threading.excepthook
    sys.unraisablehook = lambda raised: errors.append((raised.exc_value, raised.object))
    threading.excepthook = lambda raised: errors.append(raised.exc_value)
    try:
        yield errors
        gc.collect()
    finally:
        sys.unraisablehook, threading.excepthook = old, old_thread


if __name__ == "__main__":
    unittest.main(verbosity=2)
