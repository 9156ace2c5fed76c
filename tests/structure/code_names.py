"""Finds names in docstrings and comments of the product that do not exist in its code.

A name is an identifier in backticks, dotted or not, with or without arguments, a file name `….py`, or a word in
CamelCase. A sentence that names Kafka, Java, Spark or ZooKeeper may have names of that product.

- `….py` exists if the path of a module ends with it.
- `Class.member` exists if the class or a base class has the member.
- Another dotted name exists if a string of the product has it, as with configs, if it is a module or a name at the
  top level of one, or if the module uses its first part and the product defines the last.
- A word in lower case without an underscore exists if its own module uses it, as a name or within a string, or if
  it is a module of the same folder.
- Another word exists if the product defines it, or a string has it. A name of an API, a field or a record also
  exists in the form `API_NAME`, `field_name` or `NameRecord`.
"""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.structure.sources import NAMESPACE, ROOT, Module

FOREIGN = re.compile(r"Kafka|Java|Spark|ZooKeeper")
"""Products whose names a sentence may have."""
EXAMPLES = {
    "kafka_server_replicamanager_leadercount",
    "kafka_server_brokertopicmetrics_bytesin_alltopics_total",
    "kafka_server_raftmetrics_current_epoch",
    "off_reading_p99_us",
    "MyClient",
}
OF_PYTHON = {NAMESPACE, *keyword.kwlist, *dir(builtins), *sys.stdlib_module_names}

BACKTICKED = re.compile(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`")
CAMEL_CASE = re.compile(r"(?<![\w.`/\"-])[A-Z][a-z]+[A-Z]\w*(?![\w`.\"/-]\w*)")
HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
COMMENT = re.compile(r"#.*`")
WORD = re.compile(r"[A-Za-z_]\w*")
SENTENCE_END = re.compile(r"(?<=[.:;])\s+(?=[A-Z`|])|\n\s*\n|\n\s*- |\n\|")

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass
class _Class:
    bases: list[str]
    members: set[str] = field(default_factory=set)


@dataclass
class _Code:
    """Names of one module's code."""

    names: set[str] = field(default_factory=set)
    words: set[str] = field(default_factory=set)
    """Words within strings that are not docstrings."""
    strings: list[str] = field(default_factory=list)
    top: set[str] = field(default_factory=set)
    """Names at the top level."""
    docstrings: list[ast.Constant] = field(default_factory=list)
    """Strings that are statements, also those after attributes."""


class Names:
    """Names that the product defines."""

    def __init__(self, modules: list[Module], root: Path = ROOT) -> None:
        self.classes: dict[str, list[_Class]] = {}
        self.code: dict[str, _Code] = {}
        self.defined: set[str] = set()
        self.paths = {"/" + module.path.as_posix() for module in modules}
        self.folders = {module.path.parts[0] for module in modules}
        for module in modules:
            self._read(module)
        self.words = {word for code in self.code.values() for word in code.words}
        self.defined |= {name.lower() for name in self.defined if name.isupper()}
        self.text = "\n".join(text for code in self.code.values() for text in code.strings)

    def _read(self, module: Module) -> None:
        code = self.code[module.name] = _Code()
        docstrings = set()
        for node in ast.walk(module.tree):
            match node:
                case ast.Expr(value=ast.Constant(value=str()) as docstring):
                    docstrings.add(id(docstring))  # before the walk gets to the constant
                    code.docstrings.append(docstring)
                case ast.Constant(value=str() | bytes() as value) if id(node) not in docstrings:
                    text = value if isinstance(value, str) else repr(value)
                    code.strings.append(text)
                    code.words.update(WORD.findall(text))
                case ast.ClassDef():
                    self.classes.setdefault(node.name, []).append(_read_class(node))
            names = list(_defined_by(node))
            self.defined.update(names)
            code.names.update(names, _used_by(node))
        for statement in module.tree.body:
            is_definition = isinstance(statement, _Definition)
            for node in (statement,) if is_definition else ast.walk(statement):
                code.top.update(_defined_by(node))
        self.defined.update(module.path.with_suffix("").parts)

    def has(self, module: Module, name: str) -> bool:
        if name.endswith(".py"):
            return any(path.endswith("/" + name) for path in self.paths)
        first, _, member = name.rpartition(".")
        if not first:
            return self._has_word(module, name)
        if self._is_module(name):
            return True
        owner = first.rpartition(".")[2]
        if owner in self.classes:
            return self._has_member(owner, member, set())
        if name in self.text:
            return True
        owners = [each for each in self.code if each.endswith("." + first)]
        if owners or first.split(".")[0] in self.folders:
            return any(member in self.code[each].top for each in owners)
        return self._has_word(module, first.split(".")[0]) and member in self.defined

    def _is_module(self, name: str) -> bool:
        path = "/" + name.removeprefix(NAMESPACE + ".").replace(".", "/")
        return any(each.endswith((path + ".py", path + "/__init__.py")) for each in self.paths)

    def _has_word(self, module: Module, word: str) -> bool:
        code = self.code[module.name]
        if word in code.names or word in code.words or word in OF_PYTHON | EXAMPLES:
            return True
        if word.islower() and "_" not in word.strip("_"):
            return self._is_module(module.path.parent.joinpath(word).as_posix().replace("/", "."))
        forms = {word, word.removesuffix("s"), f"{word}Record"}
        forms |= {HUMP.sub("_", each).lower() for each in forms}
        return any(form in known for form in forms for known in (self.defined, self.words))

    def _has_member(self, name: str, member: str, seen: set[str]) -> bool:
        if name in seen:
            return False
        seen.add(name)
        if name not in self.classes:
            return name not in ("object", "Protocol", "Generic", "Exception", "Enum")
        return any(
            member in each.members
            or any(self._has_member(base, member, seen) for base in each.bases)
            for each in self.classes[name]
        )


def find_missing(modules: list[Module], root: Path = ROOT) -> list[str]:
    """Return `path:line: name` of every name that does not exist."""
    names = Names(modules, root)
    return [
        f"{module.path}:{line}: {name}"
        for module in modules
        for line, text in _prose(module, names.code[module.name], root)
        for name in _named(text)
        if not names.has(module, name)
    ]


def _named(text: str) -> Iterator[str]:
    for sentence in SENTENCE_END.split(text):
        if not FOREIGN.search(sentence):
            yield from BACKTICKED.findall(sentence)
            yield from CAMEL_CASE.findall(sentence)


def _prose(module: Module, code: _Code, root: Path) -> Iterator[tuple[int, str]]:
    for node in code.docstrings:
        yield node.lineno, str(node.value)
    text = (root / module.path).read_text(encoding="utf-8")
    if not COMMENT.search(text):
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _used_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.keyword) and node.arg:
        yield node.arg
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from node.module.split(".")


def _defined_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, _Definition):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.alias):
        yield from node.name.split(".")
        if node.asname:
            yield node.asname
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr


def _read_class(node: ast.ClassDef) -> _Class:
    found = _Class([each for each in map(_base_name, node.bases) if each])
    for child in ast.walk(node):
        if isinstance(child, _Definition):
            found.members.add(child.name)
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            found.members.add(child.id)
        elif isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store):
            found.members.add(child.attr)
    return found


def _base_name(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        return _base_name(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
