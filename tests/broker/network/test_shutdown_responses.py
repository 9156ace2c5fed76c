"""Tests of responses that are being sent during a roll, a deletion, a truncation, or the shutdown. A client
requests megabytes and reads them only after the log has changed."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
import trio

from odradek.replication.controller.topics import delete_topics
from odradek.testing import Broker
from tests.broker.network.unread_responses import (
    VALUES,
    ask_for_everything,
    fill,
    numbers_in,
    wait_until_sending,
)
from tests.support.brokers import broker_fixture
from tests.support.raw_requests import receive_frame

broker = broker_fixture(
    scope="function", topics={"t": 1}, configs={"log.initial.task.delay.ms": "86400000"}
)


async def roll(broker: Broker) -> None:
    (await broker.node.partitions.get("t", None, 0)).log.roll()


async def truncate(broker: Broker) -> None:
    log = (await broker.node.partitions.get("t", None, 0)).log
    log.truncate_to(100)


async def expire(broker: Broker) -> None:
    log = (await broker.node.partitions.get("t", None, 0)).log
    log.roll()
    log.advance_log_start(log.high_watermark, "test")
    now = broker.node.seams.clock.wall_ms()
    assert log.delete_expired(now) > 0
    assert log.remove_deleted(now + 3_600_000) > 0


async def delete_topic(broker: Broker) -> None:
    await broker.node.metadata.perform(lambda image: delete_topics(image, ["t"]))
    while broker.node.partitions.opened("t", 0) is not None:
        await trio.sleep(0.001)


@pytest.mark.parametrize("change", [roll, truncate, expire, delete_topic])
def test_response_being_sent_is_completed_at_shutdown(
    broker: Broker, change: Callable[..., object]
) -> None:
    fill(broker)
    with ask_for_everything(broker) as sock:
        broker._call(wait_until_sending, broker)
        broker._call(change, broker)  # type: ignore[arg-type]
        if change is truncate:
            fill(broker)  # other bytes in place of the old ones
        assert numbers_in(receive_frame(sock)) == list(range(VALUES))


def test_half_closed_client_gets_complete_response(broker: Broker) -> None:
    """The client has closed its side and still reads."""
    fill(broker)
    with ask_for_everything(broker) as sock:
        sock.shutdown(socket.SHUT_WR)
        assert numbers_in(receive_frame(sock)) == list(range(VALUES))
