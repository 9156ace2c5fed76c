"""Who waits is told when its time has come, and nobody else."""

from __future__ import annotations

from math import inf

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from odradek.broker.deadlines import STALE_ENTRIES_MAX, Deadlines


class Waiting:
    def __init__(self) -> None:
        self.expired_at: float | None = None

    def expire(self) -> None:
        self.expired_at = trio.current_time()


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["add", "discard", "sleep"]), st.integers(0, 20)), max_size=30
)


@given(ACTIONS)
def test_each_expires_at_its_time_unless_discarded_before(actions: list[tuple[str, int]]) -> None:
    async def play() -> None:
        deadlines = Deadlines()
        due: dict[Waiting, float] = {}
        discarded: dict[Waiting, float] = {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deadlines.run)
            for what, number in actions:
                if what == "add":
                    wait = Waiting()
                    due[wait] = trio.current_time() + number
                    deadlines.add(due[wait], wait)
                elif what == "discard" and due:
                    wait = list(due)[number % len(due)]
                    deadlines.discard(wait)
                    discarded.setdefault(wait, trio.current_time())
                else:
                    await trio.sleep(number + 0.5)
            await trio.sleep(100)
            assert len(deadlines) == deadlines.entries == 0
            nursery.cancel_scope.cancel()
        for wait, at in due.items():
            if discarded.get(wait, inf) < at:
                assert wait.expired_at is None
            elif wait.expired_at is None:
                assert discarded[wait] == at, "discarded at that very moment"
            else:
                assert wait.expired_at == at

    trio.run(play, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_waits_that_ended_do_not_pile_up() -> None:
    deadlines = Deadlines()
    staying = Waiting()
    deadlines.add(50.0, staying)
    for _ in range(10 * STALE_ENTRIES_MAX):
        wait = Waiting()
        deadlines.add(1e6, wait)
        deadlines.discard(wait)
    assert len(deadlines) == 1
    assert deadlines.entries <= STALE_ENTRIES_MAX + 3
