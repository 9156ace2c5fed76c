"""Apache Kafka's command-line tools: arguments and stdin in, output and exit code out.

`run_tool` runs a tool to its end in one JVM (`java/ToolHost.java`), which starts with the first tool and ends with
this process. `spawn_tool` starts a new JVM, for a tool that runs until it is stopped or that calls System.exit.
"""

from __future__ import annotations

import atexit
import struct
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

from tests.support.kafka_dist import KafkaDist, kafka_dist

# The name of each tool's script in Kafka's bin/, without "kafka-" and ".sh" -> its main class
TOOLS: Mapping[str, str] = {
    "topics": "org.apache.kafka.tools.TopicCommand",
    "configs": "kafka.admin.ConfigCommand",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "groups": "org.apache.kafka.tools.GroupsCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "storage": "kafka.tools.StorageTool",
    "metadata-shell": "org.apache.kafka.shell.MetadataShell",
    "metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "acls": "org.apache.kafka.tools.AclCommand",
    "client": "JavaClient",  # tests/interop/java, like the next ones
    "java-transactions": "JavaTransactions",
    "assignors": "Assignors",  # Kafka's assignors without a broker
    "recover-log": "RecoverLog",  # tests/storage: Kafka's log opens a directory
    "clean-log": "CleanLog",  # tests/storage: Kafka's log cleaner compacts a directory
}


class ToolFailed(AssertionError):
    """A tool ended with an exit code other than 0, or exceeded its timeout."""


@dataclass(frozen=True)
class ToolRun:
    """Exit code and output of a tool."""

    command: tuple[str, ...]
    code: int
    stdout: str
    stderr: str

    def __str__(self) -> str:
        return (
            f"{' '.join(self.command)}\nexit code {self.code}\n"
            f"--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"
        )

    @property
    def lines(self) -> list[str]:
        """Lines of stdout that are not empty."""
        return [line for line in self.stdout.splitlines() if line.strip()]

    def check(self) -> ToolRun:
        """Return this run, or raise ToolFailed if the exit code is not 0."""
        if self.code != 0:
            raise ToolFailed(str(self))
        return self


class ToolHost:
    """JVM in which tools run one at a time."""

    def __init__(self, dist: KafkaDist) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as we do
        self._process = subprocess.Popen(
            dist.command("ToolHost", heap_mb=512),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )

    def run(self, command: tuple[str, ...], stdin: bytes, timeout: float) -> ToolRun:
        """Run `command` (main class and arguments). Raises ToolFailed after `timeout` seconds."""
        assert self._process.stdin is not None
        overdue = threading.Timer(timeout, self._process.kill)
        overdue.start()
        try:
            words = [word.encode() for word in command]
            request = [struct.pack(">i", len(words))]
            for part in [*words, stdin]:
                request += [struct.pack(">i", len(part)), part]
            self._process.stdin.write(b"".join(request))
            self._process.stdin.flush()
            (code,) = struct.unpack(">i", self._read(4))
            stdout, stderr = self._read_text(), self._read_text()
        except (EOFError, OSError) as gone:
            raise ToolFailed(
                f"{' '.join(command)}: not done in {timeout:g} s, or its JVM died\n{self._last_words()}"
            ) from gone
        finally:
            overdue.cancel()
        return ToolRun(command, code, stdout, stderr)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._log.close()

    def _read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        if len(data) < size:
            raise EOFError
        return data

    def _read_text(self) -> str:
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size).decode(errors="replace")

    def _last_words(self) -> str:
        self._process.wait()
        self._log.seek(0)
        return self._log.read()[-4000:].decode(errors="replace")


_lock = threading.Lock()
_host: ToolHost | None = None


def run_tool(
    name: str, *args: str, stdin: str | bytes = b"", timeout: float = 60, check: bool = True
) -> ToolRun:
    """Run Kafka's tool `name` (a key of TOOLS, or a main class) to its end.

    Raises ToolFailed after `timeout` seconds, and for an exit code other than 0 if `check` is on.
    """
    global _host
    with _lock:
        if _host is None or not _host.alive:
            _end_host()
            _host = ToolHost(kafka_dist())
        run = _host.run(
            (TOOLS.get(name, name), *args),
            stdin.encode() if isinstance(stdin, str) else stdin,
            timeout,
        )
    return run.check() if check else run


def spawn_tool(
    name: str, *args: str, stdin: int | None = subprocess.DEVNULL
) -> subprocess.Popen[str]:
    """Start Kafka's tool `name` in a new JVM. Its stdout and stderr are one pipe."""
    return subprocess.Popen(
        kafka_dist().command(TOOLS.get(name, name), *args),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@atexit.register
def _end_host() -> None:
    global _host
    if _host is not None:
        _host.close()
        _host = None
