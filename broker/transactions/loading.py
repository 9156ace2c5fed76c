"""Replays `__transaction_state` records into a shard."""

from __future__ import annotations

from odradek.broker.coordination import coordinator_loader
from odradek.broker.transactions import record_serde as records
from odradek.broker.transactions.coordinator_shard import TransactionCoordinatorShard
from odradek.protocol.schemas.serde import UnknownRecord


class TransactionLoader(coordinator_loader.CoordinatorLoader):
    """Loader of a transaction coordinator shard. The partition has no transactional records."""

    def __init__(self, shard: TransactionCoordinatorShard) -> None:
        super().__init__()
        self._shard = shard

    def replay(self, key: bytes, value: bytes | None, offset: int, producer_id: int) -> None:
        try:
            transactional_id = records.decode_key(key)
            metadata = None if value is None else records.decode_value(value)
        except UnknownRecord as error:
            self.skip(str(error))
            return
        self._shard.replay(transactional_id, metadata)

    def complete_transaction(self, producer_id: int, *, committed: bool) -> None:
        self.skip("a transaction's marker")
