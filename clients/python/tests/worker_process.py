"""A worker that a test can kill: `worker_process.py URL POOL NAME work|slow|hang`. It prints each job that it begins."""

from __future__ import annotations

import sys
import time

from rig import RETRY

import encke


def main() -> None:
    url, pool, name, how = sys.argv[1:]

    def handler(job: encke.Job) -> object:
        print(job.id, flush=True)
        # A job that is slow lasts while the test sends a signal; one that hangs lasts until the process is killed.
        time.sleep({"work": 0.02, "slow": 5, "hang": 3600}[how])
        return job.data

    with encke.Encke(url, retry=RETRY) as client:
        encke.Worker(client, pool, name, handler, lease_s=3).run(stop_on_signals=True)


if __name__ == "__main__":
    main()
