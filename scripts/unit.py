#!/usr/bin/env python3
"""Runs the Rust tests: the system tests, which wait for servers and clocks more than they work, and beside them all others.

usage: unit.py

RUST_TEST_THREADS is the number of tests of a program at a time: by default twice as many as processors for the system tests, and as many as processors for
the others. Prints the output of the system tests as it comes, and that of the other programs when they have ended.
"""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

CARGO = ["cargo", "test", "--locked", "--workspace"]
SYSTEM = "system"


def programs():
    """The test programs: name, path and folder of the package of each."""
    build = [*CARGO, "--no-run", "--message-format", "json-render-diagnostics"]
    built = subprocess.run(build, stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode:
        sys.exit(built.returncode)
    messages = map(json.loads, built.stdout.splitlines())
    tests = (one for one in messages if one["reason"] == "compiler-artifact" and one["executable"] and one["profile"]["test"])
    return [(one["target"]["name"], one["executable"], Path(one["manifest_path"]).parent) for one in tests]


def run(program, threads, **options):
    name, path, folder = program
    env = {**os.environ, "CARGO_MANIFEST_DIR": str(folder), "RUST_TEST_THREADS": os.environ.get("RUST_TEST_THREADS", str(threads))}
    # An interrupt reaches the children by itself.
    return subprocess.run([path], cwd=folder, env=env, check=False, **options)


def main():
    processors = len(os.sched_getaffinity(0))
    all_programs = programs()
    others = [program for program in all_programs if program[0] != SYSTEM]
    failed = []

    def run_others():
        for program in others:
            ended = run(program, processors, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
            print(f"\n{program[0]}\n{ended.stdout}", flush=True)
            if ended.returncode:
                failed.append((program[0], ended.stdout))

    beside = threading.Thread(target=run_others)
    beside.start()
    for program in all_programs:
        if program[0] == SYSTEM and run(program, 2 * processors).returncode:
            failed.append((SYSTEM, ""))
    beside.join()
    if subprocess.run([*CARGO, "--doc"], check=False).returncode:
        failed.append(("documentation", ""))
    for name, output in failed:
        # Again, because much has followed since.
        print(f"\nFAILED: {name}\n{output[-20_000:]}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
