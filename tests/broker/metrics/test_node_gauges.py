"""Tests of partitions that change while metrics are collected."""

from __future__ import annotations

import trio

from odradek.broker.metrics.exposition import exposition
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from tests.support.virtual_cluster import ALONE, BOTH, BROKER, ONE, Nodes, run

MESSAGES = "kafka_server_brokertopicmetrics_messagesin_total"
ALL_MESSAGES = "kafka_server_brokertopicmetrics_messagesin_alltopics_total"
PARTITIONS = "kafka_controller_kafkacontroller_globalpartitioncount"
METRICS = {**ONE, "odradek_metrics_listener": "node-1:9404"}


def test_partition_that_leaves_during_collection_counts_once() -> None:
    """A total that decreased would look like a restart to Prometheus."""

    async def main(nodes: Nodes) -> None:
        await nodes.start(1)
        node = nodes.brokers[1]
        assert await nodes.create(1, "t") is ErrorCode.none
        partition = await node.partitions.get("t", None, 0)
        assert partition.traffic is not None
        partition.traffic.appended(3, 100)
        await node.services.metrics.prepare()
        deleted = [{"name": "t", "topic_id": None}]
        await nodes.ask(1, apis.DELETE_TOPICS, {"topics": deleted, "timeout": 5000})
        assert node.partitions.opened("t", 0) is None
        assert f"{ALL_MESSAGES} 3\n" in "".join(exposition(node.services.metrics))
        await node.services.metrics.prepare()
        assert f"{ALL_MESSAGES} 3\n" in "".join(exposition(node.services.metrics))

    run(main, ALONE, configs=METRICS)


def test_topic_totals_do_not_decrease_when_partitions_leave() -> None:
    """As in Kafka, they are removed with the last partition."""

    async def main(nodes: Nodes) -> None:
        await nodes.start(1, 2)
        assert await nodes.create(1, "t") is ErrorCode.none
        node = nodes.brokers[1]
        for index in (0, 1):
            traffic = (await node.partitions.get("t", None, index)).traffic
            assert traffic is not None
            traffic.appended(3, 100)
        to_2 = {"partition_index": 0, "replicas": [2]}
        await nodes.ask(
            1,
            apis.ALTER_PARTITION_REASSIGNMENTS,
            {
                "topics": [{"name": "t", "partitions": [to_2]}],
                "timeout": 5000,
                "allow_replication_factor_change": True,
            },
        )
        while node.partitions.opened("t", 0) is not None:
            await trio.sleep(0.1)
        await node.services.metrics.prepare()
        values = "".join(exposition(node.services.metrics))
        assert f"{ALL_MESSAGES} 6\n" in values
        assert f'{MESSAGES}{{topic="t"}} 6\n' in values
        deleted = [{"name": "t", "topic_id": None}]
        await nodes.ask(1, apis.DELETE_TOPICS, {"topics": deleted, "timeout": 5000})
        while node.partitions.opened("t", 1) is not None:
            await trio.sleep(0.1)
        await node.services.metrics.prepare()
        values = "".join(exposition(node.services.metrics))
        assert f"{ALL_MESSAGES} 6\n" in values
        assert 'topic="t"' not in values

    more = {"default_replication_factor": "2", "odradek_metrics_listener": ":9404"}
    run(main, {1: BOTH, 2: BROKER}, configs=more)


def test_concurrent_collections_report_no_zeros() -> None:
    async def main(nodes: Nodes) -> None:
        await nodes.start(1)
        metrics = nodes.brokers[1].services.metrics
        assert await nodes.create(1, "t") is ErrorCode.none
        await metrics.prepare()
        assert f"{PARTITIONS} 2\n" in "".join(exposition(metrics))
        async with trio.open_nursery() as others:
            others.start_soon(metrics.prepare)
            for _ in range(10):
                assert f"{PARTITIONS} 2\n" in "".join(exposition(metrics))
                await trio.lowlevel.checkpoint()

    run(main, ALONE, configs=METRICS)
