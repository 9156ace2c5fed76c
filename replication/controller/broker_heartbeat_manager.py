"""What the active controller knows of brokers beside the log: who was heard of when (KIP-631).

A new active controller begins with none of it and gives every broker that serves a session's time to
be heard. Nothing here is a state of its own: whether a broker is fenced or shutting down is in the
image, so that a decision whose records were not appended leaves nothing behind that contradicts it.
What is kept of a broker belongs to one registration, and another incarnation's begins afresh.

Time is milliseconds of a monotonic clock, and comes in as an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from odradek.replication.controller.broker_control_state import BrokerControlState
from odradek.replication.controller.image import BrokerImage, MetadataImage

UNKNOWN = -1


@dataclass(slots=True)
class _Known:
    """What is known of one registration of a broker."""

    epoch: int
    registered_at: int  # the offset of its registration record, or one that is surely not before it
    metadata_offset: int = UNKNOWN  # the last that it reported
    shutdown_offset: int = (
        UNKNOWN  # where others must be for its controlled shutdown to be complete
    )


class _Heard(NamedTuple):
    """When a registration of a broker was heard of last."""

    epoch: int
    at_ms: int


class BrokerHeartbeatManager:
    """The sessions of one controller's term; `image` is what it begins with."""

    def __init__(self, image: MetadataImage, now_ms: int, *, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self._begun_at = image.offset
        self._known: dict[int, _Known] = {}
        self._heard: dict[int, _Heard] = {}  # the longest silent first
        for broker in image.brokers.values():
            if not broker.fenced:
                self._heard[broker.id] = _Heard(broker.epoch, now_ms)

    # Who is alive

    def heard(self, broker: BrokerImage, now_ms: int, metadata_offset: int) -> None:
        """It sent a heartbeat, which reports that it has the metadata up to that offset."""
        self._heard.pop(broker.id, None)
        self._heard[broker.id] = _Heard(broker.epoch, now_ms)
        self._of(broker).metadata_offset = metadata_offset

    def is_alive(self, broker: BrokerImage, now_ms: int) -> bool:
        """Whether this incarnation of it has a session: what was heard of another says nothing of it."""
        heard = self._heard.get(broker.id)
        return (
            heard is not None
            and heard.epoch == broker.epoch
            and now_ms < heard.at_ms + self.timeout_ms
        )

    def holds_id(self, broker: BrokerImage, now_ms: int) -> bool:
        """Whether no other incarnation may register with its id: it is alive, and not about to stop
        (KAFKA-19047)."""
        return self.is_alive(broker, now_ms) and not broker.in_controlled_shutdown

    def expire(self, broker: BrokerImage, now_ms: int) -> None:
        """It was told to shut down: its session is over now. Like any that expires it is forgotten
        once the image says that the broker is fenced."""
        self._heard.pop(broker.id, None)
        self._heard = {broker.id: _Heard(broker.epoch, now_ms - self.timeout_ms), **self._heard}

    def forget(self, broker_id: int) -> None:
        """It is fenced or gone: its silence says nothing new."""
        self._heard.pop(broker_id, None)

    def oldest_expired(self, now_ms: int) -> int | None:
        """Which broker's session expired first; None if all are alive."""
        for broker_id, heard in self._heard.items():
            return broker_id if now_ms >= heard.at_ms + self.timeout_ms else None
        return None

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next session expires if nothing is heard; None if there is none."""
        for heard in self._heard.values():
            return heard.at_ms + self.timeout_ms
        return None

    # How far they are

    def registered(self, broker_id: int, epoch: int, offset: int) -> None:
        """Its registration's record is at that offset; another incarnation's replaces what was known."""
        known = self._known.get(broker_id)
        if known is not None and known.epoch == epoch:
            known.registered_at = offset
        else:
            self._known[broker_id] = _Known(epoch, offset)

    def registration_offset(self, broker: BrokerImage) -> int:
        """What a broker must have read to know of itself. Of registrations before this controller's
        term it is where the term began."""
        return self._of(broker).registered_at

    def state(self, broker: BrokerImage) -> BrokerControlState:
        """A shutdown that an earlier controller granted is one only once it is asked for again."""
        if broker.fenced:
            return BrokerControlState.FENCED
        if broker.in_controlled_shutdown and self._of(broker).shutdown_offset != UNKNOWN:
            return BrokerControlState.CONTROLLED_SHUTDOWN
        return BrokerControlState.UNFENCED

    def shutting_down(self, broker: BrokerImage, offset: int) -> None:
        """Its controlled shutdown begins, with records up to that offset."""
        self._of(broker).shutdown_offset = offset

    def shutdown_is_known(self, image: MetadataImage, broker: BrokerImage) -> bool:
        """Whether all that serve have reported the offset at which it is no leader any more."""
        wanted = self._of(broker).shutdown_offset
        return all(
            self._of(other).metadata_offset >= wanted
            for other in image.brokers.values()
            if self.state(other) is BrokerControlState.UNFENCED
        )

    def _of(self, broker: BrokerImage) -> _Known:
        known = self._known.get(broker.id)
        if known is None or known.epoch != broker.epoch:
            known = _Known(broker.epoch, max(broker.epoch, self._begun_at))
            self._known[broker.id] = known
        return known
