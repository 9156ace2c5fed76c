"""`PromptLock`: a free lock is acquired without a checkpoint, a held one in order of the requests."""

from __future__ import annotations

import trio
import trio.testing

from odradek.seams.locks import PromptLock


async def test_free_lock_is_acquired_without_checkpoint() -> None:
    lock = PromptLock()
    with trio.testing.assert_no_checkpoints():
        async with lock:
            pass
        async with lock:
            pass


async def test_waiting_tasks_acquire_the_lock_in_order() -> None:
    lock = PromptLock()
    had_it: list[int] = []

    async def take(number: int) -> None:
        async with lock:
            had_it.append(number)

    async with trio.open_nursery() as nursery:
        async with lock:
            for number in range(3):
                nursery.start_soon(take, number)
                await trio.testing.wait_all_tasks_blocked()
            assert had_it == []
    assert had_it == [0, 1, 2]


async def test_cancelled_task_is_skipped() -> None:
    lock = PromptLock()
    had_it: list[int] = []

    async def take(number: int, scope: trio.CancelScope) -> None:
        with scope:
            async with lock:
                had_it.append(number)

    scopes = [trio.CancelScope() for _ in range(3)]
    async with trio.open_nursery() as nursery:
        async with lock:
            for number, scope in enumerate(scopes):
                nursery.start_soon(take, number, scope)
                await trio.testing.wait_all_tasks_blocked()
            scopes[0].cancel()
            await trio.testing.wait_all_tasks_blocked()
        scopes[1].cancel()  # it already owns the lock
    assert had_it == [1, 2]
    with trio.testing.assert_no_checkpoints():
        async with lock:
            pass


async def test_lock_of_two_is_held_by_two_tasks() -> None:
    lock = PromptLock(2)

    async def hold(number: int) -> None:
        async with lock:
            had_it.append(number)
            await enough[number].wait()

    for _ in range(2):
        had_it: list[int] = []
        enough = [trio.Event() for _ in range(4)]
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(hold, number)
                await trio.testing.wait_all_tasks_blocked()
            assert had_it == [0, 1]
            for each, so_far in zip(enough, [3, 4, 4, 4], strict=True):
                each.set()
                await trio.testing.wait_all_tasks_blocked()
                assert had_it == list(range(so_far))


async def test_exception_releases_the_lock() -> None:
    lock = PromptLock()
    try:
        async with lock:
            raise KeyError
    except KeyError:
        pass
    with trio.testing.assert_no_checkpoints():
        async with lock:
            pass
