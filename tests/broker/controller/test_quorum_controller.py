"""Tests of the periodic tasks of the active controller."""

from __future__ import annotations

import pytest
import trio

from odradek.broker.controller.quorum_controller import LEADERLESS_CHECK_SECONDS
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.schemas.cluster_records import NoOpRecord
from odradek.protocol.schemas.topic_records import ConfigRecord
from odradek.replication.controller.broker_fencing import fence_broker, unfence_broker
from odradek.replication.controller.broker_heartbeats import BrokerHeartbeat
from odradek.replication.controller.controller_result import ControllerResult
from odradek.replication.controller.features import DEFAULT_FEATURES, ELIGIBLE_LEADER_REPLICAS
from odradek.replication.controller.image import MetadataDelta
from odradek.replication.controller.partition_update_batches import PARTITIONS_PER_BATCH
from odradek.replication.controller.topics import NewTopic
from tests.support.cluster_images import cluster, create, partition
from tests.support.controller_node import Channel, ControllerNode, FakeMetadata

SESSION_SECONDS = 9.0
UNCLEAN = "unclean.leader.election.enable"


@pytest.fixture
def node() -> ControllerNode:
    image, _ = create(cluster(3), NewTopic("t", assignments={0: (1, 2, 3), 1: (2, 3, 1)}))
    return ControllerNode(FakeMetadata(image))


def fenced(node: ControllerNode) -> set[int]:
    return {each.id for each in node.metadata.image.brokers.values() if each.fenced}


async def beat(node: ControllerNode, broker: int) -> None:
    image = node.metadata.image
    values = {
        "broker_id": broker,
        "broker_epoch": image.brokers[broker].epoch,
        "current_metadata_offset": image.offset,
        "want_fence": False,
        "want_shut_down": False,
    }
    response = await Channel(node).request(apis.BROKER_HEARTBEAT, values)
    assert response.error_code is ErrorCode.none


async def test_broker_with_expired_session_is_fenced(
    autojump_clock: trio.testing.MockClock, node: ControllerNode, nursery: trio.Nursery
) -> None:
    await nursery.start(node.quorum_controller.run)
    for _ in range(5):
        await trio.sleep(SESSION_SECONDS / 3)
        await beat(node, 2)
        await beat(node, 3)
    assert fenced(node) == {1}
    assert partition(node.metadata.image, "t").leader == 2
    assert partition(node.metadata.image, "t").isr == (2, 3)


async def test_new_controller_starts_a_session_for_every_broker(
    autojump_clock: trio.testing.MockClock, node: ControllerNode, nursery: trio.Nursery
) -> None:
    await nursery.start(node.quorum_controller.run)
    await trio.sleep(SESSION_SECONDS - 1)
    node.metadata.turn(False)
    await trio.sleep(60)
    assert fenced(node) == set(), "it is no controller"
    with pytest.raises(KafkaError) as refused:
        _ = node.quorum_controller.sessions
    assert refused.value.code is ErrorCode.not_controller
    node.metadata.turn(True)
    await trio.sleep(SESSION_SECONDS - 1)
    assert fenced(node) == set()
    await trio.sleep(2)
    assert fenced(node) == {1, 2, 3}


async def test_failed_commit_is_retried(
    autojump_clock: trio.testing.MockClock, node: ControllerNode, nursery: trio.Nursery
) -> None:
    await nursery.start(node.quorum_controller.run)
    node.metadata.refuses = True
    await trio.sleep(2 * SESSION_SECONDS)
    assert fenced(node) == set()
    node.metadata.refuses = False
    await trio.sleep(1)
    assert fenced(node) == {1, 2, 3}


async def test_paused_controller_reads_heartbeats_before_fencing(
    mock_clock: trio.testing.MockClock, node: ControllerNode, nursery: trio.Nursery
) -> None:
    await nursery.start(node.quorum_controller.run)
    await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(3 * SESSION_SECONDS)
    await trio.testing.wait_all_tasks_blocked()
    assert fenced(node) == set()
    await beat(node, 2)
    await beat(node, 3)
    mock_clock.jump(SESSION_SECONDS / 4)
    await trio.testing.wait_all_tasks_blocked()
    assert fenced(node) == {1}


async def keep_alive(node: ControllerNode, *brokers: int) -> None:
    while True:
        for broker in brokers:
            await beat(node, broker)
        await trio.sleep(2)


@pytest.fixture
def fenced_broker_1() -> FakeMetadata:
    """Metadata in which broker 1 is fenced and is the only replica of its partitions."""
    assignments = dict.fromkeys(range(3 * PARTITIONS_PER_BATCH), (1,))
    metadata = FakeMetadata(create(cluster(2), NewTopic("t", assignments=assignments))[0])
    epoch = metadata.image.brokers[1].epoch
    metadata.decide(lambda image: fence_broker(image, 1, epoch))
    return metadata


async def test_new_controller_completes_leader_elections(
    autojump_clock: trio.testing.MockClock, fenced_broker_1: FakeMetadata, nursery: trio.Nursery
) -> None:
    """The unfenced broker leads only part of its partitions; its heartbeats change nothing."""
    epoch = fenced_broker_1.image.brokers[1].epoch
    fenced_broker_1.decide(
        lambda image: unfence_broker(image, 1, epoch, at_once=PARTITIONS_PER_BATCH)
    )
    node = ControllerNode(fenced_broker_1)
    assert leaders(node) == {-1, 1}
    nursery.start_soon(keep_alive, node, 1, 2)
    await nursery.start(node.quorum_controller.run)
    await trio.sleep(0.1)
    assert leaders(node) == {1}


async def test_leader_elections_of_unfencing_are_retried(
    autojump_clock: trio.testing.MockClock, fenced_broker_1: FakeMetadata, nursery: trio.Nursery
) -> None:
    node = ControllerNode(fenced_broker_1)
    await nursery.start(node.quorum_controller.run)
    await trio.sleep(1)

    def refuse(delta: MetadataDelta) -> None:
        fenced_broker_1.refuses = bool(delta.changed_brokers)

    fenced_broker_1.subscribe(refuse)
    with pytest.raises(KafkaError):
        await node.quorum_controller.heartbeat(
            BrokerHeartbeat(1, fenced_broker_1.image.brokers[1].epoch, fenced_broker_1.image.offset)
        )
    assert not fenced_broker_1.image.brokers[1].fenced
    assert leaders(node) == {-1, 1}
    fenced_broker_1.refuses = False
    nursery.start_soon(keep_alive, node, 1, 2)
    await trio.sleep(LEADERLESS_CHECK_SECONDS)
    assert leaders(node) == {1}


async def test_heartbeat_during_fencing_restores_leaders(
    autojump_clock: trio.testing.MockClock, fenced_broker_1: FakeMetadata, nursery: trio.Nursery
) -> None:
    epoch = fenced_broker_1.image.brokers[1].epoch
    fenced_broker_1.decide(lambda image: unfence_broker(image, 1, epoch))
    node = ControllerNode(fenced_broker_1)
    nursery.start_soon(keep_alive, node, 2)
    await nursery.start(node.quorum_controller.run)
    fenced_broker_1.subscribe(lambda _: nursery.start_soon(beat, node, 1))
    await trio.sleep(SESSION_SECONDS + 0.1)
    assert len(fenced_broker_1.batches) == 8, (
        "fenced, unfenced; without leaders in three steps, and with them again"
    )
    assert leaders(node) == {1}
    assert fenced(node) == set()


@pytest.mark.parametrize("enabled", [True, False])
async def test_preferred_leaders_are_restored(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, enabled: bool
) -> None:
    image, _ = create(cluster(3), NewTopic("t", assignments=dict.fromkeys(range(50), (1, 2, 3))))
    metadata = FakeMetadata(image)
    node = ControllerNode(
        metadata,
        {
            "leader.imbalance.check.interval.seconds": "30",
            "auto.leader.rebalance.enable": str(enabled).lower(),
        },
    )
    epoch = image.brokers[1].epoch
    metadata.decide(lambda image: fence_broker(image, 1, epoch))
    metadata.decide(lambda image: unfence_broker(image, 1, epoch))
    in_sync_again(metadata)
    nursery.start_soon(keep_alive, node, 1, 2, 3)
    await nursery.start(node.quorum_controller.run)
    await trio.sleep(29)
    assert leaders(node) == {2}
    await trio.sleep(2)
    assert leaders(node) == ({1} if enabled else {2})


def in_sync_again(metadata: FakeMetadata) -> None:
    from odradek.protocol.schemas.topic_records import PartitionChangeRecord

    topic = metadata.image.topics_by_name["t"]
    metadata.decide(
        lambda _: ControllerResult(
            [
                PartitionChangeRecord(partition_id=index, topic_id=topic.id, isr=(2, 3, 1))
                for index in topic.partitions
            ],
            None,
        )
    )


def leaders(node: ControllerNode) -> set[int]:
    topic = node.metadata.image.topics_by_name["t"]
    return {each.leader for each in topic.partitions.values()}


@pytest.mark.parametrize("allowed", [True, False])
async def test_leaderless_partition_gets_unclean_leader_if_allowed(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, allowed: bool
) -> None:
    image, _ = create(cluster(2), NewTopic("t", assignments={0: (1, 2)}))
    metadata = FakeMetadata(image)
    for broker in (1, 2):  # 1 shuts down; then 2, the last in-sync replica
        epoch = image.brokers[broker].epoch
        metadata.decide(lambda image, b=broker, e=epoch: fence_broker(image, b, e))
    metadata.decide(lambda image: unfence_broker(image, 1, image.brokers[1].epoch))
    forget_eligible(metadata)
    assert leaders(ControllerNode(metadata)) == {-1}
    configs = {"unclean.leader.election.enable": str(allowed).lower()}
    node = ControllerNode(metadata, configs)
    nursery.start_soon(keep_alive, node, 1)
    await nursery.start(node.quorum_controller.run)
    await trio.sleep(299)
    assert leaders(node) == {-1}
    await trio.sleep(2)
    assert leaders(node) == ({1} if allowed else {-1})


async def test_controller_config_of_unclean_election_precedes_cluster_default(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    image, _ = create(cluster(2), NewTopic("t", assignments={0: (1, 2)}))
    metadata = FakeMetadata(image)
    for broker in (1, 2):
        epoch = image.brokers[broker].epoch
        metadata.decide(lambda image, b=broker, e=epoch: fence_broker(image, b, e))
    metadata.decide(lambda image: unfence_broker(image, 1, image.brokers[1].epoch))
    forget_eligible(metadata)
    cluster_wide = ConfigRecord(resource_type=4, resource_name="", name=UNCLEAN, value="true")
    own = ConfigRecord(resource_type=4, resource_name="9", name=UNCLEAN, value="false")
    metadata.decide(lambda _: ControllerResult([cluster_wide, own], None))
    node = ControllerNode(metadata)
    node.config.apply_dynamic({UNCLEAN: "true"}, {UNCLEAN: "false"})
    nursery.start_soon(keep_alive, node, 1)
    await nursery.start(node.quorum_controller.run)
    await trio.sleep(301)
    assert leaders(node) == {-1}


def forget_eligible(metadata: FakeMetadata) -> None:
    """Remove the eligible leader replicas; broker 2 was the last in sync."""
    from odradek.protocol.schemas.topic_records import PartitionChangeRecord

    topic = metadata.image.topics_by_name["t"]
    metadata.decide(
        lambda _: ControllerResult(
            [
                PartitionChangeRecord(
                    partition_id=0,
                    topic_id=topic.id,
                    isr=(),
                    leader=-1,
                    eligible_leader_replicas=(2,),
                    last_known_elr=(2,),
                )
            ],
            None,
        )
    )


async def test_fencing_of_many_partitions_interleaves_with_other_operations(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    image, _ = create(cluster(3), NewTopic("t", assignments=dict.fromkeys(range(500), (1, 2, 3))))
    metadata = FakeMetadata(image)
    node = ControllerNode(metadata)
    nursery.start_soon(keep_alive, node, 2, 3)
    await nursery.start(node.quorum_controller.run)
    await trio.sleep(SESSION_SECONDS + 1)
    assert leaders(node) == {2}
    assert fenced(node) == {1}
    assert len(metadata.batches) == 18
    assert max(len(batch) for batch in metadata.batches) == PARTITIONS_PER_BATCH
    assert type(metadata.batches[-1][-1]).__name__ == "BrokerRegistrationChangeRecord"


async def test_controlled_shutdown_of_many_partitions_ends_after_last_batch(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    image, _ = create(cluster(2), NewTopic("t", assignments=dict.fromkeys(range(200), (1, 2))))
    node = ControllerNode(FakeMetadata(image))
    await beat(node, 2)
    assert not await asks_to_go(node, 1)
    assert leaders(node) == {2}
    assert not await asks_to_go(node, 1), "2 has not reported the offset"
    assert fenced(node) == set()
    await beat(node, 2)
    assert await asks_to_go(node, 1)
    assert fenced(node) == {1}


async def test_partitions_without_other_leader_do_not_block_controlled_shutdown(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Without ELR the last ISR member stays. The shutdown only waits until each other broker has
    replayed it, not for a new leader."""
    image, _ = create(
        cluster(3, features={**DEFAULT_FEATURES, ELIGIBLE_LEADER_REPLICAS: 0}),
        NewTopic("alone", assignments=dict.fromkeys(range(2 * PARTITIONS_PER_BATCH), (1,))),
        NewTopic("t", assignments={0: (1, 2, 3)}),
    )
    node = ControllerNode(FakeMetadata(image))
    assert not await asks_to_go(node, 1)
    assert leaders(node) == {2}
    alone = node.metadata.image.topics_by_name["alone"].partitions.values()
    assert {(each.leader, each.isr) for each in alone} == {(-1, (1,))}
    for other in (2, 3):
        assert not await asks_to_go(node, 1)
        await beat(node, other)
        node.metadata.decide(lambda _: ControllerResult([NoOpRecord()], None))
    assert await asks_to_go(node, 1)
    assert fenced(node) == {1}


async def asks_to_go(node: ControllerNode, broker: int) -> bool:
    image = node.metadata.image
    values = {
        "broker_id": broker,
        "broker_epoch": image.brokers[broker].epoch,
        "current_metadata_offset": image.offset,
        "want_fence": False,
        "want_shut_down": True,
    }
    response = await Channel(node).request(apis.BROKER_HEARTBEAT, values)
    assert response.error_code is ErrorCode.none
    may_go: bool = response.should_shut_down
    return may_go
