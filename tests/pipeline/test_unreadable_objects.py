"""Objects of the store that are missing, corrupt or denied: an error that names them, or a gap row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from odradek.protocol.records.batch import HEADER_SIZE
from odradek.protocol.records.records import Record, build_batch
from odradek.seams.entropy import RealEntropy
from odradek.seams.files import Buffer
from odradek.seams.objects import ObjectDenied
from odradek.storage.log.offset_index import ENTRY
from odradek.storage.tiered.object_names import LOG_SUFFIX, segment_key
from odradek.storage.tiered.object_store import ObjectStoreStorage
from odradek.storage.tiered.remote_storage_manager import IndexType
from odradek.storage.tiered.segment_metadata import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from odradek.testing.virtual_object_store import (
    StoreFault,
    StoreFaultKind,
    VirtualBucket,
    VirtualObjectStore,
)

pa = pytest.importorskip("pyarrow")

from odradek.pipeline import segment_reader  # noqa: E402
from odradek.pipeline.decoding.record_decoder import RecordSelection  # noqa: E402
from odradek.pipeline.decoding.schema import BATCHES as BATCHES_AS_ROWS  # noqa: E402
from odradek.pipeline.decoding.schema import RECORDS  # noqa: E402
from odradek.pipeline.errors import (  # noqa: E402
    CorruptSegment,
    DeniedSegment,
    MissingSegment,
    PipelineError,
    StoreUnavailable,
    UnreadableSegment,
)
from odradek.pipeline.range_reader import ReadSettings, read_pieces, with_gap_column  # noqa: E402
from odradek.pipeline.segment_columns import SegmentSlice  # noqa: E402
from odradek.pipeline.segment_reader import read_slice  # noqa: E402

BATCHES, RECORDS_A_BATCH = 6, 5
LAST = BATCHES * RECORDS_A_BATCH - 1


def _log() -> list[bytes]:
    return [
        bytes(
            build_batch(
                [
                    Record(offset, 1000 + offset, None, b"value %d" % offset)
                    for offset in range(first, first + RECORDS_A_BATCH)
                ],
                base_offset=first,
                compression=codec % 5,
            )
        )
        for codec, first in enumerate(range(0, LAST + 1, RECORDS_A_BATCH))
    ]


def _segment(log: bytes) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(TopicIdPartition(UUID(int=1), "t", 3), UUID(int=2)),
        0,
        LAST,
        broker_id=1,
        max_timestamp_ms=1000 + LAST,
        event_timestamp_ms=1,
        epochs=(EpochStart(0, 0),),
        size_bytes=len(log),
        state=SegmentState.COPY_SEGMENT_FINISHED,
    )


class DenyingStore(VirtualObjectStore):
    """Store that denies all reads."""

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        raise ObjectDenied(f"{key}: 403 Forbidden")


def _stored(objects: VirtualObjectStore) -> tuple[ObjectStoreStorage, SegmentSlice, str]:
    log = b"".join(_log())
    segment = _segment(log)
    key = segment_key(segment, LOG_SUFFIX)
    objects.bucket.objects[key] = log
    return ObjectStoreStorage(objects, RealEntropy()), SegmentSlice(segment, 0, LAST + 1), key


def _read(
    storage: ObjectStoreStorage, segment_slice: SegmentSlice
) -> tuple[list[int], PipelineError | None]:
    """Return the offsets that were read, and the gaps or the error."""
    found: list[int] = []
    try:
        for table in read_slice(
            storage, segment_slice, RecordSelection("t", 3, ("offset", "value"))
        ):
            found += table.column(0).to_pylist()
    except PipelineError as error:
        return found, error
    return found, None


@pytest.mark.parametrize("broken", range(BATCHES))
def test_records_before_a_corrupt_batch_are_read_and_the_rest_is_a_gap(broken: int) -> None:
    objects = VirtualObjectStore(VirtualBucket())
    storage, segment_slice, key = _stored(objects)
    assert _read(storage, segment_slice) == (list(range(LAST + 1)), None)
    at = sum(len(batch) for batch in _log()[: broken + 1]) - 1
    log = bytearray(objects.bucket.objects[key])
    log[at] ^= 1
    objects.bucket.objects[key] = bytes(log)
    found, error = _read(storage, segment_slice)
    assert found == list(range(broken * RECORDS_A_BATCH))
    assert isinstance(error, CorruptSegment)
    assert (error.key, error.unread_from) == (key, len(found))
    assert key in str(error)


@pytest.mark.parametrize("broken", range(BATCHES))
@pytest.mark.parametrize("bit", [*range(7), 17, 62, 63])
def test_batch_with_wrong_offset_and_valid_crc_is_corrupt(broken: int, bit: int) -> None:
    """The CRC does not cover the base offset."""
    objects = VirtualObjectStore(VirtualBucket())
    storage, segment_slice, key = _stored(objects)
    log = bytearray(objects.bucket.objects[key])
    log[sum(map(len, _log()[:broken])) + bit // 8] ^= 1 << bit % 8
    objects.bucket.objects[key] = bytes(log)
    found, error = _read(storage, segment_slice)
    assert found == list(range(broken * RECORDS_A_BATCH))
    assert isinstance(error, CorruptSegment)
    assert (error.key, error.unread_from) == (key, len(found))
    assert "offsets are not in the expected range" in str(error)


@pytest.mark.parametrize("broken", range(BATCHES))
@pytest.mark.parametrize("behind", [-1, 0, 1, 7, 8, 9, 100])
def test_wrong_offset_at_the_end_of_a_piece_is_corrupt(
    broken: int, behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is decoded only when its successor is known."""
    objects = VirtualObjectStore(VirtualBucket())
    storage, whole, key = _stored(objects)
    at, first = sum(map(len, _log()[:broken])), broken * RECORDS_A_BATCH
    monkeypatch.setattr(segment_reader, "PIECE_BYTES", at + len(_log()[broken]) + behind)
    task = replace(whole, low=first, high=first + RECORDS_A_BATCH)
    for segment_slice in (whole, task):
        assert _read(storage, segment_slice) == (
            list(range(segment_slice.low, segment_slice.high)),
            None,
        )
    log = bytearray(objects.bucket.objects[key])
    log[at : at + 8] = (first + 1).to_bytes(8, "big")
    objects.bucket.objects[key] = bytes(log)
    for segment_slice in (whole, task):
        found, error = _read(storage, segment_slice)
        assert found == list(range(segment_slice.low, first))
        assert isinstance(error, CorruptSegment)
        assert (error.key, error.unread_from) == (key, first)
        assert f"byte {at}: " in str(error)


@pytest.mark.parametrize("piece_bytes", [100, segment_reader.PIECE_BYTES])
@pytest.mark.parametrize("broken", range(BATCHES))
@pytest.mark.parametrize("bit", range(56, 61))
def test_wrong_offset_at_the_limits_of_a_task_is_corrupt(
    broken: int, bit: int, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that reads part of a segment finds its bytes by the index, and reads one more batch."""
    monkeypatch.setattr(segment_reader, "PIECE_BYTES", piece_bytes)
    objects = VirtualObjectStore(VirtualBucket())
    storage, segment_slice, key = _stored(objects)
    log, batches = bytearray(objects.bucket.objects[key]), _log()
    ends = [sum(map(len, batches[:number])) for number in range(BATCHES)]
    index = segment_key(segment_slice.segment, IndexType.OFFSET.value)
    objects.bucket.objects[index] = b"".join(
        ENTRY.pack(RECORDS_A_BATCH * (number + 1) - 1, ends[number]) for number in range(1, BATCHES)
    )
    log[ends[broken] + bit // 8] ^= 1 << bit % 8
    objects.bucket.objects[key] = bytes(log)
    for low in range(LAST + 1):
        high = min(low + RECORDS_A_BATCH, LAST + 1)
        found, error = _read(storage, replace(segment_slice, low=low, high=high))
        if error is None:
            assert found == list(range(low, high))
        else:
            assert isinstance(error, CorruptSegment)
            assert found == list(range(low, low + len(found)))


@pytest.mark.parametrize("behind", [0, 8, 20, 61, 100])
@pytest.mark.parametrize("broken", range(BATCHES - 1))
@pytest.mark.parametrize("has_index", [False, True])
def test_task_after_a_corrupt_batch_has_all_its_records(
    has_index: bool, broken: int, behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any size of pieces. The other task reports the corrupt batch."""
    objects = VirtualObjectStore(VirtualBucket())
    storage, segment_slice, key = _stored(objects)
    log, batches = bytearray(objects.bucket.objects[key]), _log()
    ends = [sum(map(len, batches[:number])) for number in range(BATCHES + 1)]
    begins = 0
    if has_index:
        begins = ends[broken]
        index = segment_key(segment_slice.segment, IndexType.OFFSET.value)
        objects.bucket.objects[index] = b"".join(
            ENTRY.pack(RECORDS_A_BATCH * (number + 1) - 1, ends[number])
            for number in range(1, BATCHES)
        )
    monkeypatch.setattr(segment_reader, "PIECE_BYTES", ends[broken + 1] - begins + behind)
    log[ends[broken + 1] - 1] ^= 1
    objects.bucket.objects[key] = bytes(log)
    low = (broken + 1) * RECORDS_A_BATCH
    for first in (low, low + 1):
        assert _read(storage, replace(segment_slice, low=first)) == (
            list(range(first, LAST + 1)),
            None,
        )


@pytest.mark.parametrize("behind", [8, 61])
@pytest.mark.parametrize("base_offset", range(RECORDS_A_BATCH))
def test_adjacent_batch_with_wrong_offset_hides_no_record(
    base_offset: int, behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = VirtualObjectStore(VirtualBucket())
    storage, segment_slice, key = _stored(objects)
    log, batches = bytearray(objects.bucket.objects[key]), _log()
    at = len(batches[0]) + len(batches[1])
    monkeypatch.setattr(segment_reader, "PIECE_BYTES", at + behind)
    first = RECORDS_A_BATCH
    log[at : at + 8] = (first + base_offset).to_bytes(8, "big")
    objects.bucket.objects[key] = bytes(log)
    task = replace(segment_slice, low=first + 2, high=first + RECORDS_A_BATCH)
    found, error = _read(storage, task)
    assert found == list(range(task.low, task.high)) or isinstance(error, CorruptSegment)


@pytest.mark.parametrize("rows", [RECORDS, BATCHES_AS_ROWS])
@pytest.mark.parametrize("broken", [0, BATCHES // 2, BATCHES - 1])
def test_flipped_bit_of_a_header_does_not_change_a_count(broken: int, rows: str) -> None:
    """A count reads only headers. With any flipped bit it is correct, or the object is named."""
    objects = VirtualObjectStore(VirtualBucket())
    storage, segment_slice, key = _stored(objects)
    good = objects.bucket.objects[key]
    begins = sum(map(len, _log()[:broken]))
    columns = ("partition", "offset") if rows == RECORDS else ("records", "isControl")
    wanted = RecordSelection("t", 3, columns, rows=rows)

    def counted_records() -> int | str | None:
        """Return the count, or the name of the corrupt object."""
        try:
            tables = list(read_slice(storage, segment_slice, wanted))
        except CorruptSegment as error:
            return error.key
        if rows == RECORDS:
            return sum(table.num_rows for table in tables)
        found = [row for table in tables for row in table.to_pylist()]
        return sum(row["records"] for row in found if not row["isControl"])

    assert counted_records() == LAST + 1
    for bit in range(HEADER_SIZE * 8):
        log = bytearray(good)
        log[begins + bit // 8] ^= 1 << bit % 8
        objects.bucket.objects[key] = bytes(log)
        assert counted_records() in (LAST + 1, key)


@pytest.mark.parametrize("first", [-100, -5, 5, 100])
def test_log_of_another_segment_is_corrupt(first: int) -> None:
    """Also one of the same size, whose batches are valid but have other offsets."""
    objects = VirtualObjectStore(VirtualBucket())
    storage, segment_slice, key = _stored(objects)
    segment = replace(segment_slice.segment, start_offset=200, end_offset=200 + LAST)
    log = bytearray(objects.bucket.objects[key])
    at = 0
    for number, batch in enumerate(_log()):
        log[at : at + 8] = (200 + first + number * RECORDS_A_BATCH).to_bytes(8, "big")
        at += len(batch)
    objects.bucket.objects[segment_key(segment, LOG_SUFFIX)] = bytes(log)
    _, error = _read(storage, SegmentSlice(segment, 200, 200 + LAST + 1))
    assert isinstance(error, CorruptSegment)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [(None, MissingSegment), (StoreFaultKind.THROTTLED, StoreUnavailable), (StoreFaultKind.FAILS, StoreUnavailable)],
)  # fmt: skip
def test_each_kind_of_error_is_named(
    fault: StoreFaultKind | None, kind: type[PipelineError]
) -> None:
    objects = VirtualObjectStore(VirtualBucket())
    storage, segment_slice, key = _stored(objects)
    if fault is None:
        del objects.bucket.objects[key]
    else:
        objects.bucket.inject(StoreFault(fault))
    found, error = _read(storage, segment_slice)
    assert found == []
    assert type(error) is kind
    assert key in str(error)
    assert "unknown_server_error" not in str(error)
    assert isinstance(error, UnreadableSegment) == (fault is None)


def test_denied_object_is_named() -> None:
    storage, segment_slice, key = _stored(DenyingStore(VirtualBucket()))
    found, error = _read(storage, segment_slice)
    assert found == []
    assert isinstance(error, DeniedSegment)
    assert (error.key, error.unread_from) == (key, 0)
    assert "403 Forbidden" in str(error)


@pytest.fixture
def tier(tmp_path: Path) -> tuple[Path, SegmentSlice, Path]:
    """Store in a directory with one segment."""
    log = b"".join(_log())
    segment = _segment(log)
    path = tmp_path / segment_key(segment, LOG_SUFFIX)
    path.parent.mkdir(parents=True)
    path.write_bytes(log)
    return tmp_path, SegmentSlice(segment, 0, LAST + 1), path


def _reading(tier: Path, unreadable: str) -> ReadSettings:
    return ReadSettings(
        ("partition", "offset"), None, f"file://{tier}", {}, False, 1000, 1000, True, unreadable
    )


def test_gap_row_has_the_object_and_its_offsets(
    tier: tuple[Path, SegmentSlice, Path],
) -> None:
    directory, segment_slice, path = tier
    log = bytearray(path.read_bytes())
    log[sum(map(len, _log()[:3])) - 1] ^= 1  # in the third batch
    path.write_bytes(log)
    pieces = [
        SegmentSlice(segment_slice.segment, 0, 20),
        SegmentSlice(segment_slice.segment, 20, LAST + 1),
    ]
    tables = list(read_pieces(_reading(directory, "report"), pieces, {}))
    rows = [row for table in tables for row in with_gap_column(table).to_pylist()]
    assert [row["offset"] for row in rows if row["gap"] is None] == [
        *range(10),
        *range(20, LAST + 1),
    ]
    (gap,) = [row for row in rows if row["gap"] is not None]
    assert (gap["partition"], gap["offset"], gap["gap"]["lastOffset"]) == (3, 10, 19)
    assert gap["gap"]["object"] == path.relative_to(directory).as_posix()
    assert "CRC" in gap["gap"]["reason"]
    with pytest.raises(
        CorruptSegment, match=f"offsets 10 to 19 of t-3 cannot be read: .*{path.name}"
    ):
        list(read_pieces(_reading(directory, "fail"), pieces, {}))
    left = list(read_pieces(_reading(directory, "skip"), pieces, {}))
    assert sum(table.num_rows for table in left) == LAST + 1 - 10


def test_task_with_all_its_rows_logs_no_skipped_offsets(
    tier: tuple[Path, SegmentSlice, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Although the adjacent batch is corrupt."""
    directory, segment_slice, path = tier
    log = bytearray(path.read_bytes())
    at = sum(map(len, _log()[:2]))
    log[at : at + 8] = (LAST + 1).to_bytes(8, "big")
    path.write_bytes(bytes(log))
    pieces = [SegmentSlice(segment_slice.segment, 5, 10)]
    for unreadable in ("skip", "report"):
        tables = list(read_pieces(_reading(directory, unreadable), pieces, {}))
        assert [each for table in tables for each in table.column(1).to_pylist()] == [*range(5, 10)]
    assert "left out" not in caplog.text


def test_log_without_an_index_is_read_from_its_start(
    tier: tuple[Path, SegmentSlice, Path],
) -> None:
    directory, segment_slice, _ = tier
    pieces = [
        SegmentSlice(segment_slice.segment, 7, 8),
        SegmentSlice(segment_slice.segment, 23, 26),
    ]
    tables = list(read_pieces(_reading(directory, "fail"), pieces, {}))
    assert [each for table in tables for each in table.column(1).to_pylist()] == [7, 23, 24, 25]
