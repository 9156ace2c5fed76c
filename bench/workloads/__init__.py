"""What is asked of the brokers, in the order in which it is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from odradek.bench.model import Workload
from odradek.bench.workloads import (
    background_load,
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
    *background_load.WORKLOADS,
    *compaction.WORKLOADS,
    *topics.WORKLOADS,
    *groups.WORKLOADS,
    *recovery.WORKLOADS,
    *moves.WORKLOADS,
    *clusters.WORKLOADS,
    *tiering.WORKLOADS,
    *rebuild.WORKLOADS,
)

FEWER = 3
ROUNDS_MOST: Mapping[str, int] = dict.fromkeys(
    (
        # No goal is set for them.
        "idle-connections-500",
        "produce-1k-p6",
        "produce-100b-p1",
        "produce-100k-p1",
        "produce-1k-p1-idempotent",
        "requests-c100",
        "requests-c1-idle500",
        "latency-beside-producers-8",
        "latency-beside-producers-32",
        "latency-beside-compaction",
        "group-rebalance-1",
        "group-rebalance-5",
        "group-rebalance-50",
        "recovery-100mb",
        "recovery-1000mb",
        "move-1000mb",
        # Half a minute each on the slowest peer, and far from what they must be, or seldom off by a tenth.
        "topics-one-by-one",
        "cluster-startup",
        "replicated-1k-p6",
        "fail-over",
        "fail-over-controller",
        "rolling-restart",
    ),
    FEWER,
)
"""How many rounds of these count where nobody says how many: five of each would take two hours and a half."""
