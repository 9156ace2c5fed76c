"""Jars that Maven resolves: Apache Kafka's (`pom.xml`), and those of other poms.

The class path of a pom is kept in the build cache under the pom's digest. It is resolved again if one of its
jars has been deleted.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

from odradek.bench.build_cache import cache_directory, digest, kept, needed_program, run_build

POM = Path(__file__).parent / "pom.xml"


def kafka_version() -> str:
    """Return the version of Kafka that the pom names."""
    found = re.search(r"<kafka.version>(.*?)<", POM.read_text())
    assert found is not None
    return found[1]


def java_program(program: str = "java") -> str:
    """Return the path of `java` or another program of the JDK. Raises PeerUnavailable without a JDK."""
    return needed_program(program, "a JDK, 17 or newer")


@cache
def kafka_jars() -> list[str]:
    """Return Kafka's jars and their dependencies. Raises PeerUnavailable if Maven cannot resolve them."""
    return class_path(POM, "Kafka's jars")


def class_path(pom: Path, what: str) -> list[str]:
    """Return the jars that `pom` names, with their dependencies.

    Raises PeerUnavailable, with `what` in its text, if Maven cannot resolve them.
    """

    def resolve(written: Path) -> None:
        run_build(
            [needed_program("mvn", "Maven"), "-q", "-B", "-Dstyle.color=never", "-f", str(pom),
             "dependency:build-classpath", f"-Dmdep.outputFile={written}"],
            f"resolving {what} with Maven",
        )  # fmt: skip

    name = f"classpath-{digest(pom)}.txt"
    jars = kept(name, resolve).read_text().split(os.pathsep)
    if not all(Path(jar).exists() for jar in jars):  # Maven's repository was cleaned
        (cache_directory() / name).unlink(missing_ok=True)
        jars = kept(name, resolve).read_text().split(os.pathsep)
    return jars
