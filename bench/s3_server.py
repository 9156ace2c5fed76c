"""A real S3 server as a process: MinIO, built from its sources by the Go toolchain, and kept.

It is used by tests and measurements of S3, on one drive of this machine. Buckets are directories of that
drive, created before it starts or while it runs.
"""

from __future__ import annotations

import http.client
import itertools
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from odradek.bench.build_cache import kept, needed_program, run_build
from odradek.bench.model import PeerFailed
from odradek.bench.peers.process import free_port

MODULE = "github.com/minio/minio"
VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
USER, PASSWORD = "odradek", "odradek-secret"
BUCKET = "tiered"
START_S = 30.0
STOP_S = 10.0


class S3Server:
    """A running S3 server; `options` are those of `open_objects`."""

    def __init__(self, program: Path, directory: Path) -> None:
        self._program = program
        self._directory = directory
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        self.options = {
            "aws_endpoint": self.endpoint,
            "aws_access_key_id": USER,
            "aws_secret_access_key": PASSWORD,
            "aws_region": "us-east-1",
        }

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def new_store(self) -> str:
        """Return the URL of an empty store."""
        return f"s3://{BUCKET}/{next(self._numbers)}"

    def start(self) -> None:
        """Start it on the stored data, and wait for a response. Raises PeerFailed."""
        drive = self._directory / "drive"
        (drive / BUCKET).mkdir(parents=True, exist_ok=True)
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._program), "server", "--quiet", "--address", f"127.0.0.1:{self._port}",
                 str(drive)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                process_group=0,
                env={
                    **os.environ,
                    "HOME": str(self._directory),
                    "MINIO_ROOT_USER": USER,
                    "MINIO_ROOT_PASSWORD": PASSWORD,
                    "MINIO_BROWSER": "off",
                    "MINIO_UPDATE": "off",
                },
            )  # fmt: skip
        try:
            self._wait_for_response(self._process)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """Stop the server without a clean shutdown."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def log(self) -> str:
        return self._log_file.read_text(errors="replace")[-4000:]

    @property
    def _log_file(self) -> Path:
        return self._directory / "output.log"

    def _wait_for_response(self, process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + START_S
        while not self._is_ready():
            if process.poll() is not None:
                raise PeerFailed(f"MinIO ended at once, with {process.returncode}\n{self.log()}")
            if time.monotonic() > end:
                raise PeerFailed(f"no response from MinIO after {START_S:g} s\n{self.log()}")
            time.sleep(0.02)

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=1)
        try:
            connection.request("GET", "/minio/health/ready")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


@contextmanager
def running_s3_server(directory: Path) -> Iterator[S3Server]:
    """Run a server for a `with` block, with its drive in `directory`. Raises PeerUnavailable."""
    server = S3Server(minio(), directory)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def minio() -> Path:
    """Return the program; the first build takes some minutes."""
    return kept(f"minio-{VERSION}", _build)


def _build(program: Path) -> None:
    go = needed_program("go", "a Go toolchain, 1.24 or newer")
    made = program.parent / "bin"
    run_build(
        ["env", f"GOBIN={made}", "CGO_ENABLED=0",
         go, "install", "-trimpath", "-ldflags=-s -w", f"{MODULE}@{VERSION}"],
        "building MinIO",
    )  # fmt: skip
    (made / "minio").rename(program)
