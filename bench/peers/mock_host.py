"""Hosts librdkafka's mock cluster until SIGTERM: `python -m odradek.bench.peers.mock_host ADDRESS CONTROL`.

Its address is written to the file ADDRESS. A line `NAME PARTITIONS` on the Unix socket CONTROL creates a topic; the
response is `ok` or an error. confluent-kafka has no Python API for the mock cluster, so this module calls the C
functions of its librdkafka (rdkafka_mock.h).
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import socketserver
import sys
from pathlib import Path

_PRODUCER = 0


def _librdkafka() -> ctypes.CDLL:
    importlib.import_module("confluent_kafka")  # loads it
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    found = [path for path in loaded if os.path.basename(path).startswith("librdkafka")]
    library = ctypes.CDLL(found[0])
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
        getattr(library, name).restype = ctypes.c_void_p
    for name in ("rd_kafka_mock_cluster_bootstraps", "rd_kafka_err2str"):
        getattr(library, name).restype = ctypes.c_char_p
    return library


class MockCluster:
    """A mock cluster of one broker."""

    def __init__(self) -> None:
        self._library = _librdkafka()
        error = ctypes.create_string_buffer(256)
        conf = ctypes.c_void_p(self._library.rd_kafka_conf_new())
        handle = self._library.rd_kafka_new(_PRODUCER, conf, error, ctypes.c_size_t(len(error)))
        if handle is None:
            raise RuntimeError(error.value.decode())
        self._cluster = ctypes.c_void_p(
            self._library.rd_kafka_mock_cluster_new(ctypes.c_void_p(handle), 1)
        )

    @property
    def bootstrap(self) -> str:
        response: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        return response.decode()

    def create_topic(self, name: str, partitions: int) -> str:
        """Create a topic. Returns "ok" or an error text."""
        code = self._library.rd_kafka_mock_topic_create(self._cluster, name.encode(), partitions, 1)
        return "ok" if code == 0 else str(self._library.rd_kafka_err2str(code).decode())


def main() -> None:
    address, control = Path(sys.argv[1]), sys.argv[2]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    cluster = MockCluster()

    class Control(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            name, partitions = self.rfile.readline().decode().split()
            self.wfile.write(f"{cluster.create_topic(name, int(partitions))}\n".encode())

    with socketserver.UnixStreamServer(control, Control) as server:
        partial = address.with_suffix(".partial")
        partial.write_text(cluster.bootstrap)
        partial.rename(address)
        server.serve_forever()


if __name__ == "__main__":
    main()
