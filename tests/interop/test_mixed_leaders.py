"""A partition that Apache Kafka leads and this broker follows: what is read here is what was written
there, whatever happened to either of them meanwhile. The controller is ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.interop.mixed_company import OURS, THEIRS, MixedCompany, mixed_company
from tests.interop.test_mixed_followers import numbered, produce, read, wait_in_sync

pytestmark = pytest.mark.interop

NEAR_US = {"client.rack": "here"}
"""So that the leader sends its consumers to this broker, which follows (KIP-392)."""


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCompany]:
    settings = {
        "replica.lag.time.max.ms": "2000",
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    }
    with mixed_company(
        tmp_path_factory.mktemp("leaders"),
        {**settings, "broker.rack": "here"},
        {**settings, "broker.rack": "there"},
    ) as it:
        yield it


def create(company: MixedCompany, name: str, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": company.ours.bootstrap})
    topic = NewTopic(name, num_partitions=1, replica_assignment=[[THEIRS, OURS]], config=configs)
    admin.create_topics([topic])[name].result(30)
    assert company.leaders(name) == [THEIRS]


def test_it_is_followed_and_read_here(company: MixedCompany) -> None:
    create(company, "led", **{"min.insync.replicas": "2"})
    values = numbered(5000)
    assert produce(company, "led", values) == [None] * len(values)
    wait_in_sync(company, "led", OURS, THEIRS)
    assert read(company.ours.bootstrap, "led", len(values), **NEAR_US) == values


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_large_and_compressed_batches_are_followed(company: MixedCompany, codec: str) -> None:
    name = f"large-{codec}"
    create(company, name, **{"min.insync.replicas": "2"})
    values = numbered(300, 50_000)
    told = produce(company, name, values, **{"compression.type": codec, "linger.ms": 20})
    assert told == [None] * len(values)
    assert read(company.ours.bootstrap, name, len(values), **NEAR_US) == values


@pytest.mark.slow
def test_a_leader_that_is_killed_is_succeeded_and_followed_again(company: MixedCompany) -> None:
    create(company, "killed", **{"min.insync.replicas": "1"})
    before = numbered(100)
    assert produce(company, "killed", before) == [None] * len(before)
    wait_in_sync(company, "killed", OURS, THEIRS)
    company.kill_theirs()
    wait_in_sync(company, "killed", OURS)
    after = [b"after " + value for value in before]
    assert produce(company, "killed", after) == [None] * len(after)
    company.restart_theirs()
    wait_in_sync(company, "killed", OURS, THEIRS)
    prefer(company, "killed")
    last = [b"last " + value for value in before]
    assert produce(company, "killed", last) == [None] * len(last)
    assert read(company.ours.bootstrap, "killed", 300, **NEAR_US) == before + after + last


def prefer(company: MixedCompany, topic: str) -> None:
    """Have the first replica lead again."""
    admin = AdminClient({"bootstrap.servers": company.ours.bootstrap})
    where = TopicPartition(topic, 0)
    found = admin.elect_leaders(ElectionType.PREFERRED, [where]).result(30)
    assert found[where] is None
    assert company.leaders(topic) == [THEIRS]
