"""Target of a replay, with a synchronous API: the target topic and the job's progress.

The state of a job is stored as offsets of consumer groups in the target's cluster; they are committed in the same
transactions as the records (KIP-98). Each source partition has a group. Its offset is the next one to replay, and
its metadata is the range, which is fixed on the job's first run, also in a transaction, so that only one of several
concurrent runs fixes it. Offsets are committed for partition 0 of the target topic: a topic of the source's name
need not exist in that cluster, and adding partitions does not change where a job finds its state.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import TypeVar

import trio

from odradek.client.errors import ClientError
from odradek.client.group_admin import CommittedOffset, committed_by_group
from odradek.client.transactions import FENCED, EncodedRecords, TransactionalProducer
from odradek.pipeline.brokers import broker_error, connected
from odradek.pipeline.errors import BadOption, PipelineError
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.seams.clock import RealClock
from odradek.seams.values import value_class

CLIENT_ID = "odradek-replay"
PREFIX = "odradek-replay."
TRANSACTION_MS = 300_000
"""Transaction timeout in ms: longer than a throttling store delays a task, and shorter than the brokers' limit
(transaction.max.timeout.ms, 15 minutes).
"""

T = TypeVar("T")


@value_class
class PartitionProgress:
    """Progress of one source partition: of low <= offset < high, the offsets below `next` are replayed."""

    topic: str
    topic_id: str
    partition: int
    low: int
    high: int
    next: int
    into: int
    """Number of the target's partitions when the job began, by which keys are partitioned."""
    what: str
    """Digest of the range and settings, because a job name stands for one of these."""
    count: int
    """Number of source partitions of the job."""

    def render(self) -> CommittedOffset:
        fields = {
            "topic": self.topic,
            "id": self.topic_id,
            "partition": self.partition,
            "from": self.low,
            "to": self.high,
            "into": self.into,
            "what": self.what,
            "count": self.count,
        }
        return CommittedOffset(self.next, metadata=json.dumps(fields, separators=(",", ":")))

    @classmethod
    def parse(cls, committed: CommittedOffset) -> PartitionProgress:
        """Parse a committed offset. Raises ValueError if it is not of a replay job."""
        try:
            fields = json.loads(committed.metadata)
            return cls(
                str(fields["topic"]),
                str(fields["id"]),
                int(fields["partition"]),
                int(fields["from"]),
                int(fields["to"]),
                committed.offset,
                int(fields["into"]),
                str(fields["what"]),
                int(fields["count"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(str(error)) from None


@value_class
class ReplayState:
    """Name of a job, and the groups and ids that hold its state."""

    job: str
    topic: str
    partitions: int
    """Number of partitions of the target topic."""

    def place(self, source: int) -> tuple[str, TopicPartition]:
        """Return the group and the topic partition that hold the offset of a source partition; they do not depend
        on the number of the target's partitions.
        """
        return f"{PREFIX}{self.job}.{source}", TopicPartition(self.topic, 0)

    def transactional_id(self, source: int | None) -> str:
        """Return the transactional id for a source partition; None: for the start of the job."""
        return f"{PREFIX}{self.job}.{'begin' if source is None else source}"


class ReplayTarget:
    """Synchronous, thread-safe client of the target's cluster. Failed requests raise PipelineError with what was
    requested.
    """

    def __init__(self, bootstrap: str, timeout_ms: int) -> None:
        self._bootstrap = bootstrap
        self._loop = connected(bootstrap, timeout_ms, CLIENT_ID)
        self._cluster = self._loop.value

    def partitions(self, topic: str) -> int:
        """Return the topic's number of partitions. Raises BadOption if it does not exist."""

        async def query() -> int:
            return len((await self._cluster.topic(topic)).partitions)

        try:
            return self._request(f"the partitions of {topic}", query)
        except PipelineError as error:
            cause = error.__cause__
            missing = ErrorCode.unknown_topic_or_partition
            if isinstance(cause, KafkaError) and cause.code == missing:
                raise BadOption(
                    f"{self._bootstrap} has no topic {topic}: create it first"
                ) from None
            raise

    def progress(
        self, state: ReplayState, sources: Iterable[int], *, stable: bool = True
    ) -> dict[int, PartitionProgress]:
        """Return the progress of source partitions on which the job has begun. Without `stable`, pending
        transactions are not waited for, and the progress may be about to advance.
        """
        places = {source: state.place(source) for source in sources}
        wanted = {group: [tp] for group, tp in places.values()}
        request = partial(committed_by_group, self._cluster, wanted, stable=stable)
        committed = self._request(f"the committed offsets of groups {PREFIX}{state.job}.*", request)
        return {
            source: _parsed(group, source, committed[group][tp])
            for source, (group, tp) in places.items()
            if committed[group][tp].offset >= 0
        }

    def begin(
        self,
        state: ReplayState,
        sources: Sequence[int],
        fix: Callable[[], dict[int, PartitionProgress]],
    ) -> dict[int, PartitionProgress]:
        """Return the progress; `fix` returns the ranges of a job that has not begun.

        Of several runs that begin a job concurrently only the last one fixes the ranges: it fences the others by
        the transactional id, then reads the committed state, and commits with that id.
        """
        with self._transactions(state.transactional_id(None)) as producer:
            # Runs that were fenced have committed or never will. Transactions of tasks are not waited for: they may
            # be a dead task's, and the next task that replays the partition aborts them.
            known = self.progress(state, sources, stable=False)
            if not is_complete(known):
                known = self.progress(state, sources)
            if known:
                return known
            fixed = fix()

            async def commit() -> None:
                for source, each in fixed.items():
                    group, tp = state.place(source)
                    await producer.send_offsets(group, {tp: each.render()})
                await producer.commit()

            self._request(f"the commit of the start of job {state.job}", commit)
            return fixed

    @contextmanager
    def writing(self, state: ReplayState, source: int, compression: int) -> Iterator[ReplayWriter]:
        """Become the only writer of a source partition, fencing earlier ones. Uncommitted records are aborted at
        the end of the block.
        """
        with self._transactions(state.transactional_id(source), compression) as producer:
            yield ReplayWriter(self, producer, state, source)

    @contextmanager
    def _transactions(self, id: str, compression: int = 0) -> Iterator[TransactionalProducer]:
        producer = TransactionalProducer(
            self._cluster, id, timeout_ms=TRANSACTION_MS, compression=compression
        )
        self._request(f"a producer id for {id}", producer.begin)
        try:
            yield producer
        except Exception:
            with suppress(PipelineError):  # otherwise its readers wait for the transaction timeout
                self._request("the end of a transaction", producer.abort)
            raise

    def pause(self, seconds: float) -> None:
        self._loop.call(trio.sleep, seconds)

    def _request(
        self, what: str, operation: Callable[[], Awaitable[T]], *, open_for_s: float = 0.0
    ) -> T:
        """`open_for_s`: seconds since the current transaction began."""
        try:
            return self._loop.call(operation)
        except KafkaError as error:
            if error.code in FENCED:
                raise _fenced(error.code, open_for_s) from error
            raise broker_error(f"{self._bootstrap} refused {what}", error) from error
        except ClientError as error:
            raise broker_error(f"{self._bootstrap} did not grant {what}", error) from error


class ReplayWriter:
    """Writes the replayed records of one source partition in transactions."""

    def __init__(
        self, target: ReplayTarget, producer: TransactionalProducer, state: ReplayState, source: int
    ) -> None:
        self._target = target
        self._producer = producer
        self._state = state
        self._source = source
        self._clock = RealClock()
        self._begun_at: float | None = None
        """Time of the first records of the current transaction."""

    def write(self, batches: Mapping[int, EncodedRecords]) -> set[int]:
        """Write a batch to each partition; return the partitions that rejected it as too large."""
        topic = self._state.topic
        if self._begun_at is None:
            self._begun_at = self._clock.monotonic()
        return self._request(f"records for {topic}", partial(self._producer.send, topic, batches))

    def commit(self, progress: PartitionProgress) -> None:
        """Commit the records and the progress in one transaction."""
        group, tp = self._state.place(self._source)

        async def both() -> None:
            await self._producer.send_offsets(group, {tp: progress.render()})
            await self._producer.commit()

        self._request(f"the end of a transaction on {self._state.topic}", both)
        self._begun_at = None

    def _request(self, what: str, operation: Callable[[], Awaitable[T]]) -> T:
        now_s = self._clock.monotonic()
        open_for_s = 0.0 if self._begun_at is None else now_s - self._begun_at
        return self._target._request(what, operation, open_for_s=open_for_s)


def _fenced(code: ErrorCode, open_for_s: float) -> PipelineError:
    """Return the error for a fenced producer. Brokers report an expired transaction like fencing by another
    producer: the transaction's age, or the error code, distinguishes them.
    """
    again = "run the job again; it continues after the committed offsets"
    if open_for_s * 1000 >= TRANSACTION_MS:
        return PipelineError(
            f"a transaction timed out and was aborted: it was open for {open_for_s:.0f} s, at"
            f" most {TRANSACTION_MS // 1000} s are allowed; {again}"
        )
    if code is ErrorCode.producer_fenced:
        return PipelineError(
            "another run of the same job has taken over: wait until it has ended; if it has"
            " failed, run this one again"
        )
    return PipelineError(
        "the transaction coordinator aborted a transaction: another run of the same job has"
        f" taken over, or a broker has lost its producer state; {again}"
    )


def is_complete(progress: Mapping[int, PartitionProgress]) -> bool:
    """Whether these are all source partitions of a job."""
    return bool(progress) and all(each.count == len(progress) for each in progress.values())


def progress_expired(state: ReplayState) -> PipelineError:
    return PipelineError(
        f"the cluster of {state.topic} no longer has the progress of job {state.job}:"
        " committed offsets of the group expired (offsets.retention.minutes). With another"
        " name (--job) the whole range is replayed, including records that were already"
        " written"
    )


def advance(progress: PartitionProgress, offset: int) -> PartitionProgress:
    return replace(progress, next=offset)


def _parsed(group: str, source: int, committed: CommittedOffset) -> PartitionProgress:
    with suppress(ValueError):
        found = PartitionProgress.parse(committed)
        if found.partition == source:
            return found
    raise BadOption(
        f"group {group} has offsets that no replay has committed: give another name with --job"
    )


@lru_cache(maxsize=8)
def replay_target_at(bootstrap: str, timeout_ms: int) -> ReplayTarget:
    """Return the process's shared client."""
    return ReplayTarget(bootstrap, timeout_ms)
