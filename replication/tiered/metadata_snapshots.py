"""Snapshots of remote log metadata on disk (T-47, T-48).

A file per partition has its segments and the offset of the metadata partition up to which they are valid.
`_rlmm_committed_offsets` has, per metadata partition, the offset up to which all these files are valid, whether they changed
or not. A partition is opened at the larger of both offsets, so a restart reads only newer records. `_rlmm_topic_id` has
the id of the topic to which the offsets belong. For a recreated topic the offsets are invalid, but the segments are valid.

    a round:              remove files of partitions that are not read → write changed files → sync
                          → `_rlmm_committed_offsets`
    recreated topic:      all files have changed              → `_rlmm_topic_id` last

A crash leaves older offsets with newer files, which only costs reading some records again. A newer offset with an old file
would be an error; therefore the files of partitions that are not read are removed first. If a file is damaged or missing, the
partition is read from the start. Kafka ignores these files.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from typing import Final, TypeVar, TypeVarTuple
from uuid import UUID

import trio

from odradek.protocol.uuids import uuid_to_text
from odradek.seams import Seams
from odradek.seams.files import Path
from odradek.seams.values import value_class
from odradek.storage.tiered.errors import CorruptRemoteData
from odradek.storage.tiered.metadata_snapshot_file import (
    COMMITTED_OFFSETS,
    TOPIC_ID,
    MetadataSnapshotReader,
    decode_offsets,
    decode_topic_id,
    encode_offsets,
    encode_snapshot,
    encode_topic_id,
)
from odradek.storage.tiered.remote_log_metadata_cache import RemoteLogMetadataCache
from odradek.storage.tiered.segment_metadata import TopicIdPartition

log = logging.getLogger("odradek.tiered")

PREFIX: Final = "_rlmm_"
ROUND_S: Final = 60.0
"""Minimum interval between rounds, in seconds."""
PAUSES_A_ROUND: Final = 20
"""Writing may take at most a twentieth of the time if many partitions change."""
LAST_ROUND_S: Final = 2.0

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@value_class
class LoadedSnapshot:
    """Segments of a partition, the next offset of its metadata partition, and the topic's id (None: unknown)."""

    metadata: RemoteLogMetadataCache
    offset: int
    topic_id: UUID | None


@value_class
class SubscribedPartition:
    """A partition that is read; `metadata` contains all records below `offset` of its metadata partition."""

    metadata: RemoteLogMetadataCache
    metadata_partition: int
    offset: int
    is_ready: bool


@value_class
class SubscribedPartitions:
    """Partitions that are read from the metadata topic with an id."""

    topic_id: UUID
    partitions: Sequence[SubscribedPartition]


def file_name(partition: TopicIdPartition) -> str:
    return f"{PREFIX}{uuid_to_text(partition.topic_id)}-{partition.partition}"


class MetadataSnapshots:
    """Writes and loads snapshots in a log directory. Its errors only cost time."""

    def __init__(self, seams: Seams, directory: Path, *, round_s: float = ROUND_S) -> None:
        self._seams = seams
        self._directory = directory
        self._round_s = round_s
        self._changed: set[TopicIdPartition] = set()
        self._file_names: set[str] | None = None
        self._committed: dict[int, int] = {}
        self._topic_id: UUID | None = None
        """Id of the topic to which the offsets on disk belong."""
        self._writing = trio.Lock()

    def changed(self, partition: TopicIdPartition) -> None:
        """Mark the file of a partition as outdated."""
        self._changed.add(partition)

    async def load(
        self, partition: TopicIdPartition, metadata_partition: int
    ) -> LoadedSnapshot | None:
        """Load the snapshot of a partition; None if there is none."""
        async with self._writing:
            try:
                names = await self._names()
                if file_name(partition) not in names:
                    return None
                snapshot = await self._blocking(self._read, partition)
                while snapshot.load():
                    await trio.lowlevel.checkpoint()
            except (OSError, CorruptRemoteData) as error:
                log.warning("ignoring the metadata snapshot of %s: %s", partition, error)
                self._changed.add(partition)
                return None
            committed = self._committed.get(metadata_partition, 0)
            topic_id = self._topic_id
        return LoadedSnapshot(snapshot.metadata, max(snapshot.next_offset, committed), topic_id)

    async def run(self, reading: Callable[[], Awaitable[SubscribedPartitions | None]]) -> None:
        """Write rounds periodically, and one at the end; run until cancelled.

        `reading` returns the partitions that are read; None while some are not open, or the topic is unknown.
        """
        clock = self._seams.clock
        pause_s = self._round_s
        try:
            while True:
                await clock.sleep(pause_s)
                begun = clock.monotonic()
                await self.write(await reading())
                pause_s = max(self._round_s, PAUSES_A_ROUND * (clock.monotonic() - begun))
        finally:
            with trio.move_on_after(LAST_ROUND_S, shield=True):
                await self.write(await reading())

    async def write(self, reading: SubscribedPartitions | None) -> None:
        """Write a round in the order of the module's docstring. The next round repeats a failed one."""
        if reading is None:
            return
        async with self._writing:
            try:
                await self._write(reading)
            except OSError as error:
                log.warning("cannot write remote log metadata to disk: %s", error)

    async def _write(self, reading: SubscribedPartitions) -> None:
        names = await self._names()
        of = {file_name(each.metadata.partition): each for each in reading.partitions}
        read_for = {each.metadata.partition for each in reading.partitions}
        is_another = reading.topic_id != self._topic_id
        for name in sorted(names - of.keys()):
            await self._blocking(self._remove, name)
            names.discard(name)
        self._changed = read_for if is_another else self._changed & read_for
        holding = {name: each for name, each in of.items() if each.is_ready or name in names}
        committed: dict[int, int] = {}
        for each in holding.values():
            there = committed.get(each.metadata_partition, each.offset)
            committed[each.metadata_partition] = min(there, each.offset)
        for name, each in holding.items():
            if name not in names or each.metadata.partition in self._changed:
                await self._replace(name, each)
                names.add(name)
        if committed != self._committed or is_another:
            await self._blocking(self._commit, encode_offsets(committed))
            self._committed = committed
        if is_another:
            await self._blocking(self._write_topic_id, encode_topic_id(reading.topic_id))
            self._topic_id = reading.topic_id

    async def _replace(self, name: str, reading: SubscribedPartition) -> None:
        # What is applied while this is encoded may be in it or not: it comes again after `offset`, and
        # saying it twice changes nothing.
        self._changed.discard(reading.metadata.partition)
        try:
            parts: list[bytes] = []
            for part in encode_snapshot(reading.metadata, reading.offset):
                parts.append(part)
                await trio.lowlevel.checkpoint()
            await self._blocking(self._write_file, name, b"".join(parts))
        except BaseException:
            self._changed.add(reading.metadata.partition)
            raise

    async def _names(self) -> set[str]:
        """Names of the files; listed once."""
        if self._file_names is None:
            names, committed, topic_id = await self._blocking(self._list_files)
            self._file_names = names
            try:
                self._committed = decode_offsets(committed)
            except CorruptRemoteData as error:
                # A partition without changes since its file was written is read from the offset in the file.
                log.warning("ignoring %s: %s", COMMITTED_OFFSETS, error)
            try:
                self._topic_id = decode_topic_id(topic_id) if topic_id else None
            except CorruptRemoteData as error:
                log.warning(
                    "ignoring %s, the metadata topic is read from the start: %s", TOPIC_ID, error
                )
        return self._file_names

    # Blocking operations

    def _list_files(self) -> tuple[set[str], bytes, bytes]:
        files = self._seams.files
        found = {name for name in files.list(self._directory) if name.startswith(PREFIX)}
        for name in sorted(found):
            if name.endswith(".tmp"):
                files.remove(self._directory / name)
                found.discard(name)
        committed, topic_id = (
            files.read(self._directory / name) if name in found else b""
            for name in (COMMITTED_OFFSETS, TOPIC_ID)
        )
        return found - {COMMITTED_OFFSETS, TOPIC_ID}, committed, topic_id

    def _remove(self, name: str) -> None:
        self._seams.files.remove(self._directory / name, missing_ok=True)

    def _write_file(self, name: str, data: bytes) -> None:
        """Write a file. Its name becomes durable with the others, before the offsets are written."""
        files = self._seams.files
        temporary = self._directory / f"{name}.tmp"
        files.remove(temporary, missing_ok=True)
        with closing(files.open(temporary, create=True)) as file:
            file.append_v([data])
            file.sync()
        files.rename(temporary, self._directory / name)

    def _commit(self, offsets: bytes) -> None:
        self._seams.files.sync_directory(self._directory)
        self._seams.files.write_new(self._directory / COMMITTED_OFFSETS, offsets)

    def _write_topic_id(self, topic_id: bytes) -> None:
        self._seams.files.write_new(self._directory / TOPIC_ID, topic_id)

    def _read(self, partition: TopicIdPartition) -> MetadataSnapshotReader:
        return MetadataSnapshotReader(
            self._seams.files.read(self._directory / file_name(partition)), partition
        )

    async def _blocking(self, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        return await self._seams.offload.run(fn, *args, lane=str(self._directory))
