"""Transcripts: files of comments, commands ("> …") and the lines that the commands produce."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).parents[1] / "transcripts"


def transcripts(folder: str) -> list[Path]:
    return sorted((HERE / folder).glob("*.txt"))


def rerun(text: str, follow: Callable[[str], Sequence[str]]) -> str:
    """Return the transcript with new lines. `follow` runs a command and returns its lines."""
    lines = []
    for line in text.splitlines():
        if line.startswith("  "):
            continue
        lines.append(line)
        if line.startswith("> "):
            lines += [f"  {each}" for each in follow(line.removeprefix("> "))]
    return "\n".join(lines) + "\n"


def check(path: Path, follow: Callable[[str], Sequence[str]]) -> None:
    """Assert that a transcript is up to date. With ODRADEK_REWRITE=1, also rewrite the file."""
    text = path.read_text()
    expected = rerun(text, follow)
    if os.environ.get("ODRADEK_REWRITE"):
        path.write_text(expected)
    assert expected == text
