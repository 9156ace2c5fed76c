"""One run of a plan: start the cluster, inject faults while clients work, recover, read everything.

After the faults, the cluster must be in sync within `HEALED_WITHIN_S`: every node serves, every
replica is in sync. A run that hangs ends after `LIMIT_S`; that is an anomaly, and so is a run that
raises.
"""

from __future__ import annotations

import hashlib
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import trio

from odradek.client.errors import ClientError
from odradek.client.metadata import Cluster, open_cluster
from odradek.protocol.errors import KafkaError
from odradek.testing.simulation.checkers import Checkers
from odradek.testing.simulation.cluster import CLIENTS, SimulatedCluster
from odradek.testing.simulation.consumer_group import ConsumerGroupWorkload
from odradek.testing.simulation.disablement_checks import DisablementChecks
from odradek.testing.simulation.diskless_checks import DisklessChecks
from odradek.testing.simulation.faults import Coverage, Faults
from odradek.testing.simulation.history import Anomaly, count_done, find_anomalies
from odradek.testing.simulation.log_watch import watch_log
from odradek.testing.simulation.plan import FaultKind, SimulationPlan
from odradek.testing.simulation.store_faults import StoreFaults
from odradek.testing.simulation.tier_checks import TierChecks
from odradek.testing.simulation.tiering_disablement import TieringDisablement, enable_at_end
from odradek.testing.simulation.topic_recreation import RECREATED_TOPIC, TopicRecreation
from odradek.testing.simulation.trace import Trace
from odradek.testing.simulation.workload import (
    DISKLESS_TOPIC,
    REQUEST_S,
    TIERED_TOPIC,
    TOPIC,
    Workload,
)
from odradek.testing.virtual_disk import VirtualDisk
from odradek.testing.virtual_world import VirtualWorld

DELAY_S = (0.0002, 0.004)
HEALED_WITHIN_S = 10.0
"""Sessions, replica lag and fetches time out after 1.5 s, elections earlier.

Two of these and a start in between take 5 s. The summary has the longest time of all runs.
"""
LIMIT_S = 150.0
DISKLESS_LIMIT_S = 500.0


@dataclass
class SimulationRun:
    """The results of a plan."""

    plan: SimulationPlan
    anomalies: list[Anomaly] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)
    trace: list[str] = field(default_factory=list)
    digest: str = ""
    """Digest of the trace, of all bytes that were sent, and of the disks at the end."""
    virtual_s: float = 0.0
    starts_cpu_s: float = 0.0
    """CPU time until every node served for the first time."""
    healed_s: float = 0.0
    """Virtual seconds until the cluster was in sync again, or settled at the end."""
    responded_s: float = 0.0
    """The longest wait of a client after recovery, in virtual seconds."""
    messages: int = 0
    """Messages that were sent; a large one counts once for each chunk."""
    disk_calls: int = 0
    done: Counter[str] = field(default_factory=Counter)
    """Operations that were acknowledged: writes, transactions, reads."""

    @property
    def is_sound(self) -> bool:
        return not self.anomalies


def simulate(plan: SimulationPlan) -> SimulationRun:
    """Run a plan. An exception is an anomaly, with its traceback."""
    run = SimulationRun(plan)
    world = VirtualWorld(plan.seed)
    world.clock.jumping = True
    trace = Trace(world.clock.monotonic)
    simulation = _Simulation(plan, world, trace, run)
    with watch_log() as watch:
        try:
            world.run(simulation.main)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # includes groups, and NodeCrashed outside of nodes
            run.anomalies.append(Anomaly("exception", traceback.format_exc()))
    run.anomalies += watch.anomalies
    run.trace = trace.lines
    run.digest = _digest(trace, world, simulation.disks)
    run.virtual_s = world.clock.monotonic()
    run.messages = world.wires.messages
    run.disk_calls = sum(disk.calls for disk in simulation.disks)
    return run


def _digest(trace: Trace, world: VirtualWorld, disks: list[VirtualDisk]) -> str:
    parts = [trace.digest, str(world.wires.checksum), *(disk.fingerprint() for disk in disks)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class _Simulation:
    def __init__(
        self, plan: SimulationPlan, world: VirtualWorld, trace: Trace, run: SimulationRun
    ) -> None:
        self._plan = plan
        self._world = world
        self._trace = trace
        self._run = run
        self._cluster: SimulatedCluster | None = None
        self._kinds = {fault.kind for fault in plan.faults}
        self._disables_tiering = FaultKind.TIERING_DISABLED in self._kinds
        self._may_dangle = FaultKind.STORE_FALSE_SUCCESS in self._kinds

    def _disablement_times(self) -> list[float]:
        kind = FaultKind.TIERING_DISABLED
        return [fault.at_s for fault in self._plan.faults if fault.kind is kind]

    @property
    def disks(self) -> list[VirtualDisk]:
        """The current disks of the nodes."""
        return [node.disk for node in self._cluster or ()]

    async def main(self) -> None:
        self._world.wires.set_delay(*DELAY_S)
        limit_s = DISKLESS_LIMIT_S if self._plan.diskless else LIMIT_S
        with trio.move_on_after(limit_s) as limit:
            async with trio.open_nursery() as nursery:
                await self._play(nursery)
                nursery.cancel_scope.cancel()
        if limit.cancelled_caught:
            self._run.anomalies.append(
                Anomaly("timeout", f"not finished in {limit_s:g} virtual seconds")
            )

    async def _play(self, nursery: trio.Nursery) -> None:
        plan, run = self._plan, self._run
        cluster = self._cluster = SimulatedCluster(
            self._world,
            plan.nodes,
            self._trace,
            nursery,
            tiered=plan.tiered,
            diskless=plan.diskless,
            dynamic_quorum=plan.dynamic_quorum,
            offloaded_s=plan.offloaded_s,
            configs=plan.configs,
        )
        checkers = Checkers(cluster)
        run.anomalies = checkers.anomalies
        for node in cluster:
            await cluster.start(node.number)
        nursery.start_soon(checkers.run)
        network = self._world.node(CLIENTS).network

        def connect() -> AbstractAsyncContextManager[Cluster]:
            return open_cluster(network, cluster.bootstrap, timeout_s=REQUEST_S)

        clock = self._world.clock
        work = Workload(connect, clock, plan, self._trace)
        topic_configs = TIERED_TOPIC if plan.tiered else DISKLESS_TOPIC if plan.diskless else {}
        recreation = TopicRecreation(
            connect, clock, plan.nodes, self._trace, topic_configs, diskless=plan.diskless
        )
        group = ConsumerGroupWorkload(
            connect, TOPIC, plan.members, plan.seed, self._trace, tiered=plan.tiered
        )
        store = StoreFaults(self._world.bucket, plan.seed)
        tiering = TieringDisablement(connect, cluster, self._trace)
        disablement = DisablementChecks(
            cluster,
            self._world.bucket,
            tiering,
            (TOPIC, RECREATED_TOPIC),
            may_dangle=self._may_dangle,
        )
        diskless = self._diskless_checks(cluster)
        if diskless is not None:
            nursery.start_soon(diskless.run)
        faults = Faults(cluster, checkers, work, store, recreation, tiering, work.replicated_topic)
        run.coverage = faults.coverage
        try:
            await work.create_topic()
        except (KafkaError, ClientError) as error:
            run.anomalies.append(Anomaly("failed start", str(error)))
            await cluster.stop_all()
            return
        self._trace.add("the topic exists")
        async with trio.open_nursery() as working:
            working.start_soon(work.read_along)
            working.start_soon(group.run)
            if self._disables_tiering:
                nursery.start_soon(disablement.run)
                for number, at_s in enumerate(self._disablement_times()):
                    working.start_soon(work.read_from, at_s, f"reader-{number}")
            async with trio.open_nursery() as writing:
                writing.start_soon(work.write)
                await faults.play(plan.faults)
                await faults.heal()
                self._trace.add("all faults are repaired")
                work.end_pauses()
                await self._within(checkers, checkers.wait_in_sync)
                work.set_in_sync()
                group.set_in_sync()
                writing.start_soon(work.write_as_new_producer)
            await work.read_final()
            if self._disables_tiering:
                disablement.check_log_starts(await work.find_log_starts())
            if diskless is not None:
                diskless.check_log_starts(
                    await work.find_log_starts(),
                    work.deletion_acknowledged,
                    work.deletion_requested,
                )
            run.anomalies += await recreation.final(
                may_be_deleted=RECREATED_TOPIC in tiering.has_deleted
            )
            await group.final(work.history.final, work.ends, work.history.log_starts)
        run.starts_cpu_s = cluster.starts_cpu_s
        run.anomalies += work.anomalies + group.anomalies
        run.responded_s = work.responded_s
        run.done = count_done(work.history) + group.history.count_done()
        run.anomalies += find_anomalies(work.history)
        await self._within(checkers, checkers.wait_settled)
        checkers.final()
        run.anomalies += disablement.anomalies
        if diskless is not None:
            if not run.anomalies and not diskless.anomalies:
                await diskless.final(work.history.final, work.history.log_starts, work)
            run.anomalies += diskless.anomalies
        if plan.tiered and not run.anomalies:
            await self._check_tier(cluster, work, tiering, disablement)
        run.anomalies += [Anomaly("node failed", text) for text in cluster.failures]
        await cluster.stop_all()

    def _diskless_checks(self, cluster: SimulatedCluster) -> DisklessChecks | None:
        plan = self._plan
        if not plan.diskless:
            return None
        topics = (TOPIC, RECREATED_TOPIC)
        return DisklessChecks(
            cluster, self._world.bucket, topics, seed=plan.seed, configs=plan.configs
        )

    async def _check_tier(
        self,
        cluster: SimulatedCluster,
        work: Workload,
        tiering: TieringDisablement,
        disablement: DisablementChecks,
    ) -> None:
        starts: Mapping[int, int] = {}
        if self._disables_tiering:
            starts = work.history.log_starts
            await disablement.final(work.history.final, work.read_again, starts)
            for topic in (TOPIC, RECREATED_TOPIC):
                if tiering.state(topic) is not None:
                    await enable_at_end(tiering, topic)
            await disablement.wait_enabled()
            self._run.anomalies += disablement.anomalies
            if disablement.anomalies:
                return
        if FaultKind.COPY_DISABLED in self._kinds:  # the request to enable copies may have failed
            await work.set_remote_copy(True)
        tier = TierChecks(
            cluster,
            self._world.bucket,
            TOPIC,
            RECREATED_TOPIC,
            seed=self._plan.seed,
            may_dangle=self._may_dangle,
            starts=starts,
            replica_starts=disablement.replica_starts() if self._disables_tiering else {},
        )
        await tier.run(work.history.final, work)
        self._run.anomalies += tier.anomalies

    async def _within(self, checkers: Checkers, healed: Callable[[], Awaitable[None]]) -> None:
        began = trio.current_time()
        with trio.move_on_after(HEALED_WITHIN_S) as healing:
            await healed()
        self._run.healed_s = max(self._run.healed_s, trio.current_time() - began)
        if healing.cancelled_caught:
            why = checkers.describe_missing()
            self._run.anomalies.append(Anomaly("not recovered", f"in {HEALED_WITHIN_S:g} s: {why}"))
