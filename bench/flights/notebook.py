"""Runs a Markdown page as a notebook.

Each `python` block is executed, from top to bottom, with shared globals. The `text` block after it is replaced by its
output. Everything else is unchanged.
"""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

_BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n.*?```\n)?", re.DOTALL)


def run(page: str, names: dict[str, Any]) -> str:
    """Return the page with the output of its blocks; `names` are the initial globals."""

    def ran(block: re.Match[str]) -> str:
        code = block["code"]
        line = page.count("\n", 0, block.start()) + 2
        printed = StringIO()
        with redirect_stdout(printed):
            exec(compile("\n" * (line - 1) + code, "notebook", "exec"), names)
        cell = f"```python\n{code}```\n"
        output = "\n".join(each.rstrip() for each in printed.getvalue().strip("\n").splitlines())
        return f"{cell}\n```text\n{output}\n```\n" if output else cell

    return _BLOCK.sub(ran, page)
