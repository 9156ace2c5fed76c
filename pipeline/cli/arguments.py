"""What the jobs' command lines have in common."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from odradek.pipeline.errors import BadOption


def add_spark_arguments(parser: argparse.ArgumentParser) -> None:
    """What jobs have in common: where they run, and how they tell."""
    add = parser.add_argument
    add("--master", default="local[*]", help="of Spark (local[*])")
    add(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark's, such as spark.executor.memory; may be repeated",
    )
    add("--json", action="store_true", help="all that is told as JSON, one object a line")


def named_values(option: str, given: Sequence[str]) -> dict[str, str]:
    """Of repeated NAME=VALUE."""
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise BadOption(f"{option} {each}: it has to be NAME=VALUE")
        found[name] = value
    return found
