"""Tests of BrokerLifecycle with a controller: registration, fencing, and controlled shutdown (KIP-631)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
import trio

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.lifecycle.broker_lifecycle import BrokerLifecycle, BrokerState
from odradek.protocol.errors import KafkaError
from odradek.replication.controller.broker_registration import unregister_broker
from odradek.replication.controller.image import MetadataImage
from odradek.replication.controller.topics import NewTopic
from tests.support.cluster_images import (
    cluster,
    create,
    directory,
    formatted,
    partition,
    registration,
)
from tests.support.controller_node import Channel, ControllerNode, FakeMetadata, TrioClock


class Broker:
    """BrokerLifecycle of one broker, and its log directories."""

    def __init__(self, channel: Channel, broker: int, **configs: str) -> None:
        self.offline: list[UUID] = []
        self.cordoned: list[UUID] = []
        self.registration = registration(broker, directories=2, incarnation=1)
        metadata = channel.node.metadata
        self.view = FakeMetadata(metadata.image, node_id=broker)
        metadata.subscribe(self._follow)
        self.follows = True
        self.life = BrokerLifecycle(
            self.view,
            channel,
            TrioClock(),
            ServerConfig.from_properties(configs, test_node=True),
            offline=lambda: self.offline,
            cordoned=lambda: self.cordoned,
        )

    def _follow(self, delta: Any) -> None:
        if self.follows:
            self.view.image = delta.image


@pytest.fixture
def node() -> ControllerNode:
    """Controller with brokers 1, 2 and 3, and a topic with replicas on all, led by 1."""
    image, _ = create(cluster(3), NewTopic("t", assignments={0: (1, 2, 3)}))
    return ControllerNode(FakeMetadata(image))


@pytest.fixture
def channel(node: ControllerNode) -> Channel:
    return Channel(node)


async def test_broker_registers_catches_up_and_is_unfenced_when_ready(
    autojump_clock: trio.testing.MockClock, channel: Channel, nursery: trio.Nursery
) -> None:
    broker = Broker(channel, 4)
    await broker.life.register(broker.registration)
    await nursery.start(broker.life.run)
    await broker.life.caught_up.wait()
    image = channel.node.metadata.image
    assert image.brokers[4].fenced
    assert broker.life.broker_epoch == image.brokers[4].epoch
    assert image.brokers[4].directories == (directory(4, 0), directory(4, 1))
    await trio.sleep(5)
    assert not broker.life.unfenced.is_set(), "it is not ready yet"
    await broker.life.serve()
    assert not channel.node.metadata.image.brokers[4].fenced
    assert channel.requested_apis[0] == "BrokerRegistration"
    beats = len(channel.requested_apis)
    await trio.sleep(20)
    assert len(channel.requested_apis) - beats in (9, 10), "one every broker.heartbeat.interval.ms"


async def test_broker_behind_its_registration_is_not_caught_up(
    autojump_clock: trio.testing.MockClock, channel: Channel, nursery: trio.Nursery
) -> None:
    broker = Broker(channel, 4)
    broker.follows = False
    await broker.life.register(broker.registration)
    await nursery.start(broker.life.run)
    with trio.move_on_after(1) as waiting:
        await broker.life.caught_up.wait()
    assert waiting.cancelled_caught
    broker.view.image = channel.node.metadata.image
    await broker.life.caught_up.wait()


async def test_controlled_shutdown_moves_leaders_before_it_returns(
    autojump_clock: trio.testing.MockClock, channel: Channel, nursery: trio.Nursery
) -> None:
    brokers = []
    channel.node.metadata.image = create(cluster(0), NewTopic("no", 1, 1))[0]
    for number in (1, 2, 3):
        broker = Broker(channel, number)
        await broker.life.register(broker.registration)
        await nursery.start(broker.life.run)
        await broker.life.caught_up.wait()
        await broker.life.serve()
        brokers.append(broker)
    metadata = channel.node.metadata
    metadata.decide(lambda image: _topic(image))
    await brokers[0].life.shut_down()
    assert brokers[0].life.state is BrokerState.SHUTTING_DOWN
    image = metadata.image
    assert partition(image, "t").leader == 2
    assert partition(image, "t").isr == (2, 3)
    assert image.brokers[1].fenced
    assert not image.brokers[2].fenced


def _topic(image: MetadataImage) -> Any:
    from odradek.replication.controller.topics import TopicDefaults, create_topics
    from tests.support.cluster_images import any_config, entropy

    return create_topics(
        image,
        [NewTopic("t", assignments={0: (1, 2, 3)})],
        entropy=entropy(),
        defaults=TopicDefaults(),
        validate_config=any_config,
    )


async def test_concurrent_controlled_shutdowns(
    autojump_clock: trio.testing.MockClock, channel: Channel, nursery: trio.Nursery
) -> None:
    """The last broker shuts down without another broker to lead its partitions."""
    metadata = channel.node.metadata
    metadata.image = formatted()
    brokers = []
    for number in (1, 2, 3):
        broker = Broker(channel, number)
        await broker.life.register(broker.registration)
        await nursery.start(broker.life.run)
        await broker.life.serve()
        brokers.append(broker)
    metadata.decide(_topic)
    began = trio.current_time()
    async with trio.open_nursery() as going:
        for broker in brokers:
            going.start_soon(broker.life.shut_down)
    assert trio.current_time() - began < 5
    assert all(each.fenced for each in metadata.image.brokers.values())
    assert partition(metadata.image, "t").leader == -1


async def test_controlled_shutdown_without_controller_ends_with_session(
    autojump_clock: trio.testing.MockClock, channel: Channel, nursery: trio.Nursery
) -> None:
    broker = Broker(channel, 4)
    await broker.life.register(broker.registration)
    await nursery.start(broker.life.run)
    await broker.life.serve()
    channel.is_cut = True
    began = trio.current_time()
    await broker.life.shut_down()
    assert trio.current_time() - began <= 9
    assert not channel.node.metadata.image.brokers[4].fenced


async def test_registration_timeout_is_reported(
    autojump_clock: trio.testing.MockClock, channel: Channel, nursery: trio.Nursery
) -> None:
    """Another broker with the same id is alive."""
    broker = Broker(channel, 1, **{"initial.broker.registration.timeout.ms": "5000"})
    await broker.life.register(broker.registration)
    await nursery.start(broker.life.run)
    await broker.life.failed.wait()
    assert 5 <= trio.current_time() < 9
    assert "duplicate_broker_registration" in (broker.life.failure or "")


async def test_restarted_broker_registers_after_previous_session(
    autojump_clock: trio.testing.MockClock, channel: Channel, nursery: trio.Nursery
) -> None:
    await nursery.start(channel.node.quorum_controller.run)
    broker = Broker(channel, 1)
    await broker.life.register(broker.registration)
    await nursery.start(broker.life.run)
    await broker.life.serve()
    assert 9 <= trio.current_time() < 13
    assert not channel.node.metadata.image.brokers[1].fenced


async def test_heartbeats_report_directories(
    autojump_clock: trio.testing.MockClock, channel: Channel, nursery: trio.Nursery
) -> None:
    broker = Broker(channel, 4)
    await broker.life.register(broker.registration)
    with pytest.raises(KafkaError, match="not registered yet"):
        await broker.life.report()
    await nursery.start(broker.life.run)
    await broker.life.serve()
    broker.offline.append(directory(4, 1))
    broker.cordoned.append(directory(4, 0))
    await broker.life.report()
    known = channel.node.metadata.image.brokers[4]
    assert known.directories == (directory(4, 0),)
    assert known.cordoned_directories == (directory(4, 0),)


async def test_single_node_retries_until_it_is_active_controller(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """It leads the quorum but is not the active controller yet."""
    node = ControllerNode(FakeMetadata(formatted(), node_id=1, voters=(1,)))
    channel = Channel(node)
    lone = Broker(channel, 1)
    lone.life._metadata = node.metadata
    node.metadata.subscribe(lone.life._metadata_changed)
    await nursery.start(node.quorum_controller.run)
    node.metadata.turn(False)
    await lone.life.register(lone.registration)
    await nursery.start(lone.life.run)
    await trio.sleep(1)
    node.metadata.turn(True)
    with trio.fail_after(60):
        await lone.life.serve()
    assert not node.metadata.image.brokers[1].fenced
    beats = len(channel.requested_apis)
    await trio.sleep(60)
    assert len(channel.requested_apis) == beats


async def test_single_node_sends_no_heartbeats_until_others_register(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    node = ControllerNode(FakeMetadata(formatted(), node_id=1, voters=(1,)))
    channel = Channel(node)
    lone = Broker(channel, 1)
    lone.life._metadata = node.metadata
    node.metadata.subscribe(lone.life._metadata_changed)
    await nursery.start(node.quorum_controller.run)
    await lone.life.register(lone.registration)
    await nursery.start(lone.life.run)
    await lone.life.serve()
    assert type(node.metadata.batches[0][0]).__name__ == "RegisterBrokerRecord"
    assert not node.metadata.image.brokers[1].fenced
    await trio.sleep(60)
    assert channel.requested_apis == []
    assert not node.metadata.image.brokers[1].fenced, "a single node needs no heartbeats"
    other = Broker(channel, 2)
    other.view.quorum = node.metadata.quorum
    await other.life.register(other.registration)
    await nursery.start(other.life.run)
    await other.life.serve()
    beats = len(channel.requested_apis)
    await trio.sleep(20)
    assert 18 <= len(channel.requested_apis) - beats <= 20
    assert not any(each.fenced for each in node.metadata.image.brokers.values())
    await lone.life.shut_down()
    assert node.metadata.image.brokers[1].fenced


async def test_broker_unregistered_during_controlled_shutdown_stays_unregistered(
    autojump_clock: trio.testing.MockClock, channel: Channel, nursery: trio.Nursery
) -> None:
    metadata = channel.node.metadata
    metadata.image = formatted()
    brokers = []
    for number in (1, 2):
        broker = Broker(channel, number)
        metadata.subscribe(broker.life._metadata_changed)
        await broker.life.register(broker.registration)
        await nursery.start(broker.life.run)
        await broker.life.serve()
        brokers.append(broker)
    channel.is_cut = True
    began = trio.current_time()
    async with trio.open_nursery() as stopping:
        stopping.start_soon(brokers[0].life.shut_down)
        await trio.sleep(1)
        metadata.decide(lambda image: unregister_broker(image, 1))
    assert trio.current_time() == began + 1
    assert brokers[0].life.state is BrokerState.SHUTTING_DOWN
    channel.is_cut = False
    await trio.sleep(20)
    assert set(metadata.image.brokers) == {2}


async def test_removal_of_earlier_registration_is_ignored_while_catching_up(
    autojump_clock: trio.testing.MockClock, channel: Channel, nursery: trio.Nursery
) -> None:
    broker = Broker(channel, 4)
    broker.follows = False
    await broker.life.register(broker.registration)
    await nursery.start(broker.life.run)
    await trio.sleep(1)
    channel.node.metadata.subscribe(broker.life._metadata_changed)
    channel.node.metadata.decide(lambda image: unregister_broker(image, 3))
    assert 4 not in broker.view.image.brokers
    await trio.sleep(1)
    assert channel.requested_apis.count("BrokerRegistration") == 1
