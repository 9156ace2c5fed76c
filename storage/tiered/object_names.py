"""What the objects of a segment are called, as Kafka's LocalTieredStorage calls its files.

    <topic>-<partition>-<topic id>/<start offset, 20 digits>-<segment id><suffix>

Ids are in base64url. Next to Kafka's suffixes stands `.manifest` (manifest.py). A person can read it,
and a listing of one directory comes in the order of offsets, after the summaries of its segments
(summary.py).
"""

from __future__ import annotations

import re
from uuid import UUID

from odradek.protocol.uuids import uuid_from_text, uuid_to_text
from odradek.seams.values import value_class
from odradek.storage.tiered.metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from odradek.storage.tiered.remote_storage_manager import IndexType

LOG_SUFFIX = ".log"
MANIFEST_SUFFIX = ".manifest"
SUFFIXES = (LOG_SUFFIX, *(kind.value for kind in IndexType), MANIFEST_SUFFIX)

SUMMARY_SUFFIX = ".summary"
NO_LEADER = -1
"""The leader epoch of a summary that no leader has put."""

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
    """Before all segments in a listing; of two summaries the later one counts, and any leader's more than
    one of NO_LEADER."""
    epoch = "" if leader_epoch == NO_LEADER else f"{leader_epoch:010}"
    return f"{partition_directory(partition)}/0-{epoch}{SUMMARY_SUFFIX}"


def keys_from(partition: TopicIdPartition, offset: int) -> str:
    """What sorts before the objects of segments that start there or later, and behind all others."""
    return f"{partition_directory(partition)}/{offset:020}"


@value_class
class ObjectName:
    """A key taken apart."""

    id: RemoteLogSegmentId
    start_offset: int
    suffix: str


def parse_directory(name: str) -> TopicIdPartition | None:
    """None if no partition's directory is called so."""
    match = _DIRECTORY.fullmatch(name)
    topic_id = match and _uuid(match[3])
    if not match or topic_id is None:
        return None
    return TopicIdPartition(topic_id, match[1], int(match[2]))


def parse_key(key: str) -> ObjectName | None:
    """None for an object that is no segment's."""
    directory, _, name = key.rpartition("/")
    partition = parse_directory(directory)
    match = _FILE.fullmatch(name)
    segment_id = match and _uuid(match[2])
    if not match or partition is None or segment_id is None or match[3] not in SUFFIXES:
        return None
    return ObjectName(RemoteLogSegmentId(partition, segment_id), int(match[1]), match[3])


def parse_summary(key: str) -> tuple[TopicIdPartition, int] | None:
    """Whose summary, of which leader epoch (or NO_LEADER); None for an object that is none."""
    directory, _, name = key.rpartition("/")
    match = _SUMMARY.fullmatch(name)
    partition = match and parse_directory(directory)
    return (partition, int(match[1] or NO_LEADER)) if match and partition else None


def _uuid(text: str) -> UUID | None:
    """None where the text is not the one that the id would have."""
    try:
        found = uuid_from_text(text)
    except ValueError:
        return None
    return found if uuid_to_text(found) == text else None
