"""Records that have replaced others at planned offsets are not read."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from odradek.pipeline.data_source import BatchReader
from odradek.pipeline.errors import DataLoss
from odradek.pipeline.options import parse_options
from odradek.testing import Broker
from tests.pipeline.recreated_topics import recreate_topic
from tests.pipeline.virtual_histories import TOPIC, History, Rows, by_offset, consume
from tests.support.librdkafka_clients import produce
from tests.support.virtual_reading import FULL, VirtualSource, rows_of


def test_recreated_topic_is_not_read() -> None:
    with Broker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        (made,) = admin.create_topics([NewTopic("events", 1)]).values()
        made.result(30)
        _produce(broker, b"old", 30)
        given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "events"}
        for lenient in (False, True):
            given["failondataloss"] = str(not lenient)
            reader = BatchReader(parse_options(given, streaming=False), FULL)
            tasks = list(reader.partitions())
            assert len(rows_of(reader, tasks[0])) == 30
            recreate_topic(broker, "events", 1)
            _produce(broker, b"new", 40)
            if lenient:
                assert [rows_of(reader, task) for task in tasks] == [[]]
                continue
            with pytest.raises(DataLoss, match=r"events was deleted and recreated"):
                rows_of(reader, tasks[0])
            recreate_topic(broker, "events", 1)
            _produce(broker, b"old", 30)


def _produce(broker: Broker, value: bytes, count: int) -> None:
    produce(broker.bootstrap, "events", [value] * count, partition=0)


def test_records_after_unclean_election_are_not_read_as_planned() -> None:
    """The log is truncated, and other records are written at these offsets before the tasks run."""
    others: list[tuple[int, int]] = []

    async def look(history: History) -> None:
        source = VirtualSource(history.virtual_world, history.cluster, TOPIC)
        given = source.options(failOnDataLoss=False, **{"tiered.url": None})
        reader = BatchReader(parse_options(given, streaming=False), FULL)
        before: Rows = {}
        tasks: list[Any] = []

        async def plan(history: History) -> None:
            tasks.extend(await source.run_synchronously(reader.partitions))
            before.update(await consume(history, committed=False))

        await history._elect_uncleanly(plan)
        for _ in range(20):
            await history._produce()
        found = by_offset(await source.rows(reader, tasks, history.chance))
        after = await consume(history, committed=False)
        assert all(row == before[where] for where, row in found.items())
        there = before.keys() & after.keys()
        assert found.keys() == {where for where in there if before[where] == after[where]}
        others.extend(where for where in there if before[where] != after[where])

    async def nothing(history: History) -> None:
        pass

    History(0, nodes=3, deletes=False, unclean=True).play(nothing, look, steps=4)
    assert others
