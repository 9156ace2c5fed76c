"""The reassignment file of Kafka's tools, with KIP-113's `log_dirs` (J-20).

    {"version": 1, "partitions": [
      {"topic": "orders", "partition": 0, "replicas": [1], "log_dirs": ["/disk2"]}]}

`log_dirs` has one entry per replica: "any", or an absolute path on that broker. Without `log_dirs`, all are
"any". Error messages are those of Kafka's tool, where it has one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from odradek.cli.errors import CommandFailed
from odradek.client.log_dir_admin import ANY, Replica
from odradek.protocol.topics import TopicPartition
from odradek.seams.values import value_class

VERSION = 1


@value_class
class Assignment:
    """Target brokers of the replicas of a partition, and their log directories."""

    where: TopicPartition
    replicas: tuple[int, ...]
    log_dirs: tuple[str, ...]


@value_class
class ReassignmentFile:
    """Assignments of a file, in its order."""

    assignments: tuple[Assignment, ...]

    @property
    def partitions(self) -> dict[TopicPartition, tuple[int, ...]]:
        return {each.where: each.replicas for each in self.assignments}

    @property
    def directories(self) -> dict[Replica, str]:
        """Target directories of the replicas that have one."""
        return {
            Replica(broker, *each.where): path
            for each in self.assignments
            for broker, path in zip(each.replicas, each.log_dirs, strict=True)
            if path != ANY
        }

    @property
    def topics(self) -> list[str]:
        return list(dict.fromkeys(each.where.topic for each in self.assignments))


def parse(text: str | bytes) -> ReassignmentFile:
    """Parse a reassignment file. Raises CommandFailed."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise CommandFailed("The input string is not a valid JSON")
    version = document.get("version", VERSION)
    if version != VERSION:
        raise CommandFailed(f"Not supported version field value {version}")
    rows = document.get("partitions", [])
    if not isinstance(rows, list):
        raise CommandFailed('"partitions" is not a list of partitions')
    return ReassignmentFile(tuple(_assignment(row) for row in rows))


def _assignment(row: Any) -> Assignment:
    if not isinstance(row, dict):
        raise CommandFailed(f"{row!r} is not an object with topic, partition and replicas")
    where = TopicPartition(_field(row, "topic", str), _field(row, "partition", int))
    replicas = _items(row, "replicas", int)
    log_dirs = _items(row, "log_dirs", str) if "log_dirs" in row else (ANY,) * len(replicas)
    if len(replicas) != len(log_dirs):
        raise CommandFailed(
            f"Size of replicas list {list(replicas)} is different from size of log dirs list "
            f"{list(log_dirs)} for partition {where}"
        )
    for path in log_dirs:
        if path != ANY and not path.startswith("/"):
            raise CommandFailed(
                f"the log directory {path!r} for partition {where} is neither an absolute path "
                f'nor "{ANY}"'
            )
    return Assignment(where, replicas, log_dirs)


def _field(row: Mapping[str, Any], name: str, kind: type) -> Any:
    value = row.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise CommandFailed(f"{name!r} is missing or not a {kind.__name__} in {json.dumps(row)}")
    return value


def _items(row: Mapping[str, Any], name: str, kind: type) -> tuple[Any, ...]:
    values = _field(row, name, list)
    if not all(isinstance(value, kind) and not isinstance(value, bool) for value in values):
        raise CommandFailed(f"{name!r} is not a list of {kind.__name__} in {json.dumps(row)}")
    return tuple(values)


def check_executable(file: ReassignmentFile) -> None:
    """Check for empty lists and duplicates. Raises CommandFailed."""
    if not file.assignments:
        raise CommandFailed("Partition reassignment list cannot be empty")
    if not all(each.replicas for each in file.assignments):
        raise CommandFailed("Partition replica list cannot be empty")
    twice = _repeated(each.where for each in file.assignments)
    if twice:
        raise CommandFailed(
            "Partition reassignment contains duplicate topic partitions: "
            + ",".join(str(where) for where in twice)
        )
    doubled = [
        f"{each.where} contains multiple entries for {','.join(map(str, again))}"
        for each in file.assignments
        if (again := _repeated(each.replicas))
    ]
    if doubled:
        raise CommandFailed(
            f"Partition replica lists may not contain duplicate entries: {'. '.join(doubled)}"
        )


def _repeated(values: Any) -> list[Any]:
    return [value for value, count in Counter(values).items() if count > 1]


def dump(
    partitions: Mapping[TopicPartition, tuple[int, ...]], directories: Mapping[Replica, str]
) -> str:
    """Format assignments on one line, as Kafka's tool does; an unknown directory is "any"."""
    return json.dumps(as_json(partitions, directories), separators=(",", ":"))


def as_json(
    partitions: Mapping[TopicPartition, tuple[int, ...]], directories: Mapping[Replica, str]
) -> dict[str, Any]:
    """Return the document of a reassignment file; an unknown directory is "any"."""
    return {
        "version": VERSION,
        "partitions": [
            {
                "topic": where.topic,
                "partition": where.partition,
                "replicas": list(partitions[where]),
                "log_dirs": [
                    directories.get(Replica(broker, *where), ANY) for broker in partitions[where]
                ],
            }
            for where in sorted(partitions)
        ],
    }
