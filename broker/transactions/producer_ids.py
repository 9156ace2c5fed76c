"""Allocates producer ids from blocks that the controller reserves (KIP-730).

A block is reserved before its first id is used, so no id is used twice. Ids left in a block are
lost in a crash, as in Kafka. The next block is requested when a tenth of the current one is left.
Without an id, the caller waits up to `WAIT_SECONDS` and then gets COORDINATOR_LOAD_IN_PROGRESS,
which clients retry.
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
"""Timeout of AllocateProducerIds."""
WAIT_SECONDS = 2.0
"""Maximum wait for a producer id."""
PAUSE_SECONDS = 0.05
"""Delay after a failed allocation."""
LOW_PART = 10
"""The next block is requested when 1/LOW_PART of the current one is left."""


class NoProducerId(KafkaError):
    code = ErrorCode.coordinator_load_in_progress


async def reserve_producer_ids(
    controller: ActiveController, broker_id: int, broker_epoch: int
) -> range:
    """Request the next block of producer ids. Raises KafkaError."""
    values = {"broker_id": broker_id, "broker_epoch": broker_epoch}
    response = await controller.request(
        apis.ALLOCATE_PRODUCER_IDS, values, timeout_s=TIMEOUT_SECONDS
    )
    if response.error_code is not ErrorCode.none:
        raise KafkaError(response.error_code, "AllocateProducerIds failed")
    return range(response.producer_id_start, response.producer_id_start + response.producer_id_len)


class ProducerIds:
    """Producer ids of this broker. `start` must be called before `next`."""

    def __init__(self, reserve: Callable[[], Awaitable[range]]) -> None:
        """`reserve` commits the next block to the metadata log and returns its ids, or raises
        KafkaError."""
        self._reserve = reserve
        self._nursery: trio.Nursery | None = None
        self._left: list[int] = []
        """Ids left in the current block; the next one is last."""
        self._low = 0
        self._following: range | None = None
        """The next block."""
        self._reserving: trio.Event | None = None
        """Set when the pending allocation has finished."""

    def start(self, nursery: trio.Nursery) -> None:
        """Run allocations in `nursery`."""
        self._nursery = nursery

    async def next(self) -> int:
        """Allocate a producer id. Raises NoProducerId if none is available in time."""
        if not self._left:
            with trio.move_on_after(WAIT_SECONDS):
                await self._begin_block()
            if not self._left:
                raise NoProducerId("no block of producer ids is available yet")
        producer_id = self._left.pop()
        if len(self._left) <= self._low:
            self._reserve_next()
        return producer_id

    async def _begin_block(self) -> None:
        """Wait until a block is available or an allocation has failed."""
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
        """Request the next block unless it is there or pending; the event is set when it
        finished."""
        if self._reserving is not None:
            return self._reserving
        finished = trio.Event()
        if self._following is not None:
            finished.set()
        else:
            assert self._nursery is not None, "the node has not started the producer ids"
            self._reserving = finished
            self._nursery.start_soon(self._run)
        return finished

    async def _run(self) -> None:
        """Run one allocation; after an error the next request for an id tries again."""
        try:
            self._following = await self._reserve()
        except KafkaError as error:
            log.warning("allocating a block of producer ids failed: %s", error)
            await trio.sleep(PAUSE_SECONDS)
        except Exception:  # a bug must not end the node
            log.exception("allocating a block of producer ids failed")
            await trio.sleep(PAUSE_SECONDS)
        finally:
            finished, self._reserving = self._reserving, None
            assert finished is not None
            finished.set()
