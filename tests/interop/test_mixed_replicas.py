"""One topic on a broker of each kind, under a controller of each kind: replicated both ways.

Each leads a part of the partitions and follows the other's. Logs are passed on as they were written,
so in the end both have the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.interop.broker_process import BrokerProcess, deadline
from tests.interop.clients import PATIENCE_S
from tests.interop.mixed_company import OURS, THEIRS, MixedCompany, mixed_company

pytestmark = pytest.mark.interop

ASSIGNMENT = [[OURS, THEIRS], [THEIRS, OURS], [OURS, THEIRS], [THEIRS, OURS]]


@pytest.fixture(scope="module", params=[OURS, THEIRS], ids=["our-controller", "their-controller"])
def company(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MixedCompany]:
    with mixed_company(tmp_path_factory.mktemp("replicas"), controller=request.param) as it:
        yield it


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_topic_is_replicated_both_ways(company: MixedCompany, compression: str) -> None:
    name = f"both-ways-{compression}"
    admin = AdminClient({"bootstrap.servers": company.ours.bootstrap})
    topic = NewTopic(
        name,
        num_partitions=len(ASSIGNMENT),
        replica_assignment=ASSIGNMENT,
        config={"min.insync.replicas": "2"},
    )
    admin.create_topics([topic])[name].result(30)
    assert company.leaders(name) == [each[0] for each in ASSIGNMENT]
    failed = produce(company.theirs.bootstrap, name, 4000, compression)
    assert failed == []
    for partition in range(len(ASSIGNMENT)):
        wait_for_equal_logs(company, name, partition)


def produce(bootstrap: str, topic: str, count: int, compression: str) -> list[object]:
    """Idempotent, with acks=all; the errors."""
    failed: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": compression,
            "batch.num.messages": 50,
        }
    )
    for number in range(count):
        producer.produce(
            topic,
            b"%06d" % number,
            partition=number % len(ASSIGNMENT),
            on_delivery=lambda error, _: failed.append(error) if error is not None else None,
        )
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    return failed


def wait_for_equal_logs(company: MixedCompany, topic: str, partition: int) -> None:
    with deadline(20, f"both to have the same of {topic}-{partition}") as check:
        while True:
            ours, theirs = (log(each, topic, partition) for each in (company.ours, company.theirs))
            if ours and ours == theirs:
                return
            assert ours.startswith(theirs) or theirs.startswith(ours), "the logs have parted"
            check()


def log(broker: BrokerProcess, topic: str, partition: int) -> bytes:
    directory: Path = broker.partition_directory(topic, partition)
    return (directory / f"{0:020d}.log").read_bytes().rstrip(b"\0")
