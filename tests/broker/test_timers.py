"""Tests of timers: callbacks are called at their deadlines only."""

from __future__ import annotations

import weakref
from math import inf

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from odradek.broker.timers import STALE_ENTRIES_MAX, Timers
from odradek.seams.clock import RealClock


class LoopClock(RealClock):
    """Clock of the trio event loop, which may be virtual."""

    def monotonic(self) -> float:
        return trio.current_time()


def ms(seconds: float) -> int:
    return round(seconds * 1000)


class Waiting:
    def __init__(self) -> None:
        self.expired_at: float | None = None

    def expire(self) -> None:
        self.expired_at = trio.current_time()


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["add", "discard", "sleep"]), st.integers(0, 20)), max_size=30
)


@given(ACTIONS)
def test_timer_expires_unless_disarmed(actions: list[tuple[str, int]]) -> None:
    async def play() -> None:
        timers = Timers(LoopClock(), Waiting.expire)
        due: dict[Waiting, float] = {}
        discarded: dict[Waiting, float] = {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(timers.run)
            for what, number in actions:
                if what == "add":
                    wait = Waiting()
                    due[wait] = trio.current_time() + number
                    timers.arm(wait, ms(due[wait]))
                elif what == "discard" and due:
                    wait = list(due)[number % len(due)]
                    timers.disarm(wait)
                    discarded.setdefault(wait, trio.current_time())
                else:
                    await trio.sleep(number + 0.5)
            await trio.sleep(100)
            assert len(timers) == timers.entries == 0
            nursery.cancel_scope.cancel()
        for wait, at in due.items():
            if discarded.get(wait, inf) < at:
                assert wait.expired_at is None
            elif wait.expired_at is None:
                assert discarded[wait] == at, "discarded at that very moment"
            else:
                assert wait.expired_at == at

    trio.run(play, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_stale_entries_are_removed() -> None:
    timers = Timers(LoopClock(), Waiting.expire)
    staying = Waiting()
    timers.arm(staying, ms(50.0))
    for _ in range(10 * STALE_ENTRIES_MAX):
        wait = Waiting()
        timers.arm(wait, ms(1e6))
        timers.disarm(wait)
    assert len(timers) == 1
    assert timers.entries <= STALE_ENTRIES_MAX + 3


def test_disarmed_key_is_released() -> None:
    timers = Timers(LoopClock(), Waiting.expire)
    waits = [Waiting() for _ in range(3)]
    for wait in waits:
        timers.arm(wait, ms(1e6))
        timers.arm(wait, ms(1e5))
    gone = [weakref.ref(wait) for wait in waits[1:]]
    for wait in waits[1:]:
        timers.disarm(wait)
    del wait, waits[1:]
    assert [each() for each in gone] == [None, None]
    assert len(timers) == 1
