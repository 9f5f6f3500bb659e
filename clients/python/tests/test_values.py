"""Values: types of jobs and results, names, errors that are copied, and secrets that are not printed."""

from __future__ import annotations

import asyncio
import base64
import copy
import decimal
import inspect
import io
import logging
import pickle
import threading
import unittest
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import httpx
from rig import Reply, Scripted, ServerTest, always

import encke
from encke import errors, pools
from encke.steps import Open, RenewToken, Request, Send

SECRET = "a-very-secret-token"
PROBLEM = {"Content-Type": "application/problem+json"}
# Bodies that another type could be read from, with the type of their job and the value that it means.
TYPED: list[tuple[bytes, str, object]] = [
    (b"[65,66]", "application/json", [65, 66]),
    (b'"AB"', "application/JSON; charset=utf-8", "AB"),
    (b"[65,66]", "text/plain", "[65,66]"),
    ("é".encode(), "Text/Plain; charset=utf-8", "é"),
    (b"AB", "application/octet-stream", b"AB"),
    (b"[255,254]", "application/octet-stream", b"[255,254]"),
    (b"null", "image/png", b"null"),
    (b"\xff\xfe", "image/png", b"\xff\xfe"),
    (b"[1]", "application/problem+json", b"[1]"),
    (b"a" * (1 << 17) + b"\x00" * (1 << 17), "application/octet-stream", b"a" * (1 << 17) + b"\x00" * (1 << 17)),
    (b"", "application/octet-stream", b""),
    # Bodies that are not of their type.
    (b"\xff", "text/plain", b"\xff"),
    (b"{", "application/json", "{"),
    (b"\xff", "application/json", b"\xff"),
]


def not_found() -> None:
    error = errors.refusal(404, httpx.Headers(PROBLEM), b'{"error":{"code":"not_found","message":"there is no such stream"}}')
    error.request, error.may_be_done = "GET /v1/stream/s", True
    raise error


class Values(ServerTest):
    def test_the_type_of_a_job_decides_what_its_bytes_mean(self) -> None:
        self.client.create_pool(self.name)
        found: list[tuple[str, object]] = []

        def handler(job: encke.Job) -> object:
            found.append((job.content_type, job.data))
            return job.data

        worker = encke.Worker(self.client, self.name, "w", handler)
        thread = threading.Thread(target=worker.run)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(worker.stop)
        for body, content_type, value in TYPED:
            with self.subTest(content_type, body=body[:20]):
                status, result = self.server.raw("POST", f"/v1/pool/{self.name}?wait=60", body, Content_Type=content_type)
                self.assertEqual((status, found[-1]), (200, (content_type, value)))
                # The result has the type of its value.
                default = pools.encode(value, None)[0]
                self.assertEqual(result, default)
                posted = self.client.post(self.name, value, wait_s=60)
                assert posted.result is not None
                self.assertEqual(posted.result.data, value)
        self.assertEqual(len(found), 2 * len(TYPED))

    def test_data_that_changes_while_an_append_waits(self) -> None:
        cases: list[tuple[str, Any, object]] = [("text/plain", bytearray(b"1"), b"1"), ("application/json", [1], [[1]])]
        for content_type, data, value in cases:
            with self.subTest(content_type):
                name = f"{self.name}/{content_type}"
                self.client.create(name, content_type)

                async def run(name: str = name, data: Any = data) -> None:
                    async with self.server.async_client() as client:
                        appending = asyncio.ensure_future(client.append(name, data))
                        # It begins, and asks for the type of the stream.
                        await asyncio.sleep(0)
                        data[0] = 50
                        await appending

                asyncio.run(run())
                self.assertEqual(self.client.read(name).data, value)

    def test_values_that_are_no_bytes_are_refused(self) -> None:
        self.client.create(self.name, "text/plain")
        values: list[object] = [5, [65, 66], {}, None, 1.5]
        for value in values:
            with self.assertRaises(TypeError):
                self.client.append(self.name, value)
        self.client.append_all(self.name, ["a", b"b", bytearray(b"c"), memoryview(b"d")])
        self.assertEqual(self.client.read(self.name).data, b"abcd")

    def test_names_that_would_reach_something_else_are_refused(self) -> None:
        self.client.create_pool("kept")
        wake = encke.Wake("../x", "w", 1, "t", [], {})
        server = Scripted(always(Reply(204)))
        self.addCleanup(server.close)
        calls: list[Callable[[encke.Encke], object]] = []
        for name in ("../pool/kept", "a/../../pool/kept", "..", ".", "a/./b", "a/..", "__ds/subscriptions/x", "/__ds/jwks.json"):
            calls += [
                lambda client, name=name: client.delete(name),  # type: ignore[misc]
                lambda client, name=name: client.create(name),  # type: ignore[misc]
                lambda client, name=name: client.append(name, 1),  # type: ignore[misc]
                lambda client, name=name: client.append(name, "1", content_type="text/plain"),  # type: ignore[misc]
                lambda client, name=name: client.read(name),  # type: ignore[misc]
                lambda client, name=name: client.head(name),  # type: ignore[misc]
                lambda client, name=name: next(client.follow(name)),  # type: ignore[misc]
                lambda client, name=name: client.fork("a", name),  # type: ignore[misc]
            ]
        for name in ("..", ".", "kept/work", "kept/job/1/ack", "../stream/a"):
            calls += [
                lambda client, name=name: client.create_pool(name),  # type: ignore[misc]
                lambda client, name=name: client.post(name, 1),  # type: ignore[misc]
                lambda client, name=name: client.job(name, 1),  # type: ignore[misc]
                lambda client, name=name: encke.Worker(client, name, "w", str).run(),  # type: ignore[misc]
                lambda client, name=name: client.subscribe(name, wake_stream="w"),  # type: ignore[misc]
                lambda client, name=name: client.unsubscribe(name),  # type: ignore[misc]
                lambda client, name=name: client.claim(name, "w"),  # type: ignore[misc]
            ]
        calls.append(lambda client: client.ack(wake, {}))
        calls.append(lambda client: client.release(wake))
        with encke.Encke(server.url) as client:
            for call in calls:
                with self.assertRaises(ValueError):
                    call(client)
        self.assertEqual(server.received, [])
        # A name with the escapes of a dot is that name.
        for name in ("%2e%2e/pool/kept", "...", "a..b", ".a", "a/__ds"):
            with self.subTest(name):
                self.assertTrue(self.client.create(name, data=name))
                self.assertEqual(self.client.read(name).data, [name])
                self.client.delete(name)
        self.assertEqual(self.server.raw("GET", "/v1/pool/kept")[0], 200)

    def test_a_name_that_ends_like_an_offset(self) -> None:
        for name in ("user@now", "user@-1", f"user@{'0' * 16}_{'0' * 16}"):
            with self.subTest(name):
                self.client.create("user", data="another")
                self.client.create(name, data="first")
                self.client.append(name, "last")
                with self.client.follow(name, last=1) as records:
                    self.assertEqual(next(records).data, "last")
                with self.client.follow([name]) as records:
                    self.assertEqual([next(records).data, next(records).data], ["first", "last"])
                with self.assertRaises(ValueError) as raised:
                    self.client.follow([name, "other"], last=1)
                self.assertIn(name, str(raised.exception))
                self.client.delete(name)
                self.client.delete("user")
        # Such an end is no offset for the server.
        self.client.create("user@later", data=1)
        with self.client.follow(["user@later"], last=1) as records:
            self.assertEqual(next(records).data, 1)

    def test_errors_are_copied_with_all_that_they_have(self) -> None:
        kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, encke.EnckeError)]
        self.assertGreaterEqual(len(kinds), 8)
        closed = errors.refusal(409, httpx.Headers({**PROBLEM, "Encke-End-Reason": "done"}), b'{"error":{"code":"closed","message":"m"}}')
        differs = errors.refusal(
            412, httpx.Headers({**PROBLEM, "Stream-Next-Offset": "7"}), b'{"error":{"code":"tail_differs","message":"m"}}'
        )
        made: list[Exception] = [closed, differs, encke.RetryLater(7, "later"), encke.InvalidSignatureError("old")]
        made += [
            encke.UncertainProducerError(),
            encke.ProducerInUseError("s", "p"),
            encke.UnreachableError("m"),
            errors.NotEnckeError(200, "u", "m"),
        ]
        made += [kind(400, "code", "message") for kind in kinds if kind.__init__ is encke.EnckeError.__init__]
        self.assertGreaterEqual({type(error) for error in made}, {*kinds})
        for error in made:
            if isinstance(error, encke.EnckeError):
                error.may_be_done, error.request = True, "GET /v1/stream/s"
            copies = [pickle.loads(pickle.dumps(error, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
            for other in (*copies, copy.copy(error), copy.deepcopy(error)):
                with self.subTest(type(error).__name__):
                    self.assertIs(type(other), type(error))
                    self.assertEqual((str(other), vars(other), other.args), (str(error), vars(error), error.args))

    def test_an_error_of_another_process(self) -> None:
        with ProcessPoolExecutor(1) as processes:
            raised = processes.submit(not_found).exception(60)
            self.assertIsNone(processes.submit(print).exception(60))
        assert isinstance(raised, encke.NotFoundError), raised
        self.assertEqual((raised.code, raised.may_be_done, raised.request), ("not_found", True, "GET /v1/stream/s"))

    def test_secrets_are_not_printed(self) -> None:
        request = Request(
            "GET", "/v1/stream/s", [("signature", SECRET)], {"Job-Token": SECRET}, SECRET.encode(), 1, SECRET, f"http://a/?{SECRET}"
        )
        client = encke.Encke(f"http://user:{SECRET}@127.0.0.1:1", headers={"Cookie": SECRET}, retry=encke.Retry(0.01, 0.01, 0.1))
        self.addCleanup(client.close)
        wake = encke.Wake("a", "w", 1, SECRET, [], {"token": SECRET})
        for value in (
            client.options,
            request,
            Send(request, SECRET),
            Open(request, SECRET),
            RenewToken(SECRET),
            wake,
            encke.Posted(1, SECRET),
        ):
            with self.subTest(type(value).__name__):
                self.assertNotIn(SECRET, repr(value))
                self.assertNotIn(SECRET, str(value))
        log = io.StringIO()
        handler = logging.StreamHandler(log)
        for name in ("encke", "httpx"):
            logger = logging.getLogger(name)
            logger.addHandler(handler)
            self.addCleanup(logger.removeHandler, handler)
            self.addCleanup(logger.setLevel, logger.level)
            logger.setLevel(logging.DEBUG)
        found: list[str] = []
        server = Scripted(always(Reply(200)))
        self.addCleanup(server.close)
        replies = [
            Reply(401),
            Reply(200, {"Content-Type": "text/html"}),
            Reply(302, {"Location": f"http://u:{SECRET}@b/?{SECRET}"}),
            Reply(503),
        ]
        url = server.url.replace("127.0.0.1", f"user:{SECRET}@127.0.0.1")
        for reply in replies:
            server.reply = always(reply)
            for address, token in ((url, None), (server.url, SECRET)):
                with encke.Encke(address, token=token, retry=encke.Retry(0.01, 0.01, 0.1)) as other:
                    for call in (other.read, other.delete):
                        with self.assertRaises(encke.EnckeError) as raised:
                            call("s")
                        found.append(f"{raised.exception!r} {raised.exception}")
        with self.assertRaises(encke.UnreachableError) as unreachable:
            client.read("s")
        found.append(f"{unreachable.exception!r} {unreachable.exception}")
        self.assertEqual(len(found), 4 * len(replies) + 1)
        self.assertIn("HTTP Request", log.getvalue())
        self.assertNotIn(SECRET, "".join(found) + log.getvalue())

    def test_a_password_of_the_address(self) -> None:
        server = Scripted(always(Reply(204)))
        self.addCleanup(server.close)
        url = server.url.replace("127.0.0.1", "us%65r:pass%40word@127.0.0.1")
        with self.assertRaises(ValueError) as raised:
            encke.Encke(url, token=SECRET)
        self.assertNotIn("word@", str(raised.exception))
        with encke.Encke(url) as client:
            client.delete("s")
            client.release(encke.Wake("a", "w", 1, "of-the-wake", [], {}))
        basic = base64.b64encode(b"user:pass@word").decode()
        self.assertEqual([sent.fields["Authorization"] for sent in server.received], [f"Basic {basic}", "Bearer of-the-wake"])

    def test_tokens_and_fields_that_can_not_be_sent(self) -> None:
        server = Scripted(always(Reply(204)))
        self.addCleanup(server.close)
        for secret in ("SECRET\n", "SECR\u00c9T", "SECRET A", "\x7fSECRET", ""):
            for made in (encke.Encke, encke.AsyncEncke):
                with self.subTest(secret, made=made), self.assertRaises(ValueError) as refused:
                    made(server.url, token=secret)
                self.assertNotIn("SECR", f"{refused.exception!r} {vars(refused.exception)}")
            with encke.Encke(server.url, token=lambda secret=secret: secret) as client:
                for call in (client.delete, lambda name: next(client.follow(name))):
                    with self.subTest(secret), self.assertRaises(encke.EnckeError) as raised:
                        call("s")
                    self.assertEqual(raised.exception.code, "bad_token")
                    self.assertNotIn("SECR", f"{raised.exception!r} {raised.exception} {raised.exception.__cause__}")
        for headers in ({"Cookie": "SECRET\r\nA: b"}, {"Cookie": " SECRET"}, {"a b": "SECRET"}, {"": ""}):
            with self.assertRaises(ValueError) as refused:
                encke.Encke(server.url, headers=headers)
            self.assertNotIn("SECRET", str(refused.exception))
        with encke.Encke(server.url, headers={"Cookie": "a=b; c", "X-Empty": ""}) as client:
            for use in (
                lambda: client.append("s", "a", content_type="text/plain\nA: b"),
                lambda: client.append("s", "a", content_type="text/plain", if_match="1\n"),
                lambda: client.create("s", owner="\u00e9"),
                lambda: client.job("p", 1, token="SECRET\n"),
            ):
                with self.assertRaises(ValueError) as refused:
                    use()
                self.assertNotIn("SECRET", str(refused.exception))
            self.assertEqual(server.received, [])
            client.delete("s")
        self.assertEqual((server.received[0].fields["Cookie"], server.received[0].fields["X-Empty"]), ("a=b; c", ""))

    def test_a_stream_that_has_another_type_now(self) -> None:
        client = self.client
        for content_type, other in (("text/plain", "application/json"), ("application/json", "text/plain")):
            client.create(self.name, other)
            client.append(self.name, "before")
            self.server.raw("DELETE", f"/v1/stream/{self.name}")
            self.server.raw("PUT", f"/v1/stream/{self.name}", Content_Type=content_type)
            self.assertFalse(client.append(self.name, "text").repeated)
            self.server.raw("DELETE", f"/v1/stream/{self.name}")
            self.server.raw("PUT", f"/v1/stream/{self.name}", Content_Type=other)
            # The messages that were sent are gone: this call fails, and the next one knows the type.
            with self.assertRaises(encke.EnckeError) as raised:
                client.append_all(self.name, iter(["a", "b"]))
            self.assertEqual(raised.exception.code, "type_differs")
            client.append(self.name, "after")
            client.delete(self.name)

    def test_integers_that_python_does_not_read(self) -> None:
        self.client.create(self.name)
        self.client.create_pool(self.name)
        digits = "9" * 5000
        self.server.raw("POST", f"/v1/stream/{self.name}", f"[[7,{digits}]]".encode(), Content_Type="application/json")
        expected = [7, decimal.Decimal(digits)]
        read = self.client.read(self.name).data[0]
        with self.client.follow(self.name) as of_one, self.client.follow([self.name]) as of_several:
            for value in (read, next(of_one).data, next(of_several).data, pools.decode("application/json", f"[7,{digits}]".encode())):
                self.assertEqual((value, type(value[0])), (expected, int))

    def test_the_time_to_a_deadline_does_not_depend_on_this_clock(self) -> None:
        members = {"job": 1, "attempt": 1, "token": "t", "deadline_ms": 1_700_000_009_000, "type": "text/plain", "data": "a"}
        # The server's date is 9 s before the deadline, and up to a second older than its clock.
        self.assertEqual(encke.Job("p", members, "Tue, 14 Nov 2023 22:13:20 GMT").rest_s, 8)
        self.client.create_pool(self.name, ack_ms=30_000)
        self.client.post(self.name, 1)

        async def take() -> encke.Job | None:
            async with self.server.async_client() as client:
                return await client._call(pools.poll(self.name, "w", 1, 30))

        job = asyncio.run(take())
        assert job is not None
        # The server has sent its date, which a job without one would not have.
        self.assertTrue(0 < job.rest_s <= 30, job.rest_s)


if __name__ == "__main__":
    unittest.main(verbosity=2)
