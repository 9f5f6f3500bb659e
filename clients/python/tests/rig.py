"""The real server with data of its own, which can be killed and started again at its address; and one that responds as a test says."""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from pathlib import Path
from typing import ClassVar

import encke

ROOT = Path(__file__).resolve().parents[3]
BINARY = os.environ.get("ENCKE_BIN", str(ROOT / "target" / "release" / "encke"))
# How long anything may take, on a busy machine.
PATIENCE_S = 60.0
# Short waits between attempts, so that tests which kill servers are short.
RETRY = encke.Retry(first_s=0.05, most_s=0.5, give_up_s=PATIENCE_S)


@dataclass(frozen=True)
class Reply:
    """A response of a `Scripted` server. Without a status the connection is cut."""

    status: int | None = None
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class Received:
    """A request to a `Scripted` server."""

    method: str
    path: str
    fields: Message
    body: bytes


class Server:
    def __init__(self, *options: str, scheme: str = "http") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="encke-python-"))
        self._options = options
        self._scheme = scheme
        self._listen = f"127.0.0.1:{fixed_port()}"
        self.url = f"{scheme}://{self._listen}"
        self.start()

    def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ENCKE_")}
        command = [BINARY, "serve", "--listen", self._listen, "--log", "warn", "--data", str(self.folder / "data"), *self._options]
        # The messages of the server are not part of the report.
        self._log = (self.folder / "log").open("ab")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert re.fullmatch(rf"listening on {self._scheme}://\S+\n", line), (self.folder / "log").read_text()

    def end(self, number: signal.Signals) -> None:
        """Ends the process by a signal; `start` begins the next one with the same data and address."""
        self.process.send_signal(number)
        self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()

    def remove(self) -> None:
        self.end(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def raw(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        """A request of another client than the one that is tested."""
        reply = self.reply(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        assert reply.status is not None
        return reply.status, reply.body

    def reply(self, method: str, path: str, body: bytes, fields: dict[str, str]) -> Reply:
        request = urllib.request.Request(self.url + path, body or None, fields, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                return Reply(response.status, dict(response.headers), response.read())
        except urllib.error.HTTPError as error:
            return Reply(error.code, dict(error.headers), error.read())

    def forward(self, received: Received) -> Reply:
        """The reply to a request that a proxy has received, but for the fields of the connection."""
        fields = {name: value for name, value in received.fields.items() if name != "Host"}
        reply = self.reply(received.method, received.path, received.body, fields)
        kept = {name: value for name, value in reply.fields.items() if name.lower() not in ("content-length", "date")}
        return Reply(reply.status, kept, reply.body)

    def client(self, token: encke.Token | None = None) -> encke.Encke:
        return encke.Encke(self.url, token=token, retry=RETRY)

    def async_client(self, token: encke.Token | None = None) -> encke.AsyncEncke:
        return encke.AsyncEncke(self.url, token=token, retry=RETRY)


class ServerTest(unittest.TestCase):
    """Tests with one server for the class, and a client and a name of streams and pools for each test."""

    OPTIONS: ClassVar[tuple[str, ...]] = ()
    server: Server

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server(*cls.OPTIONS)
        cls.addClassCleanup(cls.server.remove)

    def setUp(self) -> None:
        self.client = self.server.client()
        self.addCleanup(self.client.close)
        self.name = self._testMethodName


class Scripted:
    """A server of HTTP that responds as a function says, which other threads may change, and knows the requests that it has received."""

    def __init__(self, reply: Callable[[Received], Reply], certificate: ssl.SSLContext | None = None) -> None:
        scripted = self
        self.reply = reply
        self.received: list[Received] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except ConnectionError:
                    self.close_connection = True

            def respond(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                received = Received(self.command, self.path, self.headers, body)
                scripted.received.append(received)
                reply = scripted.reply(received)
                if reply.status is None:
                    self.close_connection = True
                    return
                self.send_response(reply.status)
                for name, value in reply.fields.items():
                    self.send_header(name, value)
                if reply.status != HTTPStatus.NO_CONTENT:
                    self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(reply.body)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = respond

            def log_message(self, format: str, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        if certificate is not None:
            self._server.socket = certificate.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'http' if certificate is None else 'https'}://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def acknowledged(received: Received, status: int = HTTPStatus.OK, offset: str = "1") -> Reply:
    """The server's response to an append, which repeats its number."""
    number = {name: received.fields[name] for name in ("Producer-Epoch", "Producer-Seq")}
    return Reply(status, {"Stream-Next-Offset": offset, **number})


def problem(status: int, code: str, **fields: str) -> Reply:
    """A refusal of the server."""
    body = json.dumps({"status": status, "error": {"code": code, "message": "of the test"}}).encode()
    return Reply(status, {"Content-Type": "application/problem+json", **fields}, body)


def always(reply: Reply) -> Callable[[Received], Reply]:
    return lambda _: reply


def fixed_port(skipped: int = 0) -> int:
    """A free port outside the range from which Linux chooses ports for connections: it stays free while its server is stopped."""
    begin = os.getpid() * 97 + skipped
    for port in (28_000 + (begin + given) % 4_000 for given in range(4_000)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.01)
