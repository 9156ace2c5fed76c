"""What happens in a run, and when: drawn from the seed before anything begins.

A plan is a value: it can be written down, read again, and run with less in it, which is how a failing
one is shrunk. What is drawn does not depend on what the cluster does.
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
"""For how long (virtual) faults begin, and clients begin new work."""
FAULTS_MAX = 6
MORE_MAX = 2
"""Faults of the kinds that came later: drawn by themselves, what was drawn before stays as it was."""
OFFLOADED_S = (0.001, 0.005, 0.02)
"""The longest that a call to the disk takes to begin, and again to return: enough to be met within."""
LONGEST_S = 2.5
ASKED_S = 2.0
"""How long it is tried, amid trouble, to have the cluster do something."""
MADE_ANEW_MAX = 2
REMOVED_MAX = 2
MEMBERS = 2
SHARE = 1 / 3
"""Of the plans that have each of the following."""
SMALL_METADATA: Mapping[str, Sequence[int]] = {
    "metadata.log.max.record.bytes.between.snapshots": (300, 1000),
    "internal.metadata.log.segment.bytes": (2000, 3000),  # a node's first batch must fit
    "metadata.max.retention.bytes": (1000, 6000),
    "internal.metadata.delete.delay.millis": (100,),
}
"""So that there are snapshots, and logs without what is in them: some 5 kB are written in a run."""
SMALL_SEGMENTS: Mapping[str, str] = {
    "log.roll.ms": "400",  # internal topics, too
    "log.cleaner.min.compaction.lag.ms": "3600000",  # what is compacted differs from node to node
}
SEGMENT_BYTES = (2500, 6000)
DATA = "/data"
OTHER_DATA = "/other"
"""Where topics are tiered, and elsewhere in a share of the plans, replicas are in either."""
CLIENTS = 0
"""In place of a node: the machine that all clients are on."""


class Kind(enum.Enum):
    KILL = "kill"
    """SIGKILL: the process is gone in the middle of what it did; what it wrote is not."""
    POWER_LOSS = "power loss"
    """What was not synced is kept, lost or torn. In half of the cases its machine is gone with it: nobody
    answers its peers until it is up again."""
    KILL_AT_WORK = "killed at work"
    """In the middle of a change of its files, some of what it does or of its recovery later."""
    POWER_LOSS_AT_WORK = "power loss at work"
    """There too."""
    STOP = "stop"
    """A clean stop, with its controlled shutdown."""
    PARTITION = "partition"
    """Nothing passes between the node and the others; it may still reach the clients."""
    ONE_WAY = "one-way partition"
    """Nothing passes from the node to another one."""
    CLIENTS_CUT_OFF = "clients cut off"
    """Nothing passes between the node and the clients."""
    DROP = "dropped connections"
    """The node loses its connections to the others, who still get what was sent."""
    SLOW_NETWORK = "slow network"
    SLOW_DISK = "slow disk"
    """And nothing of it is in memory."""
    FULL_DISK = "full disk"
    BAD_DISK = "failing disk"
    """Writes and syncs of partitions fail with EIO; the node goes down with it, and is started again
    on a disk that works."""
    BAD_DIRECTORY = "failing directory"
    """The second of the node's log directories fails, its writes or its reads or both, the node goes on,
    and is started again in the end."""
    UNREADABLE_DISK = "unreadable disk"
    """As a failing one, but of reads."""
    BIT_ROT = "bit rot"
    """The node is killed or loses its power, and a bit of its files flips before it starts (`rot.py`)."""
    CLOCK_JUMP = "clock jump"
    REASSIGNMENT = "reassignment"
    """No fault, but trouble enough: a partition's replicas move to all nodes but this one; some of the
    moves are called off."""
    MISSED_EPOCH = "missed epoch"
    """A leader that hears nothing of the controller is followed by another one and leads again: it
    hears of both at once. Then it can't reach one of its followers, and is killed."""
    LAGGING_VOTER = "lagging voter"
    """The controller's answers do not reach the node, which stands for election; then all other voters are
    killed, and but for the controller started again at once."""
    DIRECTORY_MOVE = "moves between log directories"
    """No fault either: what the node has moves to one of its log directories, and, there or not, to the
    other."""
    COPIES_OFF = "copies switched off"
    """The topic gets remote.log.copy.disable, and loses it again."""
    TOPIC_MADE_ANEW = "topic made anew"
    """A topic is deleted and made anew by the same name (`made_anew.py`), in three of four cases. In most the
    node is down meanwhile, or cut off from the others, or when it is deleted."""
    VOTER_REMOVED = "voter removed"
    """No fault: the node is none of the quorum's voters any more, until it joins them by itself (KIP-853)."""
    STORE_KILLS = "killed at the store"
    """The node that makes some request to the store is killed before it, or behind it."""
    STORE_AWAY = "store away"
    STORE_THROTTLES = "store throttles"
    STORE_HANGS = "store hangs"
    STORE_SLOW = "store slow"
    STORE_RESPONSES_LOST = "store's answers lost"
    STORE_HALF_DONE = "store half done"
    STORE_LIES = "store lies"
    """Once: it says that a change was made that was not."""


DISKS = frozenset({Kind.BAD_DIRECTORY, Kind.UNREADABLE_DISK, Kind.BIT_ROT})
MORE_KINDS = DISKS | {Kind.KILL_AT_WORK, Kind.POWER_LOSS_AT_WORK}
DRAWN_APART = MORE_KINDS | {Kind.TOPIC_MADE_ANEW, Kind.VOTER_REMOVED}
DAMAGING = DISKS | {Kind.POWER_LOSS, Kind.POWER_LOSS_AT_WORK, Kind.BAD_DISK, Kind.FULL_DISK}
"""After these a replica may lack what it had acknowledged. Until it is in sync again no other may end
without a clean stop: the controller cannot tell which of the two still has everything (KIP-966 promises
no more with two replicas in sync), so such faults wait for one another."""
KILLS = frozenset({Kind.KILL, Kind.KILL_AT_WORK})
UNCLEAN = DAMAGING | KILLS | {Kind.STORE_KILLS}
OF_MANY = DAMAGING | {
    Kind.PARTITION,
    Kind.ONE_WAY,
    Kind.SLOW_NETWORK,
    Kind.REASSIGNMENT,
    Kind.MISSED_EPOCH,
    Kind.LAGGING_VOTER,
}
"""For these there must be others: who hold the records, or to whom there is a network."""
OF_NO_CONTROLLER = frozenset({Kind.MISSED_EPOCH, Kind.LAGGING_VOTER})
"""For these there must be an active controller, and another node than it."""
OF_STORE = frozenset(each for each in Kind if each.name.startswith("STORE_"))
OF_TIER = OF_STORE | {Kind.DIRECTORY_MOVE, Kind.COPIES_OFF}
"""For these the topic must be tiered."""
OF_NO_NODE = OF_STORE | {Kind.COPIES_OFF}
"""The node that such a fault names has no part in it."""


@value_class
class Fault:
    at_s: float
    kind: Kind
    node: int
    other: int
    seconds: float
    """Until it is over; a node that went down is started again then."""
    amount: float
    """What it means is the kind's: of time for clocks, from 0 to 1 for all else."""
    how: float = 0.0
    """From 0 to 1: in which of the kind's ways."""


@value_class
class Plan:
    seed: int
    faults: tuple[Fault, ...]
    nodes: int = NODES
    writers: int = 2
    transactional: int = 2
    members: int = 0
    """Of a consumer group."""
    tiered: bool = False
    """The topic is in the remote tier."""
    dynamic_quorum: bool = False
    """The quorum's voters are in its log (KIP-853); who is none joins by itself. Else the configs name them."""
    offloaded_s: float = 0.0
    """The longest that a call to a disk takes to begin, and again to return."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """Of the nodes."""
    topic_configs: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_other_directory(self) -> bool:
        return self.tiered or "log.dirs" in self.configs

    def smaller(self) -> Iterator[Plan]:
        """The plans with one thing less in them."""
        for number in range(len(self.faults)):
            yield replace(self, faults=self.faults[:number] + self.faults[number + 1 :])
        if self.transactional:
            yield replace(self, transactional=0)
        if self.writers and self.transactional:
            yield replace(self, writers=0)
        if self.members:
            yield replace(self, members=0)


def draw_plan(seed: int, *, nodes: int = NODES, tiered: bool = False) -> Plan:
    chance = random.Random(f"plan {seed}")
    count = chance.randint(1, FAULTS_MAX)
    faults = [_draw_fault(chance, nodes, _draw_kind(chance, nodes, tiered)) for _ in range(count)]
    faults.sort(key=lambda fault: fault.at_s)
    writers, transactional = chance.randint(1, 2), chance.randint(0, 2)
    plan = Plan(seed, tuple(faults), nodes, writers, transactional, tiered=tiered)
    plan = _drawn_further(plan, random.Random(f"plan {seed} further"))
    plan = _with_topics_made_anew(plan, random.Random(f"plan {seed} topics"))
    plan = _with_a_dynamic_quorum(plan, random.Random(f"plan {seed} quorum"))
    in_group = random.Random(f"plan {seed} group").random() < SHARE
    return replace(plan, members=MEMBERS if in_group else 0)


def _drawn_further(plan: Plan, chance: random.Random) -> Plan:
    """With what came later than the rest of the plan, of which the draws are not to shift."""
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
        for each in Kind
        if each in MORE_KINDS
        and (plan.nodes > 1 or each not in OF_MANY)
        and (plan.has_other_directory or each is not Kind.BAD_DIRECTORY)
    ]
    more = [
        replace(
            _draw_fault(chance, plan.nodes, chance.choice(kinds)), how=round(chance.random(), 3)
        )
        for _ in range(chance.randint(0, MORE_MAX))
    ]
    drawn = [
        replace(each, how=round(chance.random(), 3)) if each.kind is Kind.POWER_LOSS else each
        for each in plan.faults
    ]
    plan = replace(plan, faults=tuple(drawn), offloaded_s=chance.choice([0.0, *OFFLOADED_S]))
    return _with_faults(plan, more)


def _with_topics_made_anew(plan: Plan, chance: random.Random) -> Plan:
    if chance.random() >= SHARE:
        return plan
    made = [
        replace(
            _draw_fault(chance, plan.nodes, Kind.TOPIC_MADE_ANEW), how=round(chance.random(), 3)
        )
        for _ in range(chance.randint(1, MADE_ANEW_MAX))
    ]
    return _with_faults(plan, made)


def _with_a_dynamic_quorum(plan: Plan, chance: random.Random) -> Plan:
    if plan.nodes == 1 or chance.random() >= SHARE:
        return plan
    removed = [
        _draw_fault(chance, plan.nodes, Kind.VOTER_REMOVED)
        for _ in range(chance.randint(0, REMOVED_MAX))
    ]
    return _with_faults(replace(plan, dynamic_quorum=True), removed)


def _with_faults(plan: Plan, more: Sequence[Fault]) -> Plan:
    return replace(plan, faults=tuple(sorted([*plan.faults, *more], key=lambda each: each.at_s)))


def _draw_kind(chance: random.Random, nodes: int, tiered: bool) -> Kind:
    kinds = [each for each in Kind if each not in DRAWN_APART]
    kinds = [each for each in kinds if nodes > 1 or each not in OF_MANY]
    of_tier = tiered and chance.random() < 0.5
    return chance.choice([each for each in kinds if (each in OF_TIER) == of_tier])


def _draw_fault(chance: random.Random, nodes: int, kind: Kind) -> Fault:
    node = chance.randint(1, nodes)
    others = [each for each in range(1, nodes + 1) if each != node]
    return Fault(
        at_s=round(chance.uniform(0.0, RUN_S), 3),
        kind=kind,
        node=node,
        other=chance.choice(others) if others else CLIENTS,
        seconds=round(min(chance.expovariate(1.0), LONGEST_S), 3),
        amount=round(chance.random(), 3),
    )


def to_json(plan: Plan) -> dict[str, Any]:
    return {
        "seed": plan.seed,
        "nodes": plan.nodes,
        "writers": plan.writers,
        "transactional": plan.transactional,
        "members": plan.members,
        "tiered": plan.tiered,
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
                "how": each.how,
            }
            for each in plan.faults
        ],
    }


def from_json(values: Mapping[str, Any]) -> Plan:
    """Raises KeyError, ValueError or TypeError where it is no plan."""
    faults = tuple(Fault(**{**each, "kind": Kind(each["kind"])}) for each in values["faults"])
    return Plan(**{**values, "faults": faults})
