"""State of one coordinator of diskless topics in a SQLite database (KIP-1164, D-16).

The database is a cache of the partition's log: the offset of the last applied record is stored in the transaction that
applies it, so that the state can be opened after a crash of the process at any time and continued from that offset. In
WAL mode without a sync of every commit, a crash of the machine may lose the last transactions, but never a part of one.
A database that is missing, damaged, of another coordinator or of a newer schema is replaced by an empty one, with one
WARN line, and the caller applies the log again.

A call of SQLite releases the GIL and takes it again, which waits for the event loop. So `apply` does not execute
statements per batch but a few per call, each with many rows.

Removing a million batches takes seconds. `apply` only moves the log start offset, which hides the batches from
readers, and adds a row to `deletions`; the batches are removed in steps, in the order of the deletions.

Expired producers are not returned. Their rows are removed in passes over the table, of which each `apply` does a part.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain, groupby
from typing import Any, Final
from uuid import UUID

from odradek.protocol.schemas.diskless_records import (
    DisklessCommittedBatch,
    DisklessFileCommittedRecord,
    DisklessFileOwnershipRecord,
    DisklessFileRemovedRecord,
    DisklessPartitionCreatedRecord,
    DisklessRecordsDeletedRecord,
    DisklessTopicDeletedRecord,
)
from odradek.seams.files import Files, Path
from odradek.seams.values import state_class
from odradek.storage.diskless.sqlite_check import StateIdentity, damage_of, problem_of
from odradek.storage.diskless.sqlite_schema import APPLICATION_ID, migrate, row_crc
from odradek.storage.diskless.state import (
    NO_OFFSET,
    PRODUCER_BATCHES_MAX,
    PRODUCER_EXPIRATION_MS,
    CommittedBatch,
    FileBatch,
    FileState,
    LogEntry,
    PartitionState,
    ProducerBatch,
    ProducerEntry,
    StateCounts,
    StateDamaged,
    appends,
    batch_id,
    entries_to_apply,
    max_timestamp_ms,
    upload_time_and_broker,
)

log = logging.getLogger("odradek.diskless")

REMOVED_PER_APPLY: Final = 500
"""Batches of deleted records that one call of `apply` removes at most."""
ROWS_MAX: Final = 64
"""Rows of one statement."""
PRODUCERS_PER_APPLY: Final = 64
"""Producers whose expiration one call of `apply` checks; twice as many as were written if these are more."""
PRODUCER_PASSES: Final = 8
"""Passes over the producers in `producer.id.expiration.ms`."""
END: Final = (1 << 63) - 1
"""Above all offsets: end offset of the deletion of a whole partition."""
PAGE_BYTES: Final = 4096
CACHE_KIB: Final = 8192
CHECKPOINT_PAGES: Final = 4096
"""Pages in the write-ahead log after which they are copied to the database."""
PRODUCER_BATCH: Final = struct.Struct("<iiqqq")
_IO_ERRORS: Final = {
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_BUSY: errno.EBUSY,
    sqlite3.SQLITE_LOCKED: errno.EBUSY,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_CANTOPEN: errno.EIO,
}
"""Errors of the file system, by SQLite's primary error code. All others are a damage."""

_BATCH = """b.batch_id, f.object_key, b.magic, b.byte_offset, b.byte_size, b.base_offset, b.last_offset,
    b.log_append_ms, b.max_timestamp_ms, b.timestamp_type"""
_LIVE_BATCHES = f"""SELECT {_BATCH} FROM batches b JOIN files f ON f.id = b.file_id
    WHERE b.partition_id = ? AND b.last_offset >= ?"""
_PARTITION = "id, topic_id, partition_index, name, log_start_offset, high_watermark, live_batches, live_bytes, crc"
_FILE = """id, object_key, object_format, size, uploader_broker_id, owner_ids, uploaded_ms, is_owner, live_batches,
    live_bytes, unused_since_ms, crc"""


@state_class
class _Meta:
    applied_offset: int
    clock_ms: int
    """Largest append time of all applied records."""
    rows: int
    """Rows with a CRC, in all tables."""
    crc_sum: int

    def replace(self, old_crc: int, new_crc: int) -> None:
        self.crc_sum += new_crc - old_crc

    def add(self, crc: int) -> None:
        self.rows += 1
        self.crc_sum += crc

    def remove(self, crc: int, rows: int = 1) -> None:
        self.rows -= rows
        self.crc_sum -= crc


@state_class
class _Partition:
    id: int
    topic_id: bytes
    index: int
    name: str
    log_start_offset: int
    high_watermark: int
    live_batches: int
    live_bytes: int
    crc: int

    def new_crc(self) -> int:
        return row_crc(
            self.topic_id,
            self.id,
            self.index,
            self.name,
            self.log_start_offset,
            self.high_watermark,
            self.live_batches,
            self.live_bytes,
        )

    def state(self) -> PartitionState:
        return PartitionState(
            UUID(bytes=self.topic_id),
            self.index,
            self.name,
            self.log_start_offset,
            self.high_watermark,
            self.live_batches,
            self.live_bytes,
        )


@state_class
class _File:
    id: int
    object_key: str
    object_format: int
    size: int
    uploader_broker_id: int
    owner_ids: str
    uploaded_ms: int
    is_owner: int
    live_batches: int
    live_bytes: int
    unused_since_ms: int
    crc: int

    def new_crc(self) -> int:
        return row_crc(
            b"",
            self.id,
            self.object_key,
            self.object_format,
            self.size,
            self.uploader_broker_id,
            self.owner_ids,
            self.uploaded_ms,
            self.is_owner,
            self.live_batches,
            self.live_bytes,
            self.unused_since_ms,
        )

    def release(self, batches: int, size_bytes: int, append_ms: int) -> None:
        """Subtract removed batches, the last of which was deleted at `append_ms`."""
        self.live_batches -= batches
        self.live_bytes -= size_bytes
        if not self.live_batches:
            self.unused_since_ms = append_ms

    def state(self) -> FileState:
        return FileState(
            object_key=self.object_key,
            object_format=self.object_format,
            size=self.size,
            uploader_broker_id=self.uploader_broker_id,
            owner_ids=tuple(map(int, self.owner_ids.split(","))),
            is_owner=bool(self.is_owner),
            live_batches=self.live_batches,
            live_bytes=self.live_bytes,
            uploaded_ms=self.uploaded_ms,
            unused_since_ms=self.unused_since_ms,
        )


@state_class
class _Producer:
    epoch: int
    last_append_ms: int
    batches: bytes
    """The newest batches, the newest last, each a PRODUCER_BATCH."""
    crc: int | None
    """CRC of the stored row; None if there is none."""


def database_path(directory: Path, coordinator_id: int) -> Path:
    """Path of the database in a log directory."""
    return directory / f"diskless-metadata-{coordinator_id}.db"


def remove_database(files: Files, path: Path) -> None:
    """Remove a database that is not open, and its write-ahead log. Raises OSError."""
    for suffix in ("-wal", "-shm", ""):
        files.remove(path.with_name(path.name + suffix), missing_ok=True)


def open_state(
    files: Files,
    path: Path,
    identity: StateIdentity,
    *,
    producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
) -> SqliteDisklessState:
    """Open a database, or make an empty one if it is missing or cannot be used (D-16).

    Raises OSError if the directory cannot be read or written.
    """
    try:
        return SqliteDisklessState(path, identity, producer_expiration_ms=producer_expiration_ms)
    except StateDamaged as error:
        log.warning(
            "Removing the state of the diskless coordinator %d in %s, which is built again from its log: %s",
            identity.coordinator_id,
            path,
            error,
        )
    remove_database(files, path)
    return SqliteDisklessState(path, identity, producer_expiration_ms=producer_expiration_ms)


class SqliteDisklessState:
    """`DisklessState` in a SQLite database. Methods raise StateDamaged or OSError."""

    def __init__(
        self,
        path: Path,
        identity: StateIdentity,
        *,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
    ) -> None:
        """Open a database and check it, or create it if it is missing.

        Raises StateDamaged if it cannot be used, and OSError if it cannot be read or written.
        """
        self._path = path
        self._coordinator_id = identity.coordinator_id
        self._producer_expiration_ms = producer_expiration_ms
        self._checked_producer = (-1, -1)
        """Partition id and producer id up to which the current pass has checked the producers."""
        self._next_pass_ms = -1
        """Append time of records at which the next pass over the producers begins."""
        self._written_producers = 0
        """Rows of producers that were written since the last part of a pass."""
        with translated():
            self._connection = sqlite3.connect(
                str(path), isolation_level=None, check_same_thread=False, cached_statements=256
            )
        try:
            with translated():
                self._open(identity)
                self._load()
        except BaseException:
            self._connection.close()
            raise

    def _open(self, identity: StateIdentity) -> None:
        execute = self._connection.execute
        execute(f"PRAGMA page_size = {PAGE_BYTES}")
        execute("PRAGMA auto_vacuum = NONE")
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = NORMAL")
        execute("PRAGMA secure_delete = OFF")
        execute("PRAGMA temp_store = MEMORY")
        execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        (schema_objects,) = execute("SELECT count(*) FROM sqlite_master").fetchone()
        is_new = not schema_objects
        if not is_new and (problem := problem_of(self._connection, identity)):
            raise StateDamaged(problem)
        execute("BEGIN IMMEDIATE")
        migrate(self._connection)
        if is_new:
            execute(f"PRAGMA application_id = {APPLICATION_ID}")
            topic_id = identity.topic_id.bytes
            empty = (identity.cluster_id, identity.coordinator_id, NO_OFFSET, -1, 0, 0)
            execute(
                "INSERT INTO meta VALUES (0, ?, ?, ?, ?, ?, ?, ?, ?)",
                (empty[0], topic_id, *empty[1:], row_crc(topic_id, *empty)),
            )
        execute("COMMIT")
        if not is_new and (damage := damage_of(self._connection)):
            raise StateDamaged(damage)

    def _load(self) -> None:
        """Read what this object keeps in memory."""
        (row,) = self._all(
            "SELECT cluster_id, topic_id, applied_offset, clock_ms, rows, crc_sum FROM meta"
        )
        self._cluster_id, self._topic_id = row[0], row[1]
        self._meta = _Meta(*row[2:])
        self._applied_offset: int = self._meta.applied_offset
        ((self._next_file_id,),) = self._all("SELECT coalesce(max(id), 0) + 1 FROM files")
        ((self._next_partition_id,),) = self._all(
            """SELECT max(coalesce((SELECT max(id) FROM partitions), 0),
                coalesce((SELECT max(partition_id) FROM deletions), 0)) + 1"""
        )
        ((self._deletions, self._next_deletion_id),) = self._all(
            "SELECT count(*), coalesce(max(id), 0) + 1 FROM deletions"
        )

    def close(self) -> None:
        """Close the database. Its content is complete without it."""
        with suppress(sqlite3.Error):
            self._connection.close()

    @property
    def path(self) -> Path:
        return self._path

    @property
    def applied_offset(self) -> int:
        return self._applied_offset

    # --- statements ---

    def _all(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise _translation_of(error) from error

    def _each(self, statement: str, rows: Sequence[Sequence[Any]]) -> Iterator[Any]:
        """Execute a statement with `{}` for the rows, as often as their number needs; yield the rows of the result."""
        done = 0
        while done < len(rows):
            count = min(ROWS_MAX, 1 << (len(rows) - done).bit_length() - 1)
            values = list(chain.from_iterable(rows[done : done + count]))
            yield from self._all(_with_rows(statement, count, len(rows[0])), values)
            done += count

    def _write(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            deque(self._each(statement, rows), maxlen=0)

    @contextmanager
    def _transaction(self) -> Iterator[_Meta]:
        self._all("BEGIN IMMEDIATE")
        try:
            meta = self._meta
            yield meta
            values = (meta.applied_offset, meta.clock_ms, meta.rows, meta.crc_sum)
            crc = row_crc(self._topic_id, self._cluster_id, self._coordinator_id, *values)
            self._all(
                "UPDATE meta SET applied_offset = ?, clock_ms = ?, rows = ?, crc_sum = ?, crc = ?",
                (*values, crc),
            )
            self._all("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            self._load()
            raise
        self._applied_offset = meta.applied_offset

    # --- records ---

    def apply(self, entries: Sequence[LogEntry], through_offset: int) -> None:
        added = entries_to_apply(entries, through_offset, self._applied_offset)
        if through_offset <= self._applied_offset:
            return
        with self._transaction() as meta:
            for is_commit, run in groupby(added, _is_commit):
                if is_commit:
                    self._commit_files(list(run))
                else:
                    for entry in run:
                        meta.clock_ms = max(meta.clock_ms, entry.append_ms)
                        self._apply_record(entry.record, entry.append_ms)
            if self._deletions:
                self._remove(REMOVED_PER_APPLY)
            if meta.clock_ms >= self._next_pass_ms:
                self._remove_expired_producers()
            meta.applied_offset = through_offset

    def _apply_record(self, record: Any, append_ms: int) -> None:
        match record:
            case DisklessRecordsDeletedRecord():
                self._delete_records(record, append_ms)
            case DisklessFileRemovedRecord():
                self._remove_file(record.object_key)
            case DisklessFileOwnershipRecord():
                self._own_file(record, append_ms)
            case DisklessPartitionCreatedRecord():
                self._create_partition(record)
            case DisklessTopicDeletedRecord():
                self._delete_topic(record.topic_id.bytes, append_ms)

    def _create_partition(self, record: DisklessPartitionCreatedRecord) -> None:
        key = (record.topic_id.bytes, record.partition_index)
        if self._load_partitions([key]):
            return
        partition = _Partition(self._next_partition_id, *key, record.name, 0, 0, 0, 0, 0)
        self._next_partition_id += 1
        partition.crc = partition.new_crc()
        self._meta.add(partition.crc)
        self._all(
            f"INSERT INTO partitions ({_PARTITION}) VALUES (?, ?, ?, ?, 0, 0, 0, 0, ?)",
            (partition.id, *key, record.name, partition.crc),
        )

    def _delete_topic(self, topic_id: bytes, append_ms: int) -> None:
        found = self._all(
            f"SELECT {_PARTITION} FROM partitions WHERE topic_id = ? ORDER BY partition_index",
            (topic_id,),
        )
        deletions = []
        for row in found:
            partition = _Partition(*row)
            self._meta.remove(partition.crc)
            deletions.append((partition.id, END, append_ms))
        self._all("DELETE FROM partitions WHERE topic_id = ?", (topic_id,))
        self._add_deletions(deletions)

    def _delete_records(self, record: DisklessRecordsDeletedRecord, append_ms: int) -> None:
        key = (record.topic_id.bytes, record.partition_index)
        partition = self._load_partitions([key]).get(key)
        if partition is None:
            return
        start = min(record.new_log_start_offset, partition.high_watermark)
        if start <= partition.log_start_offset:
            return
        batches, size_bytes = partition.live_batches, partition.live_bytes
        if start < partition.high_watermark:
            ((batches, size_bytes),) = self._all(
                """SELECT count(*), coalesce(sum(byte_size), 0) FROM batches
                WHERE partition_id = ? AND last_offset >= ? AND last_offset < ?""",
                (partition.id, partition.log_start_offset, start),
            )
        partition.log_start_offset = start
        partition.live_batches -= batches
        partition.live_bytes -= size_bytes
        self._update_partitions([partition])
        if batches:
            self._add_deletions([(partition.id, start, append_ms)])

    def _add_deletions(self, deletions: Iterable[tuple[int, int, int]]) -> None:
        rows = []
        for partition_id, end_offset, append_ms in deletions:
            values = (self._next_deletion_id, partition_id, end_offset, append_ms)
            crc = row_crc(b"", *values)
            rows.append((*values, crc))
            self._meta.add(crc)
            self._next_deletion_id += 1
        self._deletions += len(rows)
        self._write("INSERT INTO deletions VALUES {}", rows)

    # --- commits ---

    def _commit_files(self, run: Sequence[LogEntry]) -> None:
        """Apply consecutive records of type DisklessFileCommittedRecord."""
        partitions = self._load_partitions(_partitions_of(run))
        files = {file.object_key: file for file in self._load_files(run)}
        known_files = set(files)
        producers = self._load_producers(_producers_of(run, partitions))
        batches: list[tuple[int, ...]] = []
        keys: dict[int, list[int]] = {}
        changed: dict[int, _Partition] = {}
        seen_producers: dict[tuple[int, int], _Producer] = {}
        for entry in run:
            self._meta.clock_ms = max(self._meta.clock_ms, entry.append_ms)
            record: DisklessFileCommittedRecord = entry.record
            file = files.get(record.object_key)
            if file is None:
                file = self._new_file(record, entry.append_ms, record.uploader_broker_id)
                files[record.object_key] = file
            position = 0
            for topic in record.topics:
                topic_id = topic.topic_id.bytes
                for committed in topic.partitions:
                    partition = partitions.get((topic_id, committed.partition_index))
                    for batch in committed.batches:
                        if partition and appends(batch, partition.high_watermark):
                            row = _batch_row(batch, partition.id, file.id, entry.offset, position)
                            batches.append(row)
                            keys.setdefault(file.id, []).extend(row[:2])
                            partition.high_watermark = batch.assigned_last_offset + 1
                            partition.live_batches += 1
                            partition.live_bytes += batch.byte_size
                            file.live_batches += 1
                            file.live_bytes += batch.byte_size
                            file.unused_since_ms = -1
                            changed[partition.id] = partition
                            if batch.producer_id >= 0:
                                key = (partition.id, batch.producer_id)
                                known = producers.get(key)
                                seen_producers[key] = producers[key] = self._added_to(
                                    known, batch, entry.append_ms
                                )
                        position += 1
        self._insert_files([file for key, file in files.items() if key not in known_files])
        self._update_files([files[key] for key in known_files])
        self._add_batch_keys(keys, {files[key].id for key in known_files})
        self._write(_INSERT_BATCHES, batches)
        self._update_partitions(changed.values())
        self._replace_producers(seen_producers)

    def _added_to(
        self, known: _Producer | None, batch: DisklessCommittedBatch, append_ms: int
    ) -> _Producer:
        """Producer after another batch."""
        added = PRODUCER_BATCH.pack(
            batch.base_sequence,
            batch.last_sequence,
            batch.assigned_base_offset,
            batch.assigned_last_offset,
            batch.log_append_timestamp,
        )
        if known is None:
            return _Producer(batch.producer_epoch, append_ms, added, None)
        if known.epoch == batch.producer_epoch and not self._is_expired(known.last_append_ms):
            added = (known.batches + added)[-PRODUCER_BATCHES_MAX * PRODUCER_BATCH.size :]
        return _Producer(batch.producer_epoch, append_ms, added, known.crc)

    def _is_expired(self, last_append_ms: int) -> bool:
        return self._meta.clock_ms - last_append_ms >= self._producer_expiration_ms

    def _load_partitions(
        self, keys: Iterable[tuple[bytes, int]]
    ) -> dict[tuple[bytes, int], _Partition]:
        found = self._each(_SELECT_PARTITIONS, list(keys))
        return {(row[1], row[2]): _Partition(*row) for row in found}

    def _update_partitions(self, partitions: Iterable[_Partition]) -> None:
        rows = []
        for partition in partitions:
            crc = partition.new_crc()
            self._meta.replace(partition.crc, crc)
            partition.crc = crc
            rows.append(
                (
                    partition.id,
                    partition.log_start_offset,
                    partition.high_watermark,
                    partition.live_batches,
                    partition.live_bytes,
                    crc,
                )
            )
        self._write(_UPDATE_PARTITIONS, rows)

    def _load_producers(self, keys: Iterable[tuple[int, int]]) -> dict[tuple[int, int], _Producer]:
        found = self._each(_SELECT_PRODUCERS, list(keys))
        return {row[:2]: _Producer(*row[2:]) for row in found}

    def _replace_producers(self, producers: dict[tuple[int, int], _Producer]) -> None:
        rows = []
        for key, producer in producers.items():
            values = (*key, producer.epoch, producer.last_append_ms)
            crc = row_crc(producer.batches, *values)
            if producer.crc is None:
                self._meta.add(crc)
            else:
                self._meta.replace(producer.crc, crc)
            rows.append((*values, producer.batches, crc))
        self._written_producers += len(rows)
        self._write("INSERT OR REPLACE INTO producers VALUES {}", rows)

    def _remove_expired_producers(self) -> None:
        """Check the next producers of the pass, and remove the expired ones. `producer` does not return them, so that it
        makes no difference when they are removed."""
        limit = max(PRODUCERS_PER_APPLY, 2 * self._written_producers)
        self._written_producers = 0
        rows = self._all(
            """SELECT partition_id, producer_id, last_append_ms, crc FROM producers
            WHERE (partition_id, producer_id) > (?, ?) ORDER BY partition_id, producer_id LIMIT ?""",
            (*self._checked_producer, limit),
        )
        expired = [row for row in rows if self._is_expired(row[2])]
        for row in expired:
            self._meta.remove(row[3])
        self._write(_DELETE_PRODUCERS, [row[:2] for row in expired])
        if len(rows) == limit:
            self._checked_producer = rows[-1][:2]
        else:
            self._checked_producer = (-1, -1)
            self._next_pass_ms = (
                self._meta.clock_ms + self._producer_expiration_ms // PRODUCER_PASSES
            )

    # --- files ---

    def _load_files(self, run: Iterable[LogEntry]) -> list[_File]:
        keys = [(key,) for key in dict.fromkeys([entry.record.object_key for entry in run])]
        return [_File(*row) for row in self._each(_SELECT_FILES, keys)]

    def _load_file(self, object_key: str) -> _File | None:
        rows = self._all(f"SELECT {_FILE} FROM files WHERE object_key = ?", (object_key,))
        return _File(*rows[0]) if rows else None

    def _new_file(
        self,
        record: DisklessFileCommittedRecord | DisklessFileOwnershipRecord,
        append_ms: int,
        uploader_broker_id: int,
    ) -> _File:
        owners = tuple(record.owner_ids) or (self._coordinator_id,)
        file = _File(
            id=self._next_file_id,
            object_key=record.object_key,
            object_format=record.object_format,
            size=record.file_size,
            uploader_broker_id=uploader_broker_id,
            owner_ids=",".join(map(str, owners)),
            uploaded_ms=upload_time_and_broker(record.object_key, append_ms)[0],
            is_owner=int(owners[0] == self._coordinator_id),
            live_batches=0,
            live_bytes=0,
            unused_since_ms=append_ms,
            crc=0,
        )
        self._next_file_id += 1
        return file

    def _insert_files(self, files: Sequence[_File]) -> None:
        rows = []
        for file in files:
            file.crc = file.new_crc()
            self._meta.add(file.crc)
            rows.append(
                (
                    file.id,
                    file.object_key,
                    file.object_format,
                    file.size,
                    file.uploader_broker_id,
                    file.owner_ids,
                    file.uploaded_ms,
                    file.is_owner,
                    file.live_batches,
                    file.live_bytes,
                    file.unused_since_ms,
                    file.crc,
                )
            )
        self._write(f"INSERT INTO files ({_FILE}) VALUES {{}}", rows)

    def _update_files(self, files: Iterable[_File]) -> None:
        rows = []
        for file in files:
            crc = file.new_crc()
            self._meta.replace(file.crc, crc)
            file.crc = crc
            rows.append(
                (
                    file.id,
                    file.is_owner,
                    file.live_batches,
                    file.live_bytes,
                    file.unused_since_ms,
                    crc,
                )
            )
        self._write(_UPDATE_FILES, rows)

    def _add_batch_keys(self, keys: dict[int, list[int]], known_file_ids: set[int]) -> None:
        """Add partition ids and last offsets of batches to the lists of their files."""
        rows = []
        for file_id, added in keys.items():
            packed = struct.pack(f"<{len(added)}q", *added)
            if file_id in known_file_ids and (earlier := self._batch_keys(file_id)):
                packed = earlier[0] + packed
                self._meta.remove(earlier[1])
            crc = row_crc(packed, file_id)
            self._meta.add(crc)
            rows.append((file_id, packed, crc))
        self._write("INSERT OR REPLACE INTO file_batches VALUES {}", rows)

    def _batch_keys(self, file_id: int) -> tuple[bytes, int] | None:
        """List of the batches of a file, some of which may be removed, and its CRC."""
        rows = self._all("SELECT batch_keys, crc FROM file_batches WHERE file_id = ?", (file_id,))
        return rows[0] if rows else None

    def _own_file(self, record: DisklessFileOwnershipRecord, append_ms: int) -> None:
        file = self._load_file(record.object_key)
        if file is None:
            _, broker_id = upload_time_and_broker(record.object_key, append_ms)
            file = self._new_file(record, append_ms, broker_id)
            file.is_owner = 1
            self._insert_files([file])
            return
        self._release(file)
        file.is_owner = 1
        if not file.live_batches:
            file.unused_since_ms = append_ms
        self._update_files([file])

    def _remove_file(self, object_key: str) -> None:
        file = self._load_file(object_key)
        if file is None:
            return
        self._release(file)
        if file.live_batches:
            self._update_files([file])
            return
        self._meta.remove(file.crc)
        self._all("DELETE FROM files WHERE id = ?", (file.id,))
        if keys := self._batch_keys(file.id):
            self._meta.remove(keys[1])
            self._all("DELETE FROM file_batches WHERE file_id = ?", (file.id,))

    def _release(self, file: _File) -> None:
        """Remove the deleted batches of one file, which `remove_deleted_batches` has not reached yet."""
        if not self._deletions or not file.live_batches:
            return
        last_deletion = (0, 0)
        batches = size_bytes = 0
        for key in self._pairs(file.id):
            deletion = self._all(
                """SELECT id, append_ms FROM deletions WHERE partition_id = ? AND end_offset > ?
                ORDER BY id LIMIT 1""",
                key,
            )
            if deletion and (batch := self._all(_SELECT_BATCH_OF_FILE, (*key, file.id))):
                last_deletion = max(last_deletion, deletion[0])
                batches += 1
                size_bytes += batch[0][0]
                self._all("DELETE FROM batches WHERE partition_id = ? AND last_offset = ?", key)
        if batches:
            file.release(batches, size_bytes, last_deletion[1])

    def _pairs(self, file_id: int) -> list[tuple[int, int]]:
        """Partition ids and last offsets of the batches of a file, some of which may be removed."""
        keys = self._batch_keys(file_id)
        return list(struct.iter_unpack("<qq", keys[0])) if keys else []

    # --- deleted batches ---

    def remove_deleted_batches(self, max_batches: int = 2000) -> bool:
        if self._deletions:
            with self._transaction():
                self._remove(max_batches)
        return bool(self._deletions)

    def _remove(self, max_rows: int) -> None:
        """Remove up to `max_rows` batches and producers of the oldest deletions."""
        left = max_rows
        while left > 0 and self._deletions:
            ((deletion_id, partition_id, end_offset, append_ms, crc),) = self._all(
                "SELECT * FROM deletions ORDER BY id LIMIT 1"
            )
            left -= self._remove_batches(partition_id, end_offset, append_ms, left)
            if left > 0 and end_offset == END:
                left -= self._remove_producers(partition_id, left)
            if left > 0:
                self._all("DELETE FROM deletions WHERE id = ?", (deletion_id,))
                self._meta.remove(crc)
                self._deletions -= 1
                left -= 1

    def _remove_batches(
        self, partition_id: int, end_offset: int, append_ms: int, max_rows: int
    ) -> int:
        """Remove up to `max_rows` batches of a partition below an offset; returns their number."""
        by_file = self._all(
            """SELECT file_id, count(*), sum(byte_size), max(last_offset) FROM (
                SELECT file_id, byte_size, last_offset FROM batches
                WHERE partition_id = ? AND last_offset < ? ORDER BY last_offset LIMIT ?
            ) GROUP BY file_id""",
            (partition_id, end_offset, max_rows),
        )
        if not by_file:
            return 0
        files = {
            row[0]: _File(*row)
            for row in self._each(_SELECT_FILES_BY_ID, [row[:1] for row in by_file])
        }
        if len(files) != len(by_file):
            raise StateDamaged("files of batches are missing")
        for file_id, batches, size_bytes, _ in by_file:
            files[file_id].release(batches, size_bytes, append_ms)
        self._update_files(files.values())
        self._all(
            "DELETE FROM batches WHERE partition_id = ? AND last_offset <= ?",
            (partition_id, max(row[3] for row in by_file)),
        )
        return sum(row[1] for row in by_file)

    def _remove_producers(self, partition_id: int, max_rows: int) -> int:
        ((count, crc_sum, last_id),) = self._all(
            """SELECT count(*), sum(crc), max(producer_id) FROM (
                SELECT crc, producer_id FROM producers WHERE partition_id = ?
                ORDER BY producer_id LIMIT ?
            )""",
            (partition_id, max_rows),
        )
        if count:
            self._meta.remove(crc_sum, count)
            self._all(
                "DELETE FROM producers WHERE partition_id = ? AND producer_id <= ?",
                (partition_id, last_id),
            )
        return int(count)

    # --- partitions and producers ---

    def partition(self, topic_id: UUID, index: int) -> PartitionState | None:
        partition = self._partition(topic_id, index)
        return partition.state() if partition else None

    def _partition(self, topic_id: UUID, index: int) -> _Partition | None:
        rows = self._all(
            f"SELECT {_PARTITION} FROM partitions WHERE topic_id = ? AND partition_index = ?",
            (topic_id.bytes, index),
        )
        return _Partition(*rows[0]) if rows else None

    def partitions(self, topic_id: UUID | None = None) -> Sequence[PartitionState]:
        condition, values = (
            ("", ()) if topic_id is None else ("WHERE topic_id = ?", (topic_id.bytes,))
        )
        rows = self._all(
            f"SELECT {_PARTITION} FROM partitions {condition} ORDER BY topic_id, partition_index",
            values,
        )
        return [_Partition(*row).state() for row in rows]

    def producer(self, topic_id: UUID, index: int, producer_id: int) -> ProducerEntry | None:
        rows = self._all(
            """SELECT epoch, last_append_ms, batches FROM producers
            JOIN partitions ON id = partition_id
            WHERE topic_id = ? AND partition_index = ? AND producer_id = ?""",
            (topic_id.bytes, index, producer_id),
        )
        if not rows or self._is_expired(rows[0][1]):
            return None
        epoch, last_append_ms, packed = rows[0]
        batches = tuple([ProducerBatch(*values) for values in PRODUCER_BATCH.iter_unpack(packed)])
        return ProducerEntry(epoch, batches, last_append_ms)

    # --- batches ---

    def find_batches(
        self, topic_id: UUID, index: int, offset: int, *, max_batches: int, max_bytes: int
    ) -> Sequence[CommittedBatch]:
        partition = self._partition(topic_id, index)
        if partition is None or offset >= partition.high_watermark:
            return []
        found: list[CommittedBatch] = []
        size_bytes = 0
        start = max(offset, partition.log_start_offset)
        limit = max_batches if max_batches > 0 else -1
        with translated():
            rows = self._connection.execute(
                f"{_LIVE_BATCHES} ORDER BY b.last_offset LIMIT ?", (partition.id, start, limit)
            )
            for row in rows:
                size_bytes += row[4]
                if size_bytes > max_bytes and found:
                    break
                found.append(CommittedBatch(*row))
            rows.close()  # an open statement would keep the write-ahead log from being reset
        return found

    def first_batch_from_timestamp(
        self, topic_id: UUID, index: int, timestamp_ms: int
    ) -> CommittedBatch | None:
        return self._live_batch(
            topic_id,
            index,
            "AND b.max_timestamp_ms >= ? ORDER BY b.last_offset LIMIT 1",
            (timestamp_ms,),
        )

    def batch_with_largest_timestamp(self, topic_id: UUID, index: int) -> CommittedBatch | None:
        return self._live_batch(
            topic_id, index, "ORDER BY b.max_timestamp_ms DESC, b.last_offset LIMIT 1"
        )

    def _live_batch(
        self, topic_id: UUID, index: int, rest: str, values: Sequence[int] = ()
    ) -> CommittedBatch | None:
        partition = self._partition(topic_id, index)
        if partition is None:
            return None
        start = partition.log_start_offset
        rows = self._all(f"{_LIVE_BATCHES} {rest}", (partition.id, start, *values))
        return CommittedBatch(*rows[0]) if rows else None

    def expired_before(self, topic_id: UUID, index: int, timestamp_ms: int) -> int:
        partition = self._partition(topic_id, index)
        if partition is None:
            return 0
        start = partition.log_start_offset
        kept = self._all(
            """SELECT last_offset FROM batches WHERE partition_id = ? AND last_offset >= ?
            AND CASE WHEN max_timestamp_ms < 0 THEN log_append_ms ELSE max_timestamp_ms END >= ?
            ORDER BY last_offset LIMIT 1""",
            (partition.id, start, timestamp_ms),
        )
        ((last_expired,),) = self._all(
            """SELECT max(last_offset) FROM batches
            WHERE partition_id = ? AND last_offset >= ? AND last_offset < ?""",
            (partition.id, start, kept[0][0] if kept else END),
        )
        return start if last_expired is None else int(last_expired) + 1

    def oversized_before(self, topic_id: UUID, index: int, max_bytes: int) -> int:
        partition = self._partition(topic_id, index)
        if partition is None:
            return 0
        start, surplus_bytes = partition.log_start_offset, partition.live_bytes - max_bytes
        if max_bytes < 0 or surplus_bytes < 0:
            return start
        with translated():
            rows = self._connection.execute(
                """SELECT last_offset, byte_size FROM batches
                WHERE partition_id = ? AND last_offset >= ? ORDER BY last_offset""",
                (partition.id, start),
            )
            for last_offset, byte_size in rows:
                surplus_bytes -= byte_size
                if surplus_bytes < 0:
                    break
                start = last_offset + 1
            rows.close()
        return start

    # --- queries of files ---

    def file(self, object_key: str) -> FileState | None:
        file = self._load_file(object_key)
        return file.state() if file else None

    def file_batches(self, object_key: str) -> Sequence[FileBatch]:
        file = self._load_file(object_key)
        if file is None:
            return []
        found = [
            FileBatch(UUID(bytes=row[0]), row[1], CommittedBatch(*row[3:]))
            for row in self._each(_SELECT_LIVE_BATCHES_BY_KEY, self._pairs(file.id))
            if row[2] == file.id
        ]
        return sorted(found, key=lambda each: (each.batch.byte_offset, each.batch.batch_id))

    def files(self, after: str = "", limit: int = 1000) -> Sequence[FileState]:
        return self._file_states(
            "WHERE object_key > ? ORDER BY object_key LIMIT ?", (after, max(limit, 0))
        )

    def unused_files(
        self, after: str = "", limit: int = 1000, *, is_owner: bool = True
    ) -> Sequence[FileState]:
        return self._file_states(
            """WHERE live_batches = 0 AND is_owner = ? AND object_key > ?
            ORDER BY object_key LIMIT ?""",
            (int(is_owner), after, max(limit, 0)),
        )

    def _file_states(self, rest: str, values: Sequence[Any] = ()) -> list[FileState]:
        return [
            _File(*row).state() for row in self._all(f"SELECT {_FILE} FROM files {rest}", values)
        ]

    def oldest_file_ms(self) -> int | None:
        ((oldest_ms,),) = self._all("SELECT min(uploaded_ms) FROM files")
        return None if oldest_ms is None else int(oldest_ms)

    def counts(self) -> StateCounts:
        ((partitions, batches, live_bytes),) = self._all(
            """SELECT count(*), coalesce(sum(live_batches), 0), coalesce(sum(live_bytes), 0)
            FROM partitions"""
        )
        ((files,),) = self._all("SELECT count(*) FROM files")
        to_delete = to_hand_over = 0
        for owner_ids, unused in self._all(
            """SELECT owner_ids, count(*) FROM files WHERE live_batches = 0 AND is_owner = 1
            GROUP BY owner_ids"""
        ):
            if int(owner_ids.rpartition(",")[2]) == self._coordinator_id:
                to_delete += unused
            else:
                to_hand_over += unused
        ((pages,),) = self._all("PRAGMA page_count")
        return StateCounts(
            partitions=partitions,
            batches=batches,
            live_bytes=live_bytes,
            files=files,
            files_to_hand_over=to_hand_over,
            files_to_delete=to_delete,
            state_bytes=pages * PAGE_BYTES,
        )


_INSERT_BATCHES = """INSERT INTO batches (partition_id, last_offset, base_offset, batch_id, file_id,
    byte_offset, byte_size, magic, log_append_ms, max_timestamp_ms, timestamp_type) VALUES {}"""
_SELECT_PARTITIONS = f"""WITH keys (t, i) AS (VALUES {{}})
    SELECT {_PARTITION} FROM keys CROSS JOIN partitions ON topic_id = t AND partition_index = i"""
_UPDATE_PARTITIONS = """WITH changed (i, s, h, n, b, c) AS (VALUES {}) UPDATE partitions
    SET log_start_offset = s, high_watermark = h, live_batches = n, live_bytes = b, crc = c
    FROM changed WHERE partitions.id = i"""
_SELECT_PRODUCERS = """WITH keys (p, i) AS (VALUES {})
    SELECT partition_id, producer_id, epoch, last_append_ms, batches, crc
    FROM keys CROSS JOIN producers ON partition_id = p AND producer_id = i"""
_DELETE_PRODUCERS = """WITH keys (p, i) AS (VALUES {})
    DELETE FROM producers WHERE (partition_id, producer_id) IN (SELECT p, i FROM keys)"""
_SELECT_FILES = (
    f"WITH keys (k) AS (VALUES {{}}) SELECT {_FILE} FROM keys CROSS JOIN files ON object_key = k"
)
_SELECT_FILES_BY_ID = (
    f"WITH keys (k) AS (VALUES {{}}) SELECT {_FILE} FROM keys CROSS JOIN files ON id = k"
)
_UPDATE_FILES = """WITH changed (i, o, n, b, u, c) AS (VALUES {}) UPDATE files
    SET is_owner = o, live_batches = n, live_bytes = b, unused_since_ms = u, crc = c
    FROM changed WHERE files.id = i"""
_SELECT_BATCH_OF_FILE = (
    "SELECT byte_size FROM batches WHERE partition_id = ? AND last_offset = ? AND file_id = ?"
)
_SELECT_LIVE_BATCHES_BY_KEY = f"""WITH keys (p, l) AS (VALUES {{}})
    SELECT topic_id, partition_index, b.file_id, {_BATCH} FROM keys
    CROSS JOIN batches b ON b.partition_id = p AND b.last_offset = l
    CROSS JOIN partitions q ON q.id = p AND b.last_offset >= q.log_start_offset
    CROSS JOIN files f ON f.id = b.file_id"""


@cache
def _with_rows(statement: str, rows: int, columns: int) -> str:
    row = "(" + ",".join("?" * columns) + ")"
    return statement.replace("{}", ",".join([row] * rows))


def _is_commit(entry: LogEntry) -> bool:
    return isinstance(entry.record, DisklessFileCommittedRecord)


def _partitions_of(run: Iterable[LogEntry]) -> dict[tuple[bytes, int], None]:
    return {
        (topic.topic_id.bytes, partition.partition_index): None
        for entry in run
        for topic in entry.record.topics
        for partition in topic.partitions
    }


def _producers_of(
    run: Iterable[LogEntry], partitions: dict[tuple[bytes, int], _Partition]
) -> dict[tuple[int, int], None]:
    return {
        (known.id, batch.producer_id): None
        for entry in run
        for topic in entry.record.topics
        for partition in topic.partitions
        if (known := partitions.get((topic.topic_id.bytes, partition.partition_index)))
        for batch in partition.batches
        if batch.producer_id >= 0
    }


def _batch_row(
    batch: DisklessCommittedBatch, partition_id: int, file_id: int, offset: int, position: int
) -> tuple[int, ...]:
    return (
        partition_id,
        batch.assigned_last_offset,
        batch.assigned_base_offset,
        batch_id(offset, position),
        file_id,
        batch.byte_offset,
        batch.byte_size,
        batch.magic,
        batch.log_append_timestamp,
        max_timestamp_ms(
            batch.batch_max_timestamp, batch.log_append_timestamp, batch.timestamp_type
        ),
        batch.timestamp_type,
    )


@contextmanager
def translated() -> Iterator[None]:
    """Raise OSError or StateDamaged in place of the errors of SQLite."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise _translation_of(error) from error


def _translation_of(error: sqlite3.DatabaseError) -> Exception:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None and not isinstance(error, sqlite3.OperationalError):
        return error  # this module has called the library wrongly
    number = _IO_ERRORS.get((code or 0) & 0xFF)
    if number is not None:
        return OSError(number, f"SQLite: {error}")
    return StateDamaged(str(error))
