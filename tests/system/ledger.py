"""What was sent, what was acknowledged, and what of it a log may lack or have twice: nothing.

A value says what it is: `PRODUCER:NUMBER`, numbers rising. A `Ledger` is filled while records are
sent, and compared with what the partitions hold at the end. What is found wrong comes as texts.
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
    """Whoever sent it was not told: it is there as a whole, or not at all."""


@dataclass
class Transaction:
    """The values sent in one transaction (or the one that was sent without)."""

    values: list[bytes] = field(default_factory=list)
    outcome: Outcome = Outcome.UNKNOWN


@dataclass
class Ledger:
    """One producer's."""

    producer: str
    transactions: list[Transaction] = field(default_factory=list)
    places: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """value → (partition, offset), as its acknowledgement says."""
    _sent: int = 0

    def begin(self) -> Transaction:
        transaction = Transaction()
        self.transactions.append(transaction)
        return transaction

    def next_value(self) -> bytes:
        """The value to send next; its number is higher than any before."""
        self._sent += 1
        return f"{self.producer}:{self._sent}".encode()

    @property
    def acknowledged(self) -> int:
        """How many transactions are committed."""
        return sum(each.outcome is Outcome.COMMITTED for each in self.transactions)

    def anomalies(
        self,
        partitions: Mapping[int, Sequence[Row]],
        *,
        lost_by_choice: frozenset[bytes] = frozenset(),
    ) -> list[str]:
        """What is wrong with these logs (as a reader of committed records sees them, from 0).

        `lost_by_choice` are values that an unclean election was allowed to lose.
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
