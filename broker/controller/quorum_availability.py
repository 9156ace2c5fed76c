"""Whether there are enough voters left for the metadata quorum to decide anything, as a node finds out that
is about to stop.

When a whole cluster stops, whoever is last waits for a controlled shutdown that nobody can commit, and for
a successor that nobody can elect: as long as a session, and some seconds more. The others are gone, though,
and their addresses refuse connections, for longer than a restart takes. (Who does not answer at all may only be
slow, or this node be at fault, and is waited for.)
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

from odradek.seams.network import ConnectionLost, ConnectionRefused, Network

if TYPE_CHECKING:
    from odradek.replication.raft.metadata_manager import MetadataManager
    from odradek.replication.raft.voters import Voter

log = logging.getLogger("odradek.node")

LOOK_SECONDS = 0.25
CONNECT_SECONDS = 1.0
"""Who has not refused by then counts as there."""
GONE_SECONDS = 2.0
"""So long every look must find too few: one that restarts is back by then, mostly."""


class QuorumAvailability:
    """See the module. Of one node; what it has found holds for all that it waits for."""

    def __init__(self, metadata: MetadataManager, network: Network) -> None:
        self._metadata = metadata
        self._network = network
        self._gone_since = float("inf")

    @contextmanager
    def unless_gone(self, nursery: trio.Nursery) -> Iterator[None]:
        """What is waited for in here is given up once so many of the voters are gone that the rest, this
        node included, is no majority. `nursery` ends soon after."""
        with trio.CancelScope() as waiting:
            nursery.start_soon(self._look, waiting)
            yield

    async def _look(self, waiting: trio.CancelScope) -> None:
        while True:
            await trio.sleep(LOOK_SECONDS)
            now = trio.current_time()
            is_gone = await self._is_gone()
            self._gone_since = min(self._gone_since, now) if is_gone else float("inf")
            if now - self._gone_since >= GONE_SECONDS:
                log.info("too few voters of the metadata quorum are left: nobody is waited for")
                waiting.cancel()
                return

    async def _is_gone(self) -> bool:
        """False as long as it is not known who votes."""
        voters = self._metadata.quorum.voters
        others = [voter for voter in voters if voter.id != self._metadata.node_id]
        left = len(voters) - await self._count_gone(others)
        return bool(others) and left <= len(voters) // 2

    async def _count_gone(self, voters: list[Voter]) -> int:
        gone = 0

        async def look(voter: Voter) -> None:
            nonlocal gone
            endpoint = voter.endpoints[0]
            with trio.move_on_after(CONNECT_SECONDS):
                try:
                    connection = await self._network.connect(endpoint.host, endpoint.port)
                except ConnectionLost as lost:
                    gone += isinstance(lost, ConnectionRefused)
                else:
                    connection.abort()

        async with trio.open_nursery() as nursery:
            for voter in voters:
                if voter.endpoints:
                    nursery.start_soon(look, voter)
        return gone
