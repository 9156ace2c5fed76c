"""Names of the directories inside a log directory: those of Kafka and of KIP-113.

The directory of a partition is `topic-partition`. A suffix marks other states:

- `topic-partition.<32 hex>-delete`   deleted; removed after `file.delete.delay.ms`
- `topic-partition.<32 hex>-stray`    not assigned to this node; kept for the operator
- `topic-partition.<32 hex>-future`   Kafka's future replica
- `topic-partition.move`, `.delete`   Odradek's future replica, and the old directory of a completed move (KIP-113,
  J-05 and J-10); a second `.delete` of a partition has a uuid, `topic-partition.<32 hex>.delete`

A name has at most 255 bytes, the limit of file systems. For `-delete` and `-stray`, the topic is shortened to fit, as
in Kafka. Other names are never shortened, because they must be found again.
"""

from __future__ import annotations

import re
from enum import Enum
from uuid import UUID

from odradek.protocol.topics import TopicPartition
from odradek.seams.values import value_class

NAME_BYTES_MAX = 255
REMOTE_INDEX_CACHE = "remote-log-index-cache"

_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_UNIQUE = re.compile(r"[0-9a-zA-Z]+")


class PartitionDirectoryState(Enum):
    """State of a partition's directory; the value is the suffix of its name."""

    LIVE = ""
    DELETED = "-delete"
    STRAY = "-stray"
    FUTURE = "-future"
    MOVING = ".move"
    MOVED_AWAY = ".delete"


@value_class
class PartitionDirectory:
    """Parsed name of a directory. The topic of a deleted or stray one may be shortened."""

    topic_partition: TopicPartition
    state: PartitionDirectoryState


class NotAPartition(ValueError):
    """The name of a directory is not that of a partition."""


def live_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def deleted_name(topic: str, partition: int, unique: UUID) -> str:
    """Return the name of a deleted partition's directory; at most 255 bytes."""
    return _cut(topic, f"-{partition}.{unique.hex}{PartitionDirectoryState.DELETED.value}")


def stray_name(topic: str, partition: int, unique: UUID) -> str:
    """Return the name of a stray directory; at most 255 bytes."""
    return _cut(topic, f"-{partition}.{unique.hex}{PartitionDirectoryState.STRAY.value}")


def moving_name(topic: str, partition: int) -> str:
    """Return the name of a future replica (J-05)."""
    return f"{topic}-{partition}{PartitionDirectoryState.MOVING.value}"


def moved_away_name(topic: str, partition: int, unique: UUID | None = None) -> str:
    """Return the name of the old directory of a completed move (J-09); `unique` if the name exists already."""
    middle = "" if unique is None else f".{unique.hex}"
    return f"{topic}-{partition}{middle}{PartitionDirectoryState.MOVED_AWAY.value}"


def future_name(topic: str, partition: int, unique: UUID) -> str:
    """Return Kafka's name of a future replica, which is never shortened."""
    return f"{topic}-{partition}.{unique.hex}{PartitionDirectoryState.FUTURE.value}"


def _cut(topic: str, suffix: str) -> str:
    return topic[: NAME_BYTES_MAX - len(suffix)] + suffix


def parse(name: str) -> PartitionDirectory:
    """Parse the name of a directory. Raises NotAPartition with the reason."""
    stem, state = _split_state(name)
    topic, dash, number = stem.rpartition("-")
    if not dash or not topic or not number:
        raise NotAPartition(f"'{name}' is not of the form topic-partition")
    if not (number.isascii() and number.isdigit()) or int(number) > 2**31 - 1:
        raise NotAPartition(f"'{name}' does not end with a partition number")
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise NotAPartition(f"'{name}' does not begin with a valid topic name")
    return PartitionDirectory(TopicPartition(topic, int(number)), state)


def _split_state(name: str) -> tuple[str, PartitionDirectoryState]:
    for state in (
        PartitionDirectoryState.DELETED,
        PartitionDirectoryState.STRAY,
        PartitionDirectoryState.FUTURE,
    ):
        if name.endswith(state.value):
            stem, dot, unique = name.removesuffix(state.value).rpartition(".")
            # The name of a live partition cannot end like this: only digits follow its last dash.
            if not dot or not _UNIQUE.fullmatch(unique):
                raise NotAPartition(f"'{name}' has no '.<uuid>' before '{state.value}'")
            return stem, state
    if name.endswith(PartitionDirectoryState.MOVING.value):
        return name.removesuffix(
            PartitionDirectoryState.MOVING.value
        ), PartitionDirectoryState.MOVING
    if name.endswith(PartitionDirectoryState.MOVED_AWAY.value):
        stem = name.removesuffix(PartitionDirectoryState.MOVED_AWAY.value)
        rest, dot, unique = stem.rpartition(".")
        if dot and re.fullmatch("[0-9a-f]{32}", unique):
            return rest, PartitionDirectoryState.MOVED_AWAY
        return stem, PartitionDirectoryState.MOVED_AWAY
    return name, PartitionDirectoryState.LIVE
