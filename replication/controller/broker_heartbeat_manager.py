"""Sessions of brokers on the active controller (KIP-631; Kafka's `BrokerHeartbeatManager`).

A new active controller starts a session for every unfenced broker. Fencing and shutdown are stored
in the image only, so that a failed commit leaves no contradiction here. All values belong to one
broker epoch. Times are ms of a monotonic clock, passed as arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from odradek.replication.controller.broker_control_state import BrokerControlState
from odradek.replication.controller.image import BrokerImage, MetadataImage

UNKNOWN = -1


@dataclass(slots=True)
class _BrokerOffsets:
    """Offsets of one broker registration."""

    epoch: int
    registered_at: int  # offset of the registration record, or a later one
    metadata_offset: int = UNKNOWN  # last reported
    shutdown_offset: int = UNKNOWN  # offset that the other brokers must replay


class _LastHeartbeat(NamedTuple):
    """Last heartbeat of one broker registration."""

    epoch: int
    at_ms: int


class BrokerHeartbeatManager:
    """Sessions during one term as active controller; `image` is the state at its start."""

    def __init__(self, image: MetadataImage, now_ms: int, *, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self._start_offset = image.offset
        self._offsets: dict[int, _BrokerOffsets] = {}
        self._heartbeats: dict[int, _LastHeartbeat] = {}  # oldest heartbeat first
        for broker in image.brokers.values():
            if not broker.fenced:
                self._heartbeats[broker.id] = _LastHeartbeat(broker.epoch, now_ms)

    # Sessions

    def touch(self, broker: BrokerImage, now_ms: int, metadata_offset: int) -> None:
        """Record a heartbeat with the broker's metadata offset."""
        self._heartbeats.pop(broker.id, None)
        self._heartbeats[broker.id] = _LastHeartbeat(broker.epoch, now_ms)
        self._of(broker).metadata_offset = metadata_offset

    def is_alive(self, broker: BrokerImage, now_ms: int) -> bool:
        """Whether this broker epoch has a live session."""
        heartbeat = self._heartbeats.get(broker.id)
        return (
            heartbeat is not None
            and heartbeat.epoch == broker.epoch
            and now_ms < heartbeat.at_ms + self.timeout_ms
        )

    def holds_id(self, broker: BrokerImage, now_ms: int) -> bool:
        """Whether the session blocks other incarnations: it is live and not shutting down
        (KAFKA-19047)."""
        return self.is_alive(broker, now_ms) and not broker.in_controlled_shutdown

    def expire(self, broker: BrokerImage, now_ms: int) -> None:
        """Expire the session of a broker that received shouldShutDown."""
        self._heartbeats.pop(broker.id, None)
        self._heartbeats = {
            broker.id: _LastHeartbeat(broker.epoch, now_ms - self.timeout_ms),
            **self._heartbeats,
        }

    def forget(self, broker_id: int) -> None:
        """Remove the session of a fenced or unregistered broker."""
        self._heartbeats.pop(broker_id, None)

    def oldest_expired(self, now_ms: int) -> int | None:
        """Id of the broker whose session expired first; None if all are live."""
        for broker_id, heartbeat in self._heartbeats.items():
            return broker_id if now_ms >= heartbeat.at_ms + self.timeout_ms else None
        return None

    @property
    def next_deadline_ms(self) -> int | None:
        """Time at which the next session expires; None if there is none."""
        for heartbeat in self._heartbeats.values():
            return heartbeat.at_ms + self.timeout_ms
        return None

    # Offsets

    def registered(self, broker_id: int, epoch: int, offset: int) -> None:
        """Record the offset of a registration; a new epoch replaces earlier values."""
        known = self._offsets.get(broker_id)
        if known is not None and known.epoch == epoch:
            known.registered_at = offset
        else:
            self._offsets[broker_id] = _BrokerOffsets(epoch, offset)

    def registration_offset(self, broker: BrokerImage) -> int:
        """Offset that the broker must reach to be unfenced; for earlier registrations, the start
        of this term."""
        return self._of(broker).registered_at

    def state(self, broker: BrokerImage) -> BrokerControlState:
        """Current state. A controlled shutdown of an earlier term counts once it is requested
        again."""
        if broker.fenced:
            return BrokerControlState.FENCED
        if broker.in_controlled_shutdown and self._of(broker).shutdown_offset != UNKNOWN:
            return BrokerControlState.CONTROLLED_SHUTDOWN
        return BrokerControlState.UNFENCED

    def shutting_down(self, broker: BrokerImage, offset: int) -> None:
        """Record the start of a controlled shutdown, with records up to `offset`."""
        self._of(broker).shutdown_offset = offset

    def shutdown_is_known(self, image: MetadataImage, broker: BrokerImage) -> bool:
        """Whether all unfenced brokers have replayed the controlled shutdown."""
        wanted = self._of(broker).shutdown_offset
        return all(
            self._of(other).metadata_offset >= wanted
            for other in image.brokers.values()
            if self.state(other) is BrokerControlState.UNFENCED
        )

    def _of(self, broker: BrokerImage) -> _BrokerOffsets:
        known = self._offsets.get(broker.id)
        if known is None or known.epoch != broker.epoch:
            known = _BrokerOffsets(broker.epoch, max(broker.epoch, self._start_offset))
            self._offsets[broker.id] = known
        return known
