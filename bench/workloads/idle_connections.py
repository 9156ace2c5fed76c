"""Idle connections: memory and CPU per connection that sent one request."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from odradek.bench.model import (
    Feature,
    Metric,
    Parameter,
    Stage,
    Target,
    WorkloadFailed,
    WorkloadOutcome,
)
from odradek.bench.peers.process import METADATA_REQUEST

RESPONSE_BYTES = 1 << 16
TIMEOUT_S = 30.0
SETTLE_S = 3.0

CPU = Metric("idle_cpu", "% of a core", "lower")
MEMORY = Metric("idle_connection_kb", "kB/connection", "lower")


@contextmanager
def idle_connections(target: Target, count: int) -> Iterator[None]:
    """Keep `count` connections open inside the `with` block; each receives one response.

    Raises WorkloadFailed if a connection is closed or receives no response.
    """
    with ExitStack() as open_ones:
        connections = [
            open_ones.enter_context(socket.create_connection(target.address, TIMEOUT_S))
            for _ in range(count)
        ]
        for connection in connections:
            connection.sendall(METADATA_REQUEST)
        for number, connection in enumerate(connections, 1):
            try:
                responded = connection.recv(RESPONSE_BYTES)
            except OSError as error:
                raise WorkloadFailed(f"connection {number} of {count}: {error}") from None
            if not responded:
                raise WorkloadFailed(f"connection {number} of {count} was closed by the broker")
        yield


@dataclass(frozen=True)
class IdleConnections:
    """Measures idle connections on a new process, because a used one has free memory for them."""

    count: int = 500
    metrics: Sequence[Metric] = (MEMORY, CPU)
    needs: frozenset[Feature] = frozenset({Feature.PROCESS, Feature.MANY_CONNECTIONS})
    stage: Stage = Stage.FRESH
    default: bool = True

    @property
    def name(self) -> str:
        return f"idle-connections-{self.count}"

    @property
    def title(self) -> str:
        return f"{self.count} idle connections"

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {"connections": self.count, "settle_s": SETTLE_S}

    def run(self, target: Target) -> WorkloadOutcome:
        process = target.known_process
        # Memory that only the first connection allocates does not count
        with idle_connections(target, 1):
            time.sleep(SETTLE_S)
            before = process.resident_bytes()
            with idle_connections(target, self.count):
                began, cpu = time.monotonic(), process.cpu_seconds()
                time.sleep(SETTLE_S)
                cpu_share = (process.cpu_seconds() - cpu) / (time.monotonic() - began)
                grown = process.resident_bytes() - before
        return WorkloadOutcome({MEMORY.name: grown / 1e3 / self.count, CPU.name: cpu_share * 100})


WORKLOADS = (IdleConnections(),)
