"""Files of diskless topics in a cluster of three brokers: hand-over, deletion, orphans, retention (KIP-1164, D-21 to D-25).

The files have an age at which they can just be committed, so that the tests need not wait until they are old.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from uuid import UUID

import pytest
import trio

from odradek.broker.diskless.coordinator_service import DeletePosition
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.replication.diskless.coordinator_state_machine import COMMIT_WINDOW_MS
from odradek.storage.diskless.object_key import object_key
from tests.support.diskless_cluster import TOPIC, DisklessCluster, run_cluster

MARGIN_MS = 15_000
CONFIGS = {
    "diskless_file_deletion_grace_period_ms": "2000",
    "diskless_coordinator_orphan_scan_interval_ms": "10000",
    "diskless_coordinator_orphan_scan_grace_period_ms": "0",
    "log_retention_check_interval_ms": "3000",
    "log_retention_ms": "-1",
}


@pytest.fixture(autouse=True)
def _no_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clocks of the brokers do not differ, so that the commit window needs no margin."""
    monkeypatch.setattr("odradek.broker.diskless.file_workers.FILE_AGE_MS", COMMIT_WINDOW_MS)
    monkeypatch.setattr("odradek.broker.diskless.orphan_scan.GRACE_MS_MIN", COMMIT_WINDOW_MS)


class FilesInCluster:
    """Uploads and commits files, and observes them."""

    def __init__(self, cluster: DisklessCluster) -> None:
        self.cluster = cluster
        self.objects = cluster.nodes.world.bucket.objects
        self._uploads = 0

    def upload(self, age_ms: int = COMMIT_WINDOW_MS - MARGIN_MS) -> str:
        self._uploads += 1
        now_ms = self.cluster.nodes.world.clock.wall_ms()
        key = object_key(now_ms - age_ms, 4, UUID(int=self._uploads))
        self.cluster.nodes.world.bucket.store(key, bytes(1000))
        return key

    async def commit(
        self, *indexes: int, owners: Sequence[int] = (), at: Sequence[int] | None = None
    ) -> str:
        """Commit a file with a batch of each partition; `at` has the positions of the batches whose commit arrives."""
        key = self.upload()
        request = self.cluster.request(4, *indexes, key=key)
        request = replace(
            request,
            owner_ids=tuple(owners) or request.owner_ids,
            batches=tuple(
                each
                for position, each in enumerate(request.batches)
                if at is None or position in at
            ),
        )
        results = await self.cluster.diskless(4).requests.commit_file(request)
        assert [each.error_code for each in results] == [ErrorCode.none] * len(results), results
        return key

    async def delete_records(self, *indexes: int) -> None:
        positions = [DeletePosition(self.cluster.topic_id, each, -1) for each in indexes]
        via = self.cluster.other_than(*set(BROKERS) - set(self.cluster.nodes.brokers))
        for result in await self.cluster.diskless(via).requests.delete_records(positions):
            assert result.error_code is ErrorCode.none, result

    async def until_deleted(self, *keys: str) -> None:
        await self.cluster.until(lambda: not self.objects.keys() & set(keys), seconds=120)

    async def trackers(self, key: str) -> list[int]:
        """Coordinators that track a file."""
        requests = self.cluster.diskless(
            next(each for each in BROKERS if self.is_up(each))
        ).requests
        found = []
        for coordinator_id in requests.coordinator_ids():
            listed = await requests.list_files(coordinator_id)
            assert listed.error_code is ErrorCode.none, listed
            if key in [each.object_key for each in listed.files]:
                found.append(coordinator_id)
        return found

    def is_up(self, broker: int) -> bool:
        return broker in self.cluster.nodes.brokers


BROKERS = (4, 5, 6)


def run_files(main: Callable[[FilesInCluster], Awaitable[None]], **configs: str) -> None:
    async def start(cluster: DisklessCluster) -> None:
        await cluster.create(3)
        await main(FilesInCluster(cluster))

    run_cluster(start, **{**CONFIGS, **configs})


def coordinators(files: FilesInCluster, *indexes: int) -> list[int]:
    return [files.cluster.coordinator_of(each) for each in indexes]


def test_file_passes_through_its_owners_and_is_deleted() -> None:
    """D-21, D-22, D-25: over the network, with three coordinators."""

    async def main(files: FilesInCluster) -> None:
        owners = coordinators(files, 2, 0, 1)
        key = await files.commit(0, 1, 2, owners=owners)
        kept = await files.commit(1)
        await files.delete_records(2, 0)
        await trio.sleep(MARGIN_MS / 1000 + 12)
        assert await files.trackers(key) == [owners[2]]
        assert key in files.objects
        await files.delete_records(1)
        await files.until_deleted(key, kept)
        assert files.objects == {}

    run_files(main)


def test_work_continues_after_the_crash_of_brokers() -> None:
    """D-22: the next leaders hand over and delete what the killed broker left."""

    async def main(files: FilesInCluster) -> None:
        orders = [(0, 1, 2), (1, 2, 0), (2, 0, 1)]
        keys = [
            await files.commit(0, 1, 2, owners=coordinators(files, *order)) for order in orders * 3
        ]
        await files.delete_records(0, 1, 2)
        await trio.sleep(MARGIN_MS / 1000 + 1)
        cluster = files.cluster
        killed = cluster.other_than(4)
        cluster.nodes.kill(killed)
        await cluster.until(lambda: killed not in {cluster.leader_of(each) for each in range(3)})
        await files.until_deleted(*keys)

    run_files(main)


def test_coordinator_takes_over_a_file_that_preceding_owners_do_not_know() -> None:
    """D-21: the uploader died between its commits."""

    async def main(files: FilesInCluster) -> None:
        owners = coordinators(files, 0, 1, 2)
        key = await files.commit(0, 1, 2, owners=owners, at=(1, 2))
        await files.delete_records(1)
        await trio.sleep(MARGIN_MS / 1000 + 15)
        assert await files.trackers(key) == [owners[2]]
        await files.delete_records(2)
        await files.until_deleted(key)

    run_files(main)


def test_orphans_are_deleted_and_files_are_not() -> None:
    """D-23: with requests to all coordinators."""

    async def main(files: FilesInCluster) -> None:
        orphan = files.upload(3 * COMMIT_WINDOW_MS)
        later = files.upload()
        committed = await files.commit(0, 1)
        await files.until_deleted(orphan)
        await trio.sleep(MARGIN_MS / 1000 + 25)
        assert {committed, later} == set(files.objects)
        await files.delete_records(0, 1)
        await files.until_deleted(committed, later)

    run_files(main)


def test_deleted_topic_frees_its_files() -> None:
    """D-25: DeleteTopics, through the metadata of the cluster."""

    async def main(files: FilesInCluster) -> None:
        keys = [await files.commit(0, 1, 2) for _ in range(3)]
        response = await files.cluster.nodes.ask(
            5, apis.DELETE_TOPICS, {"topics": [{"name": TOPIC, "topic_id": None}], "timeout": 5000}
        )
        assert response.responses[0].error_code is ErrorCode.none, response
        await files.until_deleted(*keys)

    run_files(main)


@pytest.mark.parametrize("limit", [{"log_retention_ms": "1"}, {"log_retention_bytes": "0"}])
def test_retention_frees_files(limit: dict[str, str]) -> None:
    """D-25: the batches of the test are years old."""

    async def main(files: FilesInCluster) -> None:
        key = await files.commit(0, 1)
        await files.until_deleted(key)
        assert await files.cluster.latest(4, 0) == 1

    run_files(main, **limit)
