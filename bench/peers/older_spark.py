"""Other releases of Spark than the pipeline's, for what runs on no other: from PyPI, in the cache.

They lie beside what is installed; whoever uses one is a process of its own, with its `spark_environment`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from odradek.bench.obtaining import kept, run_build


def pyspark_directory(version: str) -> Path:
    """Where the package `pyspark` of that release lies; PeerUnavailable if it can't be had. The first call
    on a machine downloads some 430 MB."""

    def install(directory: Path) -> None:
        run_build(
            [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target",
             str(directory), f"pyspark=={version}"],
            f"installing Spark {version}",
        )  # fmt: skip

    return kept(f"pyspark-{version}", install)


def spark_environment(version: str, also: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a Python process for which `import pyspark` is that release."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    path = [str(pyspark_directory(version)), *mine.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        **mine,
        "PYTHONPATH": os.pathsep.join(each for each in path if each),
        "PYSPARK_PYTHON": sys.executable,
        **(also or {}),
    }
