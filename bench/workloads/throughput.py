"""Throughput: records written and read as fast as the broker lets one C client do it.

A run makes a topic of its own, and removes it. A `Produce` run writes for a moment before it measures
(a JVM compiles, librdkafka opens its connections), then writes a fixed amount of data, or for
`SECONDS_MAX`. A `Consume` run writes the same, unmeasured, and reads it once, from the page cache.

What is to be compressed is looked at when it was written: librdkafka sends records as they are to a broker that
does not show, in the way that it looks for, that it takes their codec.

MB are 10^6 bytes of the records' values before compression, and so is the GB in CPU seconds per GB.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from odradek.bench.load import Load, run_load
from odradek.bench.model import Feature, Metric, Outcome, Parameter, Stage, Target, WorkloadFailed
from odradek.bench.reading_back import last_codec
from odradek.bench.wire import Wire

SECONDS_MAX = 20.0
WARM_UP_S = 0.5

BROKER_CPU = Metric("broker_cpu_s_per_gb", "s/GB", "lower")
CLIENT_CPU = Metric("client_cpu_s_per_gb", "s/GB", "lower", diagnostic=True)
WRITTEN = Metric("mb_per_s", "MB/s", "higher", limit="socket-to-file")
READ = Metric("mb_per_s", "MB/s", "higher", limit="sendfile")
PACKED = Metric("mb_per_s", "MB/s", "higher")
"""Of records that go over the wire as fewer bytes than they are: the wire's limit is none of theirs."""

# Size of a record -> its name, and the records of one run: about 1 GB, for small ones some seconds
SIZES: Mapping[int, tuple[str, int]] = {
    100: ("100b", 4_000_000),
    1024: ("1k", 1_000_000),
    100 * 1024: ("100k", 10_000),
}

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Shape:
    """What the records are like and where they go."""

    size: int = 1024
    partitions: int = 1
    compression: str = "none"
    acks: str = "1"
    idempotent: bool = False
    default: bool = False

    @property
    def name(self) -> str:
        """The parts that differ from the plainest, after size and partitions."""
        parts = [SIZES[self.size][0], f"p{self.partitions}"]
        parts += [f"acks{self.acks}"] if self.acks != "1" and not self.idempotent else []
        parts += [self.compression] if self.compression != "none" else []
        parts += ["idempotent"] if self.idempotent else []
        return "-".join(parts)

    @property
    def title(self) -> str:
        """In words."""
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
        """`plain`, if the records are."""
        return plain if self.compression == "none" else PACKED

    def produce(self, target: Target, topic: str, warm_up_s: float) -> Load:
        """Write the records. WorkloadFailed if they are in another codec."""
        load = self._produce(target, topic, warm_up_s)
        if self.compression != "none":
            with Wire(target.address) as wire:
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
    """Write records of one shape."""

    shape: Shape
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

    def run(self, target: Target) -> Outcome:
        with target.topic(f"{self.name}-{next(_numbers)}", self.shape.partitions) as topic:
            return _outcome(self.shape.produce(target, topic, WARM_UP_S))


@dataclass(frozen=True)
class Consume:
    """Read records of one shape, that were written just before."""

    shape: Shape
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

    def run(self, target: Target) -> Outcome:
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


def _outcome(load: Load) -> Outcome:
    gb = load.report["bytes"] / 1e9
    values = {WRITTEN.name: gb * 1e3 / load.seconds, CLIENT_CPU.name: load.cpu_s / gb}
    if load.broker_cpu_s is not None:
        values[BROKER_CPU.name] = load.broker_cpu_s / gb
    return Outcome(values, load.client_bound, notes=load.notes)


WORKLOADS: tuple[Produce | Consume, ...] = (
    Produce(Shape(default=True)),
    Produce(Shape(compression="lz4", default=True)),
    Produce(Shape(partitions=6, default=True)),
    Produce(Shape(size=100, default=True)),
    Produce(Shape(size=100 * 1024, default=True)),
    Produce(Shape(acks="all", idempotent=True, default=True)),
    Produce(Shape(acks="0")),
    Produce(Shape(acks="all")),
    Produce(Shape(compression="zstd")),
    Produce(Shape(partitions=48)),
    Produce(Shape(partitions=48, compression="lz4")),
    Produce(Shape(partitions=48, acks="all", idempotent=True)),
    Produce(Shape(size=100, partitions=6)),
    Produce(Shape(size=100, partitions=48)),
    Produce(Shape(size=100, compression="zstd")),
    Produce(Shape(size=100 * 1024, partitions=6)),
    Produce(Shape(size=100 * 1024, partitions=48)),
    Produce(Shape(size=100 * 1024, compression="lz4")),
    Consume(Shape(default=True)),
    Consume(Shape(partitions=6, default=True)),
    Consume(Shape(compression="lz4")),
    Consume(Shape(compression="zstd")),
    Consume(Shape(partitions=48)),
    Consume(Shape(size=100)),
    Consume(Shape(size=100, partitions=48)),
    Consume(Shape(size=100 * 1024)),
    Consume(Shape(size=100 * 1024, partitions=6)),
)
