"""Spark's own Kafka connector, unmodified, on the Spark it was released with.

That is an older Spark than the pipeline's: a connector runs on no other. It comes from PyPI into the
cache, beside what is installed, and whoever uses it is a process of its own, with `spark_environment`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from odradek.bench.peers import older_spark
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


def pyspark_directory() -> Path:
    """Where the package `pyspark` of that Spark lies; PeerUnavailable if it can't be had."""
    return older_spark.pyspark_directory(SPARK_VERSION)


def spark_environment(also: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a Python process for which `import pyspark` is that Spark."""
    return older_spark.spark_environment(SPARK_VERSION, also)
