#!/usr/bin/env python3
"""Fails when the files of a crate import each other in a cycle.

A file imports another when a `use` or a path of its code names an item that the other file defines, or the module itself.
`crate::`, `super::`, `self::`, child modules and imported modules are resolved; a re-export counts for the file that defines
the item, and the file that re-exports imports it. Tests (`#[cfg(test)]`) may import what they need, and `mod` declarations are no
imports. Methods are not followed: an `impl` block may be in another file than its type, as long as it imports the type.

    scripts/import-cycles.py [crate directory ...]
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOKEN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|::|[{}()\[\];,*=#]|\S")
# What code can hide tokens in: comments, strings, characters.
HIDDEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\(?:x..|u\{[^}]*\}|.)|[^\'\\])\'', re.S
)
NAME = re.compile(r"[A-Za-z_]\w*\Z")
TEST_ONLY = ("#[cfg(test)", "#[cfg(all(test")
ITEM = {"struct", "enum", "union", "trait", "type", "fn", "const", "static", "macro_rules"}


class Module:
    """A module with a file of its own."""

    def __init__(self, path, file, folder):
        self.path, self.file = path, file  # `path`: the names from the root of the crate.
        self.folder = folder  # Where the files of its child modules are.
        self.children = set()
        self.items = set()
        self.uses = []  # (names of the path, alias; `*` for a glob)
        self.paths = set()  # Paths in the code, as tuples of names.


def main():
    crates = sys.argv[1:] or sorted(ROOT.glob("crates/*"))
    cycles = []
    for crate in map(Path, crates):
        for root in ("lib.rs", "main.rs"):
            if (crate / "src" / root).exists():
                cycles += cycles_of(crate / "src" / root)
    for cycle in cycles:
        print("files that import each other:")
        for file, imported in cycle:
            print(f"  {shown(file)} imports {', '.join(shown(other) for other in imported)}")
    sys.exit(1 if cycles else 0)


def cycles_of(root):
    """The cycles of a crate, each a list of (file, imported files of the same cycle)."""
    modules = {}
    load(modules, Module((), root, root.parent))
    edges = {module.file: imports(modules, module) for module in modules.values()}
    found = []
    for component in components(edges):
        if len(component) > 1:
            found.append([(file, sorted(edges[file] & component)) for file in sorted(component)])
    return found


def load(modules, module):
    """Reads the file of a module, and of all modules below it."""
    modules[module.path] = module
    tokens = TOKEN.findall(HIDDEN.sub(" ", module.file.read_text()))
    parse(module, without_tests(tokens))
    for name in module.children:
        plain, nested = module.folder / f"{name}.rs", module.folder / name / "mod.rs"
        file = plain if plain.exists() else nested
        load(modules, Module(module.path + (name,), file, module.folder / name))


def without_tests(tokens):
    """Removes items under `#[cfg(test)]` and `#[cfg(all(test, ..))]`."""
    kept, at = [], 0
    while at < len(tokens):
        if "".join(tokens[at : at + 7]).startswith(TEST_ONLY):
            at = end_of_item(tokens, tokens.index("]", at) + 1)
        else:
            kept.append(tokens[at])
            at += 1
    return kept


def end_of_item(tokens, at):
    """Behind the item (or the field) that begins at a token."""
    depth = 0
    while at < len(tokens):
        token = tokens[at]
        if token in "{([":
            depth += 1
        elif token in "})]":
            depth -= 1
            if depth < 0:
                return at
            if depth == 0 and token == "}":
                return at + 1
        elif depth == 0 and token in ";,":
            return at + 1
        at += 1
    return at


def parse(module, tokens):
    """Finds child modules, items, imports and paths."""
    at, depth = 0, 0
    inline = []  # The depths at which inline modules begin; they count as part of the file.
    while at < len(tokens):
        token = tokens[at]
        following = tokens[at + 1] if at + 1 < len(tokens) else ""
        if token == "{":
            depth += 1
        elif token == "}":
            depth -= 1
            if inline and inline[-1] == depth:
                inline.pop()
        elif token == "use" and (NAME.match(following) or following in ("::", "{")):
            found = []
            at = parse_use(found, tokens, at + 1, ())
            module.uses += [(from_file(names, len(inline)), alias) for names, alias in found]
            continue
        elif token == "mod" and NAME.match(following) and tokens[at + 2] == ";":
            module.children.add(following)
        elif token == "mod" and NAME.match(following) and tokens[at + 2] == "{":
            inline.append(depth)
        elif token in ITEM and depth == 0:
            name = tokens[at + 2] if token == "macro_rules" else following
            if NAME.match(name):
                module.items.add(name)
        elif NAME.match(token) and following == "::" and (at == 0 or tokens[at - 1] != "::"):
            names = [token]
            while at + 2 < len(tokens) and tokens[at + 1] == "::" and NAME.match(tokens[at + 2]):
                names.append(tokens[at + 2])
                at += 2
            module.paths.add(from_file(tuple(names), len(inline)))
        at += 1


def from_file(names, inline):
    """A path in nested inline modules, as seen from the module of the file."""
    if names[:1] != ("super",):
        return names
    while inline and names[:1] == ("super",):
        names, inline = names[1:], inline - 1
    return names if names[:1] == ("super",) else ("self",) + names


def parse_use(found, tokens, at, prefix):
    """Adds the imports of a use tree; returns the place behind it."""
    names = list(prefix)
    while True:
        token = tokens[at]
        if token == "{":
            at += 1
            while tokens[at] != "}":
                at = parse_use(found, tokens, at, tuple(names))
                if tokens[at] == ",":
                    at += 1
            return at + 1
        if token == "*":
            found.append((tuple(names), "*"))
            return at + 1
        if NAME.match(token) and token != "as":
            names.append(token)
        at += 1
        if tokens[at] == "::":
            at += 1
            continue
        if names[-1] == "self" and len(names) > 1:
            names.pop()
        alias = names[-1]
        if tokens[at] == "as":
            alias = tokens[at + 1]
            at += 2
        found.append((tuple(names), alias))
        return at


def imports(modules, module):
    """The files of the crate that a file imports."""
    files = set()
    for names, _ in module.uses:
        files.add(file_of(modules, module, names))
    for names in module.paths:
        files.add(file_of(modules, module, names))
    return files - {None, module.file}


def file_of(modules, module, names):
    """The file that defines what a path names; `None` outside of the crate."""
    found = resolve(modules, module, names, set())
    return found[0].file if found else None


def resolve(modules, module, names, seen):
    """The module that a path leads to, and the name of an item in it; an empty name for the module itself."""
    first, rest = names[0], names[1:]
    if first == "crate":
        return walk(modules, modules[()], rest, seen)
    if first == "self":
        return walk(modules, module, rest, seen)
    if first == "super":
        parent = modules.get(module.path[:-1]) if module.path else None
        if parent is None:
            return None
        return resolve(modules, parent, rest, seen) if rest[:1] == ("super",) else walk(modules, parent, rest, seen)
    # A child module or an imported name; anything else is of another crate, or an item of this file.
    return walk(modules, module, names, seen)


def walk(modules, module, names, seen):
    if not names:
        return module, ""
    first, rest = names[0], names[1:]
    if first in module.children:
        return walk(modules, modules[module.path + (first,)], rest, seen)
    if first in module.items:
        return module, first
    key = (module.path, names)
    if key in seen:
        return None
    seen.add(key)
    for target, alias in module.uses:
        if alias == first and target != names:
            return resolve(modules, module, target + rest, seen)
    for target, alias in module.uses:
        if alias == "*" and target[0] != first:
            base = resolve(modules, module, target, seen)
            through = base and base[1] == "" and walk(modules, base[0], names, seen)
            if through:
                return through
    return None


def components(edges):
    """The strongly connected components of a graph (Tarjan), without recursion."""
    order, low, stack, on_stack, found = {}, {}, [], set(), []
    for start in edges:
        if start in order:
            continue
        work = [(start, iter(sorted(edges[start])))]
        order[start] = low[start] = len(order)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, following = work[-1]
            for other in following:
                if other not in order:
                    order[other] = low[other] = len(order)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(sorted(edges[other]))))
                    break
                if other in on_stack:
                    low[node] = min(low[node], order[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    component = set()
                    while node not in component:
                        component.add(stack.pop())
                    on_stack -= component
                    found.append(component)
    return found


def shown(file):
    """A path from the root of the repository, if it is inside."""
    try:
        return str(file.resolve().relative_to(ROOT))
    except ValueError:
        return str(file)


if __name__ == "__main__":
    main()
