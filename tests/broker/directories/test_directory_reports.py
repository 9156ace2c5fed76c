"""Reports of log directories to the controller: content, order and retries."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import trio

from odradek.broker.replicas.log_directory_reports import (
    ASSIGNMENTS_MAX,
    PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    LogDirectoryReport,
    LogDirectoryReporter,
    PendingLogDirectoryReports,
)
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.image import LOST, MetadataImage
from odradek.replication.controller.topics import NewTopic
from tests.support.cluster_images import cluster, create, directory
from tests.support.controller_node import Channel, ControllerNode, FakeMetadata

FIRST, SECOND = directory(1, 0), directory(1, 1)


def image_of(partitions: int = 3) -> tuple[MetadataImage, UUID]:
    """Image with a broker that has two directories, and a topic whose replicas have no directory yet."""
    image, _ = create(cluster(1, directories=2), NewTopic("t", partitions, 1))
    return image, image.topics_by_name["t"].id


# Pending reports


def test_failures_are_reported_before_assignments() -> None:
    image, t = image_of()
    reports = PendingLogDirectoryReports(1)
    assert not reports
    reports.placed((t, 0), FIRST)
    reports.failed(SECOND)
    assert reports.pause_seconds == 0
    assert reports.next(image) == LogDirectoryReport(failed=(SECOND,))
    reports.reported(LogDirectoryReport(failed=(SECOND,)))
    assert reports.next(image) == LogDirectoryReport(assignments=(((t, 0), FIRST),))


def test_cordoned_report_has_the_latest_directories() -> None:
    image, t = image_of()
    reports = PendingLogDirectoryReports(1)
    reports.placed((t, 0), FIRST)
    reports.cordoned([FIRST])
    assert reports.pause_seconds == 0
    first = reports.next(image)
    assert first == LogDirectoryReport(cordoned=frozenset({FIRST}))
    reports.cordoned([])  # while the report was pending
    reports.reported(first)
    assert reports.next(image) == LogDirectoryReport(cordoned=frozenset())
    reports.failed(SECOND)
    assert reports.next(image) == LogDirectoryReport(failed=(SECOND,))
    reports.reported(LogDirectoryReport(failed=(SECOND,)))
    reports.reported(LogDirectoryReport(cordoned=frozenset()))
    assert reports.next(image) == LogDirectoryReport(assignments=(((t, 0), FIRST),))


def test_only_latest_assignment_is_reported() -> None:
    image, t = image_of()
    reports = PendingLogDirectoryReports(1)
    reports.placed((t, 0), FIRST)
    first = reports.next(image)
    assert first is not None
    reports.placed((t, 0), SECOND)  # it moved again while the report was pending
    reports.reported(first)
    assert reports.next(image) == LogDirectoryReport(assignments=(((t, 0), SECOND),))


def test_assignment_in_image_is_not_reported() -> None:
    image, t = image_of()
    reports = PendingLogDirectoryReports(1)
    for replica in ((t, 9), (UUID(int=7), 0)):
        reports.placed(replica, FIRST)
    assert reports.next(image) is None
    assert not reports
    one_directory, _ = create(cluster(1), NewTopic("t", 1, 1))
    reports.placed((one_directory.topics_by_name["t"].id, 0), FIRST)
    assert reports.next(one_directory) is None, "the controller put it there itself"


def test_report_has_a_limit_of_assignments() -> None:
    image, t = image_of(ASSIGNMENTS_MAX + 10)
    reports = PendingLogDirectoryReports(1)
    for index in range(ASSIGNMENTS_MAX + 10):
        assert reports.pause_seconds == (PAUSE_SECONDS if index < ASSIGNMENTS_MAX else 0)
        reports.placed((t, index), FIRST)
    first = reports.next(image)
    assert first is not None
    assert len(first.assignments) == ASSIGNMENTS_MAX
    reports.reported(first)
    second = reports.next(image)
    assert second is not None
    assert len(second.assignments) == 10


def test_failed_reports_double_the_delay_up_to_limit() -> None:
    reports = PendingLogDirectoryReports(1)
    reports.failed(FIRST)
    pauses = []
    for _ in range(10):
        reports.refused()
        pauses.append(reports.pause_seconds)
    assert pauses[:2] == [2 * PAUSE_SECONDS, 4 * PAUSE_SECONDS]
    assert pauses[-1] == PAUSE_SECONDS_MAX
    reports.reported(LogDirectoryReport())
    assert reports.pause_seconds == 0


# Retries and batches


class Controller:
    """Real controller decisions; requests fail while `refuses` is set."""

    def __init__(self, image: MetadataImage) -> None:
        self.metadata = FakeMetadata(image)
        self.channel = Channel(ControllerNode(self.metadata))
        self.refuses = False
        self.reports: LogDirectoryReporter | None = None

    @property
    def image(self) -> MetadataImage:
        return self.metadata.image

    @property
    def batches(self) -> list[list[Any]]:
        return self.metadata.batches

    async def request(self, api: apis.Api, values: Mapping[str, Any], *, timeout_s: float) -> Any:
        await trio.lowlevel.checkpoint()
        if self.refuses:
            raise KafkaError(ErrorCode.not_controller)
        return await self.channel.request(api, values, timeout_s=timeout_s)

    async def heartbeat(self) -> None:
        assert self.reports is not None
        values = {
            "broker_id": 1,
            "broker_epoch": self.image.brokers[1].epoch,
            "current_metadata_offset": self.image.offset,
            "want_fence": False,
            "want_shut_down": False,
            "offline_log_dirs": self.reports.offline,
        }
        response = await self.request(apis.BROKER_HEARTBEAT, values, timeout_s=1)
        assert response.error_code is ErrorCode.none


def reporter(controller: Controller, timeout_ms: int = 30_000) -> LogDirectoryReporter:
    epoch = controller.image.brokers[1].epoch
    controller.reports = LogDirectoryReporter(
        lambda: controller.image,
        1,
        lambda: epoch,
        controller,
        controller.heartbeat,
        timeout_ms=timeout_ms,
    )
    return controller.reports


def replica(topic_id: UUID, index: int, assigned: UUID, *, is_leader: bool = True) -> Any:
    return SimpleNamespace(
        topic_id=topic_id, index=index, assigned_directory=assigned, is_leader=is_leader
    )


def where(controller: Controller) -> list[UUID]:
    (topic,) = controller.image.topics_by_id.values()
    return [partition.directory_of(1) for _, partition in sorted(topic.partitions.items())]


def leaders(controller: Controller) -> list[int]:
    (topic,) = controller.image.topics_by_id.values()
    return [partition.leader for _, partition in sorted(topic.partitions.items())]


async def test_assignments_share_a_request(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    image, t = image_of()
    controller = Controller(image)
    reports = reporter(controller)
    await nursery.start(reports.run)
    for index, at in enumerate((FIRST, SECOND, FIRST)):
        reports.seen(replica(t, index, FIRST if index == 2 else UUID(int=1)), at)
        await trio.sleep(PAUSE_SECONDS / 4)
    await reports.assigned(t, 2, SECOND)
    assert where(controller) == [FIRST, SECOND, SECOND]
    assert [len(batch) for batch in controller.batches] == [3]
    reports.seen(replica(t, 0, FIRST), FIRST)  # as in the image
    await trio.sleep(1)
    assert len(controller.batches) == 1


async def test_directory_failure_reports_replicas_assigned_elsewhere(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    image, t = image_of()
    controller = Controller(image)
    reports = reporter(controller)
    await nursery.start(reports.run)
    for index in range(2):
        await reports.assigned(t, index, FIRST)
    began = trio.current_time()
    reports.directory_failed(SECOND, [replica(t, 2, UUID(int=1)), replica(t, 1, FIRST)])
    while leaders(controller) != [1, -1, -1]:
        await trio.sleep(0.01)
    assert trio.current_time() - began < PAUSE_SECONDS + 0.05
    assert where(controller) == [FIRST, SECOND, SECOND]
    assert controller.image.brokers[1].directories == (FIRST,)


async def test_missing_replica_is_reported_lost_until_found(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """LOST of KIP-858; a replica that is found again may lead."""
    image, t = image_of(1)
    controller = Controller(image)
    reports = reporter(controller)
    await nursery.start(reports.run)
    reports.lost(t, 0)
    while where(controller) != [LOST]:
        await trio.sleep(0.01)
    assert leaders(controller) == [-1]
    await reports.assigned(t, 0, SECOND)
    assert (where(controller), leaders(controller)) == ([SECOND], [1])


@pytest.mark.parametrize("leads", [True, False])
async def test_report_timeout_stops_the_node(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, leads: bool
) -> None:
    """log.dir.failure.timeout.ms applies only if the broker led partitions in the directory."""
    image, t = image_of(1)
    controller = Controller(image)
    controller.refuses = True
    reports = reporter(controller, timeout_ms=3_000)
    await nursery.start(reports.run)
    began = trio.current_time()
    reports.directory_failed(SECOND, [replica(t, 0, SECOND, is_leader=leads)])
    with trio.move_on_after(60) as waiting:
        await reports.not_reported_in_time.wait()
    assert waiting.cancelled_caught == (not leads)
    if leads:
        assert 3 <= trio.current_time() - began < 3 + 2 * 3
        assert "log.dir.failure.timeout.ms" in (reports.failure or "")
    controller.refuses = False
    await trio.sleep(2 * PAUSE_SECONDS_MAX)
    assert controller.image.brokers[1].directories == (FIRST,)


async def test_directory_without_id_is_not_reported() -> None:
    controller = Controller(image_of()[0])
    reports = reporter(controller)
    reports.directory_failed(None, [])
    async with trio.open_nursery() as nursery:
        await nursery.start(reports.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert controller.batches == []
