"""Contract of `Workers`, for processes and virtual workers: order of steps, exceptions, and early ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing

import pytest

from odradek.seams.files import Files, Path
from odradek.seams.processes import ProcessWorkers
from odradek.seams.real_files import RealFiles
from odradek.seams.workers import WorkerDied, Workers
from odradek.storage.errors import CorruptRecords
from odradek.testing.virtual_workers import VirtualWorkers


def squares(files: Files, count: int) -> Iterator[int]:
    for number in range(count):
        yield number * number


def noted(files: Files, path: Path) -> Iterator[str]:
    """Work that creates a file when it is closed."""
    try:
        yield "one"
        yield "two"
    finally:
        files.open(path, create=True).close()


def failing(files: Files, error: Exception) -> Iterator[str]:
    yield "begun"
    raise error


class Odd(Exception):
    def __init__(self, one: int, *, two: int) -> None:
        super().__init__(f"{one} {two}")


def odd(files: Files, argument: int) -> Iterator[str]:
    raise Odd(1, two=argument)
    yield ""


def printing(files: Files, text: str) -> Iterator[str]:
    print(text)
    os.write(1, text.encode())
    yield text


def who(files: Files, argument: None) -> Iterator[int]:
    while True:
        yield os.getpid()


@pytest.fixture(params=["real", "virtual"])
def workers(request: pytest.FixtureRequest) -> Workers:
    return ProcessWorkers() if request.param == "real" else VirtualWorkers(RealFiles())


async def test_steps_come_in_order_and_worker_is_reused(workers: Workers) -> None:
    async with workers.open() as worker:
        for count in (3, 0, 1):
            assert [step async for step in worker.run(squares, count)] == [0, 1, 4][:count]


async def test_early_end_closes_the_work(workers: Workers, tmp_path: os.PathLike[str]) -> None:
    path = Path(str(tmp_path)) / "closed"
    async with workers.open() as worker:
        async with aclosing(worker.run(noted, path)) as steps:
            assert await anext(steps) == "one"
        assert RealFiles().exists(path)
        assert [step async for step in worker.run(squares, 2)] == [0, 1]


async def test_exception_of_work_is_raised(workers: Workers) -> None:
    async with workers.open() as worker:
        for error in (OSError(28, "full", "/x"), CorruptRecords("at 7")):
            steps = worker.run(failing, error)
            assert await anext(steps) == "begun"
            with pytest.raises(type(error), match=str(error.args[-1])[:4]) as raised:
                await anext(steps)
            assert raised.value.args == error.args
        assert [step async for step in worker.run(squares, 1)] == [0]


async def test_exception_that_cannot_be_pickled_is_reported() -> None:
    async with ProcessWorkers().open() as worker:
        with pytest.raises(WorkerDied, match="Odd: 1 2"):
            await anext(worker.run(odd, 2))


async def test_output_of_work_is_not_a_response() -> None:
    async with ProcessWorkers().open() as worker:
        assert [step async for step in worker.run(printing, "noise")] == ["noise"]


async def test_killed_worker_raises_worker_died() -> None:
    async with ProcessWorkers().open() as worker:
        steps = worker.run(who, None)
        os.kill(await anext(steps), signal.SIGKILL)
        with pytest.raises(WorkerDied):
            await anext(steps)


async def test_released_worker_process_ends() -> None:
    async with ProcessWorkers().open() as worker:
        pid = await anext(worker.run(who, None))
        assert pid != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


BROKER = """
import sys, trio
from odradek.seams.processes import ProcessWorkers
from tests.contracts.test_workers_contract import who

async def main():
    async with ProcessWorkers().open() as worker:
        print(await anext(worker.run(who, None)), flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


def test_worker_ends_with_its_killed_broker() -> None:
    broker = subprocess.Popen([sys.executable, "-c", BROKER], stdout=subprocess.PIPE, text=True)
    assert broker.stdout is not None
    worker = int(broker.stdout.readline())
    os.kill(worker, 0)
    broker.kill()
    broker.wait()
    broker.stdout.close()
    assert ended(worker)


def ended(pid: int) -> bool:
    """Return whether the process ends in ten seconds. It is not a child of this one, so a pidfd is polled."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        readable, _, _ = select.select([pidfd], [], [], 10)
        return bool(readable)
    finally:
        os.close(pidfd)
