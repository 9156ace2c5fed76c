"""A node that is about to stop waits for others only while enough of them are there to decide anything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from odradek.broker.quorum_presence import unless_quorum_is_gone
from odradek.replication.raft.voters import Voter, VoterEndpoint, VoterSet
from odradek.seams.network import ConnectionLost, Network


class Peers:
    """A network where some listen, some are gone, and some do not answer."""

    def __init__(self, **nodes: str) -> None:
        self.nodes = {int(name.removeprefix("n")): state for name, state in nodes.items()}

    async def connect(self, host: str, port: int) -> Any:
        match self.nodes[port]:
            case "gone":
                raise ConnectionLost("refused")
            case "silent":
                await trio.sleep_forever()
        return SimpleNamespace(abort=lambda: None)


def member(node_id: int, voters: int) -> Any:
    endpoints = [(VoterEndpoint("CONTROLLER", "h", each),) for each in range(1, voters + 1)]
    known = VoterSet(Voter(at, endpoints=each) for at, each in enumerate(endpoints, 1))
    return SimpleNamespace(node_id=node_id, quorum=SimpleNamespace(voters=known))


@pytest.mark.parametrize(
    ("node_id", "peers", "waits"),
    [
        (1, Peers(n2="here", n3="gone"), True),
        (1, Peers(n2="silent", n3="gone"), True),
        (1, Peers(n2="gone", n3="gone"), False),
        (1, Peers(n2="gone"), False),
        (1, Peers(), True),
        (9, Peers(n1="here", n2="gone", n3="here"), True),
        (9, Peers(n1="gone", n2="gone", n3="here"), False),
    ],
    ids=lambda value: str(getattr(value, "nodes", value)),
)
async def test_who_is_left_is_waited_for_while_it_is_a_majority(
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
    node_id: int,
    peers: Any,
    waits: bool,
) -> None:
    voters = max([node_id if node_id < 9 else 0, *peers.nodes])
    network: Network = peers
    with trio.move_on_after(10) as limit:
        with unless_quorum_is_gone(nursery, member(node_id, voters), network):
            await trio.sleep_forever()
        assert trio.current_time() < 2
    assert limit.cancelled_caught is waits
    nursery.cancel_scope.cancel()


async def test_they_may_go_one_after_the_other(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    peers = Peers(n2="here", n3="here")
    network: Any = peers

    async def go() -> None:
        for each in (2, 3):
            await trio.sleep(1)
            peers.nodes[each] = "gone"

    nursery.start_soon(go)
    with unless_quorum_is_gone(nursery, member(1, 3), network):
        await trio.sleep_forever()
    assert 2 <= trio.current_time() < 3
