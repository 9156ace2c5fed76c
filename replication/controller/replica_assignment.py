"""Validation of manual replica assignments, and the first state of a new partition."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.controller_result import ItemRefused
from odradek.replication.controller.image import MetadataImage, PartitionImage
from odradek.replication.controller.leader_and_isr_updates import default_directory


def check_manual_assignment(
    image: MetadataImage, replicas: Sequence[int], replication_factor: int | None
) -> None:
    """Raise ItemRefused unless the brokers are registered, distinct, and `replication_factor`
    many."""
    if not replicas:
        raise _invalid("The manual partition assignment includes an empty replica list.")
    previous = None
    for broker in sorted(replicas):
        if broker not in image.brokers:
            raise _invalid(
                f"The manual partition assignment includes broker {broker}, but no such broker is "
                "registered."
            )
        if broker == previous:
            raise _invalid(
                f"The manual partition assignment includes the broker {broker} more than once."
            )
        previous = broker
    if replication_factor is not None and len(replicas) != replication_factor:
        raise _invalid(
            f"The manual partition assignment includes a partition with {len(replicas)} "
            "replica(s), but this is not consistent with previous partitions, which have "
            f"{replication_factor} replica(s)."
        )


def _invalid(reason: str) -> ItemRefused:
    return ItemRefused(ErrorCode.invalid_replica_assignment, reason)


def initial_partition(image: MetadataImage, replicas: Sequence[int]) -> PartitionImage | None:
    """A new partition with all active replicas in its ISR; None if no replica is active."""
    isr = tuple(broker for broker in replicas if image.is_active(broker))
    if not isr:
        return None
    return PartitionImage(
        replicas=tuple(replicas),
        directories=tuple(default_directory(image, broker) for broker in replicas),
        isr=isr,
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
    )


def no_active_replica(partition: int) -> ItemRefused:
    return _invalid(
        f"All brokers specified in the manual partition assignment for partition {partition} are "
        "fenced or in controlled shutdown."
    )


def cannot_replicate(replication_factor: int, reason: str) -> ItemRefused:
    return ItemRefused(
        ErrorCode.invalid_replication_factor,
        f"Unable to replicate the partition {replication_factor} time(s): {reason}",
    )


ALL_FENCED = "All brokers are currently fenced or in controlled shutdown."
