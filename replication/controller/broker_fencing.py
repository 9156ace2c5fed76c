"""Fencing, unfencing and controlled shutdown of brokers (KIP-631, KIP-841).

Fencing removes a broker from all ISRs (with ELR, it may become eligible) and elects other leaders;
unfencing elects leaders for leaderless partitions. A result may need several batches. A record that
fences follows the partition changes, so that a new controller repeats them after a failover in
between; a record that unfences or starts a shutdown precedes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any
from uuid import UUID

from odradek.replication.controller.broker_directories import mark_directories_cordoned
from odradek.replication.controller.broker_registration import (
    BrokerRegistration,
    check_broker_epoch,
    register_broker,
    registration_change,
)
from odradek.replication.controller.controller_result import ControllerResult
from odradek.replication.controller.image import (
    MetadataImage,
)
from odradek.replication.controller.image_builder import apply_records
from odradek.replication.controller.leader_and_isr_updates import (
    leader_and_isr_updates,
    partitions_changed_by_removal,
    partitions_with_isr_member,
    partitions_without_leader,
)

FENCE, UNFENCE = 1, -1


def unfence_broker(
    image: MetadataImage,
    broker_id: int,
    broker_epoch: int,
    *,
    unclean_election: bool = False,
    at_once: int | None = None,
) -> ControllerResult[None]:
    """Unfence the broker and elect leaders for leaderless partitions: all, or the first `at_once`.

    A broker in controlled shutdown is unfenced by a new registration only.
    """
    broker = check_broker_epoch(image, broker_id, broker_epoch)
    if not broker.fenced or broker.in_controlled_shutdown:
        return ControllerResult([], None)
    updates = leader_and_isr_updates(
        image,
        islice(partitions_without_leader(image), at_once),
        add=broker_id,
        unclean_election=unclean_election,
    )
    return ControllerResult(
        [registration_change(broker_id, broker_epoch, fenced=UNFENCE), *updates], None, atomic=False
    )


def fence_broker(
    image: MetadataImage, broker_id: int, broker_epoch: int, *, unclean_election: bool = False
) -> ControllerResult[None]:
    """Fence the broker after an expired session or on request, and elect other leaders."""
    if check_broker_epoch(image, broker_id, broker_epoch).fenced:
        return ControllerResult([], None)
    updates = leader_and_isr_updates(
        image,
        partitions_with_isr_member(image, broker_id),
        remove=broker_id,
        unclean_election=unclean_election,
    )
    return ControllerResult(
        [*updates, registration_change(broker_id, broker_epoch, fenced=FENCE)], None, atomic=False
    )


def begin_controlled_shutdown(
    image: MetadataImage,
    broker_id: int,
    broker_epoch: int,
    *,
    unclean_election: bool = False,
    at_once: int | None = None,
) -> ControllerResult[None]:
    """Start the controlled shutdown and move all, or the first `at_once`, partitions to other
    leaders (KIP-841)."""
    broker = check_broker_epoch(image, broker_id, broker_epoch)
    if broker.fenced:
        return ControllerResult([], None)
    records: list[Any] = []
    if not broker.in_controlled_shutdown:
        records.append(registration_change(broker_id, broker_epoch, in_controlled_shutdown=1))
    records += leader_and_isr_updates(
        image,
        islice(partitions_changed_by_removal(image, broker_id), at_once),
        remove=broker_id,
        unclean_election=unclean_election,
    )
    return ControllerResult(records, None, atomic=False)


def start_broker(
    image: MetadataImage,
    registration: BrokerRegistration,
    *,
    next_offset: int,
    cordoned: Sequence[UUID] = (),
    unclean_election: bool = False,
) -> ControllerResult[int]:
    """Register and unfence the broker of the controller's own process in one batch; the result is
    its epoch.

    The lock on its log directories guarantees that it is the only broker with its id.
    """
    registered = register_broker(
        image, registration, next_offset=next_offset, unclean_election=unclean_election
    )
    broker_id, epoch = registration.id, registered.result
    records = list(registered.records)
    now = apply_records(image, records, offset=next_offset).image
    records += unfence_broker(now, broker_id, epoch, unclean_election=unclean_election).records
    records += mark_directories_cordoned(now, broker_id, epoch, cordoned).records
    return ControllerResult(records, epoch, atomic=False)
