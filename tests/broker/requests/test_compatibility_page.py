"""Test that docs/compatibility.md matches the table of APIs."""

from __future__ import annotations

from pathlib import Path

from odradek.broker.requests.compatibility_page import page


def test_compatibility_page_matches_table() -> None:
    written = Path(__file__).parents[3] / "docs" / "compatibility.md"
    assert written.read_text() == page(), (
        "run python -m odradek.broker.requests.compatibility_page > the page"
    )
