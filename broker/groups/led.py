"""What the coordinator keeps of the clients that wait, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import trio

from odradek.broker.coordination.leadership import LedPartition
from odradek.broker.groups.actions import Answer, Then
from odradek.broker.groups.shard import Shard

Led: TypeAlias = LedPartition[Shard, Then]


class ClientWaiter:
    """A client's request that will be answered."""

    __slots__ = ("_answer", "_answered")

    def __init__(self) -> None:
        self._answer: Answer | None = None
        self._answered: trio.Event | None = None

    def set(self, answer: Answer) -> None:
        self._answer = answer
        if self._answered is not None:
            self._answered.set()

    async def wait(self) -> Answer:
        if self._answer is None:
            self._answered = trio.Event()
            await self._answered.wait()
            assert self._answer is not None
        return self._answer


@dataclass(slots=True)
class GroupStatistics:
    """Counters since start, under the names of Kafka's sensors."""

    offset_commits: int = 0
    offset_deletions: int = 0
    offset_expirations: int = 0
    completed_rebalances: int = 0
