"""Output of `odradek log-dirs describe`: the JSON of KIP-113, the JSON of Kafka 4, or a table.

All directories are described and then filtered, so that a move is shown with its source and its target
even if the filter selects only one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from odradek.cli.output import human_bytes
from odradek.client.log_dir_admin import LogDirectory, Replica, ReplicaInDirectory
from odradek.protocol.errors import ErrorCode
from odradek.seams.values import value_class

VERSION = 1
"""Version of both JSON formats."""
COLUMNS = ("BROKER", "DIRECTORY", "TOPIC", "PARTITION", "SIZE", "LAG", "MOVE")

KAFKA_EXCEPTIONS = {
    ErrorCode.kafka_storage_error: "org.apache.kafka.common.errors.KafkaStorageException",
    ErrorCode.log_dir_not_found: "org.apache.kafka.common.errors.LogDirNotFoundException",
}


@value_class
class LogDirFilter:
    """Filter by topics and directories; both must match (J-17). None matches all."""

    topics: frozenset[str] | None = None
    directories: frozenset[str] | None = None

    def has(self, directory: LogDirectory) -> bool:
        return self.directories is None or directory.path in self.directories

    def replicas(self, directory: LogDirectory) -> list[ReplicaInDirectory]:
        return [
            replica
            for replica in directory.replicas
            if self.topics is None or replica.topic in self.topics
        ]


def kip_113_json(found: Sequence[LogDirectory], only: LogDirFilter) -> dict[str, Any]:
    """Directories in the JSON of KIP-113 (J-19); with several brokers, each directory has its broker's id."""
    several = len({directory.broker for directory in found}) > 1
    return {
        "version": VERSION,
        "log_dirs": [
            {
                **({"broker": directory.broker} if several else {}),
                "is_live": not directory.error,
                "path": directory.path,
                "partitions": [
                    {
                        "topic": replica.topic,
                        "partition": replica.partition,
                        "size": replica.size_bytes,
                        "is_temporary": replica.is_future,
                    }
                    for replica in only.replicas(directory)
                ],
            }
            for directory in found
            if only.has(directory)
        ],
    }


def kafka_json(found: Sequence[LogDirectory], only: LogDirFilter) -> dict[str, Any]:
    """J-19, as kafka-log-dirs prints it today."""
    brokers = dict.fromkeys(directory.broker for directory in found)
    return {
        "version": VERSION,
        "brokers": [
            {
                "broker": broker,
                "logDirs": [
                    _kafka_directory(directory, only)
                    for directory in found
                    if directory.broker == broker and only.has(directory)
                ],
            }
            for broker in brokers
        ],
    }


def _kafka_directory(directory: LogDirectory, only: LogDirFilter) -> dict[str, Any]:
    return {
        "logDir": directory.path,
        "error": _exception(directory.error) if directory.error else None,
        "partitions": [
            {
                "partition": f"{replica.topic}-{replica.partition}",
                "size": replica.size_bytes,
                "offsetLag": replica.offset_lag,
                "isFuture": replica.is_future,
            }
            for replica in only.replicas(directory)
        ],
    }


def _exception(code: ErrorCode) -> str:
    return KAFKA_EXCEPTIONS.get(code, code.name.upper())


# For a person


def table(found: Sequence[LogDirectory], only: LogDirFilter) -> list[tuple[Any, ...]]:
    """One row per replica, with the target of its move, and one row per offline directory."""
    current, future = _places(found, is_future=False), _places(found, is_future=True)
    rows: list[tuple[Any, ...]] = []
    for directory in filter(only.has, found):
        if directory.error:
            offline = f"offline [{directory.error.name.upper()}]"
            rows.append((directory.broker, directory.path, offline, *[None] * 4))
        for replica in only.replicas(directory):
            key = Replica(directory.broker, replica.topic, replica.partition)
            source, copy = current.get(key), future.get(key)
            if replica.is_future and source is not None and only.has(source.directory):
                continue  # the row of the current replica shows the move
            move = None
            if source is not None and copy is not None:
                other = ("from", source) if replica.is_future else ("to", copy)
                done = percent(copy.replica.size_bytes, source.replica.size_bytes)
                move = f"{other[0]} {other[1].directory.path}, {done} %"
            rows.append(
                (
                    directory.broker,
                    directory.path,
                    replica.topic,
                    replica.partition,
                    human_bytes(replica.size_bytes),
                    replica.offset_lag,
                    move,
                )
            )
    return rows


class _ReplicaPlace(NamedTuple):
    directory: LogDirectory
    replica: ReplicaInDirectory


def _places(found: Iterable[LogDirectory], *, is_future: bool) -> dict[Replica, _ReplicaPlace]:
    return {
        Replica(directory.broker, replica.topic, replica.partition): _ReplicaPlace(
            directory, replica
        )
        for directory in found
        for replica in directory.replicas
        if replica.is_future is is_future
    }


def percent(done: int, total: int) -> int:
    """Whole percents, rounded down: 100 is all."""
    return 100 if total <= 0 else max(0, min(100, done * 100 // total))
