"""Lists the workloads in the order in which they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from odradek.bench.model import Workload
from odradek.bench.workloads import (
    background_load,
    clusters,
    compaction,
    diskless,
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
    *background_load.WORKLOADS,
    *compaction.WORKLOADS,
    *topics.WORKLOADS,
    *groups.WORKLOADS,
    *recovery.WORKLOADS,
    *moves.WORKLOADS,
    *clusters.WORKLOADS,
    *tiering.WORKLOADS,
    *rebuild.WORKLOADS,
    *diskless.WORKLOADS,
)

FEWER = 3
ROUNDS_MOST: Mapping[str, int] = dict.fromkeys(
    (
        # These have no goal.
        "idle-connections-500",
        "produce-1k-p6",
        "produce-100b-p1",
        "produce-100k-p1",
        "produce-1k-p1-idempotent",
        "requests-c100",
        "requests-c1-idle500",
        "latency-with-producers-8",
        "latency-with-producers-32",
        "latency-with-compaction",
        "group-rebalance-1",
        "group-rebalance-5",
        "group-rebalance-50",
        "recovery-100mb",
        "recovery-1000mb",
        "move-1000mb",
        # They take about 30 s on the slowest peer, and are far from their goals or vary by less than 10%.
        "topics-one-by-one",
        "cluster-startup",
        "replicated-1k-p6",
        "fail-over",
        "fail-over-controller",
        "rolling-restart",
    ),
    FEWER,
)
"""Default number of rounds of slow workloads; with five of each, a run would take 2.5 hours."""
