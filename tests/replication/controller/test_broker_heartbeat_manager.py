"""Broker sessions and offsets on the active controller (KIP-631)."""

from __future__ import annotations

import pytest

from odradek.replication.controller.broker_control_state import BrokerControlState
from odradek.replication.controller.broker_fencing import begin_controlled_shutdown, fence_broker
from odradek.replication.controller.broker_heartbeat_manager import BrokerHeartbeatManager
from odradek.replication.controller.image import MetadataImage
from odradek.replication.controller.topics import NewTopic
from tests.support.cluster_images import cluster, committed, create


@pytest.fixture
def image() -> MetadataImage:
    """Brokers 1 and 2 are active, and broker 3 is fenced."""
    made, _ = create(cluster(3), NewTopic("t", assignments={0: (1, 2)}))
    return committed(made, fence_broker(made, 3, made.brokers[3].epoch).records)


def test_new_term_starts_sessions_of_unfenced_brokers(image: MetadataImage) -> None:
    sessions = BrokerHeartbeatManager(image, 500, timeout_ms=100)
    alive = [each.id for each in image.brokers.values() if sessions.is_alive(each, 599)]
    assert alive == [1, 2]
    assert sessions.next_deadline_ms == 600
    assert sessions.oldest_expired(599) is None
    assert sessions.oldest_expired(600) == 1
    assert not sessions.is_alive(image.brokers[1], 600)


def test_oldest_session_expires_first(image: MetadataImage) -> None:
    sessions = BrokerHeartbeatManager(image, 0, timeout_ms=100)
    sessions.touch(image.brokers[1], 30, 5)
    assert sessions.next_deadline_ms == 100
    sessions.touch(image.brokers[2], 40, 5)
    assert sessions.next_deadline_ms == 130
    assert sessions.oldest_expired(139) == 1
    sessions.forget(1)
    assert sessions.oldest_expired(139) is None
    assert sessions.oldest_expired(140) == 2
    sessions.forget(2)
    assert sessions.next_deadline_ms is None
    assert sessions.oldest_expired(10**9) is None


def test_fenced_broker_with_heartbeat_is_alive(image: MetadataImage) -> None:
    sessions = BrokerHeartbeatManager(image, 0, timeout_ms=100)
    assert not sessions.is_alive(image.brokers[3], 1)
    sessions.touch(image.brokers[3], 1, 0)
    assert sessions.is_alive(image.brokers[3], 100)


def test_session_expires_at_shutdown(image: MetadataImage) -> None:
    sessions = BrokerHeartbeatManager(image, 0, timeout_ms=100)
    sessions.touch(image.brokers[2], 50, 0)
    sessions.expire(image.brokers[2], 50)
    assert not sessions.is_alive(image.brokers[2], 50)
    assert sessions.oldest_expired(50) == 2
    assert sessions.next_deadline_ms == 50


def test_registration_offset_of_earlier_term_is_at_most_term_start(
    image: MetadataImage,
) -> None:
    sessions = BrokerHeartbeatManager(image, 0, timeout_ms=100)
    broker = image.brokers[1]
    assert sessions.registration_offset(broker) == image.offset
    sessions.registered(1, broker.epoch, image.offset + 7)
    assert sessions.registration_offset(broker) == image.offset + 7


def test_new_incarnation_has_no_reported_offset(image: MetadataImage) -> None:
    sessions = BrokerHeartbeatManager(image, 0, timeout_ms=100)
    image = committed(image, begin_controlled_shutdown(image, 1, image.brokers[1].epoch).records)
    stopping = image.brokers[1]
    assert sessions.state(stopping) is BrokerControlState.UNFENCED, (
        "an earlier controller granted it"
    )
    sessions.shutting_down(stopping, 20)
    assert sessions.state(stopping) is BrokerControlState.CONTROLLED_SHUTDOWN
    assert not sessions.shutdown_is_known(image, stopping), "2 has sent no heartbeat yet"
    for offset, known in ((19, False), (20, True)):
        sessions.touch(image.brokers[2], 1, offset)
        assert sessions.shutdown_is_known(image, stopping) == known
    sessions.registered(2, 99, 99)
    assert not sessions.shutdown_is_known(image, stopping)
    sessions.registered(1, 77, 77)
    assert sessions.state(stopping) is BrokerControlState.UNFENCED
