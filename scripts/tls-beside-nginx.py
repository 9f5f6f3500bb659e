#!/usr/bin/env python3
"""Measures Encke without TLS, with TLS, and behind nginx that terminates TLS, in turn, and prints a table in Markdown.

  scripts/tls-beside-nginx.py [ROUNDS]

Needs the release builds of encke and encke-bench (`make build instruments`), openssl, and nginx (which `make browser` downloads).
A round takes about three minutes. Memory and processor time behind nginx are those of nginx and Encke together.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.environ.get("CARGO_TARGET_DIR", f"{ROOT}/target")
ENCKE = os.environ.get("ENCKE_BIN", f"{TARGET}/release/encke")
BENCH = f"{TARGET}/release/encke-bench"
# Taken out: nginx itself reads a variable of this name.
NGINX = os.environ.pop("NGINX", None) or shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:{TARGET}/tools/usr/sbin")

# As in docs/proxies.md, with room for the connections of this measurement and without files outside the directory.
NGINX_CONF = """
daemon off; pid {dir}/nginx.pid; error_log {dir}/nginx.log; {user}
worker_processes {workers}; worker_rlimit_nofile 20000;
events {{ worker_connections 19500; }}
http {{
    access_log off; client_max_body_size 16m;
    client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
    upstream encke {{ server 127.0.0.1:{behind}; keepalive 64; keepalive_timeout 60s; }}
    server {{
        listen 127.0.0.1:{port} ssl backlog=4096;
        ssl_certificate {dir}/cert.pem; ssl_certificate_key {dir}/key.pem; ssl_protocols TLSv1.2 TLSv1.3;
        location / {{
            proxy_pass http://encke; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $remote_addr; proxy_set_header X-Forwarded-Proto $scheme;
            proxy_buffering off; proxy_read_timeout 90s; proxy_send_timeout 90s;
        }}
    }}
}}
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A server in a process group of its own, behind a shell whose descendants are watched."""

    def __init__(self, name, url, command, ready):
        self.name, self.url = name, url
        self.process = subprocess.Popen(
            ["sh", "-c", f"{command} wait"], stdout=subprocess.DEVNULL, start_new_session=True
        )
        deadline = time.monotonic() + 30
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{ready}/readyz").close()
                return
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    self.end()
                    raise SystemExit(f"{name} does not serve")
                time.sleep(0.1)

    def end(self):
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait()
        # The shell ends before the servers, which still write into their directories.
        while True:
            try:
                os.killpg(self.process.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.1)

    def bench(self, *arguments):
        """Starts a load tool against this server."""
        command = [BENCH, *arguments, "--url", f"{self.url}/v1/stream", "--insecure", "--server-pid", str(self.process.pid), "--json"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def report(process):
    output, _ = process.communicate()
    return json.loads(output)


def servers(directory):
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-keyout", f"{directory}/key.pem", "-out", f"{directory}/cert.pem"], check=True, capture_output=True)  # fmt: skip
    plain, tls, admin, behind, front = (free_port() for _ in range(5))
    serve = lambda name, port, flags="": f"{ENCKE} serve --listen 127.0.0.1:{port} --data {directory}/{name} --log warn {flags} & "
    with open(f"{directory}/nginx.conf", "w") as conf:
        user = "user root;" if os.geteuid() == 0 else ""
        conf.write(NGINX_CONF.format(dir=directory, user=user, workers=os.cpu_count(), behind=behind, port=front))
    yield Server("Encke, plain", f"http://127.0.0.1:{plain}", serve("plain", plain), plain)
    certificate = f"--tls-cert {directory}/cert.pem --tls-key {directory}/key.pem --admin-listen 127.0.0.1:{admin}"
    yield Server("Encke, TLS", f"https://127.0.0.1:{tls}", serve("tls", tls, certificate), admin)
    proxy = serve("behind", behind) + f"{NGINX} -p {directory} -c {directory}/nginx.conf & "
    yield Server("nginx before Encke", f"https://127.0.0.1:{front}", proxy, behind)


def measure(server):
    """One round: figures by row of the table."""
    figures = {}
    idle = report(server.bench("flood", "-n", "9000", "--rate", "2000", "--one", "idle", "--duration", "3s"))
    figures["idle subscriber, 9,000: B"] = idle["server"]["bytes_per_connection"]
    for name, rate in (("20/s", "20"), ("saturated", "max")):
        flood = report(server.bench("flood", "-n", "5000", "--rate", "2000", "--one", "all", "--publishers", "1", "--publish", rate, "--duration", "8s"))  # fmt: skip
        figures[f"one event to 5,000, {name}: µs CPU per delivery"] = flood["server"]["cpu_per_delivery_us"]
    storms = report(server.bench("storm", "-n", "9000", "--storms", "2"))["storms"]
    for number, storm in enumerate(storms, 1):
        figures[f"9,000 connect at once, time {number}: s"] = storm["seconds"]
        figures[f"9,000 connect at once, time {number}: µs CPU each"] = storm["server_cpu_us"]
        figures[f"9,000 connect at once, time {number}: with a ticket"] = storm["resumed"]
    for beside in (False, True):
        flood = server.bench("flood", "-n", "100", "--one", "few", "--publishers", "1", "--publish", "50", "--duration", "14s")
        if beside:
            time.sleep(3)
            report(server.bench("storm", "-n", "5000", "--storms", "4", "--away", "500ms", "--prefix", "storm/"))
        live = report(flood)["latency"]["live"]
        what = "beside connecting clients" if beside else "alone"
        for key in ("p50", "p99"):
            figures[f"delivery to 100, {what}: {key}, ms"] = live[f"{key}_us"] / 1000
    return figures


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    if NGINX is None:
        raise SystemExit("nginx is missing; `make browser` downloads it")
    with tempfile.TemporaryDirectory() as directory:
        started = []
        try:
            started.extend(servers(directory))
            results = {server.name: [] for server in started}
            for number in range(rounds):
                for server in started:
                    print(f"round {number + 1} of {rounds}: {server.name}", file=sys.stderr)
                    results[server.name].append(measure(server))
        finally:
            for server in started:
                server.end()
    print("| | " + " | ".join(results) + " |")
    print("|---" * (len(results) + 1) + "|")
    for row in next(iter(results.values()))[0]:
        cells = (", ".join(f"{figures[row]:,.4g}" for figures in rounds) for rounds in results.values())
        print(f"| {row} | " + " | ".join(cells) + " |")


main()
