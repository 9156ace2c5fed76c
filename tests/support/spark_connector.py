"""Spark's own Kafka connector, unmodified, in a process with its own Spark.

The first call of `spark_connector()` starts the process, which ends with this one. The first start on a machine
downloads Spark.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import threading
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from odradek.bench.peers.spark_releases import (
    CONNECTOR_SPARK_VERSION,
    connector_jars,
    spark_environment,
)

PROGRAM = Path(__file__).parent / "spark_program.py"
TIMEOUT_SECONDS = 180.0

Headers = tuple[tuple[str, bytes | None], ...]
Row = tuple[str, int, int, int, int, bytes | None, bytes | None, Headers | None]
"""Topic, partition, offset, timestamp in ms, its type, key, value, headers."""
Sent = tuple[str, bytes | None, bytes | None, int | None, Headers | None]
"""Topic, key, value, partition, headers."""
Options = Mapping[str, Any]


class ConnectorFailed(Exception):
    """The connector failed. The text is the error of Spark."""


class SparkConnector:
    """Client of the process that runs `spark_program.py`."""

    def __init__(self) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as we do
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), os.pathsep.join(connector_jars())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=spark_environment(CONNECTOR_SPARK_VERSION),
            start_new_session=True,  # its JVM ends with it, even if only one of them receives the terminal's signals
            text=True,
        )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def read(self, options: Options, *, where: str | None = None) -> list[Row]:
        """Return all rows, sorted by topic, partition and offset."""
        if where is None:
            return _rows(self._ask("read", options=_texts(options)))
        return _rows(self._ask("where", options=_texts(options), condition=where))

    def stream(self, options: Options, checkpoint: Path) -> list[list[Row]]:
        """Return the rows of each micro-batch up to the end of the topics."""
        batches = self._ask("stream", options=_texts(options), checkpoint=str(checkpoint))
        return [_rows(batch) for batch in batches]

    def write(self, options: Options, rows: Sequence[Sent]) -> None:
        made = [
            (
                topic,
                _text(key),
                _text(value),
                partition,
                None if headers is None else [(name, _text(each)) for name, each in headers],
            )
            for topic, key, value, partition, headers in rows
        ]
        self._ask("write", options=_texts(options), rows=made)

    def pipe(self, options: Options, into: Options, checkpoint: Path) -> None:
        """Stream from topics into a topic, up to the end of the topics."""
        self._ask("pipe", options=_texts(options), into=_texts(into), checkpoint=str(checkpoint))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        self._log.close()

    def _ask(self, what: str, **given: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        overdue = threading.Timer(TIMEOUT_SECONDS, lambda: os.killpg(self._process.pid, 9))
        overdue.start()
        try:
            self._process.stdin.write(json.dumps({"do": what, **given}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        finally:
            overdue.cancel()
        if not line:
            raise ConnectorFailed(f"no response: {self._last_words()}")
        response = json.loads(line)
        if "error" in response:
            raise ConnectorFailed(response["error"])
        return response["done"]

    def _last_words(self) -> str:
        self._process.wait()
        self._log.seek(0)
        return self._log.read()[-4000:].decode(errors="replace")


def _texts(options: Options) -> dict[str, str]:
    return {name: str(value) for name, value in options.items()}


def _text(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def _rows(rows: Sequence[Sequence[Any]]) -> list[Row]:
    return [
        (
            *row[:5],
            _bytes(row[5]),
            _bytes(row[6]),
            None if row[7] is None else tuple((name, _bytes(value)) for name, value in row[7]),
        )
        for row in rows
    ]


_connector: SparkConnector | None = None


def spark_connector() -> SparkConnector:
    """Return the connector of this process. Raises PeerUnavailable if it cannot be downloaded."""
    global _connector
    if _connector is None or not _connector.alive:
        _connector = SparkConnector()
    return _connector


@atexit.register
def _end() -> None:
    if _connector is not None:
        _connector.close()
