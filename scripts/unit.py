#!/usr/bin/env python3
"""Runs the Rust tests: the system tests, which wait for servers and clocks more than they work, and beside them all others.

usage: unit.py

RUST_TEST_THREADS is the number of tests of a program at a time: by default twice as many as processors for the system tests, and as many as processors for
the others. Prints the output of the system tests as it comes, and that of the others when they have ended.
"""

import json
import os
import subprocess
import sys
import tempfile

CARGO = ["cargo", "test", "--locked", "--workspace"]
SYSTEM = "system"


def other_tests():
    """The names of the integration tests beside the system tests."""
    metadata = ["cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"]
    packages = json.loads(subprocess.run(metadata, stdout=subprocess.PIPE, check=True).stdout)["packages"]
    targets = [target for package in packages for target in package["targets"]]
    return sorted({target["name"] for target in targets if "test" in target["kind"]} - {SYSTEM})


def main():
    if subprocess.run([*CARGO, "--no-run"], check=False).returncode:
        sys.exit(1)
    names = [word for name in other_tests() for word in ("--test", name)]
    threads = str(2 * len(os.sched_getaffinity(0)))
    environment = {"RUST_TEST_THREADS": threads, **os.environ}
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        # An interrupt reaches the children by itself.
        others = subprocess.Popen([*CARGO, "--no-fail-fast", "--lib", "--bins", *names], stdout=output, stderr=subprocess.STDOUT)
        statuses = [subprocess.run([*CARGO, "--test", SYSTEM], env=environment, check=False).returncode]
        statuses.append(others.wait())
        output.seek(0)
        print(output.read(), flush=True)
    statuses.append(subprocess.run([*CARGO, "--doc"], check=False).returncode)
    for what, status in zip(["the system tests", "the other tests, whose output is above,", "the tests of the documentation"], statuses, strict=True):
        if status:
            print(f"{what} have failed", flush=True)
    sys.exit(1 if any(statuses) else 0)


if __name__ == "__main__":
    main()
