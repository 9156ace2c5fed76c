"""The plan of a run: its faults and their times, drawn from the seed before the run begins.

A plan is a value that can be saved, loaded and reduced; reducing a failing plan shrinks it. The
draws do not depend on the behaviour of the cluster.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from odradek.seams.values import value_class

NODES = 3
RUN_S = 3.0
"""The virtual time, in seconds, in which faults begin and clients start new work."""
FAULTS_MAX = 6
LATER_FAULTS_MAX = 2
"""Faults of kinds that were added later; separate draws keep the earlier ones unchanged."""
DISK_DELAYS_S = (0.001, 0.005, 0.02)
"""Maximum delays before a disk call begins and returns, so that a crash can be in between."""
FAULT_S_MAX = 2.5
ADMIN_REQUEST_S = 2.0
"""The time limit of an administrative request during faults."""
RECREATIONS_MAX = 2
VOTER_REMOVALS_MAX = 2
DISABLEMENTS_MAX = 3
DISABLED_FROM_S = 0.8
"""By then the topic has remote segments, and the first ones are not on the local disks any more."""
DISABLED_TO_S = 3.5
FAST_RETENTION: Mapping[str, str] = {"log.retention.check.interval.ms": "100"}
SHORT_SEGMENTS: Mapping[str, str] = {"segment.ms": "150", "local.retention.ms": "50"}
"""Configs with which only the remote tier has the first segments when it is disabled."""
COMPANIONS_MAX = 2
COMPANION_S = (-0.4, 0.4)
"""When a fault that accompanies a disablement of tiered storage begins, from the disablement's time."""
AFFECTS_ALL_REQUESTS = 0.6
"""From this amount on, a fault of the store affects every request; below it, a proportional share."""
DISKLESS_EVENTS_MAX = 3
DISKLESS_INTERVALS: Mapping[str, Sequence[int]] = {
    "diskless.append.commit.interval.ms": (5, 20, 20, 100),
    "diskless.fetch.poll.interval.ms": (20, 50),
    "diskless.metadata.snapshot.interval.records": (3, 10, 30, 1000),
    "diskless.file.deletion.grace.period.ms": (0, 500, 3000, 8000),
    "diskless.coordinator.orphan.scan.interval.ms": (1000, 8000, 8000, 8000),
}
MEMBERS = 2
SHARE = 1 / 3
"""The share of plans with each option below."""
SMALL_METADATA: Mapping[str, Sequence[int]] = {
    "metadata.log.max.record.bytes.between.snapshots": (300, 1000),
    "internal.metadata.log.segment.bytes": (2000, 3000),  # the first batch of a node must fit
    "metadata.max.retention.bytes": (1000, 6000),
    "internal.metadata.delete.delay.millis": (100,),
}
"""Configs with which a run writes snapshots and deletes log segments: it writes about 5 kB of metadata."""
SMALL_SEGMENTS: Mapping[str, str] = {
    "log.roll.ms": "400",  # affects internal topics, too
    "log.cleaner.min.compaction.lag.ms": "3600000",  # no compaction: its results differ from node to node
}
SEGMENT_BYTES = (2500, 6000)
DATA = "/data"
OTHER_DATA = "/other"
"""The second log directory, with tiered topics, and in a share of the other plans."""
CLIENTS = 0
"""The number of the host that all clients run on; it is not a node."""


class FaultKind(enum.Enum):
    KILL = "kill"
    """SIGKILL: the process ends in the middle of its work; its writes remain."""
    POWER_LOSS = "power loss"
    """Unsynced changes are kept, lost or torn.

    In half of the cases the machine fails too: its peers receive no response until it restarts.
    """
    KILL_AT_OPERATION = "kill at a file operation"
    """SIGKILL at a file operation, of the running node or during log recovery."""
    POWER_LOSS_AT_OPERATION = "power loss at a file operation"
    """Power loss at a file operation."""
    STOP = "stop"
    """SIGTERM: controlled shutdown."""
    PARTITION = "partition"
    """The node is partitioned from the other nodes; clients may still reach it."""
    ONE_WAY_PARTITION = "one-way partition"
    """Traffic from the node to one other node is blocked."""
    CLIENTS_PARTITIONED = "partition from clients"
    """Traffic between the node and the clients is blocked."""
    DROPPED_CONNECTIONS = "dropped connections"
    """The node loses its connections to the others, which still receive the bytes in flight."""
    SLOW_NETWORK = "slow network"
    SLOW_DISK = "slow disk"
    """Disk calls are delayed, and no page is in the page cache."""
    FULL_DISK = "full disk"
    FAILING_DISK = "failing disk"
    """Writes and syncs of partitions fail with EIO, and the node ends.

    It is restarted on a working disk.
    """
    FAILING_DIRECTORY = "failing directory"
    """Writes, reads or both fail in the node's second log directory.

    The node continues, and is restarted at the end of the fault.
    """
    UNREADABLE_DISK = "unreadable disk"
    """Reads fail with EIO; otherwise as `FAILING_DISK`."""
    BIT_FLIP = "bit flip"
    """The node is killed or loses power, and a bit of its files flips before it starts (`file_corruption.py`).
    """
    CLOCK_JUMP = "clock jump"
    REASSIGNMENT = "reassignment"
    """Not a fault: a partition is reassigned to all nodes but this one; sometimes it is cancelled.
    """
    MISSED_LEADER_EPOCH = "missed leader epoch"
    """A leader without metadata updates is replaced and elected again, and sees both changes at
    once.

    It is then partitioned from one of its followers, and killed.
    """
    LAGGING_VOTER = "lagging voter"
    """The active controller's responses do not reach the node, which becomes a candidate.

    Then all other voters are killed, and all but the controller are restarted at once.
    """
    DIRECTORY_MOVE = "moves between log directories"
    """Not a fault: the node's replicas move to one of its log directories, and then to the other.
    """
    COPY_DISABLED = "remote copy disabled"
    """remote.log.copy.disable is set on the topic, and removed later."""
    TOPIC_RECREATED = "topic recreated"
    """A topic is deleted and, in three of four cases, recreated with the same name.

    See `topic_recreation.py`. In most cases the node is down or partitioned at the deletion or throughout.
    """
    VOTER_REMOVED = "voter removed"
    """Not a fault: the node is removed from the quorum's voters, until it joins again (KIP-853)."""
    STORE_REQUEST_CRASH = "crash at a store request"
    """The node that sends a request to the store is killed before or after it."""
    STORE_UNAVAILABLE = "store unavailable"
    STORE_THROTTLES = "store throttling"
    STORE_HANGS = "store hanging"
    STORE_SLOW = "slow store"
    STORE_RESPONSE_LOST = "store responses lost"
    STORE_PARTIAL = "store request half executed"
    STORE_FALSE_SUCCESS = "store reports false success"
    """One response reports a change that was not made."""
    TIERING_DISABLED = "tiered storage disabled"
    """Tiered storage of a topic is disabled, and sometimes enabled again (`tiering_disablement.py`)."""
    RECORDS_DELETED = "records deleted"
    """Not a fault: the first records of a diskless topic are deleted."""
    CLOCKS_ADVANCED = "clocks advanced"
    """Not a fault: all nodes' clocks advance until the files of diskless topics are old enough to be deleted."""


DISK_DAMAGE = frozenset(
    {FaultKind.FAILING_DIRECTORY, FaultKind.UNREADABLE_DISK, FaultKind.BIT_FLIP}
)
LATER_KINDS = DISK_DAMAGE | {FaultKind.KILL_AT_OPERATION, FaultKind.POWER_LOSS_AT_OPERATION}
DRAWN_SEPARATELY = LATER_KINDS | {
    FaultKind.TOPIC_RECREATED,
    FaultKind.VOTER_REMOVED,
    FaultKind.TIERING_DISABLED,
    FaultKind.RECORDS_DELETED,
    FaultKind.CLOCKS_ADVANCED,
}
DISKLESS_ONLY = frozenset({FaultKind.RECORDS_DELETED, FaultKind.CLOCKS_ADVANCED})
DAMAGING = DISK_DAMAGE | {
    FaultKind.POWER_LOSS,
    FaultKind.POWER_LOSS_AT_OPERATION,
    FaultKind.FAILING_DISK,
    FaultKind.FULL_DISK,
}
"""Faults after which a replica may lack acknowledged records.

Until it is in sync again, no other replica may end without a clean stop: the controller cannot know
which of the two has all records (KIP-966 guarantees no more with two replicas in sync). Such faults
are therefore serialized.
"""
KILLS = frozenset({FaultKind.KILL, FaultKind.KILL_AT_OPERATION})
UNCLEAN = DAMAGING | KILLS | {FaultKind.STORE_REQUEST_CRASH}
NEEDS_SEVERAL_NODES = DAMAGING | {
    FaultKind.PARTITION,
    FaultKind.ONE_WAY_PARTITION,
    FaultKind.SLOW_NETWORK,
    FaultKind.REASSIGNMENT,
    FaultKind.MISSED_LEADER_EPOCH,
    FaultKind.LAGGING_VOTER,
}
"""Faults that require other nodes, which have the records or the other end of the network."""
NEEDS_ANOTHER_CONTROLLER = frozenset({FaultKind.MISSED_LEADER_EPOCH, FaultKind.LAGGING_VOTER})
"""Faults that require an active controller, and affect another node."""
STORE_FAULTS = frozenset(each for each in FaultKind if each.name.startswith("STORE_"))
NEEDS_TIERED_TOPIC = STORE_FAULTS | {FaultKind.DIRECTORY_MOVE, FaultKind.COPY_DISABLED}
"""Faults that require a tiered topic."""
IMPOSSIBLE_IN_DISKLESS = frozenset({FaultKind.STORE_FALSE_SUCCESS, FaultKind.COPY_DISABLED})
"""Faults that plans with diskless topics do not have.

A store that reports success for a PUT without storing the object loses acknowledged records, because there is no other copy.
"""
WITHOUT_NODE = STORE_FAULTS | DISKLESS_ONLY | {FaultKind.COPY_DISABLED, FaultKind.TIERING_DISABLED}
"""Faults that do not affect the node that they name."""

DISABLEMENT_COMPANIONS = (
    FaultKind.KILL,
    FaultKind.STOP,
    FaultKind.PARTITION,
    FaultKind.CLIENTS_PARTITIONED,
    FaultKind.REASSIGNMENT,
    FaultKind.DIRECTORY_MOVE,
    FaultKind.STORE_REQUEST_CRASH,
    FaultKind.STORE_UNAVAILABLE,
    FaultKind.STORE_HANGS,
    FaultKind.STORE_SLOW,
)
"""Faults that accompany a disablement of tiered storage: of brokers, moves, and of the object store."""


@value_class
class Fault:
    at_s: float
    kind: FaultKind
    node: int
    other: int
    seconds: float
    """The duration; a node that went down is restarted at its end."""
    amount: float
    """Depends on the kind; from 0 to 1."""
    variant: float = 0.0
    """Selects a variant of the kind; from 0 to 1."""


@value_class
class SimulationPlan:
    seed: int
    faults: tuple[Fault, ...]
    nodes: int = NODES
    writers: int = 2
    transactional: int = 2
    members: int = 0
    """Members of the consumer group."""
    tiered: bool = False
    """Whether the topic is tiered."""
    diskless: bool = False
    """Whether the topic is diskless. Faults of replicas then affect `__diskless_metadata`."""
    dynamic_quorum: bool = False
    """Whether voters are in the metadata log (KIP-853), and nodes join by themselves.

    Otherwise the configs list the voters.
    """
    offloaded_s: float = 0.0
    """The maximum delay before a disk call begins and returns, in seconds."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """Configs of the nodes."""
    topic_configs: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_other_directory(self) -> bool:
        return self.tiered or self.diskless or "log.dirs" in self.configs

    def smaller(self) -> Iterator[SimulationPlan]:
        """Yield the plans with one element less."""
        for number in range(len(self.faults)):
            yield replace(self, faults=self.faults[:number] + self.faults[number + 1 :])
        if self.transactional:
            yield replace(self, transactional=0)
        if self.writers and self.transactional:
            yield replace(self, writers=0)
        if self.members:
            yield replace(self, members=0)


def draw_plan(
    seed: int,
    *,
    nodes: int = NODES,
    tiered: bool = False,
    disables_tiering: bool = False,
    diskless: bool = False,
) -> SimulationPlan:
    """Draw the plan of a seed. With `disables_tiering`, the topic is tiered, and tiered storage is disabled during
    the other faults. With `diskless`, the topic is diskless, and not tiered."""
    tiered = tiered or disables_tiering
    if diskless:
        return _draw_diskless_plan(seed, nodes)
    chance = random.Random(f"plan {seed}")
    count = chance.randint(1, FAULTS_MAX)
    faults = [_draw_fault(chance, nodes, _draw_kind(chance, nodes, tiered)) for _ in range(count)]
    faults.sort(key=lambda fault: fault.at_s)
    writers, transactional = chance.randint(1, 2), chance.randint(0, 2)
    plan = SimulationPlan(seed, tuple(faults), nodes, writers, transactional, tiered=tiered)
    plan = _draw_options(plan, random.Random(f"plan {seed} further"))
    plan = _draw_topic_recreations(plan, random.Random(f"plan {seed} topics"))
    plan = _draw_dynamic_quorum(plan, random.Random(f"plan {seed} quorum"))
    if disables_tiering:
        plan = _draw_disablements(plan, random.Random(f"plan {seed} disablements"))
    in_group = random.Random(f"plan {seed} group").random() < SHARE
    return replace(plan, members=MEMBERS if in_group else 0)


def _draw_diskless_plan(seed: int, nodes: int) -> SimulationPlan:
    """Draw the faults of a tiered plan, without those that are impossible, and further events.

    There are no transactions on diskless topics.
    """
    plan = draw_plan(seed, nodes=nodes, tiered=True)
    chance = random.Random(f"plan {seed} diskless")
    configs = {**plan.configs}
    configs |= {each: str(chance.choice(values)) for each, values in DISKLESS_INTERVALS.items()}
    if chance.random() < SHARE:
        configs["diskless.append.buffer.max.bytes"] = "1024"
    if chance.random() < SHARE:
        configs["diskless.object.cache.max.bytes"] = "0"
    if chance.random() < SHARE:
        configs |= SMALL_SEGMENTS
    drawn = [
        replace(
            _draw_fault(
                chance, nodes, chance.choice(sorted(DISKLESS_ONLY, key=lambda it: it.name))
            ),
            variant=round(chance.random(), 3),
        )
        for _ in range(chance.randint(0, DISKLESS_EVENTS_MAX))
    ]
    plan = replace(
        plan,
        faults=tuple(each for each in plan.faults if each.kind not in IMPOSSIBLE_IN_DISKLESS),
        writers=max(plan.writers, 1 + (chance.random() < 0.5)),
        transactional=0,
        tiered=False,
        diskless=True,
        configs=configs,
    )
    return _with_faults(plan, drawn)


def _draw_options(plan: SimulationPlan, chance: random.Random) -> SimulationPlan:
    """Draw later additions to the plan; separate draws keep the earlier ones unchanged."""
    configs: dict[str, str] = {}
    topic_configs: dict[str, str] = {}
    if chance.random() < SHARE:
        configs |= {each: str(chance.choice(sizes)) for each, sizes in SMALL_METADATA.items()}
    if not plan.tiered and chance.random() < SHARE:
        configs |= SMALL_SEGMENTS
        topic_configs["internal.segment.bytes"] = str(chance.choice(SEGMENT_BYTES))
    if not plan.tiered and chance.random() < SHARE:
        configs["log.dirs"] = f"{DATA},{OTHER_DATA}"
    plan = replace(plan, configs=configs, topic_configs=topic_configs)
    kinds = [
        each
        for each in FaultKind
        if each in LATER_KINDS
        and (plan.nodes > 1 or each not in NEEDS_SEVERAL_NODES)
        and (plan.has_other_directory or each is not FaultKind.FAILING_DIRECTORY)
    ]
    more = [
        replace(
            _draw_fault(chance, plan.nodes, chance.choice(kinds)), variant=round(chance.random(), 3)
        )
        for _ in range(chance.randint(0, LATER_FAULTS_MAX))
    ]
    drawn = [
        replace(each, variant=round(chance.random(), 3))
        if each.kind is FaultKind.POWER_LOSS
        else each
        for each in plan.faults
    ]
    plan = replace(plan, faults=tuple(drawn), offloaded_s=chance.choice([0.0, *DISK_DELAYS_S]))
    return _with_faults(plan, more)


def _draw_topic_recreations(plan: SimulationPlan, chance: random.Random) -> SimulationPlan:
    if chance.random() >= SHARE:
        return plan
    made = [
        replace(
            _draw_fault(chance, plan.nodes, FaultKind.TOPIC_RECREATED),
            variant=round(chance.random(), 3),
        )
        for _ in range(chance.randint(1, RECREATIONS_MAX))
    ]
    return _with_faults(plan, made)


def _draw_dynamic_quorum(plan: SimulationPlan, chance: random.Random) -> SimulationPlan:
    if plan.nodes == 1 or chance.random() >= SHARE:
        return plan
    removed = [
        _draw_fault(chance, plan.nodes, FaultKind.VOTER_REMOVED)
        for _ in range(chance.randint(0, VOTER_REMOVALS_MAX))
    ]
    return _with_faults(replace(plan, dynamic_quorum=True), removed)


def _draw_disablements(plan: SimulationPlan, chance: random.Random) -> SimulationPlan:
    kinds = [
        each for each in DISABLEMENT_COMPANIONS if plan.nodes > 1 or each not in NEEDS_SEVERAL_NODES
    ]
    drawn: list[Fault] = []
    for _ in range(chance.randint(1, DISABLEMENTS_MAX)):
        disablement = replace(
            _draw_fault(chance, plan.nodes, FaultKind.TIERING_DISABLED),
            at_s=round(chance.uniform(DISABLED_FROM_S, DISABLED_TO_S), 3),
            variant=round(chance.random(), 3),
        )
        drawn.append(disablement)
        for kind in chance.sample(kinds, chance.randint(0, COMPANIONS_MAX)):
            companion = _draw_fault(chance, plan.nodes, kind)
            at_s = round(disablement.at_s + chance.uniform(*COMPANION_S), 3)
            amount = companion.amount
            if kind in STORE_FAULTS and chance.random() < 0.5:
                amount = max(amount, AFFECTS_ALL_REQUESTS)
            drawn.append(replace(companion, at_s=at_s, amount=amount))
    configs = {**plan.configs, **FAST_RETENTION}
    topic_configs = {**plan.topic_configs, **SHORT_SEGMENTS}
    return _with_faults(replace(plan, configs=configs, topic_configs=topic_configs), drawn)


def _with_faults(plan: SimulationPlan, more: Sequence[Fault]) -> SimulationPlan:
    return replace(plan, faults=tuple(sorted([*plan.faults, *more], key=lambda each: each.at_s)))


def _draw_kind(chance: random.Random, nodes: int, tiered: bool) -> FaultKind:
    kinds = [each for each in FaultKind if each not in DRAWN_SEPARATELY]
    kinds = [each for each in kinds if nodes > 1 or each not in NEEDS_SEVERAL_NODES]
    of_tier = tiered and chance.random() < 0.5
    return chance.choice([each for each in kinds if (each in NEEDS_TIERED_TOPIC) == of_tier])


def _draw_fault(chance: random.Random, nodes: int, kind: FaultKind) -> Fault:
    node = chance.randint(1, nodes)
    others = [each for each in range(1, nodes + 1) if each != node]
    return Fault(
        at_s=round(chance.uniform(0.0, RUN_S), 3),
        kind=kind,
        node=node,
        other=chance.choice(others) if others else CLIENTS,
        seconds=round(min(chance.expovariate(1.0), FAULT_S_MAX), 3),
        amount=round(chance.random(), 3),
    )


def to_json(plan: SimulationPlan) -> dict[str, Any]:
    return {
        "seed": plan.seed,
        "nodes": plan.nodes,
        "writers": plan.writers,
        "transactional": plan.transactional,
        "members": plan.members,
        "tiered": plan.tiered,
        "diskless": plan.diskless,
        "dynamic_quorum": plan.dynamic_quorum,
        "offloaded_s": plan.offloaded_s,
        "configs": plan.configs,
        "topic_configs": plan.topic_configs,
        "faults": [
            {
                "at_s": each.at_s,
                "kind": each.kind.value,
                "node": each.node,
                "other": each.other,
                "seconds": each.seconds,
                "amount": each.amount,
                "variant": each.variant,
            }
            for each in plan.faults
        ],
    }


def from_json(values: Mapping[str, Any]) -> SimulationPlan:
    """Parse a plan. Raises KeyError, ValueError or TypeError for invalid input."""
    faults = tuple(Fault(**{**each, "kind": FaultKind(each["kind"])}) for each in values["faults"])
    return SimulationPlan(**{**values, "faults": faults})
