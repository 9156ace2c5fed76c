"""Registration of brokers and controllers, and the effect of a restart on partitions (KIP-631,
KIP-919).

A broker registers fenced. A restart removes the broker from ISRs; after an unclean shutdown it is
removed from ELRs too, because it may have lost records (KIP-966). These partition changes precede
the registration record, so that a new controller repeats them after a failover in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.controller_result import ControllerResult
from odradek.replication.controller.features import (
    DIRECTORY_ASSIGNMENT,
    METADATA_VERSION,
    elr_enabled,
    metadata_version,
)
from odradek.replication.controller.image import (
    RESERVED_DIRECTORIES,
    BrokerImage,
    ControllerImage,
    Endpoint,
    MetadataImage,
)
from odradek.replication.controller.image_records import broker_record, controller_record
from odradek.replication.controller.leader_and_isr_updates import (
    PartitionRef,
    leader_and_isr_updates,
    partitions_with_elr_member,
    partitions_with_isr_member,
)
from odradek.seams.values import value_class


@value_class
class BrokerRegistration:
    """A BrokerRegistration request. `previous_epoch` is from the last clean shutdown file."""

    id: int
    incarnation_id: UUID
    endpoints: Sequence[Endpoint]
    directories: Sequence[UUID]
    features: Mapping[str, tuple[int, int]]
    rack: str | None = None
    previous_epoch: int = -1


class InvalidRegistration(KafkaError):
    code = ErrorCode.invalid_registration


class StaleBrokerEpoch(KafkaError):
    """The request is from an earlier incarnation of the broker, or the broker is not registered."""

    code = ErrorCode.stale_broker_epoch


def check_broker_epoch(image: MetadataImage, broker_id: int, epoch: int) -> BrokerImage:
    """The broker registered with that epoch. Raises StaleBrokerEpoch."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise StaleBrokerEpoch(f"No broker registration found for broker id {broker_id}")
    if broker.epoch != epoch:
        raise StaleBrokerEpoch(
            f"Expected broker epoch {broker.epoch}, but got broker epoch {epoch}"
        )
    return broker


DUPLICATE_BROKER = (
    "Another broker is registered with that broker id. If the broker was recently restarted this "
    "should self-resolve once the heartbeat manager expires the broker's session."
)


def register_broker(
    image: MetadataImage,
    registration: BrokerRegistration,
    *,
    next_offset: int,
    has_session: bool = False,
    unclean_election: bool = False,
) -> ControllerResult[int]:
    """Register the broker as fenced; the result is its epoch, `next_offset`.

    `has_session`: the broker id has a live session that does not shut down. Then only the same
    incarnation may register, and keeps its epoch. Raises KafkaError: duplicate_broker_registration,
    invalid_registration, unsupported_version.
    """
    existing = image.brokers.get(registration.id)
    same = existing is not None and existing.incarnation_id == registration.incarnation_id
    if has_session and not same:
        raise KafkaError(
            ErrorCode.duplicate_broker_registration,
            DUPLICATE_BROKER,
        )
    check_registration(image, registration)
    broker = _new_broker(image, registration, next_offset)
    records: list[Any] = []
    if existing is not None and same:
        broker = replace(
            broker,
            epoch=existing.epoch,
            fenced=existing.fenced,
            in_controlled_shutdown=existing.in_controlled_shutdown,
        )
    else:
        clean = is_clean_start(image, registration)
        places = affected_by_shutdown(image, registration.id, clean=clean)
        records += after_shutdown(
            image, places, registration.id, clean=clean, unclean_election=unclean_election
        )
    records.append(broker_record(broker, metadata_version(image.features)))
    return ControllerResult(records, broker.epoch, atomic=False)


def _new_broker(image: MetadataImage, registration: BrokerRegistration, epoch: int) -> BrokerImage:
    """State of a broker that has just been registered: fenced."""
    return BrokerImage(
        id=registration.id,
        epoch=epoch,
        incarnation_id=registration.incarnation_id,
        endpoints=tuple(registration.endpoints),
        features=dict(registration.features),
        rack=registration.rack,
        fenced=True,
        in_controlled_shutdown=False,
        directories=tuple(registration.directories) if _has_directories(image) else (),
    )


def check_registration(image: MetadataImage, registration: BrokerRegistration) -> None:
    """Validate directories and features. Raises KafkaError: invalid_registration,
    unsupported_version."""
    _check_directories(image, registration)
    _check_features(image, registration)


def _has_directories(image: MetadataImage) -> bool:
    """Whether the metadata version supports directory assignment (KIP-858)."""
    return metadata_version(image.features) >= DIRECTORY_ASSIGNMENT


def _check_directories(image: MetadataImage, registration: BrokerRegistration) -> None:
    if not _has_directories(image):
        return
    directories = registration.directories
    if not directories:
        raise InvalidRegistration("No directories specified in request")
    if any(each.int < RESERVED_DIRECTORIES for each in directories):
        raise InvalidRegistration("Reserved directory ID in request")
    if len(set(directories)) != len(directories):
        raise InvalidRegistration("Duplicate directory ID in request")
    for broker in image.brokers.values():
        for directory in directories:
            if broker.id != registration.id and directory in broker.directories:
                raise InvalidRegistration(
                    f"Broker {broker.id} is already registered with directory {directory}"
                )


def _check_features(image: MetadataImage, registration: BrokerRegistration) -> None:
    if METADATA_VERSION not in registration.features:
        raise InvalidRegistration(f"Request features do not contain '{METADATA_VERSION}'")
    for name in {**registration.features, **image.features}:
        low, high = registration.features.get(name, (0, 0))
        level = image.features.get(name, 0)
        if not low <= level <= high:
            raise KafkaError(
                ErrorCode.unsupported_version,
                f"Unable to register because the broker does not support finalized version {level} "
                f"of {name}. The broker wants a version between {low} and {high}, inclusive.",
            )


def is_clean_start(image: MetadataImage, registration: BrokerRegistration) -> bool:
    """Whether the previous incarnation shut down cleanly."""
    existing = image.brokers.get(registration.id)
    return existing is not None and existing.epoch == registration.previous_epoch


def register_controller(
    image: MetadataImage, controller: ControllerImage
) -> ControllerResult[None]:
    """Register a controller's endpoints and features (KIP-919)."""
    return ControllerResult([controller_record(controller)], None)


def unregister_broker(
    image: MetadataImage, broker_id: int, *, unclean_election: bool = False
) -> ControllerResult[None]:
    """Remove the registration. Raises KafkaError(broker_id_not_registered)."""
    from odradek.protocol.schemas.cluster_records import UnregisterBrokerRecord

    broker = image.brokers.get(broker_id)
    if broker is None:
        raise KafkaError(
            ErrorCode.broker_id_not_registered,
            f"Broker ID {broker_id} is not currently registered",
        )
    affected = [
        *partitions_with_isr_member(image, broker_id),
        *partitions_with_elr_member(image, broker_id),
    ]
    updates = leader_and_isr_updates(
        image, affected, remove=broker_id, unclean_election=unclean_election
    )
    gone = UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch)
    return ControllerResult([*updates, gone], None, atomic=False)


def affected_by_shutdown(
    image: MetadataImage, broker_id: int, *, clean: bool
) -> Iterator[PartitionRef]:
    """Partitions that change because the previous incarnation stopped."""
    yield from partitions_with_isr_member(image, broker_id)
    if not clean and elr_enabled(image.features):
        yield from partitions_with_elr_member(image, broker_id)


def after_shutdown(
    image: MetadataImage,
    places: Iterable[PartitionRef],
    broker_id: int,
    *,
    clean: bool,
    unclean_election: bool,
) -> list[Any]:
    """Partition changes after the previous incarnation stopped (KIP-966)."""
    if clean or not elr_enabled(image.features):
        return leader_and_isr_updates(
            image, places, remove=broker_id, unclean_election=unclean_election
        )
    return leader_and_isr_updates(
        image, places, unclean_shutdown=broker_id, unclean_election=unclean_election
    )


def registration_change(broker_id: int, broker_epoch: int, **changes: Any) -> Any:
    from odradek.protocol.schemas.cluster_records import BrokerRegistrationChangeRecord

    return BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker_epoch, **changes)
