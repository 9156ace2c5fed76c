"""Producer ids, handed out from blocks that the metadata log reserves (KIP-730).

A block is reserved before its first id is given, so an id is never given twice; what a crash leaves
of a block is lost, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.broker.controller_channel import ActiveController

TIMEOUT_SECONDS = 10.0


async def reserve_producer_ids(
    controller: ActiveController, broker_id: int, broker_epoch: int
) -> range:
    """The next block of ids, for this broker alone. Raises KafkaError."""
    values = {"broker_id": broker_id, "broker_epoch": broker_epoch}
    answer = await controller.request(apis.ALLOCATE_PRODUCER_IDS, values, timeout_s=TIMEOUT_SECONDS)
    if answer.error_code is not ErrorCode.none:
        raise KafkaError(answer.error_code, "no producer ids are to be had")
    return range(answer.producer_id_start, answer.producer_id_start + answer.producer_id_len)


class ProducerIds:
    def __init__(self, reserve: Callable[[], Awaitable[range]]) -> None:
        """`reserve` commits the next block to the metadata log and returns its ids."""
        self._reserve = reserve
        self._left: list[int] = []
        self._reserving = trio.Lock()

    async def next(self) -> int:
        """A producer id that nobody had before. Raises what `reserve` raises."""
        while not self._left:
            async with self._reserving:
                if not self._left:
                    self._left = list(reversed(await self._reserve()))
        return self._left.pop()
