#!/usr/bin/env python3
"""Fails when files of a crate call each other in a cycle, and when a bound of the reactor's design is exceeded.

A file needs another one when it imports it (as `import-cycles.py` sees it), or when it calls a method that the other file defines:
a type may have `impl` blocks in many files. The type of a receiver is followed from `self`, parameters, fields, `let`, patterns
of enums, the parameters of closures whose function says what they get, and what functions of the crate return; `Box`, `Arc`,
references and so on are looked through. Where a type is not known, a method counts if its name has one definition in the crate,
and no type of another crate was seen with a method of that name. Tests (`#[cfg(test)]`) may call what they need.

It does not see calls through trait objects and generic parameters (the trait's file counts), calls of closures that were kept, names
that are ambiguous where the type is not known, what macros expand to, and calls between threads.

Bounds:
- `Shard` has at most SHARD_METHODS_MAX methods;
- an index of a slot is a parameter in `shard/` and `feed/` of encke-net only, apart from the tables in TABLES;
- the table "The path of a record" in docs/architecture.md has at most PATH_FILES_MAX files, none twice, and names what they define.

    scripts/call-cycles.py [--path] [crate directory ...]

With --path it prints the files on the way of a record.
"""

import importlib.util
import re
import sys
from collections import defaultdict, deque
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRATES = ("encke-net", "encke-protocol", "encke-stream")
SHARD_METHODS_MAX = 60
PATH_FILES_MAX = 25

# Tables that are generic over what they hold, or whose keys are slots: for them an index is what it is for a `Vec`.
TABLES = {
    "by_slot.rs": "a sparse table, whose keys are slots",
    "chunked_vec.rs": "a list in chunks, whose index is that of an element",
    "hash_index.rs": "an index of positions in a list of its user",
    "synthetic.rs": "the tables of a shard without its thread, for measurements",
    "connection/exchange_id.rs": "where a slot becomes an id, and an id a slot",
}

spec = importlib.util.spec_from_file_location("import_cycles", ROOT / "scripts/import-cycles.py")
sources = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sources)

TOKEN = re.compile(r"[A-Za-z_]\w*|\d\w*|::|->|=>|\.\.=?|'[A-Za-z_]\w*|\S")
NAME = re.compile(r"[A-Za-z_]\w*\Z")
KEYWORDS = set("as break const continue else enum extern fn for if impl in let loop match mod move mut pub ref return static"
               " struct trait type unsafe use where while async await dyn".split())
# Types that are their content.
TRANSPARENT = {"Box", "Arc", "Rc", "Ref", "RefMut", "MutexGuard", "Cow", "Saturating", "ManuallyDrop"}
# Types that hold values of a type, which are reached by methods and patterns.
HOLDERS = {"Option", "Vec", "VecDeque", "Result", "RefCell", "Cell", "Mutex", "RwLock", "OnceLock", "HashMap", "BTreeMap", "HashSet",
           "BTreeSet", "BinaryHeap", "Weak", "Peekable", "Iter", "IterMut", "Drain"}
# Methods of a holder whose result is again a holder of the same, or the value.
KEEPING = set("as_ref as_mut as_deref as_deref_mut iter iter_mut into_iter get get_mut first last first_mut last_mut front back front_mut"
              " back_mut pop pop_front pop_back take filter cloned copied ok values values_mut next remove drain rev skip take_while"
              " skip_while chain peekable peek peek_mut upgrade ok_or ok_or_else map_err or or_else zip_none insert replace find".split())
VALUE = set("expect unwrap unwrap_or unwrap_or_default unwrap_or_else lock read write borrow borrow_mut get_or_insert get_or_insert_with"
            " get_or_insert_default or_insert_with or_default or_insert".split())
SAME = {"clone", "to_owned", "as_ref", "as_mut", "borrow", "borrow_mut", "deref", "deref_mut"}
# Methods of the standard library that the code may call on any value.
COMMON = KEEPING | VALUE | SAME | set(
    "map and_then map_or map_or_else is_some is_none is_some_and is_none_or is_ok is_err push push_str push_back push_front len is_empty clear"
    " contains contains_key extend extend_from_slice append truncate resize reserve with_capacity entry retain sort split join send recv store"
    " load add sub min max cmp eq fmt hash to_string into from try_into as_bytes as_str starts_with ends_with trim parse copy flush close elapsed"
    " checked_add saturating_sub wait count sum any all position fold rev enumerate zip end start set swap abs write_all name id kind bytes"
    " begin capacity chunks finish update value key keys with as_ptr abort inc dec".split())


class Token(str):
    """A token that knows its line."""

    line = 0


class Type:
    """A type as far as it matters: where it is defined, and whether a holder is around it."""

    def __init__(self, key, held=False, arguments=()):
        self.key, self.held, self.arguments = key, held, arguments

    def value(self):
        return Type(self.key, False, self.arguments)


EXTERNAL = ("", "")
TUPLE = ("", "()")


class Function:
    def __init__(self, module, owner, name, line):
        self.module, self.owner, self.name, self.line = module, owner, name, line
        self.parameters = []  # (name, tokens of the type)
        self.result = []
        self.body = None
        self.generics = []
        self.is_trait = False
        self.receives_self = False


class Crate:
    def __init__(self, root):
        self.modules = {}
        sources.load(self.modules, sources.Module((), root, root.parent))
        self.functions = []
        self.methods = {}
        self.by_name = defaultdict(list)
        self.fields = {}
        self.variants = {}
        self.outputs = {}
        self.external_methods = set()
        self.edges = defaultdict(dict)  # file -> file -> (line, what)
        for module in self.modules.values():
            Parser(self, module).items(without_hidden(module.file), None, False)
        for function in self.functions:
            self.by_name[function.name].append(function)
            if function.owner is not None:
                self.methods.setdefault((function.owner, function.name), function)

    def resolve(self, module, names):
        found = sources.resolve(self.modules, module, tuple(names), set())
        return (found[0].path, found[1]) if found and found[1] else None

    def type_of(self, module, tokens, owner=None, receiver=None):
        """The type that tokens spell."""
        tokens = [token for token in tokens if not token.startswith("'")]
        while tokens and tokens[0] in ("&", "mut", "dyn", "impl", "ref"):
            tokens = tokens[1:]
        if tokens and tokens[0] == "(":
            parts = split_commas(tokens[1 : closing(tokens, 0)])
            if len(parts) == 1:
                return self.type_of(module, parts[0], owner, receiver)
            return Type(TUPLE, False, [self.type_of(module, part, owner, receiver) for part in parts])
        if not tokens:
            return None
        if tokens[0] == "[":
            inner = self.type_of(module, tokens[1:], owner, receiver)
            return inner and Type(inner.key, True, inner.arguments)
        names = []
        at = 0
        while at < len(tokens) and NAME.match(tokens[at]):
            names.append(str(tokens[at]))
            if at + 1 < len(tokens) and tokens[at + 1] == "::":
                at += 2
                continue
            at += 1
            break
        if not names:
            return None
        arguments = arguments_of(tokens[at:])
        last = names[-1]
        if names == ["Self"]:
            return Type(owner) if owner else None
        if last in TRANSPARENT and arguments:
            return self.type_of(module, arguments[0], owner, receiver)
        if last in HOLDERS and arguments:
            inner = self.type_of(module, arguments[-1 if last in ("HashMap", "BTreeMap") else 0], owner, receiver)
            return inner and Type(inner.key, True, inner.arguments)
        if last in ("Iterator", "IntoIterator", "DoubleEndedIterator", "ExactSizeIterator") and arguments:
            inner = self.type_of(module, arguments[0][2:], owner, receiver)
            return inner and Type(inner.key, True, inner.arguments)
        key = self.resolve(module, names)
        if key is None and len(names) == 1 and len(last) <= 2 and receiver is not None and receiver.arguments:
            inner = receiver.arguments[0]
            return inner
        if key is None:
            return Type(EXTERNAL)
        resolved = [inner for inner in (self.type_of(module, argument, owner) for argument in arguments) if inner]
        return Type(key, False, tuple(resolved))

    def look(self):
        for function in self.functions:
            if function.body is not None:
                Body(self, function, False).walk()
        for function in self.functions:
            if function.body is not None:
                Body(self, function, True).walk()
        for module in self.modules.values():
            for imported in sources.imports(self.modules, module):
                self.edges[module.file].setdefault(imported, (None, "imports"))

    def call(self, caller, token, called):
        if called.module.file != caller.module.file:
            owner = f"{called.owner[1]}::" if called.owner else ""
            known = self.edges[caller.module.file].get(called.module.file)
            if known is None or known[0] is None:
                self.edges[caller.module.file][called.module.file] = (token.line, f"calls {owner}{called.name}")


class Parser:
    """Finds the items of a file."""

    def __init__(self, crate, module):
        self.crate, self.module = crate, module

    def items(self, tokens, owner, is_trait, output_of=None):
        at = 0
        while at < len(tokens):
            token = tokens[at]
            if token == "#" and at + 1 < len(tokens) and tokens[at + 1] == "[":
                at = closing(tokens, at + 1) + 1
            elif token == "impl":
                at = self.implementation(tokens, at)
            elif token == "trait" and NAME.match(tokens[at + 1]):
                opening = find(tokens, at, "{;")
                key = (self.module.path, str(tokens[at + 1]))
                end = closing(tokens, opening) if tokens[opening] == "{" else opening
                self.items(tokens[opening + 1 : end], key, True)
                at = end + 1
            elif token == "fn" and NAME.match(tokens[at + 1]):
                at = self.function(tokens, at, owner, is_trait)
            elif token in ("struct", "enum", "union") and NAME.match(tokens[at + 1]):
                at = self.structure(tokens, at)
            elif token == "mod" and tokens[at + 2] == "{":
                end = closing(tokens, at + 2)
                self.items(tokens[at + 3 : end], None, False)
                at = end + 1
            elif token == "macro_rules":
                at = closing(tokens, find(tokens, at, "{(")) + 1
            elif token == "type" and owner and tokens[at + 1] in ("Output", "Target", "Item"):
                end = find(tokens, at, ";")
                self.crate.outputs[owner, str(tokens[at + 1])] = (self.module, tokens[at + 3 : end])
                at = end + 1
            elif token in ("use", "const", "static", "type") and not (token == "const" and tokens[at + 1] in ("fn", "unsafe")):
                at = find(tokens, at, ";") + 1
            else:
                at += 1

    def implementation(self, tokens, at):
        at += 1
        if tokens[at] == "<":
            at = angle(tokens, at) + 1
        opening = find(tokens, at, "{")
        head = tokens[at:opening]
        if "where" in head:
            head = head[: head.index("where")]
        depth, split = 0, None
        for place, token in enumerate(head):
            depth += (token == "<") - (token == ">")
            if token == "for" and depth == 0:
                split = place
        found = self.crate.type_of(self.module, head[split + 1 :] if split is not None else head)
        owner = found.key if found and found.key != EXTERNAL else ("", "".join(head))
        end = closing(tokens, opening)
        self.items(tokens[opening + 1 : end], owner, False)
        return end + 1

    def function(self, tokens, at, owner, is_trait):
        function = Function(self.module, owner, str(tokens[at + 1]), tokens[at].line)
        function.is_trait = is_trait
        at += 2
        if tokens[at] == "<":
            end = angle(tokens, at)
            function.generics = tokens[at : end + 1]
            at = end + 1
        end = closing(tokens, at)
        for part in split_commas(tokens[at + 1 : end]):
            if "self" in part[:4] and ":" not in part[:2]:
                function.receives_self = True
            elif ":" in part:
                colon = part.index(":")
                names = [name for name in part[:colon] if NAME.match(name) and name != "mut"]
                function.parameters.append((str(names[-1]) if names else "", part[colon + 1 :]))
        at = end + 1
        stop = find(tokens, at, "{;")
        result = tokens[at:stop]
        where = result.index("where") if "where" in result else len(result)
        function.generics = function.generics + result[where:]
        function.result = result[1:where] if result[:1] == ["->"] else []
        self.crate.functions.append(function)
        if tokens[stop] == ";":
            return stop + 1
        end = closing(tokens, stop)
        function.body = tokens[stop + 1 : end]
        return end + 1

    def structure(self, tokens, at):
        kind, key = tokens[at], (self.module.path, str(tokens[at + 1]))
        at += 2
        if tokens[at] == "<":
            at = angle(tokens, at) + 1
        stop = find(tokens, at, "{;(")
        if tokens[stop] == ";":
            return stop + 1
        end = closing(tokens, stop)
        for number, part in enumerate(split_commas(tokens[stop + 1 : end])):
            part = without_attributes(part)
            if kind == "enum":
                if len(part) > 2 and part[1] == "(":
                    payload = split_commas(part[2 : closing(part, 1)])
                    self.crate.variants[key, str(part[0])] = (self.module, payload)
                elif len(part) > 2 and part[1] == "{":
                    for inner in split_commas(part[2 : closing(part, 1)]):
                        self.field((key, str(part[0])), without_attributes(inner))
            elif tokens[stop] == "(":
                part = without_visibility(part)
                self.crate.fields[key, str(number)] = (self.module, part)
            else:
                self.field(key, part)
        return end + 1

    def field(self, key, part):
        part = without_visibility(part)
        if len(part) > 2 and part[1] == ":":
            self.crate.fields[key, str(part[0])] = (self.module, part[2:])


class Body:
    """Follows the types in the body of a function, and finds its calls."""

    def __init__(self, crate, function, counts):
        self.crate, self.function, self.counts = crate, function, counts
        self.module, self.owner = function.module, function.owner
        self.locals = {}
        self.bounds = {}
        for name, spelled in function.parameters:
            self.locals[name] = self.type_of(spelled)
        if self.owner and function.receives_self:
            self.locals["self"] = Type(self.owner)
        self.handled = set()

    def type_of(self, tokens, receiver=None):
        return self.crate.type_of(self.module, tokens, self.owner, receiver)

    def walk(self):
        tokens = self.function.body
        for at, token in enumerate(tokens):
            before = tokens[at - 1] if at else ""
            if token == "let":
                self.binding(tokens, at)
            elif token == "for" and before != ">":
                self.loop(tokens, at)
            elif NAME.match(token) and token not in KEYWORDS and before not in (".", "::"):
                self.structure(tokens, at)
                self.chain(tokens, at)
            elif token == "." and at + 2 < len(tokens) and NAME.match(tokens[at + 1]) and at not in self.handled:
                if is_call(tokens, at + 2):
                    self.unknown(tokens[at + 1])

    def binding(self, tokens, at):
        """`let` with a type, or with an expression whose type is known."""
        equals = at + 1
        depth = 0
        while equals < len(tokens) and not (depth == 0 and tokens[equals] in ("=", ";")):
            depth += (tokens[equals] in "([{<") - (tokens[equals] in ")]}>")
            equals += 1
        pattern = [token for token in tokens[at + 1 : equals] if token not in ("mut", "ref", "&")]
        if equals >= len(tokens):
            return
        if ":" in pattern and "{" not in pattern:
            name, spelled = pattern[0], pattern[pattern.index(":") + 1 :]
            self.locals[str(name)] = self.type_of(spelled)
            return
        if tokens[equals] != "=":
            return
        self.bind(pattern, self.expression(tokens, equals + 1))

    def expression(self, tokens, at):
        """The type of an expression, as far as its beginning tells."""
        while at < len(tokens) and tokens[at] in ("&", "mut", "*"):
            at += 1
        if at >= len(tokens):
            return None
        if tokens[at] == "(":
            end = closing(tokens, at)
            parts = split_commas(tokens[at + 1 : end])
            if len(parts) > 1:
                return Type(TUPLE, False, [self.expression(part, 0) for part in parts])
            return None
        known = NAME.match(tokens[at]) and tokens[at] not in KEYWORDS
        return self.chain(tokens, at)[0] if known else None

    def bind(self, pattern, found):
        """Names of a pattern get the types of what they match."""
        if len(pattern) == 1 and NAME.match(pattern[0]):
            self.locals[str(pattern[0])] = found
        elif pattern[:1] == ["("]:
            parts = split_commas(pattern[1 : closing(pattern, 0)])
            types = found.arguments if found and found.key == TUPLE else [None] * len(parts)
            for part, inner in zip(parts, types):
                self.bind(part, inner)
        elif pattern[:1] in (["Some"], ["Ok"]) and len(pattern) > 2:
            self.bind(pattern[2:-1], found and found.value())

    def loop(self, tokens, at):
        if at + 3 < len(tokens) and NAME.match(tokens[at + 1]) and tokens[at + 2] == "in":
            found = self.expression(tokens, at + 3)
            self.locals[str(tokens[at + 1])] = found and found.value()

    def structure(self, tokens, at):
        """`Name { field, .. }` and `Name::Variant(value)`: what they name has the types that were declared."""
        end, names = path(tokens, at)
        if end >= len(tokens) or not names[-1][:1].isupper():
            return
        if tokens[end] == "{":
            key = self.owner if names == ["Self"] else self.crate.resolve(self.module, names)
            if key is None and len(names) > 1:
                kind = self.owner if names[0] == "Self" else self.crate.resolve(self.module, names[:-1])
                key = kind and (kind, names[-1])
            if key is None:
                return
            for part in split_commas(tokens[end + 1 : closing(tokens, end)]):
                part = [token for token in part if token not in ("mut", "ref")]
                if len(part) == 1 or len(part) == 3 and part[1] == ":":
                    declared = self.crate.fields.get((key, str(part[0])))
                    if declared and (len(part) == 1 or part[2] not in self.locals and NAME.match(part[2])):
                        self.locals[str(part[-1])] = self.crate.type_of(declared[0], declared[1], self.owner)
        elif tokens[end] == "(" and len(names) > 1:
            kind = self.owner if names[-2] == "Self" else self.crate.resolve(self.module, names[:-1])
            declared = self.crate.variants.get((kind, names[-1]))
            if declared:
                for part, spelled in zip(split_commas(tokens[end + 1 : closing(tokens, end)]), declared[1]):
                    part = [token for token in part if token not in ("mut", "ref")]
                    if len(part) == 1 and NAME.match(part[0]):
                        self.locals[str(part[0])] = self.crate.type_of(declared[0], spelled, kind)

    def chain(self, tokens, at):
        """The type of the expression that begins at a token, and the place behind it."""
        end, names = path(tokens, at)
        current = None
        if len(names) > 1:
            called = self.path_function(names)
            if called:
                self.call(tokens[at], called)
            if end < len(tokens) and tokens[end] == "(":
                current = self.result(called, None) if called else self.constructed(names)
                if called:
                    self.closures(tokens, end, called)
                end = closing(tokens, end) + 1
            elif called is None:
                current = self.constructed(names)
        elif end < len(tokens) and tokens[end] == "(":
            called = self.free_function(names)
            if called:
                self.call(tokens[at], called)
                self.closures(tokens, end, called)
                current = self.result(called, None)
            elif names[0] in ("Some", "Ok"):
                current = None
            else:
                key = self.crate.resolve(self.module, names)
                current = Type(key) if key and names[0][:1].isupper() else None
            end = closing(tokens, end) + 1
        else:
            current = self.locals.get(names[0])
        while end < len(tokens):
            token = tokens[end]
            if token == "?":
                current = current and current.value()
                end += 1
            elif token == "[":
                current = self.indexed(current)
                end = closing(tokens, end) + 1
            elif token == "." and end + 1 < len(tokens) and (NAME.match(tokens[end + 1]) or tokens[end + 1].isdigit()):
                name = tokens[end + 1]
                if is_call(tokens, end + 2):
                    opening = end + 2 if tokens[end + 2] == "(" else angle(tokens, end + 3) + 1
                    self.handled.add(end)
                    current = self.method(current, name, tokens, opening)
                    end = closing(tokens, opening) + 1
                else:
                    current = self.field(current, str(name))
                    end += 2
            else:
                break
        return current, end

    def constructed(self, names):
        if names[-2:-1] == ["Self"] and (self.owner, names[-1]) in self.crate.variants:
            return Type(self.owner)
        key = self.crate.resolve(self.module, names[:-1])
        if key and (key, names[-1]) in self.crate.variants:
            return Type(key)
        return None

    def path_function(self, names):
        if names[:-1] == ["Self"] and self.owner:
            return self.crate.methods.get((self.owner, names[-1]))
        key = self.crate.resolve(self.module, names[:-1])
        if key and (key, names[-1]) in self.crate.methods:
            return self.crate.methods[key, names[-1]]
        return self.free_function(names)

    def free_function(self, names):
        key = self.crate.resolve(self.module, names)
        if key:
            for function in self.crate.by_name.get(key[1], ()):
                if function.owner is None and function.module.path == key[0]:
                    return function
        return None

    def field(self, current, name):
        declared = current and not current.held and self.crate.fields.get((current.key, name))
        if not declared:
            return None
        return self.crate.type_of(declared[0], declared[1], current.key, current)

    def indexed(self, current):
        if current is None or current.held:
            return current and current.value()
        declared = self.crate.outputs.get((current.key, "Output"))
        return self.crate.type_of(declared[0], declared[1], current.key, current) if declared else None

    def method(self, current, name, tokens, opening):
        name = Token(name)
        name.line = tokens[opening].line
        if current is None:
            return self.unknown(name)
        if current.held:
            self.crate.external_methods.add(str(name))
            self.closure_of_holder(tokens, opening, current)
            if name in VALUE:
                return current.value()
            return current if name in KEEPING else None
        if current.key in (EXTERNAL, TUPLE):
            self.crate.external_methods.add(str(name))
            return None
        called = self.crate.methods.get((current.key, str(name)))
        if called is None:
            target = self.crate.outputs.get((current.key, "Target"))
            target = target and self.crate.type_of(target[0], target[1], current.key, current)
            if target and target.key != EXTERNAL and (target.key, str(name)) in self.crate.methods:
                called = self.crate.methods[target.key, str(name)]
        if called is None:
            return current if name in SAME else None
        self.call(name, called)
        self.closures(tokens, opening, called)
        return self.result(called, current)

    def unknown(self, name):
        """A call on a value of a type that is not known."""
        found = self.crate.by_name.get(str(name), ())
        if len(found) != 1 or found[0].owner is None or name in COMMON or name in self.crate.external_methods:
            return None
        self.call(name, found[0])
        return self.result(found[0], None)

    def result(self, called, receiver):
        return self.crate.type_of(called.module, called.result, called.owner, receiver) if called.result else None

    def call(self, token, called):
        if self.counts:
            self.crate.call(self.function, token, called)

    def closures(self, tokens, opening, called):
        """Parameters of closures that a function calls with what its signature says."""
        given = closure_types(called)
        if given is None:
            return
        names = closure_names(tokens, opening)
        for name, spelled in zip(names or (), given):
            self.locals[name] = self.crate.type_of(called.module, spelled, called.owner)

    def closure_of_holder(self, tokens, opening, current):
        names = closure_names(tokens, opening)
        if names and len(names) == 1:
            self.locals[names[0]] = current.value()


def closure_types(called):
    """What a function gives to the closure that it takes."""
    spelled = [token for _, kind in called.parameters for token in kind] + list(called.generics)
    for at, token in enumerate(spelled):
        if token in ("FnOnce", "FnMut", "Fn") and at + 1 < len(spelled) and spelled[at + 1] == "(":
            return split_commas(spelled[at + 2 : closing(spelled, at + 1)])
    return None


def closure_names(tokens, opening):
    """The names of the parameters of the closure among arguments."""
    for part in split_commas(tokens[opening + 1 : closing(tokens, opening)]):
        part = part[1:] if part[:1] == ["move"] else part
        if part[:1] == ["|"] and "|" in part[1:]:
            inner = part[1 : part.index("|", 1)]
            found = []
            for one in split_commas(inner):
                one = [token for token in one if token not in ("&", "mut")]
                found.append(str(one[0]) if len(one) == 1 else "")
            return found
    # Commas in the parameters split the closure.
    inner = tokens[opening + 1 : closing(tokens, opening)]
    if "|" in inner:
        first = inner.index("|")
        if "|" in inner[first + 1 :]:
            names = inner[first + 1 : inner.index("|", first + 1)]
            parts = [[token for token in part if token not in ("&", "mut")] for part in split_commas(names)]
            return [str(part[0]) if len(part) == 1 else "" for part in parts]
    return None


def is_call(tokens, at):
    return at < len(tokens) and (tokens[at] == "(" or tokens[at] == "::" and at + 1 < len(tokens) and tokens[at + 1] == "<")


def path(tokens, at):
    """The names of a path, and the place behind it."""
    names = [str(tokens[at])]
    at += 1
    while at + 1 < len(tokens) and tokens[at] == "::":
        if tokens[at + 1] == "<":
            at = angle(tokens, at + 1) + 1
        elif NAME.match(tokens[at + 1]):
            names.append(str(tokens[at + 1]))
            at += 2
        else:
            break
    return at, names


def without_hidden(file):
    text = file.read_text()

    def blank(match):
        lines = "\n" * match.group(0).count("\n")
        return lines or " " if match.group(0).startswith("/") else f" 0{lines} "

    tokens, line, place = [], 1, 0
    text = sources.HIDDEN.sub(blank, text)
    for match in TOKEN.finditer(text):
        line += text.count("\n", place, match.start())
        place = match.start()
        token = Token(match.group(0))
        token.line = line
        tokens.append(token)
    return sources.without_tests(tokens)


def find(tokens, at, wanted):
    """The first of some tokens outside of brackets."""
    depth = 0
    while at < len(tokens):
        token = tokens[at]
        if depth == 0 and token in wanted and len(token) == 1:
            return at
        if token in ("(", "[", "{"):
            depth += 1
        elif token in (")", "]", "}"):
            depth -= 1
        at += 1
    return at - 1


def closing(tokens, at):
    depth = 0
    while at < len(tokens):
        depth += (tokens[at] in ("(", "[", "{")) - (tokens[at] in (")", "]", "}"))
        if depth == 0:
            return at
        at += 1
    return at - 1


def angle(tokens, at):
    depth = 0
    while at < len(tokens):
        depth += (tokens[at] == "<") - (tokens[at] == ">")
        if depth == 0:
            return at
        at += 1
    return at - 1


def arguments_of(tokens):
    if not tokens or tokens[0] != "<":
        return []
    return split_commas(tokens[1 : angle(tokens, 0)])


def split_commas(tokens):
    parts, part, depth = [], [], 0
    for token in tokens:
        if token == "," and depth == 0:
            parts.append(part)
            part = []
            continue
        depth += (token in ("(", "[", "{", "<")) - (token in (")", "]", "}", ">"))
        part.append(token)
    return parts + [part] if part else parts


def without_attributes(part):
    while part[:2] == ["#", "["]:
        part = part[closing(part, 1) + 1 :]
    return part


def without_visibility(part):
    if part[:1] == ["pub"]:
        part = part[1:]
        if part[:1] == ["("]:
            part = part[closing(part, 0) + 1 :]
    return part


def main():
    arguments = sys.argv[1:]
    shows_path = "--path" in arguments
    named = [Path(argument) for argument in arguments if argument != "--path"]
    faults = []
    for directory in named or [ROOT / "crates" / name for name in CRATES]:
        crate = Crate(directory / "src/lib.rs")
        crate.look()
        faults += cycles(crate)
        if directory.resolve().name == "encke-net":
            faults += bounds(crate, directory / "src")
    steps, wrong = record_path()
    faults += wrong
    if shows_path:
        for number, (file, names) in enumerate(steps, 1):
            print(f"{number:2}  {shown(file)}  {', '.join(names)}")
    for fault in faults:
        print(fault)
    sys.exit(1 if faults else 0)


def cycles(crate):
    """A short cycle for each file that is in one."""
    edges = {module.file: set(crate.edges[module.file]) for module in crate.modules.values()}
    found = []
    for component in sources.components(edges):
        covered = set()
        for file in sorted(component) if len(component) > 1 else ():
            if file in covered:
                continue
            cycle = shortest_cycle(edges, component, file)
            covered |= set(cycle)
            lines = ["files that call each other:"]
            for this, following in zip(cycle, cycle[1:] + cycle[:1]):
                line, what = crate.edges[this][following]
                place = f":{line}" if line else ""
                lines.append(f"  {shown(this)}{place} {what} in {shown(following)}")
            found.append("\n".join(lines))
    return found


def shortest_cycle(edges, component, start):
    before, waiting = {}, deque([start])
    while waiting:
        file = waiting.popleft()
        for other in sorted(edges[file] & component):
            if other == start:
                cycle = [file]
                while cycle[-1] != start:
                    cycle.append(before[cycle[-1]])
                return cycle[::-1]
            if other not in before:
                before[other] = file
                waiting.append(other)
    return [start]


def bounds(crate, source):
    faults = []
    methods = [function for function in crate.functions if function.owner and function.owner[1] == "Shard"]
    if len(methods) > SHARD_METHODS_MAX:
        faults.append(f"Shard has {len(methods)} methods; at most {SHARD_METHODS_MAX} are allowed")
    for function in crate.functions:
        file = function.module.file.relative_to(source)
        if file.parts[0] in ("shard", "feed") or str(file) in TABLES:
            continue
        for name, spelled in function.parameters:
            if (name in ("index", "slot") and spelled == ["u32"]) or "SlotIndex" in spelled:
                where = f"{shown(function.module.file)}:{function.line}"
                faults.append(f"{where} {function.name} takes an index of a slot; outside of shard/ and feed/ an id names a connection")
    return faults


def record_path():
    """The steps of the table in docs/architecture.md, and what is wrong with them."""
    steps, faults = [], []
    text = (ROOT / "docs/architecture.md").read_text()
    section = text.split("## The path of a record\n")[1].split("\n## ")[0]
    for row in re.findall(r"^\| \d+ \| `([^`]+)` \| ([^|]+) \|", section, re.M):
        file, names = ROOT / "crates" / row[0], re.findall(r"`([^`]+)`", row[1])
        steps.append((file, names))
        if not file.exists():
            faults.append(f"docs/architecture.md: the path of a record names {row[0]}, which does not exist")
            continue
        source = file.read_text()
        for name in names:
            if not re.search(rf"\bfn {name.split('::')[-1]}\b", source):
                faults.append(f"docs/architecture.md: {row[0]} does not define {name}")
    files = [file for file, _ in steps]
    for file in sorted({file for file in files if files.count(file) > 1}):
        faults.append(f"docs/architecture.md: the path of a record visits {shown(file)} twice")
    if not files or len(files) > PATH_FILES_MAX:
        faults.append(f"docs/architecture.md: the path of a record has {len(files)} files; at most {PATH_FILES_MAX} are allowed")
    return steps, faults


def shown(file):
    return sources.shown(file)


if __name__ == "__main__":
    main()
