"""What is asked of the brokers, in the order in which it is run."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.bench.model import Workload
from odradek.bench.workloads import (
    beside,
    clusters,
    compaction,
    groups,
    idle_connections,
    latency,
    moves,
    rebuild,
    recovery,
    requests,
    startup,
    throughput,
    tiering,
    topics,
)

WORKLOADS: Sequence[Workload] = (
    *startup.WORKLOADS,
    *idle_connections.WORKLOADS,
    *throughput.WORKLOADS,
    *requests.WORKLOADS,
    *latency.WORKLOADS,
    *beside.WORKLOADS,
    *compaction.WORKLOADS,
    *topics.WORKLOADS,
    *groups.WORKLOADS,
    *recovery.WORKLOADS,
    *moves.WORKLOADS,
    *clusters.WORKLOADS,
    *tiering.WORKLOADS,
    *rebuild.WORKLOADS,
)
