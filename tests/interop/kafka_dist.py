"""Apache Kafka as jars, and our own Java beside them: what the interop tests run.

Maven resolves the jars that `pom.xml` names (from its local repository, or from wherever the
machine's Maven is set up to look); the resulting class path and the compiled `java/*.java` are kept
in a cache directory outside the repository, under a name made of their sources, so that a changed
source is a new entry. Nothing here is needed to run Odradek.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
POM = HERE / "pom.xml"
JAVA_SOURCES = HERE / "java"

# Start fast and stay small: a test's JVM lives for seconds. Nothing but the program writes stdout.
JVM_FLAGS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.log.LogManager=info",  # whether it had to recover
)


class KafkaUnavailable(Exception):
    """Apache Kafka cannot be run on this machine; the text says what to install."""


@dataclass(frozen=True)
class KafkaDist:
    """Where Kafka's jars and our classes are."""

    java: str
    classpath: str

    def command(self, main_class: str, *args: str, heap_mb: int = 256) -> list[str]:
        """The command line that runs `main_class` in a JVM of its own."""
        flags = [*JVM_FLAGS, f"-Xmx{heap_mb}m"]
        return [self.java, *flags, "-cp", self.classpath, main_class, *args]


def cache_directory() -> Path:
    """`ODRADEK_CACHE`, or the user's cache directory."""
    if named := os.environ.get("ODRADEK_CACHE"):
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "odradek"


@cache
def kafka_dist() -> KafkaDist:
    """Resolve the jars and compile our Java, where that was not done before."""
    java, javac = _needed("java"), _needed("javac")
    jars = _jars()
    ours = _our_classes(javac, jars)
    return KafkaDist(java, os.pathsep.join([str(ours), *jars]))


def _needed(program: str) -> str:
    if found := shutil.which(program):
        return found
    what = "Maven (the program mvn)" if program == "mvn" else f"a JDK, 17 or newer ({program})"
    raise KafkaUnavailable(
        f"the interop tests run Apache Kafka and need {what}, which is not on PATH; "
        "install it, or leave these tests out with -m 'not interop'"
    )


def _jars() -> list[str]:
    kept = cache_directory() / f"classpath-{_digest(POM)}.txt"
    if kept.exists():
        jars = kept.read_text().split(os.pathsep)
        if all(Path(jar).exists() for jar in jars):
            return jars
    mvn = _needed("mvn")
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as directory:
        output = Path(directory) / "classpath.txt"
        done = subprocess.run(
            [mvn, "-q", "-B", "-Dstyle.color=never", "-f", str(POM),
             "dependency:build-classpath", f"-Dmdep.outputFile={output}"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise KafkaUnavailable(f"Maven could not resolve Kafka's jars:\n{done.stdout[-4000:]}")
        output.rename(kept)
    return kept.read_text().split(os.pathsep)


def _our_classes(javac: str, jars: list[str]) -> Path:
    sources = sorted(JAVA_SOURCES.glob("*.java"))
    classes = cache_directory() / f"classes-{_digest(POM, *sources)}"
    if classes.exists():
        return classes
    with tempfile.TemporaryDirectory(dir=classes.parent) as directory:
        made = Path(directory) / "classes"
        done = subprocess.run(
            [javac, "-d", str(made), "-cp", os.pathsep.join(jars), *map(str, sources)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise KafkaUnavailable(f"javac refused tests/interop/java:\n{done.stderr[-4000:]}")
        try:
            made.rename(classes)
        except OSError:  # another test run was faster
            if not classes.exists():
                raise
    return classes


def _digest(*files: Path) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
