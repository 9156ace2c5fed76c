"""The source and a consumer read the same records, each once, whatever happened to the topic, for any split, also
while changes are in progress. A failing seed is reproducible.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

from odradek.pipeline.errors import PipelineError
from tests.pipeline.virtual_histories import PARTITIONS, TOPIC, History, by_offset, consume
from tests.support.virtual_reading import (
    VirtualSource,
    VirtualStream,
    first_offsets,
)


class Comparison:
    """Compares rows of the source with those of a consumer before and after."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        """Of queries that broke off, where that may be."""
        self.rows_from_store = 0
        self._streams: dict[bool, VirtualStream] = {}

    async def check(self, history: History) -> None:
        source = VirtualSource(history.virtual_world, history.cluster, TOPIC)
        for committed in (False, True):
            await self._both_tiers(history, source, committed)
            if not history.unclean:
                await self._store_alone(history, source, committed)
                await self._stream(history, source, committed)

    async def final_check(self, history: History) -> None:
        """The streams have read everything once, except for offsets that were deleted before."""
        await self.check(history)
        for committed, stream in self._streams.items():
            with trio.fail_after(60):
                while await stream.advance(history.chance):
                    pass
            found, there = by_offset(stream.rows), await consume(history, committed)
            assert {where: found.get(where) for where in there} == there
            assert history.deletes or found == there

    async def _stream(self, history: History, source: VirtualSource, committed: bool) -> None:
        if committed not in self._streams:
            self._streams[committed] = VirtualStream(
                source, committed=committed, failOnDataLoss=False, maxOffsetsPerTrigger=50
            )
        try:
            await self._streams[committed].advance(history.chance)
        except PipelineError as error:
            assert history.deletes or not history.is_complete
            self.errors.append(str(error))

    async def _both_tiers(self, history: History, source: VirtualSource, committed: bool) -> None:
        chance = history.chance
        split = chance.choice(
            ({}, {"minPartitions": 7}, {"maxRecordsPerPartition": 3}, {"maxBytesPerTask": 700})
        )
        before = await consume(history, committed)
        pause_s = chance.choice((0.0, 0.0, 1.0))
        try:
            rows = await source.read(chance, pause_s=pause_s, committed=committed, **split)
            offsets = await source.offsets(chance, committed=committed, **split)
        except PipelineError as error:
            assert history.deletes or not history.is_complete
            self.errors.append(str(error))
            return
        found = by_offset(rows)
        after = await consume(history, committed)
        for where, row in found.items():
            assert row in (before.get(where), after.get(where)), (
                "the row differs from those of the consumer"
            )
        assert len(set(offsets)) == len(offsets)
        assert set(offsets) <= before.keys() | after.keys()
        for where in before.keys() & after.keys():
            assert where in found, f"{after[where]} was left out"
            assert where in offsets, f"{after[where]} was not counted"

    async def _store_alone(self, history: History, source: VirtualSource, committed: bool) -> None:
        options: dict[str, Any] = {"kafka.bootstrap.servers": None, "committed": committed}
        try:
            rows = await source.read(history.chance, **options)
        except PipelineError as error:
            self.errors.append(str(error))
            return
        found = by_offset(rows)
        there = await consume(history, committed)
        self.rows_from_store += len(found)
        starts = await first_offsets(history.cluster, TOPIC, PARTITIONS)
        for where, start in starts.items():
            end = max((offset + 1 for each, offset in found if each == where.partition), default=0)
            for offset in range(start, end):
                at = where.partition, offset
                assert found.get(at) == there.get(at)


def compare(seed: int, **kind: Any) -> None:
    history, comparison = History(seed, **kind), Comparison()
    history.play(comparison.check, comparison.final_check)
    assert comparison.rows_from_store or history.unclean


def test_single_node() -> None:
    compare(2, nodes=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_three_nodes(seed: int) -> None:
    compare(seed, nodes=3)


@pytest.mark.slow
def test_unclean_leader_elections() -> None:
    compare(0, nodes=3, deletes=False, unclean=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 5))
@pytest.mark.parametrize(
    "kind",
    [
        {"nodes": 1},
        {"nodes": 3},
        {"nodes": 3, "deletes": False},
        {"nodes": 3, "deletes": False, "unclean": True},
    ],
    ids=("alone", "three", "all kept", "unclean"),
)
def test_more_histories(kind: dict[str, Any], seed: int) -> None:
    compare(seed, **kind)
