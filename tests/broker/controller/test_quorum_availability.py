"""Tests that a stopping node waits for the quorum only while the available voters are a majority."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from odradek.broker.controller.quorum_availability import NO_MAJORITY_SECONDS, QuorumAvailability
from odradek.replication.raft.voters import Voter, VoterEndpoint
from odradek.seams.network import ConnectionLost, ConnectionRefused


class Peers:
    """Network with listening, stopped, hanging and unreachable hosts."""

    def __init__(self, **nodes: str) -> None:
        self.nodes = {int(name.removeprefix("n")): state for name, state in nodes.items()}

    async def connect(self, host: str, port: int) -> Any:
        match self.nodes[port]:
            case "gone":
                raise ConnectionRefused("the connection is refused")
            case "out of reach":
                raise ConnectionLost("no route")
            case "silent":
                await trio.sleep_forever()
        return SimpleNamespace(abort=lambda: None)


def member(node_id: int, voters: int) -> Any:
    endpoints = [(VoterEndpoint("CONTROLLER", "h", each),) for each in range(1, voters + 1)]
    known = tuple(Voter(at, endpoints=each) for at, each in enumerate(endpoints, 1))
    return SimpleNamespace(node_id=node_id, quorum=SimpleNamespace(voters=known))


@pytest.mark.parametrize(
    ("node_id", "peers", "waits"),
    [
        (1, Peers(n2="here", n3="gone"), True),
        (1, Peers(n2="silent", n3="gone"), True),
        (1, Peers(n2="gone", n3="gone"), False),
        (1, Peers(n2="out of reach", n3="gone"), True),
        (1, Peers(n2="gone"), False),
        (1, Peers(), True),
        (9, Peers(n1="here", n2="gone", n3="here"), True),
        (9, Peers(n1="gone", n2="gone", n3="here"), False),
    ],
    ids=lambda value: str(getattr(value, "nodes", value)),
)
async def test_stop_waits_while_remaining_voters_are_a_majority(
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
    node_id: int,
    peers: Any,
    waits: bool,
) -> None:
    voters = max([node_id if node_id < 9 else 0, *peers.nodes])
    availability = QuorumAvailability(member(node_id, voters), peers)
    with trio.move_on_after(10) as limit:
        with availability.cancel_without_majority(nursery):
            await trio.sleep_forever()
        assert NO_MAJORITY_SECONDS <= trio.current_time() < 4
    assert limit.cancelled_caught is waits
    nursery.cancel_scope.cancel()


async def test_voters_may_stop_one_after_the_other(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    peers: Any = Peers(n2="here", n3="here")

    async def go() -> None:
        for each in (2, 3):
            await trio.sleep(1)
            peers.nodes[each] = "gone"

    nursery.start_soon(go)
    with QuorumAvailability(member(1, 3), peers).cancel_without_majority(nursery):
        await trio.sleep_forever()
    assert 2 + NO_MAJORITY_SECONDS <= trio.current_time() < 5


async def test_restarting_voter_counts_as_available(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """A single controller that restarts in time can still commit the controlled shutdown."""
    peers: Any = Peers(n1="here")

    async def restart() -> None:
        while True:
            await trio.sleep(1)
            peers.nodes[1] = "gone"
            await trio.sleep(NO_MAJORITY_SECONDS - 0.5)
            peers.nodes[1] = "here"

    nursery.start_soon(restart)
    with (
        trio.move_on_after(20) as limit,
        QuorumAvailability(member(9, 1), peers).cancel_without_majority(nursery),
    ):
        await trio.sleep_forever()
    assert limit.cancelled_caught
    nursery.cancel_scope.cancel()


async def test_without_known_voters_none_is_unavailable(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    availability: Any = QuorumAvailability(member(9, 0), Peers())  # type: ignore[arg-type]
    with trio.move_on_after(10) as limit, availability.cancel_without_majority(nursery):
        await trio.sleep_forever()
    assert limit.cancelled_caught
    nursery.cancel_scope.cancel()


async def test_unavailable_voter_is_not_checked_again(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """A node waits twice: for its controlled shutdown, and for a successor in the quorum."""
    availability = QuorumAvailability(member(1, 2), Peers(n2="gone"))  # type: ignore[arg-type]
    for _ in range(2):
        async with trio.open_nursery() as space:
            with availability.cancel_without_majority(space):
                await trio.sleep_forever()
            space.cancel_scope.cancel()
    assert NO_MAJORITY_SECONDS <= trio.current_time() < NO_MAJORITY_SECONDS + 1
