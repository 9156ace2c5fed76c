"""Tests of brokers that are fenced, lose a log directory, or leave: leaders and ISRs of the others."""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import Any

import pytest
import trio

from odradek.broker.node import Node, NodeFailed
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.image import PartitionImage
from odradek.seams.files import Path
from odradek.storage.errors import DiskFull
from tests.support.records import batch
from tests.support.virtual_cluster import ALONE, COMBINED, ONE, Nodes, raised, run
from tests.support.waiting import wait_until_async

SESSION_SECONDS = 9.0
TWO_DISKS = {"log_dirs": "/data,/more", "metadata_log_dir": "/data"}


async def create(nodes: Nodes, topic: str, *assignment: tuple[int, ...]) -> None:
    assignments = [
        {"partition_index": index, "broker_ids": replicas}
        for index, replicas in enumerate(assignment)
    ]
    wanted = {"name": topic, "num_partitions": -1, "replication_factor": -1, "configs": []}
    response = await nodes.ask(
        next(iter(nodes.brokers)),
        apis.CREATE_TOPICS,
        {
            "topics": [{**wanted, "assignments": assignments}],
            "timeout": 5000,
            "validate_only": False,
        },
    )
    assert response.topics[0].error_code is ErrorCode.none


def partition(nodes: Nodes, topic: str, index: int = 0) -> PartitionImage:
    """Partition in the image of the active controller."""
    found = nodes.brokers[nodes.active].metadata.image.partition(topic, index)
    assert found is not None
    return found


def cut_off(nodes: Nodes, number: int) -> None:
    for other in nodes.brokers:
        if other != number:
            nodes.world.wires.partition(f"node-{number}", f"node-{other}")


async def start_three(nodes: Nodes) -> tuple[int, int, int]:
    """Start three nodes; returns the active controller and the others. The second of them leads a topic with
    replicas on all."""
    await nodes.start(*COMBINED)
    active = nodes.active
    leader, last = (each for each in COMBINED if each != active)
    await create(nodes, "t", (leader, active, last))
    await wait_until_async(lambda: len(partition(nodes, "t").isr) == 3, 5)
    return active, leader, last


def test_partitioned_leader_is_replaced_and_rejoins_isr() -> None:
    async def main(nodes: Nodes) -> None:
        active, leader, last = await start_three(nodes)
        began = trio.current_time()
        cut_off(nodes, leader)
        await wait_until_async(lambda: partition(nodes, "t").leader == active, 2 * SESSION_SECONDS)
        assert SESSION_SECONDS - 2.1 <= trio.current_time() - began <= SESSION_SECONDS + 0.5
        assert set(partition(nodes, "t").isr) == {active, last}
        assert nodes.brokers[active].metadata.image.brokers[leader].fenced
        nodes.world.wires.heal()
        await wait_until_async(lambda: set(partition(nodes, "t").isr) == set(COMBINED), 20)
        assert not nodes.brokers[nodes.active].metadata.image.brokers[leader].fenced
        assert partition(nodes, "t").leader == active, "until leaders are balanced"

    run(main, COMBINED)


def test_preferred_leaders_are_elected_again() -> None:
    async def main(nodes: Nodes) -> None:
        active, leader, _ = await start_three(nodes)
        cut_off(nodes, leader)
        await wait_until_async(lambda: partition(nodes, "t").leader == active, 2 * SESSION_SECONDS)
        nodes.world.wires.heal()
        await wait_until_async(lambda: partition(nodes, "t").leader == leader, 40)

    run(main, COMBINED, configs={"leader_imbalance_check_interval_seconds": "15"})


def test_controlled_shutdown_moves_leaders_first() -> None:
    async def main(nodes: Nodes) -> None:
        active, leader, last = await start_three(nodes)
        broker: Node = nodes.brokers[leader]
        seen: list[tuple[int, bool]] = []

        def look(delta: Any) -> None:
            now = delta.image.partition("t", 0)
            seen.append((now.leader, delta.image.brokers[leader].fenced))

        nodes.brokers[active].metadata.subscribe(look)
        await nodes.stop(leader)
        assert seen.index((active, False)) < seen.index((active, True)), "it responded until then"
        assert set(partition(nodes, "t").isr) == {active, last}
        assert broker.stopped.is_set()

    run(main, COMBINED)


async def unregister(nodes: Nodes, broker_id: int, *, through: int) -> None:
    response = await nodes.ask(through, apis.UNREGISTER_BROKER, {"broker_id": broker_id})
    assert response.error_code is ErrorCode.none, response.error_message


@pytest.mark.parametrize("elr_version", [0, 1])
def test_unregistered_running_broker_alone_registers_again_and_leads(
    elr_version: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(nodes: Nodes) -> None:
        await nodes.start(1)
        await create(nodes, "t", (1,))
        update = {"feature": "eligible.leader.replicas.version", "max_version_level": elr_version}
        await nodes.ask(
            1,
            apis.UPDATE_FEATURES,
            {
                "timeout": 5000,
                "feature_updates": [{**update, "upgrade_type": 3}],
                "validate_only": False,
            },
        )
        metadata = nodes.brokers[1].metadata
        before = metadata.image.brokers[1]
        await unregister(nodes, 1, through=1)
        await wait_until_async(lambda: 1 in metadata.image.brokers, 5)
        now = metadata.image.brokers[1]
        assert now.epoch > before.epoch
        assert not now.fenced
        assert now.directories == before.directories
        assert partition(nodes, "t").leader == 1
        assert nodes.brokers[1].services.lifecycle.broker_epoch == now.epoch

    run(main, ALONE, configs=ONE)
    lines = [each.message for each in caplog.records if "was unregistered" in each.message]
    assert lines == [
        "broker 1 was unregistered (UnregisterBroker) while it is running; registering it again. To remove the "
        "broker from the cluster, stop it first"
    ]


@pytest.mark.parametrize("is_active", [False, True])
def test_unregistered_running_broker_of_a_cluster_rejoins_isr_and_leads(is_active: bool) -> None:
    async def main(nodes: Nodes) -> None:
        active, leader, last = await start_three(nodes)
        await create(nodes, "only", (active,), (leader,), (last,))
        victim = active if is_active else leader
        before = partition(nodes, "t").leader_epoch
        epoch = nodes.brokers[active].metadata.image.brokers[victim].epoch
        await unregister(nodes, victim, through=last)
        await wait_until_async(
            lambda: nodes.brokers[nodes.active].metadata.image.is_active(victim), 10
        )
        await wait_until_async(lambda: set(partition(nodes, "t").isr) == set(COMBINED), 20)
        assert nodes.brokers[nodes.active].metadata.image.brokers[victim].epoch > epoch
        if not is_active:
            assert partition(nodes, "t").leader_epoch > before
        leaders = [partition(nodes, "only", each).leader for each in range(3)]
        assert leaders == [active, leader, last]

    run(main, COMBINED)


def test_stopped_broker_remains_unregistered() -> None:
    async def main(nodes: Nodes) -> None:
        _active, leader, last = await start_three(nodes)
        await nodes.stop(leader)
        await unregister(nodes, leader, through=last)
        await trio.sleep(2 * SESSION_SECONDS)
        assert leader not in nodes.brokers[nodes.active].metadata.image.brokers

    run(main, COMBINED)


def test_failed_directory_moves_its_leaders_only() -> None:
    async def main(nodes: Nodes) -> None:
        active, leader, _ = await start_three(nodes)
        await create(nodes, "u", *[(leader, active)] * 4)
        table = nodes.brokers[leader].partitions
        await wait_until_async(lambda: all(table.opened("u", index) for index in range(4)), 5)
        lost = [
            index
            for index in range(4)
            if str(table.opened("u", index).log.directory).startswith("/more")  # type: ignore[union-attr]
        ]
        assert 0 < len(lost) < 4, "new partitions are spread over directories"
        logs = nodes.brokers[leader].logs
        nodes.machines[leader].disk.fail("/more*")
        logs.report_at(Path("/more/u-0/log"), OSError(5, "it broke"))
        await wait_until_async(
            lambda: all(partition(nodes, "u", each).leader == active for each in lost), 3
        )
        for index in set(range(4)) - set(lost):
            assert partition(nodes, "u", index).leader == leader
        image = nodes.brokers[active].metadata.image
        assert len(image.brokers[leader].directories) == 1
        assert not image.brokers[leader].fenced
        await trio.sleep(3 * SESSION_SECONDS)  # later heartbeats report it again without effect
        assert all(set(partition(nodes, "u", each).isr) == {active} for each in lost)

    run(main, COMBINED, configs=TWO_DISKS)


def append(nodes: Nodes, number: int, topic: str, index: int = 0) -> None:
    found = nodes.brokers[number].partitions.opened(topic, index)
    assert found is not None
    found.append(memoryview(bytearray(batch())), acks=1, now_ms=nodes.world.clock.wall_ms())


def full(nodes: Nodes, number: int, path: str) -> None:
    nodes.machines[number].disk.fail(f"{path}/*", errno.ENOSPC, {"write"})


def test_full_directory_goes_offline_if_others_can_lead() -> None:
    async def main(nodes: Nodes) -> None:
        active, leader, _ = await start_three(nodes)
        await create(nodes, "u", *[(leader, active)] * 4)
        table = nodes.brokers[leader].partitions
        await wait_until_async(lambda: all(table.opened("u", index) for index in range(4)), 5)
        await wait_until_async(
            lambda: all(len(partition(nodes, "u", each).isr) == 2 for each in range(4)), 5
        )
        lost = [
            index
            for index in range(4)
            if str(table.opened("u", index).log.directory).startswith("/more")  # type: ignore[union-attr]
        ]
        append(nodes, leader, "u", lost[0])
        full(nodes, leader, "/more")
        with pytest.raises(DiskFull):
            append(nodes, leader, "u", lost[0])
        await wait_until_async(
            lambda: all(partition(nodes, "u", each).leader == active for each in lost), 3
        )
        append(nodes, active, "u", lost[0])
        assert not nodes.brokers[active].metadata.image.brokers[leader].fenced

    run(main, COMBINED, configs=TWO_DISKS)


def test_full_node_stops_if_others_can_lead() -> None:
    """As in Kafka, the node stops with its last log directory."""

    async def main(nodes: Nodes) -> None:
        _, leader, _ = await start_three(nodes)
        await wait_until_async(lambda: nodes.brokers[leader].partitions.opened("t", 0), 5)
        full(nodes, leader, "/data/t-0")
        with pytest.raises(DiskFull):
            append(nodes, leader, "t")
        await trio.sleep_forever()

    with raised(NodeFailed, "No space left"):
        run(main, COMBINED)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_failed_log_directory_is_logged_in_one_line(
    error: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(nodes: Nodes) -> None:
        _, leader, _ = await start_three(nodes)
        await create(nodes, "u", *[(leader,)] * 4)
        table = nodes.brokers[leader].partitions
        await wait_until_async(lambda: all(table.opened("u", index) for index in range(4)), 5)
        logs = [found.log for index in range(4) if (found := table.opened("u", index))]
        there = [log for log in logs if str(log.directory).startswith("/more")]
        for index in range(4):
            append(nodes, leader, "u", index)
        nodes.machines[leader].disk.fail("/more/*", error, {"sync"})
        for log in there:
            nodes.brokers[leader].services.logs.flushing.due(log, log.end_offset)
        await wait_until_async(lambda: all(log.failure is not None for log in there), 5)
        await trio.sleep(2)

    run(main, COMBINED, configs=TWO_DISKS)
    lines = [each for each in caplog.records if each.levelname not in ("DEBUG", "INFO")]
    (line,) = [each.getMessage() for each in lines if "/more" in each.getMessage()]
    assert line.startswith("log directory /more is offline: [Errno ")
    assert line.endswith("Free disk space and restart the broker") is (error == errno.ENOSPC)


def test_full_log_directory_is_logged_with_what_happens(caplog: pytest.LogCaptureFixture) -> None:
    async def main(nodes: Nodes) -> None:
        active, leader, _ = await start_three(nodes)
        await create(nodes, "u", *[(leader, active)] * 4)
        table = nodes.brokers[leader].partitions
        await wait_until_async(lambda: all(table.opened("u", index) for index in range(4)), 5)
        nodes.machines[active].disk.fail("/more/*", errno.ENOSPC, {"write"})
        for index in range(4):
            append(nodes, leader, "u", index)
        await trio.sleep(4)
        full(nodes, leader, "/more")
        await wait_until_async(
            lambda: all(len(partition(nodes, "u", each).isr) == 2 for each in range(4)), 5
        )
        for index in range(4):
            with suppress(DiskFull):
                append(nodes, leader, "u", index)
        await trio.sleep(4)

    run(main, COMBINED, configs=TWO_DISKS)
    lines = [each for each in caplog.records if "/more" in each.getMessage()]
    fetching = [each.args[0] for each in lines if "Error while processing" in each.message]  # type: ignore[index]
    assert len(fetching) == len(set(fetching)), "a repeated error is logged once for a partition"
    (offline,) = [each.message for each in lines if "is offline" in each.message]
    assert offline.endswith(
        "; other replicas can lead its partitions. Free disk space and restart the broker"
    )
    no_space = [each.message for each in lines if each.message.startswith("no space left")]
    assert no_space
    for message in no_space:
        assert (
            "No restart is needed, unless this log directory goes offline: because other replicas "
            in message
        )


def test_shutdown_on_full_disk_leaves_log_directory_online(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(nodes: Nodes) -> None:
        await nodes.start(1)
        await create(nodes, "t", (1,))
        opened = nodes.brokers[1].partitions
        await wait_until_async(lambda: opened.opened("t", 0) is not None, 5)
        append(nodes, 1, "t")
        disk = nodes.machines[1].disk
        for small_file in ("*.snapshot", "*-checkpoint*", "*acknowledged*", "*_cleanshutdown*"):
            disk.fail(f"/data/{small_file}", errno.ENOSPC, {"write"})
        await nodes.stop(1)
        nodes.machines[1].disk.heal()
        await nodes.start(1)
        table = nodes.brokers[1].partitions
        await wait_until_async(lambda: table.opened("t", 0) is not None, 5)
        found = table.opened("t", 0)
        assert found is not None
        assert found.log.end_offset == 1

    run(main, ALONE, configs=ONE)
    lines = [each for each in caplog.records if each.levelname in ("WARNING", "ERROR", "CRITICAL")]
    (line,) = [each.getMessage() for each in lines]
    assert line.startswith("log directory /data was not shut down cleanly, so the next start")


def test_failed_close_of_metadata_log_does_not_prevent_clean_directories() -> None:
    disks = []

    async def main(nodes: Nodes) -> None:
        _, _, last = await start_three(nodes)
        disks.append(nodes.machines[last].disk)
        disks[0].fail("/data/__cluster_metadata-0/*.timeindex", operations={"write"})
        await nodes.stop(last)
        await trio.sleep_forever()

    with raised(NodeFailed, "the metadata log failed: kafka_storage_error"):
        run(main, COMBINED, configs=TWO_DISKS)
    marks = [path for path, _ in disks[0].walk() if path.endswith(".kafka_cleanshutdown")]
    assert "/more/.kafka_cleanshutdown" in marks


def test_full_directory_without_other_leader_serves_reads() -> None:
    """The broker is the only in-sync replica of one partition, and leads another one that others could lead."""

    async def main(nodes: Nodes) -> None:
        _, leader, _ = await start_three(nodes)
        await create(nodes, "alone", (leader,))
        table = nodes.brokers[leader].partitions
        await wait_until_async(lambda: table.opened("alone", 0) and table.opened("t", 0), 5)
        append(nodes, leader, "alone")
        for directory in ("/data/t-0", "/data/alone-0"):
            full(nodes, leader, directory)
        for topic in ("t", "alone"):
            with pytest.raises(DiskFull):
                append(nodes, leader, topic)
        assert partition(nodes, "t").leader == leader
        alone = table.opened("alone", 0)
        assert alone is not None
        assert alone.log.read(0, 1000, limit=1).slice is not None
        nodes.machines[leader].disk.heal()
        append(nodes, leader, "t")

    run(main, COMBINED)
