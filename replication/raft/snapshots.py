"""Snapshots of the metadata log: `<end offset>-<epoch>.checkpoint` (KIP-630).

A snapshot contains the state up to its end offset (exclusive): a control batch with the SnapshotHeader
and, from kraft.version 1 on, the level and the voters; batches of metadata records; a control batch with
the SnapshotFooter. Offsets start at 0 in each file.

Crash order: write the file as `.checkpoint.part` (1), sync it (2), rename it (3), sync the directory
(4). A partial file is removed at the next start. Log segments and older snapshots are only deleted once
the snapshot is durable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from odradek.protocol.errors import KafkaError
from odradek.protocol.records.batch import Batch, batches
from odradek.protocol.records.control import ControlType, control_type, kraft_control_batch
from odradek.protocol.records.records import Record, build_batch, decode
from odradek.protocol.schemas.control_records import SnapshotFooterRecord, SnapshotHeaderRecord
from odradek.protocol.schemas.serde import decode as decode_body
from odradek.replication.controller.image import InvalidMetadata
from odradek.seams.files import File, Files, Path

SUFFIX = ".checkpoint"
PARTIAL_SUFFIX = ".checkpoint.part"
DELETED_SUFFIX = ".checkpoint.deleted"
HEADER_BYTES = 64 * 1024
"""Upper bound for the first batch of a snapshot, with any number of voters."""

_NAME = re.compile(r"(\d{20})-(\d{10})(.*)")


class SnapshotId(NamedTuple):
    """`end_offset` is exclusive; `epoch` is that of the last record in the snapshot."""

    end_offset: int
    epoch: int

    @property
    def file_name(self) -> str:
        return f"{self.end_offset:020d}-{self.epoch:010d}{SUFFIX}"


def parse_name(name: str) -> tuple[SnapshotId, str] | None:
    """Snapshot id and suffix of a file name; None if it is not of a snapshot."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    end_offset, epoch, rest = match.groups()
    for suffix in (PARTIAL_SUFFIX, DELETED_SUFFIX, SUFFIX):
        if rest.endswith(suffix):
            return SnapshotId(int(end_offset), int(epoch)), suffix
    return None


class SnapshotStore:
    """Snapshots in the metadata log's directory, oldest first."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self.ids: list[SnapshotId] = []
        self.sizes: dict[SnapshotId, int] = {}
        self._timestamps_ms: dict[SnapshotId, int] = {}

    def load(self) -> None:
        """List the snapshots; remove partial files and those marked as deleted."""
        for name in self._files.list(self._directory):
            parsed = parse_name(name)
            if parsed is None:
                continue
            snapshot, suffix = parsed
            if suffix == SUFFIX:
                self.add(snapshot)
            else:
                self._files.remove(self._directory / name, missing_ok=True)

    def add(self, snapshot: SnapshotId) -> None:
        """Register an existing snapshot file."""
        if snapshot not in self.sizes:
            self.ids = sorted([*self.ids, snapshot])
        self.sizes[snapshot] = self._files.file_size(self.path(snapshot))

    @property
    def newest(self) -> SnapshotId | None:
        return self.ids[-1] if self.ids else None

    def path(self, snapshot: SnapshotId) -> Path:
        return self._directory / snapshot.file_name

    def remove(self, snapshot: SnapshotId) -> None:
        """Delete a snapshot; the caller ensures that a newer one is durable."""
        self.ids.remove(snapshot)
        del self.sizes[snapshot]
        self._timestamps_ms.pop(snapshot, None)
        self._files.remove(self.path(snapshot), missing_ok=True)

    def read(self, snapshot: SnapshotId) -> SnapshotContents:
        return SnapshotContents(self.path(snapshot), self._files.read(self.path(snapshot)))

    def timestamp_ms(self, snapshot: SnapshotId) -> int:
        """`last_contained_log_timestamp` of the header, in ms."""
        if snapshot not in self._timestamps_ms:
            with closing(self._files.open(self.path(snapshot))) as file:
                data = memoryview(file.read_at(0, HEADER_BYTES))
            first = next(batches(data, check=True, allow_partial=True))
            header = decode_body(SnapshotHeaderRecord, 0, decode(first)[0].value or b"")
            self._timestamps_ms[snapshot] = header.last_contained_log_timestamp
        return self._timestamps_ms[snapshot]

    def writer(
        self, snapshot: SnapshotId, *, now_ms: int, timestamp_ms: int, control: ControlRecords = ()
    ) -> SnapshotWriter:
        """Start a snapshot of this node, with the header written. `publish` completes it."""
        path = self._directory / f"{snapshot.file_name}.part"
        self._files.remove(path, missing_ok=True)
        file = self._files.open(path, create=True)
        writer = SnapshotWriter(file, snapshot.epoch)
        try:
            writer.begin(now_ms, timestamp_ms, control)
        except OSError:
            self.discard(writer)
            raise
        return writer

    def download(self, snapshot: SnapshotId) -> SnapshotDownload:
        """Create the file of a snapshot that is fetched; an earlier partial file is removed."""
        # Another name than that of a generated snapshot, which may have the same id
        name = snapshot.file_name.replace(SUFFIX, f"-fetched{PARTIAL_SUFFIX}")
        path = self._directory / name
        self._files.remove(path, missing_ok=True)
        return SnapshotDownload(snapshot, self._files.open(path, create=True))

    def downloaded(self, download: SnapshotDownload) -> SnapshotContents:
        """Contents of a complete download, before it is published."""
        path = download.file.path
        return SnapshotContents(path, self._files.read(path))

    def read_chunk(self, snapshot: SnapshotId, position: int, max_bytes: int) -> bytes:
        """Up to `max_bytes` of the file from `position` on. Raises FileNotFoundError if it was deleted."""
        with closing(self._files.open(self.path(snapshot))) as file:
            return file.read_at(position, max_bytes)

    def discard(self, writer: SnapshotWriter | SnapshotDownload) -> None:
        """Close and remove the file of an incomplete snapshot."""
        writer.file.close()
        self._files.remove(writer.file.path, missing_ok=True)

    def publish(self, snapshot: SnapshotId, writer: SnapshotWriter | SnapshotDownload) -> None:
        """Steps 2 to 4 of the crash order. Blocks."""
        writer.file.sync()
        writer.file.close()
        self._files.rename(writer.file.path, self.path(snapshot))
        self._files.sync_directory(self._directory)
        self.add(snapshot)


class SnapshotDownload:
    """File of a snapshot that is fetched in chunks."""

    def __init__(self, snapshot: SnapshotId, file: File) -> None:
        self.snapshot = snapshot
        self.file = file

    def append(self, position: int, data: bytes) -> None:
        """Append the chunk at `position`. Raises ValueError if that is not the end of the file."""
        if position != self.file.size:
            raise ValueError(
                f"chunk at position {position}, but {self.file.path} has {self.file.size} bytes"
            )
        self.file.append_v([data])


ControlRecords = Sequence[tuple[ControlType, Any]]


class SnapshotWriter:
    """Appends batches to a snapshot file; `SnapshotStore.publish` makes it durable."""

    def __init__(self, file: File, epoch: int) -> None:
        self.file = file
        self._epoch = epoch
        self._now_ms = 0
        self._next = 0

    def begin(self, now_ms: int, timestamp_ms: int, control: ControlRecords = ()) -> None:
        """Append the header; `timestamp_ms` is the timestamp of the last record in the snapshot."""
        self._now_ms = now_ms
        self._append_control([(ControlType.SNAPSHOT_HEADER, _header(timestamp_ms)), *control])

    def append(self, values: Sequence[bytes]) -> None:
        """Append encoded metadata records as one batch."""
        if not values:
            return
        records = [Record(-1, self._now_ms, None, value) for value in values]
        batch = build_batch(records, base_offset=self._next, leader_epoch=self._epoch)
        self.file.append_v([batch])
        self._next += len(values)

    def end(self) -> None:
        """Append the footer, the last batch."""
        self._append_control([(ControlType.SNAPSHOT_FOOTER, _footer())])

    def _append_control(self, records: list[tuple[ControlType, Any]]) -> None:
        batch = kraft_control_batch(
            records, timestamp_ms=self._now_ms, base_offset=self._next, leader_epoch=self._epoch
        )
        self.file.append_v([batch])
        self._next += len(records)


class SnapshotContents:
    """Validated batches of a snapshot file."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._path = path
        self._data = memoryview(data)

    def batches(self) -> Iterator[Batch]:
        """All batches, with header and footer. Raises InvalidMetadata if the file is incomplete or corrupt."""
        first, footer = True, False
        try:
            for batch in batches(self._data, check=True):
                if footer:
                    raise InvalidMetadata(f"{self._path} has batches after its footer")
                kinds = _control_types(batch)
                if first and kinds[:1] != [ControlType.SNAPSHOT_HEADER]:
                    raise InvalidMetadata(f"{self._path} does not start with a snapshot header")
                first, footer = False, ControlType.SNAPSHOT_FOOTER in kinds
                yield batch
        except KafkaError as error:
            raise InvalidMetadata(f"{self._path}: {error}") from error
        if not footer:
            raise InvalidMetadata(f"{self._path} ends before its footer")


def _control_types(batch: Batch) -> list[ControlType]:
    return [control_type(record.key) for record in decode(batch)] if batch.is_control else []


def _header(timestamp_ms: int) -> SnapshotHeaderRecord:
    return SnapshotHeaderRecord(version=0, last_contained_log_timestamp=timestamp_ms)


def _footer() -> SnapshotFooterRecord:
    return SnapshotFooterRecord(version=0)
