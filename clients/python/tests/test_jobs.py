"""Jobs with workers that die, fail, stop and are slow; subscriptions of workers, and calls of webhooks."""

from __future__ import annotations

import asyncio
import http.server
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path
from queue import Queue

from rig import Received, Reply, Scripted, ServerTest, wait_until

import encke
from encke.steps import FOREIGN_RESPONSES_MAX

JOBS = 60
# Workers that are killed while they have a job, one after the other.
DEATHS = 6
WORKER = Path(__file__).with_name("worker_process.py")


class Jobs(ServerTest):
    OPTIONS = ("--tuning", "webhook-networks=127.0.0.0/8")

    def setUp(self) -> None:
        super().setUp()
        self.pool = self._testMethodName

    def running(self, worker: encke.Worker) -> None:
        thread = threading.Thread(target=worker.run)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(worker.stop)

    def process(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        """A worker in a process of its own: it prints each job that it begins."""
        command = [sys.executable, str(WORKER), self.server.url, self.pool, name, *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
        assert process.stdout is not None
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def test_results_of_every_kind(self) -> None:
        self.client.create_pool(self.pool)
        self.running(encke.Worker(self.client, self.pool, "echo", lambda job: job.data))
        data: object
        for data in (b"\xff\x00", "text é", {"json": ["é", 1]}, [], 1.5):
            posted = self.client.post(self.pool, data, wait_s=60)
            assert posted.result is not None
            self.assertEqual(posted.result.data, data)
            self.assertEqual(self.client.job(self.pool, posted.id).state, "done")
        empty = self.client.post(self.pool, None, wait_s=60).result
        assert empty is not None
        self.assertFalse(empty.data)

    def test_an_exception_refuses_the_job_with_its_reason(self) -> None:
        self.client.create_pool(self.pool, attempts=3, retry_ms=0)

        def handler(job: encke.Job) -> object:
            if job.data == "later" and job.attempt == 1:
                raise encke.RetryLater(0, "not yet")
            if job.data == "no json":
                return {1, 2}
            if job.attempt < 3 or job.data == "never":
                raise ValueError("this is no image")
            return job.attempt

        self.running(encke.Worker(self.client, self.pool, "w", handler))
        for data, reason in (("never", "ValueError: this is no image"), ("no json", "TypeError: ")):
            with self.assertRaises(encke.EnckeError) as raised:
                self.client.post(self.pool, data, wait_s=60)
            self.assertEqual((raised.exception.status, raised.exception.code), (502, "job_failed"))
            self.assertIn(reason, raised.exception.message)
        for data in ("later", "third"):
            result = self.client.post(self.pool, data, wait_s=60).result
            assert result is not None
            self.assertEqual(result.data, 3)

    def test_a_handler_that_raises_stop_iteration(self) -> None:
        self.client.create_pool(self.pool, attempts=1)
        self.running(encke.Worker(self.client, self.pool, "w", lambda _: next(iter(()))))
        for _ in range(2):
            with self.assertRaises(encke.EnckeError) as raised:
                self.client.post(self.pool, 1, wait_s=60)
            self.assertIn("StopIteration", raised.exception.message)

        async def run() -> None:
            async with self.server.async_client() as client:
                # No coroutine function: it raises before there is anything to wait for.
                worker = encke.AsyncWorker(client, self.pool, "a", lambda _: next(iter(())))
                running = asyncio.ensure_future(worker.run())
                ended = await asyncio.gather(*(client.post(self.pool, 1, wait_s=60) for _ in range(4)), return_exceptions=True)
                self.assertEqual([getattr(error, "code", error) for error in ended], ["job_failed"] * 4)
                self.assertFalse(running.done())
                worker.stop()
                await running

        asyncio.run(run())

    def test_a_page_is_no_extension(self) -> None:
        self.client.create_pool(self.pool, ack_ms=2000, attempts=1)
        pages: list[Reply] = []

        def reply(request: Received) -> Reply:
            if "/extend" in request.path and len(pages) < FOREIGN_RESPONSES_MAX - 1:
                pages.append(Reply(200, {"Content-Type": "text/html"}, b"<html>"))
                return pages[-1]
            return self.server.forward(request)

        proxy = Scripted(reply)
        self.addCleanup(proxy.close)
        extended = threading.Event()

        def handler(job: encke.Job) -> str:
            # A true extension comes only behind the pages.
            wait_until(lambda: len(pages) == FOREIGN_RESPONSES_MAX - 1)
            wait_until(lambda: sum("/extend" in request.path for request in proxy.received) > len(pages))
            extended.set()
            return "done"

        with encke.Encke(proxy.url, retry=encke.Retry(0.01, 0.01, 60)) as client:
            self.running(encke.Worker(client, self.pool, "w", handler, lease_s=60, poll_s=1))
            result = self.client.post(self.pool, 1, wait_s=60).result
        assert result is not None
        self.assertEqual((result.data, extended.is_set()), ("done", True))

    def test_a_slow_handler_keeps_its_job(self) -> None:
        # The handler takes longer than the time for an attempt and than an extension of it.
        self.client.create_pool(self.pool, ack_ms=5000)
        attempts: list[int] = []

        def handler(job: encke.Job) -> int:
            attempts.append(job.attempt)
            time.sleep(8)
            return job.attempt

        for name in ("one", "two"):
            self.running(encke.Worker(self.client, self.pool, name, handler, lease_s=6))
        result = self.client.post(self.pool, 1, wait_s=60).result
        assert result is not None
        self.assertEqual((result.data, attempts), (1, [1]))

    def test_a_handler_is_cancelled_when_another_worker_has_the_job(self) -> None:
        self.client.create_pool(self.pool)
        self.client.post(self.pool, 1)

        async def run() -> None:
            lost: asyncio.Future[encke.Job] = asyncio.get_running_loop().create_future()

            async def handler(job: encke.Job) -> None:
                # Somebody else reports on the attempt.
                status, _ = self.server.raw("POST", f"/v1/pool/{self.pool}/job/{job.id}/refuse?attempt={job.attempt}&after=60")
                self.assertEqual(status, 204)
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    lost.set_result(job)
                    raise

            async with self.server.async_client() as client:
                worker = encke.AsyncWorker(client, self.pool, "w", handler, lease_s=1)
                task = asyncio.ensure_future(worker.run())
                self.assertTrue((await lost).is_lost)
                worker.stop()
                await task

        asyncio.run(run())

    def test_a_thread_that_has_lost_its_job_ends_before_the_next_job(self) -> None:
        self.client.create_pool(self.pool)
        began: list[int] = []
        lost = threading.Event()

        def handler(job: encke.Job) -> int:
            began.append(job.id)
            if len(began) == 1:
                self.server.raw("POST", f"/v1/pool/{self.pool}/job/{job.id}/refuse?attempt={job.attempt}&after=60")
                wait_until(lambda: job.is_lost)
                time.sleep(1)  # Time in which the next job would begin.
                self.assertEqual(len(began), 1)
                lost.set()
            return len(began)

        self.client.post(self.pool, 1)
        self.running(encke.Worker(self.client, self.pool, "w", handler, lease_s=1))
        result = self.client.post(self.pool, 2, wait_s=60).result
        assert result is not None
        self.assertEqual(result.data, 2)
        self.assertTrue(lost.is_set())

    def test_every_job_is_done_although_workers_and_the_server_die(self) -> None:
        self.client.create_pool(self.pool, ack_ms=1000, attempts=100, retry_ms=0)
        posted = [self.client.post(self.pool, {"number": number}) for number in range(JOBS)]
        for death in range(DEATHS):
            worker = self.process(f"mortal-{death}", "hang")
            assert worker.stdout is not None
            # It has a job, and dies with it.
            self.assertTrue(worker.stdout.readline())
            worker.kill()
            worker.wait()
        for name in ("one", "two"):
            self.process(name, "work")
        for _ in range(2):
            self.wait_until_done(min(JOBS, self.state()["done"] + 10))
            self.server.end(signal.SIGKILL)
            self.server.start()
        wait_until(lambda: self.state()["waiting"] + self.state()["running"] == 0)
        results = {entry["job"]: entry["data"] for entry in self.client.read(f"pool/{self.pool}/results").data}
        self.assertEqual(results, {job.id: {"number": number} for number, job in enumerate(posted)})

    def wait_until_done(self, count: int) -> None:
        wait_until(lambda: self.state()["done"] >= count)

    def state(self) -> dict[str, int]:
        state: dict[str, int] = json.loads(self.server.raw("GET", f"/v1/pool/{self.pool}")[1])
        return state

    def test_sigterm_finishes_the_job_and_takes_no_other(self) -> None:
        self.client.create_pool(self.pool)
        first, second = (self.client.post(self.pool, number) for number in range(2))
        worker = self.process("w", "slow")
        assert worker.stdout is not None
        worker.stdout.readline()
        worker.send_signal(signal.SIGTERM)
        self.assertEqual(worker.wait(60), 0)
        self.assertEqual(self.client.job(self.pool, first.id).state, "done")
        self.assertEqual(self.client.job(self.pool, second.id).state, "waiting")

    def test_sigterm_ends_a_worker_that_waits(self) -> None:
        self.client.create_pool(self.pool)
        worker = self.process("idle", "work")
        wait_until(lambda: bool(self.state()["workers"]))
        worker.send_signal(signal.SIGTERM)
        self.assertEqual(worker.wait(60), 0)

    def test_a_wake_is_claimed_acknowledged_and_given_back(self) -> None:
        client, stream, name = self.client, "events/a", "indexer"
        client.create("wakes")
        self.assertTrue(client.subscribe(name, pattern="events/**", wake_stream="wakes", lease_ttl_ms=60_000))
        self.assertFalse(client.subscribe(name, pattern="events/**", wake_stream="wakes", lease_ttl_ms=60_000))
        self.assertIsNone(client.claim(name, "w1"))
        client.create(stream, data=1)
        wake = client.claim(name, "w1")
        assert wake is not None
        link = next(link for link in wake.streams if link.path == stream)
        self.assertEqual((link.acked_offset, link.has_pending), (encke.BEGINNING, True))
        self.assertIsNone(client.claim(name, "w2"))
        client.release(wake)
        wait_until(lambda: self.again(name))
        assert self.wake is not None
        page = client.read(stream, link.acked_offset)
        self.assertEqual(page.data, [1])
        self.assertFalse(client.ack(self.wake, {stream: page.next_offset}, done=True))
        with self.assertRaises(encke.EnckeError) as raised:
            client.ack(self.wake, {}, done=True)
        self.assertEqual((raised.exception.status, raised.exception.code), (409, "FENCED"))
        client.unsubscribe(name)

    def again(self, subscription: str) -> bool:
        self.wake = self.client.claim(subscription, "w2")
        return self.wake is not None

    def test_the_signature_of_a_call_is_verified(self) -> None:
        calls: Queue[tuple[bytes, str]] = Queue()

        class Receiver(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                calls.put((body, self.headers["Webhook-Signature"]))
                self.send_response(200)
                self.send_header("Content-Length", "13")
                self.end_headers()
                self.wfile.write(b'{"done":true}')

            def log_message(self, format: str, *_: object) -> None:
                pass

        receiver = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        self.addCleanup(receiver.server_close)
        self.addCleanup(receiver.shutdown)
        self.client.subscribe("mailer", pattern="mails/*", webhook_url=f"http://127.0.0.1:{receiver.server_port}/hook")
        self.client.create("mails/a", data=1)
        body, signature = calls.get(timeout=60)
        jwks = self.client.jwks()
        encke.verify_webhook(body, signature, jwks)
        now = time.time()
        for wrong_body, wrong_signature, wrong_jwks, when in (
            (body + b" ", signature, jwks, now),
            (body, signature.replace("t=", "t=1"), jwks, now),
            (body, signature, {"keys": []}, now),
            (body, signature, jwks, now + 3600),
            (body, "", jwks, now),
            (body, signature.rpartition("=")[0] + "=?", jwks, now),
        ):
            with self.assertRaises(encke.InvalidSignatureError):
                encke.verify_webhook(wrong_body, wrong_signature, wrong_jwks, now=when)
        self.client.unsubscribe("mailer")


# The reasons of refusals that the tests cause.
logging.getLogger("encke").setLevel(logging.ERROR)

if __name__ == "__main__":
    unittest.main(verbosity=2)
