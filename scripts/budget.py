#!/usr/bin/env python3
"""Fails when a number that measures the size of the project is above its limit in budget.toml, or a new commit has a refused subject.

    scripts/budget.py          prints each number and its limit
    scripts/budget.py --list   prints each line that has a refused phrase

The numbers count the files that git tracks and the new files that git does not ignore. Python 3.11 or later.
"""

import ast
import re
import subprocess
import sys
import tomllib
from bisect import bisect
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple


class Number(NamedTuple):
    """A number with a limit: its key in budget.toml, its value, and where to look when it is too high."""

    name: str
    value: int
    place: str


def main():
    if sys.argv[1:] not in ([], ["--list"]):
        sys.exit(__doc__)
    files = read_files(ROOT)
    if sys.argv[1:] == ["--list"]:
        for path, line_number, line in refused_lines(files):
            print(f"{path}:{line_number}: {line}")
        return
    limits = tomllib.loads((ROOT / "budget.toml").read_text())
    numbers = measure(files)
    print(table(numbers, limits))
    violations, notes = compare(numbers, limits)
    commits = commits_since(ROOT, FIRST_REVISION)
    if commits is None:
        notes.append(f"commit {FIRST_REVISION} is not in this clone: the subjects of commits are not checked")
    violations += refused_subjects(commits or [])
    for line in notes:
        print(f"note: {line}")
    for line in violations:
        print(f"budget.py: {line}")
    sys.exit(1 if violations else 0)


def read_files(root):
    """The text of each file that a number counts, by its path."""
    listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").stdout.split("\0")
    paths = sorted(path for path in set(listed) if kind_of(path) or path == "Cargo.lock")
    return {path: (root / path).read_text(encoding="utf-8") for path in paths if (root / path).is_file()}


def measure(files):
    """All numbers of a tree."""
    rust = {path: text.count("\n") for path, text in files.items() if path.endswith(".rs")}
    largest = max(rust, key=rust.get)
    product, bench = code_lines(files)
    packages = len(re.findall(r"^\[\[package\]\]$", files["Cargo.lock"], re.MULTILINE))
    words = sum(len(text.split()) for path, text in files.items() if has_counted_words(path))
    phrases = sum(1 for _ in refused_lines(files))
    return [
        Number("product-code-lines", product, "crates/*/src"),
        Number("bench-code-lines", bench, "bench/src"),
        Number("largest-file-lines", rust[largest], largest),
        Number("packages", packages, "Cargo.lock"),
        Number("settings", count_settings(files["docs/reference.md"]), "docs/reference.md"),
        Number("document-words", words, "README.md, docs"),
        Number("refused-phrases", phrases, "scripts/budget.py --list"),
    ]


def table(numbers, limits):
    rows = [("number", "value", "limit", "where to look")]
    rows += [(name, f"{value:,}", f"{limits.get(name, 0):,}", place) for name, value, place in numbers]
    return "\n".join(f"{name:20} {value:>9} {limit:>9}  {place}" for name, value, limit, place in rows)


def compare(numbers, limits):
    """The violations of limits, and notes about limits that can be lowered."""
    names = {number.name for number in numbers}
    violations = [f"budget.toml has {name}, which is not a number of this check" for name in limits if name not in names]
    notes = []
    for name, value, place in numbers:
        limit = limits.get(name)
        if limit is None:
            violations.append(f"budget.toml has no limit for {name}")
        elif value > limit:
            violations.append(f"{name} is {value:,}, above its limit of {limit:,} in budget.toml; look at {place}")
        elif value < limit * (1 - SLACK):
            notes.append(f"{name} is {value:,}, more than {SLACK:.0%} below its limit of {limit:,}: lower the limit to {value}")
    return violations, notes


def commits_since(root, revision):
    """The commits after a revision, each as its short hash and its subject, or None if the clone lacks the revision."""
    if git(root, "cat-file", "-e", f"{revision}^{{commit}}", check=False).returncode:
        return None
    # The subject of a merge is generated, and long in a checkout of a pull request.
    lines = git(root, "log", "--no-merges", "--format=%h %s", f"{revision}..HEAD").stdout.splitlines()
    return [tuple(line.split(" ", 1)) for line in lines]


def refused_subjects(commits):
    """A violation for each subject that is too long or begins with a refused word."""
    for commit, subject in commits:
        if len(subject) > SUBJECT_CHARACTERS_MAX:
            yield f"the subject of commit {commit} has {len(subject)} characters, above the limit of {SUBJECT_CHARACTERS_MAX}: {subject}"
        if word := REFUSED_VERB.match(subject):
            yield f'the subject of commit {commit} begins with "{word[0]}"; name the thing that the commit changes: {subject}'


def code_lines(files):
    """The lines of code of the product, and those of the instruments: of `src` folders, without tests."""
    product = bench = 0
    for path, text in files.items():
        *folders, name = path.split("/")
        if not name.endswith(".rs") or "src" not in folders or TEST_FILE.match(name):
            continue
        package = folders[: folders.index("src")]
        if TEST_FOLDERS.intersection(folders[len(package) :]):
            continue
        if "bench" in "/".join(package):
            bench += count_code(text)
        else:
            product += count_code(text)
    return product, bench


def count_code(text):
    """The lines of a Rust file without blank lines, comments, `use`, `mod` and `extern crate` lines, and items behind `#[cfg(test)]`."""
    code = test_depth = 0
    in_comment = in_use = after_test_attribute = False
    for line in map(str.strip, text.split("\n")):
        if in_comment or line.startswith("/*"):
            in_comment = "*/" not in line
            continue
        if not line or line.startswith("//"):
            continue
        line = CHARACTER.sub("' '", STRING.sub('""', line)).split("//")[0]
        opened, closed = line.count("{"), line.count("}")
        if test_depth:
            test_depth = max(test_depth + opened - closed, 0)
        elif after_test_attribute:
            test_depth = max(opened - closed, 0)
            after_test_attribute = not (test_depth or line.endswith(";") or (opened and opened == closed))
        elif TEST_ATTRIBUTE.match(line):
            after_test_attribute = True
        elif in_use or USE.match(line):
            in_use = not line.endswith(";")
        else:
            code += 1
    return code


def count_settings(reference):
    """The settings of the server: rows of the tables of the section "Settings". The first cell of a row is a flag or key in backticks."""
    section = re.search(r"^## Settings$(.*?)(?=^## |\Z)", reference, re.MULTILINE | re.DOTALL)
    return len(re.findall(r"^\| `", section[1], re.MULTILINE))


def has_counted_words(path):
    return path == "README.md" or (path.startswith("docs/") and path.endswith(".md") and not path.startswith((*GENERATED, "docs/benchmarks.md")))


def refused_lines(files):
    """Each line on which a refused phrase begins: path, line number and line. A phrase may continue on the next line."""
    for path, source in files.items():
        if path.startswith(UNCHECKED):
            continue
        lines = source.split("\n")
        found = {
            line_number
            for first, text in texts(path, source)
            for paragraph in paragraphs(first, text)
            for line_number in refused_line_numbers(paragraph)
        }
        for line_number in sorted(found):
            yield path, line_number, lines[line_number - 1].strip()


def texts(path, source):
    """The texts of a file that people read, each with the number of its first line: comments, messages, or the whole document."""
    kind = kind_of(path)
    if kind is DOCUMENT:
        yield 1, source
        return
    if path.endswith(".py"):
        yield from docstrings(source)
    line_number, position = 1, 0
    for match in kind.finditer(source) if kind else ():
        if match.lastgroup is None:
            continue
        text, start = match[match.lastgroup], match.start(match.lastgroup)
        line_number += source.count("\n", position, start)
        position = start
        if match.lastgroup == "comment":
            yield line_number, text
        elif len(text) >= MESSAGE_CHARACTERS_MIN and " " in text:
            yield line_number, ESCAPE.sub(" ", text)


def docstrings(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if text := ast.get_docstring(node, clean=False):
                yield node.body[0].lineno, text


def paragraphs(first, text):
    """Splits a text at blank lines and before items of lists and tables. A paragraph is a list of line numbers and lines without comment markers."""
    paragraph = []
    for line_number, line in enumerate(text.split("\n"), first):
        line = MARKER.sub("", line, count=1).strip()
        if not line or ITEM.match(line):
            yield paragraph
            paragraph = []
        if line:
            paragraph.append((line_number, line))
    yield paragraph


def refused_line_numbers(paragraph):
    starts = list(accumulate((len(line) + 1 for _, line in paragraph), initial=0))
    for match in REFUSED.finditer(" ".join(line for _, line in paragraph)):
        yield paragraph[bisect(starts, match.start()) - 1][0]


def kind_of(path):
    """How to find the texts of a file: an expression for comments and messages, `DOCUMENT`, or None for files without texts."""
    return KINDS.get(Path(path).suffix or Path(path).name)


def git(root, *arguments, check=True):
    return subprocess.run(["git", *arguments], cwd=root, check=check, capture_output=True, text=True)


ROOT = Path(__file__).resolve().parent.parent
PHRASES = [line for line in Path(__file__).with_name("refused-phrases.txt").read_text(encoding="utf-8").splitlines() if not line.startswith("# ")]
REFUSED = re.compile("|".join(f"(?:{phrase})" for phrase in PHRASES if phrase), re.IGNORECASE)

# The last commit before the rules for subjects.
FIRST_REVISION = "8e8c3d92"
SUBJECT_CHARACTERS_MAX = 72
REFUSED_VERB = re.compile(r"(Say|Let|Have|Tell)\b", re.IGNORECASE)
# The share of a limit by which a number may be lower without a note.
SLACK = 0.02

TEST_FOLDERS = {"tests", "testing", "simulation", "benches", "fuzz_targets", "examples"}
TEST_FILE = re.compile(r"(tests|testing|fuzzing|.*_tests|.*_fuzzing|test_.*)\.rs$")
TEST_ATTRIBUTE = re.compile(r"#\[cfg\((test|all\(test|any\(test)")
USE = re.compile(r"(pub(\([^)]*\))? )?(use|mod|extern crate) .*;$|(pub(\((crate|super)\))? )?use ")
STRING = re.compile(r'"(\\.|[^"\\])*"')
CHARACTER = re.compile(r"'(\\.|[^'\\])'")

# Files written by scripts and instruments, whose texts are in the sources.
GENERATED = ("docs/reference.md", "docs/bench/")
# The changelog is history, and the test of this script plants refused phrases.
UNCHECKED = (*GENERATED, "CHANGELOG.md", "scripts/test_budget.py")
# A shorter string, or one without a space, is a name or a value.
MESSAGE_CHARACTERS_MIN = 12
ESCAPE = re.compile(r"\\[nrt]|\\(?=\n)")
MARKER = re.compile(r"\s*(?://[/!]?|/\*+!?|\*+/|\*(?=\s|$)|#+)?\s*")
ITEM = re.compile(r"[-|>] ?|\d+\. |```")

# Comments on consecutive lines are one text; a comment behind code is a text of its own.
SLASH_COMMENT = r"(?P<comment>^[ \t]*//.*(?:\n[ \t]*//.*)*|(?<=\s)//.*|{block})"
HASH_COMMENT = r"(?P<comment>^[ \t]*#.*(?:\n[ \t]*#.*)*|(?<=\s)#.*)"
# Outside of Rust, comments are recognized without parsing of literals: a block comment begins a line.
SCRIPT = re.compile(SLASH_COMMENT.format(block=r"^[ \t]*/\*(?s:.*?)\*/"), re.MULTILINE)
HASHED = re.compile(HASH_COMMENT, re.MULTILINE)
TOML = re.compile(HASH_COMMENT + r'|"(?P<message>(?:\\.|[^"\\\n])*)"', re.MULTILINE)
RUST = re.compile(
    SLASH_COMMENT.format(block=r"//.*|/\*(?s:.*?)\*/")
    + r'|\bb?r(?P<hashes>\#*)"(?P<raw>(?s:.*?))"(?P=hashes)'
    + r'|"(?P<message>(?:\\(?s:.)|[^"\\])*)"'
    # The text of a character is no message, but it may be a quotation mark.
    + r"|'(?:\\(?:u\{[^}]*\}|x..|.)|[^'\\\n])'",
    re.MULTILINE,
)
DOCUMENT = "document"
KINDS = {
    **dict.fromkeys((".js", ".mjs", ".ts", ".go", ".css"), SCRIPT),
    **dict.fromkeys((".py", ".sh", ".yml", ".yaml", ".cfg", ".conf", ".nix", ".service", "Containerfile", "Makefile"), HASHED),
    **dict.fromkeys((".md", ".html"), DOCUMENT),
    ".rs": RUST,
    ".toml": TOML,
}


if __name__ == "__main__":
    main()
