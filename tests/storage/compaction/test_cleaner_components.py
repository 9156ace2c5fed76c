"""Parts of the log cleaner without I/O: dirty range, segment grouping, offset map, key hashes,
varints, detection of corrupt batches."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np
import pytest

from odradek.protocol.errors import CorruptBatch, KafkaError
from odradek.protocol.records.records import Record, build_batch
from odradek.seams.files import Path
from odradek.storage.compaction.dirty_range import DirtyRange, LogBounds, find_dirty_range
from odradek.storage.compaction.key_hash import LONG, KeyHash
from odradek.storage.compaction.offset_map import OffsetMap
from odradek.storage.compaction.record_columns import PAD, BatchPage, read_pages
from odradek.storage.compaction.segment_grouping import SEGMENTS_MAX, SegmentSizes, group_segments
from odradek.storage.compaction.varint_columns import encode, varints
from odradek.storage.log.config import LogConfig
from odradek.storage.log.offset_index import RELATIVE_MAX
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_files import VirtualFiles

HOUR_MS = 3_600_000
NOW_MS = 100 * HOUR_MS


@dataclass
class Sealed:
    base_offset: int
    size: int
    age_hours: int = 50

    @property
    def max_timestamp(self) -> int:
        return NOW_MS - self.age_hours * HOUR_MS

    def first_batch_timestamp(self) -> int:
        return self.max_timestamp - HOUR_MS


SEGMENTS = [
    Sealed(0, 100),
    Sealed(10, 100),
    Sealed(20, 100, 3),
    Sealed(30, 100, 1),
    Sealed(40, 7, 0),
]
ALL = LogBounds(
    start_offset=0, last_stable_offset=45, durable_offset=40, end_offset=45, cleaned_to=None
)
CONFIG = LogConfig(cleanup_policy=("compact",))


def dirty_range_of(
    bounds: LogBounds = ALL, config: LogConfig = CONFIG
) -> tuple[int, int, int, int]:
    found = find_dirty_range(SEGMENTS, bounds, config, NOW_MS)
    return found.first_dirty_offset, found.end_offset, found.clean_bytes, found.dirty_bytes


def test_log_without_checkpoint_is_dirty_up_to_active_segment() -> None:
    assert dirty_range_of() == (0, 40, 0, 400)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"cleaned_to": 20}, (20, 40, 200, 200)),
        ({"cleaned_to": 25}, (25, 40, 300, 200)),  # the offset map was full within a segment
        ({"cleaned_to": 40}, (40, 40, 400, 0)),
        ({"start_offset": 10, "cleaned_to": 5}, (10, 40, 100, 300)),  # DeleteRecords
        # The log was truncated: no part is known to be clean
        ({"cleaned_to": 46}, (0, 40, 0, 400)),
        ({"last_stable_offset": 35}, (0, 30, 0, 300)),
        ({"last_stable_offset": 30}, (0, 30, 0, 300)),
        ({"last_stable_offset": 5}, (0, 0, 0, 0)),
        ({"durable_offset": 20}, (0, 20, 0, 200)),
        ({"cleaned_to": 30, "last_stable_offset": 15}, (30, 30, 100, 0)),
    ],
)
def test_dirty_range_ends_at_first_uncleanable_segment(
    change: dict[str, int], expected: tuple[int, int, int, int]
) -> None:
    assert dirty_range_of(replace(ALL, **change)) == expected


def test_min_compaction_lag_excludes_segments_with_young_records() -> None:
    lag = replace(CONFIG, min_compaction_lag_ms=2 * HOUR_MS)
    assert dirty_range_of(config=lag) == (0, 30, 0, 300)
    lag = replace(CONFIG, min_compaction_lag_ms=60 * HOUR_MS)
    assert dirty_range_of(config=lag) == (0, 0, 0, 0)


def test_log_is_due_above_min_cleanable_dirty_ratio() -> None:
    half = DirtyRange(20, 40, clean_bytes=200, dirty_bytes=200, overdue_ms=0)
    assert not half.is_due(CONFIG)
    assert half.is_due(replace(CONFIG, min_cleanable_dirty_ratio=0.49))
    clean = DirtyRange(40, 40, clean_bytes=400, dirty_bytes=0, overdue_ms=9)
    assert not clean.is_due(replace(CONFIG, min_cleanable_dirty_ratio=0.0))


def test_max_compaction_lag_makes_log_due_at_any_dirty_ratio() -> None:
    bounds = replace(ALL, cleaned_to=30)
    for hours, is_due in ((3, False), (1, True)):
        config = replace(CONFIG, max_compaction_lag_ms=hours * HOUR_MS)
        assert find_dirty_range(SEGMENTS, bounds, config, NOW_MS).is_due(config) == is_due


def sizes(*logs: int, index: int = 1) -> list[SegmentSizes]:
    return [SegmentSizes(10 * number, log, index, index) for number, log in enumerate(logs)]


def grouped(
    segments: list[SegmentSizes], *, index_bytes: int = 1000, end: int = 1000
) -> list[list[int]]:
    groups = group_segments(segments, segment_bytes=100, index_bytes=index_bytes, end=end)
    return [[each.base_offset // 10 for each in one] for one in groups]


def test_adjacent_segments_that_fit_one_segment_are_grouped() -> None:
    assert grouped(sizes(50, 50, 1, 99, 100, 7)) == [[0, 1], [2, 3], [4], [5]]
    assert grouped(sizes(500, 1, 1)) == [[0], [1, 2]]
    assert grouped(sizes(1, 1, 1, index=400)) == [[0, 1], [2]]
    assert grouped([]) == []


def test_group_offsets_fit_relative_offsets_of_index() -> None:
    far = [SegmentSizes(0, 1, 0, 0), SegmentSizes(10, 1, 0, 0), SegmentSizes(RELATIVE_MAX, 1, 0, 0)]
    assert grouped(far, end=RELATIVE_MAX + 1) == [[0, 1, RELATIVE_MAX // 10]]
    assert grouped(far, end=RELATIVE_MAX + 2) == [[0, 1], [RELATIVE_MAX // 10]]


def test_group_has_limited_number_of_segments() -> None:
    assert [len(one) for one in grouped(sizes(*[1] * 70))] == [SEGMENTS_MAX, SEGMENTS_MAX, 6]


# Offset map


@pytest.mark.parametrize("seed", range(5))
def test_offset_map_matches_dict(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table, model = OffsetMap(1000), {}
    pool = rng.integers(0, 2**64, (890, 2), np.uint64)
    pool[:200, 0] = pool[0, 0]  # the same first probe, and some the same step
    pool[:50, 1] = pool[0, 1] + np.arange(50, dtype=np.uint64)
    offset = 0
    for _ in range(20):
        rows = rng.integers(0, len(pool), rng.integers(1, 200))
        offsets = np.arange(offset, offset + len(rows))
        offset += len(rows)
        table.put(pool[rows, 0], pool[rows, 1], offsets)
        model.update(zip(rows.tolist(), offsets.tolist(), strict=True))
        assert table.size == len(model)
        want = [model.get(row, -1) for row in range(len(pool))]
        assert table.get(pool[:, 0], pool[:, 1]).tolist() == want


def test_offset_map_has_prime_number_of_slots_within_memory_limit() -> None:
    for slots in (2, 3, 4, 100, 5_592_405):
        found = OffsetMap(slots).slots
        assert slots // 2 < found <= slots
        assert all(found % divisor for divisor in range(2, min(found, 3000)))


def hashed(keys: list[bytes], seed: bytes = b"s" * 32) -> list[tuple[int, int]]:
    data = np.frombuffer(b"?" + b"".join(keys) + PAD, np.uint8)
    lengths = np.array([len(key) for key in keys], np.int64)
    starts = 1 + np.cumsum(lengths) - lengths
    first, second = KeyHash(seed)(data, starts, lengths)
    return list(zip(first.tolist(), second.tolist(), strict=True))


def test_key_hash_depends_only_on_key() -> None:
    rng = random.Random(1)
    keys = [
        rng.randbytes(rng.choice((0, 1, 3, 4, 5, 16, LONG, LONG + 1, 1000))) for _ in range(300)
    ]
    together = hashed(keys)
    assert together == [hashed([key])[0] for key in keys]
    assert together == hashed(keys[::-1])[::-1]
    assert hashed(keys, b"t" * 32) != together


def test_different_keys_have_different_hashes() -> None:
    base = b"a key of some length"
    keys = [base[:size] for size in range(len(base))] + [b"\0" * size for size in range(1, 9)]
    keys += [
        base[:at] + bytes([base[at] ^ 1 << bit]) + base[at + 1 :]
        for at in range(20)
        for bit in range(8)
    ]
    keys += [b"x" * LONG, b"x" * (LONG + 1), b"x" * LONG + b"y"]
    found = hashed(keys)
    assert len(set(found)) == len(keys)
    for half in (0, 1):  # each half separately, too
        assert len({each[half] for each in found}) == len(keys)


def test_varints_of_all_sizes_are_decoded() -> None:
    values = [
        sign * ((1 << bits) - less) for bits in range(64) for less in (0, 1) for sign in (1, -1)
    ]
    values = [value for value in values if -(1 << 63) <= value < 1 << 63]
    pieces = [encode(value) for value in values]
    data = np.frombuffer(b"".join(pieces) + PAD, np.uint8)
    lengths = np.array([len(piece) for piece in pieces])
    found, after = varints(data, np.cumsum(lengths) - lengths)
    assert found.tolist() == values
    assert after.tolist() == np.cumsum(lengths).tolist()
    with pytest.raises(CorruptBatch):
        varints(np.frombuffer(b"\xff" * 20, np.uint8), np.array([0]))


# Pages


def file_of(data: bytes) -> tuple[VirtualFiles, Path]:
    files = VirtualFiles(VirtualDisk())
    path = Path("/x")
    file = files.open(path, create=True)
    file.append_v((data,))
    return files, path


def pages_of(data: bytes, page_bytes: int) -> list[BatchPage]:
    files, path = file_of(data)
    return list(read_pages(files.open(path), 0, len(data), page_bytes, end_offset=0))


def some_batches(counts: list[int], codec: int = 0) -> bytes:
    data, offset = b"", 0
    for count in counts:
        records = [
            Record(-1, 1000 + number, b"k%d" % (number % 3), b"v" * (number * 37 % 200))
            for number in range(count)
        ]
        data += build_batch(records, base_offset=offset, compression=codec)
        offset += count
    return data


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("page_bytes", [100, 1000, 100_000])
def test_pages_contain_every_batch_and_record_once(codec: int, page_bytes: int) -> None:
    counts = [1, 5, 300, 2, 2, 2, 90, 1] + [3] * 400
    pages = pages_of(some_batches(counts, codec), page_bytes)
    offsets, values = [], 0
    for page in pages:
        records = page.records(~page.is_control)
        offsets += records.offset.tolist()
        for start, size in zip(records.key_start.tolist(), records.key_size.tolist(), strict=True):
            assert page.data[start : start + size].startswith(b"k")
        values += int(records.has_value.sum())
    assert offsets == list(range(sum(counts)))
    assert values == sum(counts)
    assert sum(len(page) for page in pages) == len(counts)


def test_corrupt_batches_raise_and_are_not_copied() -> None:
    rng = random.Random(1)
    data = some_batches([3, 4, 200, 1])
    for _ in range(300):
        at = rng.randrange(len(data))
        damaged = bytearray(data)
        damaged[at] ^= 1 << rng.randrange(8)
        try:
            pages = pages_of(bytes(damaged), 1 << 20)
            offsets = [offset for page in pages for offset in page.records(~page.is_control).offset]
        except KafkaError:
            continue
        # The CRC does not cover base offset and leader epoch.
        assert offsets == sorted(offsets)
    with pytest.raises(KafkaError):
        pages_of(data[:-1], 1 << 20)
    with pytest.raises(KafkaError):
        pages_of(data + data, 1 << 20)  # offsets decrease


@pytest.mark.parametrize(
    "body", [b"\x02\x00", b"\x01", b"\xff" * 12, b"\x0e\0\0\0\x7e\x01\0\0\0", b""]
)
def test_invalid_records_with_valid_crc_raise(body: bytes) -> None:
    from odradek.protocol.records.batch import Batch
    from odradek.protocol.records.crc32c import crc32c

    whole = bytearray(build_batch([Record(-1, 1, b"k", b"v")]))[:61] + body
    whole[8:12] = (len(whole) - 12).to_bytes(4, "big")
    whole[17:21] = crc32c(memoryview(whole)[21:]).to_bytes(4, "big")
    Batch(memoryview(whole)).check()
    (page,) = pages_of(bytes(whole), 1 << 20)
    with pytest.raises(KafkaError):
        page.records(~page.is_control)
