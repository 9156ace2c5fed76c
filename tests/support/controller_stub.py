"""Controller of one partition: AlterPartition, leader elections and fencing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.image import BrokerImage, PartitionImage
from odradek.replication.partition.isr_state import CommittedIsr
from odradek.replication.partition.leader_state import AlterPartition
from odradek.seams.values import value_class

NODES = (1, 2, 3)


@value_class
class Image:
    version: int
    partition: PartitionImage
    brokers: dict[int, BrokerImage]


class Controller:
    def __init__(self) -> None:
        self.version = 0
        self.choose: Callable[[Sequence[int]], int] = lambda able: able[0]
        self.brokers = {each: _broker(each, epoch=1) for each in NODES}
        self.partition = PartitionImage(
            replicas=NODES,
            directories=(UUID(int=500),) * 3,
            isr=NODES,
            leader=1,
            leader_epoch=0,
            partition_epoch=0,
        )

    @property
    def image(self) -> Image:
        return Image(self.version, self.partition, dict(self.brokers))

    def described(self) -> str:
        now = self.partition
        isr = " ".join(map(str, now.isr))
        leader = f"{now.leader} leads {now.leader_epoch}" if now.leader > 0 else "no leader"
        return f"{leader}, ISR {isr}, partition epoch {now.partition_epoch}"

    def alter(self, node: int, asked: AlterPartition) -> CommittedIsr | ErrorCode:
        now, proposal = self.partition, asked.proposal
        if proposal.leader_epoch != now.leader_epoch:
            return ErrorCode.fenced_leader_epoch
        if node != now.leader:
            return ErrorCode.invalid_request
        if proposal.partition_epoch != now.partition_epoch:
            return ErrorCode.invalid_update_version
        for member, epoch in asked.isr:
            broker = self.brokers[member]
            if not broker.active or epoch not in (-1, broker.epoch):
                return ErrorCode.ineligible_replica
        self._set(isr=tuple(member for member, _ in asked.isr))
        now = self.partition
        return CommittedIsr(frozenset(now.isr), now.leader_epoch, now.partition_epoch)

    def fence(self, node: int) -> None:
        """Fence a broker, which leaves the ISR unless it is the last member."""
        self.brokers[node] = replace(self.brokers[node], fenced=True)
        self._leave(node)

    def register(self, node: int) -> int:
        """Register a restarted broker, which is fenced at first. Returns its broker epoch."""
        epoch = self.brokers[node].epoch + 1
        self.brokers[node] = _broker(node, epoch=epoch, fenced=True)
        self._leave(node)
        return epoch

    def unfence(self, node: int) -> None:
        self.brokers[node] = replace(self.brokers[node], fenced=False)
        self.version += 1
        if self.partition.leader < 0:
            self.elect()

    def elect(self) -> None:
        able = [each for each in self.partition.isr if self.brokers[each].active]
        self._lead(self.choose(able) if able else -1)

    def elect_uncleanly(self, node: int) -> None:
        self._lead(node)
        self._set(isr=(node,))

    def prefer(self, node: int) -> None:
        if node in self.partition.isr and self.brokers[node].active:
            self._lead(node)

    def _leave(self, node: int) -> None:
        now = self.partition
        self.version += 1
        left = tuple(each for each in now.isr if each != node)
        if left and left != now.isr:
            self._set(isr=left)
        if now.leader == node:
            self.elect()

    def _lead(self, leader: int) -> None:
        self._set(leader=leader, leader_epoch=self.partition.leader_epoch + 1)

    def _set(
        self, *, isr: tuple[int, ...] = (), leader: int | None = None, leader_epoch: int = 0
    ) -> None:
        now = self.partition
        change: dict[str, object] = {"partition_epoch": now.partition_epoch + 1}
        if isr:
            change["isr"] = isr
        if leader is not None:
            change |= {"leader": leader, "leader_epoch": leader_epoch}
        self.partition = replace(now, **change)  # type: ignore[arg-type]
        self.version += 1


def _broker(node: int, *, epoch: int, fenced: bool = False) -> BrokerImage:
    return BrokerImage(
        id=node,
        epoch=epoch,
        incarnation_id=UUID(int=node),
        endpoints=(),
        features={},
        rack=None,
        fenced=fenced,
        in_controlled_shutdown=False,
        directories=(),
    )
