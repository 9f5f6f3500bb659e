#!/usr/bin/env python3
"""Memory of a server, and the appends of another client, while followers get one record whose form is large.

    scripts/long-records.py [--followers N] [--wires events,lines,...] [--seconds S] BINARY [ANOTHER_BINARY ...]

Each server runs on loopback with its data in a temporary directory. For each wire: N followers (100 by default) follow a stream, another
client appends `{"a":1}` every 10 ms to another stream, and one record of 15.8 MB is appended to the followed stream: 7.9 million messages
for `lines`, control characters for the others. Then the same number of bytes is appended in ordinary records of 10 kB. Printed are the peak of
the process's memory beyond the peak of the same append without followers, what the followers received, and p50, p99 and the maximum of the other client's
appends, in milliseconds. Bounded: S seconds (60 by default) for each append.
"""

import argparse
import json
import os
import select
import socket
import subprocess
import tempfile
import threading
import time

BYTES = 15_800_000
STREAM = "/v1/stream/u/m/big"
LINES = "Accept: application/x-ndjson"
FOLLOW = {
    "events": (f"{STREAM}?offset=now&live=sse", "A: b"),
    "lines": (f"{STREAM}?offset=now&live=true", LINES),
    "merged-events": ("/v1/events?stream=u/m/big", "A: b"),
    "merged-lines": ("/v1/events?stream=u/m/big", LINES),
    "pattern": ("/v1/events?stream=u/**", LINES),
    "long-poll": (f"{STREAM}?offset=now&live=long-poll", "A: b"),
    "websocket": ("/v1/events", "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                  "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="),
}


def connect(port):
    client = socket.create_connection(("127.0.0.1", port), timeout=120)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def ask(client, method, path, content_type, body=b""):
    """Sends a request and returns the status of its response, which has no body or a length."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body)
    data = b""
    while b"\r\n\r\n" not in data:
        more = client.recv(65536)
        if not more:
            return 0
        data += more
    return int(data.split(b" ", 2)[1])


def follow(port, wire):
    target, field = FOLLOW[wire]
    client = connect(port)
    client.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n{field}\r\n\r\n".encode())
    if wire == "websocket":
        while b"\r\n\r\n" not in client.recv(65536):
            pass
        message = json.dumps({"type": "subscribe", "stream": "u/m/big", "offset": "now"}).encode()
        client.sendall(bytes([0x81, 0x80 | len(message)]) + bytes(4) + message)
    client.setblocking(False)
    return client


class Server:
    def __init__(self, binary):
        self.folder = tempfile.TemporaryDirectory()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [binary, "serve", "--listen", f"127.0.0.1:{self.port}", "--data", self.folder.name]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:
            try:
                return connect(self.port).close()
            except OSError:
                time.sleep(0.05)

    def peak_mb(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024

    def forget_peak(self):
        with open(f"/proc/{self.process.pid}/clear_refs", "w") as file:
            file.write("5")

    def stop(self):
        self.process.terminate()
        self.process.wait(60)
        self.folder.cleanup()


class OtherClient(threading.Thread):
    """Appends to another stream every 10 ms."""

    def __init__(self, port):
        super().__init__()
        self.port, self.took_ms, self.is_over = port, [], False
        self.start()

    def run(self):
        client = connect(self.port)
        while not self.is_over:
            begun = time.monotonic()
            ask(client, "POST", "/v1/stream/other", "application/json", b'{"a":1}')
            self.took_ms.append((time.monotonic() - begun) * 1000)
            time.sleep(0.01)

    def result(self):
        self.is_over = True
        self.join()
        took = sorted(self.took_ms)
        at = lambda part: took[min(len(took) - 1, int(len(took) * part))]
        return f"p50 {at(0.5):.1f} ms, p99 {at(0.99):.1f} ms, most {took[-1]:.0f} ms"


def receive(clients, seconds, bytes_wanted):
    """Reads until every client has `bytes_wanted` bytes or has hung up, or the time is over. Returns the bytes of each."""
    poll = select.epoll()
    by_fd = {client.fileno(): client for client in clients}
    got = dict.fromkeys(by_fd, 0)
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    buffer = bytearray(1 << 20)
    until = last = time.monotonic()
    until += seconds
    while time.monotonic() < until and min(got.values()) < bytes_wanted and time.monotonic() < last + 10:
        for fd, _ in poll.poll(0.2):
            try:
                count = by_fd[fd].recv_into(buffer)
            except BlockingIOError:
                continue
            except OSError:
                count = 0
            if count == 0:
                poll.unregister(fd)
                continue
            got[fd] += count
            last = time.monotonic()
    return sorted(got.values())


def measure(binary, wire, followers, seconds):
    server = Server(binary)
    try:
        content_type = "application/json" if wire == "lines" else "text/plain"
        client = connect(server.port)
        for path, kind in [(STREAM, content_type), ("/v1/stream/alone", content_type), ("/v1/stream/other", "application/json")]:
            ask(client, "PUT", path, kind)
        count = BYTES // 2
        long = b"[" + b"1," * (count - 1) + b"1]" if wire == "lines" else b"\x01" * BYTES
        expected = {"events": BYTES, "long-poll": BYTES, "lines": 55 * count}.get(wire, 6 * BYTES)
        server.forget_peak()
        other = OtherClient(server.port)
        ask(client, "POST", "/v1/stream/alone", content_type, long)
        alone, alone_took = server.peak_mb(), other.result()
        clients = [follow(server.port, wire) for _ in range(followers)]
        receive(clients, 2, 1 << 40)
        results = []
        ordinary = b"[" + b"1," * 4_999 + b"1]" if wire == "lines" else b"\x01" * 10_000
        for name, records in [("long", [long]), ("ordinary", [ordinary] * (BYTES // len(ordinary)))]:
            if name == "ordinary" and wire == "long-poll":
                continue
            server.forget_peak()
            other = OtherClient(server.port)

            def append_all():
                writer = connect(server.port)
                for record in records:
                    if ask(writer, "POST", STREAM, content_type, record) == 0:
                        return

            writer = threading.Thread(target=append_all)
            writer.start()
            begun = time.monotonic()
            got = receive(clients, seconds, expected)
            took = time.monotonic() - begun
            writer.join()
            if server.process.poll() is not None:
                other.is_over = True
                results.append(f"{name}: the server has ended with {server.process.returncode}")
                break
            results.append(f"{name}: +{server.peak_mb() - alone:.0f} MB, {got[0] / 1e6:.1f} to {got[-1] / 1e6:.1f} MB each in {took:.0f} s, "
                           f"others {other.result()}")
        print(f"{os.path.basename(binary)} {wire}: alone {alone:.0f} MB, others {alone_took}; " + "; ".join(results), flush=True)
    finally:
        server.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--followers", type=int, default=100)
    parser.add_argument("--wires", default=",".join(FOLLOW))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("binaries", nargs="+")
    options = parser.parse_args()
    for wire in options.wires.split(","):
        for binary in options.binaries:
            measure(binary, wire, options.followers, options.seconds)


main()
