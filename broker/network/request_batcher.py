"""Batches requests to other brokers: items that arrive while a request is in flight wait for the next request.

Each broker has at most one request in flight, and under load a request carries many items, as in Kafka's
InterBrokerSendThread. A request has at most one item of a key; later items of that key follow in order.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

import trio

from odradek.broker.coordination.response_future import ResponseFuture
from odradek.client.errors import ClientError
from odradek.seams.values import state_class

log = logging.getLogger("odradek.broker_connections")

Item = TypeVar("Item")
Result = TypeVar("Result")

ITEMS_MAX = 1000
"""Maximum number of items in one request."""


@state_class
class _PendingItem(Generic[Item, Result]):
    key: Hashable
    item: Item
    waiter: ResponseFuture[Result | ClientError]


class RequestBatcher(Generic[Item, Result]):
    """Sends items to brokers in batches, one request in flight for each broker."""

    def __init__(
        self,
        send_request: Callable[[int, Sequence[Item]], Awaitable[Sequence[Result]]],
        nursery: trio.Nursery,
    ) -> None:
        """`send_request` sends items to a broker and returns their results in order, or raises ClientError for all of
        them. The requests run in `nursery`."""
        self._send_request = send_request
        self._nursery = nursery
        self._waiting: dict[int, deque[_PendingItem[Item, Result]]] = {}
        """Brokers with a request in flight."""

    async def send(self, broker_id: int, key: Hashable, item: Item) -> Result:
        """Send an item in the next batch and return its result. Raises ClientError."""
        pending = _PendingItem[Item, Result](key, item, ResponseFuture())
        waiting = self._waiting.get(broker_id)
        if waiting is None:
            self._waiting[broker_id] = deque([pending])
            self._nursery.start_soon(self._run, broker_id)
        else:
            waiting.append(pending)
        result = await pending.waiter.wait()
        if isinstance(result, ClientError):
            raise result
        return result

    async def _run(self, broker_id: int) -> None:
        """Send batches until no item is left."""
        waiting = self._waiting[broker_id]
        while waiting:
            batch = _take(waiting)
            for each, result in zip(batch, await self._results(broker_id, batch), strict=True):
                each.waiter.set(result)
        del self._waiting[broker_id]

    async def _results(
        self, broker_id: int, batch: Sequence[_PendingItem[Item, Result]]
    ) -> Sequence[Result | ClientError]:
        try:
            results = await self._send_request(broker_id, [each.item for each in batch])
        except ClientError as error:
            return [error] * len(batch)
        except Exception as error:  # a bug, or an invalid response: only these items fail
            log.exception("Unexpected error in a request to broker %d", broker_id)
            text = f"Unexpected error in a request to broker {broker_id}: {error}"
            return [ClientError(text)] * len(batch)
        if len(results) != len(batch):
            return [ClientError(f"broker {broker_id} returned too few results")] * len(batch)
        return results


def _take(waiting: deque[_PendingItem[Item, Result]]) -> list[_PendingItem[Item, Result]]:
    """Remove the items of the next batch, one of each key; the others keep their order."""
    taken: dict[Hashable, _PendingItem[Item, Result]] = {}
    left: list[_PendingItem[Item, Result]] = []
    while waiting and len(taken) < ITEMS_MAX:
        each = waiting.popleft()
        if each.key in taken:
            left.append(each)
        else:
            taken[each.key] = each
    waiting.extendleft(reversed(left))
    return list(taken.values())
