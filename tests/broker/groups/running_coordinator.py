"""A group coordinator with its log in memory, and requests to it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import UUID

import trio

from odradek.broker.groups.config import GroupConfig
from odradek.broker.groups.coordinator import GroupCoordinator
from odradek.broker.groups.coordinator_shard import OffsetCommit, OffsetToCommit
from odradek.broker.groups.messages import (
    JoinGroup,
    JoinGroupResponse,
    SyncGroup,
)
from odradek.protocol.errors import KafkaError
from odradek.seams.entropy import SeededEntropy
from odradek.testing.virtual_clock import VirtualClock
from tests.support.coordinator_log import MemoryLog

TOPIC_ID = UUID(int=9)


@asynccontextmanager
async def running(
    clock: VirtualClock, log: MemoryLog, **config: int
) -> AsyncIterator[GroupCoordinator]:
    settings = {"initial_rebalance_delay_ms": 0, **config}
    coordinator = GroupCoordinator(
        log, GroupConfig(**settings), clock=clock, entropy=SeededEntropy(random.Random(1))
    )
    for partition in range(log.partition_count()):
        coordinator.runtime.schedule_load(partition, 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(coordinator.run)
        yield coordinator
        nursery.cancel_scope.cancel()


def a_join(member_id: str = "", group: str = "g", **fields: object) -> JoinGroup:
    values = {
        "instance_id": None,
        "client_id": "c",
        "client_host": "/::1",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 20_000,
        "protocol_type": "consumer",
        "protocols": (("range", b""),),
        "member_uuid": "1",
        "id_required": False,
        **fields,
    }
    return JoinGroup(group, member_id, **values)  # type: ignore[arg-type]


def a_sync(joined: JoinGroupResponse, group: str = "g", **assignments: bytes) -> SyncGroup:
    given = assignments or {each.member_id: b"mine" for each in joined.members}
    return SyncGroup(group, joined.member_id, None, joined.generation, None, None, given)


def a_commit(offset: int = 5, group: str = "g", **fields: object) -> OffsetCommit:
    values = {"member_id": "", "instance_id": None, "generation": -1, **fields}
    offsets = (OffsetToCommit("t", TOPIC_ID, 0, offset, -1, None),)
    return OffsetCommit(group, offsets=offsets, **values)  # type: ignore[arg-type]


async def a_member(groups: GroupCoordinator) -> JoinGroupResponse:
    joined = await groups.join(a_join())
    await groups.sync(a_sync(joined))
    return joined


async def fetched(groups: GroupCoordinator, group: str = "g") -> int:
    (topic,) = await groups.fetch(group, [("t", None, [0])], require_stable=True)
    return topic.partitions[0].offset.offset


class PendingRequest:
    """A request that runs in its own task."""

    def __init__(self, nursery: trio.Nursery, ask: Callable[[], Awaitable[object]]) -> None:
        self.response: object = None
        self.is_responded = trio.Event()
        nursery.start_soon(self._run, ask)

    async def _run(self, ask: Callable[[], Awaitable[object]]) -> None:
        try:
            self.response = await ask()
        except KafkaError as error:
            self.response = error.code
        self.is_responded.set()
