"""Reading partitions: one Fetch to each leader, without sessions, from positions that we keep.

`Reader` reads what it was given with `assign`; it knows nothing of groups (see `group.py`). A poll of
several leaders first asks them all for what is there already, and only where nobody has anything does it
wait, so that one idle leader does not hold up a busy one. Nor does one that is silent: it is asked nothing
more until it has answered, or its time is up, and later polls take what it says. The partitions that gave
something go to the end of the next request: a broker fills its answer from the front.

Control batches are passed over, and under read_committed so are the records of aborted transactions. What
comes before a batch that is damaged is read; at the batch itself a poll raises DamagedBatch, unless other
partitions gave something, and the position stays there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import trio

from odradek.client.errors import ClientError, check, retriable
from odradek.client.metadata import BACKOFF_MAX_S, BACKOFF_S, Cluster
from odradek.client.positions import EARLIEST as EARLIEST
from odradek.client.positions import EARLIEST_LOCAL as EARLIEST_LOCAL
from odradek.client.positions import LATEST as LATEST
from odradek.client.positions import LATEST_TIERED as LATEST_TIERED
from odradek.client.positions import MAX_TIMESTAMP as MAX_TIMESTAMP
from odradek.client.positions import TopicPartition as TopicPartition
from odradek.protocol.apis import FETCH, LIST_OFFSETS
from odradek.protocol.errors import CorruptBatch, ErrorCode, KafkaError
from odradek.protocol.records.batch import Batch, batches
from odradek.protocol.records.control import ControlType, control_type
from odradek.protocol.records.records import Headers, Record, decode
from odradek.seams.values import state_class, value_class

NAMED_TOPICS = 12
"""The last version of Fetch that names topics; later ones have ids."""
PATIENCE_S = 1.0
"""How much longer than it lets a leader wait a poll itself waits for the answer."""


class Isolation(IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class ConsumedRecord(NamedTuple):
    """A record and where it comes from; `timestamp` in ms, `timestamp_type` 1 for append time."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_type: int


class DamagedBatch(CorruptBatch):
    """What a broker has at `offset` of `where` is no whole batch, or its CRC is wrong: it says so itself, or
    we see it."""

    def __init__(self, where: TopicPartition, offset: int, why: str) -> None:
        super().__init__(f"{where} at offset {offset}: {why}")
        self.where = where
        self.offset = offset


class OutOfRange(KafkaError):
    """The log of `where` has no offset that we are to read from: it begins behind it, or ends before it."""

    def __init__(self, where: TopicPartition, offset: int) -> None:
        code = ErrorCode.offset_out_of_range
        super().__init__(code, f"{where} at offset {offset}: {code.name.replace('_', ' ')}")
        self.where = where


@value_class
class FoundOffset:
    """Answer to `list_offsets`: -1 where there is none (no record is as late as that)."""

    offset: int
    timestamp: int
    leader_epoch: int


@value_class
class ReaderOptions:
    """How much is fetched at once, and of what."""

    isolation: Isolation = Isolation.READ_UNCOMMITTED
    min_bytes: int = 1
    max_bytes: int = 50 << 20
    partition_bytes: int = 1 << 20
    check_crcs: bool = True
    unavailable_s: float = 30.0
    """How long a partition may stay without a leader that answers before `poll` raises."""


@dataclass(slots=True)
class _Position:
    """How far a partition was read."""

    offset: int
    end: int | None = None
    """The offset a reader gets to: high watermark, or last stable offset under read_committed."""
    log_start: int = -1
    failing_since: float | None = None


@state_class
class _Fetch:
    """What a leader was asked, and what came of it."""

    node_id: int
    asked: Mapping[TopicPartition, int]
    """From which offsets."""
    max_wait_s: float
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    is_done: bool = False
    respond: Any = None
    failure: KafkaError | ClientError | None = None


class Reader:
    """Reads the partitions it was assigned. Positions move in `poll` alone."""

    def __init__(self, cluster: Cluster, options: ReaderOptions | None = None) -> None:
        self._cluster = cluster
        self._options = options or ReaderOptions()
        self._positions: dict[TopicPartition, _Position] = {}
        self._fetches: dict[int, _Fetch] = {}
        """By leader, until a poll has taken what came of it."""
        self._done = trio.Event()
        """Set when another one of them is done."""
        self.damaged: list[DamagedBatch] = []
        """What the last poll met of these, also beside records that it returned."""
        self.out_of_range: list[OutOfRange] = []
        """Of these likewise."""

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions, each from its offset, and no others."""
        self._forget_fetches(self._positions)
        self._positions = {where: _Position(offset) for where, offset in positions.items()}
        self.damaged, self.out_of_range = [], []

    def seek(self, where: TopicPartition, offset: int) -> None:
        """Read a partition that was assigned from this offset."""
        self._forget_fetches([where])
        self._positions[where] = _Position(offset)

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The offset that each partition is read from next."""
        return {where: position.offset for where, position in self._positions.items()}

    def remaining(self, where: TopicPartition) -> int | None:
        """Offsets between the position and the end, as of the last answer; None before the first."""
        position = self._positions[where]
        return None if position.end is None else max(0, position.end - position.offset)

    async def at_end(self) -> bool:
        """Whether every partition was read to its end.

        Where the last answers say so, their leaders are asked once more: one that was just elected may
        not know yet how far the one before it got, and then lets us wait (KIP-207). Raises as
        `list_offsets` does.
        """
        if any(self.remaining(where) != 0 for where in self._positions):
            return False
        wanted = dict.fromkeys(self._positions, LATEST)
        ends = await list_offsets(self._cluster, wanted, isolation=self._options.isolation)
        for where, end in ends.items():
            self._positions[where].end = end.offset
        return all(self.remaining(where) == 0 for where in self._positions)

    async def poll(self, max_wait_s: float = 0.5) -> list[ConsumedRecord]:
        """The next records; empty if none come in about `max_wait_s` (and PATIENCE_S). Cancelled, it has read none.

        Raises OutOfRange if a position is not in the log, DamagedBatch, and other errors once a partition
        has failed for `unavailable_s`.
        """
        self.damaged, self.out_of_range = [], []
        if not self._positions:
            await trio.sleep(max_wait_s)
            return []
        by_leader = await self._by_leader()
        if len(by_leader) > 1:
            records = await self._fetch_all(by_leader, 0.0)
            if records or max_wait_s <= 0:
                return records
            by_leader = await self._by_leader()
        if not by_leader:
            await trio.sleep(BACKOFF_S)
            return []
        return await self._fetch_all(by_leader, max_wait_s)

    async def _by_leader(self) -> dict[int, list[TopicPartition]]:
        by_leader: dict[int, list[TopicPartition]] = {}
        for where, position in self._positions.items():
            try:
                leader = await self._cluster.leader(*where)
            except (KafkaError, ClientError) as error:
                self._failed(where, position, error)
                continue
            by_leader.setdefault(leader, []).append(where)
        return by_leader

    async def _fetch_all(
        self, by_leader: Mapping[int, list[TopicPartition]], max_wait_s: float
    ) -> list[ConsumedRecord]:
        """Ask those that are not asked yet, and take what is there by the time that they have answered; where
        all are, by the time that one has."""
        begun = [
            self._begin(node_id, wanted, max_wait_s)
            for node_id, wanted in by_leader.items()
            if node_id not in self._fetches
        ]
        with trio.move_on_after(max_wait_s + PATIENCE_S):
            while not (
                all(fetch.is_done for fetch in begun)
                if begun
                else any(fetch.is_done for fetch in self._fetches.values())
            ):
                await self._done.wait()
        return self._take_all()

    def _forget_fetches(self, partitions: Iterable[TopicPartition]) -> None:
        """Those that asked for one of these: it is read from elsewhere now."""
        for fetch in list(self._fetches.values()):
            if not fetch.asked.keys().isdisjoint(partitions):
                fetch.scope.cancel()
                del self._fetches[fetch.node_id]

    def _begin(self, node_id: int, wanted: list[TopicPartition], max_wait_s: float) -> _Fetch:
        asked = {where: self._positions[where].offset for where in wanted}
        fetch = self._fetches[node_id] = _Fetch(node_id, asked, max_wait_s)
        self._cluster.start_soon(self._exchange, fetch)
        return fetch

    async def _exchange(self, fetch: _Fetch) -> None:
        """Have the answer; the cluster's task."""
        options = self._options
        values = {
            "replica_id": -1,
            "max_wait": int(fetch.max_wait_s * 1000),
            "min_bytes": options.min_bytes,
            "max_bytes": options.max_bytes,
            "isolation_level": int(options.isolation),
            "session_id": 0,
            "session_epoch": -1,
            "topics": self._wanted(fetch),
            "forgotten_topics_data": [],
        }
        with fetch.scope:
            try:
                node = await self._cluster.node(fetch.node_id)
                fetch.respond = await node.request(
                    FETCH,
                    values,
                    timeout_s=fetch.max_wait_s + self._cluster.timeout_s,
                    at_most=NAMED_TOPICS,
                )
                check(getattr(fetch.respond, "error_code", 0), about="fetch")
            except (KafkaError, ClientError) as error:
                fetch.failure = error
                await trio.sleep(BACKOFF_S)
            fetch.is_done = True
            self._done.set()
            self._done = trio.Event()

    def _take_all(self) -> list[ConsumedRecord]:
        """What has come."""
        records: list[ConsumedRecord] = []
        failures: list[Exception] = []
        for fetch in [each for each in self._fetches.values() if each.is_done]:
            del self._fetches[fetch.node_id]
            try:
                records += self._take_fetch(fetch)
            except (KafkaError, ClientError) as error:
                failures.append(error)
        if failures and not records:
            raise failures[0]  # beside records it waits for the next poll, which meets it again
        return records

    def _take_fetch(self, fetch: _Fetch) -> list[ConsumedRecord]:
        """Of the partitions that no other leader has given records of since."""
        asked = {
            where: self._positions[where]
            for where, offset in fetch.asked.items()
            if self._positions[where].offset == offset
        }
        if fetch.failure is not None:
            for where, position in asked.items():
                self._failed(where, position, fetch.failure)
            return []
        records: list[ConsumedRecord] = []
        failure: Exception | None = None
        for topic in fetch.respond.responses:
            for row in topic.partitions:
                where = TopicPartition(topic.topic, row.partition_index)
                if where not in asked:
                    continue
                try:
                    records += self._take(where, asked[where], row)
                except (KafkaError, ClientError) as error:
                    failure = failure or error
                    if isinstance(error, DamagedBatch):
                        self.damaged.append(error)
                    elif isinstance(error, OutOfRange):
                        self.out_of_range.append(error)
        if failure is not None and not records:
            raise failure
        return records

    def _wanted(self, fetch: _Fetch) -> list[dict[str, Any]]:
        topics: dict[str, list[dict[str, Any]]] = {}
        for where, offset in fetch.asked.items():
            row = {
                "partition": where.partition,
                "current_leader_epoch": self._cluster.leader_epoch(*where),
                "fetch_offset": offset,
                "last_fetched_epoch": -1,
                "log_start_offset": -1,
                "partition_max_bytes": self._options.partition_bytes,
            }
            topics.setdefault(where.topic, []).append(row)
        return [{"topic": name, "partitions": rows} for name, rows in topics.items()]

    def _take(self, where: TopicPartition, position: _Position, row: Any) -> list[ConsumedRecord]:
        """What one partition answered: its records; the position moves behind them."""
        if row.error_code:
            code = ErrorCode(row.error_code)
            text = code.name.replace("_", " ")
            if code is ErrorCode.corrupt_message:
                raise DamagedBatch(where, position.offset, text)
            if code is ErrorCode.offset_out_of_range:
                raise OutOfRange(where, position.offset)
            error = KafkaError(code, f"{where} at offset {position.offset}: {text}")
            self._failed(where, position, error)
            return []
        position.failing_since = None
        committed_only = self._options.isolation is Isolation.READ_COMMITTED
        position.end = row.last_stable_offset if committed_only else row.high_watermark
        position.log_start = getattr(row, "log_start_offset", -1)
        if not row.records:
            return []
        self._positions[where] = self._positions.pop(where)  # to the end of the next request
        aborted = _Aborted(row.aborted_transactions if committed_only else None)
        records: list[ConsumedRecord] = []
        begun_at = offset = position.offset
        try:
            for batch in batches(memoryview(row.records), allow_partial=True):
                if self._options.check_crcs:
                    batch.check()
                if not aborted.hides(batch):
                    records += _records_from(where, batch, offset)
                offset = max(offset, batch.last_offset + 1)
        except CorruptBatch as error:
            if offset == begun_at:
                raise DamagedBatch(where, offset, error.message) from error
        position.offset = offset
        return records

    def _failed(self, where: TopicPartition, position: _Position, error: Exception) -> None:
        """Bear with an error for a while, or raise it."""
        now = trio.current_time()
        if position.failing_since is None:
            position.failing_since = now
        self._cluster.forget(where.topic)
        if not retriable(error) or now - position.failing_since > self._options.unavailable_s:
            raise error


class _Aborted:
    """Which batches of an answer belong to aborted transactions (KIP-98).

    A transaction is aborted from its first offset on, which the answer lists, up to its producer's
    next abort marker.
    """

    def __init__(self, listed: Iterable[Any] | None) -> None:
        rows = sorted((row.first_offset, row.producer_id) for row in listed or ())
        self._to_come = rows
        self._open: set[int] = set()

    def hides(self, batch: Batch) -> bool:
        while self._to_come and self._to_come[0][0] <= batch.last_offset:
            self._open.add(self._to_come.pop(0)[1])
        if batch.is_control:
            if batch.producer_id in self._open and _is_abort(batch):
                self._open.discard(batch.producer_id)
            return True
        return batch.is_transactional and batch.producer_id in self._open


def _is_abort(batch: Batch) -> bool:
    marker = decode(batch)
    return bool(marker) and control_type(marker[0].key) is ControlType.ABORT


def _records_from(where: TopicPartition, batch: Batch, offset: int) -> list[ConsumedRecord]:
    """A batch's records from `offset` on; the batch may begin before it."""
    return [
        _consumed(where, record, batch.timestamp_type)
        for record in decode(batch)
        if record.offset >= offset
    ]


def _consumed(where: TopicPartition, record: Record, timestamp_type: int) -> ConsumedRecord:
    offset, timestamp, key, value, headers = record
    return ConsumedRecord(*where, offset, timestamp, key, value, headers, timestamp_type)


async def list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    timeout_s: float | None = None,
) -> dict[TopicPartition, FoundOffset]:
    """The offset of each partition at a timestamp (ms), or at LATEST, EARLIEST, ….

    Repeated until every leader has answered; raises KafkaError or ClientError past the time-out.
    """
    found: dict[TopicPartition, FoundOffset] = {}

    async def attempt() -> dict[TopicPartition, FoundOffset]:
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for where, timestamp in wanted.items():
            if where not in found:
                leader = await cluster.leader(*where)
                by_leader.setdefault(leader, {})[where] = timestamp
        for leader, part in by_leader.items():
            found.update(await _list_at(cluster, leader, part, isolation))
        return found

    missing = ErrorCode.unknown_topic_or_partition
    limit = cluster.timeout_s if timeout_s is None else timeout_s
    for where in wanted:
        try:
            await cluster.leader(*where)
        except KafkaError as error:
            if error.code == missing:
                raise
    return await cluster.retrying(attempt, timeout_s=max(limit, BACKOFF_MAX_S))


async def _list_at(
    cluster: Cluster, leader: int, wanted: Mapping[TopicPartition, int], isolation: Isolation
) -> dict[TopicPartition, FoundOffset]:
    topics: dict[str, list[dict[str, int]]] = {}
    for where, timestamp in wanted.items():
        row = {
            "partition_index": where.partition,
            "current_leader_epoch": -1,
            "timestamp": timestamp,
        }
        topics.setdefault(where.topic, []).append(row)
    node = await cluster.node(leader)
    respond = await node.request(
        LIST_OFFSETS,
        {
            "replica_id": -1,
            "isolation_level": int(isolation),
            "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
            "timeout": int(cluster.timeout_s * 1000),
        },
        timeout_s=cluster.timeout_s,
    )
    found = {}
    for topic in respond.topics:
        for row in topic.partitions:
            where = TopicPartition(topic.name, row.partition_index)
            check(row.error_code, about=str(where))
            epoch = getattr(row, "leader_epoch", -1)
            found[where] = FoundOffset(row.offset, row.timestamp, epoch)
    return found
