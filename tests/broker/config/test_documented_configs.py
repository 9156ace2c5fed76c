"""Configs of examples in the documentation."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from odradek.broker.config.server_config import ServerConfig

ROOT = Path(__file__).parents[3]
CONFIGS = re.compile(r"configs\s*=\s*(\{[^}]*\})")
EXAMPLES = [
    (page.name, example)
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    for example in CONFIGS.findall(page.read_text())
]


def test_pages_have_examples() -> None:
    assert "testing.md" in [page for page, _ in EXAMPLES]


@pytest.mark.parametrize(("page", "example"), EXAMPLES)
def test_example_causes_no_warning(page: str, example: str) -> None:
    config = ServerConfig.from_properties(ast.literal_eval(example), test_node=True)
    assert config.warnings == []
