"""Which batches belong to aborted transactions, and which markers may go (KIP-98).

Fed every batch in order, across all segments of a pass. The aborted transactions are known
beforehand, from the transaction index: nothing is compacted past the last stable offset, so all are
decided. A marker may go once none of its transaction's batches is left; an aborted one that stays is
written to the new segment's transaction index.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from odradek.storage.log.transaction_index import AbortedTransaction


@dataclass(slots=True)
class _Ongoing:
    transaction: AbortedTransaction
    has_batches: bool = False


class TransactionsSeen:
    """See the module; one for each reading of the log."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._coming = deque(sorted(aborted, key=lambda each: each.first_offset))
        self._aborted: dict[int, _Ongoing] = {}
        self._committed: set[int] = set()
        self.retained: list[AbortedTransaction] = []
        """Those whose marker has just been passed and stays."""

    def batch(self, producer_id: int, last_offset: int) -> bool:
        """A batch of a transaction: whether it was aborted, so that its records go."""
        self._begin(last_offset)
        ongoing = self._aborted.get(producer_id)
        if ongoing is None:
            self._committed.add(producer_id)
            return False
        ongoing.has_batches = True
        return True

    def marker(self, producer_id: int, last_offset: int, commits: bool | None) -> bool:
        """A control batch: whether nothing of its transaction is left. `commits` is None where
        its record has gone already."""
        self._begin(last_offset)
        if commits is None:
            return True
        if commits:
            has_batches = producer_id in self._committed
            self._committed.discard(producer_id)
            return not has_batches
        ongoing = self._aborted.pop(producer_id, None)
        if ongoing is None or not ongoing.has_batches:
            return True
        self.retained.append(ongoing.transaction)
        return False

    def _begin(self, offset: int) -> None:
        while self._coming and self._coming[0].first_offset <= offset:
            transaction = self._coming.popleft()
            self._aborted.setdefault(transaction.producer_id, _Ongoing(transaction))
