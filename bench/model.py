"""Terms of the benchmarks: metrics, workloads, outcomes, peers, targets, limits.

A `Peer` is a broker that the benchmark can install and start. `Peer.start` returns a `Target`: an address,
and the process if the benchmark started it. A `Workload` runs against one target and returns a
`WorkloadOutcome`: a value for each metric that is known. A workload declares the features that it `needs`, and a
peer those that it `lacks`, with the reason; a workload is skipped if the peer lacks one of them.

All calls are synchronous. The runner decides the order and the repetitions, computes medians and prints. A
workload measures once, deletes its topics (`Target.topic`) and prints nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

DISKLESS_OBJECTS = "diskless.objects"
"""The name in `Target.settings` of the directory that stores the objects of diskless topics."""
TIER = "tier"
"""The subdirectory of a tiered cluster's directory that has the remote storage."""
Better = Literal["higher", "lower"]
Parameter = str | int | float | bool


class Feature(enum.Enum):
    """Features of a peer that a workload may need."""

    PROCESS = "a process whose CPU time and memory can be read"
    RESTART = "data that is still there after kill -9"
    KEEPS_RECORDS = "records that stay until they are read"
    CREATE_TOPICS = "the CreateTopics API"
    GROUPS = "consumer groups"
    TWO_DIRECTORIES = "two log directories, and moves between them"
    LZ4 = "records in lz4, as librdkafka finds out"
    MANY_CONNECTIONS = "a hundred connections at once"
    COMPACTION = "compaction, and DescribeLogDirs during compaction"
    CLUSTER = "a cluster of three brokers, each a process that can be killed"
    TIERED = "tiered storage, in a directory"
    DISKLESS = "diskless topics, with their objects in a directory"


class Stage(enum.Enum):
    """The process that a workload runs against."""

    FRESH = "a process started for it alone, over an empty directory"
    SHARED = "the process that all shared workloads use, one after the other"
    LAST = "the same process, once all shared workloads have been run"
    CLUSTER = "three brokers started for it alone, over empty directories"
    TIERED = "the same with tiered storage in a directory, and a separate controller"
    DISKLESS = "the same with diskless topics instead"


@dataclass(frozen=True)
class Metric:
    """A figure that a workload measures.

    `limit` names the physical limit to compare with: `NAME`, or `NAME:FIGURE` for another figure of its
    measurement. The fraction is value / limit if higher is better, otherwise limit / value. A `diagnostic`
    metric only explains others: the client's own part, or the maximum of thousands of values.
    """

    name: str
    unit: str
    better: Better
    limit: str | None = None
    diagnostic: bool = False

    @property
    def limit_name(self) -> str | None:
        """Name of the limit (`Limit.name`)."""
        return None if self.limit is None else self.limit.partition(":")[0]


@dataclass(frozen=True)
class Histogram:
    """A histogram: (upper bound, count) with increasing bounds, without empty buckets."""

    unit: str
    buckets: tuple[tuple[float, int], ...]


@dataclass(frozen=True)
class WorkloadOutcome:
    """Result of one run of a workload.

    `values` has the value of each metric by its name, except unknown ones, such as the CPU seconds of a
    broker on another machine. `client_bound`: the load program used a whole core, so the client limits
    times and rates; compare CPU instead.
    """

    values: Mapping[str, float]
    client_bound: bool = False
    histogram: Histogram | None = None
    notes: tuple[str, ...] = ()


class WorkloadFailed(Exception):
    """A run has no result: records were rejected, or the load program failed. The text is the reason."""


class Workload(Protocol):
    """A workload. `name` is unique, stable (results are compared by it) and has no spaces.

    `parameters` are its settings, for the results file. `default`: it runs if no workload is selected by
    name.
    """

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def metrics(self) -> Sequence[Metric]: ...
    @property
    def parameters(self) -> Mapping[str, Parameter]: ...
    @property
    def needs(self) -> frozenset[Feature]: ...
    @property
    def stage(self) -> Stage: ...
    @property
    def default(self) -> bool: ...

    def run(self, target: Target) -> WorkloadOutcome:
        """Measure once. Raises WorkloadFailed if there is nothing to report."""
        ...


class ServerProcess(Protocol):
    """A broker's process and all its descendants.

    Times are of CLOCK_MONOTONIC, in seconds: `exec_started_at` just before the program was executed,
    `responded_at` when the first Metadata response was received; both are those of the last start.
    """

    @property
    def pid(self) -> int: ...
    @property
    def exec_started_at(self) -> float: ...
    @property
    def responded_at(self) -> float: ...

    def cpu_seconds(self) -> float:
        """User and system time since the start, of the whole tree."""
        ...

    def resident_bytes(self) -> int:
        """Resident memory of the whole tree."""
        ...

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        ...

    def restart(self) -> None:
        """Start again on the same address over the same data (after `kill` or `stop`), and wait
        until a Metadata response. Raises PeerFailed."""
        ...

    def stop(self) -> None:
        """SIGTERM, and wait for the end; SIGKILL if that takes too long."""
        ...

    def log(self) -> str:
        """The end of its stdout and stderr."""
        ...


class ServerCluster(Protocol):
    """Several brokers in one cluster; a broker is known by its id."""

    @property
    def brokers(self) -> tuple[int, ...]: ...

    def kill(self, broker: int) -> None:
        """SIGKILL, and wait until it is gone."""
        ...

    def stop(self, broker: int) -> None:
        """SIGTERM, and wait for the clean end."""
        ...

    def restart(self, broker: int) -> None:
        """Stop it cleanly if it runs, start it, and wait until it responds."""
        ...

    def log_directories(self, broker: int) -> tuple[str, ...]:
        """Return the log directories of a broker."""
        ...


class Topics(Protocol):
    """Creates and deletes topics on a target; most peers use the admin APIs."""

    def create(self, name: str, partitions: int) -> None:
        """Returns once every partition has a leader."""
        ...

    def delete(self, name: str) -> None: ...


@dataclass(frozen=True)
class Target:
    """A running broker or cluster. `process` is None if only the address is known; for a `cluster` it
    represents all processes."""

    peer: str
    bootstrap: str
    topics: Topics
    process: ServerProcess | None = None
    cluster: ServerCluster | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of a cluster's nodes that differ from `Peer.settings`."""

    @property
    def address(self) -> tuple[str, int]:
        """The first bootstrap server's host and port."""
        host, _, port = self.bootstrap.split(",")[0].rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def known_process(self) -> ServerProcess:
        """The process, for workloads that need Feature.PROCESS. Raises WorkloadFailed."""
        if self.process is None:
            raise WorkloadFailed("the broker's process is not known")
        return self.process

    @contextmanager
    def topic(self, name: str, partitions: int = 1) -> Iterator[str]:
        """A topic that exists for a `with` block."""
        self.topics.create(name, partitions)
        try:
            yield name
        except BaseException:
            with suppress(PeerFailed):  # the first error is reported
                self.topics.delete(name)
            raise
        self.topics.delete(name)


class PeerUnavailable(Exception):
    """A peer is not available on this machine. The text has the reason and what to install."""


class PeerFailed(Exception):
    """A peer did not start, or ended; the text has the end of its log."""


class Peer(Protocol):
    """A broker to measure. `name` is its name on the command line and in results.

    `default`: it is measured if no peer is selected by name. `lacks` has the reason for each feature that
    the peer does not support.
    """

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def default(self) -> bool: ...
    @property
    def lacks(self) -> Mapping[Feature, str]: ...

    def obtain(self) -> None:
        """Download or build what the peer needs, unless it exists. May take minutes.

        Raises PeerUnavailable."""
        ...

    def version(self) -> str:
        """Return the version; call `obtain` first."""
        ...

    def settings(self) -> Mapping[str, str]:
        """Return the settings that differ from the defaults of the peer, for the output."""
        ...

    def start(self, directory: Path) -> AbstractContextManager[Target]:
        """Run the peer on a free port, with its data in `directory`, until the context ends.

        Entering returns after a Metadata response; raises PeerFailed."""
        ...


@runtime_checkable
class ClusterPeer(Protocol):
    """A peer that does not lack Feature.CLUSTER."""

    def start_cluster(self, directory: Path) -> AbstractContextManager[Target]:
        """Run a cluster of three brokers, with their data in `directory`, until the context ends.

        Entering returns once every broker responds; raises PeerFailed."""
        ...


@runtime_checkable
class TieredPeer(Protocol):
    """A peer that does not lack Feature.TIERED."""

    def start_tiered(self, directory: Path) -> AbstractContextManager[Target]:
        """Start a cluster with tiered storage in a subdirectory (`TIER`).

        A topic is tiered if its config enables it.
        """
        ...


@runtime_checkable
class DisklessPeer(Protocol):
    """A peer that does not lack Feature.DISKLESS."""

    def start_diskless(self, directory: Path) -> AbstractContextManager[Target]:
        """Start a cluster with an object store in the directory `DISKLESS_OBJECTS` of the target's settings.

        A topic is diskless if its config enables it.
        """
        ...


def reason_to_skip(workload: Workload, peer: Peer) -> str | None:
    """The reason for which `workload` is not run against `peer`; None if it is."""
    for feature in Feature:
        if feature in workload.needs and feature in peer.lacks:
            return peer.lacks[feature]
    return None


@dataclass(frozen=True)
class LimitResult:
    """Result of one measurement of a limit; `details` are other figures."""

    value: float
    details: Mapping[str, float] = field(default_factory=dict)


class Limit(Protocol):
    """A physical limit of the machine without a broker, measured in the same run as the workloads."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def metric(self) -> Metric: ...

    def measure(self, directory: Path) -> LimitResult:
        """Measure once; files are in `directory`."""
        ...
