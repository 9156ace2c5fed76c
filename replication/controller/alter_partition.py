"""AlterPartition: the controller changes an ISR that the leader proposes (KIP-497, KIP-841,
KIP-903).

The sender must be the leader of the current epoch and know the current partition epoch. A replica
whose broker is fenced, shutting down, or registered with another epoch is not eligible.
`build_partition_change` derives the consequences: a completed reassignment, and changes of the ELR.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.broker_registration import check_broker_epoch
from odradek.replication.controller.controller_result import ControllerResult, ItemRefused
from odradek.replication.controller.image import MetadataImage, PartitionImage, TopicImage
from odradek.replication.controller.leader_and_isr_updates import (
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
"""A broker epoch that is not checked: version 2, and replicas that fetch without an epoch."""
RECOVERED = 0


@value_class
class ProposedIsr:
    """The ISR that a leader proposes; `isr` contains (broker, broker epoch known to the leader)."""

    topic_id: UUID
    index: int
    leader_epoch: int
    partition_epoch: int
    isr: Sequence[tuple[int, int]]
    recovery_state: int = RECOVERED


@value_class
class AlteredPartition:
    """Result for one partition: its new state, or the error."""

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
    """Results in request order. Raises StaleBrokerEpoch.

    `unclean_election` is the default for topics without the config. NEW_LEADER_ELECTED means that
    the change was made and another leader was elected.
    """
    check_broker_epoch(image, broker_id, broker_epoch)
    records: list[PartitionChangeRecord] = []
    responses: list[AlteredPartition] = []
    states: dict[
        tuple[UUID, int], PartitionImage
    ] = {}  # for a partition that is in the request twice
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
    """Raise ItemRefused. Larger epochs than the image's come from a later controller: NOT_CONTROLLER."""
    if proposed.leader_epoch > now.leader_epoch or proposed.partition_epoch > now.partition_epoch:
        raise ItemRefused(ErrorCode.not_controller)
    if proposed.leader_epoch < now.leader_epoch:
        raise ItemRefused(ErrorCode.fenced_leader_epoch)
    if broker_id != now.leader:
        raise ItemRefused(ErrorCode.invalid_request, f"the leader is {now.leader}")
    if proposed.partition_epoch < now.partition_epoch:
        raise ItemRefused(ErrorCode.invalid_update_version)


def _check_isr(image: MetadataImage, now: PartitionImage, proposed: ProposedIsr) -> None:
    """Raise ItemRefused if the proposed ISR is not valid."""
    isr = [replica for replica, _ in proposed.isr]
    if len(set(isr)) != len(isr) or not set(isr) <= set(now.replicas):
        raise ItemRefused(
            ErrorCode.invalid_request,
            "the ISR contains duplicates or brokers that are not replicas",
        )
    if now.leader not in isr:
        raise ItemRefused(ErrorCode.invalid_request, "the ISR does not contain the leader")
    if proposed.recovery_state not in (RECOVERED, RECOVERING):
        raise ItemRefused(ErrorCode.invalid_request, "unknown leader recovery state")
    if proposed.recovery_state == RECOVERING and len(isr) > 1:
        raise ItemRefused(
            ErrorCode.invalid_request, "the ISR of a recovering leader must be the leader only"
        )
    if proposed.recovery_state == RECOVERING and now.leader_recovery_state != RECOVERING:
        raise ItemRefused(
            ErrorCode.invalid_request,
            "the leader recovery state cannot change from RECOVERED to RECOVERING",
        )
    for replica, epoch in proposed.isr:
        if not _may_be_in_sync(image, replica, epoch):
            raise ItemRefused(ErrorCode.ineligible_replica)


def _may_be_in_sync(image: MetadataImage, replica: int, epoch: int) -> bool:
    """Whether the broker is active (KIP-841) and has the epoch that the leader knows (KIP-903)."""
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
