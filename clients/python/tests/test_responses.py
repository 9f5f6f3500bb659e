"""Responses that are not the server's, redirects, and refusals that name a time: no call succeeds by them or waits without a limit."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import tempfile
import threading
import unittest
from collections.abc import Awaitable, Callable
from pathlib import Path

from rig import PATIENCE_S, RETRY, Received, Reply, Scripted, Server, acknowledged, always, fixed_port, problem, wait_until
from test_access import write_certificate

import encke
from encke.options import RETRY_AFTER_S_MAX, Backoff
from encke.steps import FOREIGN_RESPONSES_MAX, LARGE_BODY_BYTES, LARGE_UPLOADS_MAX, REDIRECTS_MAX

TOKEN = "a-secret-token"
HTML = Reply(200, {"Content-Type": "text/html", "Date": "Mon, 01 Jan 2024 00:00:00 GMT"}, b"<html>Please log in</html>")
REDIRECTS = (300, 301, 302, 303, 305, 307, 308)

Use = Callable[[encke.Encke], object]
WAKE = encke.Wake("indexer", "w", 1, "t", [], {})
# Every call. Those of the second group have a success without any field that only Encke has.
CALLS: dict[str, Use] = {
    "create": lambda client: client.create("s"),
    "fork": lambda client: client.fork("s", "t"),
    "append": lambda client: client.append("s", 1, content_type="application/json"),
    "append, its type not known": lambda client: client.append("s", 1),
    "append of a named producer": lambda client: client.append("s", "1", content_type="text/plain", producer=encke.Producer("p")),
    "close_stream": lambda client: client.close_stream("s"),
    "read": lambda client: client.read("s"),
    "head": lambda client: client.head("s"),
    "list": lambda client: [*client.list()],
    "follow one": lambda client: [*client.follow("s")],
    "follow several": lambda client: [*client.follow(["s", "t"])],
    "create_pool": lambda client: client.create_pool("p"),
    "post": lambda client: client.post("p", 1),
    "post and wait": lambda client: client.post("p", 1, wait_s=1),
    "job": lambda client: client.job("p", 1),
    "work": lambda client: encke.Worker(client, "p", "w", str).run(),
    "subscribe": lambda client: client.subscribe("indexer", pattern="a/*", wake_stream="w"),
    "claim": lambda client: client.claim("indexer", "w"),
    "ack": lambda client: client.ack(WAKE, {}),
    "jwks": lambda client: client.jwks(),
}
BARE: dict[str, Use] = {
    "stop": lambda client: client.stop("s"),
    "truncate": lambda client: client.truncate("s", encke.NOW),
    "delete": lambda client: client.delete("s"),
    "unsubscribe": lambda client: client.unsubscribe("indexer"),
    "release": lambda client: client.release(WAKE),
}


class Responses(unittest.TestCase):
    def scripted(self, reply: Callable[[Received], Reply], certificate: ssl.SSLContext | None = None) -> Scripted:
        server = Scripted(reply, certificate)
        self.addCleanup(server.close)
        return server

    def client(self, url: str, **options: object) -> encke.Encke:
        client = encke.Encke(url, token=TOKEN, retry=encke.Retry(0.01, 0.01, PATIENCE_S), **options)  # type: ignore[arg-type]
        self.addCleanup(client.close)
        return client

    def refused(self, use: Use, client: encke.Encke) -> encke.EnckeError:
        with self.assertRaises(encke.EnckeError) as raised:
            use(client)
        return raised.exception

    def test_a_page_of_another_server_is_no_success(self) -> None:
        json = Reply(200, {"Content-Type": "application/json"}, b"{}")
        for reply, calls in (
            (HTML, {**CALLS, **BARE}),
            (json, {**CALLS, **BARE}),
            (Reply(202), BARE),
            (Reply(206), CALLS),
            (Reply(204), CALLS),
        ):
            server = self.scripted(always(reply))
            client = self.client(server.url)
            for name, use in calls.items():
                if name == "work":  # Workers wait for the server.
                    continue
                with self.subTest(name, status=reply.status):
                    sent = len(server.received)
                    error = self.refused(use, client)
                    self.assertEqual((error.code, error.status), ("not_encke", reply.status))
                    self.assertIn(server.url + server.received[-1].path.partition("?")[0], error.message)
                    self.assertEqual(len(server.received) - sent, 1 if name.startswith("post") else FOREIGN_RESPONSES_MAX)

    def test_a_body_that_can_not_be_decoded(self) -> None:
        server = self.scripted(always(Reply(200, {"Content-Encoding": "gzip", "Stream-Next-Offset": "1"}, b"no gzip")))
        with encke.Encke(server.url, retry=encke.Retry(0.01, 0.01, 0)) as client:
            error = self.refused(lambda client: client.append("s", "a", content_type="text/plain"), client)
        self.assertEqual((error.code, error.may_be_done), ("unreachable", True))
        replies = [Reply(503, {"Content-Encoding": "gzip"}, b"no gzip")]

        async def follow() -> object:
            async with encke.AsyncEncke(server.url, retry=encke.Retry(0.01, 0.01, PATIENCE_S)) as client:
                return (await client.follow("s").__anext__()).data

        line = Reply(200, {"Content-Type": "application/x-ndjson"}, b'{"offset":"1","data":5}\n')
        server.reply = lambda _: replies.pop() if replies else line
        self.assertEqual(asyncio.run(follow()), 5)

    def test_a_page_of_another_server_is_no_success_with_asyncio(self) -> None:
        server = self.scripted(always(HTML))

        async def run() -> list[object]:
            async with encke.AsyncEncke(server.url, retry=encke.Retry(0.01, 0.01, PATIENCE_S)) as client:
                calls: list[Awaitable[object]] = [
                    client.create("s"),
                    client.append("s", 1),
                    client.follow("s").__anext__(),
                    client.delete("s"),
                ]
                return await asyncio.gather(*calls, return_exceptions=True)

        self.assertEqual([getattr(error, "code", error) for error in asyncio.run(run())], ["not_encke"] * 4)

    def test_lines_that_are_cut_or_odd(self) -> None:
        odd = (b"[]", b"1", b"<html>", b'{"offset":1}', b'{"control":[]}', b'{"disconnect":1}', b"\xff")
        for line in odd:
            server = self.scripted(always(Reply(200, {"Content-Type": "application/x-ndjson"}, line + b"\n")))
            with self.subTest(line):
                error = self.refused(lambda client: next(client.follow("s")), self.client(server.url))
                self.assertEqual(error.code, "not_encke")

    def test_a_redirect_is_an_error_with_both_addresses(self) -> None:
        other = self.scripted(always(Reply(204, {"Stream-Next-Offset": "1"})))
        elsewhere = (
            f"{other.url}/elsewhere?signature=secret",
            "//127.0.0.1:1/elsewhere",
            "https://localhost/elsewhere",
            "ftp://127.0.0.1/elsewhere",
        )
        wrong = ("http://[", "http://127.0.0.1:99999/", "", "mailto:a@b")
        for status, location in [
            *((status, elsewhere[0]) for status in REDIRECTS),
            *itertools.product((302, 308), elsewhere[1:] + wrong),
            (302, "/elsewhere"),
        ]:
            server = self.scripted(always(Reply(status, {"Location": location} if location else {})))
            client = self.client(server.url)
            for name, use in {**CALLS, **BARE}.items():
                with self.subTest(name, status=status, location=location):
                    error = self.refused(use, client)
                    self.assertEqual((error.status, error.code), (status, "redirected"))
                    self.assertIn(server.url, error.message)
                    if location not in wrong:
                        self.assertIn("elsewhere", error.message)
                    self.assertNotIn("secret", str(error))
                    self.assertFalse([request for request in server.received if "elsewhere" in request.path])
        self.assertEqual(other.received, [])

    def test_a_redirect_of_the_same_origin_is_followed(self) -> None:
        def reply(request: Received) -> Reply:
            if request.path.startswith("/v1/"):
                return Reply(308, {"Location": "/moved" + request.path})
            return acknowledged(request, offset="7")

        server = self.scripted(reply)
        made = self.client(server.url).append("s", 1, content_type="application/json")
        self.assertEqual((made.next_offset, made.repeated), ("7", False))
        first, second = server.received
        self.assertEqual((second.method, second.path, second.body), ("POST", "/moved/v1/stream/s", b"[1]"))
        self.assertEqual(second.fields["Authorization"], f"Bearer {TOKEN}")
        self.assertEqual(second.fields["Producer-Id"], first.fields["Producer-Id"])

    def test_redirects_in_a_circle_end(self) -> None:
        server = self.scripted(lambda request: Reply(307, {"Location": request.path}))
        error = self.refused(lambda client: client.delete("s"), self.client(server.url))
        self.assertEqual((error.code, len(server.received)), ("redirected", REDIRECTS_MAX + 1))

    def test_a_redirect_to_https_of_the_same_host_is_followed_and_not_back(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            certificate, key = Path(folder, "certificate.pem"), Path(folder, "key.pem")
            write_certificate(certificate, key)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
            trusted = ssl.create_default_context(cafile=str(certificate))
        plain = self.scripted(lambda request: Reply(308, {"Location": secure.url + request.path}))
        secure = self.scripted(lambda _: Reply(204), context)
        self.client(plain.url, verify=trusted).delete("s")
        self.assertEqual(secure.received[0].fields["Authorization"], f"Bearer {TOKEN}")
        secure.reply = lambda request: Reply(308, {"Location": plain.url + request.path})
        error = self.refused(lambda client: client.delete("s"), self.client(secure.url, verify=trusted))
        self.assertEqual((error.code, len(plain.received)), ("redirected", 1))

    def test_the_server_s_own_redirect(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            certificate, key = Path(folder, "certificate.pem"), Path(folder, "key.pem")
            write_certificate(certificate, key)
            trusted = ssl.create_default_context(cafile=str(certificate))
            plain = f"127.0.0.1:{fixed_port(skipped=1000)}"
            server = Server("--tls-cert", str(certificate), "--tls-key", str(key), "--redirect-http", plain, scheme="https")
            self.addCleanup(server.remove)
            with encke.Encke(server.url, verify=trusted, retry=RETRY) as client:
                client.create("s", data=1)
            client = self.client(f"http://{plain}", verify=trusted)
            self.assertEqual(client.read("s").data, [1])
            with client.follow("s") as records:
                self.assertEqual(next(records).data, 1)
            for write in (lambda: client.append("s", 2), lambda: client.delete("s"), lambda: client.close_stream("s")):
                with self.assertRaises(encke.EnckeError) as raised:
                    write()
                self.assertEqual(raised.exception.status, 403)

    def test_the_wait_that_a_refusal_asks_for_is_bounded(self) -> None:
        retry = encke.Retry(0.25, 10, 60)
        for field in ("2592000", "1e9", "inf", "nan", "-5", "", "9" * 10_000, "Wed, 21 Oct 2065 07:28:00 GMT", "٣"):
            with self.subTest(field[:30]):
                wait = Backoff(retry).wait(field)
                assert wait is not None
                self.assertTrue(0 < wait <= RETRY_AFTER_S_MAX + retry.first_s, wait)
        most = Backoff(retry).wait(str(RETRY_AFTER_S_MAX + 1))
        assert most is not None
        self.assertGreater(most, RETRY_AFTER_S_MAX)
        # A call gives up instead.
        self.assertIsNone(Backoff(retry, retry.give_up_s).wait("2592000"))
        for wrong in ((0, 1, 1), (2, 1, 1), (1, float("inf"), 1), (float("nan"), 1, 1), (1, 1, -1), (1, 1, float("nan"))):
            with self.assertRaises(ValueError):
                encke.Retry(*wrong)

    def test_a_large_upload_that_is_cut_is_not_repeated_for_long(self) -> None:
        server = self.scripted(always(Reply()))
        client = self.client(server.url)
        for size, count in ((LARGE_BODY_BYTES + 1, LARGE_UPLOADS_MAX), (LARGE_BODY_BYTES, LARGE_UPLOADS_MAX + 1)):
            before = len(server.received)

            def reply(request: Received, before: int = before) -> Reply:
                # The last upload would succeed.
                return Reply() if len(server.received) - before <= LARGE_UPLOADS_MAX else acknowledged(request)

            server.reply = reply
            with self.subTest(size):
                if size > LARGE_BODY_BYTES:
                    with self.assertRaises(encke.UnreachableError) as raised:
                        client.append("s", b"a" * size, content_type="text/plain")
                    self.assertTrue(raised.exception.may_be_done)
                else:
                    client.append("s", b"a" * size, content_type="text/plain")
                self.assertEqual(len(server.received) - before, count)

    def test_a_body_that_is_too_large_is_refused_once(self) -> None:
        server = Server("--body-max", "1048576")
        self.addCleanup(server.remove)
        client = self.client(server.url)
        client.create("s", "text/plain")
        with self.assertRaises(encke.EnckeError) as raised:
            client.append("s", b"a" * (LARGE_BODY_BYTES + 1))
        self.assertEqual((raised.exception.status, raised.exception.may_be_done), (413, False))

    def test_what_a_proxy_refuses_may_have_been_done(self) -> None:
        for status, may_be_done in ((400, False), (413, False), (500, True), (503, True), (504, True)):
            server = self.scripted(always(Reply(status, {"Content-Type": "text/html"}, b"<html>")))
            client = encke.Encke(server.url, retry=encke.Retry(0.01, 0.01, 0))
            self.addCleanup(client.close)
            with self.subTest(status):
                error = self.refused(lambda client: client.append("s", b"1", content_type="text/plain"), client)
                self.assertEqual(error.may_be_done, may_be_done)
                server.reply = acknowledged
                client.append("s", b"2", content_type="text/plain")
                epochs = [request.fields["Producer-Epoch"] for request in server.received]
                # Another body has another number.
                self.assertEqual(epochs, ["0", "1"] if may_be_done else ["0", "0"])
            posts = self.scripted(always(Reply(status)))
            self.assertEqual(self.refused(lambda client: client.post("p", 1), self.client(posts.url)).status, status)
            self.assertEqual(len(posts.received), 1)

    def test_an_append_whose_refusal_is_uncertain_is_made_once(self) -> None:
        server = Server()
        self.addCleanup(server.remove)
        refusals: list[Reply] = []

        def carried_out_and_refused(request: Received) -> Reply:
            reply = server.forward(request)
            return refusals.pop() if refusals else reply

        proxy = self.scripted(carried_out_and_refused)
        with server.client() as client, encke.Encke(proxy.url, retry=encke.Retry(0.01, 0.01, 0)) as impatient:
            client.create("s")
            client.create_pool("p")
            for code in ("unconfirmed", "no_dispatcher"):
                refusals.append(problem(503, code))
                self.assertTrue(self.client(proxy.url).append("s", code, content_type="application/json").repeated)
            for code, status in (("unconfirmed", 503), ("no_dispatcher", 503), ("internal", 500)):
                with self.subTest(code):
                    producer = encke.Producer(code)

                    def append(data: str, producer: encke.Producer = producer) -> object:
                        return impatient.append("s", data, producer=producer, content_type="application/json")

                    refusals.append(problem(status, code))
                    with self.assertRaises(encke.EnckeError) as raised:
                        append("named")
                    self.assertEqual((raised.exception.code, raised.exception.may_be_done), (code, True))
                    with self.assertRaises(encke.UncertainProducerError):
                        append("another")
                    before = len(proxy.received)
                    refusals.append(problem(status, code))
                    error = self.refused(lambda client: client.post("p", 1), self.client(proxy.url))
                    self.assertEqual((error.code, error.may_be_done, len(proxy.received) - before), (code, True, 1))
            self.assertEqual(client.read("s").data, ["unconfirmed", "no_dispatcher", *["named"] * 3])

    def test_an_error_of_another_server_in_json_is_no_refusal_of_encke(self) -> None:
        body = b'{"error":{"code":502,"message":"Bad Gateway","status":"UNAVAILABLE"}}'
        of_text = b'{"error":{"code":"closed","message":"for the night"}}'
        for content_type, sent in (("application/json", body), ("application/problem+json", body), ("application/json", of_text)):
            server = self.scripted(always(Reply(502, {"Content-Type": content_type}, sent)))
            client = encke.Encke(server.url, retry=encke.Retry(0.01, 0.01, 0))
            self.addCleanup(client.close)
            with self.subTest(content_type, body=sent):
                error = self.refused(lambda client: client.append("s", b"1", content_type="text/plain"), client)
                self.assertEqual((error.code, error.may_be_done), ("http_error", True))
                server.reply = acknowledged
                client.append("s", b"2", content_type="text/plain")
                # Another body has another number.
                self.assertEqual([request.fields["Producer-Epoch"] for request in server.received], ["0", "1"])

    def test_workers_and_followers_wait_for_the_end_of_foreign_responses(self) -> None:
        server = Server()
        self.addCleanup(server.remove)
        foreign: list[Reply] = []

        def reply(request: Received) -> Reply:
            return foreign.pop() if foreign else server.forward(request)

        proxy = self.scripted(reply)
        for kind in (HTML, Reply(500), Reply(521)):
            with self.subTest(kind.status):
                client = self.client(proxy.url)
                # The proxy may still poll for the worker before, which would get a job of the same pool.
                pool = f"p{kind.status}"
                server.raw("PUT", f"/v1/pool/{pool}", b'{"type":"claim"}')
                worker = encke.Worker(client, pool, "w", lambda job: job.data, poll_s=1)
                thread = threading.Thread(target=worker.run)
                foreign[:] = [kind] * (FOREIGN_RESPONSES_MAX + 1)
                with self.assertLogs("encke", "WARNING") as logs:
                    thread.start()
                    wait_until(lambda logs=logs: len(logs.output) > FOREIGN_RESPONSES_MAX)  # type: ignore[misc]
                posted = client.post(pool, "a", wait_s=30)
                worker.stop()
                thread.join(PATIENCE_S)
                self.assertFalse(thread.is_alive())
                assert posted.result is not None
            if kind.status == 521:  # Followers wait after it from the beginning, as after 502.
                continue
            with self.subTest("follow", status=kind.status):
                first, last = (
                    Reply(200, {"Content-Type": "application/x-ndjson"}, b'{"offset":"%d","data":%d}\n' % (n, n)) for n in range(2)
                )
                replies = iter([first, *[kind] * (FOREIGN_RESPONSES_MAX + 1), last])
                line = self.scripted(lambda _, replies=replies: next(replies))  # type: ignore[misc]
                with self.client(line.url).follow("s") as records, self.assertLogs("encke", "WARNING") as logs:
                    self.assertEqual([next(records).data, next(records).data], [0, 1])
                self.assertGreater(len(logs.output), FOREIGN_RESPONSES_MAX)
                # A follower that has had no line raises.
                with self.assertRaises(encke.EnckeError):
                    next(self.client(self.scripted(always(kind)).url).follow("s"))

    def test_statuses_of_a_content_delivery_network(self) -> None:
        for status in (520, 521, 522, 523, 524):
            replies = [Reply(status)]
            server = self.scripted(lambda request, replies=replies: replies.pop() if replies else acknowledged(request, 204))  # type: ignore[misc]
            with self.subTest(status):
                self.assertTrue(self.client(server.url).append("s", b"1", content_type="text/plain").repeated)

    def test_an_error_names_the_stream_and_has_the_server_s_message(self) -> None:
        server = Server()
        self.addCleanup(server.remove)
        client = self.client(server.url)
        name = "chat/é b"
        calls: dict[str, Callable[[], object]] = {
            "append": lambda: client.append(name, 1),
            "append of a type": lambda: client.append(name, "1", content_type="text/plain"),
            "head": lambda: client.head(name),
            "read": lambda: client.read(name),
            "follow": lambda: next(client.follow(name)),
            "follow several": lambda: next(client.follow([name, "other"])),
            "delete": lambda: client.delete(name),
        }
        for name_of_call, use in calls.items():
            with self.subTest(name_of_call):
                with self.assertRaises(encke.NotFoundError) as raised:
                    use()
                error = raised.exception
                self.assertIn(name, str(error))
                self.assertIn(error.message, str(error))
                self.assertEqual((error.status, error.code), (404, "not_found"))
                self.assertNotIn(error.message, ("", "Not Found"))
        with (
            self.assertRaises(encke.UnreachableError) as unreachable,
            encke.Encke("http://127.0.0.1:1", retry=encke.Retry(0.01, 0.01, 0)) as other,
        ):
            other.append(name, 1)
        self.assertIn(name, str(unreachable.exception))


if __name__ == "__main__":
    unittest.main(verbosity=2)
