"""A leader changes its in-sync set: AlterPartition (KIP-497, KIP-841, KIP-903).

The leader proposes, the controller checks and decides: the leader must be the one of the epoch, know
the partition as it is (the partition epoch), and propose none who must not be in sync now. A broker that
is fenced, shutting down, or registered anew since it last fetched may not join, for it may not hold
what the leader thinks it does. What follows from a new in-sync set (a reassignment completes, the ELR
grows or is forgotten) is `build_partition_change`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.broker_registration import check_broker_epoch
from odradek.replication.controller.controller_result import ControllerResult, ItemRefused
from odradek.replication.controller.image import MetadataImage, PartitionImage, TopicImage
from odradek.replication.controller.leader_and_isr import (
    allows_unclean_election,
    partition_change_context,
)
from odradek.replication.controller.partition_change_builder import (
    RECOVERING,
    ElectionType,
    PartitionTarget,
    build_partition_change,
)
from odradek.replication.controller.partition_registration import (
    NO_LEADER_CHANGE,
    merge_partition_change,
)
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from odradek.protocol.schemas.topic_records import PartitionChangeRecord

ANY_EPOCH = -1
"""A broker epoch that is not checked: all in version 2, and of whoever fetches without one."""
RECOVERED = 0


@value_class
class ProposedIsr:
    """What a leader proposes for one partition; `isr` is (broker, its epoch as the leader knows it)."""

    topic_id: UUID
    index: int
    leader_epoch: int
    partition_epoch: int
    isr: Sequence[tuple[int, int]]
    recovery_state: int = RECOVERED


@value_class
class AlteredPartition:
    """The answer for one partition: its state from now on, or why it is refused."""

    topic_id: UUID
    index: int
    error_code: ErrorCode = ErrorCode.none
    state: PartitionImage | None = None


def alter_partitions(
    image: MetadataImage,
    broker_id: int,
    broker_epoch: int,
    proposed: Sequence[ProposedIsr],
    *,
    unclean_election: bool = False,
) -> ControllerResult[list[AlteredPartition]]:
    """One answer for each partition, in the order asked. Raises StaleBrokerEpoch.

    `unclean_election` is what holds for topics that set nothing. NEW_LEADER_ELECTED is an answer
    that comes with a record: the change was made, and took the leadership from who proposed it.
    """
    check_broker_epoch(image, broker_id, broker_epoch)
    records: list[PartitionChangeRecord] = []
    responses: list[AlteredPartition] = []
    states: dict[tuple[UUID, int], PartitionImage] = {}  # for who names a partition twice
    for each in proposed:
        try:
            topic, now = _find(image, each)
            now = states.get((each.topic_id, each.index), now)
            _check_epochs(broker_id, now, each)
            _check_isr(image, now, each)
        except ItemRefused as refused:
            responses.append(AlteredPartition(each.topic_id, each.index, refused.code))
            continue
        record = _decided(image, topic, now, each, unclean_election)
        if record is not None:
            records.append(record)
            now = states[each.topic_id, each.index] = merge_partition_change(now, record)
        if record is not None and record.leader not in (NO_LEADER_CHANGE, broker_id):
            error = ErrorCode.new_leader_elected
            responses.append(AlteredPartition(each.topic_id, each.index, error))
        else:
            responses.append(AlteredPartition(each.topic_id, each.index, state=now))
    return ControllerResult(records, responses, atomic=False)


def _find(image: MetadataImage, proposed: ProposedIsr) -> tuple[TopicImage, PartitionImage]:
    topic = image.topics_by_id.get(proposed.topic_id)
    if topic is None:
        raise ItemRefused(ErrorCode.unknown_topic_id)
    partition = topic.partitions.get(proposed.index)
    if partition is None:
        raise ItemRefused(ErrorCode.unknown_topic_or_partition)
    return topic, partition


def _check_epochs(broker_id: int, now: PartitionImage, proposed: ProposedIsr) -> None:
    """Raises ItemRefused. Who knows of later epochs than we do heard of them from a later controller."""
    if proposed.leader_epoch > now.leader_epoch or proposed.partition_epoch > now.partition_epoch:
        raise ItemRefused(ErrorCode.not_controller)
    if proposed.leader_epoch < now.leader_epoch:
        raise ItemRefused(ErrorCode.fenced_leader_epoch)
    if broker_id != now.leader:
        raise ItemRefused(ErrorCode.invalid_request, f"the leader is {now.leader}")
    if proposed.partition_epoch < now.partition_epoch:
        raise ItemRefused(ErrorCode.invalid_update_version)


def _check_isr(image: MetadataImage, now: PartitionImage, proposed: ProposedIsr) -> None:
    """Raises ItemRefused."""
    isr = [replica for replica, _ in proposed.isr]
    if len(set(isr)) != len(isr) or not set(isr) <= set(now.replicas):
        raise ItemRefused(ErrorCode.invalid_request, "the in-sync set is none of the replicas")
    if now.leader not in isr:
        raise ItemRefused(ErrorCode.invalid_request, "the leader is always in sync")
    if proposed.recovery_state not in (RECOVERED, RECOVERING):
        raise ItemRefused(ErrorCode.invalid_request, "no such recovery state")
    if proposed.recovery_state == RECOVERING and len(isr) > 1:
        raise ItemRefused(ErrorCode.invalid_request, "nobody follows a leader that recovers")
    if proposed.recovery_state == RECOVERING and now.leader_recovery_state != RECOVERING:
        raise ItemRefused(ErrorCode.invalid_request, "what has recovered does not recover again")
    for replica, epoch in proposed.isr:
        if not _may_be_in_sync(image, replica, epoch):
            raise ItemRefused(ErrorCode.ineligible_replica)


def _may_be_in_sync(image: MetadataImage, replica: int, epoch: int) -> bool:
    """KIP-841: it serves and goes on to. KIP-903: it is the incarnation that the leader saw fetch."""
    broker = image.brokers.get(replica)
    return broker is not None and broker.active and epoch in (ANY_EPOCH, broker.epoch)


def _decided(
    image: MetadataImage,
    topic: TopicImage,
    now: PartitionImage,
    proposed: ProposedIsr,
    unclean_election: bool,
) -> PartitionChangeRecord | None:
    unclean = allows_unclean_election(image, topic.name, default=unclean_election)
    return build_partition_change(
        topic.id,
        proposed.index,
        now,
        PartitionTarget(
            isr=tuple(replica for replica, _ in proposed.isr),
            recovery_state=proposed.recovery_state,
            election=ElectionType.UNCLEAN if unclean else ElectionType.ONLINE,
        ),
        partition_change_context(image, topic, now),
    )
