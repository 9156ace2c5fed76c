"""Finds words, phrases and docstring shapes that the project's style refuses.

Python files: comments, docstrings, other texts with a space in them, and the names of definitions and arguments.
Markdown files: everything outside code blocks and code spans. Generated pages are checked like the others,
because their texts come from code.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from odradek.seams.values import value_class
from tests.prose.words import NAMES, OPENINGS, PHRASES, WORDS

EXEMPT = ("tests/prose/", "LICENSE", "docs/glossary.md", "tests/transcripts/")
"""The checker's own lists, and the glossary, which quotes the old names."""
SHORT_WORDS_MAX = 3
"""A docstring of a definition with at most this many words says too little."""


@value_class
class Finding:
    path: str
    line: int
    problem: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.problem}: {self.text.strip()[:100]}"


def _spread(table: Mapping[str, str]) -> dict[str, str]:
    return {word: instead for words, instead in table.items() for word in words.split()}


_WORDS = _spread(WORDS)
_NAMES = {**_WORDS, **_spread(NAMES)}
_PROSE = re.compile(
    "|".join((rf"\b({'|'.join(_WORDS)})\b", *(rf"\b(?:{phrase})\b" for phrase in PHRASES))),
    re.IGNORECASE,
)
_NAME_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_CODE_SPAN = re.compile(r"`[^`]*`")


def check_repository(root: Path, paths: Sequence[str] = ()) -> Iterator[Finding]:
    """Every finding in the files that git tracks, in the order of their paths.

    `paths` are files and folders below `root` that the check is limited to.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.py", "*.md"],
        cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for path in sorted(set(listed.stdout.split())):
        if path.startswith(EXEMPT) or not (root / path).exists():
            continue
        if paths and not any(f"{path}/".startswith(f"{wanted}/") for wanted in paths):
            continue
        text = (root / path).read_text()
        yield from check_python(path, text) if path.endswith(".py") else check_markdown(path, text)


def check_markdown(path: str, text: str) -> Iterator[Finding]:
    """The prose of a Markdown page, without code blocks and code spans."""
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            yield from _check_prose(path, number, line)


def check_python(path: str, text: str) -> Iterator[Finding]:
    """The comments, texts, docstrings and names of a module."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (
            token.type == tokenize.STRING and " " in token.string
        ):
            for index, line in enumerate(token.string.splitlines()):
                yield from _check_prose(path, token.start[0] + index, line)
    tree = ast.parse(text)
    for node in ast.walk(tree):
        yield from _check_definition(path, node)


def _check_prose(path: str, number: int, line: str) -> Iterator[Finding]:
    for match in _PROSE.finditer(_CODE_SPAN.sub("``", line)):
        word = match[0].lower()
        yield Finding(path, number, f"'{match[0]}' ({_instead(word)})", line)


def _instead(text: str) -> str:
    if text in _WORDS:
        return _WORDS[text]
    return next(instead for phrase, instead in PHRASES.items() if re.fullmatch(phrase, text))


def _check_definition(path: str, node: ast.AST) -> Iterator[Finding]:
    if isinstance(node, ast.arg):
        yield from _check_name(path, node.lineno, node.arg)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield from _check_name(path, node.lineno, node.id)
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield from _check_name(path, node.lineno, node.attr)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield from _check_name(path, node.lineno, node.name)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
        docstring = ast.get_docstring(node, clean=True)
        if docstring is not None and not path.startswith("tests/"):
            line = 1 if isinstance(node, ast.Module) else node.lineno
            yield from _check_docstring(path, line, docstring)


def _check_docstring(path: str, line: int, docstring: str) -> Iterator[Finding]:
    words = re.findall(r"[\w'`.-]+", docstring)
    if not words:
        return
    if words[0].lower() in OPENINGS:
        yield Finding(path, line, f"docstring opens with '{words[0]}'", docstring)
    if docstring.lower().startswith("see the module"):
        yield Finding(path, line, "docstring refers to the module", docstring)
    if len(words) <= SHORT_WORDS_MAX and not docstring.startswith("Raises"):
        yield Finding(path, line, "docstring is too short to describe anything", docstring)


def _check_name(path: str, line: int, name: str) -> Iterator[Finding]:
    for part in _NAME_PARTS.findall(name):
        if (word := part.lower()) in _NAMES:
            yield Finding(path, line, f"name with '{word}' ({_NAMES[word]})", name)
