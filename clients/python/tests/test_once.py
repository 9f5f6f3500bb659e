"""Each record once: appended and followed while the server is killed, stopped and refuses."""

from __future__ import annotations

import asyncio
import signal
import threading
import unittest
from concurrent.futures import Future, ThreadPoolExecutor

from rig import PATIENCE_S, RETRY, Received, Reply, Scripted, Server, wait_until

import encke

RECORDS = 5_000
KILLS = 20
# Records of a second stream, whose writer is asynchronous.
SECOND = 2_000
# Records that are appended between two kills at least.
RECORDS_PER_KILL = RECORDS // (KILLS + 1)
# Every fifth append has several messages.
BATCH = 5


class Progress:
    """How far a writer has got, for the thread that kills the server."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0

    def add(self, count: int) -> None:
        with self._changed:
            self._count += count
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._count >= count, PATIENCE_S), f"{self._count} of {count} records"


def in_turn(first: int, count: int) -> list[list[int]]:
    """The appends of `count` numbers from `first` on: four with one message, then one with several."""
    appends: list[list[int]] = []
    number = first
    while number < first + count:
        size = BATCH if len(appends) % BATCH == BATCH - 1 else 1
        appends.append(list(range(number, min(number + size, first + count))))
        number += size
    return appends


def write(client: encke.Encke, progress: Progress) -> None:
    for messages in in_turn(0, RECORDS):
        client.append_all("load/a", messages)
        progress.add(len(messages))
    client.close_stream("load/a", "done")


async def write_async(client: encke.AsyncEncke) -> None:
    for messages in in_turn(RECORDS, SECOND):
        await client.append_all("load/b", messages)
    await client.close_stream("load/b", "done")


def one(client: encke.Encke) -> list[object]:
    with client.follow("load/a") as records:
        return [record.data for record in records]


def several(client: encke.Encke) -> list[object]:
    with client.follow(["load/a", "load/b"]) as records:
        return [record.data for record in records]


async def pattern(client: encke.AsyncEncke) -> list[object]:
    ended: list[encke.Notice] = []
    data: list[object] = []
    async with client.follow("load/**", on_notice=ended.append) as records:
        async for record in records:
            data.append(record.data)
            if len(data) == RECORDS + SECOND:
                return data
    raise AssertionError("a pattern does not end")


class Once(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Server()
        self.addCleanup(self.server.remove)

    def test_each_record_once_over_kills(self) -> None:
        client = self.server.client()
        self.addCleanup(client.close)
        for stream in ("load/a", "load/b"):
            client.create(stream)
        progress = Progress()

        async def asynchronous() -> list[object]:
            async with self.server.async_client() as client:
                data, _ = await asyncio.gather(pattern(client), write_async(client))
                return data

        with ThreadPoolExecutor() as threads:
            jobs: list[Future[list[object]]] = [threads.submit(reader, client) for reader in (one, several)]
            jobs.append(threads.submit(asyncio.run, asynchronous()))
            writer = threads.submit(write, client, progress)
            for kill in range(1, KILLS + 1):
                progress.wait(kill * RECORDS_PER_KILL)
                self.server.end(signal.SIGKILL)
                self.server.start()
            writer.result()
            of_one, of_several, of_pattern = (job.result() for job in jobs)
        self.assertEqual(of_one, [*range(RECORDS)])
        for data in (of_several, of_pattern):
            for numbers in (range(RECORDS), range(RECORDS, RECORDS + SECOND)):
                self.assertEqual([number for number in data if number in numbers], [*numbers])
            self.assertEqual(len(data), RECORDS + SECOND)
        self.assertEqual(client.head("load/a").end_reason, "done")

    def test_a_stop_of_the_server_is_no_end(self) -> None:
        with self.server.client() as client:
            client.create("s", data=0)
            with client.follow("s") as records:
                self.assertEqual(next(records).data, 0)
                for number in range(1, 6):
                    self.server.end(signal.SIGTERM)
                    self.server.start()
                    client.append("s", number)
                    self.assertEqual(next(records).data, number)
                client.close_stream("s")
                self.assertEqual([*records], [])

    def test_an_append_that_may_have_been_made_is_made_once_or_never(self) -> None:
        """A proxy makes the append and loses the response, for longer than the client tries."""
        with self.server.client() as client:
            client.create("s")
            lost = Lossy(self.server)
            self.addCleanup(lost.close)
            with encke.Encke(lost.url, retry=encke.Retry(0.01, 0.01, 0.1)) as other:
                with self.assertRaises(encke.UnreachableError) as raised:
                    other.append("s", "lost", content_type="application/json")
                self.assertTrue(raised.exception.may_be_done)
                lost.is_open = True
                other.append("s", "next", content_type="application/json")
                other.append("s", "last", content_type="application/json")
            self.assertEqual(client.read("s").data, ["lost", "next", "last"])

    def test_an_append_whose_task_is_cancelled_is_made_once_or_never(self) -> None:
        with self.server.client() as client:
            client.create("s", "text/plain")
            lost = Lossy(self.server)
            self.addCleanup(lost.close)

            async def run() -> None:
                async with encke.AsyncEncke(lost.url, retry=RETRY) as other:
                    cancelled = asyncio.ensure_future(other.append("s", "cancelled,", content_type="text/plain"))
                    # Not in this thread: the loop sends the request meanwhile.
                    await asyncio.to_thread(wait_until, lambda: client.read("s").data != b"")
                    cancelled.cancel()
                    await asyncio.gather(cancelled, return_exceptions=True)
                    lost.is_open = True
                    await other.append("s", "next", content_type="text/plain")

            asyncio.run(run())
            self.assertEqual(client.read("s").text, "cancelled,next")

    def test_a_producer_with_a_name_stops_when_it_is_uncertain(self) -> None:
        with self.server.client() as client:
            client.create("s", "text/plain")
            producer = encke.Producer("upload", epoch=0)
            lost = Lossy(self.server)
            self.addCleanup(lost.close)
            with encke.Encke(lost.url, retry=encke.Retry(0.01, 0.01, 0.1)) as other:
                with self.assertRaises(encke.UnreachableError):
                    other.append("s", "a", producer=producer, content_type="text/plain")
                with self.assertRaises(encke.UncertainProducerError):
                    other.append("s", "b", producer=producer, content_type="text/plain")
            # The upload runs again, from its beginning.
            again = encke.Producer("upload", epoch=0)
            self.assertEqual([client.append("s", piece, producer=again).repeated for piece in ("a", "b")], [True, False])
            self.assertEqual(client.read("s").text, "ab")
            # A writer that takes over ends the one before.
            client.append("s", "c", producer=encke.Producer("upload", epoch=1))
            with self.assertRaises(encke.StaleEpochError):
                client.append("s", "d", producer=again)

    def test_a_stream_that_is_created_again_is_another(self) -> None:
        with self.server.client() as client:
            client.create("s", "text/plain")
            for _ in range(2):
                client.append("s", "a")
            self.server.raw("DELETE", "/v1/stream/s")
            self.server.raw("PUT", "/v1/stream/s", Content_Type="text/plain")
            client.append("s", "b")
            self.assertEqual(client.read("s").data, b"b")


class Lossy(Scripted):
    """A proxy that drops all responses until it is open."""

    def __init__(self, server: Server) -> None:
        super().__init__(self.pass_on)
        self.is_open = False
        self._target = server

    def pass_on(self, received: Received) -> Reply:
        reply = self._target.forward(received)
        return reply if self.is_open else Reply()


if __name__ == "__main__":
    unittest.main(verbosity=2)
