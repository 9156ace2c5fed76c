"""Contract of `RemoteStorageManager` (KIP-405), for every kind of store."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path as OsPath
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from odradek.seams.entropy import SeededEntropy
from odradek.seams.files import FileSlice, Path
from odradek.seams.object_store import open_objects
from odradek.seams.objects import Objects
from odradek.seams.real_files import RealFiles
from odradek.storage.tiered.chunks import Compression
from odradek.storage.tiered.encryption import KeyRing
from odradek.storage.tiered.errors import (
    RemoteResourceNotFound,
    RemoteSegmentNotFound,
    RemoteStorageUnavailable,
)
from odradek.storage.tiered.object_store import ObjectStoreStorage, StorageFormat
from odradek.storage.tiered.remote_storage_manager import IndexType, LogSegmentData
from odradek.storage.tiered.segment_metadata import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from odradek.testing.virtual_object_store import VirtualObjectStore

if TYPE_CHECKING:
    from odradek.bench.s3_server import S3Server
    from odradek.storage.tiered.remote_storage_manager import RemoteStorageManager

KEYS = KeyRing({"k1": bytes(range(32))})
FORMS = {
    "as it is": StorageFormat(),
    "zstd": StorageFormat(Compression.ZSTD, 4_000),
    "lz4": StorageFormat(Compression.LZ4, 4096),
    "encrypted": StorageFormat(Compression.NONE, 7_777, KEYS, encrypts=True),
    "zstd, encrypted": StorageFormat(Compression.ZSTD, 65536, KEYS, encrypts=True),
}

PARTITION = TopicIdPartition(UUID(int=0x5D28_6E0F), "some.topic_of-mine", 3)
LOG = random.Random(1).randbytes(5_000) + b"the same again " * 1_000 + b"!"


def segment(
    number: int = 1, start_offset: int = 100, size: int = len(LOG)
) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        id=RemoteLogSegmentId(PARTITION, UUID(int=number)),
        start_offset=start_offset,
        end_offset=start_offset + 99,
        broker_id=7,
        max_timestamp_ms=1_700_000_000_000,
        event_timestamp_ms=1_700_000_000_123,
        epochs=(EpochStart(0, start_offset), EpochStart(4, start_offset + 50)),
        size_bytes=size,
    )


def data_of(log: bytes = LOG, transactions: bytes | None = b"t" * 34) -> LogSegmentData:
    return LogSegmentData(
        log=log,
        offset_index=b"o" * 80,
        time_index=bytearray(b"i" * 24),
        transaction_index=transactions,
        producer_snapshot=memoryview(b"p" * 56),
        leader_epochs=b"0\n2\n0 100\n4 150\n",
    )


INDEXES = {
    IndexType.OFFSET: b"o" * 80,
    IndexType.TIMESTAMP: b"i" * 24,
    IndexType.TRANSACTION: b"t" * 34,
    IndexType.PRODUCER_SNAPSHOT: b"p" * 56,
    IndexType.LEADER_EPOCH: b"0\n2\n0 100\n4 150\n",
}


@pytest.fixture(params=["virtual", "memory", "file", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: OsPath) -> Objects:
    if request.param == "virtual":
        return VirtualObjectStore()
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        return open_objects(server.new_store(), server.options)
    url = "memory:///" if request.param == "memory" else f"file://{tmp_path}/kafka-tiered-storage"
    return open_objects(url)


@pytest.fixture(params=FORMS)
def storage(objects: Objects, request: pytest.FixtureRequest) -> RemoteStorageManager:
    return ObjectStoreStorage(
        objects, SeededEntropy(random.Random(3)), form=FORMS[request.param], cluster_id="c"
    )


Copy = Callable[..., RemoteLogSegmentMetadata]


@pytest.fixture
def copied(storage: RemoteStorageManager) -> Copy:
    """Copies a segment and returns its metadata after the copy."""
    from dataclasses import replace

    def copy(
        metadata: RemoteLogSegmentMetadata, data: LogSegmentData | None = None
    ) -> RemoteLogSegmentMetadata:
        custom = storage.copy_segment(metadata, data or data_of())
        assert custom is None or len(custom) <= 128  # remote.log.metadata.custom.metadata.max.bytes
        return replace(metadata, custom_metadata=custom)

    return copy


def test_copied_segment_is_fetched_as_a_whole(storage: RemoteStorageManager, copied: Copy) -> None:
    """T-17, T-19, T-21: the log, offset, time and transaction indexes, producer snapshot, epochs."""
    metadata = copied(segment())
    assert bytes(storage.fetch_segment(metadata, 0)) == LOG
    for kind, expected in INDEXES.items():
        assert bytes(storage.fetch_index(metadata, kind)) == expected


def test_range_is_fetched_into_given_buffer(storage: RemoteStorageManager, copied: Copy) -> None:
    metadata, size = copied(segment()), len(LOG)
    for start, room in (
        (0, 1000),
        (4_095, 2),
        (0, size),
        (size - 5, 100),
        (size, 1),
        (size + 9, 1),
    ):
        memory, expected = memoryview(bytearray(room)), LOG[start : start + room]
        assert storage.fetch_segment_into(metadata, start, memory) == len(expected)
        assert bytes(memory) == expected + bytes(room - len(expected))


def test_range_is_inclusive_and_ends_with_the_log(
    storage: RemoteStorageManager, copied: Copy
) -> None:
    """T-18: a range ends with its last byte, which is inclusive, or with the log."""
    metadata, size = copied(segment()), len(LOG)
    for start, end in (
        (0, 0), (0, 999), (0, 1000), (999, 1000), (1, 7_000), (4_095, 4_096), (size - 1, size - 1),
        (size - 5, size), (size - 5, size + 1_000_000), (0, size * 2),
    ):  # fmt: skip
        assert bytes(storage.fetch_segment(metadata, start, end)) == LOG[start : end + 1]
    assert bytes(storage.fetch_segment(metadata, size - 3)) == LOG[-3:]
    assert bytes(storage.fetch_segment(metadata, size)) == b""
    assert bytes(storage.fetch_segment(metadata, size + 10, size + 20)) == b""
    for start, end in ((-1, 5), (5, 4)):
        with pytest.raises(ValueError):
            storage.fetch_segment(metadata, start, end)


def test_random_ranges_are_fetched(storage: RemoteStorageManager, copied: Copy) -> None:
    """T-18"""
    metadata, draw = copied(segment()), random.Random(11)
    for _ in range(25):
        start = draw.randrange(len(LOG))
        end = draw.randrange(start, len(LOG) + 10)
        assert bytes(storage.fetch_segment(metadata, start, end)) == LOG[start : end + 1]


def test_missing_segment_raises_resource_not_found(storage: RemoteStorageManager) -> None:
    """T-18, T-19."""
    with pytest.raises(RemoteResourceNotFound):
        storage.fetch_segment(segment(9), 0, 10)
    for kind in IndexType:
        with pytest.raises(RemoteResourceNotFound):
            storage.fetch_index(segment(9), kind)
    with pytest.raises(RemoteSegmentNotFound):
        storage.fetch_index(segment(9), IndexType.TRANSACTION)


@pytest.mark.parametrize("transactions", [None, b""])
def test_segment_without_transaction_index(
    storage: RemoteStorageManager, copied: Copy, transactions: bytes | None
) -> None:
    """T-19: no transaction index is stored. Kafka does not upload an empty one either."""
    metadata = copied(segment(), data_of(transactions=transactions))
    with pytest.raises(RemoteResourceNotFound) as caught:
        storage.fetch_index(metadata, IndexType.TRANSACTION)
    assert not isinstance(caught.value, RemoteSegmentNotFound)
    assert bytes(storage.fetch_index(metadata, IndexType.OFFSET)) == INDEXES[IndexType.OFFSET]


def test_copy_can_be_repeated(storage: RemoteStorageManager, copied: Copy) -> None:
    """T-17: objects with the id of the segment are overwritten."""
    copied(segment(size=3), data_of(b"old"))
    metadata = copied(segment())
    assert bytes(storage.fetch_segment(metadata, 0)) == LOG
    again = copied(segment())
    assert bytes(storage.fetch_segment(again, 0)) == LOG
    assert bytes(storage.fetch_index(again, IndexType.TIMESTAMP)) == b"i" * 24


def test_copies_with_other_ids_are_independent(storage: RemoteStorageManager, copied: Copy) -> None:
    """T-22: a copy of the same offsets with another id is another copy."""
    one, other = copied(segment(1)), copied(segment(2, size=5), data_of(b"other"))
    storage.delete_segment(one)
    assert bytes(storage.fetch_segment(other, 0)) == b"other"
    with pytest.raises(RemoteResourceNotFound):
        storage.fetch_segment(one, 0)


def test_deleted_segment_cannot_be_fetched(
    storage: RemoteStorageManager, copied: Copy, objects: Objects
) -> None:
    """T-20: no object is left, and a second deletion succeeds."""
    assert not storage.has_any_of(segment().partition)
    metadata = copied(segment())
    assert storage.has_any_of(metadata.partition)
    storage.delete_segment(metadata)
    assert not storage.has_any_of(metadata.partition)
    assert objects.list("") == []
    storage.delete_segment(metadata)
    storage.delete_segment(segment(8))


def test_leftovers_of_failed_copy_are_deleted(
    storage: RemoteStorageManager, copied: Copy, objects: Objects
) -> None:
    """T-20: without custom metadata, which a failed copy does not have."""
    copied(segment())
    for info in objects.list("")[::2]:
        objects.delete(info.key)
    storage.delete_segment(segment())
    assert objects.list("") == []


def test_segment_with_empty_log(storage: RemoteStorageManager, copied: Copy) -> None:
    metadata = copied(segment(size=0), data_of(b""))
    assert bytes(storage.fetch_segment(metadata, 0)) == b""


def test_large_log_is_copied_from_file_slices(
    storage: RemoteStorageManager, copied: Copy, tmp_path: OsPath
) -> None:
    """T-21: the parts of the segment are slices of files; the log is larger than an upload part."""
    big = random.Random(5).randbytes(1 << 20) * 9
    (tmp_path / "log").write_bytes(b"before" + big + b"after")
    (tmp_path / "index").write_bytes(b"o" * 80 + bytes(1000))
    files = RealFiles(max_open=8)
    log, index = (files.open(Path(tmp_path / name)) for name in ("log", "index"))
    plain = data_of()
    metadata = copied(
        segment(size=len(big)),
        LogSegmentData(
            log=FileSlice(log, 6, len(big)),
            offset_index=FileSlice(index, 0, 80),
            time_index=plain.time_index,
            transaction_index=FileSlice(index, 0, 0),
            producer_snapshot=plain.producer_snapshot,
            leader_epochs=plain.leader_epochs,
        ),
    )
    assert bytes(storage.fetch_segment(metadata, 8 << 20, (8 << 20) + 999)) == big[8 << 20 :][:1000]
    assert bytes(storage.fetch_segment(metadata, (9 << 20) - 3)) == big[-3:]
    assert bytes(storage.fetch_index(metadata, IndexType.OFFSET)) == b"o" * 80


def test_closed_storage_cannot_be_used(storage: RemoteStorageManager, objects: Objects) -> None:
    """A running copy fails and does not become a finished one."""
    storage.close()
    storage.close()
    with pytest.raises(RemoteStorageUnavailable):
        storage.copy_segment(segment(), data_of())
    assert objects.list("") == []
