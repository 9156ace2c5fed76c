"""A virtual cluster with diskless topics, whose brokers commit files without objects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import trio

from odradek.broker.coordination.internal_topics import DISKLESS_METADATA_TOPIC
from odradek.broker.diskless.diskless import Diskless
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.protocol.schemas.diskless_apis import (
    DisklessCommitBatchResult,
    DisklessCommitFileRequest,
)
from odradek.storage.diskless.object_key import object_key
from odradek.storage.diskless.queries import FindPosition, TimestampPosition
from tests.support.diskless_coordinators import commit_batch
from tests.support.virtual_cluster import Nodes, run

DISKLESS_CONFIGS = {
    "diskless_storage_system_enable": "true",
    "diskless_storage_url": "memory:///",
    "diskless_metadata_topic_num_partitions": "3",
    "diskless_metadata_topic_replication_factor": "3",
    "broker_heartbeat_interval_ms": "500",
    "broker_session_timeout_ms": "1500",
    "replica_lag_time_max_ms": "1500",
    "controller_quorum_election_timeout_ms": "300",
    "controller_quorum_fetch_timeout_ms": "600",
}
TOPIC = "t"
BROKERS = {1: "controller", 4: "broker", 5: "broker", 6: "broker"}
"""One controller that is never killed, and three brokers."""


def run_cluster(
    main: Callable[[DisklessCluster], Awaitable[None]], *, seed: int = 4, **configs: str
) -> None:
    """Run `main` with three brokers and a controller. The seed decides the order of tasks and all random numbers."""

    async def start(nodes: Nodes) -> None:
        await nodes.start(*BROKERS)
        await main(DisklessCluster(nodes))

    run(start, BROKERS, configs={**DISKLESS_CONFIGS, **configs}, seed=seed)


class DisklessCluster:
    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.topic_id = UUID(int=0)
        self._files = 0

    def diskless(self, number: int) -> Diskless:
        diskless = self.nodes.brokers[number].services.diskless
        assert diskless is not None
        return diskless

    async def create(self, partitions: int = 3, topic: str = TOPIC, via: int = 4) -> UUID:
        """Create a diskless topic, and wait until all brokers have its metadata."""
        response = await self.nodes.ask(
            via,
            apis.CREATE_TOPICS,
            {
                "topics": [
                    {
                        "name": topic,
                        "num_partitions": partitions,
                        "replication_factor": -1,
                        "assignments": [],
                        "configs": [{"name": "diskless.enable", "value": "true"}],
                    }
                ],
                "timeout": 5000,
                "validate_only": False,
            },
        )
        result = response.topics[0]
        assert result.error_code is ErrorCode.none, result
        self.topic_id = result.topic_id
        await self.until(
            lambda: all(
                result.topic_id in node.metadata.image.topics_by_id
                for node in self.nodes.brokers.values()
            )
        )
        return self.topic_id

    async def until(self, is_true: Callable[[], bool], seconds: float = 30) -> None:
        """Wait until a condition holds."""
        with trio.fail_after(seconds):
            while not is_true():
                await trio.sleep(0.05)

    def request(
        self,
        broker: int,
        *indexes: int,
        records: int = 1,
        producer_id: int = -1,
        sequence: int = -1,
        key: str | None = None,
    ) -> DisklessCommitFileRequest:
        """Commit of a new file with a batch of each of these partitions."""
        requests = self.diskless(broker).requests
        owners = {requests.coordinator_of(self.topic_id, index) or 0 for index in indexes}
        self._files += 1
        now_ms = self.nodes.world.clock.wall_ms()
        return DisklessCommitFileRequest(
            object_key=key or object_key(now_ms, broker, UUID(int=self._files)),
            object_format=1,
            file_size=1000,
            owner_ids=tuple(sorted(owners)),
            batches=tuple(
                commit_batch(
                    records,
                    topic_id=self.topic_id,
                    index=index,
                    byte_offset=100 * position,
                    producer_id=producer_id,
                    sequence=sequence,
                    timestamp_ms=now_ms,
                )
                for position, index in enumerate(indexes)
            ),
            timeout_ms=30_000,
        )

    async def commit(
        self, broker: int, *indexes: int, **more: Any
    ) -> Sequence[DisklessCommitBatchResult]:
        """Commit a new file from a broker."""
        return await self.diskless(broker).requests.commit_file(
            self.request(broker, *indexes, **more)
        )

    async def high_watermark(self, broker: int, index: int = 0, *, strict: bool = False) -> int:
        position = FindPosition(self.topic_id, index, 0, 1 << 20)
        (found,) = await self.diskless(broker).requests.find_batches(
            [position], max_bytes=1 << 20, strict=strict
        )
        assert found.error_code is ErrorCode.none, found
        return found.high_watermark

    async def latest(self, broker: int, index: int = 0) -> int:
        """The end offset, as ListOffsets has it."""
        position = TimestampPosition(self.topic_id, index, -1)
        (found,) = await self.diskless(broker).requests.list_offsets([position])
        assert found.error_code is ErrorCode.none, found
        return found.offset

    def coordinator_of(self, index: int) -> int:
        found = self.diskless(4).requests.coordinator_of(self.topic_id, index)
        assert found is not None
        return found

    def leader_of(self, index: int) -> int:
        """Broker that leads the coordinator of a partition."""
        image = self.nodes.brokers[1].metadata.image
        partition = image.partition(DISKLESS_METADATA_TOPIC, self.coordinator_of(index))
        assert partition is not None
        return partition.leader

    def follower_of(self, index: int) -> int:
        """A broker that follows the coordinator of a partition."""
        image = self.nodes.brokers[1].metadata.image
        partition = image.partition(DISKLESS_METADATA_TOPIC, self.coordinator_of(index))
        assert partition is not None
        return next(each for each in partition.replicas if each != partition.leader)

    def other_than(self, *numbers: int) -> int:
        """A broker that is none of these."""
        return next(each for each in (4, 5, 6) if each not in numbers)
