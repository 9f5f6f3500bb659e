#!/usr/bin/env python3
"""Writes docs/reference.md: every setting, metric, error code and exit code, as the program and its source have them.

    scripts/reference.py BINARY           writes it
    scripts/reference.py --check BINARY   says whether it is up to date

Settings come from `encke serve --help` and `encke serve --check`, metrics, statuses of errors and exit codes from the source, and the meanings of errors from
docs/errors.toml, which has exactly the codes that the source has.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/reference.md"
ERRORS = ROOT / "docs/errors.toml"


def fail(message):
    sys.exit(f"reference.py: {message}")


def output(binary, *arguments):
    settings = {name: value for name, value in os.environ.items() if not name.startswith("ENCKE_")}
    # The help is as wide as its longest line, so that no line is broken.
    command = [binary, *arguments]
    return subprocess.run(command, env=settings | {"COLUMNS": "5000"}, check=True, capture_output=True, text=True).stdout


def sources(crates="*"):
    """The text of each source file without its tests."""
    for path in sorted(ROOT.glob(f"crates/{crates}/src/**/*.rs")):
        if "tests" in path.parts or path.name.endswith("tests.rs"):
            continue
        yield path.read_text().split("#[cfg(test)]\nmod ")[0]


def cell(text):
    return text.replace("|", "\\|")


def table(head, rows):
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(lines + [f"| {' | '.join(map(cell, row))} |" for row in rows]) + "\n"


def flags(binary):
    """The flags of `serve` by group: flag, variable, default and meaning."""
    group, found = None, {}
    for line in output(binary, "serve", "--help").splitlines():
        if heading := re.fullmatch(r"(\S.*):", line):
            group = heading[1]
        match = re.fullmatch(r"\s+(--[a-z0-9-]+)( \[?<[^>]+>\]?)?\s{2,}(.*?) \[env: (\w+)\] \[default: (.*)\]", line)
        if match and group != "Options":
            flag, _, meaning, variable, default = match.groups()
            found.setdefault(group, []).append((f"`{flag}`", f"`{variable}`", default, meaning))
    return found


def tuning(binary):
    """The keys of the table [tuning]: key, default and meaning."""
    rows, meaning, inside = [], None, False
    for line in output(binary, "serve", "--check").splitlines():
        inside = inside or line == "[tuning]"
        if not inside:
            continue
        if match := re.fullmatch(r"(?:# )?([a-z0-9-]+) (?:= (.+?)|is not set)  # default(?:: (.*))?", line):
            key, value, default = match.groups()
            rows.append((f"`{key}`", default or value.strip('"'), meaning))
        elif match := re.fullmatch(r"# (.+)", line):
            meaning = match[1]
    return rows


LABELS = {"LOG": "log", "LEVEL": "level"}
METRIC = re.compile(
    r'([\w:]+)\(\s*"(encke_\w+)",\s*"((?:[^"\\]|\\.|\\\n)*)"'
    # `Opts::new` ends before the labels.
    r'(?:,?\s*\)?,\s*(?:"(\w+)"|&\[([^\]]*)\]))?'
)


def metrics():
    """Each metric: name, kind, labels and help."""
    kinds = {"counter": "counter", "counters": "counter", "gauge": "gauge", "gauges": "gauge", "histogram": "histogram"}
    found = {}
    for text in sources():
        for call, name, meaning, label, labels in METRIC.findall(text):
            kind = next((kind for word, kind in kinds.items() if word in call.lower()), None)
            # A type of the library, as in `Opts::new`: the name of a counter says what it is.
            kind = kind or ("counter" if name.endswith("_total") else "gauge")
            names = [label] if label else re.findall(r'"(\w+)"|(\b[A-Z]+\b)', labels)
            names = [LABELS.get(one, one) if isinstance(one, str) else one[0] or LABELS[one[1]] for one in names]
            meaning = re.sub(r"\\\n\s*", "", meaning).replace('\\"', '"')
            found[name] = (f"`{name}`", kind, ", ".join(f"`{one}`" for one in names), meaning)
    return [found[name] for name in sorted(found)]


# A status beside its code: a text, or a constant.
STATUS = re.compile(r'\b([45]\d\d),\s*(?:"([A-Za-z]\w+)"|([A-Z][A-Z_]{3,})\b)')
CONSTANT = re.compile(r'const ([A-Z_]+): &str = "(\w+)";')
# The helper of requests to pools, whose status is 400.
BAD = re.compile(r'\bbad\(\s*"([a-z_]+)",')
# Codes that an enum names: of credentials, handshakes of WebSocket and clients.
ARM = re.compile(r'(\w+)::(\w+)(?:\(_\)| \{ \.\. \})? => "([a-z_]+)"')


def statuses():
    """Each code of an error, and its statuses. Most stand beside each other in the source; some codes are names of an enum."""
    found_of = {}

    def add(code, *found):
        found_of.setdefault(code, set()).update(found)

    texts = [*sources("encke-protocol"), *sources("encke-net")]
    # What answers operators is the only part of encke-server that makes responses of the API.
    texts += [path.read_text().split("#[cfg(test)]\nmod ")[0] for path in sorted((ROOT / "crates/encke-server/src/inspect").glob("*.rs"))]
    constants = dict(match for text in texts for match in CONSTANT.findall(text))
    for text in texts:
        for status, code, constant in STATUS.findall(text):
            if code or constant in constants:
                add(code or constants[constant], status)
        for code in BAD.findall(text):
            add(code, "400")
        for enum, variant, code in ARM.findall(text):
            if enum == "Denied":
                add(code, re.search(rf"Denied::{variant}\b[^=]*=> \{{?\s*Rejection::new\(\s*(\d+)", text)[1])
            elif enum == "HandshakeRefusal":
                add(code, "400", *(["426"] if variant == "Version" else []))
    denied = (ROOT / "crates/encke-access/src/denied.rs").read_text()
    reasons = re.findall(r'"(\w+)",', denied.split("const REASONS")[1].split("];")[0])
    of = {}
    for variants, status in re.findall(r"((?:AccessDenied::\w+(?:\(_\)| \{ \.\. \})?(?: \| )?)+) => (\d{3}),", denied.split("fn status")[1].split("fn reason")[0]):
        of |= {variant: status for variant in re.findall(r"::(\w+)", variants)}
    for variant, index in re.findall(r"AccessDenied::(\w+)(?:\(_\)| \{ \.\. \})? => (\d+),", denied.split("fn index")[1]):
        add(reasons[int(index)], of.get(variant, "401"))
    return found_of


def errors():
    """Each code of an error: code, statuses, meaning and what to do."""
    sent = statuses()
    meanings = tomllib.loads(ERRORS.read_text())
    missing, unknown = sorted(set(sent) - set(meanings)), sorted(set(meanings) - set(sent))
    if missing or unknown:
        fail(f"{ERRORS.relative_to(ROOT)} lacks {missing}, and has {unknown}, which the server does not send")
    for code in sorted(meanings):
        meaning = meanings[code]
        yield f"`{code}`", ", ".join(sorted(sent[code])), meaning["means"], meaning.get("do", "")


def exit_codes():
    operations = (ROOT / "docs/operations.md").read_text()
    text = next(text for text in sources() if "pub(crate) enum Code {" in text)
    body = text.split("pub(crate) enum Code {")[1].split("}")[0]
    for meaning, code in re.findall(r"/// (.*)\n\s+\w+ = (\d+),", body):
        if f"\n| {code} |" not in operations:
            fail(f"docs/operations.md does not explain exit code {code}")
        yield code, meaning


def page(binary):
    yield """# Reference

Written by `scripts/reference.py` from the program and its source. [Operations](operations.md) explains how settings work together.

## Settings

Each flag of `encke serve` is a key of the configuration file, too, of the same name without the dashes.
"""
    for group, rows in flags(binary).items():
        yield f"### {group}\n"
        yield table(["flag", "variable", "default", "meaning"], rows)
    yield """### The table [tuning]

Keys of the table `[tuning]` of the configuration file; on the command line `--tuning KEY=VALUE`, or `ENCKE_TUNING`.
"""
    yield table(["key", "default", "meaning"], tuning(binary))
    yield """## Metrics

At `/metrics` in the text format of Prometheus. Metrics of what a server does not do (a fleet, pools, TLS) are missing there.
"""
    yield table(["metric", "kind", "labels", "meaning"], metrics())
    yield """## Errors

The body of an error is a problem of RFC 9457 with the member `error`, which has the `code` and a `message` that names what was wrong and what is allowed. A WebSocket gets
the same codes in a message of type `error`.
"""
    yield table(["code", "status", "what is wrong", "what to do"], errors())
    yield """## Exit codes

0 is success; [Operations](operations.md#exit-codes) says which command ends with which.
"""
    yield table(["code", "meaning"], exit_codes())


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--check"]
    if len(arguments) != 1:
        fail(__doc__)
    text = "\n".join(page(arguments[0]))
    if "--check" not in sys.argv:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        fail("docs/reference.md is not what the program has: run `make reference`")


main()
