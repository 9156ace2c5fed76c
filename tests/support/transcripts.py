"""How transcripts are retold: their words and commands stay, what comes of these is told anew."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).parents[1] / "transcripts"


def transcripts(folder: str) -> list[Path]:
    return sorted((HERE / folder).glob("*.txt"))


def retell(text: str, follow: Callable[[str], Sequence[str]]) -> str:
    """The transcript as it should be; `follow` does a command and says what happened."""
    lines = []
    for line in text.splitlines():
        if line.startswith("  "):
            continue
        lines.append(line)
        if line.startswith("> "):
            lines += [f"  {each}" for each in follow(line.removeprefix("> "))]
    return "\n".join(lines) + "\n"


def check(path: Path, follow: Callable[[str], Sequence[str]]) -> None:
    """AssertionError where a transcript tells something else; ODRADEK_REWRITE=1 writes it anew."""
    text = path.read_text()
    told = retell(text, follow)
    if os.environ.get("ODRADEK_REWRITE"):
        path.write_text(told)
    assert told == text
