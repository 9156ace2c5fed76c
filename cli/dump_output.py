"""Output of `odradek dump`: tables, or lines of JSON.

A row is a kind and its fields, with Kafka's names and JSON values. JSON output has every field; tables
have the most important ones, in columns of fixed width, so that a segment is printed while it is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import IO, Any, NamedTuple, Protocol

from odradek.cli.dump_files import DumpFile

Fields = Mapping[str, Any]


class DumpRow(NamedTuple):
    kind: str
    fields: dict[str, Any]


class FileProblem(NamedTuple):
    """Problem in a file, with its position in bytes."""

    text: str
    position: int | None = None


class DumpOutput(Protocol):
    def begin(self, found: DumpFile, size_bytes: int) -> None: ...

    def row(self, row: DumpRow) -> None: ...

    def problem(self, found: DumpFile, problem: FileProblem) -> None: ...

    def end(self, found: DumpFile, rows: int, problems: int, *, verified: bool) -> None: ...


class JsonDumpOutput:
    """Writes one JSON object per line: `type`, `file`, and the fields of the row."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._file = ""
        encoding = getattr(out, "encoding", None) or "utf-8"
        self._ascii_only = encoding.lower() not in ("utf-8", "utf8")

    def begin(self, found: DumpFile, size_bytes: int) -> None:
        self._file = str(found.path)
        self._line("file", {"fileType": found.kind.value, "sizeBytes": size_bytes})

    def row(self, row: DumpRow) -> None:
        self._line(row.kind, row.fields)

    def problem(self, found: DumpFile, problem: FileProblem) -> None:
        fields: dict[str, Any] = {"problem": problem.text}
        if problem.position is not None:
            fields["position"] = problem.position
        self._line("problem", fields)

    def end(self, found: DumpFile, rows: int, problems: int, *, verified: bool) -> None:
        if verified:
            self._line("verified", {"problems": problems})

    def _line(self, kind: str, fields: Fields) -> None:
        line = {"type": kind, "file": self._file, **fields}
        text = json.dumps(line, ensure_ascii=self._ascii_only, separators=(",", ":"))
        self._out.write(f"{text}\n")


class DumpColumn(NamedTuple):
    title: str
    width: int
    """Width in characters; negative: left-aligned."""
    show: Callable[[Fields], str]


def _field(name: str) -> Callable[[Fields], str]:
    return lambda fields: str(fields[name])


def time_text(timestamp_ms: int) -> str:
    """Format a timestamp in UTC, to the ms; '-' for none, the number if it is out of range."""
    if timestamp_ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"


def _time(name: str) -> Callable[[Fields], str]:
    return lambda fields: time_text(fields[name])


def _producer(fields: Fields) -> str:
    if fields["producerId"] < 0:
        return "-"
    return f"{fields['producerId']}/{fields['producerEpoch']}:{fields['baseSequence']}"


def _flags(fields: Fields) -> str:
    shown = [
        name
        for name, field in (("txn", "isTransactional"), ("control", "isControl"))
        if fields[field]
    ]
    if not fields.get("isValid", True):
        shown.append("CORRUPT")
    return ",".join(shown) or "-"


TABLES: Mapping[str, Sequence[DumpColumn]] = {
    "batch": (
        DumpColumn("offsets", -23, lambda each: f"{each['baseOffset']}..{each['lastOffset']}"),
        DumpColumn("records", 8, _field("count")),
        DumpColumn("position", 11, _field("position")),
        DumpColumn("bytes", 9, _field("sizeInBytes")),
        DumpColumn("epoch", 6, _field("partitionLeaderEpoch")),
        DumpColumn("codec", -6, _field("compressCodec")),
        DumpColumn("max timestamp", -24, _time("maxTimestamp")),
        DumpColumn("producer:sequence", -18, _producer),
        DumpColumn("flags", -5, _flags),
    ),
    "offsetIndexEntry": (
        DumpColumn("offset", -20, _field("offset")),
        DumpColumn("position", 11, _field("position")),
    ),
    "timeIndexEntry": (
        DumpColumn("timestamp", -24, _time("timestamp")),
        DumpColumn("offset", 20, _field("offset")),
    ),
    "abortedTransaction": (
        DumpColumn("producer", 10, _field("producerId")),
        DumpColumn("first offset", 14, _field("firstOffset")),
        DumpColumn("last offset", 14, _field("lastOffset")),
        DumpColumn("last stable offset", 18, _field("lastStableOffset")),
    ),
    "producer": (
        DumpColumn("producer", 10, _field("producerId")),
        DumpColumn("epoch", 6, _field("producerEpoch")),
        DumpColumn(
            "sequences", -23, lambda each: f"{each['firstSequence']}..{each['lastSequence']}"
        ),
        DumpColumn("last offset", 14, _field("lastOffset")),
        DumpColumn("last timestamp", -24, _time("lastTimestamp")),
        DumpColumn("coordinator epoch", 17, _field("coordinatorEpoch")),
        DumpColumn("transaction start", 17, _field("currentTxnFirstOffset")),
    ),
    "epoch": (
        DumpColumn("epoch", 8, _field("epoch")),
        DumpColumn("start offset", 20, _field("startOffset")),
    ),
    "checkpoint": (
        DumpColumn("topic", -40, _field("topic")),
        DumpColumn("partition", 10, _field("partition")),
        DumpColumn("offset", 20, _field("offset")),
    ),
    "remoteSegment": (
        DumpColumn("offsets", -23, lambda each: f"{each['startOffset']}..{each['endOffset']}"),
        DumpColumn("segment", -22, _field("segmentId")),
        DumpColumn("bytes", 11, _field("sizeInBytes")),
        DumpColumn("max timestamp", -24, _time("maxTimestamp")),
        DumpColumn("epochs", -8, lambda each: ",".join(each["leaderEpochs"])),
        DumpColumn("state", -24, _field("state")),
    ),
    "remoteMetadataOffset": (
        DumpColumn("partition", 10, _field("partition")),
        DumpColumn("offset", 20, _field("offset")),
    ),
    "remoteMetadataTopic": (DumpColumn("topic id", -22, _field("topicId")),),
}


class TextDumpOutput:
    """Writes a heading and a table per file; with `only_problems` no rows."""

    def __init__(self, out: IO[str], *, only_problems: bool = False) -> None:
        self._out = out
        self._only_problems = only_problems
        self._table: Sequence[DumpColumn] | None = None
        self._files = 0

    def begin(self, found: DumpFile, size_bytes: int) -> None:
        self._table = None
        if not self._only_problems:
            gap = "\n" if self._files else ""
            self._out.write(f"{gap}{found.path}: {found.kind.value}, {size_bytes} bytes\n")
        self._files += 1

    def row(self, row: DumpRow) -> None:
        if self._only_problems:
            return
        if row.kind == "record":
            self._out.write(record_text(row.fields))
        elif row.kind in TABLES:
            self._table_row(TABLES[row.kind], row.fields)
        else:
            for name, value in row.fields.items():
                self._out.write(f"  {name}: {_plain(value)}\n")

    def _table_row(self, table: Sequence[DumpColumn], fields: Fields) -> None:
        if self._table is not table:
            self._table = table
            self._cells(table, [column.title for column in table])
        self._cells(table, [column.show(fields) for column in table])

    def _cells(self, table: Sequence[DumpColumn], cells: Sequence[str]) -> None:
        shown = [
            cell.rjust(column.width) if column.width > 0 else cell.ljust(-column.width)
            for column, cell in zip(table, cells, strict=True)
        ]
        self._out.write(f"  {'  '.join(shown).rstrip()}\n")

    def problem(self, found: DumpFile, problem: FileProblem) -> None:
        where = f" at position {problem.position}" if problem.position is not None else ""
        lead = f"{found.path}: " if self._only_problems else "  PROBLEM: "
        self._out.write(f"{lead}{problem.text}{where}\n")

    def end(self, found: DumpFile, rows: int, problems: int, *, verified: bool) -> None:
        if verified and not problems and self._only_problems:
            self._out.write(f"{found.path}: ok ({found.kind.value}, {rows} entries)\n")
        elif not self._only_problems and not rows and not problems:
            self._out.write("  empty\n")


def record_text(fields: Fields) -> str:
    """Format a record, which is printed below its batch."""
    parts = [f"    | {fields['offset']}", time_text(fields["timestamp"])]
    if "controlType" in fields:
        parts.append(fields["controlType"])
        parts.append(_plain(fields["value"]))
    else:
        parts += [f"{name}: {part_text(fields, name)}" for name in ("key", "value")]
    if fields.get("headers"):
        shown = (
            f"{part_text(each, 'key')}={part_text(each, 'value')}" for each in fields["headers"]
        )
        parts.append(f"headers: {' '.join(shown)}")
    return "  ".join(parts) + "\n"


def part_text(fields: Fields, name: str) -> str:
    """Format a decoded key or value, or its size if it is not decoded."""
    if f"{name}Base64" in fields:
        return f"base64:{fields[f'{name}Base64']}"
    if name in fields:
        return _plain(fields[name])
    size = fields[f"{name}Size"]
    return "null" if size < 0 else f"{size} bytes"


def _plain(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return value if value.isprintable() else json.dumps(value, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False)
