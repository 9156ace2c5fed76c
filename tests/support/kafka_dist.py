"""Jars of Apache Kafka, and the compiled Java sources of the tests (`**/java/*.java`).

The jars are those of the bench (`bench/peers/jars.py`). The compiled sources are in the same cache directory outside
the repository, with a class data archive of a started broker, which halves the start-up time of a JVM.
"""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import tempfile
import uuid
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from odradek.bench.build_cache import digest, kept, run_build
from odradek.bench.model import PeerUnavailable
from odradek.bench.peers.jars import POM, java_program, kafka_jars
from tests.support.broker_process import free_port, properties
from tests.support.waiting import deadline

JAVA_SOURCES = sorted(Path(__file__).parents[1].glob("**/java/*.java"))
START_SECONDS = 60

# A test's JVM runs for seconds, so it starts fast and uses little memory. Only the program writes to stdout.
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
    """Apache Kafka cannot run on this machine. The text names the software to install."""


@dataclass(frozen=True)
class KafkaDist:
    """Class path of Kafka's jars and the tests' classes, and their class data archive, if there is one."""

    java: str
    classpath: str
    archive: Path | None = None

    def command(self, main_class: str, *args: str, heap_mb: int = 256) -> list[str]:
        """Return the command line that runs `main_class` in a new JVM."""
        flags = [*JVM_FLAGS, f"-Xmx{heap_mb}m"]
        if self.archive is not None:
            flags.append(f"-XX:SharedArchiveFile={self.archive}")
        return [self.java, *flags, "-cp", self.classpath, main_class, *args]


@cache
def kafka_dist() -> KafkaDist:
    """Download the jars and compile the tests' Java sources, unless the cache has them."""
    try:
        java, jars = java_program(), kafka_jars()
        ours = _our_classes(jars)
        classpath = os.pathsep.join([str(ours), *jars])
        return KafkaDist(java, classpath, _archive(java, classpath))
    except PeerUnavailable as unavailable:
        raise KafkaUnavailable(
            f"the interop tests run Apache Kafka, which {unavailable}; "
            "or leave these tests out with -m 'not interop'"
        ) from None


def _our_classes(jars: list[str]) -> Path:
    """Return a jar of the tests' classes. A JVM does not archive classes of a directory."""
    javac = java_program("javac")

    def compile_them(jar: Path) -> None:
        classes = jar.parent / "classes"
        run_build(
            [javac, "-d", str(classes), "-cp", os.pathsep.join(jars), *map(str, JAVA_SOURCES)],
            "compiling the tests' Java",
        )
        with zipfile.ZipFile(jar, "w") as packed:
            for path in sorted(classes.rglob("*.class")):
                packed.write(path, path.relative_to(classes))

    return kept(f"classes-{digest(POM, *JAVA_SOURCES)}.jar", compile_them)


def _archive(java: str, classpath: str) -> Path | None:
    """Return the class data archive of a started broker (JEP 350). A JVM that cannot use it ignores it.

    None if the JVM does not report its release, because an archive is for one release only.
    """
    release = Path(java).resolve().parents[1] / "release"
    if not release.exists():
        return None
    plain = KafkaDist(java, classpath)
    name = f"kafka-{digest(POM, release, *JAVA_SOURCES)}.jsa"
    return kept(name, lambda archive: _start_once(plain, archive))


def _start_once(dist: KafkaDist, archive: Path) -> None:
    """Run a broker until it responds. At its end, the JVM writes the archive of the loaded classes."""
    with tempfile.TemporaryDirectory() as directory:
        port, controller_port = free_port(), free_port()
        config = Path(directory) / "server.properties"
        config.write_text(
            properties(
                {
                    "process.roles": "broker,controller",
                    "node.id": "1",
                    "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
                    "listeners": f"PLAINTEXT://127.0.0.1:{port},"
                    f"CONTROLLER://127.0.0.1:{controller_port}",
                    "controller.listener.names": "CONTROLLER",
                    "log.dirs": f"{directory}/logs",
                }
            )
        )
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        run_build(
            dist.command("kafka.tools.StorageTool", "format", "--standalone",
                         "-t", cluster_id, "-c", str(config)),
            "formatting a log directory",
        )  # fmt: skip
        java, *words = dist.command("kafka.Kafka", str(config), heap_mb=512)
        command = [java, f"-XX:ArchiveClassesAtExit={archive}", *words]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as broker:
            try:
                _wait_until_it_listens(broker, port)
                asked = ("--bootstrap-server", f"127.0.0.1:{port}")
                tool = "org.apache.kafka.tools.BrokerApiVersionsCommand"
                run_build(dist.command(tool, *asked), "asking Kafka")
            finally:
                broker.terminate()
    if not archive.exists():
        raise PeerUnavailable("wrote no archive of its classes")


def _wait_until_it_listens(broker: subprocess.Popen[bytes], port: int) -> None:
    with deadline(START_SECONDS, "Kafka to listen") as check:
        while broker.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            except OSError:
                check()
