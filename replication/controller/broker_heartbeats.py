"""Broker heartbeats on the active controller: state transitions, and fencing of stale brokers
(KIP-631).

A heartbeat changes the broker's state (`broker_control_state.py`) and reports failed (KIP-858) and
cordoned (KIP-1066) directories. Failed directories are handled first, so that an unfenced broker
leads nothing there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final
from uuid import UUID

from odradek.replication.controller.broker_control_state import BrokerControlState, next_state
from odradek.replication.controller.broker_directories import (
    mark_directories_cordoned,
    mark_directories_offline,
)
from odradek.replication.controller.broker_fencing import (
    begin_controlled_shutdown,
    fence_broker,
    unfence_broker,
)
from odradek.replication.controller.broker_heartbeat_manager import BrokerHeartbeatManager
from odradek.replication.controller.broker_registration import (
    BrokerRegistration,
    check_broker_epoch,
    register_broker,
)
from odradek.replication.controller.controller_result import ControllerResult
from odradek.replication.controller.image import MetadataImage
from odradek.replication.controller.image_builder import apply_records
from odradek.replication.controller.leader_and_isr_updates import leads_any_partition
from odradek.seams.values import value_class

_CHANGES: Final[dict[BrokerControlState, Callable[..., ControllerResult[None]]]] = {
    BrokerControlState.FENCED: fence_broker,
    BrokerControlState.UNFENCED: unfence_broker,
    BrokerControlState.CONTROLLED_SHUTDOWN: begin_controlled_shutdown,
    BrokerControlState.SHUTDOWN_NOW: fence_broker,
}


@value_class
class BrokerHeartbeat:
    """A BrokerHeartbeat request; `cordoned` is None before the broker knows it."""

    broker_id: int
    broker_epoch: int
    metadata_offset: int  # the last that it has applied
    want_fence: bool = False
    want_shut_down: bool = False
    offline: Sequence[UUID] = ()
    cordoned: Sequence[UUID] | None = None


@value_class
class HeartbeatResponse:
    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool


def register_broker_session(
    image: MetadataImage,
    sessions: BrokerHeartbeatManager,
    registration: BrokerRegistration,
    *,
    now_ms: int,
    unclean_election: bool = False,
) -> ControllerResult[int]:
    """`register_broker` with a session; the result is the broker epoch.

    Raises KafkaError: duplicate_broker_registration while another incarnation has a session,
    invalid_registration, unsupported_version.
    """
    existing = image.brokers.get(registration.id)
    plan = register_broker(
        image,
        registration,
        next_offset=image.offset + 1,
        has_session=existing is not None and sessions.holds_id(existing, now_ms),
        unclean_election=unclean_election,
    )
    sessions.registered(registration.id, plan.result, image.offset + len(plan.records))
    return plan


def process_broker_heartbeat(
    image: MetadataImage,
    sessions: BrokerHeartbeatManager,
    heartbeat: BrokerHeartbeat,
    *,
    now_ms: int,
    unclean_election: bool = False,
    at_once: int | None = None,
) -> ControllerResult[HeartbeatResponse]:
    """Process a heartbeat. Raises StaleBrokerEpoch, and then does not extend the session.

    The session ends when the broker should shut down, so that its next incarnation can register.
    `at_once` limits the partitions that are updated with it; `partition_update_batches.py` updates
    the rest.
    """
    broker = check_broker_epoch(image, heartbeat.broker_id, heartbeat.broker_epoch)
    is_caught_up = heartbeat.metadata_offset >= sessions.registration_offset(broker)
    now = sessions.state(broker)
    then = next_state(
        now,
        want_fence=heartbeat.want_fence,
        want_shut_down=heartbeat.want_shut_down,
        may_serve=is_caught_up and not broker.in_controlled_shutdown,
        leads=lambda: leads_any_partition(image, broker.id),
        is_known=lambda: sessions.shutdown_is_known(image, broker),
    )
    # A controlled shutdown may have been committed in part: the remaining leaders are moved now
    stays = now is then and then is not BrokerControlState.CONTROLLED_SHUTDOWN
    change = None if stays else _CHANGES[then]
    if change is not None and then in (
        BrokerControlState.UNFENCED,
        BrokerControlState.CONTROLLED_SHUTDOWN,
    ):
        change = partial(change, at_once=at_once)
    records = _records(image, heartbeat, change, unclean_election)
    sessions.touch(broker, now_ms, heartbeat.metadata_offset)
    if then is BrokerControlState.CONTROLLED_SHUTDOWN and (records or now is not then):
        sessions.shutting_down(broker, image.offset + len(records))
    if then is BrokerControlState.SHUTDOWN_NOW:
        sessions.expire(broker, now_ms)
    response = HeartbeatResponse(
        is_caught_up, then.is_fenced, then is BrokerControlState.SHUTDOWN_NOW
    )
    return ControllerResult(records, response, atomic=False)


def fence_stale_broker(
    image: MetadataImage,
    sessions: BrokerHeartbeatManager,
    *,
    now_ms: int,
    unclean_election: bool = False,
) -> ControllerResult[int | None]:
    """Fence the broker whose session expired first; the result is its id, or None.

    The session is removed once the image contains the fencing, so that a failed commit is repeated.
    """
    while (broker_id := sessions.oldest_expired(now_ms)) is not None:
        broker = image.brokers.get(broker_id)
        if broker is not None and not broker.fenced:
            plan = fence_broker(image, broker_id, broker.epoch, unclean_election=unclean_election)
            return ControllerResult(plan.records, broker_id, atomic=False)
        sessions.forget(broker_id)
    return ControllerResult([], None)


def _records(
    image: MetadataImage,
    heartbeat: BrokerHeartbeat,
    change: Callable[..., ControllerResult[None]] | None,
    unclean_election: bool,
) -> list[Any]:
    who = heartbeat.broker_id, heartbeat.broker_epoch
    failed = mark_directories_offline(
        image, *who, heartbeat.offline, unclean_election=unclean_election
    ).records
    records = list(failed)
    if heartbeat.cordoned is not None:
        records += mark_directories_cordoned(image, *who, heartbeat.cordoned).records
    if change is not None:
        if records:
            image = apply_records(image, records, offset=image.offset + len(records)).image
        records += change(image, *who, unclean_election=unclean_election).records
    return records
