"""`audit` while topics are deleted, before or during the audit: they are reported, and the audit continues."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("confluent_kafka")

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from odradek.client.metadata import Topic
from odradek.pipeline.brokers import Brokers
from odradek.pipeline.cli.audit import as_json, as_text
from odradek.pipeline.errors import BadOption, BrokersUnavailable
from odradek.pipeline.jobs import audit as audit_job
from odradek.pipeline.jobs import audit_tasks
from odradek.pipeline.jobs.audit import AuditJob, AuditReport, run_audit
from odradek.pipeline.jobs.audit_tasks import AuditSource, check_partition
from odradek.protocol.topics import TopicPartition
from odradek.storage.tiered.audit import KnownSegments
from odradek.storage.tiered.segment_metadata import (
    PartitionDeleteState,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from odradek.testing import Broker
from tests.pipeline.tiering import QUICK, TIERED
from tests.support.remote_segments import FINISHED, becomes, segment

OLD, NEW, OTHER = UUID(int=1), UUID(int=2), UUID(int=3)
TIMEOUT_SECONDS = 60.0


class DeletingBrokers(Brokers):
    """Brokers with only these topics, of one partition each; `then` are the topics of later responses, in order."""

    def __init__(self, known: KnownSegments, *ids: dict[str, UUID]) -> None:
        self._known = known
        self._ids = list(ids)
        self.asked: list[TopicPartition] = []

    def topics(self) -> dict[str, Topic]:
        ids = self._ids.pop(0) if len(self._ids) > 1 else self._ids[0]
        return {name: Topic(name, id, False, {}) for name, id in ids.items()}

    def remote_metadata(self) -> Any:
        return SimpleNamespace(known=self._known)

    def read_remote_metadata(self, metadata: Any) -> None:
        pass

    def local_log_start_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        self.asked = list(partitions)
        if any(where.topic == "dying" for where in self.asked):
            raise BrokersUnavailable("did not return offsets")
        return dict.fromkeys(self.asked, 0)

    def lineage(self, where: TopicPartition, epochs: Iterable[int]) -> Any:
        raise BrokersUnavailable("did not return the epochs")


def known_of(*partitions: TopicIdPartition, marked: Sequence[TopicIdPartition] = ()) -> Any:
    known = KnownSegments()
    for number, partition in enumerate(partitions, 1):
        made = segment(number, 0, 9, partition=partition)
        known.apply(made)
        known.apply(becomes(made, FINISHED))
    for each in marked:
        state = PartitionDeleteState.DELETE_PARTITION_MARKED
        known.apply(RemotePartitionDeleteMetadata(each, 1, 0, state))
    return known


def here(act: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    return [act(each) for each in items]


def audited(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, brokers: DeletingBrokers, *topics: str
) -> AuditReport:
    for module in (audit_job, audit_tasks):
        monkeypatch.setattr(module, "brokers_at", lambda *where: brokers)
    (tmp_path / "kafka-tiered-storage").mkdir(exist_ok=True)
    return run_audit(AuditJob(str(tmp_path), "unused:9092", topics=topics), here, 1)


def test_segments_of_deleted_topics_are_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone, again, marked = (
        TopicIdPartition(id, name, 0)
        for id, name in ((OLD, "gone"), (OLD, "again"), (OTHER, "marked"))
    )
    over = TopicIdPartition(NEW, "over", 0)
    known = known_of(gone, again, marked, marked=[marked, over])
    report = audited(monkeypatch, tmp_path, DeletingBrokers(known, {"again": NEW}))
    assert report.has_no_problems, "their objects are deleted, and are not reported as missing"
    assert report.partitions == []
    assert report.findings == []
    text = "\n".join(as_text(report))
    assert "deleted: gone-0 of topic AAAAAAAAAAAAAAAAAAAAAQ: the cluster has no such topic" in text
    assert (
        "deleted: again-0 of topic AAAAAAAAAAAAAAAAAAAAAQ: the topic with this name now has id"
        in text
    )
    assert "deleted: marked-0" in text
    assert "the cluster is deleting it; 1 of its segments remain" in text
    assert "over" not in text
    rows = json.loads(json.dumps(as_json(report)))["deleted"]
    assert [(row["topic"], row["isMarked"], row["segments"]) for row in rows] == [
        ("again", False, 1),
        ("gone", False, 1),
        ("marked", True, 1),
    ]


def test_only_requested_topics_are_audited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known = known_of(TopicIdPartition(OLD, "a", 0), TopicIdPartition(OLD, "b", 0))
    report = audited(monkeypatch, tmp_path, DeletingBrokers(known, {}), "a")
    assert [each.partition.topic for each in report.deleted] == ["a"]
    with pytest.raises(BadOption, match="has no objects of topic c"):
        audited(monkeypatch, tmp_path, DeletingBrokers(known, {}), "c")


def test_topic_deleted_before_its_offsets_are_requested(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = known_of(TopicIdPartition(OLD, "dying", 0))
    brokers = DeletingBrokers(known, {"dying": OLD, "plain": NEW}, {"plain": NEW})
    report = audited(monkeypatch, tmp_path, brokers)
    assert [each.partition.topic for each in report.deleted] == ["dying"]
    assert brokers.asked == [], "topics that are not tiered are not requested"


def test_existing_topic_without_response_fails_the_audit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("dying", "silent"):
        known = known_of(TopicIdPartition(OLD, name, 0))
        with pytest.raises(BrokersUnavailable):
            audited(monkeypatch, tmp_path, DeletingBrokers(known, {name: OLD}))


@pytest.mark.parametrize("now", [{}, {"t": NEW}])
def test_topic_deleted_before_its_epochs_are_requested(
    monkeypatch: pytest.MonkeyPatch, now: dict[str, UUID]
) -> None:
    monkeypatch.setattr(
        audit_tasks, "brokers_at", lambda *where: DeletingBrokers(KnownSegments(), now)
    )
    partition = TopicIdPartition(OLD, "t", 0)
    source = AuditSource("unused", {}, "unused:9092", 1000)
    assert check_partition(source, partition, [segment(1, 0, 9, partition=partition)], 0) is None


@pytest.mark.interop
@pytest.mark.parametrize("is_made_again", [False, True])
def test_topics_deleted_during_the_audit(tmp_path: Path, is_made_again: bool) -> None:
    with Broker(configs=QUICK, tiered=tmp_path) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.size": 3000})
        for topic in ("stays", "goes"):
            broker.create_topic(topic, 1, {**TIERED, "retention.ms": "-1"})
            for number in range(600):
                producer.produce(topic, b"value %d" % number * 10)
        producer.flush()
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not all(_is_tiered(broker, topic) for topic in ("stays", "goes")):
            assert time.monotonic() < deadline, "nothing was tiered"
            time.sleep(0.1)

        def deleting(act: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
            is_last = act is audit_job._check_partition
            if is_last and "goes" in admin.list_topics(timeout=10).topics:
                admin.delete_topics(["goes"])["goes"].result(30)
                if is_made_again:
                    broker.create_topic("goes", 1)
            return here(act, items)

        job = AuditJob(str(tmp_path), broker.bootstrap, timeout_ms=3000)
        report = run_audit(job, deleting, 1)
        assert [each.partition.topic for each in report.partitions] == ["stays"]
        assert not report.problems
        assert not any(each.gaps or each.problems for each in report.partitions)
        assert {each.partition.topic for each in report.deleted} <= {"goes"}


def _is_tiered(broker: Broker, topic: str) -> bool:
    found = broker.node.partitions.opened(topic, 0)
    return found is not None and len(found.log.segments) == 1
