"""Apache Kafka as jars, and our own Java beside them: what the interop tests run.

The jars are those that the bench measures (`bench/peers/kafka_jars.py`); the compiled `java/*.java`
are kept in the same cache directory outside the repository. Nothing here is needed to run Odradek.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from odradek.bench.model import PeerUnavailable
from odradek.bench.obtaining import digest, kept, run_build
from odradek.bench.peers.kafka_jars import POM, java_program, kafka_jars

JAVA_SOURCES = Path(__file__).parent / "java"

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


@cache
def kafka_dist() -> KafkaDist:
    """Resolve the jars and compile our Java, where that was not done before."""
    try:
        java, jars = java_program(), kafka_jars()
        ours = _our_classes(jars)
    except PeerUnavailable as unavailable:
        raise KafkaUnavailable(
            f"the interop tests run Apache Kafka, which {unavailable}; "
            "or leave these tests out with -m 'not interop'"
        ) from None
    return KafkaDist(java, os.pathsep.join([str(ours), *jars]))


def _our_classes(jars: list[str]) -> Path:
    javac = java_program("javac")
    sources = sorted(JAVA_SOURCES.glob("*.java"))

    def compile_them(classes: Path) -> None:
        run_build(
            [javac, "-d", str(classes), "-cp", os.pathsep.join(jars), *map(str, sources)],
            "compiling tests/interop/java",
        )

    return kept(f"classes-{digest(POM, *sources)}", compile_them)
