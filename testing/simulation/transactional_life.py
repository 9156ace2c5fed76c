"""What a transactional client does with its life: transactions, one after the other, each written down.

It commits, aborts, commits offsets of its group, gives up on what fails, dies in the middle, and does not
always wait to hear how a transaction ended.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio

from odradek.client.errors import ClientError
from odradek.protocol.errors import KafkaError
from odradek.testing.simulation.history import History, Outcome, Sent, Transaction
from odradek.testing.simulation.transactional_client import TransactionalClient


class TransactionalLife:
    """`padding` is put behind each value, and is no part of it; `pause` is how the client takes its time."""

    def __init__(
        self,
        client: TransactionalClient,
        history: History,
        chance: random.Random,
        *,
        partitions: int,
        padding: Callable[[], bytes] = bytes,
        pause: Callable[[float], Awaitable[None]] = trio.sleep,
    ) -> None:
        self._client = client
        self._history = history
        self._chance = chance
        self._partitions = partitions
        self._padding = padding
        self._pause = pause

    async def live(
        self,
        transactions: int,
        seconds: float,
        ended: Callable[[Transaction], None] = lambda transaction: None,
    ) -> None:
        """So many transactions, in about so much time; `ended` is told of each."""
        client, ready = self._client, False
        for number in range(transactions):
            transaction = Transaction(client.name, number)
            if not ready and not await _done(client.init):
                self._history.stuck.add(client.name)
                return
            self._history.transactions.append(transaction)
            ready = await self._transact(transaction)
            ended(transaction)
            await self._pause(self._chance.expovariate(transactions / seconds))
        if not ready:
            await _done(client.init)

    async def _transact(self, transaction: Transaction) -> bool:
        """Whether the client can go on without `init`."""
        client, chance = self._client, self._chance
        try:
            await self._fill(transaction)
        except (KafkaError, ClientError):
            transaction.outcome = Outcome.ABORTED  # nobody has asked for more
            return await _done(lambda: client.end(commit=False))
        if chance.random() < 0.1:  # a client that dies here; whoever comes after it aborts
            transaction.outcome = Outcome.ABORTED
            return False
        commit = chance.random() < 0.75
        if not commit:
            transaction.outcome = Outcome.ABORTED
        ended = False
        # Some clients are gone before they hear of the end they asked for.
        patience_s = chance.uniform(0, 0.02) if chance.random() < 0.15 else float("inf")
        with trio.move_on_after(patience_s):
            ended = await _done(lambda: client.end(commit=commit))
        if ended and commit:
            transaction.outcome = Outcome.COMMITTED
        return ended

    async def _fill(self, transaction: Transaction) -> None:
        """Send what belongs to it. Raises KafkaError or ClientError for what can't be had."""
        client, chance = self._client, self._chance
        for number in range(chance.randint(1, 4)):
            value = f"{transaction.client}.{transaction.number}.{number}".encode()
            sent = Sent(chance.randrange(self._partitions), value)
            transaction.sent.append(sent)
            sent.offset = await client.send(sent.partition, value + self._padding())
            if chance.random() < 0.2:
                await self._pause(chance.expovariate(10))
        if chance.random() < 0.5:
            transaction.group_offset = transaction.number
            await client.commit_offset(transaction.number)


async def _done(act: Callable[[], Awaitable[None]]) -> bool:
    try:
        await act()
    except (KafkaError, ClientError):
        return False
    return True
