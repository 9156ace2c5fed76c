"""Clusters of three brokers: memory, replicated throughput, failover and rolling restarts.

Times are measured by a producer with acks=all and three replicas (`acknowledgement_probe.py`). Timeouts are the brokers' defaults:
the controller notices a killed leader when its session expires (broker.session.timeout.ms, 9 s).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from odradek.bench.load import run_load
from odradek.bench.model import (
    Feature,
    Metric,
    Parameter,
    ServerCluster,
    Stage,
    Target,
    WorkloadFailed,
    WorkloadOutcome,
)
from odradek.bench.peers.topics import with_cluster
from odradek.bench.workloads.acknowledgement_probe import AcknowledgementProbe
from odradek.client.quorum_admin import describe_quorum

SETTLE_S = 3.0
GAP_S = 0.02
"""A longer pause between acknowledgements counts as unavailability."""
RECORDS = 500_000
RECORD_BYTES = 1024
SECONDS_MAX = 20.0
WARM_UP_S = 10.0
"""Duration of the warm-up with the same load and at most as many records.

JVMs compile during that time. More records would cause disk writes during the measurement.
"""

READY = Metric("ready_ms", "ms", "lower")
RESIDENT = Metric("resident_mb", "MB", "lower")
IDLE_CPU = Metric("idle_cpu", "% of a core", "lower")
WRITTEN = Metric("mb_per_s", "MB/s", "higher", limit="socket-to-file")
BROKER_CPU = Metric("broker_cpu_s_per_gb", "s/GB", "lower")
FAIL_OVER = Metric("fail_over_ms", "ms", "lower")
LONGEST = Metric("longest_gap_ms", "ms", "lower")
UNAVAILABLE = Metric("unavailable_ms", "ms", "lower")

_numbers = itertools.count(1)


def _cluster(target: Target) -> ServerCluster:
    if target.cluster is None or target.process is None:
        raise WorkloadFailed("the brokers' processes are not known")
    return target.cluster


def _topic(target: Target, name: str, partitions: int) -> str:
    topic = f"{name}-{next(_numbers)}"
    target.topics.create(topic, partitions)
    return topic


@dataclass(frozen=True)
class ClusterStartup:
    """Measures the start of a cluster until all brokers are in the metadata of each, and idle CPU and memory."""

    name: str = "cluster-startup"
    title: str = "start of three brokers; memory and CPU when idle"
    metrics: Sequence[Metric] = (READY, RESIDENT, IDLE_CPU)
    needs: frozenset[Feature] = frozenset({Feature.CLUSTER})
    stage: Stage = Stage.CLUSTER
    default: bool = True

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {"settle_s": SETTLE_S}

    def run(self, target: Target) -> WorkloadOutcome:
        _cluster(target)
        process = target.process
        assert process is not None
        before, began = process.cpu_seconds(), time.monotonic()
        time.sleep(SETTLE_S)
        used = process.cpu_seconds() - before
        return WorkloadOutcome(
            {
                READY.name: (process.responded_at - process.exec_started_at) * 1e3,
                RESIDENT.name: process.resident_bytes() / 1e6,
                IDLE_CPU.name: used / (time.monotonic() - began) * 100,
            }
        )


@dataclass(frozen=True)
class ReplicatedProduce:
    """Measures the throughput of a producer with acks=all and three replicas."""

    partitions: int = 6
    metrics: Sequence[Metric] = (WRITTEN, BROKER_CPU, RESIDENT)
    needs: frozenset[Feature] = frozenset({Feature.CLUSTER})
    stage: Stage = Stage.CLUSTER
    default: bool = True

    @property
    def name(self) -> str:
        return f"replicated-1k-p{self.partitions}"

    @property
    def title(self) -> str:
        many = "s" * (self.partitions > 1)
        return f"produce, 1 KiB records, {self.partitions} partition{many}, acks=all, 3 replicas"

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {
            "record_bytes": RECORD_BYTES,
            "records": RECORDS,
            "partitions": self.partitions,
            "acks": "all",
            "idempotent": True,
            "warm_up_s_most": WARM_UP_S,
        }

    def run(self, target: Target) -> WorkloadOutcome:
        _cluster(target)
        topic = _topic(target, self.name, self.partitions)
        load = run_load(
            [
                "produce", "--bootstrap", target.bootstrap, "--topic", topic,
                "--count", str(RECORDS),
                "--size", str(RECORD_BYTES),
                "--partitions", str(self.partitions),
                "--seconds", str(SECONDS_MAX),
                "--warm-up", str(WARM_UP_S),
                "-X", "acks=all",
                "-X", "enable.idempotence=true",
            ],
            target.process,
        )  # fmt: skip
        assert target.process is not None
        gb = load.report["bytes"] / 1e9
        values = {
            WRITTEN.name: gb * 1e3 / load.seconds,
            RESIDENT.name: target.process.resident_bytes() / 1e6,
        }
        if load.broker_cpu_s is not None:
            values[BROKER_CPU.name] = load.broker_cpu_s / gb
        return WorkloadOutcome(values, load.client_bound, notes=load.notes)


@dataclass(frozen=True)
class FailOver:
    """Kills a partition's leader, and measures the time until the next record is acknowledged.

    `controller`: the leader is also the active controller, so a new controller is elected first.
    """

    controller: bool
    metrics: Sequence[Metric] = (FAIL_OVER, LONGEST)
    needs: frozenset[Feature] = frozenset({Feature.CLUSTER})
    stage: Stage = Stage.CLUSTER
    default: bool = True

    @property
    def name(self) -> str:
        return "fail-over-controller" if self.controller else "fail-over"

    @property
    def title(self) -> str:
        who = (
            "that is the active controller"
            if self.controller
            else "that is not the active controller"
        )
        return f"kill -9 of a leader {who}, until the next acknowledged record"

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {"acks": "all", "replicas": 3}

    def run(self, target: Target) -> WorkloadOutcome:
        cluster = _cluster(target)
        active = with_cluster(target.bootstrap, describe_quorum).leader_id
        topic = self._led(target, active)
        with AcknowledgementProbe(target.bootstrap, topic) as probe:
            time.sleep(SETTLE_S)
            leader = _leader(target, topic)
            cluster.kill(leader)
            killed_at = time.monotonic()
            acknowledged_at = probe.wait_for_ack(killed_at)
            longest = max(probe.gaps(killed_at))
        return WorkloadOutcome(
            {FAIL_OVER.name: (acknowledged_at - killed_at) * 1e3, LONGEST.name: longest * 1e3},
            notes=(f"broker {leader} killed, {active} was the active controller",),
        )

    def _led(self, target: Target, active: int) -> str:
        """Create a topic of one partition whose leader is, or is not, the active controller."""
        for _ in range(20):
            topic = _topic(target, self.name, 1)
            if (_leader(target, topic) == active) is self.controller:
                return topic
        raise WorkloadFailed("none of twenty topics has the required leader")


@dataclass(frozen=True)
class RollingRestart:
    """Restarts the brokers one after the other, and measures the time without acknowledgements."""

    name: str = "rolling-restart"
    title: str = "rolling restart of three brokers, measured by a producer of one partition"
    metrics: Sequence[Metric] = (UNAVAILABLE, LONGEST)
    needs: frozenset[Feature] = frozenset({Feature.CLUSTER})
    stage: Stage = Stage.CLUSTER
    default: bool = True

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {"acks": "all", "replicas": 3, "gap_ms": GAP_S * 1e3}

    def run(self, target: Target) -> WorkloadOutcome:
        cluster = _cluster(target)
        topic = _topic(target, self.name, 1)
        with AcknowledgementProbe(target.bootstrap, topic) as probe:
            time.sleep(SETTLE_S)
            began = time.monotonic()
            for broker in cluster.brokers:
                cluster.restart(broker)
                _wait_until_in_sync(target, topic, len(cluster.brokers))
            probe.wait_for_ack(time.monotonic())
            gaps = probe.gaps(began)
        return WorkloadOutcome(
            {
                UNAVAILABLE.name: sum(gap for gap in gaps if gap > GAP_S) * 1e3,
                LONGEST.name: max(gaps) * 1e3,
            }
        )


def _leader(target: Target, topic: str) -> int:
    return with_cluster(target.bootstrap, lambda client: client.leader(topic, 0))


def _wait_until_in_sync(target: Target, topic: str, replicas: int) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        found = with_cluster(target.bootstrap, lambda client: client.topic(topic))
        if all(len(each.isr) == replicas for each in found.partitions.values()):
            return
        time.sleep(0.1)
    raise WorkloadFailed(f"{topic} has fewer than {replicas} replicas in sync after 120 s")


WORKLOADS = (
    ClusterStartup(),
    ReplicatedProduce(),
    ReplicatedProduce(partitions=1, default=False),
    FailOver(controller=False),
    FailOver(controller=True),
    RollingRestart(),
)
