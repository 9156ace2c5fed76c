"""What tasks of `export` do where the records are Parquet as they are: from columns to files, in one process.

Spark would have each record as a row in its JVM between the two, which takes four times what all else takes. A
task writes where nobody looks, files of names that no other attempt has; the driver moves those of the
attempts that count (`attempts.py`).

A reader finds what Spark would have written: a directory for each topic and date, in UTC, and the same columns.
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
    from odradek.pipeline.stream import StreamReader
    from odradek.pipeline.table_reader import ReadTask

ROW_GROUP_BYTES = 64 << 20
"""Of Arrow's memory."""
ROOM_BYTES = 2 * ROW_GROUP_BYTES
"""For all directories that a task writes to: beyond that the fullest one gets a row group."""
FILES_AT_ONCE = 40
"""That a task has open. A directory that comes again after that many others gets another file."""
CODECS = {
    "snappy": "snappy",
    "gzip": "gzip",
    "zstd": "zstd",
    "none": "none",
    "uncompressed": "none",
}
"""By Spark's names for them, those that mean the same here."""
DAY_US, HOUR_US = 86_400_000_000, 3_600_000_000
WITHOUT_DICTIONARY = ("offset", "timestamp")
"""Columns whose values hardly ever come twice."""
LEAVES = {"headers": ("headers.list.element.key", "headers.list.element.value")}
"""What Parquet has of a column that is not one of its own."""
UTC = ("UTC", "Etc/UTC", "GMT", "Z")
"""Time zones in which a date is a number of days."""


@value_class
class WrittenFile:
    """A file that a task has written: where it is, the directory in the table that it is meant for, and how many
    records it has."""

    file: str
    directory: str
    records: int


@value_class
class StagingSettings:
    """How tasks write: into a local directory that is there, by date or by date and hour in UTC, in a codec of
    CODECS. Once the directory is gone nobody makes it again."""

    directory: str
    partitioning: tuple[str, ...]
    codec: str


def write_task(reader: StreamReader, task: ReadTask, staging: StagingSettings) -> list[WrittenFile]:
    """All that the task reads. Raises PipelineError; with GAP_FOUND at a gap."""
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
    """One for each directory of the table, unless there are very many. Whoever leaves by an error leaves none."""

    def __init__(self, staging: StagingSettings) -> None:
        self._staging = staging
        self._files: dict[str, _File] = {}
        """Those that are open, the one that was written to last at the end."""
        self._written: list[WrittenFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            self._remove()

    def add(self, table: pa.RecordBatch) -> None:
        """`table` has records of one topic."""
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
        while sum(each.waiting_bytes for each in self._files.values()) > ROOM_BYTES:
            max(self._files.values(), key=lambda each: each.waiting_bytes).flush()

    def end(self) -> list[WrittenFile]:
        """They are whole."""
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
        """It waits in memory of its own: a part of a table keeps all of it, and a decoder's columns have room for
        what they might have come to, which it fills again once they are gone."""
        part = pa.ipc.read_record_batch(part.serialize(), part.schema)
        self.records += part.num_rows
        self.waiting_bytes += part.nbytes
        self._waiting.append(part)
        if self.waiting_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """What waits is a row group."""
        if not self._waiting:
            return
        waiting, self._waiting, self.waiting_bytes = self._waiting, [], 0
        table = pa.Table.from_batches(waiting)
        self._writer.write_table(table, row_group_size=table.num_rows)

    def end(self) -> None:
        """It is whole, and on the disk: the batch that it is of may count as done next."""
        self.flush()
        self.close()
        sync_file(PurePosixPath(self.path))

    def close(self) -> None:
        self._writer.close()


def _by_time(
    table: pa.RecordBatch, staging: StagingSettings
) -> Iterable[tuple[str, pa.RecordBatch]]:
    """The directories of the records' dates, and hours if so wanted, below the topic's; nearly always there is one."""
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
    sign = "+" if year > 9999 else "-" if year < 0 else ""  # as Java has them
    found = f"/date={sign}{abs(year):04}{str(day)[-len('-01-31') :]}"
    return f"{found}/hour={micros % DAY_US // HOUR_US}" if "hour" in staging.partitioning else found
