"""Contract of `Offload`, for threads and virtual calls."""

from __future__ import annotations

import random
import threading

import pytest
import trio
import trio.testing

from odradek.seams.entropy import SeededEntropy
from odradek.seams.offload import Offload
from odradek.seams.threads import ThreadOffload
from odradek.testing.power import NodeCrashed, Power
from odradek.testing.virtual_clock import VirtualClock
from odradek.testing.virtual_offload import VirtualOffload


@pytest.fixture(params=["threads", "virtual"])
def offload(request: pytest.FixtureRequest) -> Offload:
    return ThreadOffload() if request.param == "threads" else VirtualOffload()


async def test_result_is_returned(offload: Offload) -> None:
    assert await offload.run(divmod, 7, 2, lane="/d1") == (3, 1)
    assert await offload.run(list, lane="objects") == []


async def test_exception_is_raised(offload: Offload) -> None:
    with pytest.raises(ZeroDivisionError):
        await offload.run(divmod, 7, 0, lane="/d1")


async def test_call_cancelled_before_its_start_is_not_made(offload: Offload) -> None:
    called = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await offload.run(called.append, 1, lane="/d1")
    assert scope.cancelled_caught
    assert called == []


async def test_started_call_is_not_abandoned() -> None:
    """A disk write is never abandoned."""
    begun, go_on = threading.Event(), threading.Event()
    done = []

    def write() -> None:
        begun.set()
        go_on.wait(5)
        done.append("written")

    offload = ThreadOffload()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: offload.run(write, lane="/d1"))
        await trio.to_thread.run_sync(begun.wait)
        nursery.cancel_scope.cancel()
        go_on.set()
    assert done == ["written"]


async def test_slow_lane_does_not_block_other_lanes() -> None:
    offload = ThreadOffload(threads_per_lane=2)
    release = threading.Event()
    finished = []

    async def stuck(n: int) -> None:
        await offload.run(release.wait, 5, lane="/slow")
        finished.append(n)

    async with trio.open_nursery() as nursery:
        for n in range(5):
            nursery.start_soon(stuck, n)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert await offload.run(len, "abc", lane="/fast") == 3
        assert finished == []
        release.set()
    assert sorted(finished) == [0, 1, 2, 3, 4]


class TestThreads:
    async def test_event_loop_does_not_wait_for_thread_start(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Thread.start returns only after the new thread has run, which takes long on a busy machine."""

        def start(thread: threading.Thread) -> None:
            raise AssertionError("started on the loop, and waited for")

        monkeypatch.setattr(threading.Thread, "start", start)
        assert await ThreadOffload().run(len, "abc", lane="/d1") == 3

    async def test_sequential_calls_use_one_thread(self) -> None:
        offload = ThreadOffload()
        threads = {await offload.run(threading.get_ident, lane="/d1") for _ in range(50)}
        assert len(threads) == 1
        assert threads != {threading.get_ident()}

    async def test_concurrent_calls_use_one_thread_each(self) -> None:
        offload, together = ThreadOffload(threads_per_lane=3), threading.Barrier(3)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(lambda: offload.run(together.wait, 5, lane="/d1"))

    async def test_call_that_meets_an_ending_thread_is_made(self) -> None:
        """An idle thread ends after a while; a call that it receives at that moment is still made."""
        offload = ThreadOffload(idle_seconds=0.0)
        for number in range(300):
            assert await offload.run(lambda n=number: n, lane="/d1") == number


class TestVirtual:
    @pytest.mark.parametrize("jumping", [False, True])
    def test_virtual_call_takes_virtual_time(self, jumping: bool) -> None:
        clock = VirtualClock()
        clock.jumping = jumping
        entropy = SeededEntropy(random.Random(3))
        offload = VirtualOffload(None, entropy, clock, delay_seconds=2.0, calls_per_lane=1)
        called: list[float] = []
        returned: list[float] = []

        async def call() -> None:
            await offload.run(lambda: called.append(clock.monotonic()), lane="/d1")
            returned.append(clock.monotonic())

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(call)
                await _pass_seconds(clock, 20)

        trio.run(main, clock=clock)
        assert len(returned) == 3
        for begins, ends in zip(called, returned, strict=True):
            assert 0 < begins < ends <= 12
        assert called[1] > returned[0]

    async def test_crashed_node_makes_no_calls(self) -> None:
        power = Power()
        offload = VirtualOffload(power)
        called = []
        power.cut()
        with pytest.raises(NodeCrashed):
            await offload.run(called.append, 1, lane="/d1")
        assert called == []

    @pytest.mark.parametrize("jumping", [False, True])
    def test_queued_call_is_dropped_at_power_failure(self, jumping: bool) -> None:
        clock, power = VirtualClock(), Power()
        clock.jumping = jumping
        offload = VirtualOffload(power, None, clock, delay_seconds=1.0)
        called: list[int] = []

        async def call() -> None:
            with pytest.raises(NodeCrashed):
                await offload.run(called.append, 1, lane="/d1")

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call)
                await _pass_seconds(clock, 0.5)
                power.cut()
                await _pass_seconds(clock, 0.1)
                assert not nursery.child_tasks
                await _pass_seconds(clock, 10)

        trio.run(main, clock=clock)
        assert called == []

    @pytest.mark.parametrize("jumping", [False, True])
    def test_cancelled_task_waits_for_started_call(self, jumping: bool) -> None:
        clock = VirtualClock()
        clock.jumping = jumping
        offload = VirtualOffload(None, None, clock, delay_seconds=1.0)
        called: list[float] = []

        async def call() -> None:
            await offload.run(lambda: called.append(clock.monotonic()), lane="/d1")

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call)
                await _pass_seconds(clock, 0.5)
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    await _pass_seconds(clock, 10)

        trio.run(main, clock=clock)
        assert called == [1.0]


async def _pass_seconds(clock: VirtualClock, seconds: float) -> None:
    await (clock.sleep if clock.jumping else clock.run_for)(seconds)
