"""Ledger of the records that a producer sent and that were acknowledged, and its comparison with the log.

A value is `PRODUCER:NUMBER`, with increasing numbers. A `Ledger` is filled while records are sent, and
compared with the content of the partitions at the end. Anomalies are returned as texts.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Row = tuple[int, bytes]
"""A record's offset and value."""


class Outcome(enum.Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """The producer received no result: the log has all values of the transaction, or none."""


@dataclass
class Transaction:
    """Values of one transaction, or the value of one record without a transaction."""

    values: list[bytes] = field(default_factory=list)
    outcome: Outcome = Outcome.UNKNOWN


@dataclass
class Ledger:
    """Transactions and acknowledged offsets of one producer."""

    producer: str
    transactions: list[Transaction] = field(default_factory=list)
    places: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """value → (partition, offset) of its acknowledgement."""
    _sent: int = 0

    def begin(self) -> Transaction:
        transaction = Transaction()
        self.transactions.append(transaction)
        return transaction

    def next_value(self) -> bytes:
        """Next value to send; its number is higher than all earlier ones."""
        self._sent += 1
        return f"{self.producer}:{self._sent}".encode()

    @property
    def acknowledged(self) -> int:
        """Number of committed transactions."""
        return sum(each.outcome is Outcome.COMMITTED for each in self.transactions)

    def anomalies(
        self,
        partitions: Mapping[int, Sequence[Row]],
        *,
        lost_by_choice: frozenset[bytes] = frozenset(),
    ) -> list[str]:
        """Anomalies of these logs, as a read_committed consumer reads them from offset 0.

        `lost_by_choice` are values that an unclean election may lose.
        """
        where: dict[bytes, list[tuple[int, int]]] = {}
        for partition, rows in partitions.items():
            for offset, value in rows:
                where.setdefault(value, []).append((partition, offset))
        found = [
            f"{value.decode()} is there {len(places)} times: {places}"
            for value, places in where.items()
            if len(places) > 1
        ]
        found += self._of_transactions(where, lost_by_choice)
        found += self._of_places(where)
        known = {value for each in self.transactions for value in each.values}
        found += [f"{value.decode()} was never sent" for value in where if value not in known]
        for partition, rows in partitions.items():
            found += _out_of_order(partition, rows)
        return found

    def _of_transactions(
        self, where: Mapping[bytes, object], lost_by_choice: frozenset[bytes]
    ) -> list[str]:
        found = []
        for each in self.transactions:
            there = [value for value in each.values if value in where]
            absent = [value for value in each.values if value not in where]
            if each.outcome is Outcome.ABORTED:
                found += [f"{value.decode()} was aborted, and is read" for value in there]
            elif each.outcome is Outcome.COMMITTED:
                lost = [value for value in absent if value not in lost_by_choice]
                found += [f"{value.decode()} was acknowledged, and is lost" for value in lost]
            elif there and absent:
                found.append(f"of {each.values} only {there} is there")
        return found

    def _of_places(self, where: Mapping[bytes, Sequence[tuple[int, int]]]) -> list[str]:
        return [
            f"{value.decode()} was acknowledged at {place}, and is at {where[value][0]}"
            for value, place in self.places.items()
            if value in where and place not in where[value]
        ]


def _out_of_order(partition: int, rows: Sequence[Row]) -> list[str]:
    found, last = [], 0
    for offset, value in rows:
        number = int(value.rpartition(b":")[2])
        if number < last:
            found.append(f"{value.decode()} at {offset} of {partition} comes after {last}")
        last = number
    return found
