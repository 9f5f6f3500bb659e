"""Every request for streams, blocking and with asyncio; what is refused; positions and ends of followers."""

from __future__ import annotations

import asyncio
import inspect
import signal
import unittest
from collections.abc import Iterable

from rig import ServerTest

import encke

# Characters that a URL must escape, or that some programs take for the end of a line.
NAME = "chat/a b/é;x&y=%2F@now"
TEXT = "one\u2028two\x85three\u000bfour"


class Streams(ServerTest):
    def follow(self, *streams: str, from_: str | None = None, last: int | None = None, after: str | None = None) -> list[object]:
        with self.client.follow(streams[0] if len(streams) == 1 else streams, from_=from_, last=last, after=after) as records:
            return [record.data for record in records]

    def test_a_stream_from_its_creation_to_its_end(self) -> None:
        name = f"{self.name}/{NAME}"
        self.assertTrue(self.client.create(name, data=[1, 2], metadata={"title": "é"}))
        self.assertFalse(self.client.create(name, metadata={"title": "é"}))
        appended = self.client.append(name, {"text": TEXT})
        self.assertFalse(appended.repeated or appended.stop_requested)
        all_appended = self.client.append_all(name, ["three", None])
        assert all_appended is not None
        everything = [[1, 2], {"text": TEXT}, "three", None]
        page = self.client.read(name)
        self.assertEqual((page.data, page.next_offset, page.closed), (everything, all_appended.next_offset, False))
        self.assertEqual(self.client.read(name, appended.next_offset).data, ["three", None])
        self.assertEqual(self.client.read(name, last=1).data, [None])
        info = self.client.head(name)
        self.assertEqual((info.messages, info.metadata, info.closed), (4, {"title": "é"}, False))
        self.client.close_stream(name, "done")
        self.assertEqual(self.client.head(name).end_reason, "done")
        self.assertEqual([listed.name for listed in self.client.list(self.name)], [name])
        with self.assertRaises(encke.StreamClosedError) as raised:
            self.client.append(name, 5)
        self.assertEqual((raised.exception.status, raised.exception.code, raised.exception.end_reason), (409, "closed", "done"))
        self.assertEqual(self.follow(name), everything)
        self.assertEqual(self.follow(name, last=2), ["three", None])
        self.assertEqual(self.follow(name, from_=appended.next_offset), ["three", None])
        # Over /v1/events as well, where the name has an offset behind it.
        with self.client.follow({name: encke.BEGINNING}) as records:
            self.assertEqual([record.data for record in records], everything)
        self.client.delete(name)
        with self.assertRaises(encke.NotFoundError) as gone:
            self.client.head(name)
        self.assertEqual(gone.exception.code, "not_found")

    def test_text_and_bytes(self) -> None:
        for content_type, messages, whole in (
            ("text/plain", ["é", TEXT], ("é" + TEXT).encode()),
            ("application/octet-stream", [b"\xff\n", b"\x00"], b"\xff\n\x00"),
        ):
            with self.subTest(content_type):
                name = f"{self.name}/{content_type}"
                self.client.create(name, content_type)
                self.client.append_all(name, messages)
                self.client.close_stream(name)
                self.assertEqual(self.client.read(name).data, whole)
                self.assertEqual(self.follow(name), messages)
                with self.client.follow([name], times=True) as records:
                    found = [*records]
                self.assertEqual([record.data for record in found], messages)
                self.assertTrue(all(record.time_ms for record in found))

    def test_batches_are_bounded_and_complete(self) -> None:
        self.client.create(self.name)
        messages = [f"{number}{'x' * 200_000}" for number in range(12)]
        self.client.append_all(self.name, iter(messages))
        self.assertEqual(self.client.read(self.name).data, messages)
        self.assertIsNone(self.client.append_all(self.name, []))

    def test_each_record_of_an_append_is_a_position(self) -> None:
        self.client.create(self.name)
        self.client.append_all(self.name, [*range(5)])
        self.client.append_all(self.name, [*range(5, 10)])
        self.client.close_stream(self.name)
        with self.client.follow(self.name) as records:
            offsets = [record.offset for record in records]
        for number, offset in enumerate(offsets):
            self.assertEqual(self.follow(self.name, from_=offset), [*range(number + 1, 10)])
        # Of several streams, an id behind a part of an append repeats that append.
        with self.client.follow([self.name]) as records:
            ids = [record.id for record in records]
        begins = [0, 0, 0, 0, 5, 5, 5, 5, 5, 10]
        for id, begin in zip(ids, begins):
            self.assertEqual(self.after(id), [*range(begin, 10)])

    def after(self, id: str | None) -> list[object]:
        with self.client.follow([self.name], after=id) as records:
            return [record.data for record in records]

    def test_forks_truncation_and_gone_records(self) -> None:
        fork = f"{self.name}-fork"
        self.client.create(self.name, data=1)
        first = self.client.append(self.name, 2)
        self.client.append(self.name, 3)
        self.assertTrue(self.client.fork(fork, self.name, at=first.next_offset))
        self.client.append(fork, 4)
        self.assertEqual(self.client.read(fork).data, [1, 2, 4])
        self.assertEqual(self.client.truncate(self.name, first.next_offset), first.next_offset)
        self.assertEqual(self.client.read(self.name).data, [3])
        self.client.truncate(self.name, encke.NOW)
        for request in (self.client.read, self.client.follow):
            with self.assertRaises(encke.GoneError) as raised:
                result = request(self.name, from_=first.next_offset)
                if isinstance(result, encke.Following):
                    next(result)
            self.assertEqual((raised.exception.status, raised.exception.code), (410, "no_longer_kept"))

    def test_appends_if_nobody_else_has(self) -> None:
        self.client.create(self.name)
        end = self.client.append(self.name, 1).next_offset
        newer = self.client.append(self.name, 2, if_match=end)
        with self.assertRaises(encke.TailDiffersError) as raised:
            self.client.append(self.name, 3, if_match=end)
        self.assertEqual(raised.exception.next_offset, newer.next_offset)
        self.client.append(self.name, 4, if_match=raised.exception.next_offset)
        self.assertEqual(self.client.read(self.name).data, [1, 2, 4])

    def test_a_reader_stops_the_writer(self) -> None:
        other = f"{self.name}-other"
        for name in (self.name, other):
            self.client.create(name, data=1)
        notices: list[encke.Notice] = []
        of_one = self.client.follow(self.name, on_notice=notices.append)
        of_several = self.client.follow([self.name, other], on_notice=notices.append)
        with of_one, of_several:
            next(of_one)
            next(of_several), next(of_several)
            self.client.stop(self.name)
            self.assertTrue(self.client.append(self.name, 2).stop_requested)
            self.client.close_stream(self.name, "stopped")
            self.client.close_stream(other)
            self.assertEqual([record.data for record in of_one], [2])
            self.assertEqual([record.data for record in of_several], [2])
        stop, end = encke.StopRequested(self.name), encke.End(self.name, "closed", "stopped")
        self.assertEqual(notices, [stop, end, stop, end, encke.End(other, "closed", None)])

    def test_what_is_refused_is_raised(self) -> None:
        client = self.client
        requests: Iterable[object] = (
            lambda: client.read("missing"),
            lambda: client.append("missing", 1),
            lambda: client.close_stream("missing"),
            lambda: next(client.follow("missing")),
            lambda: next(client.follow(["missing"])),
            lambda: client.job("missing", 1),
        )
        for request in requests:
            assert callable(request)
            with self.assertRaises(encke.NotFoundError) as raised:
                request()
            self.assertFalse(raised.exception.may_be_done)
        with self.assertRaises(encke.EnckeError) as twice:
            client.create("there")
            next(client.follow(["there", "there"]))
        self.assertEqual((twice.exception.status, twice.exception.code), (400, "named_twice"))
        with self.assertRaises(ValueError):
            client.follow("s", from_="now", last=1)
        nowhere = encke.Encke("http://127.0.0.1:1", retry=encke.Retry(0.01, 0.01, 0.05))
        with nowhere, self.assertRaises(encke.UnreachableError) as unreachable:
            nowhere.post("pool", 1)
        self.assertFalse(unreachable.exception.may_be_done)

    def test_asyncio_has_the_same(self) -> None:
        """Names and parameters are the same, but for how a client and a follower are closed and iterated."""
        for of_sync, of_async in ((encke.Encke, encke.AsyncEncke), (encke.Following, encke.AsyncFollowing)):
            methods = {name: value for name, value in vars(of_sync).items() if inspect.isfunction(value) and not name.startswith("_")}
            for name, method in methods.items():
                other = getattr(of_async, name)
                self.assertEqual([*inspect.signature(method).parameters.values()], [*inspect.signature(other).parameters.values()], name)
                self.assertEqual(method.__doc__, other.__doc__)
        asyncio.run(self.asynchronous())

    async def asynchronous(self) -> None:
        async with self.server.async_client() as client:
            await client.create(self.name, data=0)
            # Appends of one client at the same time are numbered in turn.
            await asyncio.gather(*(client.append(self.name, number) for number in range(1, 21)))
            self.assertEqual(sorted((await client.read(self.name)).data), [*range(21)])
            async with client.follow(self.name, from_=encke.NOW) as records:
                # It begins when the server has its request.
                first = asyncio.ensure_future(records.__anext__())
                while not first.done():
                    await client.append(self.name, "begun")
                    await asyncio.sleep(0.05)
                self.assertEqual((await first).data, "begun")
                # A cancelled wait loses nothing.
                with self.assertRaises(asyncio.TimeoutError):
                    while True:
                        await asyncio.wait_for(records.__anext__(), 0.3)
                await client.append(self.name, 21)
                while (data := (await records.__anext__()).data) == "begun":
                    pass
                self.assertEqual(data, 21)
                self.server.end(signal.SIGTERM)
                self.server.start()
                await client.append(self.name, 22)
                await client.close_stream(self.name, "failed")
                self.assertEqual([record.data async for record in records], [22])
            fork = f"{self.name}-fork"
            await client.fork(fork, self.name)
            await client.truncate(fork, encke.NOW)
            await client.stop(fork)
            self.assertTrue((await client.head(fork)).stop_requested)
            names = [info.name async for info in client.list(self.name)]
            self.assertEqual(names, [self.name, fork])
            await client.delete(fork)
            with self.assertRaises(encke.StreamClosedError):
                await client.append(self.name, 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
