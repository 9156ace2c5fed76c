"""Producer ids, handed out from blocks that the metadata log reserves (KIP-730).

A block is reserved before its first id is given, so an id is never given twice; what a crash leaves
of a block is lost, as in Kafka. The next one is reserved while a tenth of this one is left. Where
there is none yet, who asks waits a moment for it, and is then told COORDINATOR_LOAD_IN_PROGRESS:
whatever the controller says, producers are to ask again, and every client takes it so.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.broker.controller.controller_channel import ActiveController

log = logging.getLogger("odradek.producer_ids")

TIMEOUT_SECONDS = 10.0
"""For a block."""
WAIT_SECONDS = 2.0
"""How long an id is waited for."""
PAUSE_SECONDS = 0.05
"""After a block that was not to be had."""
LOW_PART = 10
"""So small a part of a block is left when the next one is reserved."""


class NoProducerId(KafkaError):
    code = ErrorCode.coordinator_load_in_progress


async def reserve_producer_ids(
    controller: ActiveController, broker_id: int, broker_epoch: int
) -> range:
    """The next block of ids, for this broker alone. Raises KafkaError."""
    values = {"broker_id": broker_id, "broker_epoch": broker_epoch}
    respond = await controller.request(
        apis.ALLOCATE_PRODUCER_IDS, values, timeout_s=TIMEOUT_SECONDS
    )
    if respond.error_code is not ErrorCode.none:
        raise KafkaError(respond.error_code, "as an answer to AllocateProducerIds")
    return range(respond.producer_id_start, respond.producer_id_start + respond.producer_id_len)


class ProducerIds:
    """See the module. `start` comes before the first id is asked for."""

    def __init__(self, reserve: Callable[[], Awaitable[range]]) -> None:
        """`reserve` commits the next block to the metadata log and returns its ids, or raises
        KafkaError."""
        self._reserve = reserve
        self._nursery: trio.Nursery | None = None
        self._left: list[int] = []
        """Of the block that ids are given from, the next one last."""
        self._low = 0
        self._following: range | None = None
        """The block after that."""
        self._reserving: trio.Event | None = None
        """Set when the reservation that is under way is over."""

    def start(self, nursery: trio.Nursery) -> None:
        """Have `nursery` own the reservations."""
        self._nursery = nursery

    async def next(self) -> int:
        """A producer id that nobody had before. Raises NoProducerId where none is to be had now."""
        if not self._left:
            with trio.move_on_after(WAIT_SECONDS):
                await self._begin_block()
            if not self._left:
                raise NoProducerId("the next block of producer ids is not there yet")
        producer_id = self._left.pop()
        if len(self._left) <= self._low:
            self._reserve_next()
        return producer_id

    async def _begin_block(self) -> None:
        """Until there are ids, or a reservation has failed."""
        while not self._left:
            if self._following is not None:
                self._left = list(reversed(self._following))
                self._low = len(self._left) // LOW_PART
                self._following = None
                return
            await self._reserve_next().wait()
            if self._following is None and self._reserving is None:
                return

    def _reserve_next(self) -> trio.Event:
        """Reserve the block that follows, unless there is one, or will be; when it is over."""
        if self._reserving is not None:
            return self._reserving
        over = trio.Event()
        if self._following is not None:
            over.set()
        else:
            assert self._nursery is not None, "the node is not that far yet"
            self._reserving = over
            self._nursery.start_soon(self._run)
        return over

    async def _run(self) -> None:
        """One reservation. What goes wrong with it is tried again when an id is asked for."""
        try:
            self._following = await self._reserve()
        except KafkaError as error:
            log.warning("no producer ids are to be had: %s", error)
            await trio.sleep(PAUSE_SECONDS)
        except Exception:  # ours, and that reservation's alone
            log.exception("no producer ids are to be had")
            await trio.sleep(PAUSE_SECONDS)
        finally:
            over, self._reserving = self._reserving, None
            assert over is not None
            over.set()
