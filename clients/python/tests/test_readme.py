"""The examples of README.md, with the package as it is installed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import unittest
from http import HTTPStatus
from pathlib import Path

from rig import PATIENCE_S, Server, wait_until

README = Path(__file__).resolve().parents[1] / "README.md"
PRINTED = {
    "follower.py": ["anna cat-small.png", "anna dog-small.png"],
    "writing.py": ["['one', 'two', 'three', 'four']", "['chat/1']"],
    "following.py": ["one True", "two", "End(stream='news', why='closed', end_reason='done')"],
    "asynchronous.py": ["{'resized': 'cat.png'}"],
    "subscriptions.py": ["events/a ['something']"],
}


class Readme(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Server()
        self.addCleanup(self.server.remove)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.blocks = dict(re.findall(r"^```python\n# (\S+)\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL))

    def start(self, name: str) -> subprocess.Popen[str]:
        path = self.folder / name
        path.write_text(self.blocks[name].replace("http://127.0.0.1:4437", self.server.url))
        process = subprocess.Popen([sys.executable, "-u", str(path)], stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        assert process.stdout is not None
        self.addCleanup(process.stdout.close)
        return process

    def test_the_examples_run(self) -> None:
        self.assertEqual({*self.blocks}, {"worker.py", *PRINTED})
        worker = self.start("worker.py")
        wait_until(lambda: self.server.raw("GET", "/v1/pool/thumbs")[0] == HTTPStatus.OK)
        for name, lines in PRINTED.items():
            with self.subTest(name):
                process = self.start(name)
                assert process.stdout is not None
                self.assertEqual([process.stdout.readline() for _ in lines], [f"{line}\n" for line in lines])
                if name == "follower.py":  # It follows a stream without an end.
                    process.kill()
                else:
                    self.assertEqual((process.wait(PATIENCE_S), process.stdout.read()), (0, ""))
        worker.send_signal(signal.SIGTERM)
        self.assertEqual(worker.wait(PATIENCE_S), 0)

    def test_a_worker_and_a_follower_have_20_lines_together(self) -> None:
        lines = [line for name in ("worker.py", "follower.py") for line in self.blocks[name].splitlines() if line]
        self.assertLessEqual(len(lines), 20)


if __name__ == "__main__":
    unittest.main(verbosity=2)
