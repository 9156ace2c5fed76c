"""Verification of whole segments: every difference is reported with its object."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from odradek.protocol.records.records import Record, build_batch
from odradek.seams.entropy import SeededEntropy
from odradek.storage.tiered import segment_verification
from odradek.storage.tiered.audit import StoredSegment
from odradek.storage.tiered.chunks import Compression
from odradek.storage.tiered.object_names import MANIFEST_SUFFIX, parse_key, segment_key
from odradek.storage.tiered.object_store import ObjectStoreStorage, StorageFormat
from odradek.storage.tiered.remote_storage_manager import LogSegmentData
from odradek.storage.tiered.segment_metadata import EpochStart, RemoteLogSegmentMetadata
from odradek.storage.tiered.segment_verification import SegmentVerification
from odradek.testing.virtual_object_store import VirtualObjectStore
from tests.support.remote_segments import FINISHED, becomes, segment

BATCHES = [
    bytes(build_batch([Record(-1, 5, None, bytes(500))] * 4, base_offset=first, leader_epoch=0))
    for first in range(100, 200, 4)
]
LOG = b"".join(BATCHES)
COPY = replace(segment(1, 100, 199, size=len(LOG)), max_timestamp_ms=5)


def stored(objects: VirtualObjectStore) -> StoredSegment:
    found = {}
    for info in objects.list(""):
        name = parse_key(info.key)
        assert name is not None
        found[name.suffix] = info
    return StoredSegment(COPY.id, 100, found)


def copied(
    form: StorageFormat = StorageFormat(),  # noqa: B008 - a value
) -> tuple[VirtualObjectStore, RemoteLogSegmentMetadata]:
    objects = VirtualObjectStore()
    storage = ObjectStoreStorage(objects, SeededEntropy(random.Random(3)), form=form)
    data = LogSegmentData(LOG, b"o" * 8, b"i" * 12, None, b"p" * 10, b"0\n1\n0 100\n")
    custom = storage.copy_segment(COPY, data)
    return objects, COPY.updated(becomes(COPY, FINISHED, custom_metadata=custom))


def problems(objects: VirtualObjectStore, metadata: RemoteLogSegmentMetadata | None) -> list[str]:
    found = SegmentVerification(objects, stored(objects), metadata)
    for _ in found.steps():
        pass
    return found.problems


FORMS = [StorageFormat(), StorageFormat(Compression.ZSTD, 4096)]


@pytest.mark.parametrize("form", FORMS)
def test_complete_segment_has_no_problems(form: StorageFormat) -> None:
    objects, metadata = copied(form)
    assert problems(objects, metadata) == []
    assert problems(objects, None) == []


@pytest.mark.parametrize("form", FORMS)
def test_flipped_bit_in_any_object_is_reported(form: StorageFormat) -> None:
    for suffix in stored(copied(form)[0]).objects:
        objects, metadata = copied(form)
        key = segment_key(COPY, suffix)
        data = bytearray(objects.get(key))
        data[len(data) // 2] ^= 4
        objects.put(key, [data])
        (problem,) = problems(objects, metadata)
        assert problem.startswith(f"{key}: ")


def test_missing_truncated_and_additional_objects_are_reported() -> None:
    objects, metadata = copied()
    objects.delete(segment_key(COPY, ".index"))
    objects.put(segment_key(COPY, ".timeindex"), [b"i" * 11])
    objects.put(segment_key(COPY, ".txnindex"), [b"t" * 34])
    assert problems(objects, metadata) == [
        f"{segment_key(COPY, '.index')} is missing",
        f"{segment_key(COPY, '.timeindex')} has 11 bytes, not 12",
        f"{segment_key(COPY, '.txnindex')} is not in the manifest",
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"start_offset": 99},
        {"end_offset": 200},
        {"size_bytes": 1},
        {"max_timestamp_ms": 6},
        {"epochs": (EpochStart(1, 100),)},
        {"txn_index_empty": False},
    ],
    ids=lambda change: next(iter(change)),
)
def test_manifest_that_contradicts_metadata_is_reported(change: dict[str, object]) -> None:
    objects, metadata = copied()
    (problem,) = problems(objects, replace(metadata, **change))
    assert next(iter(change)) in problem


def test_object_deleted_during_verification_is_reported() -> None:
    objects, metadata = copied()
    found = SegmentVerification(objects, stored(objects), metadata)
    objects.delete(segment_key(COPY, ".log"))
    for _ in found.steps():
        pass
    (problem,) = found.problems
    assert problem.endswith("was deleted")


# Kafka's LocalTieredStorage writes no manifest


def without_manifest(change: Callable[[bytes], bytes]) -> list[str]:
    objects, metadata = copied()
    objects.delete(segment_key(COPY, MANIFEST_SUFFIX))
    objects.put(segment_key(COPY, ".log"), [change(LOG)])
    return problems(objects, metadata)


@pytest.mark.parametrize("read_bytes_max", [100, 1000, 4 << 20])
def test_segment_without_manifest_is_verified_by_batches(
    read_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_verification, "PIECE_BYTES", read_bytes_max)
    assert without_manifest(lambda log: log) == []
    key = segment_key(COPY, ".log")
    for at in (3, 9, 30, 70, len(LOG) // 2, len(LOG) - 1):
        found = without_manifest(lambda log, at=at: log[:at] + bytes([log[at] ^ 1]) + log[at + 1 :])  # type: ignore[misc]
        assert found, at
        assert all(problem.startswith(key) for problem in found)


def test_truncated_log_without_manifest_is_reported() -> None:
    cut, early, late = (
        without_manifest(lambda log: log[:-1]),
        without_manifest(lambda log: b"".join(BATCHES[:-1])),
        without_manifest(
            lambda log: log + bytes(build_batch([Record(200, 0, None, b"")], base_offset=200))
        ),
    )
    assert [problem.split(".log")[1].split(",")[0] for problem in cut] == [
        f" has {len(LOG) - 1} bytes",
        ": the last batch",
    ]
    assert [problem.split(".log")[1] for problem in early] == [
        f" has {len(LOG) - len(BATCHES[-1])} bytes, not {len(LOG)}"
    ]
    assert late[1].endswith("ends at offset 200, not 199")


@pytest.mark.parametrize("left", [0, 1, len(BATCHES) - 1])
def test_compacted_log_without_manifest_has_no_problems(left: int) -> None:
    """Kafka copies the remaining records of a topic that was compacted before; the segment ends
    where the next one begins."""
    objects, metadata = copied()
    log = b"".join(BATCHES[:left])
    objects.delete(segment_key(COPY, MANIFEST_SUFFIX))
    objects.put(segment_key(COPY, ".log"), [log])
    assert problems(objects, replace(metadata, size_bytes=len(log))) == []
