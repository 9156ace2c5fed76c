"""What is asked of the brokers, in the order in which it is run."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.bench.model import Workload
from odradek.bench.workloads import throughput

WORKLOADS: Sequence[Workload] = (*throughput.WORKLOADS,)
