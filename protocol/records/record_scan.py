"""Scans the records of a batch: validates their structure and summarizes their timestamps, keys and offsets.

A broker scans each batch that a client produces, so the scan decodes only the lengths and the two deltas of a
record and creates no objects. It is an extension module in C. An installation without a C compiler does not have
the extension and uses the function in Python, which takes about a hundred times as long.
"""

from __future__ import annotations

from collections.abc import Callable

from odradek.protocol.errors import CorruptBatch
from odradek.protocol.records.records import read_varint, read_varlong
from odradek.seams.files import Buffer

RecordScan = tuple[int, int, int, bool]
"""Largest timestamp in ms (at least -1, as in Kafka); smallest timestamp of records that have one (2^63 - 1 if none
has); number of records without a key; whether the offset deltas are 0, 1, 2, …"""

_INT64_MAX = 2**63 - 1


def scan_records_in_python(body: Buffer, record_count: int, base_timestamp: int) -> RecordScan:
    """Scan the `record_count` decompressed records in `body`.

    Checks what Kafka's DefaultRecord checks: the length of each record, key, value and header, and that nothing
    follows the last record. Raises ValueError with the index of the invalid record.
    """
    data = bytes(body)
    position = 0
    latest, earliest = -1, _INT64_MAX
    keyless = 0
    consecutive = True
    for index in range(record_count):
        try:
            size, start = read_varint(data, position)
        except (IndexError, CorruptBatch):
            size = start = 0
        position = start + size
        if size <= 0 or position > len(data):
            raise ValueError(f"record {index} of {record_count} is cut off")
        try:
            timestamp_delta, offset_delta, has_key = _scan_record(data[start:position])
        except (IndexError, CorruptBatch):
            raise ValueError(f"record {index} of {record_count} is malformed") from None
        keyless += not has_key
        consecutive = consecutive and offset_delta == index
        timestamp = (base_timestamp + timestamp_delta + 2**63) % 2**64 - 2**63  # wraps, as in Java
        latest = max(latest, timestamp)
        if timestamp != -1:
            earliest = min(earliest, timestamp)
    if position < len(data):
        raise ValueError(f"{len(data) - position} bytes after the last record")
    return latest, earliest, keyless, consecutive


def _scan_record(record: bytes) -> tuple[int, int, bool]:
    """Timestamp delta, offset delta and whether there is a key. Raises IndexError or CorruptBatch."""
    timestamp_delta, position = read_varlong(record, 1)
    offset_delta, position = read_varint(record, position)
    key_length, position = _skip_bytes(record, position)
    _, position = _skip_bytes(record, position)
    header_count, position = read_varint(record, position)
    if not 0 <= header_count <= len(record) - position:
        raise CorruptBatch
    for _ in range(header_count):
        length, position = _skip_bytes(record, position)
        if length < 0:
            raise CorruptBatch
        _, position = _skip_bytes(record, position)
    if position != len(record):
        raise CorruptBatch
    return timestamp_delta, offset_delta, key_length >= 0


def _skip_bytes(record: bytes, position: int) -> tuple[int, int]:
    """Length (negative: null, as in Kafka) and the position after the bytes. Raises IndexError or CorruptBatch."""
    length, position = read_varint(record, position)
    if length > 0:
        position += length
        if position > len(record):
            raise CorruptBatch
    return length, position


def _load() -> tuple[Callable[[Buffer, int, int], RecordScan], bool]:
    try:
        from odradek.protocol.records._record_scan import scan_records as compiled
    except ImportError:
        return scan_records_in_python, False
    return compiled, True


scan_records, is_compiled = _load()
"""`scan_records_in_python` or its equivalent in C, and whether it is the latter."""
