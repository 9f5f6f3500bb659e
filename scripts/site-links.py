#!/usr/bin/env python3
"""The links of the documentation.

    scripts/site-links.py --check    says which links of Markdown files lead nowhere, and which documents are no chapter of the site

Without arguments it is a preprocessor of mdBook, which turns links to files that are no chapters into links to the repository.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from posixpath import normpath

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = "https://github.com/encke/encke/blob/main/"
LINK = re.compile(r"(\[(?:[^\]\[]|\[[^\]]*\])*\])\(([^)\s]+)\)")
# Documents that are no chapters.
APART = {"SUMMARY.md"}


def prose(text):
    """Without code, in which there are no links and no headings."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S))


def anchors(text):
    """The anchors of headings, as GitHub and mdBook make them."""
    found = set()
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S)
    for heading in re.findall(r"^#+ (.*)$", text, flags=re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        anchor = re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading))
        number = 0
        while anchor + (f"-{number}" if number else "") in found:
            number += 1
        found.add(anchor + (f"-{number}" if number else ""))
    return found


def chapters():
    summary = (ROOT / "docs/SUMMARY.md").read_text()
    return {target for _, target in LINK.findall(summary)}


def check():
    problems = []
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True)
    files = [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).exists()]
    for file in files:
        for _, target in LINK.findall(prose(file.read_text())):
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            path, _, anchor = target.partition("#")
            to = (file.parent / path) if path else file
            where = f"{file.relative_to(ROOT)}: {target}"
            if not to.exists():
                problems.append(f"{where}: there is no such file")
            elif anchor and to.suffix == ".md" and anchor not in anchors(to.read_text()):
                problems.append(f"{where}: there is no such heading")
    documents = {file.name for file in files if file.parent == ROOT / "docs"} - APART
    problems += [f"docs/SUMMARY.md lacks {name}" for name in sorted(documents - chapters())]
    if problems:
        sys.exit("\n".join(problems))


def preprocess():
    _, book = json.load(sys.stdin)
    known = chapters()

    def link(match):
        text, target = match.groups()
        path, _, anchor = target.partition("#")
        if not path or re.match(r"[a-z][a-z0-9+.-]*:", target) or normpath(path) in known:
            return match[0]
        return f"{text}({REPOSITORY}{normpath('docs/' + path)}{'#' + anchor if anchor else ''})"

    def walk(items):
        for item in items:
            if chapter := item.get("Chapter") if isinstance(item, dict) else None:
                chapter["content"] = LINK.sub(link, chapter["content"])
                walk(chapter["sub_items"])

    walk(book.get("items") or book.get("sections"))
    json.dump(book, sys.stdout)


if "--check" in sys.argv:
    check()
# mdBook asks for each renderer; this one is good for all.
elif sys.argv[1:2] != ["supports"]:
    preprocess()
