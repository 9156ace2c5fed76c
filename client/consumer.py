"""Consumer of assigned partitions: one Fetch request per leader, without fetch sessions.

`Reader` consumes the partitions that are passed to `assign`; `group.py` adds consumer groups. With several leaders, a
poll first fetches without waiting, and waits only if no leader has records, so that an idle leader does not delay a
busy one. Each leader has at most one pending fetch: a leader that does not respond delays no other, and a later poll
returns its records. Partitions that returned records move to the end of the next request, because a broker fills
its response from the front.

Control batches are skipped, and with read_committed also the records of aborted transactions. Records before a corrupt
batch are returned; at the batch, a poll raises CorruptBatchAt unless other partitions returned records, and the position
does not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import trio

from odradek.client.errors import ClientError, check, retriable
from odradek.client.metadata import BACKOFF_MAX_S, BACKOFF_S, Cluster
from odradek.client.special_timestamps import EARLIEST as EARLIEST
from odradek.client.special_timestamps import EARLIEST_LOCAL as EARLIEST_LOCAL
from odradek.client.special_timestamps import LATEST as LATEST
from odradek.client.special_timestamps import LATEST_TIERED as LATEST_TIERED
from odradek.client.special_timestamps import MAX_TIMESTAMP as MAX_TIMESTAMP
from odradek.protocol.apis import FETCH, LIST_OFFSETS
from odradek.protocol.errors import CorruptBatch, ErrorCode, KafkaError
from odradek.protocol.records.batch import Batch, batches
from odradek.protocol.records.control import ControlType, control_type
from odradek.protocol.records.records import Headers, Record, decode
from odradek.protocol.topics import TopicPartition
from odradek.seams.values import state_class, value_class

NAMED_TOPICS = 12
"""Last version of Fetch with topic names; later versions have topic ids."""
RESPONSE_WAIT_S = 1.0
"""Additional time that a poll waits for responses, after the maximum wait of the leader."""


class IsolationLevel(IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class ConsumedRecord(NamedTuple):
    """Record with its topic and partition; `timestamp` is in ms, `timestamp_type` 1 is the log append time."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_type: int


class CorruptBatchAt(CorruptBatch):
    """The batch at `offset` of the partition is invalid or has a wrong CRC, as found by the broker or the client."""

    def __init__(self, where: TopicPartition, offset: int, why: str) -> None:
        super().__init__(f"{where} at offset {offset}: {why}")
        self.where = where
        self.offset = offset


class OutOfRange(KafkaError):
    """The position is before the log start offset or after the log end offset of the partition."""

    def __init__(self, where: TopicPartition, offset: int) -> None:
        code = ErrorCode.offset_out_of_range
        super().__init__(code, f"{where} at offset {offset}: {code.name.replace('_', ' ')}")
        self.where = where


@value_class
class FoundOffset:
    """Result of `list_offsets`; -1 if no record is at or after the timestamp."""

    offset: int
    timestamp: int
    leader_epoch: int


@value_class
class ReaderOptions:
    """Fetch sizes, isolation level and timeout of a reader."""

    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    min_bytes: int = 1
    max_bytes: int = 50 << 20
    partition_bytes: int = 1 << 20
    check_crcs: bool = True
    unavailable_s: float = 30.0
    """Seconds for which the errors of a partition are retried before `poll` raises them."""


@dataclass(slots=True)
class _Position:
    """Position in a partition."""

    offset: int
    end: int | None = None
    """High watermark, or last stable offset for read_committed."""
    log_start: int = -1
    failing_since: float | None = None


@state_class
class _Fetch:
    """Fetch request to a leader, and its result."""

    node_id: int
    requested: Mapping[TopicPartition, int]
    """Fetch offsets."""
    max_wait_s: float
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    is_done: bool = False
    response: Any = None
    failure: KafkaError | ClientError | None = None


class Reader:
    """Consumes its assigned partitions. Only `poll` advances positions."""

    def __init__(self, cluster: Cluster, options: ReaderOptions | None = None) -> None:
        self._cluster = cluster
        self._options = options or ReaderOptions()
        self._positions: dict[TopicPartition, _Position] = {}
        self._fetches: dict[int, _Fetch] = {}
        """Fetches by leader, until a poll has taken their results."""
        self._done = trio.Event()
        """Set when the next fetch completes."""
        self.corrupt_batches: list[CorruptBatchAt] = []
        """Errors of the last poll, which may also have returned records."""
        self.out_of_range: list[OutOfRange] = []
        """Errors of the last poll, which may also have returned records."""

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Replace the assigned partitions by these, each with its position."""
        self._forget_fetches(self._positions)
        self._positions = {where: _Position(offset) for where, offset in positions.items()}
        self.corrupt_batches, self.out_of_range = [], []

    def seek(self, where: TopicPartition, offset: int) -> None:
        """Change the position of an assigned partition."""
        self._forget_fetches([where])
        self._positions[where] = _Position(offset)

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """Next fetch offset of each partition."""
        return {where: position.offset for where, position in self._positions.items()}

    def remaining(self, where: TopicPartition) -> int | None:
        """Offsets between the position and the end in the last response; None before the first."""
        position = self._positions[where]
        return None if position.end is None else max(0, position.end - position.offset)

    async def at_end(self) -> bool:
        """Whether the positions of all partitions are at the end.

        The ends in the last responses are verified with ListOffsets, because the high watermark of a new
        leader may lag behind; ListOffsets waits for it (KIP-207). Raises the errors of `list_offsets`.
        """
        if any(self.remaining(where) != 0 for where in self._positions):
            return False
        wanted = dict.fromkeys(self._positions, LATEST)
        ends = await list_offsets(self._cluster, wanted, isolation=self._options.isolation)
        for where, end in ends.items():
            self._positions[where].end = end.offset
        return all(self.remaining(where) == 0 for where in self._positions)

    async def poll(self, max_wait_s: float = 0.5) -> list[ConsumedRecord]:
        """Return the next records; empty if none arrive in about `max_wait_s`. A cancelled poll loses no records.

        Raises OutOfRange if a position is not in the log, CorruptBatchAt, and other errors after a partition
        has failed for `unavailable_s`.
        """
        self.corrupt_batches, self.out_of_range = [], []
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
                self._handle_error(where, position, error)
                continue
            by_leader.setdefault(leader, []).append(where)
        return by_leader

    async def _fetch_all(
        self, by_leader: Mapping[int, list[TopicPartition]], max_wait_s: float
    ) -> list[ConsumedRecord]:
        """Send fetches to leaders without a pending one, wait for these, and take all results.

        If all leaders have a pending fetch, wait for the first result.
        """
        begun = [
            self._begin(node_id, wanted, max_wait_s)
            for node_id, wanted in by_leader.items()
            if node_id not in self._fetches
        ]
        with trio.move_on_after(max_wait_s + RESPONSE_WAIT_S):
            while not (
                all(fetch.is_done for fetch in begun)
                if begun
                else any(fetch.is_done for fetch in self._fetches.values())
            ):
                await self._done.wait()
        return self._take_all()

    def _forget_fetches(self, partitions: Iterable[TopicPartition]) -> None:
        """Cancel the fetches of these partitions, because their positions changed."""
        for fetch in list(self._fetches.values()):
            if not fetch.requested.keys().isdisjoint(partitions):
                fetch.scope.cancel()
                del self._fetches[fetch.node_id]

    def _begin(self, node_id: int, wanted: list[TopicPartition], max_wait_s: float) -> _Fetch:
        requested = {where: self._positions[where].offset for where in wanted}
        fetch = self._fetches[node_id] = _Fetch(node_id, requested, max_wait_s)
        self._cluster.start_soon(self._exchange, fetch)
        return fetch

    async def _exchange(self, fetch: _Fetch) -> None:
        """Send a fetch and store its result, in a task of the cluster."""
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
                fetch.response = await node.request(
                    FETCH,
                    values,
                    timeout_s=fetch.max_wait_s + self._cluster.timeout_s,
                    at_most=NAMED_TOPICS,
                )
                check(getattr(fetch.response, "error_code", 0), about="fetch")
            except (KafkaError, ClientError) as error:
                fetch.failure = error
                await trio.sleep(BACKOFF_S)
            fetch.is_done = True
            self._done.set()
            self._done = trio.Event()

    def _take_all(self) -> list[ConsumedRecord]:
        """Return the records of the completed fetches."""
        records: list[ConsumedRecord] = []
        failures: list[Exception] = []
        for fetch in [each for each in self._fetches.values() if each.is_done]:
            del self._fetches[fetch.node_id]
            try:
                records += self._take_fetch(fetch)
            except (KafkaError, ClientError) as error:
                failures.append(error)
        if failures and not records:
            raise failures[0]  # with records, the next poll gets the error again
        return records

    def _take_fetch(self, fetch: _Fetch) -> list[ConsumedRecord]:
        """Return the records of partitions whose position did not change since the request."""
        requested = {
            where: self._positions[where]
            for where, offset in fetch.requested.items()
            if self._positions[where].offset == offset
        }
        if fetch.failure is not None:
            for where, position in requested.items():
                self._handle_error(where, position, fetch.failure)
            return []
        records: list[ConsumedRecord] = []
        failure: Exception | None = None
        for topic in fetch.response.responses:
            for row in topic.partitions:
                where = TopicPartition(topic.topic, row.partition_index)
                if where not in requested:
                    continue
                try:
                    records += self._take(where, requested[where], row)
                except (KafkaError, ClientError) as error:
                    failure = failure or error
                    if isinstance(error, CorruptBatchAt):
                        self.corrupt_batches.append(error)
                    elif isinstance(error, OutOfRange):
                        self.out_of_range.append(error)
        if failure is not None and not records:
            raise failure
        return records

    def _wanted(self, fetch: _Fetch) -> list[dict[str, Any]]:
        topics: dict[str, list[dict[str, Any]]] = {}
        for where, offset in fetch.requested.items():
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
        """Return the records of a partition, and advance its position."""
        if row.error_code:
            code = ErrorCode(row.error_code)
            text = code.name.replace("_", " ")
            if code is ErrorCode.corrupt_message:
                raise CorruptBatchAt(where, position.offset, text)
            if code is ErrorCode.offset_out_of_range:
                raise OutOfRange(where, position.offset)
            error = KafkaError(code, f"{where} at offset {position.offset}: {text}")
            self._handle_error(where, position, error)
            return []
        position.failing_since = None
        committed_only = self._options.isolation is IsolationLevel.READ_COMMITTED
        position.end = row.last_stable_offset if committed_only else row.high_watermark
        position.log_start = getattr(row, "log_start_offset", -1)
        if not row.records:
            return []
        self._positions[where] = self._positions.pop(where)  # at the end of the next request
        aborted = _AbortedTransactionFilter(row.aborted_transactions if committed_only else None)
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
                raise CorruptBatchAt(where, offset, error.message) from error
        position.offset = offset
        return records

    def _handle_error(self, where: TopicPartition, position: _Position, error: Exception) -> None:
        """Raise an error that is not retriable or has lasted for `unavailable_s`."""
        now = trio.current_time()
        if position.failing_since is None:
            position.failing_since = now
        self._cluster.forget(where.topic)
        if not retriable(error) or now - position.failing_since > self._options.unavailable_s:
            raise error


class _AbortedTransactionFilter:
    """Filter of batches in aborted transactions (KIP-98).

    An aborted transaction starts at the first offset in the response, and ends at the next abort
    marker of its producer.
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
    """Decode the records of a batch from `offset`; the batch may start before it."""
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
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    timeout_s: float | None = None,
) -> dict[TopicPartition, FoundOffset]:
    """Look up the offset of each partition at a timestamp (ms), or at LATEST, EARLIEST, ….

    Retries until every leader has responded; raises KafkaError or ClientError after the timeout.
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
    cluster: Cluster, leader: int, wanted: Mapping[TopicPartition, int], isolation: IsolationLevel
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
    response = await node.request(
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
    for topic in response.topics:
        for row in topic.partitions:
            where = TopicPartition(topic.name, row.partition_index)
            check(row.error_code, about=str(where))
            epoch = getattr(row, "leader_epoch", -1)
            found[where] = FoundOffset(row.offset, row.timestamp, epoch)
    return found
