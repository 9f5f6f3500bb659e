#!/usr/bin/env python3
"""Fails when the documentation, a comment or a script names a file of the sources that does not exist.

A path that ends in `.rs` and has a folder must be that of a file from the root of the repository, from `crates/`, or behind the
`src/` of a crate (`feed/queue.rs`); a name without a folder must be that of some file. Decisions are history: they may name what is
gone. In code only comments are read.

    scripts/doc-paths.py
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATH = re.compile(r"(?<![\w./*{}$-])((?:[\w-]+/)*[\w-]+\.rs)\b(?![\w*])")
COMMENT = re.compile(r"//.*")
CODE, TEXT = (".rs", ".mjs"), (".md", ".py", ".sh", ".toml")
SKIPPED = ("docs/decisions/", "CHANGELOG.md", "scripts/doc-paths.py", "scripts/test_budget.py", "docs/bench/")


def main():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True)
    files = [file for file in listed.stdout.splitlines() if (ROOT / file).is_file()]
    ends = set()
    for file in files:
        if file.endswith(".rs"):
            parts = Path(file).parts
            ends |= {"/".join(parts[at:]) for at in range(len(parts))}
    wrong = 0
    for file in files:
        kind = Path(file).suffix
        if kind not in CODE + TEXT or file.startswith(SKIPPED):
            continue
        for number, line in enumerate((ROOT / file).read_text().splitlines(), 1):
            if kind in CODE:
                comment = COMMENT.search(line)
                line = comment.group(0) if comment else ""
            for path in PATH.findall(line):
                if path not in ends:
                    print(f"{file}:{number}: there is no {path}")
                    wrong += 1
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
