"""Event streams as Python's clients read them: each event as it comes, a cut as an error, an end as an end."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

import aiohttp
import durable_streams
import httpx
import httpx_sse
import requests
import sseclient

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ENCKE_BIN", str(ROOT / "target" / "release" / "encke"))
EVENTS = 5
JSON = {"Content-Type": "application/json"}


class Server:
    """The real binary with data of its own."""

    def __init__(self):
        self.data = tempfile.mkdtemp(prefix="encke-python-")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ENCKE_")}
        self.process = subprocess.Popen(
            [BINARY, "serve", "--listen", "127.0.0.1:0", "--log", "warn", "--data", self.data],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        line = self.process.stdout.readline()
        self.url = re.fullmatch(r"listening on (http://\S+)\n", line).group(1)

    def create(self):
        url = f"{self.url}/v1/stream/s"
        assert requests.put(url, headers=JSON, timeout=10).status_code == 201
        return url

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def remove(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        shutil.rmtree(self.data, ignore_errors=True)


def append(url, number):
    response = requests.post(url, headers=JSON, data=json.dumps(number), timeout=10)
    assert response.status_code == 204, response.text


def close(url):
    response = requests.post(url, headers={"Stream-Closed": "true"}, timeout=10)
    assert response.status_code == 204, response.text


def live(url):
    return f"{url}?offset=-1&live=sse"


def numbers(name, data):
    """The numbers of an event."""
    return json.loads(data) if name == "data" else []


# Each reader yields the numbers of a stream as they come.


def by_requests(url):
    with requests.get(live(url), stream=True, timeout=10) as response:
        name = ""
        for line in response.iter_lines(decode_unicode=True):
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data:"):
                yield from numbers(name, line.removeprefix("data:"))


def by_sseclient(url):
    with requests.get(live(url), stream=True, timeout=10) as response:
        for event in sseclient.SSEClient(response).events():
            yield from numbers(event.event, event.data)


def by_httpx_sse(url):
    with httpx.Client(timeout=10) as client, httpx_sse.connect_sse(client, "GET", live(url)) as source:
        for event in source.iter_sse():
            yield from numbers(event.event, event.data)


def by_official_client(url):
    with durable_streams.stream(url, offset="-1", live="sse", timeout=10) as response:
        yield from response.iter_json()


async def by_aiohttp(url):
    timeout = aiohttp.ClientTimeout(total=None, sock_read=10)
    async with aiohttp.ClientSession(timeout=timeout) as session, session.get(live(url)) as response:
        name = ""
        async for line in response.content:
            line = line.decode().rstrip("\n")
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data:"):
                for number in numbers(name, line.removeprefix("data:")):
                    yield number


def blocking(reader):
    """An asynchronous reader as a blocking one."""

    def read(url):
        loop = asyncio.new_event_loop()
        source = reader(url)
        try:
            while True:
                try:
                    yield loop.run_until_complete(anext(source))
                except StopAsyncIteration:
                    return
        finally:
            loop.run_until_complete(source.aclose())
            loop.close()

    return read


# Each reader with the error that its library documents for a body that is cut.
READERS = {
    "requests": (by_requests, requests.exceptions.ChunkedEncodingError),
    "sseclient-py": (by_sseclient, requests.exceptions.ChunkedEncodingError),
    "httpx-sse": (by_httpx_sse, httpx.RemoteProtocolError),
    "aiohttp": (blocking(by_aiohttp), aiohttp.ClientPayloadError),
    "durable-streams": (by_official_client, httpx.RemoteProtocolError),
}


class EventStreams(unittest.TestCase):
    def setUp(self):
        self.server = Server()
        self.addCleanup(lambda: self.server.remove())
        self.url = self.server.create()

    def read_some(self, reader):
        """Reads events one at a time: each comes before the next one is appended."""
        source = reader(self.url)
        slowest = 0.0
        for number in range(EVENTS):
            append(self.url, number)
            appended = time.perf_counter()
            self.assertEqual(next(source), number)
            if number > 0:  # The first one waits for the connection.
                slowest = max(slowest, time.perf_counter() - appended)
        return source, slowest

    def test_each_event_comes_before_the_next_and_an_end_ends(self):
        for name, (reader, _) in READERS.items():
            with self.subTest(name):
                source, slowest = self.read_some(reader)
                print(f"{name}: {slowest * 1000:.1f} ms after the append at most")
                close(self.url)
                self.assertEqual(list(source), [])
                requests.delete(self.url, timeout=10)
                self.server.create()

    def test_a_cut_is_an_error(self):
        for name, (reader, error) in READERS.items():
            with self.subTest(name):
                source, _ = self.read_some(reader)
                self.server.kill()
                with self.assertRaises(error):
                    list(source)
                self.server.remove()
                self.server = Server()
                self.url = self.server.create()


if __name__ == "__main__":
    unittest.main(verbosity=2)
