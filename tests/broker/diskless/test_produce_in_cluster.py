"""Idempotent producers of a diskless topic through faults of the store, the brokers and the coordinators.

Each producer has several requests in flight on one connection and repeats from the first one without a result, at the next
broker, as clients do. Afterwards every batch is in the log exactly once, in order (D-05 to D-07).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest
import trio

from odradek.client.connection import open_connection
from odradek.client.errors import ClientError
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records.batch import Batch
from odradek.protocol.records.records import decode
from odradek.seams.network import Address
from odradek.storage.diskless.queries import FindPosition
from odradek.testing.virtual_object_store import StoreFault, StoreFaultKind
from tests.support.diskless_cluster import DisklessCluster, run_cluster
from tests.support.partition_logs import idempotent

IN_FLIGHT = 3
RETRIED = frozenset(
    {
        ErrorCode.request_timed_out,
        ErrorCode.kafka_storage_error,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.out_of_order_sequence_number,
    }
)
"""Errors after which clients repeat a batch that is not the first one in flight, or any batch."""


@dataclass
class IdempotentProducer:
    cluster: DisklessCluster
    index: int
    count: int
    offsets: dict[int, int] = field(default_factory=dict)
    """Base offset of each acknowledged batch, by its sequence."""
    requests: int = 0

    async def run(self) -> None:
        brokers = deque(each for each in self.cluster.nodes.brokers if each != 1)
        brokers.rotate(self.index)
        while len(self.offsets) < self.count:
            brokers.rotate(1)
            if brokers[0] in self.cluster.nodes.brokers:
                await self._produce_at(brokers[0])

    async def _produce_at(self, broker: int) -> None:
        """Produce to a broker until a request fails."""
        network = self.cluster.nodes.world.wires.host("client")
        try:
            async with trio.open_nursery() as nursery:
                address = Address(f"node-{broker}", 9092)
                connection = await open_connection(network, address, nursery)
                failed = False
                while not failed and len(self.offsets) < self.count:
                    first = len(self.offsets)
                    sequences = range(first, min(first + IN_FLIGHT, self.count))
                    async with trio.open_nursery() as requests:
                        for sequence in sequences:
                            requests.start_soon(self._send, connection, sequence)
                            await trio.sleep(0.01)  # in this order
                    failed = any(each not in self.offsets for each in sequences)
                nursery.cancel_scope.cancel()
        except* (ClientError, OSError):
            await trio.sleep(0.1)

    async def _send(self, connection: object, sequence: int) -> None:
        self.requests += 1
        records = bytes(idempotent(1000 + self.index, sequence, size=sequence + 1))
        partition = {"index": self.index, "records": records}
        try:
            response = await connection.request(  # type: ignore[attr-defined]
                apis.PRODUCE,
                {
                    "transactional_id": None,
                    "acks": -1,
                    "timeout": 30_000,
                    "topic_data": [
                        {"topic_id": self.cluster.topic_id, "partition_data": [partition]}
                    ],
                },
            )
        except ClientError:
            return
        (topic,) = response.responses
        (result,) = topic.partition_responses
        if result.error_code is ErrorCode.none:
            self.offsets[sequence] = result.base_offset
        else:
            assert result.error_code in RETRIED, result


async def logged_sequences(cluster: DisklessCluster, index: int) -> list[int]:
    """Sequences of the batches of a partition in the log, by their bytes in the store."""
    broker = next(each for each in cluster.nodes.brokers if each != 1)
    position = FindPosition(cluster.topic_id, index, 0, 1 << 30)
    (found,) = await cluster.diskless(broker).requests.find_batches(
        [position], max_bytes=1 << 30, strict=True
    )
    assert found.error_code is ErrorCode.none, found
    sequences = []
    for info in found.batches:
        data = cluster.nodes.world.bucket.objects[info.object_key][info.byte_offset :]
        batch = Batch(memoryview(bytearray(data[: info.byte_size])))
        batch.check()
        (record,) = decode(batch)
        assert record.value is not None
        assert len(record.value) == batch.base_sequence + 1
        sequences.append(batch.base_sequence)
    return sequences


async def produce_and_check(cluster: DisklessCluster, faults: object, count: int = 40) -> int:
    """Run a producer for each partition during `faults`; returns the number of requests."""
    await cluster.create(3)
    producers = [IdempotentProducer(cluster, index, count) for index in range(3)]
    with trio.fail_after(300):
        async with trio.open_nursery() as nursery:
            for producer in producers:
                nursery.start_soon(producer.run)
            nursery.start_soon(faults)  # type: ignore[arg-type]
    for producer in producers:
        expected = list(range(count))
        assert [producer.offsets[each] for each in expected] == expected
        assert await logged_sequences(cluster, producer.index) == expected
    return sum(producer.requests for producer in producers)


async def nothing() -> None:
    pass


def test_produce_without_faults_is_sent_once() -> None:
    async def main(cluster: DisklessCluster) -> None:
        assert await produce_and_check(cluster, nothing, count=12) == 36

    run_cluster(main)


@pytest.mark.parametrize(
    "fault",
    [
        StoreFault(StoreFaultKind.THROTTLED, operations=("put",), after=3, times=40),
        StoreFault(StoreFaultKind.HALF_DONE, operations=("put",), after=3, times=40),
        StoreFault(StoreFaultKind.RESPONSE_LOST, operations=("put",), after=3, times=40),
        StoreFault(StoreFaultKind.HANGS, operations=("put",), after=3, times=6, seconds=12),
        StoreFault(StoreFaultKind.SLOW, operations=("put",), after=2, times=10, seconds=5),
    ],
    ids=lambda fault: fault.kind.name,
)
def test_store_faults_lose_and_double_nothing(fault: StoreFault) -> None:
    async def main(cluster: DisklessCluster) -> None:
        cluster.nodes.world.bucket.inject(fault)
        await produce_and_check(cluster, nothing, count=12)

    run_cluster(main)


@pytest.mark.slow
def test_leader_changes_of_coordinators_lose_and_double_nothing() -> None:
    """D-13: the next coordinator recognises the files whose commit is repeated."""

    async def main(cluster: DisklessCluster) -> None:
        async def faults() -> None:
            await trio.sleep(0.5)
            stopped = cluster.leader_of(0)
            await cluster.nodes.stop(stopped)
            await trio.sleep(1)
            await cluster.nodes.start(stopped)
            await trio.sleep(1)
            cluster.nodes.kill(cluster.leader_of(1))

        await produce_and_check(cluster, faults, count=60)

    run_cluster(main)


def test_crash_between_upload_and_commit_loses_and_doubles_nothing() -> None:
    """The object is left for the orphan scan; the producer repeats its batches at another broker."""

    async def main(cluster: DisklessCluster) -> None:
        bucket = cluster.nodes.world.bucket
        fault = StoreFault(StoreFaultKind.POWER_CUT_AFTER, operations=("put",), after=4, times=1)

        async def faults() -> None:
            bucket.inject(fault)
            await cluster.until(
                lambda: any(not cluster.nodes.machines[each].power.on for each in (4, 5, 6))
            )
            for each in (4, 5, 6):
                if not cluster.nodes.machines[each].power.on:
                    cluster.nodes.kill(each)

        await produce_and_check(cluster, faults)

    run_cluster(main)
