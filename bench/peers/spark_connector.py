"""Spark's own Kafka connector, unmodified, on the Spark it was released with.

That is an older Spark than the pipeline's: a connector runs on no other. It comes from PyPI into the
cache, beside what is installed, and whoever uses it is a process of its own, with `spark_environment`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from odradek.bench.obtaining import kept, run_build
from odradek.bench.peers.maven import class_path

POM = Path(__file__).parent / "spark_connector.xml"


def _version(name: str) -> str:
    found = re.search(rf"<{name}.version>(.*?)<", POM.read_text())
    assert found is not None
    return found[1]


SPARK_VERSION = CONNECTOR_VERSION = _version("spark")


@cache
def connector_jars() -> list[str]:
    """The connector and what Spark lacks of its dependencies: for `spark.jars`, or an extra class path.
    PeerUnavailable if they can't be had."""
    return class_path(POM, "Spark's Kafka connector")


@cache
def pyspark_directory() -> Path:
    """Where the package `pyspark` of that Spark lies; PeerUnavailable if it can't be had. The first call on
    a machine downloads some 430 MB."""

    def install(directory: Path) -> None:
        run_build(
            [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target",
             str(directory), f"pyspark=={SPARK_VERSION}"],
            f"installing Spark {SPARK_VERSION}",
        )  # fmt: skip

    return kept(f"pyspark-{SPARK_VERSION}", install)


def spark_environment(also: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a Python process for which `import pyspark` is that Spark."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    path = [str(pyspark_directory()), *mine.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        **mine,
        "PYTHONPATH": os.pathsep.join(each for each in path if each),
        "PYSPARK_PYTHON": sys.executable,
        **(also or {}),
    }
