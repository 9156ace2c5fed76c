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

log = logging.getLogger("odradek.peers")

Q = TypeVar("Q")
A = TypeVar("A")

QUESTIONS_MAX = 1000
"""Maximum number of items in one request."""


@state_class
class _Asked(Generic[Q, A]):
    key: Hashable
    question: Q
    waiter: ResponseFuture[A | ClientError]


class RequestBatcher(Generic[Q, A]):
    """Sends items to brokers in batches, one request in flight for each broker."""

    def __init__(
        self, ask: Callable[[int, Sequence[Q]], Awaitable[Sequence[A]]], nursery: trio.Nursery
    ) -> None:
        """`ask` sends items to a broker and returns the result of each, in order, or raises ClientError for all of
        them. The requests run in `nursery`."""
        self._ask = ask
        self._nursery = nursery
        self._waiting: dict[int, deque[_Asked[Q, A]]] = {}
        """Brokers with a request in flight."""

    async def ask(self, broker_id: int, key: Hashable, question: Q) -> A:
        """Send an item in the next batch and return its result. Raises ClientError."""
        asked = _Asked[Q, A](key, question, ResponseFuture())
        waiting = self._waiting.get(broker_id)
        if waiting is None:
            self._waiting[broker_id] = deque([asked])
            self._nursery.start_soon(self._run, broker_id)
        else:
            waiting.append(asked)
        response = await asked.waiter.wait()
        if isinstance(response, ClientError):
            raise response
        return response

    async def _run(self, broker_id: int) -> None:
        """Send batches until no item is left."""
        waiting = self._waiting[broker_id]
        while waiting:
            together = _take(waiting)
            for each, response in zip(
                together, await self._responses(broker_id, together), strict=True
            ):
                each.waiter.set(response)
        del self._waiting[broker_id]

    async def _responses(
        self, broker_id: int, together: Sequence[_Asked[Q, A]]
    ) -> Sequence[A | ClientError]:
        try:
            responses = await self._ask(broker_id, [each.question for each in together])
        except ClientError as error:
            return [error] * len(together)
        except (
            Exception
        ) as error:  # an unexpected error, or an invalid response: only these items fail
            log.exception("broker %d could not be reached", broker_id)
            return [ClientError(f"broker {broker_id} could not be reached: {error}")] * len(
                together
            )
        if len(responses) != len(together):
            return [ClientError(f"broker {broker_id} returned too few results")] * len(together)
        return responses


def _take(waiting: deque[_Asked[Q, A]]) -> list[_Asked[Q, A]]:
    """Remove the items of the next batch, one of each key; the others keep their order."""
    taken: dict[Hashable, _Asked[Q, A]] = {}
    left: list[_Asked[Q, A]] = []
    while waiting and len(taken) < QUESTIONS_MAX:
        each = waiting.popleft()
        if each.key in taken:
            left.append(each)
        else:
            taken[each.key] = each
    waiting.extendleft(reversed(left))
    return list(taken.values())
