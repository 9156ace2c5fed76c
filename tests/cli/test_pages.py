"""Tests that the commands in the documentation exist and accept their options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cli.main import COMMANDS, _load, _load_added, build_parser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHELL = re.compile(
    r"```sh\n(?P<fenced>.*?)```|^ {4}(?P<indented>odradek [^\n]*)", re.DOTALL | re.MULTILINE
)


def commands(page: str) -> Iterator[str]:
    for block in SHELL.finditer(page):
        text = block["fenced"] or block["indented"]
        for line in text.replace("\\\n", " ").splitlines():
            pieces = (each.strip() for each in line.split(" | "))
            yield from (each for each in pieces if each.startswith("odradek "))


SHOWN = [(page.name, command) for page in PAGES for command in commands(page.read_text())]


def test_pages_contain_commands() -> None:
    assert len(SHOWN) > 20
    assert {"README.md", "pipeline.md", "remote-storage.md"} <= {page for page, _ in SHOWN}


@pytest.mark.parametrize(("page", "command"), SHOWN)
def test_command_in_page_parses(page: str, command: str) -> None:
    words = shlex.split(command, comments=True)[1:]
    module = _load(words[0]) if words[0] in COMMANDS else _load_added(words[0])
    build_parser(words[0], module, alone=True).parse_args(words)
