"""Test that a running broker applies changed dynamic configs."""

from __future__ import annotations

from typing import Any

from odradek.protocol.errors import ErrorCode
from odradek.protocol.records.records import Record, build_batch
from tests.support.virtual_cluster import ALONE, ONE, Nodes, alter, run


def written_by(producer_id: int, now_ms: int) -> memoryview:
    batch: Any = build_batch(
        [Record(-1, now_ms, None, b"v")],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
    )
    return memoryview(batch)


def test_producer_expiration_config_applies_at_once() -> None:
    async def main(nodes: Nodes) -> None:
        await nodes.start(1)
        node = nodes.brokers[1]
        assert await nodes.create(1, "t") is ErrorCode.none
        log = (await node.partitions.get("t", None, 0)).log
        clock = node.seams.clock
        now_ms = clock.wall_ms()
        log.append_as_leader(written_by(5, now_ms), leader_epoch=0, now_ms=now_ms)
        await clock.sleep(100)
        assert 5 in log.producers.active
        await alter(nodes, "producer.id.expiration.ms", "60000")
        await clock.sleep(100)
        assert 5 not in log.producers.active

    run(main, ALONE, configs={**ONE, "producer_id_expiration_check_interval_ms": "10000"})
