"""Processes that are forked after a client was made: each has numbers and connections of its own."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import threading
import traceback
import unittest
from collections.abc import Callable, Iterator

from rig import PATIENCE_S, Scripted, ServerTest, acknowledged

import encke

PROCESSES = 4
APPENDS = 200
STREAM = "forked"
# Forks while other threads use the client.
FORKS = 20

# As in a program that makes its client when it is imported.
clients: dict[str, encke.Encke | encke.AsyncEncke] = {}


def append(number: int) -> tuple[int, bool]:
    client = clients["sync"]
    assert isinstance(client, encke.Encke)
    return os.getpid(), client.append(STREAM, number).repeated


def append_async(number: int) -> tuple[int, bool]:
    client = clients["async"]
    assert isinstance(client, encke.AsyncEncke)
    # Frees the loop of the earlier call. CPython before 3.11.8 raises KeyError from an import that a finalizer interrupts, and httpcore
    # tries one in each call.
    gc.collect()
    return os.getpid(), asyncio.run(client.append(STREAM, number)).repeated


def in_child(body: Callable[[], object]) -> int:
    """The status of a child that runs this; 0 if it raises nothing."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            body()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def ends_well(child: int) -> bool:
    """Whether the child ends without an error, in time."""
    ended: list[int] = []
    waiting = threading.Thread(target=lambda: ended.append(os.waitpid(child, 0)[1]), daemon=True)
    waiting.start()
    waiting.join(PATIENCE_S)
    if not ended:
        os.kill(child, 9)
        waiting.join()
        return False
    return ended[0] == 0


@unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
class Forks(ServerTest):
    def setUp(self) -> None:
        super().setUp()
        self.client.create(STREAM)
        self.addCleanup(self.client.delete, STREAM)

    def test_each_record_of_a_pool_of_processes_is_stored_once(self) -> None:
        asynchronous = self.server.async_client()
        clients.update({"sync": self.client, "async": asynchronous})

        async def begin() -> None:
            await asynchronous.append(STREAM, "async")

        self.client.append(STREAM, "sync")
        asyncio.run(begin())
        for work in (append, append_async):
            with self.subTest(work.__name__):
                before = self.client.read(STREAM).next_offset
                with multiprocessing.get_context("fork").Pool(PROCESSES) as pool:
                    made = pool.map(work, range(APPENDS), chunksize=1)
                self.assertEqual(sorted(self.client.read(STREAM, before).data), [*range(APPENDS)])
                self.assertFalse(any(repeated for _, repeated in made))
                self.assertGreater(len({process for process, _ in made}), 1)

    def test_a_follower_continues_in_a_child(self) -> None:
        with self.client.follow(STREAM) as records:
            self.client.append(STREAM, 0)
            self.assertEqual(next(records).data, 0)
            self.client.append(STREAM, 1)

            def child() -> None:
                assert next(records).data == 1
                assert next(records).data == 2

            begun = in_child(child)
            self.assertEqual(next(records).data, 1)
            self.client.append(STREAM, 2)
            self.assertTrue(ends_well(begun))
            self.assertEqual(next(records).data, 2)

    def test_locks_that_other_threads_have_do_not_hold_a_child(self) -> None:
        held, ended = threading.Event(), threading.Event()

        def messages() -> Iterator[int]:
            # The append has the lock of its producer as long as its messages come.
            yield 1
            held.set()
            ended.wait(PATIENCE_S)

        def read() -> None:
            # The lock of the pool is held now and then.
            while not ended.is_set():
                self.client.read(STREAM)

        threads = [threading.Thread(target=read) for _ in range(3)]
        threads.append(threading.Thread(target=lambda: self.client.append_all(STREAM, messages())))
        for thread in threads:
            thread.start()
        try:
            self.assertTrue(held.wait(PATIENCE_S))
            with self.client.follow(STREAM, from_=encke.BEGINNING) as records:
                self.server.raw("POST", f"/v1/stream/{STREAM}", b'["begun"]', Content_Type="application/json")
                next(records)
                children = [in_child(lambda: (self.client.append(STREAM, "child"), next(records))) for _ in range(FORKS)]
                self.assertEqual([ends_well(child) for child in children], [True] * FORKS)
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        self.assertEqual(self.client.read(STREAM).data.count("child"), FORKS)

    def test_a_follower_that_is_closed_or_dropped_in_a_child(self) -> None:
        self.client.append(STREAM, 0)
        with self.client._process_session.connections.use() as http:
            pool = http._transport._pool  # type: ignore[attr-defined]
        with self.client.follow(STREAM) as records:
            next(records)
            followers = [self.client.follow(STREAM) for _ in range(2)]
            for follower in followers:
                next(follower)
            held, ended = threading.Event(), threading.Event()

            def hold() -> None:
                # As a thread that uses the pool during the fork.
                with pool._optional_thread_lock:
                    held.set()
                    ended.wait(PATIENCE_S)

            def drop() -> None:
                followers.clear()
                gc.collect()

            def next_and_drop() -> None:
                next(followers[0])
                drop()

            thread = threading.Thread(target=hold)
            thread.start()
            self.assertTrue(held.wait(PATIENCE_S))
            children = [in_child(body) for body in (records.close, drop, lambda: next(records), next_and_drop)]
            try:
                self.server.raw("POST", f"/v1/stream/{STREAM}", b"[1]", Content_Type="application/json")
                self.assertEqual([ends_well(child) for child in children], [True] * 4)
            finally:
                ended.set()
                thread.join()
            # The connections of this process are as before.
            self.assertEqual([next(follower).data for follower in (records, *followers)], [1] * 3)

    def test_a_fork_within_an_append(self) -> None:
        for producer in (None, encke.Producer("forking")):
            statuses: list[int] = []

            def messages(statuses: list[int] = statuses) -> Iterator[str]:
                yield "first"
                child = os.fork()
                if child:
                    statuses.append(os.waitpid(child, 0)[1])
                yield "parent" if child else "child"

            with self.subTest(producer), self.server.client() as client:
                name = f"{STREAM}/{producer is None}"
                client.create(name, "text/plain")
                parent = os.getpid()
                try:
                    client.append_all(name, messages(), producer=producer)
                except BaseException as error:
                    if os.getpid() != parent:
                        os._exit(0 if isinstance(error, RuntimeError) else 1)
                    raise
                finally:
                    if os.getpid() != parent:
                        os._exit(2)
                self.assertEqual(statuses, [0])
                self.assertEqual(client.read(name).text, "firstparent")

    def test_a_producer_with_a_name_is_refused_in_a_child(self) -> None:
        producer = encke.Producer("upload")
        self.client.append(STREAM, 0, producer=producer)

        def child() -> None:
            with self.assertRaisesRegex(RuntimeError, "'upload'"):
                self.client.append(STREAM, 1, producer=producer)

        self.assertTrue(ends_well(in_child(child)))
        self.client.append(STREAM, 2, producer=producer)
        self.assertEqual(self.client.read(STREAM).data, [0, 2])

    def test_a_repetition_of_what_was_never_sent_is_an_error(self) -> None:
        repeated = Scripted(lambda request: acknowledged(request, 204))
        self.addCleanup(repeated.close)
        with encke.Encke(repeated.url, retry=encke.Retry(0.01, 0.01, 0)) as client:
            ids = set()
            for _ in range(2):
                with self.assertRaises(encke.ProducerInUseError) as raised:
                    client.append("chat/1", 1, content_type="application/json")
                self.assertTrue(raised.exception.may_be_done)
                self.assertIn("chat/1", str(raised.exception))
                id = repeated.received[-1].fields["Producer-Id"]
                self.assertIn(id, str(raised.exception))
                ids.add(id)
            # The next append has an id that the other writer does not have.
            self.assertEqual(len(ids), 2)
            # A producer that the application has named may continue an upload.
            self.assertTrue(client.append("chat/1", 1, producer=encke.Producer("upload"), content_type="application/json").repeated)


if __name__ == "__main__":
    unittest.main(verbosity=2)
