"""Calls that wait for each other, for a token, in a signal handler, or in another loop of asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
import unittest
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from rig import PATIENCE_S, Received, Reply, Scripted, Server, acknowledged, always, wait_until

import encke

CALLS = 40
# Signals while a thread makes calls, some of them while it has a lock of the pool of connections.
SIGNALS = 300


class Waiting(unittest.TestCase):
    server: Server

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server()
        cls.addClassCleanup(cls.server.remove)

    def setUp(self) -> None:
        self.client = self.server.client()
        self.addCleanup(self.client.close)
        self.name = self._testMethodName

    def scripted(self, reply: Callable[[Received], Reply]) -> Scripted:
        server = Scripted(reply)
        self.addCleanup(server.close)
        return server

    @contextlib.contextmanager
    def held(self, server: Scripted) -> Iterator[threading.Event]:
        """A server that holds its responses until the end of the block; the event is set when it has a request."""
        has_request, is_over, reply = threading.Event(), threading.Event(), server.reply

        def hold(request: Received) -> Reply:
            has_request.set()
            is_over.wait(PATIENCE_S)
            return reply(request)

        server.reply = hold
        try:
            yield has_request
        finally:
            server.reply = reply
            is_over.set()

    @contextlib.contextmanager
    def handling(self, handler: object) -> Iterator[None]:
        before = signal.signal(signal.SIGUSR1, handler)  # type: ignore[arg-type]
        try:
            yield
        finally:
            signal.signal(signal.SIGUSR1, before)

    def test_an_append_within_an_append_of_its_thread_is_refused(self) -> None:
        self.client.create(self.name)
        refused: list[Exception] = []

        def handler(*_: object) -> None:
            try:
                self.client.append(self.name, "inner")
            except RuntimeError as error:
                refused.append(error)

        def messages() -> Iterator[int]:
            yield 0
            signal.raise_signal(signal.SIGUSR1)
            yield 1

        with self.handling(handler):
            self.client.append_all(self.name, messages())
        self.assertIn(self.name, str(refused[0]))
        handler()
        self.assertEqual(self.client.read(self.name).data, [0, 1, "inner"])

    def test_calls_of_a_signal_handler(self) -> None:
        other = f"{self.name}-other"
        for name in (self.name, other):
            self.client.create(name)
        handled: list[encke.Appended] = []
        thread, is_over = threading.get_ident(), threading.Event()

        def interrupt() -> None:
            # One signal at a time.
            for number in range(SIGNALS):
                signal.pthread_kill(thread, signal.SIGUSR1)
                wait_until(lambda number=number: len(handled) > number)  # type: ignore[misc]
            is_over.set()

        with self.handling(lambda *_: handled.append(self.client.append(other, len(handled)))), ThreadPoolExecutor(1) as threads:
            interrupting = threads.submit(interrupt)
            made = 0
            while not is_over.is_set() and not interrupting.done():
                self.client.append(self.name, made)
                made += 1
            interrupting.result()
        self.assertEqual(self.client.read(self.name).data, [*range(made)])
        self.assertEqual(self.client.read(other).data, [*range(SIGNALS)])

    def test_an_append_waits_for_an_earlier_one_for_a_time(self) -> None:
        server = self.scripted(acknowledged)
        retry = encke.Retry(0.01, 0.01, 0.1)
        client = encke.Encke(server.url, retry=retry)
        self.addCleanup(client.close)
        with ThreadPoolExecutor() as threads:
            with self.held(server) as has_request:
                first = threads.submit(append_text, client)
                self.assertTrue(has_request.wait(PATIENCE_S))
                with self.assertRaises(encke.EnckeError) as raised:
                    append_text(client)
                self.assertEqual((raised.exception.code, raised.exception.may_be_done), ("busy", False))
                self.assertEqual(len(server.received), 1)
            first.result()
        append_text(client)

        async def run() -> None:
            async with encke.AsyncEncke(server.url, retry=retry) as client:
                with self.held(server) as has_request:
                    first, second, third = (asyncio.ensure_future(client.append("s", "a", content_type="text/plain")) for _ in range(3))
                    await asyncio.to_thread(has_request.wait, PATIENCE_S)
                    third.cancel()
                    ended = await asyncio.gather(second, third, return_exceptions=True)
                    self.assertEqual([getattr(error, "code", type(error)) for error in ended], ["busy", asyncio.CancelledError])
                await first
                await client.append("s", "a", content_type="text/plain")

        asyncio.run(run())
        self.assertEqual(len(server.received), 4)

    def test_one_renewal_of_the_token_serves_all_calls(self) -> None:
        for is_renewed in (True, False):
            for calls in (self.calls_of_threads, self.calls_of_tasks):
                with self.subTest(calls.__name__, is_renewed=is_renewed):
                    self.renew(is_renewed, calls)

    def renew(self, is_renewed: bool, calls: Callable[[str, Callable[[], str]], list[object]]) -> None:
        made: list[str] = []
        may_end, refused = threading.Event(), threading.Semaphore(0)

        def make() -> str:
            made.append(f"token-{len(made) if is_renewed else 0}")
            if len(made) > 1:
                may_end.wait(PATIENCE_S)
            return made[-1]

        def reply(request: Received) -> Reply:
            if request.fields["Authorization"] == "Bearer token-0":
                refused.release()
                return Reply(401)
            return Reply(204)

        def end() -> None:
            # The renewal ends when all calls are refused.
            for _ in range(CALLS):
                assert refused.acquire(timeout=PATIENCE_S)
            may_end.set()

        server = Scripted(reply)
        self.addCleanup(server.close)
        with ThreadPoolExecutor(1) as thread:
            ending = thread.submit(end)
            errors = calls(server.url, make)
            ending.result()
        self.assertEqual([getattr(error, "status", error) for error in errors], [None if is_renewed else 401] * CALLS)
        self.assertEqual(len(made), 2)

    @staticmethod
    def calls_of_threads(url: str, make: Callable[[], str]) -> list[object]:
        with encke.Encke(url, token=make) as client, ThreadPoolExecutor(CALLS) as threads:
            calls = [threads.submit(client.delete, f"{number}") for number in range(CALLS)]
            return [call.exception() for call in calls]

    @staticmethod
    def calls_of_tasks(url: str, make: Callable[[], str]) -> list[object]:
        async def make_async() -> str:
            return await asyncio.to_thread(make)

        async def run() -> list[object]:
            async with encke.AsyncEncke(url, token=make_async) as client:
                return [*await asyncio.gather(*(client.delete(f"{number}") for number in range(CALLS)), return_exceptions=True)]

        return asyncio.run(run())

    def test_a_token_that_does_not_come_holds_no_call(self) -> None:
        server = self.scripted(always(Reply(204)))
        is_over = threading.Event()
        begun = threading.Event()
        made = 0

        def make() -> str:
            nonlocal made
            made += 1
            begun.set()
            is_over.wait(PATIENCE_S)
            return "token"

        with encke.Encke(server.url, token=make, timeout_s=0.1) as client, ThreadPoolExecutor() as threads:
            first = threads.submit(client.delete, "s")
            self.assertTrue(begun.wait(PATIENCE_S))
            with self.assertRaises(encke.EnckeError) as raised:
                client.delete("s")
            self.assertEqual((raised.exception.code, made), ("no_token", 1))
            is_over.set()
            first.result()
            client.delete("s")
        self.assertEqual(made, 1)

        async def run() -> None:
            never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            ready.set_result("token")
            tokens = iter([never])

            async def make() -> str:
                return await next(tokens, ready)

            async with encke.AsyncEncke(server.url, token=make, timeout_s=0.5) as client:
                cancelled = asyncio.ensure_future(client.delete("s"))
                waiting = asyncio.ensure_future(client.delete("s"))
                await asyncio.sleep(0)
                cancelled.cancel()
                ended = await asyncio.gather(cancelled, waiting, return_exceptions=True)
                self.assertEqual([getattr(error, "code", type(error)) for error in ended], [asyncio.CancelledError, "no_token"])
                await client.delete("s")

        asyncio.run(run())

    def test_a_client_outlives_its_loop(self) -> None:
        client = self.server.async_client()

        async def begin() -> encke.AsyncFollowing:
            appends = [asyncio.ensure_future(client.append(self.name, number)) for number in range(4)]
            records = client.follow(self.name)
            await appends[0]
            self.assertEqual((await records.__anext__()).data, 0)
            # The loop ends during the other appends.
            return records

        async def go_on(records: encke.AsyncFollowing) -> list[object]:
            await client.append_all(self.name, ["second", "loop"])
            await client.close_stream(self.name)
            return [record.data async for record in records]

        # The connection of this loop is idle when the loop ends.
        self.assertTrue(asyncio.run(client.create(self.name)))
        data = asyncio.run(go_on(asyncio.run(begin())))
        self.assertEqual(data[-2:], ["second", "loop"])
        self.assertEqual(data[:-2], [*range(1, len(data) - 1)])
        asyncio.run(client.close())

    def test_a_follower_has_one_consumer(self) -> None:
        self.client.create(self.name, data=0)

        async def run() -> None:
            async with self.server.async_client() as client, client.follow(self.name) as records:
                await records.__anext__()
                first = asyncio.ensure_future(records.__anext__())
                await asyncio.sleep(0)
                with self.assertRaises(RuntimeError):
                    await records.__anext__()
                await client.append(self.name, 1)
                self.assertEqual((await first).data, 1)

        asyncio.run(run())
        begun = threading.Event()
        with self.client.follow(self.name, from_=encke.NOW, on_notice=lambda _: begun.set()) as records, ThreadPoolExecutor() as threads:
            first = threads.submit(next, records)
            self.client.stop(self.name)
            self.assertTrue(begun.wait(PATIENCE_S))
            with self.assertRaises(RuntimeError):
                next(records)
            self.client.append(self.name, 2)
            self.assertEqual(first.result().data, 2)

    def test_a_worker_leaves_signals_to_the_program(self) -> None:
        self.client.create_pool(self.name)
        program = (
            "import asyncio, signal, sys, encke\n"
            "async def main():\n"
            "    stopped = asyncio.Event()\n"
            "    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)\n"
            "    async with encke.AsyncEncke(sys.argv[1]) as client:\n"
            "        worker = encke.AsyncWorker(client, sys.argv[2], 'w', None)\n"
            "        running = asyncio.ensure_future(worker.run())\n"
            "        print('running', flush=True)\n"
            "        await stopped.wait()\n"
            "        print('stopped', flush=True)\n"
            "        worker.stop()\n"
            "        await running\n"
            "asyncio.run(main())\n"
        )
        command = [sys.executable, "-c", program, self.server.url, self.name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            self.addCleanup(process.kill)
            assert process.stdout is not None
            self.assertEqual(process.stdout.readline(), "running\n")
            wait_until(lambda: b'"connected":true' in self.server.raw("GET", f"/v1/pool/{self.name}")[1])
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.stdout.readline(), "stopped\n")
            self.assertEqual(process.wait(PATIENCE_S), 0)


def append_text(client: encke.Encke) -> encke.Appended:
    return client.append("s", "a", content_type="text/plain")


if __name__ == "__main__":
    unittest.main(verbosity=2)
