"""The lowest version of each dependency that pyproject.toml declares: `trio>=0.29` is `trio==0.29`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NOT_AT_RUN_TIME = frozenset({"dev"})
"""Extras with the tools of this repository, whose versions constraints.txt pins."""

_BOUND = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*>=\s*(?P<version>[0-9][0-9.]*)(,<[0-9.]+)?"
)


def read_project(path: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    return project


def declared_requirements(project: dict[str, Any]) -> list[str]:
    """Requirements of the package and of all its extras for users."""
    found: list[str] = list(project["dependencies"])
    for extra, requirements in project["optional-dependencies"].items():
        if extra not in NOT_AT_RUN_TIME:
            found += requirements
    return found


def lowest(requirements: Sequence[str]) -> list[str]:
    """Pin each requirement to its lower bound. Raises ValueError if one has none."""
    pinned = []
    for requirement in requirements:
        match = _BOUND.fullmatch(requirement)
        if match is None:
            raise ValueError(f"{requirement} has no lower bound of the form name>=version")
        pinned.append(f"{match['name']}=={match['version']}")
    return pinned
