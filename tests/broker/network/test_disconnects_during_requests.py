"""Clients that disconnect while their requests wait.

As in Kafka, the broker continues to handle such a request. It closes the connection after connections.max.idle.ms, and
cancels handlers that wait only to send a response. Groups lose the members when their sessions expire.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from odradek.protocol import apis
from odradek.testing import Broker
from tests.support.brokers import broker_fixture
from tests.support.raw_client import RawClient
from tests.support.raw_requests import connect, fetch_frame, read_correlation_ids, request_frame
from tests.support.waiting import wait_until

IDLE_SECONDS = 0.5
CLIENTS = 40
METADATA = bytes(20_000)
"""So large that the request reserves memory."""
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)

broker = broker_fixture(
    topics={"t": 1},
    configs={
        "connections.max.idle.ms": str(int(1000 * IDLE_SECONDS)),
        "group.min.session.timeout.ms": "100",
        "group.max.session.timeout.ms": "3600000",
        "queued.max.request.bytes": str(1 << 28),
        "group.initial.rebalance.delay.ms": "0",
    },
)


def join(group: str, timeout: timedelta) -> bytes:
    values = {
        "group_id": group,
        "session_timeout": timeout,
        "rebalance_timeout": timeout,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": METADATA}],
    }
    return request_frame(apis.JOIN_GROUP, 3, 1, values)


def find_coordinator(broker: Broker, group: str) -> None:
    with RawClient(broker.bootstrap) as client:
        client.ask(apis.FIND_COORDINATOR, 3, {"key": group, "key_type": 0})


def disconnect_after(broker: Broker, request: bytes, is_waiting: Callable[[int], object]) -> None:
    """Send the request from many clients, and disconnect them all when it waits."""
    clients = [connect(broker) for _ in range(CLIENTS)]
    for client in clients:
        client.sendall(request)
    wait_until(lambda: is_waiting(CLIENTS), what="the requests to wait")
    for client in clients:
        client.close()


def members(broker: Broker, group: str) -> int:
    with RawClient(broker.bootstrap) as client:
        found = client.ask(apis.DESCRIBE_GROUPS, 5, {"groups": [group]})
    return len(found.groups[0].members)


def test_waiting_join_of_disconnected_client_is_cancelled(broker: Broker) -> None:
    """The members stay in the group until their sessions expire, as in Kafka."""
    find_coordinator(broker, "hour")
    memory = broker.node.services.receive_memory
    with connect(broker) as first:  # it is a member, and does not rejoin for the rebalance
        first.sendall(join("hour", HOUR))
        assert read_correlation_ids(first, 1) == [1]
        disconnect_after(
            broker,
            join("hour", HOUR),
            lambda count: memory.reserved_bytes >= count * len(METADATA),
        )
    wait_until(lambda: memory.reserved_bytes == 0, 20 * IDLE_SECONDS)
    assert not broker.node.server._connections
    assert members(broker, "hour") == CLIENTS + 1


def test_group_of_disconnected_clients_becomes_empty(broker: Broker) -> None:
    find_coordinator(broker, "second")
    with connect(broker) as first:
        first.sendall(join("second", SECOND))
        assert read_correlation_ids(first, 1) == [1]
        disconnect_after(
            broker, join("second", SECOND), lambda count: members(broker, "second") > count
        )
    wait_until(lambda: members(broker, "second") == 0, 20)


def test_waiting_fetch_of_disconnected_client_ends(broker: Broker) -> None:
    async def waits() -> int:
        partition = await broker.node.partitions.get("t", None, 0)
        return len(partition._watchers)

    request = fetch_frame(1, 0, int(HOUR.total_seconds() * 1000))
    disconnect_after(broker, request, lambda count: broker._call(waits) >= count)
    wait_until(lambda: broker._call(waits) == 0, 20 * IDLE_SECONDS)


@pytest.fixture(autouse=True)
def no_reservation_is_left(broker: Broker) -> None:
    assert broker.node.services.receive_memory.reserved_bytes == 0
