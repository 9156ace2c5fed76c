"""The sources that read the topics, as peers: Odradek's source and Spark's connector, each over two brokers.

The goals compare `odradek` with `kafka`: Odradek's source over the object store of tiered segments, and Spark's
connector over Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from odradek.bench.model import Feature, ServerProcess, Target
from odradek.bench.peers.odradek import Odradek
from odradek.bench.peers.spark_releases import (
    CONNECTOR_SPARK_VERSION,
    connector_jars,
    pyspark_directory,
    spark_environment,
)
from odradek.bench.tables.brokers import Brokers, read_files
from odradek.bench.tables.records import WARM_UP
from odradek.bench.tables.session import CONNECTOR, ODRADEK, QUERIES
from odradek.bench.tables.spark_application import Application, ApplicationLaunch, QueryResponse
from odradek.pipeline.spark_session import TO_WORKERS

ALL_CORES, ONE_CORE = "local[2]", "local[1]"


@dataclass
class SourceApplication:
    """The Spark application of a source, and its brokers and files.

    There is one application at a time: another master needs another application, which is warmed up first.
    """

    format: str
    options: Mapping[str, str]
    launch: ApplicationLaunch
    brokers: Brokers
    files: Path
    """The directory of the logs: a broker's, or the object store's."""
    application: Application

    def run_query(self, query: str, topic: str, master: str, **more: Any) -> QueryResponse:
        """Run a query and return its response. Raises WorkloadFailed or PeerFailed."""
        if self.application.master != master:
            self.application.stop()
            self.application = Application(self.launch, master)
            self.warm_up()
        read_files(self.files, topic)
        self._ask_of_few("between")
        return self.application.run_query(self._asked(query, topic, more))

    def warm_up(self) -> None:
        """Run every query once, on a few records, so that the JVM and numba have compiled code."""
        for query in QUERIES:
            self._ask_of_few(query)

    def _ask_of_few(self, query: str) -> None:
        """Run a small query, so that Spark has Python workers, which it ends after an idle minute."""
        hour_ms = self.brokers.content(WARM_UP.name).hour_ms()
        self.application.run_query(self._asked(query, WARM_UP.name, {"between_ms": hour_ms}))

    def _asked(self, query: str, topic: str, more: Mapping[str, Any]) -> dict[str, Any]:
        options = {**self.options, "subscribe": topic}
        return {"query": query, "format": self.format, "options": options, **more}


class SourceProcess:
    """`model.ServerProcess` of the current application of a source."""

    def __init__(self, reading: SourceApplication) -> None:
        self._reading = reading

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reading.application, name)


@dataclass(frozen=True)
class ReaderTarget(Target):
    """The broker, with the application that reads from it as its process."""

    reading: SourceApplication | None = None
    broker: ServerProcess | None = None


@dataclass(frozen=True)
class Reader:
    """A source as a peer; all of them share the brokers."""

    name: str
    title: str
    format: str
    brokers: Brokers
    broker: Callable[[Brokers], Target]
    from_store: bool = False
    default: bool = True
    lacks: Mapping[Feature, str] = field(default_factory=dict)

    def obtain(self) -> None:
        if self.format == CONNECTOR:
            pyspark_directory(CONNECTOR_SPARK_VERSION)
            connector_jars()

    def version(self) -> str:
        if self.format == CONNECTOR:
            return f"connector {CONNECTOR_SPARK_VERSION} on Spark {CONNECTOR_SPARK_VERSION}"
        return f"{Odradek().version()} on Spark {version('pyspark')}"

    def settings(self) -> Mapping[str, str]:
        if self.format == CONNECTOR:
            return {}
        given = {**TO_WORKERS, "speed_up_workers": "yes"}
        return given | ({"tiered.url": "a directory"} if self.from_store else {})

    @contextmanager
    def start(self, directory: Path) -> Iterator[Target]:
        brokers = self.brokers
        broker = self.broker(brokers)
        options = {"kafka.bootstrap.servers": broker.bootstrap}
        if self.from_store:
            options["tiered.url"] = f"file://{brokers.store}"
        launch = ApplicationLaunch(self.format, directory)
        if self.format == CONNECTOR:
            environment = spark_environment(CONNECTOR_SPARK_VERSION)
            launch = ApplicationLaunch(self.format, directory, connector_jars(), environment)
        application = Application(launch, ALL_CORES)
        files = brokers.store if self.from_store else brokers.directory / broker.peer
        reading = SourceApplication(self.format, options, launch, brokers, files, application)
        try:
            reading.warm_up()
            yield ReaderTarget(
                self.name,
                broker.bootstrap,
                broker.topics,
                SourceProcess(reading),
                reading=reading,
                broker=broker.process,
            )
        finally:
            reading.application.stop()


def readers(brokers: Brokers) -> Sequence[Reader]:
    """Return the sources in the order in which they run."""
    no_store = {Feature.TIERED: "does not read from an object store"}
    return (
        Reader("odradek", "Odradek source, reading from the object store", ODRADEK, brokers, _odradek, from_store=True),
        Reader(
            "kafka", "Spark's connector with Apache Kafka", CONNECTOR, brokers, _theirs,
            lacks=no_store,
        ),
        Reader(
            "odradek-broker", "Odradek source, reading from the broker", ODRADEK, brokers, _odradek, lacks=no_store
        ),
        Reader(
            "connector-odradek", "Spark's connector with Odradek", CONNECTOR, brokers, _odradek,
            lacks=no_store,
        ),
    )  # fmt: skip


def _odradek(brokers: Brokers) -> Target:
    return brokers.odradek


def _theirs(brokers: Brokers) -> Target:
    return brokers.kafka
