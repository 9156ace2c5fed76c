"""Identification of the files of a broker by their names and directories."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum

from odradek.seams.files import Files, Path
from odradek.seams.values import value_class
from odradek.storage.directories import clean_shutdown, meta_properties
from odradek.storage.directories import names as directory_names
from odradek.storage.directories.checkpoints import Checkpoint
from odradek.storage.directories.names import NotAPartition
from odradek.storage.log import file_names as names

QUORUM_STATE = "quorum-state"
_RAFT_SNAPSHOT = re.compile(r"([0-9]{20}-[0-9]{10}|bootstrap)\.checkpoint")
_REMOTE_OFFSETS = "_rlmm_committed_offsets"
_REMOTE_TOPIC = "_rlmm_topic_id"
_REMOTE_SEGMENTS = re.compile(r"_rlmm_[a-zA-Z0-9_-]{22}-[0-9]+", re.ASCII)
_TEMPORARY_SUFFIXES = (names.DELETED, names.CLEANED, names.SWAP, ".tmp", ".part")


class FileKind(Enum):
    """FileKind of a file; the value is printed, and is `fileType` in JSON."""

    SEGMENT = "segment"
    RAFT_SNAPSHOT = "metadata snapshot"
    OFFSET_INDEX = "offset index"
    TIME_INDEX = "time index"
    TRANSACTION_INDEX = "transaction index"
    PRODUCER_SNAPSHOT = "producer snapshot"
    EPOCHS = "leader epoch checkpoint"
    OFFSET_CHECKPOINT = "offset checkpoint"
    META_PROPERTIES = "meta.properties"
    PARTITION_METADATA = "partition.metadata"
    QUORUM_STATE = "quorum state"
    CLEAN_MARK = "clean shutdown mark"
    REMOTE_SEGMENTS = "remote segments"
    REMOTE_OFFSETS = "remote metadata offsets"
    REMOTE_TOPIC = "remote metadata topic"


_BY_SUFFIX = {
    names.LOG: FileKind.SEGMENT,
    names.OFFSET_INDEX: FileKind.OFFSET_INDEX,
    names.TIME_INDEX: FileKind.TIME_INDEX,
    names.TRANSACTION_INDEX: FileKind.TRANSACTION_INDEX,
    names.SNAPSHOT: FileKind.PRODUCER_SNAPSHOT,
}
_BY_NAME = {
    names.EPOCHS: FileKind.EPOCHS,
    names.METADATA: FileKind.PARTITION_METADATA,
    meta_properties.FILE_NAME: FileKind.META_PROPERTIES,
    clean_shutdown.FILE_NAME: FileKind.CLEAN_MARK,
    QUORUM_STATE: FileKind.QUORUM_STATE,
    _REMOTE_OFFSETS: FileKind.REMOTE_OFFSETS,
    _REMOTE_TOPIC: FileKind.REMOTE_TOPIC,
    **{checkpoint.value: FileKind.OFFSET_CHECKPOINT for checkpoint in Checkpoint},
}
NAMES_SHOWN = (
    ".log, .index, .timeindex, .txnindex, .snapshot, .checkpoint, "
    "leader-epoch-checkpoint, *-offset-checkpoint, partition.metadata, meta.properties, quorum-state, "
    "_rlmm_*"
)


@value_class
class DumpFile:
    """File to dump. `offset` is the offset in its name, or 0."""

    path: Path
    kind: FileKind
    offset: int
    topic: str | None
    """Topic in the name of the directory; None if it is not a partition's directory."""

    def same_segment_file(self, suffix: str) -> Path:
        """Path of the file with this suffix of the same segment."""
        return self.path.with_name(names.file_name(self.offset, suffix))


def identify(path: Path) -> DumpFile | None:
    """Identify a file by its name; None if no file of a broker has this name."""
    name = path.name
    for ending in _TEMPORARY_SUFFIXES:
        name = name.removesuffix(ending)
    kind = _BY_NAME.get(name)
    offset = 0
    if kind is None and _RAFT_SNAPSHOT.fullmatch(name):
        kind = FileKind.RAFT_SNAPSHOT
        offset = int(name[:20]) if name[0].isdigit() else 0
    if kind is None and _REMOTE_SEGMENTS.fullmatch(name):
        kind = FileKind.REMOTE_SEGMENTS
    if kind is None:
        number = names.offset_of(name)
        kind = _BY_SUFFIX.get(name[name.find(".") :]) if number is not None else None
        offset = number or 0
    if kind is None:
        return None
    return DumpFile(path, kind, offset, _topic(path.parent.name))


def _topic(directory: str) -> str | None:
    try:
        return directory_names.parse(directory).topic_partition.topic
    except NotAPartition:
        return None


def walk(files: Files, directory: Path) -> Iterator[DumpFile]:
    """Yield the files of a broker in a directory, then those of its subdirectories by partition."""
    below: list[Path] = []
    for name in files.list(directory):
        path = directory / name
        if files.is_directory(path):
            below.append(path)
        elif (found := identify(path)) is not None:
            yield found
    for path in sorted(below, key=_partition_order):
        yield from walk(files, path)


def _partition_order(path: Path) -> tuple[str, int, str]:
    try:
        parsed = directory_names.parse(path.name).topic_partition
    except NotAPartition:
        return path.name, -1, path.name
    return parsed.topic, parsed.partition, path.name
