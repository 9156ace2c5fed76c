"""Throughput of one C client that produces or consumes at full speed.

Each run creates and deletes a topic. A `Produce` run has a short warm-up (a JVM compiles, librdkafka connects), and
then produces a fixed amount of data, for at most `SECONDS_MAX`. A `Consume` run produces the same without measuring
it, and reads it once from the page cache.

Compressed workloads check the codec of the log, because librdkafka sends uncompressed records if it does not detect
the broker's support for a codec.

MB are 10^6 bytes of the records' values before compression, and so is the GB in CPU seconds per GB.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from odradek.bench.load import Load, run_load
from odradek.bench.log_end import last_codec
from odradek.bench.model import (
    Feature,
    Metric,
    Parameter,
    Stage,
    Target,
    WorkloadFailed,
    WorkloadOutcome,
)
from odradek.bench.raw_connection import RawConnection

SECONDS_MAX = 20.0
WARM_UP_S = 0.5

BROKER_CPU = Metric("broker_cpu_s_per_gb", "s/GB", "lower")
CLIENT_CPU = Metric("client_cpu_s_per_gb", "s/GB", "lower", diagnostic=True)
WRITTEN = Metric("mb_per_s", "MB/s", "higher", limit="socket-to-file")
READ = Metric("mb_per_s", "MB/s", "higher", limit="sendfile")
PACKED = Metric("mb_per_s", "MB/s", "higher")
"""Rate of compressed records. It has no limit, because they are smaller on the wire."""

# record size in bytes -> name, and records per run: about 1 GB, or some seconds for small records
SIZES: Mapping[int, tuple[str, int]] = {
    100: ("100b", 4_000_000),
    1024: ("1k", 1_000_000),
    100 * 1024: ("100k", 10_000),
}

_numbers = itertools.count(1)


@dataclass(frozen=True)
class RecordShape:
    """Size, compression, partitions and acks of the records of a workload."""

    size: int = 1024
    partitions: int = 1
    compression: str = "none"
    acks: str = "1"
    idempotent: bool = False
    default: bool = False

    @property
    def name(self) -> str:
        """Return the name: size, partitions, and settings that are not the default."""
        parts = [SIZES[self.size][0], f"p{self.partitions}"]
        parts += [f"acks{self.acks}"] if self.acks != "1" and not self.idempotent else []
        parts += [self.compression] if self.compression != "none" else []
        parts += ["idempotent"] if self.idempotent else []
        return "-".join(parts)

    @property
    def title(self) -> str:
        """Return the description for titles."""
        size = f"{self.size} B" if self.size < 1024 else f"{self.size // 1024} KiB"
        words = [f"{size} records", f"{self.partitions} partition{'s' * (self.partitions > 1)}"]
        words += [f"acks={self.acks}"]
        words += [self.compression] if self.compression != "none" else []
        words += ["idempotent"] if self.idempotent else []
        return ", ".join(words)

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "record_bytes": self.size,
            "records": SIZES[self.size][1],
            "partitions": self.partitions,
            "compression": self.compression,
            "acks": self.acks,
            "idempotent": self.idempotent,
        }

    @property
    def needs(self) -> frozenset[Feature]:
        return frozenset({Feature.LZ4} if self.compression == "lz4" else ())

    def rate(self, plain: Metric) -> Metric:
        """Return `plain` for uncompressed records, otherwise the metric without a limit."""
        return plain if self.compression == "none" else PACKED

    def produce(self, target: Target, topic: str, warm_up_s: float) -> Load:
        """Produce the records. Raises WorkloadFailed if the log has another codec."""
        load = self._produce(target, topic, warm_up_s)
        if self.compression != "none":
            with RawConnection(target.address) as wire:
                codec = last_codec(wire, topic)
            if codec != self.compression:
                raise WorkloadFailed(f"the records are in {codec}, not in {self.compression}")
        return load

    def _produce(self, target: Target, topic: str, warm_up_s: float) -> Load:
        return run_load(
            [
                "produce", "--bootstrap", target.bootstrap, "--topic", topic,
                "--count", str(SIZES[self.size][1]),
                "--size", str(self.size),
                "--partitions", str(self.partitions),
                "--seconds", str(SECONDS_MAX),
                "--warm-up", str(warm_up_s),
                "-X", f"compression.codec={self.compression}",
                "-X", f"acks={self.acks}",
                "-X", f"enable.idempotence={str(self.idempotent).lower()}",
            ],
            target.process,
        )  # fmt: skip


@dataclass(frozen=True)
class Produce:
    """Measures producing records of one shape."""

    shape: RecordShape
    stage: Stage = Stage.SHARED

    @property
    def metrics(self) -> Sequence[Metric]:
        return (self.shape.rate(WRITTEN), BROKER_CPU, CLIENT_CPU)

    @property
    def needs(self) -> frozenset[Feature]:
        return self.shape.needs

    @property
    def name(self) -> str:
        return f"produce-{self.shape.name}"

    @property
    def title(self) -> str:
        return f"produce, {self.shape.title}"

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return self.shape.parameters

    @property
    def default(self) -> bool:
        return self.shape.default

    def run(self, target: Target) -> WorkloadOutcome:
        with target.topic(f"{self.name}-{next(_numbers)}", self.shape.partitions) as topic:
            return _outcome(self.shape.produce(target, topic, WARM_UP_S))


@dataclass(frozen=True)
class Consume:
    """Measures consuming records of one shape that were produced just before."""

    shape: RecordShape
    stage: Stage = Stage.SHARED

    @property
    def metrics(self) -> Sequence[Metric]:
        return (self.shape.rate(READ), BROKER_CPU, CLIENT_CPU)

    @property
    def needs(self) -> frozenset[Feature]:
        return self.shape.needs | {Feature.KEEPS_RECORDS}

    @property
    def name(self) -> str:
        return f"consume-{self.shape.name}"

    @property
    def title(self) -> str:
        return f"consume, {self.shape.title}"

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return self.shape.parameters

    @property
    def default(self) -> bool:
        return self.shape.default

    def run(self, target: Target) -> WorkloadOutcome:
        with target.topic(f"{self.name}-{next(_numbers)}", self.shape.partitions) as topic:
            records = int(self.shape.produce(target, topic, 0).report["records"])
            load = run_load(
                [
                    "consume", "--bootstrap", target.bootstrap, "--topic", topic,
                    "--count", str(records),
                    "--partitions", str(self.shape.partitions),
                    "--seconds", str(SECONDS_MAX),
                ],
                target.process,
            )  # fmt: skip
            if load.report["records"] < records:
                raise WorkloadFailed(
                    f"read {load.report['records']} of {records} records in {SECONDS_MAX:g} s"
                )
            return _outcome(load)


def _outcome(load: Load) -> WorkloadOutcome:
    gb = load.report["bytes"] / 1e9
    values = {WRITTEN.name: gb * 1e3 / load.seconds, CLIENT_CPU.name: load.cpu_s / gb}
    if load.broker_cpu_s is not None:
        values[BROKER_CPU.name] = load.broker_cpu_s / gb
    return WorkloadOutcome(values, load.client_bound, notes=load.notes)


WORKLOADS: tuple[Produce | Consume, ...] = (
    Produce(RecordShape(default=True)),
    Produce(RecordShape(compression="lz4", default=True)),
    Produce(RecordShape(partitions=6, default=True)),
    Produce(RecordShape(size=100, default=True)),
    Produce(RecordShape(size=100 * 1024, default=True)),
    Produce(RecordShape(acks="all", idempotent=True, default=True)),
    Produce(RecordShape(acks="0")),
    Produce(RecordShape(acks="all")),
    Produce(RecordShape(compression="zstd")),
    Produce(RecordShape(partitions=48)),
    Produce(RecordShape(partitions=48, compression="lz4")),
    Produce(RecordShape(partitions=48, acks="all", idempotent=True)),
    Produce(RecordShape(size=100, partitions=6)),
    Produce(RecordShape(size=100, partitions=48)),
    Produce(RecordShape(size=100, compression="zstd")),
    Produce(RecordShape(size=100 * 1024, partitions=6)),
    Produce(RecordShape(size=100 * 1024, partitions=48)),
    Produce(RecordShape(size=100 * 1024, compression="lz4")),
    Consume(RecordShape(default=True)),
    Consume(RecordShape(partitions=6, default=True)),
    Consume(RecordShape(compression="lz4")),
    Consume(RecordShape(compression="zstd")),
    Consume(RecordShape(partitions=48)),
    Consume(RecordShape(size=100)),
    Consume(RecordShape(size=100, partitions=48)),
    Consume(RecordShape(size=100 * 1024)),
    Consume(RecordShape(size=100 * 1024, partitions=6)),
)
