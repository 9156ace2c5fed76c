"""Object keys of a segment, named like the files of Kafka's LocalTieredStorage.

    <topic>-<partition>-<topic id>/<start offset, 20 digits>-<segment id><suffix>

Ids are in base64url. `.manifest` (manifest.py) is an additional suffix. A listing of a partition's
directory has its summaries (partition_summary.py) first, then the segments by start offset.
"""

from __future__ import annotations

import re
from uuid import UUID

from odradek.protocol.uuids import uuid_from_text, uuid_to_text
from odradek.seams.values import value_class
from odradek.storage.tiered.remote_storage_manager import IndexType
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)

LOG_SUFFIX = ".log"
MANIFEST_SUFFIX = ".manifest"
SUFFIXES = (LOG_SUFFIX, *(kind.value for kind in IndexType), MANIFEST_SUFFIX)

SUMMARY_SUFFIX = ".summary"
NO_LEADER = -1
"""Leader epoch of a summary that a command wrote."""

_DIRECTORY = re.compile(r"([a-zA-Z0-9._-]+)-(\d+)-([a-zA-Z0-9_-]{22})", re.ASCII)
_FILE = re.compile(r"(\d{20})-([a-zA-Z0-9_-]{22})(\.[a-z_]+)", re.ASCII)
_SUMMARY = re.compile(r"0-(\d{10})?\.summary", re.ASCII)


def partition_directory(partition: TopicIdPartition) -> str:
    return f"{partition.topic}-{partition.partition}-{uuid_to_text(partition.topic_id)}"


def segment_key(metadata: RemoteLogSegmentMetadata, suffix: str) -> str:
    return (
        f"{partition_directory(metadata.partition)}/"
        f"{metadata.start_offset:020}-{uuid_to_text(metadata.id.id)}{suffix}"
    )


def summary_key(partition: TopicIdPartition, leader_epoch: int) -> str:
    """Key of a summary. It sorts before all segments; the summary with the latest epoch counts, and
    NO_LEADER precedes all epochs."""
    epoch = "" if leader_epoch == NO_LEADER else f"{leader_epoch:010}"
    return f"{partition_directory(partition)}/0-{epoch}{SUMMARY_SUFFIX}"


def keys_from(partition: TopicIdPartition, offset: int) -> str:
    """Key that sorts before the objects of segments that start at `offset` or later, and after all
    others."""
    return f"{partition_directory(partition)}/{offset:020}"


@value_class
class ObjectName:
    """Parts of an object key."""

    id: RemoteLogSegmentId
    start_offset: int
    suffix: str


def parse_directory(name: str) -> TopicIdPartition | None:
    """Partition of a directory name, or None."""
    match = _DIRECTORY.fullmatch(name)
    topic_id = match and _uuid(match[3])
    if not match or topic_id is None:
        return None
    return TopicIdPartition(topic_id, match[1], int(match[2]))


def parse_key(key: str) -> ObjectName | None:
    """Parts of a segment's object key, or None."""
    directory, _, name = key.rpartition("/")
    partition = parse_directory(directory)
    match = _FILE.fullmatch(name)
    segment_id = match and _uuid(match[2])
    if not match or partition is None or segment_id is None or match[3] not in SUFFIXES:
        return None
    return ObjectName(RemoteLogSegmentId(partition, segment_id), int(match[1]), match[3])


def parse_summary(key: str) -> tuple[TopicIdPartition, int] | None:
    """Partition and leader epoch (or NO_LEADER) of a summary's key, or None."""
    directory, _, name = key.rpartition("/")
    match = _SUMMARY.fullmatch(name)
    partition = match and parse_directory(directory)
    return (partition, int(match[1] or NO_LEADER)) if match and partition else None


def _uuid(text: str) -> UUID | None:
    """The id, or None if the text is not its canonical form."""
    try:
        found = uuid_from_text(text)
    except ValueError:
        return None
    return found if uuid_to_text(found) == text else None
