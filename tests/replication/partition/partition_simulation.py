"""Simulation of a partition with three replicas and faults, by seed.

Messages are delayed, lost and reordered. Brokers crash, lose the ends of their logs, and are fenced while they run. At
the end there are no more faults, and the replicas must be in sync again.
"""

from __future__ import annotations

import random

from odradek.replication.partition.follower_state import Fetch
from tests.replication.partition.simulated_partition import (
    CONTROLLER,
    LAG_MAX_MS,
    AlterResponse,
    Message,
    Node,
    SimulatedPartition,
    Violation,
)
from tests.support.controller_stub import NODES, Image

TIMEOUT_MS = 60
STEPS = 500
HEALING_STEPS = 4000


def simulate(seed: int) -> SimulatedPartition:
    """Run the simulation of a seed, and return its final state. Raises Violation."""
    run = _Run(seed)
    for _ in range(STEPS):
        run.step()
    run.heal()
    return run.world


class _Run:
    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.seed = seed
        self.world = SimulatedPartition(compares=chance.random() < 0.8)
        self.loss = chance.choice([0.0, 0.02, 0.1])
        self.retry_steps = chance.choice([1, 3, 10])
        """Number of oldest messages that may be reordered."""
        self.trouble = chance.choice([0.005, 0.02, 0.05])
        self.slow = dict.fromkeys(NODES, 1.0)
        self.high_watermarks: dict[tuple[int, int], int] = {}
        self.controller_lag = chance.choice([0.0, 0.5, 0.9, 0.97])
        self.lateness = chance.choice([0.0, 0.01, 0.05])
        self.late: list[Message] = []
        """Fetches whose senders have timed out, and which arrive later."""
        self.help = chance.choice([0.05, 0.3])
        self.busy = chance.choice([0.4, 0.2, 0.05])
        self.trimming = chance.choice([0.0, 0.1])
        self.tier_chance = random.Random(~seed)
        """Separate source of randomness, so that runs without a tier do not depend on it."""
        self.tiering = self.tier_chance.choice([0.0, 0.0, 0.1, 0.5])
        self.written = 0
        self.world.controller.choose = chance.choice

    def step(self) -> None:
        world, chance = self.world, self.chance
        world.now_ms += chance.randint(0, 4)
        for node in self._up():
            if chance.random() < self.slow[node.id]:
                self._turn(node)
        if chance.random() < 0.03:
            self.slow[chance.choice(NODES)] = chance.choice([1.0, 1.0, 0.3, 0.05])
        if chance.random() < self.busy:
            self._write()
        if chance.random() < self.trouble:
            self._trouble(chance.choice(list(world.nodes.values())))
        for node in world.nodes.values():
            if chance.random() < self.help:
                self._help(node)
        for _ in range(3):
            self._message()
        self.check()

    def _up(self) -> list[Node]:
        return [node for node in self.world.nodes.values() if node.up]

    def _turn(self, node: Node) -> None:
        if node.asked is not None and self.world.now_ms - node.asked_ms > TIMEOUT_MS:
            node.give_up()
        node.advance()
        if node.leader is not None and self.chance.random() < 0.1:
            node.do(node.leader.tick(self.world.now_ms))

    def _write(self) -> None:
        node = self.chance.choice(list(self.world.nodes.values()))
        if node.up:
            self.written += 1
            self.world.write(node, f"r{self.written}.")
        if node.leader is not None and self.chance.random() < self.trimming:
            self.world.delete_before(node, self.chance.randint(0, node.log.high_watermark))
        if node.up and self.tiering:
            self._use_tier(node)

    def _use_tier(self, node: Node) -> None:
        chance, high_watermark = self.tier_chance, node.log.high_watermark
        if node.leader is not None and chance.random() < self.tiering:
            self.world.copy(node, chance.randint(0, high_watermark))
        if chance.random() < self.tiering:
            self.world.leave_disk(node, chance.randint(0, high_watermark))
            self.world.check_tier(node)

    def _message(self) -> None:
        """Deliver, lose or delay one of the oldest messages."""
        sent, chance = self.world.sent, self.chance
        if not sent:
            return
        place = chance.randrange(min(len(sent), self.retry_steps))
        message = sent[place]
        if message.sender == CONTROLLER and chance.random() < self.controller_lag:
            sent.append(sent.pop(place))
        elif isinstance(message.content, Fetch) and chance.random() < self.lateness:
            self.late.append(sent.pop(place))
        elif chance.random() < self.loss and not isinstance(message.content, Image):
            sent.remove(message)
            self._lost(message)
        else:
            self.world.deliver(message)
        for late in tuple(self.late):
            is_of_another_life = late.sender_epoch < self.world.nodes[late.sender].epoch
            if chance.random() < (0.2 if is_of_another_life else 0.01):
                self.late.remove(late)
                sent.insert(0, late)

    def _lost(self, message: Message) -> None:
        """Lose a message. If it is of AlterPartition, the request times out and the leader retries it."""
        if message.to == CONTROLLER:
            self.world.time_out(message.sender, message.sender_epoch, message.content)
        elif message.sender == CONTROLLER and isinstance(message.content, AlterResponse):
            self.world.time_out(message.to, message.life, message.content.asked)

    def _trouble(self, node: Node) -> None:
        if node.up and not self.world.controller.brokers[node.id].fenced:
            [self._crash, self._fence, self._prefer][self.chance.randrange(3)](node)

    def _help(self, node: Node) -> None:
        if not node.up:
            self.world.start(node)
        elif self.world.controller.brokers[node.id].fenced:
            self.world.controller.unfence(node.id)
            self.world.spread()

    def _crash(self, node: Node) -> None:
        """Crash a node. It may lose its log unless it is the last ISR member."""
        chance, log = self.chance, node.log
        is_last = set(self.world.controller.partition.isr) <= {node.id}
        end = log.end_offset if is_last else chance.choice([0, log.end_offset])
        known = chance.randint(0, log.high_watermark)
        under_way = [each for each in self.world.sent if _is_fetch_of(each, node)]
        if chance.random() < 0.5:
            self.late += under_way
            for each in under_way:
                self.world.sent.remove(each)
        self.world.crash(node, end_offset=end, high_watermark=known)

    def _fence(self, node: Node) -> None:
        self.world.controller.fence(node.id)
        self.world.spread()

    def _prefer(self, node: Node) -> None:
        self.world.controller.prefer(node.id)
        self.world.spread()

    def check(self) -> None:
        world = self.world
        for node in world.nodes.values():
            world.check_committed(node)
            if node.leader is None:
                continue
            life = (node.id, node.leader.leader_epoch)
            if node.log.high_watermark < self.high_watermarks.get(life, 0):
                raise Violation(f"the high watermark of {node.id} went back")
            self.high_watermarks[life] = node.log.high_watermark
        nodes = list(world.nodes.values())
        for one, other in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
            shared = min(one.log.high_watermark, other.log.high_watermark)
            start = max(world.known_from(one.log), world.known_from(other.log))
            if one.log.records[start:shared] != other.log.records[start:shared]:
                raise Violation(f"{one.id} and {other.id} differ below {shared}")

    def heal(self) -> None:
        world = self.world
        self.loss = self.trouble = 0.0
        self.slow = dict.fromkeys(NODES, 1.0)
        for node in world.nodes.values():
            self._help(node)
        world.spread()
        for _ in range(HEALING_STEPS):
            self._calm()
            if self._is_well():
                for node in world.nodes.values():
                    world.check_tier(node)
                return
        raise Violation(
            f"not in sync after the faults: {world.controller.described()} {world.describe_replicas()}"
        )

    def _calm(self) -> None:
        self.world.now_ms += 1
        for node in self._up():
            self._turn(node)
        for _ in range(min(10, len(self.world.sent))):
            self.world.deliver(self.world.sent[0])
        self.check()

    def _is_well(self) -> bool:
        world = self.world
        logs = [node.log for node in world.nodes.values()]
        ends = {(log.end_offset, log.high_watermark) for log in logs}
        in_sync = set(world.controller.partition.isr) == set(NODES)
        return in_sync and len(ends) == 1 and logs[0].high_watermark == logs[0].end_offset


assert TIMEOUT_MS > LAG_MAX_MS, "so that a lost message is enough to leave the ISR"


def _is_fetch_of(message: Message, node: Node) -> bool:
    return isinstance(message.content, Fetch) and message.sender == node.id
