"""Where records are replayed to, for callers without a loop: a topic of some cluster, and how far the job is.

The state of a job is the offsets of groups in the target's cluster (KIP-98: they are committed with the
records or not at all). Each source partition has a group, whose offset is the next one to be replayed, and
as metadata the range that is replayed, which was fixed when the job first ran: in a transaction, too, so
that of several who begin at once one does. It is kept under the target topic's partition 0: a topic of the
source's name need not exist there, and how many partitions the target has changes nothing of where a job
finds what is its own.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import TypeVar

import trio

from odradek.client.consumer import TopicPartition
from odradek.client.errors import ClientError
from odradek.client.group_admin import CommittedOffset, committed_by_group
from odradek.client.transactions import FENCED, EncodedRecords, TransactionalProducer
from odradek.pipeline.brokers import broker_error, connected
from odradek.pipeline.errors import BadOption, PipelineError
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.clock import RealClock
from odradek.seams.values import value_class

CLIENT_ID = "odradek-replay"
PREFIX = "odradek-replay."
TRANSACTION_MS = 300_000
"""One that is open for longer its coordinator aborts: more than a store that throttles holds a task up, and
less than brokers allow (transaction.max.timeout.ms, 15 minutes)."""

T = TypeVar("T")


@value_class
class PartitionProgress:
    """Of one source partition: offsets from `low` on, before `high`, are replayed as far as `next`."""

    topic: str
    topic_id: str
    partition: int
    low: int
    high: int
    next: int
    into: int
    """How many partitions the target had when the job began: by that its keys go where they go."""
    what: str
    """A digest of what the job replays and how: a name stands for one."""
    count: int
    """So many source partitions the job has."""

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
        """ValueError if no job wrote that."""
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
    """What a job is called, and where what is known of it lies."""

    job: str
    topic: str
    partitions: int
    """Of the target topic."""

    def place(self, source: int) -> tuple[str, TopicPartition]:
        """The group and the partition that have the offset of a source partition; not a matter of how many
        partitions the target has, which may become more."""
        return f"{PREFIX}{self.job}.{source}", TopicPartition(self.topic, 0)

    def transactional_id(self, source: int | None) -> str:
        """Of the one who replays that source partition; None: who begins the job."""
        return f"{PREFIX}{self.job}.{'begin' if source is None else source}"


class ReplayTarget:
    """Synchronous; from any thread. What cannot be done is a PipelineError that says what it was."""

    def __init__(self, bootstrap: str, timeout_ms: int) -> None:
        self._bootstrap = bootstrap
        self._loop = connected(bootstrap, timeout_ms, CLIENT_ID)
        self._cluster = self._loop.value

    def partitions(self, topic: str) -> int:
        """How many the topic has. Raises BadOption if there is none."""

        async def ask() -> int:
            return len((await self._cluster.topic(topic)).partitions)

        try:
            return self._ask(f"what partitions {topic} has", ask)
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
        """Of those source partitions on which the job has begun; not `stable`, it may be about to be more,
        and nobody's transaction is waited for."""
        places = {source: state.place(source) for source in sources}
        wanted = {group: [where] for group, where in places.values()}
        asked = partial(committed_by_group, self._cluster, wanted, stable=stable)
        committed = self._ask(f"the offsets of groups {PREFIX}{state.job}.*", asked)
        return {
            source: _parsed(group, source, committed[group][where])
            for source, (group, where) in places.items()
            if committed[group][where].offset >= 0
        }

    def begin(
        self,
        state: ReplayState,
        sources: Sequence[int],
        fix: Callable[[], dict[int, PartitionProgress]],
    ) -> dict[int, PartitionProgress]:
        """How far the job is; `fix` says what is replayed where it has not begun yet.

        Of several who begin a job at the same time the last one alone may fix that: it becomes the one
        producer of a transactional id, then sees what there is, and commits with that id.
        """
        with self._transactions(state.transactional_id(None)) as producer:
            # Whoever fixed something before has committed it by now. What tasks have not is not waited for:
            # it may be a dead one's, and the next task that replays the partition ends it.
            known = self.progress(state, sources, stable=False)
            if not is_complete(known):
                known = self.progress(state, sources)
            if known:
                return known
            fixed = fix()

            async def commit() -> None:
                for source, each in fixed.items():
                    group, where = state.place(source)
                    await producer.send_offsets(group, {where: each.render()})
                await producer.commit()

            self._ask(f"the beginning of job {state.job}", commit)
            return fixed

    @contextmanager
    def writing(self, state: ReplayState, source: int, compression: int) -> Iterator[ReplayWriter]:
        """The one who replays a source partition, from now on. What is not committed when it is left
        never becomes visible."""
        with self._transactions(state.transactional_id(source), compression) as producer:
            yield ReplayWriter(self, producer, state, source)

    @contextmanager
    def _transactions(self, id: str, compression: int = 0) -> Iterator[TransactionalProducer]:
        producer = TransactionalProducer(
            self._cluster, id, timeout_ms=TRANSACTION_MS, compression=compression
        )
        self._ask(f"a producer as {id}", producer.begin)
        try:
            yield producer
        except Exception:
            with suppress(PipelineError):  # else its readers wait until it is out of time
                self._ask("the end of a transaction", producer.abort)
            raise

    def pause(self, seconds: float) -> None:
        self._loop.call(trio.sleep, seconds)

    def _ask(
        self, what: str, question: Callable[[], Awaitable[T]], *, open_for_s: float = 0.0
    ) -> T:
        """`open_for_s`: how long the transaction has been open in which that is asked."""
        try:
            return self._loop.call(question)
        except KafkaError as error:
            if error.code in FENCED:
                raise _fenced(error.code, open_for_s) from error
            raise broker_error(f"{self._bootstrap} refused {what}", error) from error
        except ClientError as error:
            raise broker_error(f"{self._bootstrap} did not grant {what}", error) from error


class ReplayWriter:
    """Writes what is replayed of one source partition, in transactions."""

    def __init__(
        self, target: ReplayTarget, producer: TransactionalProducer, state: ReplayState, source: int
    ) -> None:
        self._target = target
        self._producer = producer
        self._state = state
        self._source = source
        self._clock = RealClock()
        self._begun_at: float | None = None
        """When the first records of the transaction were sent that is open now."""

    def write(self, batches: Mapping[int, EncodedRecords]) -> set[int]:
        """A batch to each of these partitions; those that take none as large, and did not get it."""
        topic = self._state.topic
        if self._begun_at is None:
            self._begun_at = self._clock.monotonic()
        return self._ask(f"records for {topic}", partial(self._producer.send, topic, batches))

    def commit(self, progress: PartitionProgress) -> None:
        """All that was written becomes visible, and with it how far that is."""
        group, where = self._state.place(self._source)

        async def both() -> None:
            await self._producer.send_offsets(group, {where: progress.render()})
            await self._producer.commit()

        self._ask(f"the end of a transaction on {self._state.topic}", both)
        self._begun_at = None

    def _ask(self, what: str, question: Callable[[], Awaitable[T]]) -> T:
        now_s = self._clock.monotonic()
        open_for_s = 0.0 if self._begun_at is None else now_s - self._begun_at
        return self._target._ask(what, question, open_for_s=open_for_s)


def _fenced(code: ErrorCode, open_for_s: float) -> PipelineError:
    """Brokers answer the same to one whose transaction ran out of time as to one whom another has followed:
    how old it was tells which, or else which code it is."""
    again = "run again, the job goes on after what is committed"
    if open_for_s * 1000 >= TRANSACTION_MS:
        return PipelineError(
            f"a transaction ran out of time, nothing of it is visible: it was open for {open_for_s:.0f} s,"
            f" and may be for {TRANSACTION_MS // 1000} s; {again}"
        )
    if code is ErrorCode.producer_fenced:
        return PipelineError(
            "another run of the same job has taken over: wait until it has ended, and run this one again if it"
            " ended like this"
        )
    return PipelineError(
        "a transaction was ended by its coordinator: another run of the same job has taken over, or a"
        f" broker has lost what it knew of this one; {again}"
    )


def is_complete(progress: Mapping[int, PartitionProgress]) -> bool:
    """Whether that is all source partitions of a job."""
    return bool(progress) and all(each.count == len(progress) for each in progress.values())


def progress_expired(state: ReplayState) -> PipelineError:
    return PipelineError(
        f"the cluster of {state.topic} no longer knows how far job {state.job} is: it keeps that for a"
        " while only (offsets.retention.minutes). Under another name (--job) all of the range is replayed,"
        " what is there already once more"
    )


def advance(progress: PartitionProgress, offset: int) -> PartitionProgress:
    return replace(progress, next=offset)


def _parsed(group: str, source: int, committed: CommittedOffset) -> PartitionProgress:
    with suppress(ValueError):
        found = PartitionProgress.parse(committed)
        if found.partition == source:
            return found
    raise BadOption(
        f"group {group} has offsets that are no job's: --job gives this one another name"
    )


@lru_cache(maxsize=8)
def replay_target_at(bootstrap: str, timeout_ms: int) -> ReplayTarget:
    """The process's own, for all its tasks."""
    return ReplayTarget(bootstrap, timeout_ms)
