"""Delta for Spark, as jars, and the Spark that it is for: an older one than the pipeline's."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from odradek.bench.peers.maven import class_path

POM = Path(__file__).parent / "delta.xml"

_found = re.search(r"<spark.version>(.*?)<", POM.read_text())
assert _found is not None
SPARK_VERSION = _found[1]


@cache
def delta_jars() -> list[str]:
    """For `spark.jars`; PeerUnavailable if they can't be had."""
    return class_path(POM, "Delta")
