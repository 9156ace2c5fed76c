"""Decisions of a coordinator of diskless topics, without I/O and without a clock (KIP-1164, D-07, D-17, D-18).

An operation is decided against the committed state and the pending operations before it: those that are appended to
`__diskless_metadata` but not yet applied to the state. Deciding changes nothing. It returns the records to append and
the response to send after they are applied. The order of the calls is

    while reads := machine.missing_reads(request):
        machine.fill(read_state(state, reads))          # may wait: reads the database
    operation = machine.decide_…(request, …)
    if operation.records:
        machine.accept(operation, last_offset)          # after the append
    …
    machine.applied(offset)                             # after DisklessState.apply

Operations are decided one after another: between `missing_reads` and `accept` there is no other operation.
`applied` is not called between `missing_reads` and the end of a decision.

The machine keeps heads: the part of the state that decisions need. A head that a pending operation changed stays
in memory until the operation is applied, because the state does not have the change before. Other heads are a cache
of limited size. This is correct because nothing but the operations of this machine changes the state while
its broker leads the partition of `__diskless_metadata`. For the same reason the results do not depend on when pending
operations are applied. Each leadership has a machine of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records.batch import MAGIC, MAX_SEQUENCE, NO_SEQUENCE
from odradek.protocol.schemas.diskless_apis import (
    DisklessCommitBatch,
    DisklessCommitBatchResult,
    DisklessCommitFileRequest,
    DisklessCommitFileResponse,
    DisklessCreatablePartitionsResult,
    DisklessCreatePartitionsRequest,
    DisklessCreatePartitionsResponse,
    DisklessDeletableTopicResult,
    DisklessDeleteRecordsPartition,
    DisklessDeleteRecordsPartitionResult,
    DisklessDeleteRecordsRequest,
    DisklessDeleteRecordsResponse,
    DisklessDeleteRecordsTopicResult,
    DisklessDeleteTopicsRequest,
    DisklessDeleteTopicsResponse,
    DisklessHandOverFileRequest,
    DisklessHandOverFileResponse,
)
from odradek.protocol.schemas.diskless_records import (
    DisklessCommittedBatch,
    DisklessCommittedPartition,
    DisklessCommittedTopic,
    DisklessFileCommittedRecord,
    DisklessFileOwnershipRecord,
    DisklessFileRemovedRecord,
    DisklessPartitionCreatedRecord,
    DisklessRecordsDeletedRecord,
    DisklessTopicDeletedRecord,
)
from odradek.replication.diskless.producer_sequences import (
    check_sequence,
    find_duplicate,
    with_batch,
)
from odradek.seams.values import value_class
from odradek.storage.diskless.object_key import parse_object_key
from odradek.storage.diskless.state import (
    PRODUCER_EXPIRATION_MS,
    DisklessState,
    FileBatch,
    FileState,
    PartitionState,
    ProducerBatch,
    ProducerEntry,
)
from odradek.storage.diskless.wal_file import WRITE_AHEAD_MULTI_SEGMENT

COMMIT_WINDOW_MS: Final = 600_000
"""Age of a file, by its object key, up to which it can be committed. An older file may have been removed as an orphan."""
HIGH_WATERMARK: Final = -1
"""Offset of a DeleteRecords request that stands for the high watermark."""
HEADS_MAX: Final = 8192
"""Heads of each kind that are kept without a pending operation."""
CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1
RECORDS_MAX: Final = 1 << 31
"""A batch has fewer records or as many: its last offset delta has 31 bits."""
NO_PRODUCER: Final = -1

PartitionKey = tuple[UUID, int]
ProducerKey = tuple[UUID, int, int]
K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")


@value_class
class RemoveFile:
    """Operation of this coordinator itself: it does not track a file any more (D-21, D-22)."""

    object_key: str


@value_class
class ImageTopic:
    """A topic of the metadata image, with the partitions that are assigned to this coordinator (D-14)."""

    name: str
    indexes: Sequence[int]


Request = (
    DisklessCommitFileRequest
    | DisklessCreatePartitionsRequest
    | DisklessDeleteTopicsRequest
    | DisklessDeleteRecordsRequest
    | DisklessHandOverFileRequest
    | RemoveFile
)


@value_class
class StateReads:
    """Keys of the committed state that a decision needs. It is false if there is none."""

    partitions: tuple[PartitionKey, ...] = ()
    topics: tuple[UUID, ...] = ()
    producers: tuple[ProducerKey, ...] = ()
    files: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.partitions or self.topics or self.producers or self.files)


@value_class
class StateValues:
    """Values of the committed state for all keys of a StateReads."""

    partitions: Mapping[PartitionKey, PartitionState | None]
    topics: Mapping[UUID, Sequence[PartitionState]]
    producers: Mapping[ProducerKey, ProducerEntry | None]
    files: Mapping[str, tuple[FileState, Sequence[FileBatch]] | None]


def read_state(state: DisklessState, reads: StateReads) -> StateValues:
    """Read what a decision needs. It may block."""
    files: dict[str, tuple[FileState, Sequence[FileBatch]] | None] = {}
    for key in reads.files:
        file = state.file(key)
        files[key] = None if file is None else (file, state.file_batches(key))
    return StateValues(
        {key: state.partition(*key) for key in reads.partitions},
        {topic_id: state.partitions(topic_id) for topic_id in reads.topics},
        {key: state.producer(*key) for key in reads.producers},
        files,
    )


@value_class
class PartitionHead:
    """Offsets of a partition after all operations so far.

    `next_offset` is the offset of the next record. `created_at` is the offset of the operation that created the
    partition; -1 if it comes from the state.
    """

    name: str
    log_start_offset: int
    next_offset: int
    created_at: int = -1


@value_class
class FilePosition:
    """An accepted batch of a file."""

    partition: PartitionKey
    base_offset: int
    last_offset: int
    log_append_ms: int


@value_class
class FileHead:
    """A file that this coordinator tracks; `batches` are its accepted batches by byte offset."""

    owner_ids: tuple[int, ...]
    is_owner: bool
    batches: Mapping[int, FilePosition]
    live_batches: int


class Changes:
    """Heads that an operation changes. None is a head that does not exist any more."""

    __slots__ = ("files", "partitions", "producers", "topics")

    def __init__(self) -> None:
        self.partitions: dict[PartitionKey, PartitionHead | None] = {}
        self.topics: dict[UUID, frozenset[int]] = {}
        self.producers: dict[ProducerKey, ProducerEntry | None] = {}
        self.files: dict[str, FileHead | None] = {}


@value_class
class Operation(Generic[R]):
    """A decision: the records to append as one batch, and the response to send when they are applied.

    Without records the response is sent when everything that was appended before is applied (D-19).
    `append_ms` is the timestamp of the batch: the time of the decision, but never before that of an earlier operation.
    """

    records: tuple[Any, ...]
    response: R
    append_ms: int
    changes: Changes
    number: int
    """Number of operations that were accepted before the decision."""


class Heads(Generic[K, V]):
    """Heads of one kind by key, each with the offset of the last operation that changed it."""

    __slots__ = ("_heads", "_limit")

    def __init__(self, limit: int) -> None:
        self._heads: dict[K, tuple[V, int]] = {}
        self._limit = limit

    def __contains__(self, key: K) -> bool:
        return key in self._heads

    def __iter__(self) -> Iterator[K]:
        return iter(self._heads)

    def __len__(self) -> int:
        return len(self._heads)

    def __getitem__(self, key: K) -> V:
        return self._heads[key][0]

    def fill(self, key: K, value: V) -> None:
        """Add a head from the state, unless one is in memory, which is at least as new."""
        if key not in self._heads:
            self._heads[key] = value, -1

    def change(self, changed: Mapping[K, V], offset: int) -> None:
        heads = self._heads
        for key, value in changed.items():
            heads.pop(key, None)
            heads[key] = value, offset

    def evict(self, applied: int) -> None:
        """Remove the heads that were changed the longest ago, down to the limit, but none that a pending operation
        changed."""
        heads = self._heads
        excess = len(heads) - self._limit
        if excess <= 0:
            return
        evicted: list[K] = []
        for key, (_, offset) in heads.items():
            if offset > applied or len(evicted) == excess:
                break
            evicted.append(key)
        for key in evicted:
            del heads[key]

    def clear(self) -> None:
        self._heads.clear()


class YoungFiles:
    """Files that can still be committed, and that this leader has committed.

    Another file that was uploaded long enough after the election is certainly unknown: its commit need not read the state.
    Twice the commit window covers the differences of the clocks of the uploader and of the previous leader,
    because a file is refused if its upload time is later than the current time by more than the window.
    """

    __slots__ = ("_committed", "_elected_ms", "_margin_ms")

    def __init__(self, elected_ms: int | None, window_ms: int) -> None:
        """`elected_ms` is the time of the election; None if every file may be known."""
        self._elected_ms = elected_ms
        self._margin_ms = 2 * window_ms
        self._committed: dict[str, int] = {}
        """Time of the first operation on each file."""

    def is_unknown(self, object_key: str) -> bool:
        """Whether the state certainly does not have the file, unless the file is too old to be committed."""
        if self._elected_ms is None or object_key in self._committed:
            return False
        try:
            uploaded_ms, _ = parse_object_key(object_key)
        except ValueError:
            return False
        return uploaded_ms > self._elected_ms + self._margin_ms

    def add(self, object_keys: Iterable[str], now_ms: int) -> None:
        committed = self._committed
        for key in object_keys:
            committed.setdefault(key, now_ms)
        while committed:
            oldest = next(iter(committed))
            if now_ms - committed[oldest] <= self._margin_ms:
                return
            del committed[oldest]


class CoordinatorStateMachine:
    """Decisions of the coordinator `coordinator_id`, the leader of that partition of `__diskless_metadata`."""

    def __init__(
        self,
        coordinator_id: int,
        *,
        commit_window_ms: int = COMMIT_WINDOW_MS,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
        heads_max: int = HEADS_MAX,
        elected_ms: int | None = None,
    ) -> None:
        """`elected_ms` is the time at which this broker became the leader, if known."""
        self.coordinator_id = coordinator_id
        self.producer_expiration_ms = producer_expiration_ms
        """Current `producer.id.expiration.ms`. Older producer entries are ignored."""
        self._commit_window_ms = commit_window_ms
        self._partitions: Heads[PartitionKey, PartitionHead | None] = Heads(heads_max)
        self._topics: Heads[UUID, frozenset[int]] = Heads(heads_max)
        self._producers: Heads[ProducerKey, ProducerEntry | None] = Heads(heads_max)
        self._files: Heads[str, FileHead | None] = Heads(0)
        self._young_files = YoungFiles(elected_ms, commit_window_ms)
        self._applied_offset = -1
        self._accepted_offset = -1
        self._accepted = 0
        self._append_ms = -1

    @property
    def is_pending(self) -> bool:
        """Whether an accepted operation is not yet applied."""
        return self._accepted_offset > self._applied_offset

    def heads(self) -> int:
        """Number of heads in memory."""
        return len(self._partitions) + len(self._topics) + len(self._producers) + len(self._files)

    # Heads

    def missing_reads(self, request: Request) -> StateReads:
        """Keys to read from the state before `request` can be decided.

        It is called again after `fill`, because some keys depend on the values of others.
        """
        match request:
            case DisklessCommitFileRequest():
                return self._reads_of_commit(request)
            case DisklessCreatePartitionsRequest() | DisklessDeleteTopicsRequest():
                return StateReads(topics=self._missing_topics(t.topic_id for t in request.topics))
            case DisklessDeleteRecordsRequest():
                keys = (
                    (t.topic_id, p.partition_index) for t in request.topics for p in t.partitions
                )
                return self._reads_of_partitions(dict.fromkeys(keys), ())
            case DisklessHandOverFileRequest() | RemoveFile():
                return StateReads(files=self._missing_file(request.object_key))

    def _reads_of_commit(self, request: DisklessCommitFileRequest) -> StateReads:
        partitions: dict[PartitionKey, None] = {}
        producers: dict[ProducerKey, None] = {}
        for batch in request.batches:
            key = (batch.topic_id, batch.partition_index)
            partitions[key] = None
            if batch.producer_id != NO_PRODUCER:
                producer = (*key, batch.producer_id)
                if producer not in self._producers and not self._is_created_by_pending(key):
                    producers[producer] = None
        reads = self._reads_of_partitions(partitions, tuple(producers))
        object_key = request.object_key
        is_new = self._young_files.is_unknown(object_key)
        files = () if is_new else self._missing_file(object_key)
        return StateReads(reads.partitions, reads.topics, reads.producers, files)

    def _reads_of_partitions(
        self, partitions: Iterable[PartitionKey], producers: tuple[ProducerKey, ...]
    ) -> StateReads:
        missing = []
        topics = []
        for key in partitions:
            if key not in self._partitions:
                missing.append(key)
            elif self._partitions[key] is None:  # the error depends on whether the topic is known
                topics.append(key[0])
        return StateReads(tuple(missing), self._missing_topics(topics), producers)

    def _missing_topics(self, topic_ids: Iterable[UUID]) -> tuple[UUID, ...]:
        return tuple(dict.fromkeys(each for each in topic_ids if each not in self._topics))

    def _missing_file(self, object_key: str) -> tuple[str, ...]:
        return () if object_key in self._files else (object_key,)

    def _is_created_by_pending(self, key: PartitionKey) -> bool:
        """Whether a pending operation created the partition. Producers in the state are then those of a deleted
        partition."""
        if key not in self._partitions:
            return False
        head = self._partitions[key]
        return head is not None and head.created_at > self._applied_offset

    def fill(self, values: StateValues) -> None:
        """Add what `missing_reads` asked for."""
        for key, partition in values.partitions.items():
            self._partitions.fill(key, None if partition is None else _partition_head(partition))
        for topic_id, partitions in values.topics.items():
            self._topics.fill(topic_id, frozenset(each.index for each in partitions))
        for producer_key, producer in values.producers.items():
            self._producers.fill(producer_key, producer)
        for object_key, file in values.files.items():
            self._files.fill(object_key, None if file is None else _file_head(*file))

    def accept(self, operation: Operation[Any], last_offset: int) -> None:
        """Make an operation pending, after its records were appended; `last_offset` is that of the last record."""
        if operation.number != self._accepted:
            raise RuntimeError("another operation was accepted after this one was decided")
        if last_offset <= self._accepted_offset:
            raise RuntimeError(f"offset {last_offset} does not follow {self._accepted_offset}")
        changes = operation.changes
        for key, head in changes.partitions.items():
            if head is not None and head.created_at == _BY_THIS_OPERATION:
                changes.partitions[key] = PartitionHead(
                    head.name, head.log_start_offset, head.next_offset, last_offset
                )
        self._partitions.change(changes.partitions, last_offset)
        self._topics.change(changes.topics, last_offset)
        self._producers.change(changes.producers, last_offset)
        if changes.files:
            self._files.change(changes.files, last_offset)
            self._young_files.add(changes.files, operation.append_ms)
        self._accepted += 1
        self._accepted_offset = last_offset
        self._append_ms = operation.append_ms

    def applied(self, offset: int) -> None:
        """Report that the state has applied everything up to `offset`.

        The heads of files are then read again: deletions of records change the state of a file, and not its head.
        """
        self._applied_offset = max(self._applied_offset, offset)
        self._files.evict(self._applied_offset)

    def _operation(
        self, records: Sequence[Any], response: R, now_ms: int, changes: Changes
    ) -> Operation[R]:
        self._partitions.evict(self._applied_offset)
        self._topics.evict(self._applied_offset)
        self._producers.evict(self._applied_offset)
        self._files.evict(self._applied_offset)
        return Operation(tuple(records), response, now_ms, changes, self._accepted)

    def _no_earlier(self, now_ms: int) -> int:
        return max(now_ms, self._append_ms)

    # DisklessCommitFile

    def decide_commit_file(
        self, request: DisklessCommitFileRequest, now_ms: int
    ) -> Operation[DisklessCommitFileResponse]:
        """Check and order the batches of a WAL file (D-05 to D-07).

        The record of the file is written even if no batch is accepted, because the coordinator is one of its owners
        (D-21). A file that was committed before gets a record only if it has more batches to accept.
        """
        now_ms = self._no_earlier(now_ms)
        changes = Changes()
        try:
            uploader_id = self._check_file(request, now_ms)
        except KafkaError as error:
            refused = [_refused(error) for _ in request.batches]
            return self._operation(
                (), DisklessCommitFileResponse(batches=tuple(refused)), now_ms, changes
            )
        commit = FileCommit(self, request, now_ms, changes)
        results = tuple([commit.add(batch) for batch in request.batches])
        records = commit.records(uploader_id)
        return self._operation(
            records, DisklessCommitFileResponse(batches=results), now_ms, changes
        )

    def _check_file(self, request: DisklessCommitFileRequest, now_ms: int) -> int:
        """Return the id of the broker that uploaded the file. Raises KafkaError if the file is refused."""
        uploaded_ms, uploader_id = _parse_key(request.object_key)
        self._check_owners(request.owner_ids)
        if request.object_format != WRITE_AHEAD_MULTI_SEGMENT:
            raise KafkaError(
                ErrorCode.invalid_request,
                f"The format {request.object_format} of the file {request.object_key} is unknown.",
            )
        if now_ms - uploaded_ms > self._commit_window_ms:
            raise KafkaError(
                ErrorCode.invalid_timestamp,
                f"The file {request.object_key} is {now_ms - uploaded_ms} ms old. A file can be committed for "
                f"{self._commit_window_ms} ms after its upload.",
            )
        if uploaded_ms - now_ms > self._commit_window_ms:
            raise KafkaError(
                ErrorCode.invalid_timestamp,
                f"The upload time of the file {request.object_key} is {uploaded_ms - now_ms} ms in the future: the "
                "clocks of the brokers differ too much.",
            )
        known = self.file(request.object_key)
        if known is not None and known.owner_ids != request.owner_ids:
            raise KafkaError(
                ErrorCode.invalid_request,
                f"The file {request.object_key} was committed with the owners {list(known.owner_ids)}, "
                f"not {list(request.owner_ids)}.",
            )
        return uploader_id

    def _check_owners(self, owner_ids: tuple[int, ...]) -> None:
        if (
            self.coordinator_id not in owner_ids
            or len(set(owner_ids)) != len(owner_ids)
            or min(owner_ids) < 0
        ):
            raise KafkaError(
                ErrorCode.invalid_request,
                f"Owners {list(owner_ids)} do not have the coordinator {self.coordinator_id} exactly once, or have "
                "another one twice, or a negative one.",
            )

    # Topics and partitions

    def decide_create_partitions(
        self,
        request: DisklessCreatePartitionsRequest,
        image_topics: Mapping[UUID, ImageTopic],
        now_ms: int,
    ) -> Operation[DisklessCreatePartitionsResponse]:
        """Create the partitions of topics that the coordinator lacks (D-03): of new topics, or more of existing ones.

        `image_topics` has those topics of the request that are in the metadata image: a partition's
        coordinator is fixed there (D-14), so that a request creates those partitions below `num_partitions` that the
        image assigns to this coordinator. Existing partitions are no error.
        """
        changes = Changes()
        records: list[Any] = []
        results = []
        for topic in request.topics:
            topic_id = topic.topic_id
            image_topic = image_topics.get(topic_id)
            if image_topic is None:
                results.append(
                    DisklessCreatablePartitionsResult(
                        topic_id=topic_id,
                        error_code=ErrorCode.unknown_topic_id,
                        error_message=f"The metadata image of the coordinator {self.coordinator_id} does not have "
                        f"the topic {topic.name}.",
                    )
                )
                continue
            known = self._topic(topic_id, changes)
            created = [
                index
                for index in sorted(image_topic.indexes)
                if index < topic.num_partitions and index not in known
            ]
            for index in created:
                records.append(
                    DisklessPartitionCreatedRecord(
                        topic_id=topic_id, name=image_topic.name, partition_index=index
                    )
                )
                changes.partitions[topic_id, index] = PartitionHead(
                    image_topic.name, 0, 0, _BY_THIS_OPERATION
                )
            if created:
                changes.topics[topic_id] = known.union(created)
            results.append(DisklessCreatablePartitionsResult(topic_id=topic_id))
        response = DisklessCreatePartitionsResponse(topics=tuple(results))
        return self._operation(records, response, self._no_earlier(now_ms), changes)

    def decide_delete_topics(
        self, request: DisklessDeleteTopicsRequest, now_ms: int
    ) -> Operation[DisklessDeleteTopicsResponse]:
        """Delete topics with all partitions and batches (D-04, D-25)."""
        changes = Changes()
        records = []
        results = []
        for topic in request.topics:
            topic_id = topic.topic_id
            known = self._topic(topic_id, changes)
            if not known:
                results.append(
                    DisklessDeletableTopicResult(
                        topic_id=topic_id,
                        error_code=ErrorCode.unknown_topic_id,
                        error_message=_no_topic(self.coordinator_id, topic_id),
                    )
                )
                continue
            records.append(DisklessTopicDeletedRecord(topic_id=topic_id))
            changes.topics[topic_id] = frozenset()
            for index in known:
                changes.partitions[topic_id, index] = None
            for key in self._producers:
                if key[0] == topic_id:
                    changes.producers[key] = None
            results.append(DisklessDeletableTopicResult(topic_id=topic_id))
        response = DisklessDeleteTopicsResponse(responses=tuple(results))
        return self._operation(records, response, self._no_earlier(now_ms), changes)

    # DisklessDeleteRecords

    def decide_delete_records(
        self, request: DisklessDeleteRecordsRequest, now_ms: int
    ) -> Operation[DisklessDeleteRecordsResponse]:
        """Raise the log start offsets of partitions (D-08, D-25): on request of a client, or for retention.

        An offset of -1 is the high watermark. An offset below the log start offset changes nothing.
        """
        changes = Changes()
        records: list[Any] = []
        topics = []
        for topic in request.topics:
            results = tuple(
                [
                    self._delete_records(topic.topic_id, each, changes, records)
                    for each in topic.partitions
                ]
            )
            topics.append(
                DisklessDeleteRecordsTopicResult(topic_id=topic.topic_id, partitions=results)
            )
        response = DisklessDeleteRecordsResponse(topics=tuple(topics))
        return self._operation(records, response, self._no_earlier(now_ms), changes)

    def _delete_records(
        self,
        topic_id: UUID,
        partition: DisklessDeleteRecordsPartition,
        changes: Changes,
        records: list[Any],
    ) -> DisklessDeleteRecordsPartitionResult:
        index = partition.partition_index
        try:
            head = self.partition(topic_id, index, changes)
            offset = head.next_offset if partition.offset == HIGH_WATERMARK else partition.offset
            if not 0 <= offset <= head.next_offset:
                raise KafkaError(
                    ErrorCode.offset_out_of_range,
                    f"The offset {offset} is not between 0 and the high watermark {head.next_offset} of "
                    f"{head.name}-{index}.",
                )
        except KafkaError as error:
            return DisklessDeleteRecordsPartitionResult(
                partition_index=index,
                low_watermark=-1,
                error_code=error.code,
                error_message=error.message,
            )
        if offset > head.log_start_offset:
            records.append(
                DisklessRecordsDeletedRecord(
                    topic_id=topic_id, partition_index=index, new_log_start_offset=offset
                )
            )
            head = PartitionHead(head.name, offset, head.next_offset, head.created_at)
            changes.partitions[topic_id, index] = head
        return DisklessDeleteRecordsPartitionResult(
            partition_index=index, low_watermark=head.log_start_offset
        )

    # Files

    def decide_take_ownership(
        self, request: DisklessHandOverFileRequest, now_ms: int
    ) -> Operation[DisklessHandOverFileResponse]:
        """Take the ownership of a file from the owner before this one (D-21).

        The coordinator need not know the file: its commit may have failed here. A file that it has already removed is
        tracked again, and then handed over or deleted again, which changes nothing.
        """
        now_ms = self._no_earlier(now_ms)
        changes = Changes()
        try:
            _parse_key(request.object_key)
            self._check_owners(request.owner_ids)
        except KafkaError as error:
            response = DisklessHandOverFileResponse(
                error_code=error.code, error_message=error.message
            )
            return self._operation((), response, now_ms, changes)
        known = self._files[request.object_key]
        records: tuple[Any, ...] = ()
        if known is None or not known.is_owner:
            # a known file keeps its order of owners
            owner_ids = request.owner_ids if known is None else known.owner_ids
            records = (
                DisklessFileOwnershipRecord(
                    object_key=request.object_key,
                    object_format=request.object_format,
                    file_size=request.file_size,
                    owner_ids=owner_ids,
                ),
            )
            changes.files[request.object_key] = FileHead(
                owner_ids,
                True,
                {} if known is None else known.batches,
                0 if known is None else known.live_batches,
            )
        return self._operation(records, DisklessHandOverFileResponse(), now_ms, changes)

    def decide_remove_file(self, request: RemoveFile, now_ms: int) -> Operation[bool]:
        """Stop tracking a file that was handed over, or whose object was deleted (D-21, D-22).

        The response is whether the file is not tracked any more. A file with live batches, and one that
        could still be committed again, is not removed.
        """
        now_ms = self._no_earlier(now_ms)
        changes = Changes()
        key = request.object_key
        known = self._files[key]
        if known is None:
            return self._operation((), True, now_ms, changes)
        uploaded_ms, _ = _parse_key(key)
        if known.live_batches or now_ms - uploaded_ms <= self._commit_window_ms:
            return self._operation((), False, now_ms, changes)
        changes.files[key] = None
        return self._operation((DisklessFileRemovedRecord(object_key=key),), True, now_ms, changes)

    # Heads as an operation sees them

    def partition(self, topic_id: UUID, index: int, changes: Changes) -> PartitionHead:
        """Raises KafkaError with UNKNOWN_TOPIC_ID or UNKNOWN_TOPIC_OR_PARTITION."""
        key = (topic_id, index)
        head = changes.partitions[key] if key in changes.partitions else self._partitions[key]
        if head is not None:
            return head
        if self._topic(topic_id, changes):
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition,
                f"The coordinator {self.coordinator_id} does not have partition {index} of the topic with the id "
                f"{topic_id}.",
            )
        raise KafkaError(ErrorCode.unknown_topic_id, _no_topic(self.coordinator_id, topic_id))

    def _topic(self, topic_id: UUID, changes: Changes) -> frozenset[int]:
        known = changes.topics.get(topic_id)
        return self._topics[topic_id] if known is None else known

    def producer(self, key: ProducerKey, changes: Changes, now_ms: int) -> ProducerEntry | None:
        if key in changes.producers:
            entry = changes.producers[key]
        elif key in self._producers:
            entry = self._producers[key]
        else:
            return None  # a pending operation created the partition
        if entry is not None and now_ms - entry.last_append_ms >= self.producer_expiration_ms:
            return None
        return entry

    def file(self, object_key: str) -> FileHead | None:
        """The file of a commit that is not too old."""
        if object_key not in self._files and self._young_files.is_unknown(object_key):
            return None
        return self._files[object_key]


_BY_THIS_OPERATION: Final = -2


class FileCommit:
    """Decision on the batches of one file, in the order of the request."""

    __slots__ = (
        "_accepted",
        "_changes",
        "_machine",
        "_now_ms",
        "_positions",
        "_request",
        "_was_known",
    )

    def __init__(
        self,
        machine: CoordinatorStateMachine,
        request: DisklessCommitFileRequest,
        now_ms: int,
        changes: Changes,
    ) -> None:
        self._machine = machine
        self._request = request
        self._now_ms = now_ms
        self._changes = changes
        self._accepted: dict[UUID, dict[int, list[DisklessCommittedBatch]]] = {}
        known = machine.file(request.object_key)
        self._was_known = known is not None
        self._positions = {} if known is None else dict(known.batches)

    def add(self, batch: DisklessCommitBatch) -> DisklessCommitBatchResult:
        """Check a batch, and assign its offsets if it is accepted."""
        try:
            return self._add(batch)
        except KafkaError as error:
            return _refused(error, self._log_start_offset(batch, error))

    def _add(self, batch: DisklessCommitBatch) -> DisklessCommitBatchResult:
        changes = self._changes
        head = self._machine.partition(batch.topic_id, batch.partition_index, changes)
        self._check_extent(batch)
        _check_fields(batch)
        committed = self._positions.get(batch.byte_offset)
        if (
            committed is not None
            and committed.partition == (batch.topic_id, batch.partition_index)
            and committed.last_offset >= head.log_start_offset
        ):
            return _duplicate(committed.base_offset, committed.log_append_ms, head)
        if batch.producer_id != NO_PRODUCER:
            key = (batch.topic_id, batch.partition_index, batch.producer_id)
            entry = self._machine.producer(key, changes, self._now_ms)
            if entry is not None:
                earlier = find_duplicate(entry, batch)
                if earlier is not None:
                    return _duplicate(earlier.base_offset, earlier.log_append_ms, head)
            check_sequence(entry, batch, f"{head.name}-{batch.partition_index}")
            changes.producers[key] = with_batch(
                entry, batch.producer_epoch, self._producer_batch(batch, head), self._now_ms
            )
        elif self._was_known and head.log_start_offset:
            # Either it was accepted and has been deleted, or it was refused. Only the producer can retry it.
            raise KafkaError(
                ErrorCode.invalid_request,
                f"The file {self._request.object_key} was already committed. The coordinator does not know whether "
                f"the batch at {batch.byte_offset} was.",
            )
        return self._accept(batch, head)

    def _log_start_offset(self, batch: DisklessCommitBatch, error: KafkaError) -> int:
        """The log start offset in the result of a refused batch: -1, except for an unknown producer. Kafka's producer
        repeats UNKNOWN_PRODUCER_ID without an end if it does not know the offset."""
        if error.code is not ErrorCode.unknown_producer_id:
            return -1
        key = (batch.topic_id, batch.partition_index)
        return self._machine.partition(*key, self._changes).log_start_offset

    def _check_extent(self, batch: DisklessCommitBatch) -> None:
        if (
            not 0 <= batch.last_offset - batch.base_offset < RECORDS_MAX
            or batch.size <= 0
            or batch.byte_offset < 0
            or batch.byte_offset + batch.size > self._request.file_size
        ):
            raise KafkaError(
                ErrorCode.invalid_request,
                f"The batch at {batch.byte_offset} with {batch.size} bytes and offsets {batch.base_offset} to "
                f"{batch.last_offset} is not in a file of {self._request.file_size} bytes.",
            )

    def _producer_batch(self, batch: DisklessCommitBatch, head: PartitionHead) -> ProducerBatch:
        count = batch.last_offset - batch.base_offset + 1
        return ProducerBatch(
            batch.base_sequence,
            batch.last_sequence,
            head.next_offset,
            head.next_offset + count - 1,
            self._now_ms,
        )

    def _accept(self, batch: DisklessCommitBatch, head: PartitionHead) -> DisklessCommitBatchResult:
        now_ms = self._now_ms
        base_offset = head.next_offset
        last_offset = base_offset + batch.last_offset - batch.base_offset
        key = (batch.topic_id, batch.partition_index)
        is_append_time = batch.timestamp_type == LOG_APPEND_TIME
        accepted = DisklessCommittedBatch(
            magic=batch.magic,
            byte_offset=batch.byte_offset,
            byte_size=batch.size,
            assigned_base_offset=base_offset,
            assigned_last_offset=last_offset,
            log_append_timestamp=now_ms,
            batch_max_timestamp=now_ms if is_append_time else batch.batch_max_timestamp,
            timestamp_type=batch.timestamp_type,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            last_sequence=batch.last_sequence,
        )
        self._accepted.setdefault(key[0], {}).setdefault(key[1], []).append(accepted)
        self._positions[batch.byte_offset] = FilePosition(key, base_offset, last_offset, now_ms)
        self._changes.partitions[key] = PartitionHead(
            head.name, head.log_start_offset, last_offset + 1, head.created_at
        )
        return DisklessCommitBatchResult(
            assigned_base_offset=base_offset,
            log_append_time=now_ms,
            log_start_offset=head.log_start_offset,
            is_duplicate=False,
        )

    def records(self, uploader_id: int) -> tuple[DisklessFileCommittedRecord, ...]:
        """The record of the accepted batches, and the head of the file among the changes."""
        request = self._request
        if self._was_known and not self._accepted:
            return ()
        known = self._machine.file(request.object_key)
        owner_ids = request.owner_ids
        accepted = 0
        topics = []
        for topic_id, by_index in self._accepted.items():
            partitions = []
            for index, batches in by_index.items():
                accepted += len(batches)
                partitions.append(
                    DisklessCommittedPartition(partition_index=index, batches=tuple(batches))
                )
            topics.append(DisklessCommittedTopic(topic_id=topic_id, partitions=tuple(partitions)))
        self._changes.files[request.object_key] = FileHead(
            owner_ids,
            owner_ids[0] == self._machine.coordinator_id if known is None else known.is_owner,
            self._positions,
            accepted + (0 if known is None else known.live_batches),
        )
        return (
            DisklessFileCommittedRecord(
                object_key=request.object_key,
                object_format=request.object_format,
                file_size=request.file_size,
                uploader_broker_id=uploader_id,
                owner_ids=owner_ids,
                topics=tuple(topics),
            ),
        )


def _check_fields(batch: DisklessCommitBatch) -> None:
    """Check what the batch's header has in a valid file. Raises KafkaError."""
    count = batch.last_offset - batch.base_offset + 1
    if batch.producer_id == NO_PRODUCER:
        has_valid_producer = batch.base_sequence == batch.last_sequence == NO_SEQUENCE
    else:
        has_valid_producer = (
            batch.producer_id >= 0
            and batch.producer_epoch >= 0
            and batch.base_sequence >= 0
            and batch.last_sequence == (batch.base_sequence + count - 1) & MAX_SEQUENCE
        )
    if batch.magic != MAGIC or batch.timestamp_type not in (CREATE_TIME, LOG_APPEND_TIME):
        raise KafkaError(
            ErrorCode.invalid_request,
            f"The batch at {batch.byte_offset} has magic {batch.magic} and timestamp type {batch.timestamp_type}.",
        )
    if not has_valid_producer:
        raise KafkaError(
            ErrorCode.invalid_request,
            f"The batch at {batch.byte_offset} has {count} records, producer {batch.producer_id}, epoch "
            f"{batch.producer_epoch}, and sequences from {batch.base_sequence} to {batch.last_sequence}.",
        )


def _partition_head(partition: PartitionState) -> PartitionHead:
    return PartitionHead(partition.name, partition.log_start_offset, partition.high_watermark)


def _file_head(file: FileState, batches: Sequence[FileBatch]) -> FileHead:
    positions = {
        each.batch.byte_offset: FilePosition(
            (each.topic_id, each.index),
            each.batch.base_offset,
            each.batch.last_offset,
            each.batch.log_append_ms,
        )
        for each in batches
    }
    return FileHead(file.owner_ids, file.is_owner, positions, file.live_batches)


def _parse_key(object_key: str) -> tuple[int, int]:
    try:
        return parse_object_key(object_key)
    except ValueError as error:
        raise KafkaError(ErrorCode.invalid_request, str(error)) from error


def _no_topic(coordinator_id: int, topic_id: UUID) -> str:
    return f"The coordinator {coordinator_id} does not have the topic with the id {topic_id}."


def _refused(error: KafkaError, log_start_offset: int = -1) -> DisklessCommitBatchResult:
    return DisklessCommitBatchResult(
        error_code=error.code,
        error_message=error.message,
        assigned_base_offset=-1,
        log_append_time=-1,
        log_start_offset=log_start_offset,
    )


def _duplicate(
    base_offset: int, log_append_ms: int, head: PartitionHead
) -> DisklessCommitBatchResult:
    return DisklessCommitBatchResult(
        assigned_base_offset=base_offset,
        log_append_time=log_append_ms,
        log_start_offset=head.log_start_offset,
        is_duplicate=True,
    )
