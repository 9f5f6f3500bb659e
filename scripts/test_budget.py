#!/usr/bin/env python3
"""Tests of scripts/budget.py: what it finds, what it counts, and that it refuses a change above each limit.

    scripts/test_budget.py
"""

import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import budget


class Phrases(unittest.TestCase):
    def test_planted_phrases_are_found(self):
        for path, source, line_number in PLANTED:
            with self.subTest(path=path, source=source):
                self.assertEqual(found(path, source), [line_number])

    def test_each_expression_finds_a_planted_phrase(self):
        for phrase in budget.PHRASES:
            with self.subTest(phrase=phrase), mock.patch.object(budget, "REFUSED", re.compile(phrase, re.IGNORECASE)):
                self.assertTrue(any(found(path, source) for path, source, _ in PLANTED))

    def test_innocent_text_is_not_found(self):
        for path, source in INNOCENT:
            with self.subTest(path=path, source=source):
                self.assertEqual(found(path, source), [])

    def test_a_line_counts_once(self):
        self.assertEqual(found("a.rs", 'f("nobody is told of it"); // nobody\n'), [1])

    def test_generated_files_and_history_are_not_checked(self):
        for path in ["docs/reference.md", "docs/bench/README.md", "CHANGELOG.md", "scripts/test_budget.py"]:
            self.assertEqual(found(path, "# Nobody.\n"), [])


class Code(unittest.TestCase):
    def test_comments_imports_and_blank_lines_are_no_code(self):
        source = """//! A file.
            use std::fmt;
            pub(crate) use std::{
                io,
            };
            mod other;

            /* A block
            fn hidden() {} */
            fn shown() { // A comment.
                f("/* // { use");
            }
        """
        self.assertEqual(budget.count_code(source), 3)

    def test_items_of_tests_are_no_code(self):
        source = """
            fn a() {}
            #[cfg(test)]
            mod separate;
            #[cfg(test)]
            #[allow(dead_code)]
            mod tests {
                fn b() { f('{', "}"); }
            }
            #[cfg(all(test, unix))]
            fn one_line() {}
            fn c() {}
        """
        self.assertEqual(budget.count_code(source), 2)

    def test_the_path_decides_what_is_counted(self):
        code = "fn a() {}\n"
        product = ["crates/a/src/lib.rs", "crates/a/src/part/mod.rs"]
        instruments = ["bench/src/main.rs", "crates/a-bench/src/main.rs"]
        tests = ["crates/a/src/tests.rs", "crates/a/src/part/a_tests.rs", "crates/a/src/testing/mod.rs", "crates/a/src/fuzzing.rs"]
        elsewhere = ["crates/a/tests/a.rs", "fuzz/fuzz_targets/a.rs", "crates/a/src/a.js"]
        files = dict.fromkeys(product + instruments + tests + elsewhere, code)
        self.assertEqual(budget.code_lines(files), (len(product), len(instruments)))


class Limits(unittest.TestCase):
    def test_each_limit_refuses_a_change_above_it(self):
        numbers = budget.measure(TREE)
        limits = {number.name: number.value for number in numbers}
        self.assertEqual(budget.compare(numbers, limits), ([], []))
        self.assertEqual(set(limits), {name for name, _, _ in CHANGES})
        for name, path, addition in CHANGES:
            with self.subTest(limit=name):
                (violation,), _ = budget.compare(budget.measure(changed(path, addition)), limits)
                self.assertRegex(violation, rf"^{name} is [\d,]+, above its limit of {limits[name]} in budget.toml; look at \S+")

    def test_files_without_a_limit_may_grow(self):
        for path, addition in UNLIMITED:
            self.assertEqual(budget.measure(changed(path, addition)), budget.measure(TREE), path)

    def test_a_value_far_below_its_limit_gets_a_note(self):
        for value, noted in [(980, False), (979, True), (0, True)]:
            violations, notes = budget.compare([budget.Number("packages", value, "Cargo.lock")], {"packages": 1000})
            self.assertEqual((violations, len(notes)), ([], int(noted)))
            if noted:
                self.assertTrue(notes[0].endswith(f"lower the limit to {value}"))

    def test_numbers_and_limits_have_the_same_names(self):
        number = budget.Number("packages", 1, "Cargo.lock")
        self.assertEqual(len(budget.compare([number], {})[0]), 1)
        self.assertEqual(len(budget.compare([number], {"packages": 1, "package": 1})[0]), 1)


class Subjects(unittest.TestCase):
    def test_long_subjects_and_refused_verbs(self):
        good = ["Cache verified checksums per page", "Letters of a key are compared", "x" * 72]
        bad = ["Say in the documents what the code does", "Let it be", "Have X be Y", "Tell clients when to retry", "x" * 73]
        self.assertEqual(list(budget.refused_subjects([("abc", subject) for subject in good])), [])
        for subject in bad:
            (violation,) = budget.refused_subjects([("abc", subject)])
            self.assertIn("the subject of commit abc ", violation)


class Program(unittest.TestCase):
    """The whole program, in a git repository of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        files = TREE | {"budget.toml": "".join(f"{name} = {value}\n" for name, value, _ in budget.measure(TREE)), ".gitignore": "ignored\n"}
        for path, text in files.items():
            self.write(path, text)
        # git tracks neither the script nor what it reads, so that they are in no number.
        (self.root / "ignored").mkdir()
        for name in ["budget.py", "refused-phrases.txt"]:
            shutil.copy(Path(budget.__file__).with_name(name), self.root / "ignored")
        self.git("init", "--quiet")
        self.commit("Add the tree")

    def test_new_files_count_and_ignored_ones_do_not(self):
        self.write("ignored/a.md", "Nobody.\n")
        status, output = self.run_program()
        self.assertEqual(status, 0, output)
        self.assertIn("is not in this clone", output)
        self.write("clients/a.md", "Fine.\nNobody.\n")
        status, output = self.run_program()
        self.assertEqual(status, 1)
        self.assertIn("budget.py: refused-phrases is 1, above its limit of 0 in budget.toml; look at scripts/budget.py --list\n", output)
        self.assertEqual(self.run_program("--list"), (0, "clients/a.md:2: Nobody.\n"))

    def test_subjects_after_the_first_revision(self):
        script = self.root / "ignored/budget.py"
        first = self.git("rev-parse", "HEAD").strip()
        script.write_text(script.read_text().replace(f'"{budget.FIRST_REVISION}"', f'"{first}"'))
        self.commit("Cache verified checksums per page")
        self.assertEqual(self.run_program()[0], 0)
        self.commit("Say what is cached")
        status, output = self.run_program()
        self.assertEqual(status, 1)
        self.assertRegex(output, r'budget.py: the subject of commit [0-9a-f]+ begins with "Say"')

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def git(self, *arguments):
        identity = ["-c", "user.name=Test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false"]
        return subprocess.run(["git", *identity, *arguments], cwd=self.root, check=True, stdout=subprocess.PIPE, text=True).stdout

    def commit(self, subject):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--no-verify", "--message", subject)

    def run_program(self, *arguments):
        command = [sys.executable, "ignored/budget.py", *arguments]
        result = subprocess.run(command, cwd=self.root, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return result.returncode, result.stdout


def found(path, source):
    return [line_number for _, line_number, _ in budget.refused_lines({path: source})]


def changed(path, addition):
    return TREE | {path: TREE.get(path, "") + addition}


# Path, source, and the line on which the phrase begins.
PLANTED = [
    ("a.rs", "fn a() {\n    // Nobody reads it.\n}\n", 2),
    ("a.rs", "/// What a read has reached.\nstruct A;\n", 1),
    ("a.rs", "//! Sends it to the client\n//! who asks, whoever\n", 2),
    ("a.rs", "/// Tells the client\n/// and those\n/// who wait.\nfn a() {}\n", 2),
    ("a.rs", "let a = 1; // so many as there are\n", 1),
    ("a.rs", "/* One\n * for all who wait, or nobody */\n", 2),
    ("a.rs", 'fail("the client is told why");\n', 1),
    ("a.rs", 'counter("a_total", "Times a socket \\\n    took no more bytes.");\n', 2),
    ("a.rs", '#[arg(help = "What the server says of it")]\n', 1),
    ("a.rs", 'let quote = \'"\'; print(r#"a "raw" text goes on"#);\n', 1),
    ("a.rs", 'print("a line\\nas many as there are");\n', 1),
    ("Cargo.toml", '[a]\n# The foreman of the pool.\nb = "c"\n', 2),
    ("docs/errors.toml", '[a]\nmeans = "What was said has no end."\n', 2),
    ("docs/a.md", "# A\n\nThe list:\n- And the members.\n", 4),
    ("docs/a.md", "First a.\nThen comes b.\n", 2),
    ("a.mjs", "/** It is « quoted ». */\n", 1),
    ("src/a.ts", "const a = 'b'; // what is decided later\n", 1),
    ("a.py", 'def a():\n    """Returns b.\n\n    Nobody calls it.\n    """\n', 4),
    ("a.py", "a = 1  # nobody\n", 1),
    ("a.sh", "set -e\n# It goes on.\n", 2),
    ("a.yaml", "a: b # nobody\n", 1),
    ("Makefile", "a: ## builds it for those that wait\n", 1),
]

INNOCENT = [
    ("a.rs", "fn nobody(goes_on: bool) { let foreman = go_on; }\n"),
    ("a.rs", 'match name { "nobody" => "no body", _ => "so_many" }\n'),
    ("a.rs", "// The first\n// and the second, in the order\n// what they have.\n"),
    ("a.rs", "fn f<'a>(a: &'a str, b: char) { g('\"', '\\'', \"//\"); nobody() }\n"),
    ("a.rs", 'fn url() { get("http://a", nobody, "b") }\n'),
    ("a.toml", 'who = "a"\nnobody = 1\n'),
    ("a.mjs", "const nobody = 'http://a'; whoever(nobody);\n"),
    ("a.py", "nobody = '# 1' + \"so much text in a value\"\n"),
    ("a.sh", 'nobody=$# whoever="${nobody#a}"\n'),
    ("a.txt", "Nobody.\n"),
    ("docs/a.md", "What? It continues, as someone, for the others.\n"),
]

TREE = {
    "Cargo.lock": '[[package]]\nname = "a"\n',
    "README.md": "# Encke\n",
    "docs/reference.md": "## Settings\n\n| flag |\n|---|\n| `--a` |\n\n### The table [tuning]\n\n| `b` |\n",
    "crates/a/src/lib.rs": "fn a() {}\n",
    "crates/a/tests/largest.rs": "fn a() {}\n" * 5,
    "bench/src/main.rs": "fn a() {}\n",
}

# The name of a limit, and text that, added to a file, exceeds only this limit.
CHANGES = [
    ("product-code-lines", "crates/a/src/lib.rs", "fn b() {}\n"),
    ("bench-code-lines", "bench/src/main.rs", "fn b() {}\n"),
    ("largest-file-lines", "crates/a/tests/largest.rs", "\n"),
    ("packages", "Cargo.lock", '[[package]]\nname = "b"\n'),
    ("settings", "docs/reference.md", "| `c` |\n"),
    ("document-words", "docs/decisions/0001-a.md", "A word.\n"),
    ("refused-phrases", "crates/a/src/other.rs", "// Nobody.\n"),
]

UNLIMITED = [
    ("bench/Cargo.lock", '[[package]]\nname = "b"\n'),
    ("docs/reference.md", "\n## Metrics\n\n| `d` |\n"),
    ("docs/benchmarks.md", "A word.\n"),
    ("docs/bench/README.md", "A word.\n"),
    ("clients/js/README.md", "A word.\n"),
]


if __name__ == "__main__":
    unittest.main()
