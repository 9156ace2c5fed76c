"""Docstrings and comments of the product name only what its code has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.structure.code_names import find_missing
from tests.structure.sources import read_modules

CODE = '''
from odradek.broker.base import Base

CONFIG = "log.roll.ms"
DELETE_TOPICS = 20

class Child(Base):
    """%s"""
    def __init__(self):
        self.state = 0
    def begin(self, epoch):
        """Starts."""
'''
BASE = """
class Base:
    def close(self): ...
def offset_of(log): ...
"""


def test_names_in_docstrings_and_comments_exist() -> None:
    missing = find_missing(read_modules())
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize(
    "text",
    [
        "`begin`",
        "`begin(epoch)`",
        "`Child.begin`",
        "`Child.close`",
        "`Child.state`",
        "`base`",
        "`base.py`",
        "`broker.base`",
        "`broker.base.offset_of`",
        "`offset_of`",
        "`log.roll.ms`",
        "DeleteTopics",
        "Kafka's `Unknown.name`",
        "Raises KeyError",
    ],
)
def test_name_that_exists_is_found(tmp_path: Path, text: str) -> None:
    assert _missing(tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("`start`", "start"),
        ("`close`", "close"),
        ("`Child.start`", "Child.start"),
        ("`other.py`", "other.py"),
        ("`broker.other`", "broker.other"),
        ("`broker.base.start`", "broker.base.start"),
        ("`broker.other.Child`", "broker.other.Child"),
        ("`length_of`", "length_of"),
        ("`log.roll.hours`", "log.roll.hours"),
        ("As in Kafka. Raises TooLong", "TooLong"),
    ],
)
def test_name_that_does_not_exist_is_reported(tmp_path: Path, text: str, name: str) -> None:
    assert _missing(tmp_path, text) == [f"broker/child.py:8: {name}"]


def test_name_in_comment_is_reported(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "one.py").write_text("X = 1  # see `y`\n")
    assert find_missing(read_modules(tmp_path), tmp_path) == ["broker/one.py:1: y"]


def _missing(root: Path, text: str) -> list[str]:
    folder = root / "broker"
    folder.mkdir()
    (folder / "child.py").write_text(CODE % text)
    (folder / "base.py").write_text(BASE)
    return find_missing(read_modules(root), root)
