"""Workloads that are clients themselves, on a real broker, return all of their metrics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from odradek.bench.group_members import Member, drive, quiet, settled
from odradek.bench.model import Target, Workload, WorkloadFailed
from odradek.bench.peers.topics import AdminTopics
from odradek.bench.raw_connection import RawConnection, must_be_none
from odradek.bench.workloads import WORKLOADS, groups, topics
from odradek.bench.workloads.latency import Latency, Stream, outcome
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.testing import Broker


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with Broker() as broker:
        yield Target("odradek", broker.bootstrap, AdminTopics(broker.bootstrap))


def assert_whole(workload: Workload, target: Target) -> None:
    values = workload.run(target).values
    assert values.keys() == {metric.name for metric in workload.metrics}
    assert all(value > 0 for value in values.values())


def test_workload_names_are_unique_without_spaces() -> None:
    names = [workload.name for workload in WORKLOADS]
    assert len(set(names)) == len(names)
    assert not any(" " in name for name in names)


@pytest.mark.parametrize("per_request", [1, 20])
def test_topics_are_created_and_deleted(
    target: Target, per_request: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "TOPICS", 20)
    assert_whole(topics.CreateTopics("topics", "", per_request), target)
    with RawConnection(target.address) as wire:
        left = wire.request(apis.METADATA, {"topics": None}).topics
    assert [topic.name for topic in left if topic.name.startswith("topics-")] == []


def test_failed_topic_deletion_fails_the_workload(target: Target) -> None:
    with (
        RawConnection(target.address) as wire,
        pytest.raises(WorkloadFailed, match="deleting never-made: unknown_topic"),
    ):
        topics._delete(wire, ["never-made"])


def test_topic_error_is_not_hidden_by_the_deletion(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(wire: RawConnection, names: object) -> None:
        raise WorkloadFailed("they have no leader")

    monkeypatch.setattr(topics, "TOPICS", 3)
    monkeypatch.setattr(topics, "_wait_for_leaders", refuse)
    real = topics._delete

    def delete_twice(wire: RawConnection, names: list[str]) -> None:
        real(wire, names)
        real(wire, names)

    monkeypatch.setattr(topics, "_delete", delete_twice)
    with pytest.raises(WorkloadFailed, match="they have no leader"):
        topics.CreateTopics("unled", "", 3).run(target)
    with RawConnection(target.address) as wire:
        left = wire.request(apis.METADATA, {"topics": None}).topics
    assert [topic.name for topic in left if topic.name.startswith("unled-")] == []


@pytest.mark.parametrize(
    "workload",
    [
        groups.AssignmentWithoutOffsetsTopic(),
        groups.FirstAssignment(),
        groups.Rebalance(1),
        groups.Rebalance(5),
    ],
    ids=lambda workload: workload.name,
)
def test_group_joins_are_timed(target: Target, workload: Workload) -> None:
    assert_whole(workload, target)


def test_librdkafka_gets_an_assignment(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "GROUPS_A_RUN", 2)
    assert_whole(groups.LibrdkafkaAssignment(), target)


def test_members_settle_in_consecutive_generations(target: Target) -> None:
    with target.topic("settling", 3) as topic:
        members = [Member(target.address, "settling", topic) for _ in range(3)]
        generations = []
        for _ in range(3):
            for member in members:
                member.join()
            assert not settled(members)
            drive(members, settled)
            quiet(members)
            generations.append({member.generation for member in members})
        for member in members:
            member.leave()
    assert all(len(each) == 1 for each in generations)
    assert max(generations[0]) < max(generations[1]) < max(generations[2])


def test_broker_error_fails_the_workload() -> None:
    must_be_none(ErrorCode.none, "making t")
    with pytest.raises(WorkloadFailed, match="making t: topic_already_exists"):
        must_be_none(ErrorCode.topic_already_exists, "making t")


def test_latency_of_every_record_is_measured(target: Target, load_program_is_there: None) -> None:
    stream = replace(Stream(), rate=200, seconds=0.5)
    found = Latency(stream).run(target)
    assert found.histogram is not None
    assert sum(count for _, count in found.histogram.buckets) == 100
    assert 0 < found.values["p50_us"] <= found.values["p99_us"] <= found.values["max_us"]


def test_percentiles_include_all_records() -> None:
    found = outcome([1_000_000] * 985 + [50_000_000] * 15, [5_000] * 1000)
    assert found.values["p50_us"] == pytest.approx(1_000, rel=0.001)
    assert found.values["p99_us"] == pytest.approx(50_000, rel=0.001)
    assert found.values["max_us"] == pytest.approx(50_000, rel=0.001)
    assert found.values["sender_p99_us"] == pytest.approx(5, rel=0.001)
    assert found.histogram is not None
    assert [count for _, count in found.histogram.buckets] == [985, 15]
