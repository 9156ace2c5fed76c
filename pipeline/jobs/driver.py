"""Spark's driver as a process of its machine, and whether another one is still there: by Linux's /proc, which
elsewhere tells nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from odradek.pipeline.jobs.hadoop_files import HadoopFiles
from odradek.pipeline.jobs.turn import Driver, Turn
from odradek.seams.entropy import RealEntropy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENDED = ("Z", "X")
"""States of processes that are no more than their number."""


def turn_of(spark: SparkSession, checkpoint: str) -> Turn:
    """That of this session's driver, to be taken."""
    processes = _Processes(spark)
    token = str(RealEntropy().uuid())
    return Turn(HadoopFiles(spark), checkpoint, processes.own(), processes.is_gone, token)


class _Processes:
    """Of this kernel, as far as this process sees them: those of its PID namespace."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self._no_strings = spark.sparkContext._gateway.new_array(self._jvm.java.lang.String, 0)  # type: ignore[union-attr]
        boot, names = self._read("/proc/sys/kernel/random/boot_id"), self._link("/proc/self/ns/pid")
        self._machine = f"{boot} {names}" if boot and names else ""

    def own(self) -> Driver:
        """The process of the JVM: it is what commits."""
        pid = int(self._link("/proc/self") or 0)
        host = self._read("/proc/sys/kernel/hostname") or "an unknown host"
        return Driver(host, self._machine, pid, self._began(pid))

    def is_gone(self, driver: Driver) -> bool:
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
