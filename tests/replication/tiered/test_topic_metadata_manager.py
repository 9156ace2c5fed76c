"""TopicBasedRemoteLogMetadataManager in clusters of one or three brokers (T-03, T-44 to T-49)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

import pytest
import trio

from odradek.client.consumer import LATEST, ConsumedRecord, FoundOffset, Reader, list_offsets
from odradek.client.errors import TimedOut
from odradek.client.metadata import Cluster
from odradek.client.producer import open_producer
from odradek.protocol.topics import TopicPartition
from odradek.replication.tiered import metadata_topic_consumer
from odradek.replication.tiered.metadata_snapshots import (
    LoadedSnapshot,
    MetadataSnapshots,
    file_name,
)
from odradek.replication.tiered.metadata_subscriptions import Lane
from odradek.replication.tiered.metadata_topic_consumer import WAIT_S
from odradek.replication.tiered.topic_metadata_manager import REOPEN_S
from odradek.seams.files import Path
from odradek.storage.tiered.errors import (
    InvalidRemoteState,
    RemoteMetadataUnavailable,
    RemoteNotReady,
    RemoteResourceNotFound,
)
from odradek.storage.tiered.metadata_records import METADATA_TOPIC
from odradek.storage.tiered.metadata_snapshot_file import COMMITTED_OFFSETS
from odradek.storage.tiered.segment_metadata import (
    SegmentState,
    TopicIdPartition,
)
from odradek.testing.simulation.plan import DATA
from tests.replication.tiered.numbered_segments import FINISHED, A, B, becomes, copied, segment
from tests.support.remote_log_metadata import MetadataWorld, run


def test_published_event_is_applied_when_publish_returns() -> None:
    """T-23, T-24, T-26: a publication is complete when this node has applied it."""

    async def main(world: MetadataWorld) -> None:
        manager = world.manager(1)
        manager.partitions_changed([A], [])
        assert not manager.is_ready(A)
        await manager.wait_ready(A)
        await manager.add_segment(segment(A, 0))
        assert manager.segment_for(A, 0, 5) is None
        await manager.update_segment(becomes(segment(A, 0), FINISHED))
        found = manager.segment_for(A, 0, 5)
        assert found is not None
        assert found.state is FINISHED
        assert manager.highest_offset(A, 0) == 9
        assert manager.remote_log_size(A, 0) == 100

    run(main)


def test_invalid_event_is_rejected_before_it_is_published() -> None:
    """T-23, T-24, T-25."""

    async def main(world: MetadataWorld) -> None:
        manager = world.manager(1)
        manager.partitions_changed([A], [])
        await manager.wait_ready(A)
        await copied(world, 1, A, 0)
        with pytest.raises(InvalidRemoteState):
            await manager.add_segment(segment(A, 0))
        with pytest.raises(InvalidRemoteState):
            await manager.update_segment(becomes(segment(A, 0), SegmentState.COPY_SEGMENT_STARTED))

    run(main)


def test_partition_whose_opening_failed_is_opened_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T-47: an unexpected error delays neither the other partitions nor their snapshots."""
    load, opened = MetadataSnapshots.load, list[tuple[TopicIdPartition, float]]()

    async def load_planted(
        snapshots: MetadataSnapshots, partition: TopicIdPartition, index: int
    ) -> LoadedSnapshot | None:
        opened.append((partition, trio.current_time()))
        if opened[0][0] == partition and len(opened) == 1:
            raise RuntimeError("planted")
        return await load(snapshots, partition, index)

    monkeypatch.setattr(MetadataSnapshots, "load", load_planted)

    async def main(world: MetadataWorld) -> None:
        manager = world.manager(1)
        manager.partitions_changed([A, B], [])
        await manager.wait_ready(B)
        assert not manager.is_ready(A)
        await manager.wait_ready(A)
        assert [partition for partition, _ in opened] == [A, B, A]
        assert opened[1][1] - opened[0][1] < 1
        assert opened[2][1] - opened[0][1] >= REOPEN_S

    run(main)


def test_topic_is_created_with_its_configs() -> None:
    """T-08, T-44."""

    async def main(world: MetadataWorld) -> None:
        manager = world.manager(1)
        manager.partitions_changed([A], [])
        await manager.wait_ready(A)
        topic = await world.client.topic(METADATA_TOPIC)
        assert len(topic.partitions) == 3
        assert [len(each.replicas) for each in topic.partitions.values()] == [1, 1, 1]
        assert topic.internal

    run(main)


def test_three_nodes_have_the_same_metadata() -> None:
    """T-49, T-53."""

    async def main(world: MetadataWorld) -> None:
        for number in (1, 2, 3):
            world.manager(number).partitions_changed([A] if number == 1 else [], [A])
        for number in (1, 2, 3):
            await world.manager(number).wait_ready(A)
        for number in range(5):
            await copied(world, 1, A, number)
        for number in (2, 3):
            while world.manager(number).highest_offset(A, 0) != 49:
                await trio.sleep(0.01)
            assert len(list(world.manager(number).segments(A))) == 5

    run(main, 3)


def test_new_partition_is_ready_after_catching_up() -> None:
    """T-49: the partition is assigned, unassigned and assigned again."""

    async def main(world: MetadataWorld) -> None:
        manager = world.manager(1)
        manager.partitions_changed([A], [])
        await manager.wait_ready(A)
        for number in range(100):
            await copied(world, 1, A, number)
        manager.stop_partitions([A])
        assert not manager.is_ready(A)
        with pytest.raises(RemoteResourceNotFound):
            manager.highest_offset(A, 0)
        manager.partitions_changed([], [A])
        with pytest.raises(RemoteNotReady):
            manager.highest_offset(A, 0)
        await manager.wait_ready(A)
        assert manager.highest_offset(A, 0) == 999

    run(main, properties={"remote.log.metadata.topic.num.partitions": "1"})


def test_only_metadata_partitions_of_its_replicas_are_read() -> None:
    """T-49."""

    async def main(world: MetadataWorld) -> None:
        for number in (1, 2):
            world.manager(number).partitions_changed([A] if number == 1 else [B], [])
        await world.manager(1).wait_ready(A)
        await world.manager(2).wait_ready(B)
        await copied(world, 1, A, 0)
        await copied(world, 2, B, 0)
        assert world.manager(1).highest_offset(A, 0) == 9
        with pytest.raises(RemoteResourceNotFound):
            world.manager(1).highest_offset(B, 0)

    run(main, 3)


def test_restart_continues_from_the_snapshot() -> None:
    """T-47, T-48."""

    async def main(world: MetadataWorld) -> None:
        manager = world.manager(1)
        manager.partitions_changed([A, B], [])
        await manager.wait_ready(A)
        await manager.wait_ready(B)
        for number in range(20):
            await copied(world, 1, A, number)
        await trio.sleep(5)  # until a snapshot is written
        virtual_node = world.cluster.nodes[1].virtual_node
        assert virtual_node is not None
        names = virtual_node.files.list(Path(DATA))
        assert COMMITTED_OFFSETS in names
        assert file_name(A) in names
        await copied(world, 1, A, 20)
        await world.kill(1)
        await world.start(1)
        manager = world.manager(1)
        manager.partitions_changed([A, B], [])
        await manager.wait_ready(A)
        await manager.wait_ready(B)
        assert manager.highest_offset(A, 0) == 209
        assert len(list(manager.segments(A))) == 21
        # Of 42 records, only those after the snapshot were read.
        assert manager.records_read <= 4

    run(main, properties={"remote.log.metadata.topic.num.partitions": "1"})


def test_restart_without_valid_snapshot_reads_from_the_start() -> None:
    """T-48: a corrupt file only costs time."""

    async def main(world: MetadataWorld) -> None:
        manager = world.manager(1)
        manager.partitions_changed([A], [])
        await manager.wait_ready(A)
        for number in range(5):
            await copied(world, 1, A, number)
        await trio.sleep(5)
        await world.kill(1)
        node = world.cluster.nodes[1]
        virtual_node = world.world.node("repair", node.disk)
        virtual_node.files.write_new(Path(DATA) / file_name(A), b"what is this")
        await world.start(1)
        manager = world.manager(1)
        manager.partitions_changed([A], [])
        await manager.wait_ready(A)
        assert len(list(manager.segments(A))) == 5

    run(main)


def test_publication_survives_move_of_metadata_leader() -> None:
    """T-49: a publication waits for the new leader, and is applied once."""

    async def main(world: MetadataWorld) -> None:
        place = world.manager(1).metadata_partition_of(A)
        for number in (1, 2, 3):
            world.manager(number).partitions_changed([A], [])
            await world.manager(number).wait_ready(A)
        await copied(world, 1, A, 0)
        for round in range(1, 4):
            leader = world.leader_of(place)
            (writer,) = [each for each in world.running if each != leader][:1]
            await world.kill(leader)
            with trio.fail_after(30):
                await copied(world, writer, A, round)
            await world.start(leader)
            world.manager(leader).partitions_changed([A], [])
            await world.manager(leader).wait_ready(A)
            for number in (1, 2, 3):
                while world.manager(number).highest_offset(A, 0) != 10 * round + 9:
                    await trio.sleep(0.05)
        assert {number: len(list(world.manager(number).segments(A))) for number in (1, 2, 3)} == {
            1: 4,
            2: 4,
            3: 4,
        }

    run(main, 3)


def test_leader_of_metadata_partition_that_is_unknown_for_a_moment_is_looked_up_again() -> None:
    """A reader of two metadata partitions requests their leaders from a broker whose metadata is outdated."""

    async def main(world: MetadataWorld) -> None:
        manager = world.manager(1)
        place = manager.metadata_partition_of(A)
        other = next(
            each
            for each in (TopicIdPartition(UUID(int=n), "hotels", 0) for n in range(2, 99))
            if manager.metadata_partition_of(each) != place
        )
        manager.partitions_changed([A, other], [])
        for each in (A, other):
            await manager.wait_ready(each)
        await trio.sleep(2 * WAIT_S)  # until nothing changes any more
        assert manager._consumer is not None
        topic = manager._consumer._clusters[Lane.LIVE].topics[METADATA_TOPIC]
        topic.partitions[place] = replace(topic.partitions[place], leader=-1)
        await trio.sleep(2 * WAIT_S)
        with trio.fail_after(5):
            await copied(world, 1, A, 0)

    run(main)


def test_unknown_and_corrupt_records_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    async def main(world: MetadataWorld) -> None:
        manager = world.manager(1)
        manager.partitions_changed([A], [])
        await manager.wait_ready(A)
        entropy = world.world.node("other").seams.entropy
        async with open_producer(world.client, world.world.clock, entropy) as producer:
            for value in (b"", None, b"\xff" * 40, b"\x01\x63\x00what", b"\x01\x00\x00\x04foo"):
                await producer.send(
                    METADATA_TOPIC, value, partition=manager.metadata_partition_of(A)
                )
        await copied(world, 1, A, 0)
        assert manager.highest_offset(A, 0) == 9

    run(main)
    assert "skipping the record" in caplog.text


@pytest.mark.parametrize(
    ("position", "why"),
    [
        pytest.param(80, "Record is corrupt", id="checksum"),
        pytest.param(16, "corrupt message", id="magic"),
    ],
)
def test_corrupt_batch_stops_only_its_metadata_partition(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, position: int, why: str
) -> None:
    """The batch may be the only record of a segment, so it is not skipped: another replica may have it intact.

    The batch is retried with a pause, whether the broker or the reader finds the corruption.
    """
    polls = 0

    class CountedReader(Reader):
        async def poll(self, max_wait_s: float = 0.5) -> list[ConsumedRecord]:
            nonlocal polls
            polls += 1
            return await super().poll(max_wait_s)

    monkeypatch.setattr(metadata_topic_consumer, "Reader", CountedReader)

    async def main(world: MetadataWorld) -> None:
        manager = world.manager(1)
        place = manager.metadata_partition_of(A)
        elsewhere = next(
            each
            for each in (TopicIdPartition(UUID(int=n), "hotels", 0) for n in range(2, 99))
            if manager.metadata_partition_of(each) != place
        )
        manager.partitions_changed([A, elsewhere], [])
        await manager.wait_ready(A)
        for number in range(120):  # more than one fetch returns
            await copied(world, 1, A, number)
        manager.stop_partitions([A])
        flip(world, place)
        manager.partitions_changed([A], [])
        with trio.fail_after(10):
            await copied(world, 1, elsewhere, 0)
        before = polls
        await trio.sleep(20)
        assert polls - before < 60
        assert not manager.is_ready(A)
        assert manager.damaged_partitions == 1
        logged = [each for each in caplog.messages if "corrupt batch on broker 1" in each]
        assert [f"{METADATA_TOPIC}-{place} at offset 0: {why}" in each for each in logged] == [True]
        reading = manager._consumer
        assert reading is not None
        for index in range(3):
            manager.resign_metadata(index)
        manager.stop_partitions([elsewhere])
        await trio.sleep(1)  # until pending reads have ended
        reading._log_failure(TimedOut("no response"))
        await trio.sleep(3)
        assert reading._failing_since is None, (
            "the broker responds, although only with corrupt batches"
        )
        flip(world, place)
        with trio.fail_after(10):
            await manager.wait_ready(A)
        assert manager.highest_offset(A, 0) == 1199
        assert manager.damaged_partitions == 0
        assert (
            f"resuming {METADATA_TOPIC}-{place} at offset 0, after a corrupt batch"
            in caplog.messages
        )

    def flip(world: MetadataWorld, place: int) -> None:
        """Flip a bit of the first batch."""
        virtual_node = world.cluster.nodes[1].virtual_node
        assert virtual_node is not None
        path = Path(DATA) / f"{METADATA_TOPIC}-{place}" / f"{0:020}.log"
        file = virtual_node.files.open(path, write=True)
        file.write_at(position, bytes([file.read_at(position, 1)[0] ^ 1]))
        file.close()

    run(main)


def test_new_partition_below_topic_start_does_not_move_others_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T-44: the topic has a retention time, and more is published during the requests for its start and end offset.

    If earlier records were applied again, a deleted copy would seem to exist, and its local segment would be deleted.
    """
    looked_up: list[int] = []

    async def main(world: MetadataWorld) -> None:
        manager = world.manager(1)
        place = manager.metadata_partition_of(A)
        new_partition = next(
            each
            for each in (TopicIdPartition(UUID(int=n), "hotels", 0) for n in range(2, 99))
            if manager.metadata_partition_of(each) == place
        )
        manager.partitions_changed([A], [])
        await manager.wait_ready(A)
        for number in (1, 0):
            await copied(world, 1, A, number)
        for state in (SegmentState.DELETE_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_FINISHED):
            await manager.update_segment(becomes(segment(A, 0), state))
        broker = world.cluster.nodes[1].broker
        assert broker is not None
        topic = broker.partitions.opened(METADATA_TOPIC, place)
        assert topic is not None
        topic.delete_before(1, "retention")
        applied: list[tuple[int, SegmentState]] = []
        manager.on_segment(lambda each: applied.append((each.start_offset, each.state)))

        async def list_slowly(
            cluster: Cluster,
            wanted: Mapping[TopicPartition, int],
            *,
            timeout_s: float | None = None,
        ) -> Mapping[TopicPartition, FoundOffset]:
            found = await list_offsets(cluster, wanted, timeout_s=timeout_s)
            if timeout_s is None and LATEST in wanted.values():
                looked_up.append(place)
                await copied(world, 1, A, 2)
            return found

        monkeypatch.setattr(metadata_topic_consumer, "list_offsets", list_slowly)
        manager.partitions_changed([new_partition], [])
        await manager.wait_ready(new_partition)
        assert applied == [(20, SegmentState.COPY_SEGMENT_STARTED), (20, FINISHED)]

    run(main)
    assert looked_up


def test_second_of_two_concurrent_publishers_gets_an_error() -> None:
    """T-25: the publisher whose state is no longer a valid successor gets an error."""

    async def main(world: MetadataWorld) -> None:
        for number in (1, 2):
            world.manager(number).partitions_changed([A], [])
            await world.manager(number).wait_ready(A)
        await world.manager(1).add_segment(segment(A, 0))
        while not list(world.manager(2).segments(A)):
            await trio.sleep(0.01)
        refused: list[int] = []

        async def publish(by: int, state: SegmentState) -> None:
            try:
                await world.manager(by).update_segment(becomes(segment(A, 0), state))
            except InvalidRemoteState:
                refused.append(by)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish, 1, FINISHED)
            nursery.start_soon(publish, 2, SegmentState.DELETE_SEGMENT_STARTED)
        (left,) = world.manager(2).segments(A)
        assert left.state is SegmentState.DELETE_SEGMENT_STARTED
        # Deletion may follow a finished copy, but not the reverse
        assert refused in ([], [1])

    for seed in range(4):
        run(main, 3, seed=seed)


def test_publication_not_read_in_time_has_unknown_result() -> None:
    """T-44: remote.log.metadata.consume.wait.ms is 0; the events are applied all the same."""

    async def main(world: MetadataWorld) -> None:
        manager = world.manager(1)
        manager.partitions_changed([A], [])
        await manager.wait_ready(A)
        late: list[str] = []
        for number in range(30):
            try:
                await manager.add_segment(segment(A, number))
            except RemoteMetadataUnavailable as error:
                late.append(str(error))
        assert late
        assert all("was not read" in each for each in late)
        while len(list(manager.segments(A))) < 30:
            await trio.sleep(0.01)

    run(main, properties={"remote.log.metadata.consume.wait.ms": "0"})


def test_only_one_publication_waits_for_unavailable_topic() -> None:
    """T-11: a waiting task occupies one of the few threads that copy and delete segments."""

    async def main(world: MetadataWorld) -> None:
        manager = world.manager(1)
        manager.partitions_changed([A], [])
        await manager.wait_ready(A)
        for number in (2, 3):
            await world.kill(number)
        lasted: list[int] = []

        async def publish(number: int, at: float) -> None:
            await trio.sleep_until(at)
            with pytest.raises(RemoteMetadataUnavailable):
                await manager.add_segment(segment(A, number))
            lasted.append(round(trio.current_time() - at))

        now = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number, at in enumerate((0, 12, 13, 30, 31)):
                nursery.start_soon(publish, number, now + at)
        # Each fails after delivery.timeout.ms (20 s) or at once.
        assert [0 if each < 2 else 20 for each in lasted] == [0, 0, 20, 0, 20]
        await world.start(2, 3)
        await copied(world, 1, A, 9)

    run(main, 3)


def test_topic_with_other_partition_count_is_unusable() -> None:
    """T-08."""

    async def main(world: MetadataWorld) -> None:
        running_manager = world.running[1]
        while running_manager.failure is None:
            await trio.sleep(0.1)
        assert "remote.log.metadata.topic.num.partitions is 3" in repr(running_manager.failure)

    async def before(world: MetadataWorld) -> None:
        await world.create(METADATA_TOPIC, 2)

    run(main, before=before)


def test_topic_that_cannot_be_created_fails_after_the_timeout(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """T-08: the manager fails with the reason, as in Kafka."""

    async def main(world: MetadataWorld) -> None:
        running_manager = world.running[1]
        while running_manager.failure is None:
            await trio.sleep(0.1)
        assert "is not available after 15 s" in repr(running_manager.failure)
        assert "replication factor of 3" in repr(running_manager.failure)

    run(
        main,
        properties={
            "remote.log.metadata.topic.replication.factor": "3",
            "remote.log.metadata.initialization.retry.max.timeout.ms": "15000",
        },
    )
    assert len([each for each in caplog.messages if "is not available yet" in each]) == 1
