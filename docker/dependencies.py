#!/usr/bin/env python3
"""Print the requirements of a broker, one per line, which are a layer of the image."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def dependencies(pyproject: str) -> list[str]:
    project = tomllib.loads(pyproject)["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["regex"]]


if __name__ == "__main__":
    print("\n".join(dependencies(Path(sys.argv[1]).read_text(encoding="utf-8"))))
