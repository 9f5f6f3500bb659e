#!/usr/bin/env python3
"""Memory of a server under clients that hold what they can, and the latency of another client meanwhile.

    scripts/memory-attacks.py target/release/encke [ANOTHER_BINARY ...]

Each server runs on loopback with its data in a temporary directory. Three attacks, each beside a client that appends 1 KB in two
parts every 10 ms: 25 bodies of 16 MiB without their end; 60 reads of a record of 15 MiB on one HTTP/2 connection with closed
windows; 250 reads of ordinary history on each of 70 HTTP/2 connections that read nothing. Bounded: some 10 s for each attack.
"""

import json
import os
import re
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

SECONDS = 8
STREAM = "/v1/stream/s"


def connect(port):
    client = socket.create_connection(("127.0.0.1", port), timeout=30)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def answer(client):
    """The status of one response without a body, or with a length."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = client.recv(65536)
        if not more:
            return None
        data += more
    head, body = data.split(b"\r\n\r\n", 1)
    length = re.search(rb"(?i)content-length: (\d+)", head)
    left = int(length.group(1)) - len(body) if length else 0
    while left > 0:
        left -= len(client.recv(65536)) or left
    return int(head.split(b" ", 2)[1])


def post_head(length):
    return (
        f"POST {STREAM} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


def append(port, body):
    with connect(port) as client:
        client.sendall(post_head(len(body)) + body)
        assert answer(client) == 204


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def get(stream, path):
    fields = {":method": "GET", ":scheme": "http", ":authority": "localhost", ":path": path, "accept-encoding": "identity"}
    block = b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode() for name, value in fields.items()
    )
    return frame(1, 5, stream, block)


def http2(port, window):
    client = connect(port)
    settings = b"" if window is None else struct.pack(">HI", 4, window)
    client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, settings))
    return client


def bodies(port):
    clients = [connect(port) for _ in range(25)]
    part = b" " * (16 * 2**20 - 1)
    for client in clients:
        client.setblocking(False)

    def feed():
        left = {client: post_head(len(part) + 1) + part for client in clients}
        until = time.time() + SECONDS
        while left and time.time() < until:
            for client in list(left):
                try:
                    left[client] = left[client][client.send(left[client][: 1 << 20]) :]
                except BlockingIOError:
                    pass
                except OSError:
                    del left[client]
                    continue
                if not left[client]:
                    del left[client]
            time.sleep(0.001)

    thread = threading.Thread(target=feed)
    thread.start()
    return clients, thread


def closed_windows(port):
    client = http2(port, 0)
    for number in range(60):
        client.sendall(get(2 * number + 1, STREAM + "large?offset=-1"))
    return [client], None


def unread_history(port):
    clients = [http2(port, None) for _ in range(70)]
    for client in clients:
        client.sendall(b"".join(get(2 * number + 1, STREAM + "?offset=-1") for number in range(250)))
    return clients, None


def victim(port, seconds):
    """Latencies in ms of appends in two parts, and how many failed."""
    latencies, failed, client = [], 0, connect(port)
    until = time.time() + seconds
    while time.time() < until:
        begin = time.perf_counter()
        try:
            client.sendall(post_head(1000) + b'"' + b"x" * 400)
            time.sleep(0.002)
            client.sendall(b"x" * 598 + b'"')
            status = answer(client)
        except OSError:
            status = None
        if status == 204:
            latencies.append((time.perf_counter() - begin) * 1e3)
        else:
            failed += 1
            client.close()
            client = connect(port)
        time.sleep(0.01)
    return latencies, failed


def memory(pid, field):
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(rf"{field}:\s+(\d+)", status.read()).group(1)) / 1024


def measure(binary, attack):
    with tempfile.TemporaryDirectory() as data:
        server = subprocess.Popen(
            [binary, "serve", "--listen", "127.0.0.1:0", "--data", data, "--log", "error"], stdout=subprocess.PIPE, text=True
        )
        try:
            port = int(re.search(r"http://127\.0\.0\.1:(\d+)", next(line for line in server.stdout if "http://" in line)).group(1))
            threading.Thread(target=server.stdout.read, daemon=True).start()
            for name in ["s", "slarge"]:
                with connect(port) as client:
                    client.sendall(
                        f"PUT /v1/stream/{name} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\r\n".encode()
                    )
                    assert answer(client) == 201
            with connect(port) as client:
                body = b'"' + b"x" * 15 * 2**20 + b'"'
                client.sendall(post_head(len(body)).replace(b"/s HTTP", b"/slarge HTTP") + body)
                assert answer(client) == 204
            for _ in range(1000):
                append(port, json.dumps("y" * 500).encode())
            before = memory(server.pid, "VmRSS")
            quiet, _ = victim(port, 2)
            peak = [before]
            over = threading.Event()

            def watch():
                while not over.wait(0.02):
                    peak.append(memory(server.pid, "VmRSS"))

            watcher = threading.Thread(target=watch)
            watcher.start()
            clients, thread = attack(port)
            latencies, failed = victim(port, SECONDS)
            over.set()
            watcher.join()
            if thread:
                thread.join()
            for client in clients:
                client.close()
            percentile = lambda of, part: sorted(of)[min(len(of) - 1, int(len(of) * part))] if of else float("nan")
            return {
                "before_mb": round(before),
                "peak_mb": round(max(peak)),
                "refused": failed,
                "appended": len(latencies),
                "p50_ms": round(statistics.median(latencies), 2) if latencies else None,
                "p99_ms": round(percentile(latencies, 0.99), 2),
                "quiet_p50_ms": round(statistics.median(quiet), 2),
                "quiet_p99_ms": round(percentile(quiet, 0.99), 2),
            }
        finally:
            server.terminate()
            server.wait()


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    for attack in [bodies, closed_windows, unread_history]:
        for binary in sys.argv[1:]:
            print(attack.__name__, os.path.basename(binary), json.dumps(measure(binary, attack)), flush=True)


if __name__ == "__main__":
    main()
