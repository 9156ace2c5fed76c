"""Whether there are enough voters left for the metadata quorum to decide anything, as a node finds out that
is about to stop.

When a whole cluster stops, whoever is last waits for a controlled shutdown that nobody can commit, and for
a successor that nobody can elect: as long as a session, and some seconds more. The others are gone, though,
and their addresses refuse connections. (Who does not answer at all may only be slow, and is waited for.)
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

from odradek.seams.network import ConnectionLost, Network

if TYPE_CHECKING:
    from odradek.replication.raft.metadata import Metadata
    from odradek.replication.raft.voters import Voter

log = logging.getLogger("odradek.node")

LOOK_SECONDS = 0.25
CONNECT_SECONDS = 1.0
"""Who has not refused by then counts as there."""


@contextmanager
def unless_quorum_is_gone(
    nursery: trio.Nursery, metadata: Metadata, network: Network
) -> Iterator[None]:
    """What is waited for in here is given up once so many of the voters are gone that the rest, this node
    included, is no majority. `nursery` ends soon after."""
    with trio.CancelScope() as waiting:
        nursery.start_soon(_look, metadata, network, waiting)
        yield


async def _look(metadata: Metadata, network: Network, waiting: trio.CancelScope) -> None:
    while True:
        await trio.sleep(LOOK_SECONDS)
        voters = list(metadata.quorum.voters)
        others = [voter for voter in voters if voter.id != metadata.node_id]
        if len(voters) - await _count_gone(network, others) <= len(voters) // 2:
            log.info("too few voters of the metadata quorum are left: nobody is waited for")
            waiting.cancel()
            return


async def _count_gone(network: Network, voters: list[Voter]) -> int:
    gone = 0

    async def look(voter: Voter) -> None:
        nonlocal gone
        endpoint = voter.endpoints[0]
        with trio.move_on_after(CONNECT_SECONDS):
            try:
                connection = await network.connect(endpoint.host, endpoint.port)
            except ConnectionLost:
                gone += 1
            else:
                connection.abort()

    async with trio.open_nursery() as nursery:
        for voter in voters:
            if voter.endpoints:
                nursery.start_soon(look, voter)
    return gone
