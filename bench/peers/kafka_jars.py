"""Apache Kafka as jars: which, and where they are.

Maven resolves what `pom.xml` names, from its local repository or from wherever the machine's Maven
is set up to look; the resulting class path is kept.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

from odradek.bench.obtaining import cache_directory, digest, kept, needed_program, run_build

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
    name = f"classpath-{digest(POM)}.txt"
    jars = kept(name, _resolve).read_text().split(os.pathsep)
    if not all(Path(jar).exists() for jar in jars):  # Maven's repository was cleaned
        (cache_directory() / name).unlink(missing_ok=True)
        jars = kept(name, _resolve).read_text().split(os.pathsep)
    return jars


def _resolve(classpath: Path) -> None:
    run_build(
        [needed_program("mvn", "Maven"), "-q", "-B", "-Dstyle.color=never", "-f", str(POM),
         "dependency:build-classpath", f"-Dmdep.outputFile={classpath}"],
        "resolving Kafka's jars with Maven",
    )  # fmt: skip
