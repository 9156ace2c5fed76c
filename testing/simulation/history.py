"""The requests and results of a run's clients, with checks in the manner of Jepsen's Kafka tests.

Every value is written once, by one transaction. At the end of a run the cluster has recovered, all
transactions have ended, and the whole topic is read again (`final`). Everything is compared with
that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

TRANSACTIONAL = "client-"
"""The prefix of the names of transactional clients; other clients write without transactions."""


class TransactionOutcome(Enum):
    """The result of a transaction, as its client knows it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """The client got no response: either the whole transaction is committed, or nothing."""


@dataclass
class SentRecord:
    """A value, its partition, and the offset that the broker acknowledged (-1: none)."""

    partition: int
    value: bytes
    offset: int = -1


@dataclass
class ClientTransaction:
    client: str
    number: int
    sent: list[SentRecord] = field(default_factory=list)
    group_offset: int | None = None
    """The offset that the transaction commits for the client's group; it only increases."""
    outcome: TransactionOutcome = TransactionOutcome.UNKNOWN


@dataclass(frozen=True)
class ReadRecord:
    partition: int
    offset: int
    value: bytes


@dataclass
class ClientHistory:
    """The record of all clients of a run; `find_anomalies` checks it."""

    transactions: list[ClientTransaction] = field(default_factory=list)
    """In the order of each client."""
    polled: dict[str, list[ReadRecord]] = field(default_factory=dict)
    """The records that each read_committed reader saw, in order, from the first offset to the end.
    """
    final: list[ReadRecord] = field(default_factory=list)
    """All committed records at the end."""
    open_partitions: Sequence[int] = ()
    """Partitions with a last stable offset below the log end offset after all transactions ended.
    """
    stuck: set[str] = field(default_factory=set)
    """Clients whose InitProducerId failed, or whose group had a pending offset at the end."""
    group_offsets: dict[str, int] = field(default_factory=dict)
    """The committed offset of each client's group at the end; absent if there is none."""
    log_starts: Mapping[int, int] = field(default_factory=dict)
    """The log start offsets at the end, 0 if absent: records below were deleted with the remote tier."""

    def is_deleted(self, partition: int, offset: int) -> bool:
        """Whether the record was deleted, or may have been, if its offset is unknown (-1)."""
        return max(offset, 0) < self.log_starts.get(partition, 0)

    def was_sent_below(self, sent: SentRecord) -> bool:
        return self.is_deleted(sent.partition, sent.offset)


@dataclass(frozen=True)
class Anomaly:
    """A violated guarantee, or another error of a run."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def count_done(history: ClientHistory) -> Counter[str]:
    """Count transactions and writes by outcome, and the records that were acknowledged and read."""
    done: Counter[str] = Counter()
    for each in history.transactions:
        done["acknowledged records"] += sum(sent.offset >= 0 for sent in each.sent)
        of = "transactions" if each.client.startswith(TRANSACTIONAL) else "writes"
        done[f"{each.outcome.value} {of}"] += 1
    done["reads along"] = sum(map(len, history.polled.values()))
    done["reads in the end"] = len(history.final)
    return done


def find_anomalies(history: ClientHistory) -> list[Anomaly]:
    """All violations of exactly-once semantics in `history`; empty for a correct run."""
    return [anomaly for check in _CHECKS for anomaly in check(history)]


def _lost_and_torn(history: ClientHistory) -> Iterator[Anomaly]:
    there = {seen.value for seen in history.final}
    for each in history.transactions:
        found = [sent for sent in each.sent if sent.value in there]
        missing = [
            sent
            for sent in each.sent
            if sent.value not in there and not history.was_sent_below(sent)
        ]
        if each.outcome is TransactionOutcome.COMMITTED:
            for sent in missing:
                yield Anomaly("lost write", f"{_name(each)} committed {sent}")
        elif each.outcome is TransactionOutcome.ABORTED:
            for sent in found:
                yield Anomaly("aborted read", f"{_name(each)} aborted {sent}")
        elif found and missing:
            yield Anomaly("partial transaction", f"{_name(each)}: {found} without {missing}")


def _aborted_polls(history: ClientHistory) -> Iterator[Anomaly]:
    there = {seen.value for seen in history.final}
    for reader, polled in history.polled.items():
        for seen in polled:
            if seen.value not in there and not history.is_deleted(seen.partition, seen.offset):
                yield Anomaly(
                    "aborted read", f"{reader} read {seen}, which is not in the final read"
                )


def _duplicates(history: ClientHistory) -> Iterator[Anomaly]:
    for value, count in Counter(seen.value for seen in history.final).items():
        if count > 1:
            yield Anomaly("duplicate", f"{value!r} was read {count} times")


def _inconsistent_offsets(history: ClientHistory) -> Iterator[Anomaly]:
    values = {(seen.partition, seen.offset): seen.value for seen in history.final}
    for reader, polled in history.polled.items():
        for seen in polled:
            wanted = values.get((seen.partition, seen.offset), seen.value)
            if seen.value != wanted:
                yield Anomaly(
                    "inconsistent offset", f"{reader} read {seen}, the final read has {wanted!r}"
                )
    places = {seen.value: (seen.partition, seen.offset) for seen in history.final}
    for each in history.transactions:
        for sent in each.sent:
            place = places.get(sent.value)
            if place and sent.offset >= 0 and place != (sent.partition, sent.offset):
                yield Anomaly(
                    "inconsistent offset",
                    f"{_name(each)} was acknowledged as {sent}, but is at {place}",
                )


def _non_monotonic_sends(history: ClientHistory) -> Iterator[Anomaly]:
    last: dict[tuple[str, int], int] = {}
    for each in history.transactions:
        for sent in each.sent:
            if sent.offset < 0:
                continue
            before = last.get((each.client, sent.partition), -1)
            if sent.offset <= before:
                yield Anomaly("non-monotonic send", f"{_name(each)}: {sent} after offset {before}")
            last[each.client, sent.partition] = sent.offset


def _polls(history: ClientHistory) -> Iterator[Anomaly]:
    """Each reader sees the records of `final`, once, in order, and without gaps except deleted records."""
    partitions = {seen.partition for seen in history.final}
    for reader, polled in history.polled.items():
        for partition in partitions:
            offsets = [seen.offset for seen in polled if seen.partition == partition]
            if offsets != sorted(set(offsets)):
                yield Anomaly("non-monotonic poll", f"{reader} in partition {partition}: {offsets}")
            unseen = [
                seen
                for seen in history.final
                if seen.partition == partition
                and seen.offset not in set(offsets)
                and not history.is_deleted(partition, seen.offset)
            ]
            for seen in unseen:
                skipped = offsets and seen.offset < max(offsets)
                yield Anomaly("skipped by a poll" if skipped else "unread", f"{reader}: {seen}")


def _open_transactions(history: ClientHistory) -> Iterator[Anomaly]:
    for partition in history.open_partitions:
        yield Anomaly("hanging transaction", f"the last stable offset of {partition} is stuck")
    for client in sorted(history.stuck):
        yield Anomaly("hanging transaction", f"{client} cannot continue")


def _group_offsets(history: ClientHistory) -> Iterator[Anomaly]:
    """The group has the offset of its last committed transaction, or of a later unknown one."""
    there = {seen.value for seen in history.final}
    for client in {each.client for each in history.transactions}:
        known, possible = -1, {-1}
        for each in _of(client, history.transactions):
            if each.group_offset is None:
                continue
            happened = any(sent.value in there for sent in each.sent)
            may_be_deleted = any(history.was_sent_below(sent) for sent in each.sent)
            if each.outcome is TransactionOutcome.COMMITTED or (each.sent and happened):
                known, possible = each.group_offset, {each.group_offset}
            elif each.outcome is TransactionOutcome.UNKNOWN and (not each.sent or may_be_deleted):
                possible.add(each.group_offset)
        found = history.group_offsets.get(client, -1)
        if client not in history.stuck and found not in possible:
            yield Anomaly(
                "wrong committed offset", f"group {client} has {found}, but committed {known}"
            )


def _of(client: str, transactions: Iterable[ClientTransaction]) -> Iterator[ClientTransaction]:
    return (each for each in transactions if each.client == client)


def _name(transaction: ClientTransaction) -> str:
    return f"transaction {transaction.number} of {transaction.client}"


_CHECKS = (
    _lost_and_torn,
    _aborted_polls,
    _duplicates,
    _inconsistent_offsets,
    _non_monotonic_sends,
    _polls,
    _open_transactions,
    _group_offsets,
)
