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


def stock(*offsets: int) -> OffsetsJson:
    """As Spark's own source has them, and checkpoints had before topics' ids were in them."""
    return {"t": {str(number): offset for number, offset in enumerate(offsets)}}


def at(*offsets: int, id: UUID = TOPIC_ID) -> OffsetsJson:
    return {"t": {**stock(*offsets)["t"], "topicId": uuid_to_text(id)}}


def first_end(begin: list[int], *offsets: int, id: UUID = TOPIC_ID) -> OffsetsJson:
    """Where a stream's first batch ends."""
    began = {str(number): offset for number, offset in enumerate(begin)}
    return {"t": {**at(*offsets, id=id)["t"], "begin": began}}


def offsets(reader: StreamReader, start: Any, end: Any) -> list[tuple[int, int]]:
    """What a batch has: partition and offset."""
    rows: list[tuple[int, int]] = []
    for task in reader.partitions(start, end):
        for table in reader.read(task):
            columns = table.to_pydict()
            rows += zip(columns["partition"], columns["offset"], strict=True)
    return sorted(rows)
