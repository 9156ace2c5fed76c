"""Small requests: one record of 100 bytes each, prebuilt, one after the other on each connection.

The client sends the same bytes again when it has received a response, and reads only the size of the response. At the
end, the log must have all records. The metrics are requests per second, the broker's CPU time per request, and the
latency.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odradek.bench.load import run_load
from odradek.bench.log_end import end_offset
from odradek.bench.model import (
    Feature,
    Metric,
    Parameter,
    Stage,
    Target,
    WorkloadFailed,
    WorkloadOutcome,
)
from odradek.bench.raw_connection import CLIENT_ID, RawConnection
from odradek.bench.workloads.idle_connections import idle_connections
from odradek.protocol import messages
from odradek.protocol.apis import PRODUCE
from odradek.protocol.framing import request_header
from odradek.protocol.records.records import Record, build_batch

VALUE_BYTES = 100
PRODUCE_VERSION = 9  # the newest version that all peers serve
MANY = 100
SECONDS = 4.0
WARM_UP_S = 1.0

RATE = Metric("requests_per_s", "1/s", "higher")
ALONE_RATE = Metric("requests_per_s", "1/s", "higher", limit="ping-pong:requests_per_s")
CPU = Metric("broker_cpu_us", "µs/request", "lower")
P50 = Metric("p50_us", "µs", "lower")
ALONE_P50 = Metric("p50_us", "µs", "lower", limit="ping-pong")
"""Latency, measured only without pipelining."""
P99 = Metric("p99_us", "µs", "lower")

_numbers = itertools.count(1)


def one_record(topic: str) -> Mapping[str, Any]:
    """Return the body of a Produce request: one record for partition 0, acks=1."""
    record = Record(-1, int(time.time() * 1000), None, b"x" * VALUE_BYTES)
    batch = {"index": 0, "records": bytes(build_batch([record]))}
    return {
        "transactional_id": None,
        "acks": 1,
        "timeout": 30_000,
        "topic_data": [{"name": topic, "partition_data": [batch]}],
    }


def produce_request(topic: str) -> bytes:
    """Return the bytes of the request on the wire."""
    request = request_header(PRODUCE, PRODUCE_VERSION, 1, CLIENT_ID)
    request += messages.write_request(PRODUCE.key, PRODUCE_VERSION, one_record(topic))
    return len(request).to_bytes(4, "big") + request


@dataclass(frozen=True)
class Requests:
    """Small Produce requests on some connections; `idle` other connections are open and idle."""

    connections: int = 1
    depth: int = 1
    idle: int = 0
    stage: Stage = Stage.SHARED
    default: bool = True

    @property
    def name(self) -> str:
        parts = [f"requests-c{self.connections}"]
        parts += [f"in-flight{self.depth}"] if self.depth > 1 else []
        parts += [f"idle{self.idle}"] if self.idle else []
        return "-".join(parts)

    @property
    def metrics(self) -> Sequence[Metric]:
        if self.connections == self.depth == 1:
            return (ALONE_RATE, CPU, ALONE_P50, P99)
        return (RATE, CPU, P50, P99)

    @property
    def needs(self) -> frozenset[Feature]:
        many = self.connections + self.idle >= MANY
        return frozenset({Feature.MANY_CONNECTIONS} if many else ())

    @property
    def title(self) -> str:
        many = f"{self.connections} connection{'s' * (self.connections > 1)}"
        how = f"{self.depth} in flight" if self.depth > 1 else "one at a time"
        idle = f", and {self.idle} idle ones" if self.idle else ""
        return f"produce of {VALUE_BYTES} bytes, {how}, {many}{idle}"

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "connections": self.connections,
            "in_flight": self.depth,
            "idle_connections": self.idle,
            "value_bytes": VALUE_BYTES,
            "seconds": SECONDS,
        }

    def run(self, target: Target) -> WorkloadOutcome:
        with (
            target.topic(f"{self.name}-{next(_numbers)}") as topic,
            idle_connections(target, self.idle),
        ):
            return self._run(target, topic)

    def _run(self, target: Target, topic: str) -> WorkloadOutcome:
        host, port = target.address
        with tempfile.TemporaryDirectory() as directory:
            request = Path(directory) / "request"
            request.write_bytes(produce_request(topic))
            load = run_load(
                [
                    "requests", "--bootstrap", f"{host}:{port}", "--request", str(request),
                    "--connections", str(self.connections),
                    "--depth", str(self.depth),
                    "--seconds", str(SECONDS),
                    "--warm-up", str(WARM_UP_S),
                ],
                target.process,
            )  # fmt: skip
        requests = load.report["requests"]
        _check_appended(target, topic, load.report["responses"])
        values = {
            RATE.name: requests / load.seconds,
            P50.name: load.report["p50_us"],
            P99.name: load.report["p99_us"],
        }
        if load.broker_cpu_s is not None:
            values[CPU.name] = load.broker_cpu_s / requests * 1e6
        return WorkloadOutcome(values, load.client_bound, notes=load.notes)


def _check_appended(target: Target, topic: str, requests: int) -> None:
    """Raise WorkloadFailed if the log has fewer records than there were responses (error responses are fast)."""
    with RawConnection(target.address) as wire:
        end = end_offset(wire, topic)
    if end != requests:
        raise WorkloadFailed(f"{requests} requests have a response, but the log has {end} records")


WORKLOADS = (
    Requests(1),
    Requests(10),
    Requests(100),
    Requests(1, depth=32),
    Requests(1, idle=500),
    Requests(10, depth=32, default=False),
)
