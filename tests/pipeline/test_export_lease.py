"""Only one run of an export uses its checkpoint at a time, however the previous run ended."""

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


class MemoryFiles:
    """Files by path. `before` is called before a file is created, `before_put` before a file is replaced, and
    `after_put` afterwards.
    """

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


class LeaseMachine:
    """Runs on one clock, some of which were killed, and some of which renew their lease while others wait."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
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


def test_second_run_is_refused_while_the_first_has_the_lease() -> None:
    machine = LeaseMachine()
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


def test_lease_of_a_killed_process_is_taken_immediately() -> None:
    machine = LeaseMachine()
    machine.run(7).take()
    machine.killed.add(7)
    machine.run(8).take()
    assert machine.at == 0
    assert list(machine.files.texts) == [f"{CHECKPOINT}/{PREFIX}2"]


@pytest.mark.parametrize("text", [None, ""])
def test_lease_of_another_machine_expires_without_renewals(text: str | None) -> None:
    """Also if the run was killed while it renewed its lease."""
    machine = LeaseMachine()
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
def test_suspended_run_confirms_nothing_after_takeover(came_after: int) -> None:
    """Also if the other run has ended and others have followed; lease numbers are not reused."""
    machine = LeaseMachine()
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


def test_late_renewal_does_not_restore_the_lease() -> None:
    """The run was suspended after its check, and renews the lease after another run has taken it, and again after
    that run has ended.
    """
    machine = LeaseMachine()
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
def test_file_left_by_a_killed_run_is_never_the_lease_again(steps: int) -> None:
    """The run was killed while it took the lease from a suspended run."""
    machine = LeaseMachine()
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


def test_one_of_two_concurrent_runs_takes_the_lease() -> None:
    machine = LeaseMachine()
    machine.run(7).take()
    machine.killed.add(7)
    first, second = machine.run(8), machine.run(9)
    machine.files.before = first.take
    with pytest.raises(JobRunning, match="is in progress"):
        second.take()
    machine.at += RENEW_SECONDS
    first.keep()


def test_waiting_run_takes_the_lease_when_the_other_ends() -> None:
    machine = LeaseMachine()
    first = machine.run(7)
    first.take()

    def pause(seconds: float) -> None:
        first.end()

    machine.pause = pause  # type: ignore[method-assign]
    second = machine.run(8)
    second.take()
    assert list(machine.files.texts) == [f"{CHECKPOINT}/{PREFIX}2"]


def test_lease_is_renewed_during_long_operations() -> None:
    """Such as listing the files of a table: another run must not take the lease meanwhile."""
    machine, message = LeaseMachine(), threading.Event()
    first = machine.run(7, "elsewhere")
    with first.held(every_s=0.001):
        (file,) = machine.files.texts
        for _ in range(3):
            before = machine.files.texts[file]
            message.clear()
            machine.files.after_put = message.set
            first.confirm()  # the previous renewal is complete
            machine.at += RENEW_SECONDS
            assert message.wait(30)
            assert machine.files.texts[file] != before
    assert '"over": true' in machine.files.texts[file]


@pytest.mark.parametrize("why", ["taken over", "full"])
def test_failed_renewal_ends_the_run(why: str) -> None:
    """Each check raises its own error."""
    machine = LeaseMachine()
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
        errors = []
        for act in (first.check, first.confirm):
            with pytest.raises(PipelineError, match=why) as raised:
                act()
            errors.append(raised.value)
    assert errors[0] is not errors[1]
    assert errors[0].__cause__ is errors[1].__cause__ is not None


def fail() -> None:
    raise FilesUnavailable("the disk is full")


@pytest.mark.interop
@pytest.mark.slow
def test_process_of_sparks_driver_is_found(spark: SparkSession, tmp_path: Path) -> None:
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
