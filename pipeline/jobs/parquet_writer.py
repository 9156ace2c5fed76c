"""Writes Parquet files in Spark's Python tasks, from Arrow columns.

With Spark's own writer each record becomes a row in the JVM, which takes four times as long as everything else. A
task writes files with unique names into a staging directory; the driver moves the files of attempts that count
(`batch_attempts.py`).

The result is what Spark would write: a directory for each topic and date, in UTC, and the same columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from odradek.pipeline.decoding.schema import GAP
from odradek.pipeline.errors import GAP_FOUND, FilesUnavailable, UnreadableSegment
from odradek.pipeline.jobs.hadoop_files import sync_file
from odradek.seams.entropy import RealEntropy
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from odradek.pipeline.stream_reader import StreamReader
    from odradek.pipeline.table_reader import ReadTask

ROW_GROUP_BYTES = 64 << 20
"""Bytes of Arrow memory for a row group."""
HEADROOM_BYTES = 2 * ROW_GROUP_BYTES
"""Maximum bytes of Arrow memory for all directories of a task; beyond it the largest one is written as a row group.
"""
FILES_AT_ONCE = 40
"""Maximum number of open files of a task. A directory that was closed for others gets another file."""
CODECS = {
    "snappy": "snappy",
    "gzip": "gzip",
    "zstd": "zstd",
    "none": "none",
    "uncompressed": "none",
}
"""Parquet codecs by Spark's names, those with the same meaning here."""
DAY_US, HOUR_US = 86_400_000_000, 3_600_000_000
WITHOUT_DICTIONARY = ("offset", "timestamp")
"""Columns with few repeated values."""
LEAVES = {"headers": ("headers.list.element.key", "headers.list.element.value")}
"""Parquet leaf columns of nested columns."""
UTC = ("UTC", "Etc/UTC", "GMT", "Z")
"""Time zones in which a date is a number of whole days since 1970."""


@value_class
class WrittenFile:
    """A file that a task has written: its path, its target directory in the table, and its number of records."""

    file: str
    directory: str
    records: int


@value_class
class StagingSettings:
    """How tasks write: an existing local directory, partitioned by date, or date and hour, in UTC, with a codec of
    CODECS. If the directory is removed, it is not created again.
    """

    directory: str
    partitioning: tuple[str, ...]
    codec: str


def write_task(reader: StreamReader, task: ReadTask, staging: StagingSettings) -> list[WrittenFile]:
    """Write everything that the task reads. Raises PipelineError, with GAP_FOUND at a gap."""
    try:
        with StagedFiles(staging) as files:
            for table in reader.read(task):
                files.add(_without_gaps(table))
            return files.end()
    except OSError as error:
        raise FilesUnavailable(f"{staging.directory} could not be written: {error}") from error


def _without_gaps(table: pa.RecordBatch) -> pa.RecordBatch:
    if GAP not in table.schema.names:
        return table
    gaps = table.column(GAP)
    if gaps.null_count < len(gaps):
        raise UnreadableSegment(f"{GAP_FOUND} {gaps[0]['reason'].as_py()}")
    return table.drop_columns([GAP])


class StagedFiles:
    """Files of one task: one for each directory of the table, or more if there are many directories. They are
    removed if the block ends with an error.
    """

    def __init__(self, staging: StagingSettings) -> None:
        self._staging = staging
        self._files: dict[str, _File] = {}
        """Open files, least recently written first."""
        self._written: list[WrittenFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            self._remove()

    def add(self, table: pa.RecordBatch) -> None:
        """Add records of one topic."""
        if not table.num_rows:
            return
        topic = table.column("topic")[0].as_py()
        rest = table.drop_columns(["topic"])
        for directory, part in _by_time(rest, self._staging):
            place = f"topic={topic}{directory}"
            file = self._files.pop(place, None)
            if file is None:
                if len(self._files) == FILES_AT_ONCE:
                    self._end(next(iter(self._files)))
                file = _File(self._staging, part.schema)
            self._files[place] = file
            file.add(part)
        while sum(each.waiting_bytes for each in self._files.values()) > HEADROOM_BYTES:
            max(self._files.values(), key=lambda each: each.waiting_bytes).flush()

    def end(self) -> list[WrittenFile]:
        """Complete all files and return them."""
        for place in list(self._files):
            self._end(place)
        return self._written

    def _end(self, place: str) -> None:
        file = self._files[place]
        file.end()
        del self._files[place]
        self._written.append(WrittenFile(file.path, place, file.records))

    def _remove(self) -> None:
        for each in self._files.values():
            with suppress(OSError):
                each.close()
        for path in (
            *(each.path for each in self._files.values()),
            *(each.file for each in self._written),
        ):
            Path(path).unlink(missing_ok=True)


class _File:
    def __init__(self, staging: StagingSettings, schema: pa.Schema) -> None:
        name = f"part-{RealEntropy().uuid()}.{staging.codec}.parquet"
        self.path = str(Path(staging.directory) / name)
        self.records = 0
        self.waiting_bytes = 0
        self._waiting: list[pa.RecordBatch] = []
        self._writer: Any = pq.ParquetWriter(
            self.path,
            schema,
            compression=CODECS[staging.codec],
            use_dictionary=[
                leaf
                for name in schema.names
                if name not in WITHOUT_DICTIONARY
                for leaf in LEAVES.get(name, (name,))
            ],
            coerce_timestamps="us",
        )

    def add(self, part: pa.RecordBatch) -> None:
        """Copy a part into memory of its own, because a slice keeps the whole table in memory, and the decoder
        reuses the memory of its columns once they are freed.
        """
        part = pa.ipc.read_record_batch(part.serialize(), part.schema)
        self.records += part.num_rows
        self.waiting_bytes += part.nbytes
        self._waiting.append(part)
        if self.waiting_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the waiting parts as one row group."""
        if not self._waiting:
            return
        waiting, self._waiting, self.waiting_bytes = self._waiting, [], 0
        table = pa.Table.from_batches(waiting)
        self._writer.write_table(table, row_group_size=table.num_rows)

    def end(self) -> None:
        """Complete and sync the file, since the batch may be committed next."""
        self.flush()
        self.close()
        sync_file(PurePosixPath(self.path))

    def close(self) -> None:
        self._writer.close()


def _by_time(
    table: pa.RecordBatch, staging: StagingSettings
) -> Iterable[tuple[str, pa.RecordBatch]]:
    """Split records by the directories of their dates, and hours if configured, below the topic's; nearly always
    there is one.
    """
    if not staging.partitioning:
        return [("", table)]
    micros = table.column("timestamp").cast(pa.int64()).to_numpy(zero_copy_only=False)
    step = HOUR_US if "hour" in staging.partitioning else DAY_US
    slots = micros // step
    if (slots != slots[0]).any():
        order = np.argsort(slots, kind="stable")
        slots, table = slots[order], table.take(pa.array(order))
    begins = [0, *(np.flatnonzero(np.diff(slots)) + 1).tolist(), len(slots)]
    return [
        (_directory(int(slots[begin]) * step, staging), table.slice(begin, end - begin))
        for begin, end in pairwise(begins)
    ]


def _directory(micros: int, staging: StagingSettings) -> str:
    day = np.datetime64(micros // DAY_US, "D")
    year = int(day.astype("M8[Y]").astype(int)) + 1970
    sign = "+" if year > 9999 else "-" if year < 0 else ""  # sign as in Java's format
    found = f"/date={sign}{abs(year):04}{str(day)[-len('-01-31') :]}"
    return f"{found}/hour={micros % DAY_US // HOUR_US}" if "hour" in staging.partitioning else found
