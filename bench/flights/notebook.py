"""A page of Markdown as a notebook: its Python is run from top to bottom, and what that prints stands behind it.

A block of `python` is run; a block of `text` that follows it is what it printed, and is written anew. All
else stays as it is. Blocks share their names, as cells do.
"""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

_BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n.*?```\n)?", re.DOTALL)


def run(page: str, names: dict[str, Any]) -> str:
    """The page with what its blocks print now. `names` are there from the start."""

    def ran(block: re.Match[str]) -> str:
        code = block["code"]
        line = page.count("\n", 0, block.start()) + 2
        printed = StringIO()
        with redirect_stdout(printed):
            exec(compile("\n" * (line - 1) + code, "the page", "exec"), names)
        cell = f"```python\n{code}```\n"
        said = "\n".join(each.rstrip() for each in printed.getvalue().strip("\n").splitlines())
        return f"{cell}\n```text\n{said}\n```\n" if said else cell

    return _BLOCK.sub(ran, page)
