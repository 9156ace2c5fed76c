"""Parts of the log cleaner without I/O: dirty range, segment grouping, offset map, key hashes,
varints, detection of corrupt batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from odradek.protocol.errors import KafkaError
from odradek.protocol.records.batch import Batch
from odradek.protocol.records.crc32c import crc32c
from odradek.protocol.records.records import Record, build_batch, decode
from odradek.seams.files import Path
from odradek.storage.compaction.batch_pages import read_pages, records_of
from odradek.storage.compaction.dirty_range import DirtyRange, LogBounds, find_dirty_range
from odradek.storage.compaction.offset_map import OffsetMap, OffsetMapInPython, create_offset_map
from odradek.storage.compaction.segment_grouping import SEGMENTS_MAX, SegmentSizes, group_segments
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

Records = Sequence[Record]
MAPS = [OffsetMapInPython]
if create_offset_map is not OffsetMapInPython:
    MAPS.append(create_offset_map)
SEED = b"s" * 32


@pytest.fixture(params=MAPS)
def new_map(request: pytest.FixtureRequest) -> Callable[[int, bytes], OffsetMap]:
    found: Callable[[int, bytes], OffsetMap] = request.param
    return found


def body_of(records: Records, base_offset: int = 0) -> tuple[bytes, int, int, int]:
    """Arguments of the map's methods for these records."""
    batch = Batch(memoryview(build_batch(records, base_offset=base_offset)))
    return bytes(records_of(batch)), batch.record_count, batch.base_offset, batch.last_offset


def keyed(*keys: bytes | None, value: bytes | None = b"v", offset: int = 0) -> list[Record]:
    return [Record(offset + number, 1, key, value) for number, key in enumerate(keys)]


@pytest.mark.parametrize("seed", range(5))
def test_offset_map_matches_dict(seed: int, new_map: Callable[[int, bytes], OffsetMap]) -> None:
    rng = random.Random(seed)
    table, model = new_map(1000, SEED), {}
    base = rng.randbytes(300)
    pool = [base[: rng.randrange(300)] + rng.randbytes(rng.randrange(10)) for _ in range(890)]
    pool += [b"", b"\0", b"\0\0", base, base + b"\0"]
    offset = 0
    for _ in range(20):
        keys = rng.choices(pool, k=rng.randrange(1, 200))
        assert table.put(*body_of(keyed(*keys, offset=offset), offset), 0, 900) is None
        model.update(zip(keys, range(offset, offset + len(keys)), strict=True))
        offset += len(keys)
        assert table.size == len(model)
    for key in pool:
        latest = model.get(key, -1)
        for at in {max(latest - 1, 0), max(latest, 0), latest + 1}:
            kept, *_ = table.filter(*body_of(keyed(key, offset=at), at), offset, False)
            assert kept == (at >= latest)


def test_offset_map_is_full_at_maximum_number_of_keys(
    new_map: Callable[[int, bytes], OffsetMap],
) -> None:
    for keys_max, slots in ((3, 100), (100, 4)):
        table = new_map(slots, SEED)
        limit = min(keys_max, table.slots - 1)
        names = [b"%d" % number for number in range(limit)]
        assert table.put(*body_of(keyed(*names)), 0, keys_max) is None
        assert table.size == limit
        assert table.put(*body_of(keyed(b"x", offset=50), 50), 0, keys_max) == 49
        assert table.put(*body_of(keyed(None, b"x", offset=60), 60), 0, keys_max) == 60
        assert table.size == limit
        assert table.filter(*body_of(keyed(b"x", offset=50), 50), 70, False)[0] == 1


def test_offset_map_ignores_records_before_first_dirty_offset(
    new_map: Callable[[int, bytes], OffsetMap],
) -> None:
    table = new_map(100, SEED)
    table.put(*body_of(keyed(b"a", b"b", b"c")), 2, 90)
    assert table.size == 1
    assert table.filter(*body_of(keyed(b"a", b"b", b"c", b"c", b"c")), 4, False)[0] == 5


def test_filter_removes_older_records_keyless_records_and_tombstones(
    new_map: Callable[[int, bytes], OffsetMap],
) -> None:
    table = new_map(100, SEED)
    records = [
        Record(0, 50, b"a", b"1"),
        Record(1, 10, None, b"2"),
        Record(3, 30, b"b", None),
        Record(4, 20, b"a", b"x" * 300),
        Record(7, 5, None, b"3"),
    ]
    body = body_of(records)
    first_timestamp = 50
    table.put(*body, 0, 90)

    def kept(covered_to: int, removes_tombstones: bool) -> tuple[list[int], bool, int, int]:
        count, has_tombstone, latest, without_key, rest = table.filter(
            *body, covered_to, removes_tombstones
        )
        frame = build_batch(records)[:61] + (body[0] if rest is None else rest)
        frame[8:12] = (len(frame) - 12).to_bytes(4, "big")
        frame[57:61] = count.to_bytes(4, "big")
        offsets = [record.offset for record in decode(Batch(memoryview(frame)))]
        assert (rest is None) == (count == len(records))
        return offsets, has_tombstone, first_timestamp + latest, without_key

    assert kept(-1, True) == ([0, 1, 3, 4, 7], True, 50, 0)
    assert kept(3, False) == ([3, 4, 7], True, 30, 1)
    assert kept(3, True) == ([4, 7], False, 20, 1)
    assert kept(7, False) == ([3, 4], True, 30, 2)
    assert kept(7, True) == ([4], False, 20, 2)


def test_filter_without_kept_records_has_no_timestamp(
    new_map: Callable[[int, bytes], OffsetMap],
) -> None:
    table = new_map(100, SEED)
    assert table.filter(*body_of(keyed(None, None)), 9, False) == (0, False, -(2**63), 2, b"")
    assert table.filter(b"", 0, 0, 0, 9, False) == (0, False, -(2**63), 0, None)


def test_maps_in_c_and_python_agree_on_invalid_records() -> None:
    if len(MAPS) < 2:
        pytest.skip("needs a C compiler")
    rng = random.Random(1)
    body, count, base, last = body_of(
        [Record(-1, 1000 + n, b"key%d" % (n % 3), b"v" * (n * 37 % 90)) for n in range(20)], 5
    )
    for _ in range(3000):
        changed = bytearray(body)
        for _ in range(rng.randrange(3)):
            changed[rng.randrange(len(changed))] = rng.choice(
                (0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256))
            )
        if rng.random() < 0.2:
            del changed[rng.randrange(len(changed)) :]
        results = []
        for new in MAPS:
            table = new(100, SEED)
            result: list[object] = []
            try:
                result.append(table.put(bytes(changed), count, base, last, 0, 90))
                result.append(table.filter(bytes(changed), count, base, last, 15, True))
            except ValueError as error:
                result.append(str(error))
            results.append((result, table.size))
        assert results[0] == results[1]


def test_compiled_map_has_prime_number_of_slots_within_memory_limit() -> None:
    if len(MAPS) < 2:
        pytest.skip("needs a C compiler")
    for slots in (-1, 2, 3, 4, 100, 5_592_405):
        found = create_offset_map(slots, SEED).slots
        assert max(slots, 2) // 2 < found <= max(slots, 2)
        assert all(found % divisor for divisor in range(2, min(found, 3000)))
    with pytest.raises(ValueError, match="a seed of 3 bytes"):
        create_offset_map(100, b"abc")


# Pages


def file_of(data: bytes) -> tuple[VirtualFiles, Path]:
    files = VirtualFiles(VirtualDisk())
    path = Path("/x")
    file = files.open(path, create=True)
    file.append_v((data,))
    return files, path


def read_batches(data: bytes, page_bytes: int) -> list[Batch]:
    files, path = file_of(data)
    pages = read_pages(files.open(path), 0, len(data), page_bytes, end_offset=0)
    return [batch for page in pages for batch in page]


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
    data = some_batches(counts, codec)
    batches = read_batches(data, page_bytes)
    offsets = [record.offset for batch in batches for record in decode(batch)]
    assert offsets == list(range(sum(counts)))
    assert b"".join(batch.view for batch in batches) == data


def test_corrupt_batches_raise_and_are_not_copied() -> None:
    rng = random.Random(1)
    data = some_batches([3, 4, 200, 1])
    for _ in range(300):
        at = rng.randrange(len(data))
        damaged = bytearray(data)
        damaged[at] ^= 1 << rng.randrange(8)
        try:
            batches = read_batches(bytes(damaged), 1 << 20)
            offsets = [record.offset for batch in batches for record in decode(batch)]
        except KafkaError:
            continue
        # The CRC does not cover base offset and leader epoch.
        assert offsets == sorted(offsets)
    with pytest.raises(KafkaError):
        read_batches(data[:-1], 1 << 20)
    with pytest.raises(KafkaError):
        read_batches(data + data, 1 << 20)  # offsets decrease


@pytest.mark.parametrize(
    "body", [b"\x02\x00", b"\x01", b"\xff" * 12, b"\x0e\0\0\0\x7e\x01\0\0\0", b""]
)
def test_invalid_records_with_valid_crc_raise(
    body: bytes, new_map: Callable[[int, bytes], OffsetMap]
) -> None:
    whole = bytearray(build_batch([Record(-1, 1, b"k", b"v")]))[:61] + body
    whole[8:12] = (len(whole) - 12).to_bytes(4, "big")
    whole[17:21] = crc32c(memoryview(whole)[21:]).to_bytes(4, "big")
    (batch,) = read_batches(bytes(whole), 1 << 20)
    table = new_map(100, SEED)
    for call in (table.put, table.filter):
        with pytest.raises(ValueError, match=r"record 0 of 1|after the last record"):
            call(bytes(records_of(batch)), batch.record_count, 0, 0, 0, True)
