"""Selects the broker of the interop tests: `ODRADEK_INTEROP_BROKER`.

It is `odradek` (the default), `kafka`, or both, separated by a comma. A test that fails against Apache Kafka
is wrong. A test that fails only against Odradek has found a difference.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_kinds import BROKERS, STARTERS
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_dist import KafkaUnavailable, kafka_dist


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.interop)


@pytest.fixture(scope="session", autouse=True)
def _kafka_can_run() -> None:
    """Whether Apache Kafka can run on this machine; warns once with what is missing."""
    try:
        kafka_dist()
    except KafkaUnavailable as unavailable:
        pytest.fail(str(unavailable), pytrace=False)


@pytest.fixture(scope="session", params=BROKERS)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    """One broker process for all tests, with two log directories."""
    config = {
        "log.retention.check.interval.ms": "1000",
        "log.initial.task.delay.ms": "0",
        # The broker sends its heartbeat interval to members of consumer groups.
        "group.consumer.min.heartbeat.interval.ms": "200",
        "group.consumer.heartbeat.interval.ms": "200",
        "group.consumer.assignment.interval.ms": "0",
    }
    directory = tmp_path_factory.mktemp(f"broker-{request.param}")
    with STARTERS[request.param](directory, config=config, log_dir_count=2) as running:
        yield running
        gc.collect()  # librdkafka's handles log errors while they outlive the broker


@pytest.fixture(scope="session")
def bootstrap(broker: BrokerProcess) -> str:
    return broker.bootstrap


_numbers = itertools.count(1)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses, for topics, groups and client ids."""
    test = request.node.name.partition("[")[0].removeprefix("test_").replace("_", "-")
    return f"{test}-{next(_numbers)}"
