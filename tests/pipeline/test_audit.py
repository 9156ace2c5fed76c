"""`audit` reports no problem in a correct store, and every problem of a damaged one."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

pytest.importorskip("pyspark")

import numpy as np

from odradek.pipeline.cli.audit import as_json, as_text
from odradek.pipeline.errors import BadOption, DeniedSegment, PipelineError, StoreUnavailable
from odradek.pipeline.jobs import audit as audit_job
from odradek.pipeline.jobs import audit_tasks
from odradek.pipeline.jobs.audit import AuditJob, AuditReport, audit, run_audit
from odradek.pipeline.jobs.audit_results import open_audit_results
from odradek.pipeline.jobs.job_progress import JobProgress
from odradek.pipeline.jobs.replay_target import replay_target_at
from odradek.pipeline.jobs.segment_log_check import SegmentLogChecker
from odradek.pipeline.store import Store
from odradek.protocol.records.records import Record, build_batch
from odradek.seams.entropy import RealEntropy
from odradek.seams.files import Buffer
from odradek.seams.objects import ObjectDenied
from odradek.storage.tiered.custom_metadata import DENSE, custom_metadata
from odradek.storage.tiered.manifest import Manifest
from odradek.storage.tiered.object_names import parse_directory, summary_key
from odradek.storage.tiered.object_store import ObjectStoreStorage
from odradek.storage.tiered.partition_summary import PartitionSummaryBuilder
from odradek.storage.tiered.segment_metadata import EpochStart, RemoteLogSegmentMetadata
from odradek.storage.tiered.store_location import LOCAL_STORE
from odradek.testing import Broker
from odradek.testing.virtual_object_store import (
    StoreFault,
    StoreFaultKind,
    VirtualBucket,
    VirtualObjectStore,
)
from tests.pipeline.tiering import QUICK, TIERED
from tests.support.remote_segments import segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.interop

FOR_EVER = {**TIERED, "retention.ms": "-1"}
COUNT = 1500
TIMEOUT_SECONDS = 60.0


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tier")


@pytest.fixture(scope="module")
def broker(tier: Path) -> Iterator[Broker]:
    """Broker whose topic is tiered except for the active segments; tiered segments exist only in the store."""
    with Broker(configs=QUICK, tiered=tier) as broker:
        broker.create_topic("events", 2, FOR_EVER)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.size": 3000})
        for number in range(COUNT):
            producer.produce("events", value=b"value %d" % number * 10, partition=number % 2)
        producer.flush()
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not all(_is_tiered(broker, partition) for partition in (0, 1)):
            assert time.monotonic() < deadline, "nothing was tiered"
            time.sleep(0.1)
        yield broker


def _is_tiered(broker: Broker, partition: int) -> bool:
    """Whether only the active segment is local, so that all others have been copied."""
    found = broker.node.partitions.opened("events", partition)
    return found is not None and len(found.log.segments) == 1


@pytest.fixture
def copy(broker: Broker, tier: Path, tmp_path: Path) -> Path:
    """Copy of the store that a test may damage."""
    return Path(shutil.copytree(tier, tmp_path / "copy"))


def here(act: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    return [act(each) for each in items]


def audited(store: Path, broker: Broker | None = None, **more: Any) -> AuditReport:
    bootstrap = None if broker is None else broker.bootstrap
    return run_audit(AuditJob(str(store), bootstrap, **more), here, 2)


def logs(store: Path) -> list[Path]:
    return sorted(store.rglob("*events-0-*/*.log"))


@pytest.mark.parametrize("with_brokers", [True, False])
def test_intact_store_has_no_problems(broker: Broker, copy: Path, with_brokers: bool) -> None:
    report = audited(copy, broker if with_brokers else None)
    assert report.has_no_problems, list(as_text(report))
    assert [each.partition.partition for each in report.partitions] == [0, 1]
    for each in report.partitions:
        assert each.segments > 1
        assert each.offsets is not None
        assert each.offsets[0] == 0
        assert report.records[each.partition] == each.offsets[1]
        assert (each.gaps, each.dead, each.overlapping) == ([], [], 0)
    assert report.size_bytes > sum(log.stat().st_size for log in copy.rglob("*.log"))
    assert list(as_text(report))[-1] == "no problems found"


@pytest.mark.parametrize("with_brokers", [True, False])
def test_audit_without_segments_fails(broker: Broker, copy: Path, with_brokers: bool) -> None:
    """A misspelled topic, or another directory than the store's."""
    brokers = broker if with_brokers else None
    assert audited(copy, brokers, topics=["events"]).has_no_problems
    with pytest.raises(BadOption, match="has no objects of topic evnets"):
        audited(copy, brokers, topics=["events", "evnets"])
    if not with_brokers:
        with pytest.raises(BadOption, match="is not a directory"):
            audited(copy.parent)
        (copy.parent / LOCAL_STORE).mkdir()
        with pytest.raises(BadOption, match="has no remote log segments"):
            audited(copy.parent)


def test_invalid_bootstrap_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="'nowhere' is not HOST:PORT"):
        run_audit(AuditJob(str(tmp_path), "nowhere"), here, 1)
    with pytest.raises(BadOption, match="'h:x' is not HOST:PORT"):
        replay_target_at("h:x", 1000)


def test_flipped_bit_is_reported_with_its_batch(broker: Broker, copy: Path) -> None:
    victim = logs(copy)[1]
    data = bytearray(victim.read_bytes())
    data[5000] ^= 1
    victim.write_bytes(data)
    report = audited(copy, broker)
    assert not report.has_no_problems
    assert all(victim.name in text for text in report.problems)
    message = "\n".join(report.problems)
    assert "its CRC-32C is wrong" in message
    assert "the batch's CRC does not match its bytes" in message


def test_truncated_missing_and_orphaned_objects_are_reported(broker: Broker, copy: Path) -> None:
    first, second, third = logs(copy)[:3]
    first.write_bytes(first.read_bytes()[:-1])
    second.with_suffix(".index").unlink()
    for each in third.parent.glob(f"{third.stem}.*"):
        each.unlink()
    orphan = first.parent / f"{'9' * 20}-AAAAAAAAAAAAAAAAAAAAAQ.log"
    orphan.write_bytes(b"nobody's")
    (first.parent / "notes.txt").write_bytes(b"no segment's")
    report = audited(copy, broker, young_ms=-2000)
    assert report.problems
    assert all(first.stem in text for text in report.problems)
    standings = sorted(each.status.value for each in report.findings)
    assert standings == ["dangling", "incomplete", "missing", "stray"]
    text = "\n".join(as_text(report))
    assert f"INCOMPLETE: {second.parent.name}/{second.stem}, missing: .index\n" in text
    assert f"MISSING: {third.parent.name}/{third.stem}" in text
    assert "stray: " in text
    assert not json.loads(json.dumps(as_json(report)))["ok"]


@pytest.mark.parametrize("with_brokers", [True, False])
def test_summary_is_checked_against_the_manifests(
    broker: Broker, copy: Path, with_brokers: bool
) -> None:
    """The source uses the summary: records of segments that it lacks would silently be missing."""
    brokers = broker if with_brokers else None
    directory = logs(copy)[0].parent
    partition = parse_directory(directory.name)
    assert partition is not None
    known = [Manifest.parse(each.read_bytes()).metadata for each in directory.glob("*.manifest")]
    known.sort(key=lambda each: each.start_offset)
    summary = copy.joinpath(directory.parent, summary_key(partition, 7))
    summary.write_bytes(PartitionSummaryBuilder(known).encode())
    assert audited(copy, brokers).has_no_problems
    wrong = replace(known[1], end_offset=known[1].end_offset + 1)
    summary.write_bytes(PartitionSummaryBuilder([known[0], wrong, *known[2:]]).encode())
    report = audited(copy, brokers)
    assert not report.has_no_problems
    (text,) = report.partitions[0].problems
    assert summary.name in text
    assert f"end_offset is {wrong.end_offset}, but {known[1].end_offset} in" in text
    summary.write_bytes(PartitionSummaryBuilder([known[0], *known[2:]]).encode())
    (text,) = audited(copy, brokers).partitions[0].problems
    assert (
        f"lacks the segment with offsets {known[1].start_offset} to {known[1].end_offset}," in text
    )
    summary.write_bytes(PartitionSummaryBuilder(known[1:]).encode()[:-1])
    (text,) = audited(copy, brokers).partitions[0].problems
    assert summary.name in text


def test_offsets_without_a_segment_are_a_gap(broker: Broker, copy: Path) -> None:
    """With manifests as metadata, a deleted segment is not reported as missing, but its offsets are."""
    names = [log.name for log in logs(copy)]
    victim = logs(copy)[1]
    for each in victim.parent.glob(f"{victim.stem}.*"):
        each.unlink()
    report = audited(copy)
    (gap,) = report.partitions[0].gaps
    assert gap == (int(names[1][:20]), int(names[2][:20]))
    assert not report.has_no_problems
    assert (
        f"GAP: the store has no segment with offsets {gap[0]} to {gap[1] - 1} of events-0"
        in as_text(report)
    )


def test_duplicate_segment_is_reported_as_dead_and_is_not_a_problem(
    broker: Broker, copy: Path
) -> None:
    victim = logs(copy)[1]
    id, other = victim.stem[21:], "BBBBBBBBBBBBBBBBBBBBBQ"
    for each in victim.parent.glob(f"{victim.stem}.*"):
        made = each.parent / each.name.replace(id, other)
        data = each.read_bytes()
        made.write_bytes(
            data.replace(id.encode(), other.encode()) if "manifest" in each.name else data
        )
    report = audited(copy)
    assert report.has_no_problems, list(as_text(report))
    (dead,) = report.partitions[0].dead
    assert dead[-22:] in (id, other)
    assert report.partitions[0].overlapping > 0
    assert "DEAD: no offset of" in "\n".join(as_text(report))


class DenyingIndexes(VirtualObjectStore):
    """Store that denies indexes; it returns only ranges of logs."""

    def get(self, key: str) -> Buffer:
        if key.endswith("index"):
            raise ObjectDenied(f"{key}: 403 Forbidden")
        return super().get(key)


@pytest.mark.parametrize(
    ("kind", "faults", "error"),
    [
        (
            VirtualObjectStore,
            [StoreFault(StoreFaultKind.FAILS, "*index", ("get",))],
            StoreUnavailable,
        ),
        (
            VirtualObjectStore,
            [StoreFault(StoreFaultKind.THROTTLED, "*index", ("get",))],
            StoreUnavailable,
        ),
        (
            VirtualObjectStore,
            [StoreFault(StoreFaultKind.FAILS, "*.leader_epoch*", ("get",))],
            StoreUnavailable,
        ),
        (DenyingIndexes, [], DeniedSegment),
    ],
)
def test_unavailable_store_is_not_reported_as_corrupt(
    copy: Path,
    kind: type[VirtualObjectStore],
    faults: list[StoreFault],
    error: type[PipelineError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if it becomes unavailable between two reads of a segment."""
    bucket = VirtualBucket()
    for file in copy.rglob("*events-*/*"):
        bucket.store(f"{file.parent.name}/{file.name}", file.read_bytes())
    for fault in faults:
        bucket.inject(fault)
    objects = kind(bucket)
    store = Store(objects, ObjectStoreStorage(objects, RealEntropy()))
    monkeypatch.setattr(audit_tasks, "store_at", lambda *where: store)
    with pytest.raises(error, match="events-"):
        audited(copy)


def _audit_until_killed(job: AuditJob, tasks: int) -> None:
    """Run an audit with one segment per round and kill it with SIGKILL; the segment that is being read has no result
    in the file.
    """
    audit_job.SEGMENTS_A_TASK = audit_job.TASKS_A_ROUND = 1
    left = [tasks]

    def dying(act: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return here(act, items)

    run_audit(job, dying, 1)


@pytest.mark.parametrize("with_brokers", [True, False])
def test_killed_audit_resumes_and_has_the_same_report(
    broker: Broker, copy: Path, tmp_path: Path, with_brokers: bool
) -> None:
    victims = logs(copy)
    victims[0].write_bytes(victims[0].read_bytes()[:-1])
    bootstrap = broker.bootstrap if with_brokers else None
    results_file = tmp_path / "results"
    job = AuditJob(str(copy), bootstrap, resume=str(results_file))
    expected = run_audit(replace(job, resume=None), here, 2)
    assert not expected.has_no_problems
    total = sum(each.segments for each in expected.partitions)
    for stored in (total // 3, total):
        process = multiprocessing.get_context("spawn").Process(
            target=_audit_until_killed, args=(job, stored - _stored_results(results_file))
        )
        process.start()
        process.join(TIMEOUT_SECONDS)
        assert process.exitcode == -signal.SIGKILL
        with results_file.open("ab") as file:
            file.write(b"0123")  # an incomplete line
        assert _stored_results(results_file) == stored
    read: list[Any] = []

    def counted(act: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        read.extend(items if act is audit_job._check_segments else ())
        return here(act, items)

    reported: list[JobProgress] = []
    assert as_json(run_audit(job, counted, 2, reported.append)) == as_json(expected)
    assert read == []
    assert (reported[-1].done, reported[-1].done_before) == (total, total)
    assert not results_file.exists()


def _stored_results(results_file: Path) -> int:
    return results_file.read_bytes().count(b"\n") - 1 if results_file.exists() else 0


def test_objects_changed_since_their_result_are_read_again(copy: Path, tmp_path: Path) -> None:
    """Also if lines of the file, or all of them, are invalid."""
    results_file = tmp_path / "results"
    job = AuditJob(str(copy), resume=str(results_file))

    def stopped(act: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        if act is audit_job._check_partition:
            raise KeyboardInterrupt
        return here(act, items)

    with pytest.raises(KeyboardInterrupt):
        run_audit(job, stopped, 2)
    lines = results_file.read_bytes().splitlines(keepends=True)
    results_file.write_bytes(
        b"".join([*lines[:2], lines[2][:30] + b"\n", b"nonsense\n", *lines[3:]])
    )
    victim = logs(copy)[1]
    victim.write_bytes(victim.read_bytes()[:-1])
    report = run_audit(job, here, 2)
    assert {victim.name in text for text in report.problems} == {True}
    assert sum(report.records.values()) > 0


def test_results_file_belongs_to_one_audit(copy: Path, tmp_path: Path) -> None:
    results_file = tmp_path / "results"
    with open_audit_results(str(results_file), "a", has_brokers=True):
        with pytest.raises(BadOption, match="is in use by another audit"):
            run_audit(AuditJob(str(copy), resume=str(results_file)), here, 1)
    with pytest.raises(
        BadOption, match=r"belongs to another audit: it begins with .*true.* not .*false"
    ):
        run_audit(AuditJob(str(copy), resume=str(results_file)), here, 1)
    results_file.write_text("a letter")
    with pytest.raises(BadOption, match="is not a file of an audit"):
        run_audit(AuditJob(str(copy), resume=str(results_file)), here, 1)
    assert results_file.read_text() == "a letter"
    with pytest.raises(BadOption, match="cannot be written"):
        run_audit(AuditJob(str(copy), resume=str(tmp_path / "none" / "results")), here, 1)
    head = b'{"audit": 1, "store": "a", "brokers": true}\n'
    results_file.write_bytes(head[:9])  # the file of a run that was killed immediately
    with open_audit_results(str(results_file), "a", has_brokers=True):
        pass
    assert results_file.read_bytes() == head


def test_cluster_without_tiered_topics_is_reported(tmp_path: Path) -> None:
    with (
        Broker(topics={"plain": 1}) as broker,
        pytest.raises(PipelineError, match="it has no tiered topics"),
    ):
        audited(tmp_path, broker)


# Check of a segment's log against its metadata

BATCHES = [
    build_batch([Record(-1, 1000 + n, b"k", b"v" * 50) for n in range(10)], base_offset=10 * at,
                leader_epoch=at // 2)
    for at in range(4)
]  # fmt: skip
LOG = b"".join(map(bytes, BATCHES))
RIGHT = segment(1, 0, 39, size=len(LOG), epochs=((0, 0), (1, 20)))


def walked(known: RemoteLogSegmentMetadata, log: bytes, pieces: int = 1) -> SegmentLogChecker:
    walk = SegmentLogChecker(known, "it")
    for part in range(pieces):
        walk.feed(log[len(log) * part // pieces : len(log) * (part + 1) // pieces])
    walk.end()
    return walk


def right(**changed: Any) -> RemoteLogSegmentMetadata:
    return replace(RIGHT, **{"max_timestamp_ms": 1009, **changed})


@pytest.mark.parametrize("pieces", [1, 2, 7, len(LOG)])
def test_log_that_matches_its_metadata_has_no_problems(pieces: int) -> None:
    walk = walked(right(), LOG, pieces)
    assert walk.problems == []
    assert (walk.batches, walk.records) == (4, 40)
    size = len(BATCHES[0])
    walk.check_offset_index(np.array([(19, size), (39, 3 * size)], ">i4").tobytes())
    assert walk.problems == []
    walk.check_offset_index(np.array([(19, size), (39, 3 * size + 1)], ">i4").tobytes())
    assert f"has offset 39 at byte {3 * size + 1}" in walk.problems[0]


@pytest.mark.parametrize("left", [(), (0,), (3,), (1, 2)])
def test_log_with_batches_removed_by_compaction_has_no_problems(left: tuple[int, ...]) -> None:
    """The topic was compacted before it was tiered. As in Kafka, a segment ends where the next one begins."""
    log = b"".join(bytes(BATCHES[number]) for number in left)
    walk = walked(right(size_bytes=len(log), end_offset=49), log)
    assert (walk.problems, walk.records) == ([], 10 * len(left))


@pytest.mark.parametrize(
    ("known", "log", "message"),
    [
        (right(end_offset=29), LOG, "ends at offset 39, not 29"),
        (
            right(max_timestamp_ms=1008),
            LOG,
            "the maximum in the metadata is 1008 (and 3 more batches)",
        ),
        (right(epochs=(EpochStart(0, 0),)), LOG, "offset 20 has epoch 1, the metadata has 0"),
        (right(start_offset=5), LOG, "offset 0 comes after 4"),
        (right(), LOG[:-1], "the last batch is incomplete"),
        (right(), LOG + b"x" * 61, f"byte {len(LOG)}: no batch starts there"),
        (right(), bytes(BATCHES[0]) * 2 + LOG, "offset 0 comes after 9"),
        (
            right(custom_metadata=custom_metadata(DENSE)),
            b"".join(map(bytes, (BATCHES[0], *BATCHES[2:]))),
            "has 30 records, but the metadata has one for each of 40 offsets",
        ),
        (right(), LOG[:200] + b"?" + LOG[201:], "byte 0: the batch's CRC does not match"),
    ],
)
def test_log_that_differs_from_its_metadata_is_reported(
    known: RemoteLogSegmentMetadata, log: bytes, message: str
) -> None:
    assert any(message in text for text in walked(known, log).problems), walked(known, log).problems


@pytest.mark.slow
def test_audit_on_spark(spark: SparkSession, broker: Broker, copy: Path) -> None:
    reported: list[Any] = []
    report = audit(spark, AuditJob(str(copy), broker.bootstrap), reported.append)
    assert report.has_no_problems, list(as_text(report))
    assert sum(report.records.values()) == sum(
        each.offsets[1] for each in report.partitions if each.offsets
    )
    assert reported[-1].done == sum(each.segments for each in report.partitions)
    logs(copy)[1].write_bytes(b"")
    assert not audit(spark, AuditJob(str(copy), broker.bootstrap)).has_no_problems
