"""One driver at a time: which run of an export has its checkpoint.

A run makes a file in the checkpoint before it does anything there, says in it every few seconds that it still goes on,
and that it is over when it ends. It says so from a thread of its own, whatever the run waits for: before there is a
batch, a table's files are listed, and brokers and the store are asked what there is, which may take long. If the thread
fails, the run is told where it looks next, and ends.

Whoever comes and finds a file goes by who made it: if that one says so, its process is gone, or nothing was heard of it for a
while, its turn is over. So nothing has to be cleaned up after a kill. A silent one may only stand still: whoever takes
over from it waits a little more before it does anything, for what that one had looked for before and was about to do.

The last file stays when its run ends, for the next one's number: none ever comes again, so what a run writes that has
lost its turn without knowing it yet is never taken for the last. Files before the last count for nothing; who takes the
turn removes them. Where somebody else has removed the last, numbers begin again: so each run's file has a token, too.

A run that stood still looks before it begins a batch, before what it has written comes to count, and before Spark notes
that a batch is done: where another is in its place, or has been, it ends, and what it was writing is the other's to
write again. Between a look and what follows it may stand still once more: what it then does has to be harmless by
itself (`attempts.py`, `tables.py`, `checkpoint.py`).

    CHECKPOINT/odradek-run-N    the Nth
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
"""How often a run says that it goes on."""
EXPIRE_SECONDS = 30.0
"""Of which nothing was heard for so long is over."""
POLL_SECONDS = 0.5
RENEW_POLL_SECONDS = 1.0
"""How often it is looked whether it is time to say so."""
THREAD = "odradek-turn"


class Files(Protocol):
    """As `HadoopFiles`."""

    def exists(self, path: str) -> bool: ...

    def names(self, directory: str) -> list[str]: ...

    def read(self, path: str) -> str: ...

    def create(self, path: str, text: str) -> bool: ...

    def put(self, path: str, text: str) -> None: ...

    def remove(self, path: str) -> None: ...


@value_class
class DriverProcess:
    """A process. `machine` is of one kernel and its processes' numbers, "" where nobody knows; `began` makes
    a number that was given again another process."""

    host: str
    machine: str
    pid: int
    began: str


class ExportLease:
    """See the module. `is_gone` says whether a process is known to have ended; `token` is no other run's:
    numbers begin again where somebody has removed the files."""

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
        """Of the thread: why the turn is not kept any more."""

    @contextmanager
    def held(self, every_s: float = RENEW_POLL_SECONDS) -> Iterator[None]:
        """While the block lasts it is this run's, and kept. Raises JobRunning while another run goes on."""
        self.take()
        has_ended = Event()

        def keep() -> None:
            while not has_ended.wait(every_s):
                try:
                    self.keep()
                except Exception as error:  # told by whatever looks next
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
        """Raises JobRunning while another run goes on."""
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
        if not self._files.create(self._path(number + 1), self._said()):
            raise JobRunning(self._held_by_other(""))
        self._number, self._renewed_at = number + 1, self._now()
        for each in self._numbers():
            if each <= number:
                self._files.remove(self._path(each))
        if number and not self._is_over(text):
            self._pause(RENEW_SECONDS)  # what it had looked for before is done by then

    def check(self) -> None:
        """To be called again and again by whoever waits: no file is looked at. Raises PipelineError if the turn could
        not be kept, because another run has taken over, or files could not be written."""
        failure = self._failure
        if failure is not None:
            raise PipelineError(str(failure)) from failure

    def keep(self) -> None:
        """What the thread of `held` does again and again. Raises PipelineError if another run has taken over, or files
        could not be written."""
        with self._lock:
            if self._now() - self._renewed_at < RENEW_SECONDS:
                return
            self._look()
            self._beats += 1
            self._files.put(self._path(self._number), self._said())
            self._renewed_at = self._now()

    def confirm(self) -> None:
        """To be called before what others would take for done. Raises PipelineError if another run has taken
        over, or as `check`."""
        self.check()
        with self._lock:
            self._look()

    def end(self) -> None:
        """No error if it was over before."""
        with self._lock, suppress(FilesUnavailable):  # the next one finds that nobody is there
            if self._is_own():
                self._files.put(self._path(self._number), self._said(is_over=True))

    def _look(self) -> None:
        if not self._is_own():
            raise PipelineError(
                f"another run of this export has taken over {self._checkpoint}, for nothing was heard of"
                f" this one for {EXPIRE_SECONDS:.0f} s: leave it to that one, or run it again later"
            )

    def _is_own(self) -> bool:
        number, text = self._latest()
        if number == self._number and not text:
            text = self._files.read(self._path(number))  # which says why, if it cannot be read
        return number == self._number and _field(text, "run") == self._token

    def _latest(self) -> tuple[int, str]:
        """The last run's number, 0 if there is none, and what it says; "" while it is being written."""
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
                # another one took its turn just now

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

    def _said(self, *, is_over: bool = False) -> str:
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
            f"another run of the export with {self._checkpoint} goes on{by}: wait until it has ended, or"
            " end it, and run this one again"
        )

    def _path(self, number: int) -> str:
        return f"{self._checkpoint}/{PREFIX}{number}"


def _field(text: str, name: str) -> object:
    """None while it is being written."""
    try:
        return json.loads(text)[name]
    except (ValueError, KeyError, TypeError):
        return None


def _driver(text: str) -> DriverProcess | None:
    """None while it is being written."""
    try:
        said = json.loads(text)
        return DriverProcess(said["host"], said["machine"], said["pid"], said["began"])
    except (ValueError, KeyError, TypeError):
        return None


ENDED = ("Z", "X")
"""States of processes that are no more than their number."""


def export_lease(spark: SparkSession, checkpoint: str) -> ExportLease:
    """That of this session's driver, to be taken."""
    processes = _Processes(spark)
    token = str(RealEntropy().uuid())
    return ExportLease(HadoopFiles(spark), checkpoint, processes.own(), processes.is_gone, token)


class _Processes:
    """Of this kernel, as far as this process sees them: those of its PID namespace."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self._no_strings = spark.sparkContext._gateway.new_array(self._jvm.java.lang.String, 0)  # type: ignore[union-attr]
        boot, names = self._read("/proc/sys/kernel/random/boot_id"), self._link("/proc/self/ns/pid")
        self._machine = f"{boot} {names}" if boot and names else ""

    def own(self) -> DriverProcess:
        """The process of the JVM: it is what commits."""
        pid = int(self._link("/proc/self") or 0)
        host = self._read("/proc/sys/kernel/hostname") or "an unknown host"
        return DriverProcess(host, self._machine, pid, self._began(pid))

    def is_gone(self, driver: DriverProcess) -> bool:
        """False for those of other machines: nobody can say."""
        if not self._machine or driver.machine != self._machine:
            return False
        return self._began(driver.pid) != driver.began

    def _began(self, pid: int) -> str:
        """In the kernel's ticks; "" if there is no such process, or it has ended."""
        fields = self._read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        return fields[19] if len(fields) > 19 and fields[0] not in ENDED else ""

    def _read(self, path: str) -> str:
        return self._asked(self._jvm.java.nio.file.Files.readString, path).strip()

    def _link(self, path: str) -> str:
        """Where it leads."""
        return self._asked(self._jvm.java.nio.file.Files.readSymbolicLink, path)

    def _asked(self, of: Callable[[Any], Any], path: str) -> str:
        """Nothing, where there is no such file."""
        from py4j.protocol import Py4JJavaError

        try:
            found = of(self._jvm.java.nio.file.Path.of(path, self._no_strings))
        except Py4JJavaError:
            return ""
        return found if isinstance(found, str) else str(found.toString())
