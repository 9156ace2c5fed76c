"""Fencing, unfencing and controlled shutdown of brokers, and the effect on leaders and ISRs (KIP-631, KIP-841, KIP-966)."""

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
from odradek.replication.controller.leader_and_isr import (
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
    """Let it serve, and lead what has no leader and may have it: all, or the first `at_once`.

    A broker that is shutting down comes back by registering again.
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
    """Its session is over, or it asked for it: others lead from now on."""
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
    """It is going to stop: its partitions, all or the first `at_once`, go to others while it still
    answers (KIP-841)."""
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
    """Register and unfence at once: for a broker in the controller's own process, which by the lock
    on its directories is the only one with its id, and which has all that the controller knows.

    The records are those that the two steps would give, in one batch; the result is the epoch.
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
