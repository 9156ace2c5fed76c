"""Commits of metadata records: order, shared flushes, listeners and cancellation."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from odradek.protocol.errors import KafkaError
from odradek.replication.controller.controller_result import (
    MAX_BATCH_RECORDS,
    MAX_RECORDS,
    ControllerResult,
)
from odradek.replication.controller.image import InvalidMetadata, MetadataDelta, MetadataImage
from odradek.replication.raft.errors import BatchTooLarge, NotController
from odradek.replication.raft.metadata_manager import MetadataManager
from odradek.replication.raft.raft_client_driver import RaftClientDriver
from odradek.storage.errors import DiskFull, LogFailed
from odradek.testing.virtual_disk import UNLIMITED_BYTES
from odradek.testing.virtual_files import VirtualFiles
from odradek.testing.virtual_world import VirtualNode
from tests.support.metadata_nodes import (
    ROOT,
    configs,
    log_of,
    metadata_on,
    new_node,
    new_topic,
    planning,
    set_config,
    started,
)


async def test_new_cluster_has_the_first_records_of_kafka() -> None:
    node = new_node()
    metadata = await started(node)
    assert log_of(node.files) == [
        ["LEADER_CHANGE", "KRAFT_VERSION", "KRAFT_VOTERS"],
        [
            "BeginTransaction Bootstrap records",
            "FeatureLevel metadata.version",
            "FeatureLevel eligible.leader.replicas.version",
            "FeatureLevel group.version",
            "FeatureLevel share.version",
            "FeatureLevel streams.version",
            "FeatureLevel transaction.version",
            "Config min.insync.replicas",
            "EndTransaction",
        ],
        ["RegisterController"],
    ]
    assert (metadata.leader_id, metadata.leader_epoch) == (1, 1)
    assert metadata.image.offset == 12
    assert metadata.finalized_features == {
        "metadata.version": 30,
        "eligible.leader.replicas.version": 1,
        "group.version": 1,
        "kraft.version": 1,
        "share.version": 1,
        "streams.version": 1,
        "transaction.version": 2,
    }
    assert metadata.quorum.high_watermark == 13


async def test_commit_is_in_image_and_durable_when_it_returns() -> None:
    node = new_node()
    metadata = await started(node)
    syncs = node.files.syncs
    assert await metadata.commit([set_config("a"), set_config("b")]) == 14
    assert configs(metadata.image) == {"a": "1", "b": "1"}
    assert (metadata.image.offset, metadata.image.epoch) == (14, 1)
    assert log_of(node.files)[-1] == ["Config a", "Config b"]
    assert node.files.syncs > syncs
    after_power_cut = VirtualFiles(node.disk.crash(0))
    assert log_of(after_power_cut) == log_of(node.files)


async def test_perform_returns_the_result_of_the_operation() -> None:
    metadata = await started(new_node())
    assert await metadata.perform(planning(set_config("a"), result="done")) == "done"


async def test_operation_without_records_appends_nothing() -> None:
    node = new_node()
    metadata = await started(node)
    before, syncs = metadata.image, node.files.syncs
    assert await metadata.perform(planning(result=5)) == 5
    assert metadata.image is before
    assert node.files.syncs == syncs


async def test_operation_that_raises_appends_nothing() -> None:
    metadata = await started(new_node())
    before = metadata.image

    def refuse(image: MetadataImage) -> ControllerResult[None]:
        raise KafkaError("no")

    with pytest.raises(KafkaError, match="no"):
        await metadata.perform(refuse)
    assert metadata.image is before
    await metadata.commit([set_config("a")])


async def test_records_that_contradict_the_image_are_not_appended() -> None:
    node = new_node()
    metadata = await started(node)
    before = log_of(node.files)
    with pytest.raises(InvalidMetadata):
        await metadata.commit([new_topic(1), new_topic(1)])
    assert log_of(node.files) == before
    await metadata.commit([new_topic(1)])
    assert "topic-1" in metadata.image.topics_by_name


async def test_records_above_maximum_batch_size_are_not_appended() -> None:
    node = new_node()
    metadata = await started(node)
    before = log_of(node.files)
    with pytest.raises(BatchTooLarge):
        await metadata.commit([set_config(f"c{number}", "x" * 32000) for number in range(300)])
    assert log_of(node.files) == before
    assert configs(metadata.image) == {}
    await metadata.commit([set_config("a")])
    assert configs(metadata.image) == {"a": "1"}


async def test_many_records_are_appended_as_one_batch() -> None:
    node = new_node()
    metadata = await started(node)
    seen: list[int] = []
    metadata.subscribe(lambda delta: seen.append(len(delta.records)))
    # Larger than an operation of a client, such as the registration of a broker
    count = MAX_RECORDS + 1
    await metadata.commit([new_topic(number) for number in range(count)])
    assert seen == [count]
    assert [len(batch) for batch in log_of(node.files)[-1:]] == [count]


async def test_non_atomic_result_is_appended_as_several_batches() -> None:
    """The fencing of a broker may change many partitions, and waits for all of them once."""
    node = new_node()
    metadata = await started(node)
    seen: list[int] = []
    metadata.subscribe(lambda delta: seen.append(len(delta.records)))
    records = [new_topic(number) for number in range(MAX_BATCH_RECORDS + 1)]
    assert (
        await metadata.perform(lambda image: ControllerResult(records, "done", atomic=False))
        == "done"
    )
    assert seen == [MAX_BATCH_RECORDS, 1]
    assert len(metadata.image.topics_by_name) == len(records)


async def test_records_on_full_disk_are_not_published() -> None:
    records = [new_topic(number) for number in range(MAX_RECORDS + 1)]
    sizes = []
    refused: list[OSError] = []
    for node in (new_node(), new_node()):
        metadata = await started(node, on_full=refused.append)
        mount = node.files.disk.mount_of(ROOT)
        before = mount.used_bytes
        if not sizes:
            await metadata.commit(records)
            assert not refused
            sizes.append(mount.used_bytes - before)
    mount.capacity_bytes = before + sizes[0] - 1
    with pytest.raises(DiskFull):
        await metadata.commit(records)
    assert refused
    mount.capacity_bytes = UNLIMITED_BYTES
    await metadata.commit([set_config("a")])
    assert metadata.image.topics_by_name == {}


async def test_any_failed_flush_is_final() -> None:
    node = new_node()
    metadata = await started(node)

    def broken() -> None:
        raise ValueError("closed")

    metadata._log.flush = broken  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="closed"):
        await metadata.commit([set_config("a")])
    assert metadata.failed.is_set()
    with pytest.raises(LogFailed):
        await metadata.commit([set_config("b")])


async def test_flush_on_full_disk_is_completed_by_the_next(
    autojump_clock: object,
) -> None:
    metadata = await started(new_node())
    honest, refusals = metadata._log.flush, 3

    def flush() -> None:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise DiskFull("full")
        honest()

    metadata._log.flush = flush  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        await nursery.start(metadata.run)
        with pytest.raises(DiskFull):
            await metadata.commit([set_config("a")])
        assert configs(metadata.image) == {}
        await trio.sleep(5)
        assert configs(metadata.image) == {"a": "1"}
        nursery.cancel_scope.cancel()


# Concurrent commits


async def test_only_the_committer_requests_the_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    honest = RaftClientDriver.flush

    async def flush(self: RaftClientDriver, up_to: int) -> None:
        asked.append(up_to)
        await honest(self, up_to)

    metadata = await started(new_node())
    async with trio.open_nursery() as nursery:
        await nursery.start(metadata.run)
        await trio.testing.wait_all_tasks_blocked()
        monkeypatch.setattr(RaftClientDriver, "flush", flush)
        offsets = [await metadata.commit([set_config(f"c{number}")]) for number in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert asked == [offset + 1 for offset in offsets]


def slow_node() -> VirtualNode:
    """Disk that delays each operation by up to a second before and after it."""
    node = new_node()
    node.offload.delay_seconds = 1.0
    return node


async def test_concurrent_commits_share_flushes(autojump_clock: object) -> None:
    node = slow_node()
    metadata = await started(node)
    before = node.files.syncs
    await metadata.commit([set_config("a")])
    alone = node.files.syncs
    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(metadata.commit, [new_topic(number)])
    assert len(metadata.image.topics_by_name) == 100
    together = node.files.syncs - alone
    assert together <= 2 * (alone - before), "one running flush, and one for all commits during it"


async def test_operation_reads_uncommitted_records(
    autojump_clock: object,
) -> None:
    metadata = await started(slow_node())
    decided = []

    def take_next(image: MetadataImage) -> ControllerResult[int]:
        assert set(configs(metadata.image)) <= set(configs(image))
        number = len(configs(image))
        decided.append(number)
        return ControllerResult([set_config(f"n{number}")], number)

    results = []

    async def one() -> None:
        results.append(await metadata.perform(take_next))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(one)
    assert decided == list(range(20))
    assert sorted(results) == list(range(20))


async def test_result_without_records_waits_for_pending_commits(
    autojump_clock: object,
) -> None:
    metadata = await started(slow_node())

    def there(image: MetadataImage) -> ControllerResult[bool]:
        return ControllerResult([], "a" in configs(image))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(metadata.commit, [set_config("a")])
        await trio.testing.wait_all_tasks_blocked()
        assert "a" not in configs(metadata.image)
        assert await metadata.perform(there)
        assert "a" in configs(metadata.image)


async def test_uncommitted_records_are_not_in_the_image(autojump_clock: object) -> None:
    metadata = await started(slow_node())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(metadata.commit, [set_config("a")])
        await trio.testing.wait_all_tasks_blocked()
        assert configs(metadata.image) == {}
    assert configs(metadata.image) == {"a": "1"}


async def test_appended_commit_is_not_cancelled(autojump_clock: object) -> None:
    node = slow_node()
    metadata = await started(node)
    with trio.move_on_after(0.1) as scope:
        await metadata.commit([set_config("a")])
    assert scope.cancel_called
    assert configs(metadata.image) == {"a": "1"}
    await metadata.commit([set_config("b")])
    assert configs(metadata.image) == {"a": "1", "b": "1"}


async def test_commit_waiting_for_another_flush_is_not_cancelled(
    autojump_clock: object,
) -> None:
    metadata = await started(slow_node())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(metadata.commit, [set_config("a")])
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.1):
            await metadata.commit([set_config("b")])
        assert configs(metadata.image) == {"a": "1", "b": "1"}


# Listeners


async def test_listeners_are_notified_of_every_commit_in_order(autojump_clock: object) -> None:
    metadata = await started(slow_node())
    received: list[tuple[str, int, int]] = []

    def listen(who: str) -> None:
        def notify(delta: MetadataDelta) -> None:
            assert delta.image is metadata.image
            received.append((who, delta.before.offset, delta.image.offset))

        metadata.subscribe(notify)

    listen("first")
    listen("second")
    start = metadata.image.offset
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(metadata.commit, [new_topic(2 * number), new_topic(2 * number + 1)])
    offsets = range(start, start + 10, 2)
    assert received == [
        (who, offset, offset + 2) for offset in offsets for who in ("first", "second")
    ]


async def test_unsubscribed_listener_is_not_notified() -> None:
    metadata = await started(new_node())
    received: list[MetadataDelta] = []
    unsubscribe = metadata.subscribe(received.append)
    await metadata.commit([set_config("a")])
    unsubscribe()
    unsubscribe()
    await metadata.commit([set_config("b")])
    assert [len(delta.records) for delta in received] == [1]


async def test_listeners_are_notified_before_commit_returns() -> None:
    metadata = await started(new_node())
    received: list[MetadataDelta] = []
    metadata.subscribe(received.append)
    await metadata.commit([new_topic(1)])
    (delta,) = received
    assert [topic.name for topic in delta.created_topics.values()] == ["topic-1"]


# Before start and after close


async def test_commit_before_start_or_after_close_is_rejected() -> None:
    node = new_node()
    metadata: MetadataManager = metadata_on(node.seams)
    with pytest.raises(NotController):
        await metadata.commit([set_config("a")])
    await metadata.close()
    metadata = await started(node)
    await metadata.close()
    await metadata.close()
    with pytest.raises(NotController):
        await metadata.commit([set_config("a")])


async def test_close_waits_for_the_running_flush(autojump_clock: object) -> None:
    node = slow_node()
    metadata = await started(node)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(metadata.commit, [set_config("a")])
        await trio.testing.wait_all_tasks_blocked()
        await metadata.close()
    assert configs(metadata.image) == {"a": "1"}
