"""A partition of a given size: what several workloads begin with."""

from __future__ import annotations

from odradek.bench.load import run_load
from odradek.bench.model import Target, WorkloadFailed

RECORD_BYTES = 1024
SECONDS = 600
"""A broker that takes longer is given up on."""


def fill(target: Target, topic: str, size_mb: int) -> None:
    """Write so much to the topic's only partition, in records of 1 KiB. WorkloadFailed if it is less."""
    count = size_mb * 1_000_000 // RECORD_BYTES
    load = run_load(
        [
            "produce", "--bootstrap", target.bootstrap, "--topic", topic,
            "--count", str(count),
            "--size", str(RECORD_BYTES),
            "--seconds", str(SECONDS),
        ],
        target.process,
        timeout_s=SECONDS + 90,
    )  # fmt: skip
    if load.said["records"] < count:
        raise WorkloadFailed(f"{load.said['records']} of {count} records in {SECONDS} s")
