"""Detects, during shutdown, that too few voters are running to commit anything.

When a whole cluster stops, the last nodes would wait for a controlled shutdown and an election that
no quorum can complete. Stopped nodes refuse connections for longer than a restart takes, which ends
the wait. A node that does not respond may only be slow, and counts as running.
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

CHECK_SECONDS = 0.25
CONNECT_SECONDS = 1.0
"""A node that has not refused the connection by then counts as running."""
NO_MAJORITY_SECONDS = 2.0
"""Too few voters must be found for this long; a restarting node is usually back by then."""


class QuorumAvailability:
    """Checks whether a majority of the voters is running; one instance per node."""

    def __init__(self, metadata: MetadataManager, network: Network) -> None:
        self._metadata = metadata
        self._network = network
        self._no_majority_since = float("inf")

    @contextmanager
    def cancel_without_majority(self, nursery: trio.Nursery) -> Iterator[None]:
        """Cancel the body once no majority of the voters is running. `nursery` ends soon after."""
        with trio.CancelScope() as waiting:
            nursery.start_soon(self._watch, waiting)
            yield

    async def _watch(self, waiting: trio.CancelScope) -> None:
        while True:
            await trio.sleep(CHECK_SECONDS)
            now = trio.current_time()
            has_no_majority = await self._has_no_majority()
            self._no_majority_since = (
                min(self._no_majority_since, now) if has_no_majority else float("inf")
            )
            if now - self._no_majority_since >= NO_MAJORITY_SECONDS:
                log.info(
                    "no majority of the metadata quorum's voters is running: the shutdown does not wait for it"
                )
                waiting.cancel()
                return

    async def _has_no_majority(self) -> bool:
        """Whether no majority is running; False while the voters are unknown."""
        voters = self._metadata.quorum.voters
        others = [voter for voter in voters if voter.id != self._metadata.node_id]
        left = len(voters) - await self._count_stopped(others)
        return bool(others) and left <= len(voters) // 2

    async def _count_stopped(self, voters: list[Voter]) -> int:
        stopped = 0

        async def check(voter: Voter) -> None:
            nonlocal stopped
            endpoint = voter.endpoints[0]
            with trio.move_on_after(CONNECT_SECONDS):
                try:
                    connection = await self._network.connect(endpoint.host, endpoint.port)
                except ConnectionLost as lost:
                    stopped += isinstance(lost, ConnectionRefused)
                else:
                    connection.abort()

        async with trio.open_nursery() as nursery:
            for voter in voters:
                if voter.endpoints:
                    nursery.start_soon(check, voter)
        return stopped
