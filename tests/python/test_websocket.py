"""WebSockets of the package websockets: subscriptions, appends, and every record once over kill -9."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest
from pathlib import Path

import requests
import websockets
import websockets.sync.client

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ENCKE_BIN", str(ROOT / "target" / "release" / "encke"))
JSON = {"Content-Type": "application/json"}
A, B = STREAMS = ["load/a", "load/b"]
PATTERN = "load/**"
LIST = ",".join(STREAMS)
SUBSCRIPTIONS = {A: {"stream": A}, PATTERN: {"stream": PATTERN}, LIST: {"streams": STREAMS}}
ROUNDS = 4
# Records that each subscription gets at least before the server is killed.
RECORDS_PER_ROUND = 100
# Appends that are sent and not acknowledged, at any time.
WINDOW = 20
# How long a message may take, on a busy machine.
TIMEOUT_S = 60


def fixed_port():
    """A free port below those that Linux gives to connections, so that none takes it while its server is not there."""
    begin = os.getpid() * 97
    for port in (28_000 + (begin + given) % 4_000 for given in range(4_000)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass
    raise AssertionError("no port is free")


class Server:
    """The real binary with data of its own, which can be killed and started again at its address."""

    def __init__(self):
        self.data = tempfile.mkdtemp(prefix="encke-python-")
        self.address = self.start(f"127.0.0.1:{fixed_port()}")

    def start(self, listen):
        """Starts the binary; returns its address."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ENCKE_")}
        self.process = subprocess.Popen(
            [BINARY, "serve", "--listen", listen, "--log", "warn", "--data", self.data],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        line = self.process.stdout.readline()
        return re.fullmatch(r"listening on http://(\S+)\n", line).group(1)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def restart(self, meanwhile):
        """Starts the killed server again. What happens `meanwhile` reaches it at another address, where no client comes."""
        meanwhile(self.start("127.0.0.1:0"))
        self.kill()
        self.start(self.address)

    def remove(self):
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)


def create(address, stream):
    response = requests.put(f"http://{address}/v1/stream/{stream}", headers=JSON, timeout=TIMEOUT_S)
    assert response.status_code == 201, response.text


def append(address, stream, value):
    url = f"http://{address}/v1/stream/{stream}"
    response = requests.post(url, headers=JSON, data=json.dumps(value), timeout=TIMEOUT_S)
    assert response.status_code == 204, response.text


def read(address, stream):
    """All values of a stream."""
    values, offset = [], "-1"
    while True:
        url = f"http://{address}/v1/stream/{stream}"
        response = requests.get(url, params={"offset": offset}, timeout=TIMEOUT_S)
        assert response.status_code == 200, response.text
        values += response.json()
        if response.headers.get("Stream-Up-To-Date") == "true":
            return values
        offset = response.headers["Stream-Next-Offset"]


class Load:
    """Subscriptions and a producer on one connection, with what they need to continue after a cut."""

    def __init__(self):
        self.starts = {name: {"offset": "-1"} for name in SUBSCRIPTIONS}
        self.records = {name: [] for name in SUBSCRIPTIONS}
        self.sent = dict.fromkeys(STREAMS, 0)
        self.unacknowledged = {}
        self.is_stopped = False

    def begin(self):
        """The messages of a new connection: subscriptions where they were, and appends whose outcome is unknown."""
        subscriptions = [
            {"type": "subscribe", **subject, **self.starts[name]} for name, subject in SUBSCRIPTIONS.items()
        ]
        return [*subscriptions, *self.unacknowledged.values(), *self.appends()]

    def appends(self):
        """The next appends, until as many are unacknowledged as may be."""
        messages = []
        while not self.is_stopped and len(self.unacknowledged) < WINDOW:
            stream = min(STREAMS, key=self.sent.get)
            number = self.sent[stream]
            self.sent[stream] += 1
            identifier = 2 * number + STREAMS.index(stream)
            producer = {"id": "writer-1", "epoch": 0, "seq": number}
            message = {"type": "append", "id": identifier, "stream": stream, "data": number, "producer": producer}
            self.unacknowledged[identifier] = message
            messages.append(message)
        return messages

    def handle(self, message):
        """Handles a message of the server; returns those that are to be sent."""
        name = message.get("subscription", message.get("stream"))
        match message["type"]:
            case "appended":
                del self.unacknowledged[message["id"]]
                return self.appends()
            case "records":
                self.records[name] += [(message["stream"], value) for value in message["data"]]
            case "subscribed" | "position" | "ended":
                pass
            case _:
                raise AssertionError(message)
        position = "position" if "subscription" in message else "offset"
        if position in message:
            self.starts[name] = {position: message[position]}
        return []

    def has(self, counts):
        return all(len(self.records[name]) >= count for name, count in counts.items())

    def counts(self, more):
        """As many records as there are, and some more of each subscription."""
        return {name: len(records) + more for name, records in self.records.items()}


def connect(server):
    url = f"ws://{server.address}/v1/events"
    return websockets.sync.client.connect(url, subprotocols=["encke.v1"], open_timeout=TIMEOUT_S)


def ask(client, message):
    """Sends a message, and returns the next one of the server."""
    client.send(json.dumps(message))
    return receive(client)


def receive(client):
    return json.loads(client.recv(timeout=TIMEOUT_S))


def exchange(client, load, is_done):
    """Handles messages of the server until something is done."""
    while not is_done():
        for message in load.handle(receive(client)):
            client.send(json.dumps(message))


class WebSockets(unittest.TestCase):
    def setUp(self):
        self.server = Server()
        self.addCleanup(self.server.remove)

    def test_subscriptions_and_appends_of_one_connection(self):
        create(self.server.address, "s")
        append(self.server.address, "s", 1)
        with connect(self.server) as client:
            self.assertEqual(client.subprotocol, "encke.v1")
            subscribed = ask(client, {"type": "subscribe", "id": 1, "stream": "s", "offset": "-1"})
            self.assertEqual((subscribed["type"], subscribed["id"], subscribed["stream"]), ("subscribed", 1, "s"))
            self.assertEqual(receive(client)["data"], [1])
            # The record and the acknowledgement come in either order.
            messages = [ask(client, {"type": "append", "id": 2, "stream": "s", "data": {"n": 2}}), receive(client)]
            by_type = {message["type"]: message for message in messages}
            self.assertEqual(by_type["records"]["data"], [{"n": 2}])
            self.assertEqual(by_type["appended"]["id"], 2)
            self.assertEqual(by_type["appended"]["offset"], by_type["records"]["offset"])
            self.assertTrue(client.ping().wait(TIMEOUT_S))
            self.assertEqual(ask(client, {"type": "unsubscribe", "id": 3, "stream": "s"})["type"], "unsubscribed")
            refused = ask(client, {"type": "subscribe", "id": 4, "stream": "none"})
            self.assertEqual((refused["type"], refused["id"], refused["status"]), ("error", 4, 404))
        self.assertEqual(read(self.server.address, "s"), [1, {"n": 2}])

    def test_every_record_once_over_kill_9(self):
        for stream in STREAMS:
            create(self.server.address, stream)
        load = Load()
        for number in range(ROUNDS):
            counts = load.counts(RECORDS_PER_ROUND)
            with connect(self.server) as client:
                for message in load.begin():
                    client.send(json.dumps(message))
                exchange(client, load, lambda: load.has(counts))
                self.server.kill()
                self.assertEqual(len(load.unacknowledged), WINDOW, "it is in the middle of its load")
                with self.assertRaises(websockets.ConnectionClosedError):
                    exchange(client, load, lambda: False)

            def meanwhile(address):
                for stream in STREAMS:
                    append(address, stream, f"round {number}")

            self.server.restart(meanwhile)
        load.is_stopped = True
        with connect(self.server) as client:
            for message in load.begin():
                client.send(json.dumps(message))
            exchange(client, load, lambda: not load.unacknowledged)
            stored = {stream: read(self.server.address, stream) for stream in STREAMS}
            both = sum(map(len, stored.values()))
            exchange(client, load, lambda: load.has({A: len(stored[A]), PATTERN: both, LIST: both}))
        rounds = [f"round {number}" for number in range(ROUNDS)]
        for stream in STREAMS:
            numbers = [value for value in stored[stream] if isinstance(value, int)]
            self.assertEqual(numbers, list(range(load.sent[stream])), "each append is stored once")
            self.assertEqual([value for value in stored[stream] if isinstance(value, str)], rounds)
        for name, of_streams in ((A, [A]), (PATTERN, STREAMS), (LIST, STREAMS)):
            for stream in of_streams:
                values = [value for of, value in load.records[name] if of == stream]
                self.assertEqual(values, stored[stream], f"{name}: each record of {stream} comes once and in order")
        self.assertEqual(load.records[PATTERN], load.records[LIST], "a pattern and a list have one order")


if __name__ == "__main__":
    unittest.main(verbosity=2)
