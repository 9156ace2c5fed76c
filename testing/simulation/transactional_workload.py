"""The workload of a transactional client: a sequence of transactions, all recorded.

The client commits, aborts, commits offsets of its group, aborts after errors, is killed during
transactions, and does not always wait for the result of a transaction.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio

from odradek.client.errors import ClientError
from odradek.protocol.errors import KafkaError
from odradek.testing.simulation.history import (
    ClientHistory,
    ClientTransaction,
    SentRecord,
    TransactionOutcome,
)
from odradek.testing.simulation.transactional_client import TransactionalClient


class TransactionalWorkload:
    """`padding` is appended to each value and is not part of it; `pause` waits between operations.

    `refused` is called with every fatal error of a request, and with the age of the transaction in
    seconds.
    """

    def __init__(
        self,
        client: TransactionalClient,
        history: ClientHistory,
        chance: random.Random,
        *,
        partitions: int,
        padding: Callable[[], bytes] = bytes,
        pause: Callable[[float], Awaitable[None]] = trio.sleep,
        refused: Callable[[Exception, float], None] = lambda error, open_s: None,
    ) -> None:
        self._client = client
        self._history = history
        self._chance = chance
        self._partitions = partitions
        self._padding = padding
        self._pause = pause
        self._on_refused = refused
        self._begun_at = 0.0
        self._is_ready = False
        """Whether the next transaction needs no `init`."""

    async def run(
        self,
        transactions: int,
        seconds: float,
        ended: Callable[[ClientTransaction], None] = lambda transaction: None,
    ) -> None:
        """Run `transactions` transactions in about `seconds`; `ended` is called with each of them."""
        for number in range(transactions):
            transaction = await self._begin(number)
            if transaction is None:
                return
            self._is_ready = await self._transact(transaction)
            ended(transaction)
            await self._pause(self._chance.expovariate(transactions / seconds))
        if not self._is_ready:
            self._is_ready = await self._done(self._client.init)

    async def commit_one(self, number: int) -> bool:
        """Commit one more transaction, with a record in each partition and an offset.

        Returns whether it was committed.
        """
        transaction = await self._begin(number)
        if transaction is None:
            return False
        try:
            for partition in range(self._partitions):
                await self._send(transaction, partition, partition)
            await self._commit_offset(transaction)
            await self._client.end(commit=True)
        except (KafkaError, ClientError) as error:
            self._refused(error)
            return False
        transaction.outcome = TransactionOutcome.COMMITTED
        return True

    async def _begin(self, number: int) -> ClientTransaction | None:
        """Begin a transaction; None if InitProducerId failed."""
        if not self._is_ready and not await self._done(self._client.init):
            self._history.stuck.add(self._client.name)
            return None
        self._begun_at = trio.current_time()
        transaction = ClientTransaction(self._client.name, number)
        self._history.transactions.append(transaction)
        return transaction

    async def _transact(self, transaction: ClientTransaction) -> bool:
        """Run the transaction; return whether the client can continue without `init`."""
        client, chance = self._client, self._chance
        try:
            await self._fill(transaction)
        except (KafkaError, ClientError) as error:
            self._refused(error)
            # The client has not requested a commit
            transaction.outcome = TransactionOutcome.ABORTED
            return await self._done(lambda: client.end(commit=False))
        if chance.random() < 0.1:  # the client ends here; its successor aborts
            transaction.outcome = TransactionOutcome.ABORTED
            return False
        commit = chance.random() < 0.75
        if not commit:
            transaction.outcome = TransactionOutcome.ABORTED
        ended = False
        # Some clients end before they get the response to EndTxn.
        timeout_s = chance.uniform(0, 0.02) if chance.random() < 0.15 else float("inf")
        with trio.move_on_after(timeout_s):
            ended = await self._done(lambda: client.end(commit=commit))
        if ended and commit:
            transaction.outcome = TransactionOutcome.COMMITTED
        return ended

    async def _fill(self, transaction: ClientTransaction) -> None:
        """Send the records of the transaction. Raises KafkaError or ClientError on failure."""
        chance = self._chance
        for number in range(chance.randint(1, 4)):
            await self._send(transaction, number, chance.randrange(self._partitions))
            if chance.random() < 0.2:
                await self._pause(chance.expovariate(10))
        if chance.random() < 0.5:
            await self._commit_offset(transaction)

    async def _send(self, transaction: ClientTransaction, number: int, partition: int) -> None:
        value = f"{transaction.client}.{transaction.number}.{number}".encode()
        sent = SentRecord(partition, value)
        transaction.sent.append(sent)
        sent.offset = await self._client.send(partition, value + self._padding())

    async def _commit_offset(self, transaction: ClientTransaction) -> None:
        transaction.group_offset = transaction.number
        await self._client.commit_offset(transaction.number)

    def _refused(self, error: Exception) -> None:
        self._on_refused(error, trio.current_time() - self._begun_at)

    async def _done(self, act: Callable[[], Awaitable[None]]) -> bool:
        try:
            await act()
        except (KafkaError, ClientError) as error:
            self._refused(error)
            return False
        return True
