"""Spark releases other than the pipeline's, for Spark's Kafka connector and for Delta.

Each of the two runs only on the Spark release that it was built for. That release is installed from PyPI
into the build cache, not into the current environment. A process imports it if it is started with
`spark_environment`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from odradek.bench.build_cache import kept, run_build
from odradek.bench.peers.jars import class_path

CONNECTOR_POM = Path(__file__).parent / "spark_connector.xml"
DELTA_POM = Path(__file__).parent / "delta.xml"


def _spark_version(pom: Path) -> str:
    found = re.search(r"<spark.version>(.*?)<", pom.read_text())
    assert found is not None
    return found[1]


CONNECTOR_SPARK_VERSION = _spark_version(CONNECTOR_POM)
"""Version of the connector, and of the Spark release that it belongs to."""
DELTA_SPARK_VERSION = _spark_version(DELTA_POM)


@cache
def connector_jars() -> list[str]:
    """Return the jars of Spark's Kafka connector and its dependencies, for `spark.jars` or a class path.

    Raises PeerUnavailable if Maven cannot resolve them.
    """
    return class_path(CONNECTOR_POM, "Spark's Kafka connector")


@cache
def delta_jars() -> list[str]:
    """Return Delta's jars, for `spark.jars`. Raises PeerUnavailable if Maven cannot resolve them."""
    return class_path(DELTA_POM, "Delta")


def pyspark_directory(version: str) -> Path:
    """Return the directory that contains the package `pyspark` of a Spark release.

    The first call on a machine downloads about 430 MB. Raises PeerUnavailable if the installation fails.
    """

    def install(directory: Path) -> None:
        run_build(
            [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target",
             str(directory), f"pyspark=={version}"],
            f"installing Spark {version}",
        )  # fmt: skip

    return kept(f"pyspark-{version}", install)


def spark_environment(version: str, also: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a Python process whose `import pyspark` imports that Spark release."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    path = [str(pyspark_directory(version)), *mine.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        **mine,
        "PYTHONPATH": os.pathsep.join(each for each in path if each),
        "PYSPARK_PYTHON": sys.executable,
        **(also or {}),
    }
