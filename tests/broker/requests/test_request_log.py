"""The request log: a line for each response of a connection that is accepted at level DEBUG."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from odradek.protocol import apis
from odradek.testing import Broker
from tests.support.brokers import broker_fixture
from tests.support.librdkafka_clients import deliver
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

broker = broker_fixture(topics={"t": 2}, configs={"auto.create.topics.enable": False})


@pytest.fixture(autouse=True)
def debug(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.DEBUG, "odradek"):
        yield


def lines(caplog: pytest.LogCaptureFixture, api: str) -> list[str]:
    texts = [each.getMessage() for each in caplog.records if each.name == "odradek.request"]
    return [text for text in texts if text.startswith(f"Completed {api} ")]


def test_line_has_api_version_client_topics_and_errors(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    topics = [{"topic_id": None, "name": name} for name in ("t", "absent")]
    values = {
        "topics": topics,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    with RawClient(broker.bootstrap) as client:
        client.ask(apis.METADATA, 12, values)
        (line,) = lines(caplog, "Metadata")
    assert line.startswith("Completed Metadata v12 from 127.0.0.1:")
    assert line.endswith(", client raw, topics t, absent: absent UNKNOWN_TOPIC_OR_PARTITION")


def test_long_response_is_logged_too(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    values = {
        "topics": [{"topic_id": None, "name": f"absent-{number}"} for number in range(100)],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    with RawClient(broker.bootstrap) as client:
        client.ask(apis.METADATA, 12, values)
    (line,) = lines(caplog, "Metadata")
    assert ": absent-0 UNKNOWN_TOPIC_OR_PARTITION, absent-1 UNKNOWN_TOPIC" in line
    assert line.endswith(", …")


def test_produce_and_fetch_errors_have_their_partitions(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("small", configs={"max.message.bytes": 100})
    deliver(broker.bootstrap, "small", [b"v" * 1000])
    assert lines(caplog, "Produce")[0].endswith(", topics small: small-0 MESSAGE_TOO_LARGE")
    deliver(broker.bootstrap, "t", [b"v"], partition=1)
    assert lines(caplog, "Produce")[1].endswith(", topics t: NONE")
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "error"}
    )
    consumer.assign([TopicPartition("t", 1, 99)])
    consumer.poll(10)
    consumer.close()
    wait_until(lambda: lines(caplog, "Fetch"))
    assert lines(caplog, "Fetch")[0].endswith(": t-1 OFFSET_OUT_OF_RANGE")


def test_fetch_that_waits_is_logged_when_its_response_is_sent(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    consumer.assign([TopicPartition("t", 0, 0)])
    wait_until(lambda: consumer.poll(0.1) is None)
    deliver(broker.bootstrap, "t", [b"v"], partition=0)
    wait_until(lambda: consumer.poll(0.1) is not None)
    consumer.close()
    assert lines(caplog, "Fetch")[0].endswith(": NONE")


def test_connection_accepted_at_another_level_has_no_lines(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "odradek")
    with RawClient(broker.bootstrap) as client:
        client.ask(
            apis.API_VERSIONS, 3, {"client_software_name": "c", "client_software_version": "1"}
        )
    assert lines(caplog, "ApiVersions") == []


def test_created_and_deleted_topics_are_logged(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("passing", partitions=3)
    broker.reset()
    texts = [each.getMessage() for each in caplog.records]
    assert any(
        text.startswith("Created topic passing with ID ") and text.endswith(" and 3 partitions")
        for text in texts
    )
    assert any(text.startswith("Deleted topic passing with ID ") for text in texts)
