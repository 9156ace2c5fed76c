"""Command-line arguments that several pipeline jobs share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from odradek.pipeline.errors import BadOption

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def add_source_arguments(
    parser: argparse.ArgumentParser, *, bootstrap_required: bool = False
) -> None:
    """Add the arguments that name the brokers, the remote tier and further options of the source."""
    add = parser.add_argument
    add(
        "--bootstrap",
        required=bootstrap_required,
        metavar="HOST:PORT",
        help="bootstrap servers of the cluster",
    )
    add("--tiered", metavar="DIR|URL", help="object store of the remote tier: a directory or a URL")
    add(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="further option of the source, such as tiered.aws_region; may be repeated",
    )


_ARGUMENTS = {
    "kafka.bootstrap.servers": "bootstrap",
    "tiered.url": "tiered",
    "subscribe": "topic",
    "kafka.isolation.level": "isolation",
    "includeheaders": "headers",
}
"""Source options that have an argument of their own, by name in lower case."""


def source_of(args: argparse.Namespace) -> dict[str, str]:
    """Return the source options that these arguments set. Raises BadOption if `--option` sets one that has an
    argument.
    """
    source = named_values("--option", args.option)
    for name in source:
        argument = _ARGUMENTS.get(name.lower())
        if argument is not None and hasattr(args, argument):
            raise BadOption(f"--option {name} is not allowed: use --{argument}")
    if args.bootstrap is not None:
        source["kafka.bootstrap.servers"] = args.bootstrap
    if args.tiered is not None:
        source["tiered.url"] = _absolute_store(args.tiered)
    return source


def _absolute_store(target: str) -> str:
    """Return an absolute directory or a URL: Spark's Python workers may run in another working directory."""
    from odradek.storage.tiered.store_location import directory_of

    try:
        directory = directory_of(target)
    except ValueError:  # reported with the option's name later
        return target
    return target if directory is None else str(directory)


def add_spark_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that all jobs share: the Spark master, Spark settings and the output format."""
    add = parser.add_argument
    add("--master", default="local[*]", help="Spark master (default: local[*])")
    add(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="Spark property, such as spark.executor.memory; may be repeated",
    )
    add("--json", action="store_true", help="print JSON, one object per line")


def session_of(args: argparse.Namespace, name: str) -> AbstractContextManager[SparkSession]:
    """Open a Spark session as these arguments describe it. Raises BadOption."""
    from odradek.pipeline.spark_session import open_session

    return open_session(name, args.master, named_values("--conf", args.conf))


def named_values(option: str, given: Sequence[str]) -> dict[str, str]:
    """Parse repeated NAME=VALUE arguments. Raises BadOption."""
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise BadOption(f"{option} {each}: the format is NAME=VALUE")
        found[name] = value
    return found
