"""Transactional ids as they come back from `__transaction_state`."""

from __future__ import annotations

from odradek.broker.coordination import loading
from odradek.broker.transactions import records
from odradek.broker.transactions.shard import Shard
from odradek.protocol.schemas.serde import UnknownRecord


class Loader(loading.Loader):
    """Replays the records of a partition into its shard. There are no transactions in it."""

    def __init__(self, shard: Shard) -> None:
        super().__init__()
        self._shard = shard

    def replay(self, key: bytes, value: bytes | None, offset: int, producer_id: int) -> None:
        try:
            transactional_id = records.decode_key(key)
            stored = None if value is None else records.decode_value(value)
        except UnknownRecord as error:
            self.skip(str(error))
            return
        self._shard.replay(transactional_id, stored)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        self.skip("a transaction's marker")
