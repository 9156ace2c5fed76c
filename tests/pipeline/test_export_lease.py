"""One run of an export at a time has its checkpoint, whatever became of the one before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from odradek.pipeline.errors import FilesUnavailable, JobRunning, PipelineError
from odradek.pipeline.jobs.export_lease import (
    EXPIRE_SECONDS,
    PREFIX,
    RENEW_SECONDS,
    THREAD,
    DriverProcess,
    ExportLease,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINT = "c"


class Kept:
    """Files by path; `before` is called before one is made, `before_put` before one is written again, `after_put`
    after that."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.before: Callable[[], None] = lambda: None
        self.after_put: Callable[[], None] = lambda: None
        self.before_put: Callable[[], None] = lambda: None

    def exists(self, path: str) -> bool:
        return path in self.texts

    def names(self, directory: str) -> list[str]:
        return [path.rpartition("/")[2] for path in self.texts if path.startswith(f"{directory}/")]

    def read(self, path: str) -> str:
        return self.texts[path]

    def create(self, path: str, text: str) -> bool:
        before, self.before = self.before, lambda: None
        before()
        return self.texts.setdefault(path, text) is text

    def put(self, path: str, text: str) -> None:
        before, self.before_put = self.before_put, lambda: None
        before()
        self.texts[path] = text
        self.after_put()

    def remove(self, path: str) -> None:
        self.texts.pop(path, None)


class Machine:
    """Runs on one clock, of which some have been killed, and some say while others wait that they go on."""

    def __init__(self) -> None:
        self.files = Kept()
        self.at = 0.0
        self.runs = 0
        self.killed: set[int] = set()
        self.beating: list[ExportLease] = []

    def run(self, pid: int, machine: str = "m") -> ExportLease:
        driver = DriverProcess("host", machine, pid, str(pid))
        self.runs += 1
        return ExportLease(
            self.files,
            CHECKPOINT,
            driver,
            self.is_gone,
            f"run {self.runs}",
            now=lambda: self.at,
            pause=self.pause,
        )

    def is_gone(self, driver: DriverProcess) -> bool:
        return driver.machine == "m" and driver.pid in self.killed

    def pause(self, seconds: float) -> None:
        self.at += seconds
        for each in self.beating:
            each.keep()


def test_a_second_run_is_told_to_wait() -> None:
    machine = Machine()
    first = machine.run(7)
    first.take()
    machine.beating.append(first)
    with pytest.raises(
        JobRunning, match=r"process 7 on host\): wait until it has ended, or stop it"
    ):
        machine.run(8).take()
    assert machine.at <= RENEW_SECONDS + 1
    first.end()
    machine.run(8).take()
    assert list(machine.files.texts) == [f"{CHECKPOINT}/{PREFIX}2"]


def test_after_a_kill_nothing_is_in_the_way() -> None:
    machine = Machine()
    machine.run(7).take()
    machine.killed.add(7)
    machine.run(8).take()
    assert machine.at == 0
    assert list(machine.files.texts) == [f"{CHECKPOINT}/{PREFIX}2"]


@pytest.mark.parametrize("text", [None, ""])
def test_a_run_of_another_machine_is_over_when_nothing_is_heard_of_it(text: str | None) -> None:
    """Or of one that was killed while it said something."""
    machine = Machine()
    silent = machine.run(7, "elsewhere")
    silent.take()
    if text is not None:
        machine.files.texts[f"{CHECKPOINT}/{PREFIX}1"] = text
    following = machine.run(8)
    following.take()
    assert machine.at == EXPIRE_SECONDS + RENEW_SECONDS
    with pytest.raises(PipelineError, match="another run of this export has taken over c"):
        silent.keep()
    silent.end()
    machine.at += RENEW_SECONDS
    following.keep()
    following.end()
    assert list(machine.files.texts) == [f"{CHECKPOINT}/{PREFIX}2"]
    with pytest.raises(PipelineError):
        silent.keep()


@pytest.mark.parametrize("came_after", [0, 1, 2])
def test_a_run_that_stood_still_confirms_nothing_once_another_has_its_turn(came_after: int) -> None:
    """Also when that one has ended, and others have come after it; no number comes again."""
    machine = Machine()
    still = machine.run(7, "elsewhere")
    still.take()
    still.confirm()
    now = machine.run(8)
    now.take()
    for pid in range(9, 9 + came_after):
        now.end()
        now = machine.run(pid)
        now.take()
    (file,) = machine.files.texts
    assert file == f"{CHECKPOINT}/{PREFIX}{came_after + 2}"
    for act in (still.confirm, still.keep):
        with pytest.raises(PipelineError, match="taken over"):
            act()
    still.end()
    machine.at += RENEW_SECONDS
    now.keep()
    now.confirm()


def test_a_run_that_says_too_late_that_it_goes_on_has_lost_its_turn_all_the_same() -> None:
    """It stood still after it had looked, and says so once another has come; and again once that one has ended."""
    machine = Machine()
    still = machine.run(7, "elsewhere")
    still.take()
    now = machine.run(8)
    machine.at += RENEW_SECONDS
    machine.files.before_put = now.take
    still.keep()
    now.end()
    with pytest.raises(PipelineError, match="taken over"):
        still.confirm()
    machine.run(9).take()


@pytest.mark.parametrize("steps", [1, 2])
def test_what_a_killed_run_did_not_remove_is_never_a_turn_again(steps: int) -> None:
    """It was killed in the midst of taking its turn, from one that stood still."""
    machine = Machine()
    still = machine.run(7, "elsewhere")
    still.take()
    old = dict(machine.files.texts)
    machine.run(8).take()
    machine.killed.add(8)
    machine.files.texts = old | machine.files.texts
    for pid in range(9, 9 + steps):
        machine.run(pid).take()
        machine.killed.add(pid)
    last = machine.run(20)
    last.take()
    last.end()
    with pytest.raises(PipelineError, match="taken over"):
        still.confirm()


def test_of_two_that_come_at_once_one_goes_on() -> None:
    machine = Machine()
    machine.run(7).take()
    machine.killed.add(7)
    first, second = machine.run(8), machine.run(9)
    machine.files.before = first.take
    with pytest.raises(JobRunning, match="is in progress"):
        second.take()
    machine.at += RENEW_SECONDS
    first.keep()


def test_who_waits_while_a_run_ends_is_next() -> None:
    machine = Machine()
    first = machine.run(7)
    first.take()

    def pause(seconds: float) -> None:
        first.end()

    machine.pause = pause  # type: ignore[method-assign]
    second = machine.run(8)
    second.take()
    assert list(machine.files.texts) == [f"{CHECKPOINT}/{PREFIX}2"]


def test_a_run_says_that_it_goes_on_whatever_it_waits_for() -> None:
    """As for the files of a table to be listed: another one doesn't take it for dead meanwhile."""
    machine, said = Machine(), threading.Event()
    first = machine.run(7, "elsewhere")
    with first.held(every_s=0.001):
        (file,) = machine.files.texts
        for _ in range(3):
            before = machine.files.texts[file]
            said.clear()
            machine.files.after_put = said.set
            first.confirm()  # what it said before is done
            machine.at += RENEW_SECONDS
            assert said.wait(30)
            assert machine.files.texts[file] != before
    assert '"over": true' in machine.files.texts[file]


@pytest.mark.parametrize("why", ["taken over", "full"])
def test_a_run_that_could_not_say_so_ends(why: str) -> None:
    """It is told wherever it looks, each time by an error of its own."""
    machine = Machine()
    first = machine.run(7, "elsewhere")
    with first.held(every_s=0.001):
        first.check()
        (thread,) = (each for each in threading.enumerate() if each.name == THREAD)
        if why == "full":
            machine.files.after_put = fail
        else:
            machine.files.texts[f"{CHECKPOINT}/{PREFIX}2"] = "{}"
        machine.at += RENEW_SECONDS
        thread.join(30)
        machine.files.after_put = lambda: None
        told = []
        for act in (first.check, first.confirm):
            with pytest.raises(PipelineError, match=why) as raised:
                act()
            told.append(raised.value)
    assert told[0] is not told[1]
    assert told[0].__cause__ is told[1].__cause__ is not None


def fail() -> None:
    raise FilesUnavailable("the disk is full")


@pytest.mark.interop
@pytest.mark.slow
def test_sparks_driver_is_known_to_be_there(spark: SparkSession, tmp_path: Path) -> None:
    from odradek.pipeline.jobs.export_lease import _Processes
    from odradek.pipeline.jobs.hadoop_files import HadoopFiles

    processes = _Processes(spark)
    own = processes.own()
    assert own.machine
    assert own.began.isdigit()
    assert not processes.is_gone(own)
    assert processes.is_gone(DriverProcess(own.host, own.machine, own.pid, "0"))
    assert processes.is_gone(DriverProcess(own.host, own.machine, 1 << 30, own.began))
    assert not processes.is_gone(DriverProcess(own.host, "elsewhere", 1 << 30, own.began))
    files = HadoopFiles(spark)
    path = str(tmp_path / "a" / "b")
    made: list[bool] = []
    threads = [
        threading.Thread(target=lambda n=n: made.append(files.create(path, str(n))))  # type: ignore[misc]
        for n in range(8)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(made) == [False] * 7 + [True]
    assert files.read(path) in map(str, range(8))
