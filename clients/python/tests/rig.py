"""The real server with data of its own, which can be killed and started again at its address."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import encke

ROOT = Path(__file__).resolve().parents[3]
BINARY = os.environ.get("ENCKE_BIN", str(ROOT / "target" / "release" / "encke"))
# How long anything may take, on a busy machine.
PATIENCE_S = 60.0
# Short waits between attempts, so that tests which kill servers are short.
RETRY = encke.Retry(first_s=0.05, most_s=0.5, give_up_s=PATIENCE_S)


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
        # What the server says while it stops and tokens end is no part of the report.
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
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.url + path, body or None, named, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def client(self, token: encke.Token | None = None) -> encke.Encke:
        return encke.Encke(self.url, token=token, retry=RETRY)

    def async_client(self, token: encke.Token | None = None) -> encke.AsyncEncke:
        return encke.AsyncEncke(self.url, token=token, retry=RETRY)


def fixed_port() -> int:
    """A free port below those that Linux gives to connections, so that none takes it while its server is not there."""
    begin = os.getpid() * 97
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
