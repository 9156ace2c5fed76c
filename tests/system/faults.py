"""Faults of Kafka's system tests for a cluster under load.

Each fault is a function of a `Scene`. It returns when the fault has been repaired; the test then waits until
the cluster has recovered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from odradek.testing import Cluster
from odradek.testing.cluster.links import CLIENTS
from tests.system.cluster_state import (
    active_controller,
    leader,
    partition,
    reassign,
    wait_for_controller,
    wait_for_in_sync,
    wait_for_leader,
    wait_until_in_sync,
    wait_until_reassigned,
)
from tests.system.clusters import committed_values
from tests.system.load import Load

BOUNCES = 2
LONG_S = 8.0
"""Longer than the request timeout of clients."""
ON_THE_WAY_S = 2.0
"""Time in which clients receive the responses that were sent before a fault."""
LATENCY_MS = 100
MBIT_3_BYTES = 3_000_000 / 8
SLOWLY = 5
"""Number of transactions that show progress if each takes a second or more."""


@dataclass(frozen=True)
class Scene:
    """A cluster, and a load on one of its topics."""

    cluster: Cluster
    topic: str
    partitions: int
    load: Load
    replicas: int = 3

    def leader(self) -> int:
        return leader(self.cluster, self.topic)

    def led_by(self, node: int, *, broker: int) -> set[int]:
        """Partitions that `node` leads according to `broker`."""
        return {
            index
            for index in range(self.partitions)
            if leader(self.cluster, self.topic, index, broker=broker) == node
        }

    def other(self, than: int) -> int:
        """A broker that is not in `than`."""
        return next(each for each in self.cluster.brokers if each != than)

    def wait_for_another_leader(self, than: int) -> None:
        wait_for_leader(
            self.cluster, self.topic, lambda found: found != than, broker=self.other(than)
        )

    def wait_until_in_sync(self) -> None:
        wait_until_in_sync(self.cluster, self.topic, self.replicas, self.partitions)


def _bounce(scene: Scene, end: Callable[[int], None], *, leads: bool) -> None:
    """Stop the leader or a follower of the first partition, and start it again."""
    for _ in range(BOUNCES):
        first = scene.leader()
        node = first if leads else scene.other(first)
        end(node)
        if leads:
            scene.wait_for_another_leader(node)
        scene.load.wait_for_progress()
        scene.cluster.restart(node)
        scene.wait_until_in_sync()


def clean_bounce_of_the_leader(scene: Scene) -> None:
    _bounce(scene, scene.cluster.stop, leads=True)


def hard_bounce_of_the_leader(scene: Scene) -> None:
    _bounce(scene, scene.cluster.kill, leads=True)


def clean_bounce_of_a_follower(scene: Scene) -> None:
    _bounce(scene, scene.cluster.stop, leads=False)


def hard_bounce_of_a_follower(scene: Scene) -> None:
    _bounce(scene, scene.cluster.kill, leads=False)


def _bounce_controller(scene: Scene, end: Callable[[int], None]) -> None:
    for _ in range(BOUNCES):
        node = active_controller(scene.cluster, broker=scene.cluster.brokers[0])
        end(node)
        others = scene.other(node)
        wait_for_controller(scene.cluster, lambda found, was=node: found != was, broker=others)
        scene.load.wait_for_progress()
        scene.cluster.restart(node)
        scene.wait_until_in_sync()


def clean_bounce_of_the_controller(scene: Scene) -> None:
    _bounce_controller(scene, scene.cluster.stop)


def hard_bounce_of_the_controller(scene: Scene) -> None:
    _bounce_controller(scene, scene.cluster.kill)


def rolling_restart(scene: Scene) -> None:
    for node in scene.cluster.brokers:
        scene.cluster.restart(node)
        scene.wait_until_in_sync()


def leader_cut_off_from_clients(scene: Scene) -> None:
    """Cut the leader off from its clients. It stays the leader; the responses to earlier requests are
    delayed, and may arrive after the clients' timeout.
    """
    node = scene.leader()
    led = scene.led_by(node, broker=node)
    scene.cluster.partition(node, [CLIENTS])
    time.sleep(ON_THE_WAY_S)
    before = scene.load.acknowledged_in(led)
    time.sleep(LONG_S)
    assert scene.load.acknowledged_in(led) == before, "clients reached the leader"
    assert scene.led_by(node, broker=scene.other(node)) == led, "the leader has changed"
    scene.cluster.heal()


def leader_cut_off_from_brokers(scene: Scene) -> None:
    """Cut the leader off from the other brokers. Its clients still reach it, but their records cannot be
    acknowledged.
    """
    node = scene.leader()
    scene.cluster.partition(node)
    scene.wait_for_another_leader(node)
    scene.load.wait_for_progress()
    scene.cluster.heal()


def leader_paused(scene: Scene) -> None:
    """Pause the leader for longer than its session timeout. When it continues, it still acts as the
    leader.
    """
    node = scene.leader()
    scene.cluster.pause(node)
    scene.wait_for_another_leader(node)
    scene.load.wait_for_progress()
    scene.cluster.resume(node)


def slow_network_between_brokers(scene: Scene) -> None:
    """Delay the network between brokers, so that acknowledgements wait for a follower's delayed fetch."""
    scene.cluster.degrade(latency_ms=LATENCY_MS, bytes_per_s=MBIT_3_BYTES)
    time.sleep(ON_THE_WAY_S)
    before = len(scene.load.latencies_s)
    time.sleep(LONG_S)
    scene.load.wait_for_progress(SLOWLY)
    fastest_s = min(scene.load.latencies_s[before:])
    assert fastest_s >= 2 * LATENCY_MS / 1000, "the network was not slow"
    scene.cluster.heal()


def unclean_election(scene: Scene) -> frozenset[bytes]:
    """Elect a replica that has not been in sync for a while.

    `A` is the leader, `B` the other replica; `C` has no replica and is the active controller. B is killed,
    and restarts unable to reach A; then A is killed. Returns the values that only A may have acknowledged,
    which may be lost. They include the values of the transaction that is open at that time, whose commit
    comes later. The values that B had when it was killed were acknowledged by both brokers, or may have been.
    """
    cluster, a = scene.cluster, scene.leader()
    [b] = set(_replicas(scene)) - {a}
    [c] = set(cluster.brokers) - {a, b}
    cluster.kill(b)
    had = committed_values(cluster, b, f"{scene.topic}-0")
    assert had, "nothing was replicated"
    wait_for_in_sync(cluster, scene.topic, {a}, broker=c)
    scene.load.wait_for_progress()
    cluster.partition(a, [b])
    cluster.restart(b)
    scene.load.wait_for_progress()
    cluster.kill(a)
    alone = scene.load.begun_values() - had
    wait_for_leader(cluster, scene.topic, lambda found: found == b, broker=c)
    scene.load.wait_for_progress()
    cluster.heal()
    cluster.restart(a)
    scene.wait_until_in_sync()
    return frozenset(alone)


def _replicas(scene: Scene) -> list[int]:
    return list(partition(scene.cluster, scene.topic).replicas)


def reassignment_under_bounce(scene: Scene) -> None:
    """Reassign each partition to the next broker of the ring, while one of the brokers is bounced."""
    brokers = scene.cluster.brokers
    for turn, bounced in enumerate(brokers, start=1):
        wanted = ring(brokers, scene.partitions, scene.replicas, turn)
        reassign(scene.cluster, scene.topic, wanted)
        if turn % 2:
            scene.cluster.kill(bounced)
        scene.cluster.restart(bounced)
        wait_until_reassigned(scene.cluster, scene.topic, wanted)


def ring(
    brokers: Sequence[int], partitions: int, replicas: int, turn: int
) -> Mapping[int, Sequence[int]]:
    """Replicas of each partition: `replicas` consecutive brokers, starting at a broker that depends on the
    partition and `turn`.
    """
    return {
        index: [brokers[(index + turn + step) % len(brokers)] for step in range(replicas)]
        for index in range(partitions)
    }


@dataclass(frozen=True)
class Fault:
    """A fault, with the number of partitions and the key size of its load."""

    happens: Callable[[Scene], None]
    partitions: int = 3
    padding_bytes: int = 0


FAULTS: Mapping[str, Fault] = {
    "leader-clean": Fault(clean_bounce_of_the_leader),
    "leader-hard": Fault(hard_bounce_of_the_leader),
    "follower-clean": Fault(clean_bounce_of_a_follower, partitions=1),
    "follower-hard": Fault(hard_bounce_of_a_follower, partitions=1),
    "controller-clean": Fault(clean_bounce_of_the_controller),
    "controller-hard": Fault(hard_bounce_of_the_controller),
    "rolling-restart": Fault(rolling_restart),
    "cut-off-from-clients": Fault(leader_cut_off_from_clients),
    "cut-off-from-brokers": Fault(leader_cut_off_from_brokers),
    "paused": Fault(leader_paused),
    "slow-network": Fault(slow_network_between_brokers, padding_bytes=4000),
}
