"""Lease of an export's checkpoint: only one driver runs the export at a time.

A run creates a file in the checkpoint before it does anything else, renews it every few seconds, and marks it as
ended when it ends. A separate thread renews the lease, because listing a table or waiting for brokers and stores
may take long. If that thread fails, the run ends at its next check.

A new run that finds a file decides by its contents: the lease is over if it is marked as ended, its process no
longer exists, or it was not renewed for EXPIRE_SECONDS. No cleanup is needed after a kill. A driver whose lease
expired may only be suspended, so the new run waits for RENEW_SECONDS before it starts, for operations of the old
driver that follow a check.

The last file remains after its run, because the number of the next run follows it. Numbers are not reused, so a run
that lost its lease never writes the last file. Earlier files are ignored, and are removed by the next run. If the
last file is removed by a user, numbers start again; so each run's file also has a unique token.

A run confirms its lease before a batch starts, before its output becomes visible, and before Spark commits the
batch. If another run has taken over, it ends, and the other run repeats its batch. It may also be suspended between
a check and the next operation, which must therefore be safe to repeat (`batch_attempts.py`, `export_tables.py`,
`export_checkpoint.py`).

    CHECKPOINT/odradek-run-N    file of the Nth run
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Protocol

from odradek.pipeline.errors import FilesUnavailable, JobRunning, PipelineError
from odradek.pipeline.jobs.hadoop_files import HadoopFiles
from odradek.seams.clock import RealClock
from odradek.seams.entropy import RealEntropy
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIX = "odradek-run-"
RENEW_SECONDS = 3.0
"""Seconds between renewals."""
EXPIRE_SECONDS = 30.0
"""Seconds without a renewal after which a lease is over."""
POLL_SECONDS = 0.5
RENEW_POLL_SECONDS = 1.0
"""Seconds between checks whether a renewal is due."""
THREAD = "odradek-turn"


class Files(Protocol):
    """The part of `HadoopFiles` that the lease uses."""

    def exists(self, path: str) -> bool: ...

    def names(self, directory: str) -> list[str]: ...

    def read(self, path: str) -> str: ...

    def create(self, path: str, text: str) -> bool: ...

    def put(self, path: str, text: str) -> None: ...

    def remove(self, path: str) -> None: ...


@value_class
class DriverProcess:
    """A driver's process. `machine` identifies the kernel and PID namespace, "" if unknown; `began` distinguishes
    processes with the same pid.
    """

    host: str
    machine: str
    pid: int
    began: str


class ExportLease:
    """Lease of one run. `is_gone` returns whether a process is known to have ended. `token` is unique to the run,
    because numbers start again if the files are removed.
    """

    def __init__(
        self,
        files: Files,
        checkpoint: str,
        driver: DriverProcess,
        is_gone: Callable[[DriverProcess], bool],
        token: str,
        *,
        now: Callable[[], float] | None = None,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._files = files
        self._checkpoint = checkpoint
        self._driver = driver
        self._is_gone = is_gone
        self._token = token
        self._now = now or RealClock().monotonic
        self._pause = pause or Event().wait
        self._lock = Lock()
        self._number = 0
        self._beats = 0
        self._renewed_at = 0.0
        self._failure: Exception | None = None
        """Why the renewal thread failed."""

    @contextmanager
    def held(self, every_s: float = RENEW_POLL_SECONDS) -> Iterator[None]:
        """Take the lease, renew it within the block, and end it. Raises JobRunning while another run has it."""
        self.take()
        has_ended = Event()

        def keep() -> None:
            while not has_ended.wait(every_s):
                try:
                    self.keep()
                except Exception as error:  # raised by the next check
                    self._failure = error
                    return

        thread = Thread(target=keep, name=THREAD, daemon=True)
        thread.start()
        try:
            yield
        finally:
            has_ended.set()
            thread.join()
            self.end()

    def take(self) -> None:
        """Take the lease. Raises JobRunning while another run has it."""
        since = self._now()
        seen: tuple[int, str] | None = None
        while True:
            number, text = self._latest()
            if not number or self._is_over(text):
                break
            if seen is not None and seen != (number, text):
                raise JobRunning(self._held_by_other(text))
            if seen is not None and self._now() - since >= EXPIRE_SECONDS:
                break
            seen = number, text
            self._pause(POLL_SECONDS)
        if not self._files.create(self._path(number + 1), self._lease_json()):
            raise JobRunning(self._held_by_other(""))
        self._number, self._renewed_at = number + 1, self._now()
        for each in self._numbers():
            if each <= number:
                self._files.remove(self._path(each))
        if number and not self._is_over(text):
            # Operations that follow the old driver's last check end meanwhile.
            self._pause(RENEW_SECONDS)

    def check(self) -> None:
        """Raise PipelineError if the lease could not be renewed, because another run took over or files could not
        be written. It reads no file, so that callers that wait can call it often.
        """
        failure = self._failure
        if failure is not None:
            raise PipelineError(str(failure)) from failure

    def keep(self) -> None:
        """Renew the lease if that is due. Raises PipelineError if another run took over, or files could not be
        written.
        """
        with self._lock:
            if self._now() - self._renewed_at < RENEW_SECONDS:
                return
            self._check_own()
            self._beats += 1
            self._files.put(self._path(self._number), self._lease_json())
            self._renewed_at = self._now()

    def confirm(self) -> None:
        """Check in the file that this run has the lease; call it before output becomes visible. Raises
        PipelineError if another run took over, or as `check`.
        """
        self.check()
        with self._lock:
            self._check_own()

    def end(self) -> None:
        """Mark the lease as ended, if this run still has it."""
        # If the write fails, the next run finds that the process has ended
        with self._lock, suppress(FilesUnavailable):
            if self._is_own():
                self._files.put(self._path(self._number), self._lease_json(is_over=True))

    def _check_own(self) -> None:
        if not self._is_own():
            raise PipelineError(
                f"another run of this export has taken over {self._checkpoint}, because this"
                f" run did not renew its lease for {EXPIRE_SECONDS:.0f} s: let the other run"
                " finish, or run this one again later"
            )

    def _is_own(self) -> bool:
        number, text = self._latest()
        if number == self._number and not text:
            text = self._files.read(self._path(number))  # raises the reason if it cannot be read
        return number == self._number and _field(text, "run") == self._token

    def _latest(self) -> tuple[int, str]:
        """Return the number and the contents of the last run's file: 0 if there is none, "" while it is being
        written.
        """
        while True:
            number = max(self._numbers(), default=0)
            if not number:
                return 0, ""
            path = self._path(number)
            try:
                return number, self._files.read(path)
            except Exception:
                if self._files.exists(path):
                    return number, ""
                # removed meanwhile: another run has just taken the lease

    def _numbers(self) -> list[int]:
        names = [
            name.removeprefix(PREFIX)
            for name in self._files.names(self._checkpoint)
            if name.startswith(PREFIX)
        ]
        return [int(name) for name in names if name.isdigit()]

    def _is_over(self, text: str) -> bool:
        driver = _driver(text)
        return _field(text, "over") is True or (driver is not None and self._is_gone(driver))

    def _lease_json(self, *, is_over: bool = False) -> str:
        driver = self._driver
        return json.dumps(
            {
                "host": driver.host,
                "machine": driver.machine,
                "pid": driver.pid,
                "began": driver.began,
                "beats": self._beats,
                "run": self._token,
                "over": is_over,
            }
        )

    def _held_by_other(self, text: str) -> str:
        driver = _driver(text)
        by = "" if driver is None else f" (process {driver.pid} on {driver.host})"
        return (
            f"another run of the export with {self._checkpoint} is in progress{by}: wait until"
            " it has ended, or stop it, and run this one again"
        )

    def _path(self, number: int) -> str:
        return f"{self._checkpoint}/{PREFIX}{number}"


def _field(text: str, name: str) -> object:
    """Return a field of a file; None while it is being written."""
    try:
        return json.loads(text)[name]
    except (ValueError, KeyError, TypeError):
        return None


def _driver(text: str) -> DriverProcess | None:
    """Return the process in a file; None while it is being written."""
    try:
        fields = json.loads(text)
        return DriverProcess(fields["host"], fields["machine"], fields["pid"], fields["began"])
    except (ValueError, KeyError, TypeError):
        return None


ENDED = ("Z", "X")
"""States of processes that have ended but still have a pid."""


def export_lease(spark: SparkSession, checkpoint: str) -> ExportLease:
    """Return a lease for this session's driver, which is not taken yet."""
    processes = _Processes(spark)
    token = str(RealEntropy().uuid())
    return ExportLease(HadoopFiles(spark), checkpoint, processes.own(), processes.is_gone, token)


class _Processes:
    """Processes of this machine, as far as they are in the PID namespace of this one."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self._no_strings = spark.sparkContext._gateway.new_array(self._jvm.java.lang.String, 0)  # type: ignore[union-attr]
        boot, names = self._read("/proc/sys/kernel/random/boot_id"), self._link("/proc/self/ns/pid")
        self._machine = f"{boot} {names}" if boot and names else ""

    def own(self) -> DriverProcess:
        """Return the process of the JVM, which commits batches."""
        pid = int(self._link("/proc/self") or 0)
        host = self._read("/proc/sys/kernel/hostname") or "an unknown host"
        return DriverProcess(host, self._machine, pid, self._began(pid))

    def is_gone(self, driver: DriverProcess) -> bool:
        """Whether a process has ended; False for processes of other machines, about which nothing is known."""
        if not self._machine or driver.machine != self._machine:
            return False
        return self._began(driver.pid) != driver.began

    def _began(self, pid: int) -> str:
        """Return a process's start time in clock ticks; "" if it does not exist or has ended."""
        fields = self._read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        return fields[19] if len(fields) > 19 and fields[0] not in ENDED else ""

    def _read(self, path: str) -> str:
        return self._call_with_path(self._jvm.java.nio.file.Files.readString, path).strip()

    def _link(self, path: str) -> str:
        """Return the target of a symbolic link."""
        return self._call_with_path(self._jvm.java.nio.file.Files.readSymbolicLink, path)

    def _call_with_path(self, of: Callable[[Any], Any], path: str) -> str:
        """Call a Java method with a path; "" if there is no such file."""
        from py4j.protocol import Py4JJavaError

        try:
            found = of(self._jvm.java.nio.file.Path.of(path, self._no_strings))
        except Py4JJavaError:
            return ""
        return found if isinstance(found, str) else str(found.toString())
