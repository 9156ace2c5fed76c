#!/usr/bin/env python3
"""Print the distribution's own requirements, one a line: what a layer of the image is made of."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def dependencies(pyproject: str) -> list[str]:
    return list(tomllib.loads(pyproject)["project"]["dependencies"])


if __name__ == "__main__":
    print("\n".join(dependencies(Path(sys.argv[1]).read_text(encoding="utf-8"))))
