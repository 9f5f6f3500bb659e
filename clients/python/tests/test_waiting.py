"""Calls that wait for each other, for a token, in a signal handler, or in another loop of asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import dis
import gc
import signal
import subprocess
import sys
import threading
import types
import unittest
import unittest.mock
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from rig import PATIENCE_S, Received, Reply, Scripted, ServerTest, acknowledged, always, wait_until

import encke
import encke.follower

CALLS = 40
# Threads, each with a loop of asyncio, and their appends.
LOOPS = 4
APPENDS_OF_A_LOOP = 50
# Signals while a thread makes calls, some of them while it has a lock of the pool of connections.
SIGNALS = 300


class Waiting(ServerTest):
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

    def test_a_function_of_tokens_that_raises(self) -> None:
        server = self.scripted(acknowledged)
        calls: list[Callable[[encke.Encke], object]] = [
            append_text,
            lambda client: client.delete("s"),
            lambda client: client.read("s"),
            lambda client: next(client.follow("s")),
        ]
        for error in (StopIteration("a"), OSError("a"), encke.NotFoundError(404, "not_found", "a")):

            def make(error: Exception = error) -> str:
                raise error

            with encke.Encke(server.url, token=make) as client:
                for call in calls:
                    with self.assertRaises(encke.EnckeError) as raised:
                        call(client)
                    self.assertEqual((raised.exception.code, raised.exception.may_be_done), ("no_token", False))
                    self.assertIs(raised.exception.__cause__, error)
                    self.assertIn(type(error).__name__, raised.exception.message)

            async def run(make: Callable[[], str] = make) -> object:
                async with encke.AsyncEncke(server.url, token=make) as client:
                    return (await asyncio.gather(client.delete("s"), return_exceptions=True))[0]

            self.assertEqual(getattr(asyncio.run(run()), "code", None), "no_token")
        self.assertEqual(server.received, [])

    def test_a_producer_whose_append_was_not_sent_goes_on(self) -> None:
        server = self.scripted(acknowledged)
        tokens: list[object] = ["token", OSError("a"), "refused", OSError("a")]

        def make() -> str:
            token = tokens.pop()
            if isinstance(token, Exception):
                raise token
            return str(token)

        def reply(request: Received) -> Reply:
            return Reply(401) if request.fields["Authorization"] == "Bearer refused" else acknowledged(request)

        server.reply = reply
        producer = encke.Producer("upload")
        with encke.Encke(server.url, token=make) as client:

            def append(content_type: str = "text/plain") -> encke.Appended:
                return client.append("s", "a", producer=producer, content_type=content_type)

            # The first token can't be made, and then a renewal fails.
            for _ in range(2):
                with self.assertRaises(encke.EnckeError) as raised:
                    append()
                self.assertEqual(raised.exception.code, "no_token")
            with self.assertRaises(ValueError):
                append("text/plain\n")
            append()
        self.assertEqual([request.fields["Producer-Seq"] for request in server.received], ["0", "0", "0"])

    def test_a_renewal_that_fails_fails_for_all_that_wait(self) -> None:
        made = 0
        may_end, refused = threading.Event(), threading.Semaphore(0)

        def make() -> str:
            nonlocal made
            made += 1
            if made == 1:
                return "token"
            may_end.wait(PATIENCE_S)
            raise OSError("no connection")

        def reply(_: Received) -> Reply:
            refused.release()
            return Reply(401)

        def waiting(client: encke.Encke) -> int:
            """How many calls renew the token or wait for its renewal, and have seen that it has not failed yet."""
            tokens = client._process_session.tokens
            return sum(frame.f_locals.get("self") is tokens and "failure" in frame.f_locals for frame in frames())

        server = self.scripted(reply)
        with encke.Encke(server.url, token=make) as client, ThreadPoolExecutor(CALLS) as threads:
            calls = [threads.submit(client.delete, f"{number}") for number in range(CALLS)]
            wait_until(lambda: waiting(client) == CALLS)
            may_end.set()
            errors = [call.exception(PATIENCE_S) for call in calls]
            self.assertEqual([getattr(error, "code", error) for error in errors], ["no_token"] * CALLS)
            self.assertEqual(made, 2)

    def test_a_token_that_fails_without_a_caller(self) -> None:
        unhandled: list[object] = []

        async def run() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
            begun, may_end = asyncio.Event(), asyncio.Event()

            async def make() -> str:
                begun.set()
                await may_end.wait()
                raise OSError("no connection")

            async with encke.AsyncEncke("http://127.0.0.1:1", token=make) as client:
                call = asyncio.ensure_future(client.delete("s"))
                await begun.wait()
                making = client._process_session.tokens._making
                assert making is not None
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
                may_end.set()
                await asyncio.wait({making})

        asyncio.run(run())
        gc.collect()
        self.assertEqual(unhandled, [])

    def test_a_worker_waits_for_the_renewal_of_its_token(self) -> None:
        self.client.create_pool(self.name)
        made: list[str] = []

        def make() -> str:
            made.append("token")
            if 1 < len(made) < 4:
                raise OSError("no connection")
            return f"token-{len(made)}"

        def reply(request: Received) -> Reply:
            return Reply(401) if request.fields["Authorization"] == "Bearer token-1" else self.server.forward(request)

        server = self.scripted(reply)
        with encke.Encke(server.url, token=make, retry=encke.Retry(0.01, 0.01)) as client:
            worker = encke.Worker(client, self.name, "w", lambda job: job.data, poll_s=1)
            with ThreadPoolExecutor(1) as thread, self.assertLogs("encke", "WARNING"):
                running = thread.submit(worker.run)
                self.assertIsNotNone(self.client.post(self.name, "a", wait_s=60).result)
                worker.stop()
                running.result(PATIENCE_S)
        self.assertEqual(len(made), 4)

    def test_loops_of_several_threads(self) -> None:
        client = self.server.async_client()
        self.client.create(self.name)
        both = threading.Barrier(LOOPS)

        async def append(number: int) -> None:
            both.wait(PATIENCE_S)
            for count in range(APPENDS_OF_A_LOOP):
                self.assertFalse((await client.append(self.name, [number, count])).repeated)

        for _ in range(2):
            with ThreadPoolExecutor(LOOPS) as threads:
                loops = [threads.submit(asyncio.run, append(number)) for number in range(LOOPS)]
                for loop in loops:
                    loop.result(PATIENCE_S)
        data = self.client.read(self.name).data
        for number in range(LOOPS):
            self.assertEqual([count for of, count in data if of == number], [*range(APPENDS_OF_A_LOOP)] * 2)
        # The second loops have the producers of the first.
        self.assertLessEqual(len(client._process_session._writers), LOOPS)

    def test_a_signal_handler_that_raises_loses_no_record_and_no_number(self) -> None:
        class Late(Exception):
            pass

        def received(_: object) -> None:
            raise Late

        lines: list[tuple[encke.follower.Streams, dict[str, object]]] = [
            ("s", {"offset": "2", "data": 1}),
            ("s", {"control": {"streamNextOffset": "2", "streamClosed": True}}),
            ("s", {"control": {"streamNextOffset": "2", "stopRequested": True}}),
            (["s", "t"], {"id": "2", "stream": "s", "nextOffset": "2", "messages": [1, 2]}),
            (["s", "t"], {"id": "2", "stop": {"stream": "s"}}),
            (["s", "t"], {"id": "2", "gap": {"stream": "s", "why": "a"}}),
        ]
        for streams, line in lines:
            feed = self.client.follow(streams)._follower.feed
            before = feed.position
            with (
                self.subTest(line=line),
                unittest.mock.patch.object(feed, "ready", unittest.mock.Mock(append=received, extend=received)),
                self.assertRaises(Late),
            ):
                feed.line(line)
            self.assertEqual((feed.position, feed.is_ended), (before, False))
            self.assertTrue(feed.line(line))
            self.assertEqual(feed.position, "2")
        # The handler runs before any line of the end of an append.
        made = encke.Producer.made.__code__
        begins = {line for _, line in dis.findlinestarts(made) if line and line > made.co_firstlineno}
        self.assertGreater(len(begins), 1)
        for begin in begins:

            def trace(frame: types.FrameType, event: str, _: object, begin: int = begin) -> object:
                if frame.f_code is not made:
                    return None
                if event == "line" and frame.f_lineno == begin:
                    raise Late
                return trace

            producer = encke.Producer("a")
            producer.begin()
            tracing = sys.gettrace()
            sys.settrace(trace)  # type: ignore[arg-type]
            try:
                with self.assertRaises(Late):
                    producer.made()
            finally:
                sys.settrace(tracing)
            with self.assertRaises(encke.UncertainProducerError):
                producer.begin()

    def test_a_follower_that_another_thread_closes(self) -> None:
        self.client.create(self.name)
        heartbeat = threading.Event()

        def reply(_: Received) -> Reply:
            heartbeat.wait(PATIENCE_S)
            return Reply(200, {"Content-Type": "application/x-ndjson"}, b"\n")

        for records in (self.client.follow(self.name), encke.Encke(self.scripted(reply).url).follow("s")):
            with ThreadPoolExecutor(1) as thread:
                waiting = thread.submit(next, records, None)
                wait_until(lambda records=records: records._driver._running is not None)  # type: ignore[misc]
                records.close()
                heartbeat.set()
                self.server.raw("POST", f"/v1/stream/{self.name}", b"[1]", Content_Type="application/json")
                self.assertIsNone(waiting.result(PATIENCE_S))
                self.assertIsNone(next(records, None))

        async def run() -> None:
            async with self.server.async_client() as client:
                records = client.follow(self.name, from_=encke.NOW)
                waiting = asyncio.ensure_future(records.__anext__())
                await asyncio.to_thread(wait_until, lambda: records._follower._is_open or records._driver._response is not None)
                await records.close()
                self.assertIsInstance((await asyncio.gather(waiting, return_exceptions=True))[0], StopAsyncIteration)

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


def frames() -> Iterator[types.FrameType]:
    """The frames of all threads."""
    for frame in sys._current_frames().values():
        inner: types.FrameType | None = frame
        while inner is not None:
            yield inner
            inner = inner.f_back


def append_text(client: encke.Encke) -> encke.Appended:
    return client.append("s", "a", content_type="text/plain")


if __name__ == "__main__":
    unittest.main(verbosity=2)
