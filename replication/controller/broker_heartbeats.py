"""Brokers of a quorum: how they register, what their heartbeats ask for, and who is heard no more.

These are the operations of an active controller: they decide on the image and on its `sessions`
(KIP-631). A heartbeat changes its broker's state by the table of `broker_states.py`, and tells which
directories failed (KIP-858) and which are cordoned (KIP-1066). What that means for partitions is decided
one after the other, first the directories: a broker that is unfenced leads nothing in one that failed.
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
from odradek.replication.controller.leader_and_isr import leads_any_partition
from odradek.seams.values import value_class

_CHANGES: Final[dict[BrokerControlState, Callable[..., ControllerResult[None]]]] = {
    BrokerControlState.FENCED: fence_broker,
    BrokerControlState.UNFENCED: unfence_broker,
    BrokerControlState.CONTROLLED_SHUTDOWN: begin_controlled_shutdown,
    BrokerControlState.SHUTDOWN_NOW: fence_broker,
}


@value_class
class BrokerHeartbeat:
    """What a broker reports and wants; `cordoned` is None until it knows itself."""

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
    """`register_broker` for a broker that lives by heartbeats; the result is its epoch.

    Raises KafkaError: duplicate_broker_registration as long as another incarnation is alive and does not
    shut down, invalid_registration, unsupported_version.
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
    """Raises StaleBrokerEpoch; the session of whoever is registered is not prolonged then.

    A session ends with the answer that the broker should shut down: its next incarnation need not
    wait for it to expire. `at_once` is how many partitions may be decided on with a broker that begins
    to serve or to shut down: the rest is for `steps.py`. None: all of them.
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
    # A controlled shutdown may have been committed in part: what it still leads moves now
    stays = now is then and then is not BrokerControlState.CONTROLLED_SHUTDOWN
    change = None if stays else _CHANGES[then]
    if change is not None and then in (
        BrokerControlState.UNFENCED,
        BrokerControlState.CONTROLLED_SHUTDOWN,
    ):
        change = partial(change, at_once=at_once)
    records = _records(image, heartbeat, change, unclean_election)
    sessions.heard(broker, now_ms, heartbeat.metadata_offset)
    if then is BrokerControlState.CONTROLLED_SHUTDOWN and (records or now is not then):
        sessions.shutting_down(broker, image.offset + len(records))
    if then is BrokerControlState.SHUTDOWN_NOW:
        sessions.expire(broker, now_ms)
    respond = HeartbeatResponse(
        is_caught_up, then.is_fenced, then is BrokerControlState.SHUTDOWN_NOW
    )
    return ControllerResult(records, respond, atomic=False)


def fence_stale_broker(
    image: MetadataImage,
    sessions: BrokerHeartbeatManager,
    *,
    now_ms: int,
    unclean_election: bool = False,
) -> ControllerResult[int | None]:
    """Fence the broker whose session expired first; None if there is none to be fenced.

    One at a time: what its fencing leaves is what the next one is decided on. Its session is forgotten
    once the image says that it is fenced, so that it is fenced another time if this is not committed.
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
