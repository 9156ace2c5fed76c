"""Stream readers and the offsets that they report."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from odradek.pipeline.options import parse_options
from odradek.pipeline.stream_offsets import OffsetsJson
from odradek.pipeline.stream_reader import StreamReader
from odradek.protocol.uuids import uuid_to_text
from tests.pipeline.virtual_leader import TOPIC_ID
from tests.support.virtual_reading import FULL


def stream(**options: Any) -> StreamReader:
    given = {"kafka.bootstrap.servers": "unused:9092", "subscribe": "t", **options}
    named = {name.lower(): str(value) for name, value in given.items()}
    return StreamReader(parse_options(named, streaming=True), FULL)


def spark_offsets(*offsets: int) -> OffsetsJson:
    """Return offsets as in Spark's own source, and as in earlier checkpoints without topic ids."""
    return {"t": {str(number): offset for number, offset in enumerate(offsets)}}


def at(*offsets: int, id: UUID = TOPIC_ID) -> OffsetsJson:
    return {"t": {**spark_offsets(*offsets)["t"], "topicId": uuid_to_text(id)}}


def first_end(begin: list[int], *offsets: int, id: UUID = TOPIC_ID) -> OffsetsJson:
    """Return the end of a stream's first batch."""
    began = {str(number): offset for number, offset in enumerate(begin)}
    return {"t": {**at(*offsets, id=id)["t"], "begin": began}}


def offsets(reader: StreamReader, start: Any, end: Any) -> list[tuple[int, int]]:
    """Return the partitions and offsets of a batch."""
    rows: list[tuple[int, int]] = []
    for task in reader.partitions(start, end):
        for table in reader.read(task):
            columns = table.to_pydict()
            rows += zip(columns["partition"], columns["offset"], strict=True)
    return sorted(rows)
