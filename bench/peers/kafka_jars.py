"""Apache Kafka as jars: which, and where they are.

Maven resolves what `pom.xml` names (`maven.py`).
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from odradek.bench.obtaining import needed_program
from odradek.bench.peers.maven import class_path

POM = Path(__file__).parent / "pom.xml"


def kafka_version() -> str:
    """The version of Kafka that the pom names."""
    found = re.search(r"<kafka.version>(.*?)<", POM.read_text())
    assert found is not None
    return found[1]


def java_program(program: str = "java") -> str:
    """Where `java` or `javac` is; PeerUnavailable without a JDK."""
    return needed_program(program, "a JDK, 17 or newer")


@cache
def kafka_jars() -> list[str]:
    """Kafka's jars and all they need, as a class path; PeerUnavailable if they can't be had."""
    return class_path(POM, "Kafka's jars")
