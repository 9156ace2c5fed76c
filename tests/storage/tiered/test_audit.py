"""Audit of the remote tier: status of every object as complete, lost, garbage, or neither."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID

import pytest

from odradek.seams.objects import ObjectInfo
from odradek.storage.tiered.audit import NEEDED, KnownSegments, RemoteStorageAudit, SegmentStatus
from odradek.storage.tiered.object_names import MANIFEST_SUFFIX, SUFFIXES, segment_key, summary_key
from odradek.storage.tiered.segment_metadata import (
    PartitionDeleteState,
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
    SegmentState,
    TopicIdPartition,
)
from tests.support.remote_segments import (
    DELETED,
    DELETING,
    FINISHED,
    FOO_0,
    becomes,
    segment,
)

BAR_0 = TopicIdPartition(UUID(int=2), "bar", 0)
OLD, NEW = 1_000, 9_000
OLD_BEFORE = 5_000
COPY = segment(1, 0, 9)


def objects_of(
    copy: RemoteLogSegmentMetadata, suffixes: Iterable[str] = SUFFIXES, put_ms: int = OLD
) -> list[ObjectInfo]:
    return [ObjectInfo(segment_key(copy, suffix), 10, put_ms) for suffix in suffixes]


def known_to_be(*steps: SegmentState, copy: RemoteLogSegmentMetadata = COPY) -> KnownSegments:
    known = KnownSegments()
    known.apply(copy)
    for state in steps:
        known.apply(becomes(copy, state, OLD))
    return known


def audited(
    known: KnownSegments | None, *objects: Iterable[ObjectInfo], page: int = 3
) -> tuple[RemoteStorageAudit, dict[int, SegmentStatus]]:
    """Findings by segment number, after `recheck`."""
    audit = RemoteStorageAudit(known, old_before_ms=OLD_BEFORE)
    listed = sorted((info for some in objects for info in some), key=lambda info: info.key)
    findings = []
    for at in range(0, len(listed), page):
        findings += audit.take(listed[at : at + page])
    findings += audit.end()
    audit.recheck()
    whole = [each for each in findings if each.status is SegmentStatus.WHOLE]
    found = {}
    for each in (*whole, *audit.findings):
        of = each.stored or each.metadata
        if of is not None:
            found[of.id.id.int] = each.status
    return audit, found


@pytest.mark.parametrize("with_metadata", [True, False])
def test_concurrent_and_sequential_listing_give_same_findings(
    with_metadata: bool,
) -> None:
    other = segment(2, 0, 9, partition=BAR_0)
    lost = segment(3, 10, 19, partition=BAR_0)
    known = known_to_be(FINISHED) if with_metadata else None
    for copy in (other, lost) if known else ():
        known.apply(copy)
        known.apply(becomes(copy, FINISHED, OLD))
    foo, bar = objects_of(COPY), objects_of(other, NEEDED)
    alone, expected = audited(known, foo, bar)
    audit = RemoteStorageAudit(known, old_before_ms=OLD_BEFORE)
    parts = [(audit.part(), foo), (audit.part(), bar)]
    for at in range(len(foo)):
        for part, listed in parts:
            part.take(listed[at : at + 1])
    findings = [each for part, _ in parts for each in audit.join(part)]
    findings += audit.end()
    audit.recheck()
    standings = {
        of.id.id.int: each.status
        for each in (*(e for e in findings if e.status is SegmentStatus.WHOLE), *audit.findings)
        if (of := each.stored or each.metadata) is not None
    }
    assert standings == expected
    assert (audit.usages, audit.objects) == (alone.usages, alone.objects)


@pytest.mark.parametrize(
    ("known", "suffixes", "put_ms", "status"),
    [
        (known_to_be(FINISHED), SUFFIXES, NEW, SegmentStatus.WHOLE),
        (known_to_be(FINISHED), NEEDED, OLD, SegmentStatus.WHOLE),
        (known_to_be(FINISHED), [".log", ".index"], OLD, SegmentStatus.INCOMPLETE),
        (known_to_be(FINISHED), [], OLD, SegmentStatus.MISSING),
        (known_to_be(), SUFFIXES, OLD, SegmentStatus.COPYING),
        (known_to_be(), [".log"], NEW, SegmentStatus.COPYING),
        (known_to_be(), [], OLD, None),
        (known_to_be(FINISHED, DELETING), SUFFIXES, OLD, SegmentStatus.DELETING),
        (known_to_be(DELETING), [".log"], OLD, SegmentStatus.DELETING),
        (known_to_be(DELETING), [], OLD, None),
        (known_to_be(DELETING, DELETED), [".log"], OLD, SegmentStatus.DANGLING),
        (known_to_be(DELETING, DELETED), SUFFIXES, OLD, SegmentStatus.DANGLING),
        (known_to_be(DELETING, DELETED), [".log"], NEW, SegmentStatus.YOUNG),
        (known_to_be(copy=segment(5, 0, 9)), [".log"], OLD, SegmentStatus.DANGLING),
        (known_to_be(copy=segment(5, 0, 9)), [".log"], NEW, SegmentStatus.YOUNG),
        (KnownSegments(), SUFFIXES, OLD, SegmentStatus.FOREIGN),
        (KnownSegments(), [".log"], NEW, SegmentStatus.FOREIGN),
    ],
)
def test_segment_status_with_metadata(
    known: KnownSegments, suffixes: Iterable[str], put_ms: int, status: SegmentStatus | None
) -> None:
    _, found = audited(known, objects_of(COPY, suffixes, put_ms))
    assert found.get(1) is status


@pytest.mark.parametrize(
    ("suffixes", "put_ms", "status"),
    [
        (SUFFIXES, OLD, SegmentStatus.WHOLE),
        ([*NEEDED[1:], MANIFEST_SUFFIX], OLD, SegmentStatus.INCOMPLETE),
        (NEEDED, OLD, SegmentStatus.DANGLING),
        (NEEDED, NEW, SegmentStatus.YOUNG),
    ],
)
def test_segment_status_from_manifests(
    suffixes: Iterable[str], put_ms: int, status: SegmentStatus
) -> None:
    other = objects_of(segment(2, 10, 19))
    _, found = audited(None, objects_of(COPY, suffixes, put_ms), other)
    assert found == {1: status, 2: SegmentStatus.WHOLE}


def test_partition_without_manifests_has_no_garbage() -> None:
    """A store of Kafka's LocalTieredStorage."""
    kafkas = [objects_of(segment(n, n, n, partition=BAR_0), NEEDED) for n in range(5)]
    _, found = audited(None, *kafkas, objects_of(segment(9, 0, 9)), objects_of(COPY, [".log"]))
    expected = dict.fromkeys(range(5), SegmentStatus.FOREIGN)
    assert found == {**expected, 1: SegmentStatus.DANGLING, 9: SegmentStatus.WHOLE}


@pytest.mark.parametrize(
    ("put_ms", "doubtful", "status"),
    [
        (OLD, FOO_0, SegmentStatus.UNCLEAR),
        (NEW, FOO_0, SegmentStatus.YOUNG),
        (OLD, BAR_0, SegmentStatus.DANGLING),
    ],
)
def test_segments_that_brokers_may_know_are_no_garbage(
    put_ms: int, doubtful: TopicIdPartition, status: SegmentStatus
) -> None:
    """In a part of the listing too."""
    known = known_to_be(copy=segment(5, 0, 9))
    audit = RemoteStorageAudit(
        known,
        old_before_ms=OLD_BEFORE,
        may_have_more_metadata=lambda partition: partition == doubtful,
    )
    part = audit.part()
    part.take(objects_of(COPY, put_ms=put_ms))
    audit.join(part)
    assert [each.status for each in audit.findings] == [status]
    audit.recheck()
    assert [each.status for each in audit.findings] == [status]


def test_copy_started_during_listing_is_no_garbage() -> None:
    """It is published before its first object is put, so the metadata read afterwards contains
    it."""
    known = known_to_be(copy=segment(5, 0, 9))
    audit = RemoteStorageAudit(known, old_before_ms=NEW + 1)  # its age would make it garbage
    audit.take(objects_of(COPY, [".log"], NEW))
    audit.end()
    assert [each.status for each in audit.findings] == [SegmentStatus.DANGLING]
    known.apply(COPY)
    audit.recheck()
    assert [each.status for each in audit.findings] == [SegmentStatus.COPYING]


def test_copy_finished_during_listing_is_not_incomplete() -> None:
    known = known_to_be()
    audit = RemoteStorageAudit(known, old_before_ms=OLD_BEFORE)
    audit.take(objects_of(COPY, [".log"], NEW))
    audit.end()
    known.apply(becomes(COPY, FINISHED, NEW))
    audit.recheck()
    assert audit.findings == []


def test_lost_objects_of_finished_copy_are_reported_at_any_age() -> None:
    known = known_to_be()
    known.apply(becomes(COPY, FINISHED, NEW))
    _, found = audited(known, objects_of(COPY, NEEDED[1:], NEW))
    assert found == {1: SegmentStatus.INCOMPLETE}


@pytest.mark.parametrize(
    ("custom", "status"),
    [
        (None, SegmentStatus.WHOLE),
        (b"\1\4", SegmentStatus.WHOLE),
        (b"\1\3", SegmentStatus.INCOMPLETE),
        (b"\1\5", SegmentStatus.INCOMPLETE),
        (b"somebody else's", SegmentStatus.INCOMPLETE),
    ],
)
def test_compressed_or_encrypted_segment_without_manifest_is_incomplete(
    custom: bytes | None, status: SegmentStatus
) -> None:
    known = known_to_be()
    known.apply(becomes(COPY, FINISHED, OLD, custom))
    _, found = audited(known, objects_of(COPY, NEEDED))
    assert found == {1: status}


def test_segment_expired_during_listing_is_not_missing() -> None:
    known = known_to_be(FINISHED)
    audit = RemoteStorageAudit(known, old_before_ms=OLD_BEFORE)
    audit.end()
    assert [each.status for each in audit.findings] == [SegmentStatus.MISSING]
    known.apply(becomes(COPY, DELETING))
    audit.recheck()
    assert audit.findings == []


def test_failed_copy_deleted_during_listing_is_no_garbage() -> None:
    known = known_to_be()
    audit = RemoteStorageAudit(known, old_before_ms=NEW + 1)
    audit.take(objects_of(COPY))
    audit.end()
    assert [each.status for each in audit.findings] == [SegmentStatus.COPYING]
    for state in (DELETING, DELETED):
        known.apply(becomes(COPY, state))
    audit.recheck()
    assert audit.findings == []


def test_usage_is_independent_of_listing_pages() -> None:
    copies = [segment(n, 10 * n, 10 * n + 9, partition=(FOO_0, BAR_0)[n % 2]) for n in range(20)]
    known = KnownSegments()
    for each in copies:
        known.apply(each)
        known.apply(becomes(each, FINISHED, OLD))
    for page in (1, 2, 7, 1000):
        audit, found = audited(known, *map(objects_of, copies), page=page)
        assert found == dict.fromkeys(range(20), SegmentStatus.WHOLE)
        assert audit.objects == 20 * len(SUFFIXES)
        assert {p: (t.segments, t.size_bytes) for p, t in audit.usages.items()} == {
            FOO_0: (10, 10 * 10 * len(SUFFIXES)),
            BAR_0: (10, 10 * 10 * len(SUFFIXES)),
        }


def test_unknown_objects_are_stray_and_kept() -> None:
    names = [
        "README",
        f"foo-0-AAAAAAAAAAAAAAAAAAAAAQ/{0:020}-AAAAAAAAAAAAAAAAAAAAAQ.mine",
        f"foo-0-AAAAAAAAAAAAAAAAAAAAAQ/{0:020}-AAAAAAAAAAAAAAAAAAAAAQ",
        "foo/bar.log",
    ]
    strays = [ObjectInfo(name, 5, OLD) for name in names]
    audit, found = audited(known_to_be(FINISHED), objects_of(COPY), strays)
    assert found == {1: SegmentStatus.WHOLE}
    assert sorted(each.stray.key for each in audit.findings if each.stray) == sorted(names)


def test_recreated_topic_is_another_partition() -> None:
    """T-52: objects of the old topic are FOREIGN only without any metadata of it."""
    before = replace(FOO_0, topic_id=UUID(int=77))
    old = segment(7, 0, 9, partition=before)
    known = known_to_be(FINISHED)
    known.apply(old)
    known.apply(becomes(old, DELETING))
    known.apply(becomes(old, DELETED))
    _, found = audited(known, objects_of(COPY), objects_of(old, [".log"]))
    assert found == {1: SegmentStatus.WHOLE, 7: SegmentStatus.DANGLING}


def test_manifest_is_removed_first() -> None:
    audit, _ = audited(known_to_be(DELETING, DELETED), objects_of(COPY))
    (finding,) = audit.findings
    assert finding.stored is not None
    assert finding.stored.removal_order()[0].endswith(MANIFEST_SUFFIX)
    assert len(finding.stored.removal_order()) == len(SUFFIXES)


def test_audit_of_selected_partitions() -> None:
    known = KnownSegments()
    for each in (COPY, segment(2, 0, 9, partition=BAR_0)):
        known.apply(each)
        known.apply(becomes(each, FINISHED, OLD))
    audit = RemoteStorageAudit(
        known, old_before_ms=OLD_BEFORE, wanted=lambda partition: partition == FOO_0
    )
    audit.take(objects_of(segment(2, 0, 9, partition=BAR_0), [".log"]))
    audit.end()
    assert [each.partition for each in audit.findings] == [FOO_0]


SUMMARY = ObjectInfo(summary_key(FOO_0, 3), 10, OLD)


def deleted(*steps: SegmentState) -> KnownSegments:
    """The partition's deletion has started, after `steps` of its segment."""
    known = known_to_be(*steps)
    mark = PartitionDeleteState.DELETE_PARTITION_MARKED
    known.apply(RemotePartitionDeleteMetadata(FOO_0, 1, OLD, mark))
    return known


@pytest.mark.parametrize(
    ("known", "segments", "put_ms", "is_garbage"),
    [
        (known_to_be(FINISHED), objects_of(COPY), OLD, False),
        (known_to_be(DELETING, DELETED), [], OLD, False),
        (deleted(FINISHED), objects_of(COPY), OLD, False),
        (deleted(DELETING, DELETED), [], OLD, True),
        (deleted(DELETING, DELETED), [], NEW, False),
        (KnownSegments(), [], OLD, False),
        (None, objects_of(COPY), OLD, False),
        (None, [], OLD, False),
    ],
)
def test_summary_of_deleted_partition_is_garbage(
    known: KnownSegments | None, segments: list[ObjectInfo], put_ms: int, is_garbage: bool
) -> None:
    summary = replace(SUMMARY, modified_ms=put_ms)
    audit, _ = audited(known, [summary], segments)
    garbage = [each.removal_order() for each in audit.findings if each.status.is_garbage]
    assert garbage == ([[summary.key]] if is_garbage else [])
    assert SegmentStatus.STRAY not in {each.status for each in audit.findings}
    assert audit.usages[FOO_0].objects == 1 + len(segments)
    assert audit.usages[FOO_0].segments == bool(segments)
