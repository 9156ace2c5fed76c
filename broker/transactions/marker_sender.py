"""Markers on their way to the leaders of their partitions, and what becomes of each.

The coordinator hands in a marker and hears of every partition: written, to be handed in again, or
never to be written, because the partition is gone or knows a newer coordinator or producer. It sends
again by itself; here nothing is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from odradek.broker.transactions.actions import Outcome
from odradek.broker.transactions.markers import MarkerWriter, TransactionMarker
from odradek.protocol.errors import ErrorCode
from odradek.replication.controller.image import MetadataImage
from odradek.storage.directories.names import TopicPartition

log = logging.getLogger("odradek.transactions")

OUTCOMES: Mapping[ErrorCode, Outcome] = {
    ErrorCode.none: Outcome.WRITTEN,
    ErrorCode.unsupported_for_message_format: Outcome.GONE,
    ErrorCode.unsupported_version: Outcome.GONE,
    ErrorCode.invalid_producer_epoch: Outcome.FENCED,
    ErrorCode.transaction_coordinator_fenced: Outcome.FENCED,
}
"""What an error means to the coordinator; every other is worth another try."""


class Markers(Protocol):
    """Where the coordinator hands in its markers."""

    async def send(self, marker: TransactionMarker) -> Mapping[TopicPartition, Outcome]:
        """Have the partitions' leaders write it; what became of it in each. Raises nothing."""
        ...


class MarkerSender:
    """`Markers` of a node: its own partitions' by `writer`. Those that others lead, or nobody, wait."""

    def __init__(
        self, image: Callable[[], MetadataImage], node_id: int, writer: MarkerWriter
    ) -> None:
        self._image = image
        self._node_id = node_id
        self._writer = writer

    async def send(self, marker: TransactionMarker) -> Mapping[TopicPartition, Outcome]:
        """See `Markers`. A partition that is not in the metadata was deleted: it needs no marker."""
        outcomes: dict[TopicPartition, Outcome] = {}
        mine = []
        for each in marker.partitions:
            leader = self._leader(each)
            if leader is None:
                outcomes[each] = Outcome.GONE
            elif leader != self._node_id:
                outcomes[each] = Outcome.LATER
            else:
                mine.append(each)
        if mine:
            (errors,) = await self._writer.write([replace(marker, partitions=tuple(mine))])
            for each, code in errors.items():
                outcomes[each] = OUTCOMES.get(code, Outcome.LATER)
                if code is not ErrorCode.none:
                    log.info("marker of producer %d in %s: %s", marker.producer_id, each, code.name)
        return outcomes

    def _leader(self, partition: TopicPartition) -> int | None:
        topic = self._image().topics_by_name.get(partition.topic)
        found = None if topic is None else topic.partitions.get(partition.partition)
        return None if found is None else found.leader
