"""Synchronous access to brokers: offsets and epochs for the driver, batches for the tasks.

Requests go to partition leaders and are retried while leaders change. A process shares one client, with one
connection per broker, among all its tasks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from typing import TypeVar
from uuid import UUID

from odradek.client.batch_reader import BatchReader, FetchedBatches
from odradek.client.consumer import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    ConsumedRecord,
    IsolationLevel,
    list_offsets,
)
from odradek.client.epochs import epoch_ends
from odradek.client.errors import ClientError, Unreachable, retriable
from odradek.client.metadata import Cluster, Topic, open_cluster, parse_bootstrap
from odradek.client.whole_topic import WholeTopic
from odradek.pipeline.errors import BadOption, BrokersUnavailable, PipelineError, error_text
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.seams.loop_thread import LoopThread
from odradek.seams.tcp import TcpNetwork
from odradek.storage.log.leader_epoch_cache import EpochStart
from odradek.storage.tiered import metadata_records
from odradek.storage.tiered.audit import KnownSegments
from odradek.storage.tiered.errors import RemoteStorageError
from odradek.storage.tiered.metadata_records import METADATA_TOPIC
from odradek.storage.tiered.segment_metadata import (
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)

__all__ = ["EARLIEST", "LATEST", "Brokers", "TopicPartition", "brokers_at"]

CLIENT_ID = "odradek-pipeline"

DENIED = frozenset(
    (
        ErrorCode.topic_authorization_failed,
        ErrorCode.group_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.transactional_id_authorization_failed,
    )
)
ACL_HINT = "the ACLs must allow it for User:ANONYMOUS, the principal of clients over PLAINTEXT"
REACHABILITY_HINT = (
    "Spark's driver and workers must be able to connect to these brokers and to their advertised"
    " listeners"
)
RETRY_HINT = "run it again when all partitions have a leader that responds"

T = TypeVar("T")


class Brokers:
    """Synchronous, thread-safe client of a cluster. Raises BrokersUnavailable, which names the failed request."""

    def __init__(self, bootstrap: str, timeout_ms: int) -> None:
        self._bootstrap = bootstrap
        self._loop = connected(bootstrap, timeout_ms, CLIENT_ID)
        self._cluster = self._loop.value

    def topics(self) -> dict[str, Topic]:
        """Return all topics by name."""

        async def query() -> dict[str, Topic]:
            await self._cluster.refresh(None)
            return dict(self._cluster.topics)

        return self._request("the topics", query)

    def offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, int]:
        """Return the first offset with at least that timestamp (ms), or for EARLIEST or LATEST; -1 for none."""
        isolation = _isolation(read_committed)

        async def query() -> dict[TopicPartition, int]:
            found = await list_offsets(self._cluster, wanted, isolation=isolation)
            return {tp: each.offset for tp, each in found.items()}

        return self._request("offsets", query) if wanted else {}

    def leader_epochs(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the current leader epochs; everything written so far has these or earlier epochs. Partitions whose
        broker does not report it (before Kafka 2.0) are left out.
        """

        async def query() -> dict[TopicPartition, int]:
            found = await list_offsets(self._cluster, dict.fromkeys(partitions, LATEST))
            return {tp: each.leader_epoch for tp, each in found.items()}

        epochs = self._request("the leader epochs", query)
        return {tp: epoch for tp, epoch in epochs.items() if epoch >= 0}

    def local_log_start_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the local log start offsets (KIP-405); earlier offsets are in the remote tier only. Empty if the
        brokers do not report them (before Kafka 3.4).
        """
        found = self._tier_offsets("the local log start offsets", partitions, EARLIEST_LOCAL)
        return {tp: offset for tp, offset in found.items() if offset >= 0}

    def remote_log_end_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the offset after the last tiered one (KIP-1005), of partitions for which the broker reports it
        (Kafka 3.9 and later).
        """
        found = self._tier_offsets("the end of the remote tier", partitions, LATEST_TIERED)
        return {tp: offset + 1 for tp, offset in found.items() if offset >= 0}

    def _tier_offsets(
        self, what: str, partitions: Iterable[TopicPartition], which: int
    ) -> dict[TopicPartition, int]:
        """Return offsets for a special timestamp; empty if the brokers do not support it."""

        async def query() -> dict[TopicPartition, int]:
            try:
                found = await list_offsets(self._cluster, dict.fromkeys(partitions, which))
            except KafkaError as error:
                if error.code is not ErrorCode.unsupported_version:
                    raise
                return {}
            return {tp: each.offset for tp, each in found.items()}

        return self._request(what, query)

    def finished_segments(self, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        """Return the segments of a partition that `__remote_log_metadata` has as completely copied now."""

        def selected(count: int) -> tuple[int]:
            return (metadata_records.metadata_partition(partition, count),)

        async def query() -> list[RemoteLogSegmentMetadata]:
            known = KnownSegments()

            def apply(record: ConsumedRecord) -> None:
                with suppress(RemoteStorageError):  # brokers skip unreadable records, too
                    event = metadata_records.decode(record.value or b"")
                    if event.partition == partition:
                        known.apply(event)

            await WholeTopic(self._cluster, METADATA_TOPIC, selected).read_to_end(apply)
            finished = SegmentState.COPY_SEGMENT_FINISHED
            return [each for each in known.segments(partition) if each.state is finished]

        return self._request(f"the remote log metadata of {partition}", query)

    def remote_metadata(self) -> RemoteMetadata:
        """Return a reader of `__remote_log_metadata`; nothing is read yet."""
        return RemoteMetadata(self._cluster)

    def read_remote_metadata(self, metadata: RemoteMetadata) -> None:
        """Read `__remote_log_metadata` to its current end."""
        self._request("the remote log metadata", metadata.read_to_end)

    def lineage(self, tp: TopicPartition, epochs: Iterable[int]) -> list[EpochStart]:
        """Return the start offsets of those epochs of which the leader has records (KIP-101).

        An epoch starts where the previous one ends. The last entry applies to all later epochs.
        """
        ordered = sorted(set(epochs))
        ends = self._request(f"the epochs of {tp}", partial(epoch_ends, self._cluster, tp, ordered))
        found: list[EpochStart] = []
        start = 0
        for epoch in ordered:
            end = ends[epoch]
            if end.epoch == epoch:
                found.append(EpochStart(epoch, start))
            start = max(start, end.end_offset)
        return [*found, EpochStart(ordered[-1] + 1, start)] if ordered else []

    def fetch(
        self,
        tp: TopicPartition,
        offset: int,
        *,
        topic_id: UUID | None,
        read_committed: bool,
        max_bytes: int,
    ) -> FetchedBatches:
        """Fetch batches from `offset` on. Raises KafkaError OFFSET_OUT_OF_RANGE, and INCONSISTENT_TOPIC_ID for a
        recreated topic.
        """
        reader = BatchReader(
            self._cluster,
            tp,
            topic_id=topic_id,
            isolation=_isolation(read_committed),
            max_bytes=max_bytes,
            unavailable_s=self._cluster.timeout_s,
        )
        return self._request(f"records of {tp} at offset {offset}", partial(reader.fetch, offset))

    def _request(self, what: str, operation: Callable[[], Awaitable[T]]) -> T:
        try:
            return self._loop.call(operation)
        except KafkaError as error:
            if error.code in (ErrorCode.offset_out_of_range, ErrorCode.inconsistent_topic_id):
                raise
            raise broker_error(f"{self._bootstrap} did not return {what}", error) from error
        except ClientError as error:
            raise broker_error(f"{self._bootstrap} did not return {what}", error) from error


def broker_error(what: str, error: KafkaError | ClientError) -> BrokersUnavailable:
    """Return the error for a failed request, with a hint what to do."""
    text = f"{what}: {error_text(error)}"
    if isinstance(error, KafkaError) and error.code in DENIED:
        text += f"; {ACL_HINT}"
    elif isinstance(error, Unreachable):
        text += f"; {REACHABILITY_HINT}"
    elif retriable(error):
        text += f"; {RETRY_HINT}"
    return BrokersUnavailable(text)


def _isolation(read_committed: bool) -> IsolationLevel:
    return IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED


@lru_cache(maxsize=8)
def brokers_at(bootstrap: str, timeout_ms: int) -> Brokers:
    """Return the process's shared client."""
    return Brokers(bootstrap, timeout_ms)


class RemoteMetadata:
    """Reads `__remote_log_metadata` to its current end.

    An unreadable or deleted record is an error, because an audit would report segments in use as garbage.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._topic = WholeTopic(cluster, METADATA_TOPIC)
        self.known = KnownSegments()

    async def read_to_end(self) -> None:
        """Read to the current end. Raises PipelineError, KafkaError, ClientError."""
        try:
            await self._topic.read_to_end(self._apply)
        except KafkaError as error:
            if error.code is not ErrorCode.unknown_topic_or_partition:
                raise
            raise PipelineError(
                f"the cluster has no topic {METADATA_TOPIC}, so it has no tiered topics: give"
                " the brokers of the cluster that uses this store, or no brokers to use the"
                " manifests in the store"
            ) from None
        for tp, start in self._topic.begins_late:
            raise PipelineError(
                f"{tp} begins at offset {start}, so segments of deleted records would be reported"
                " as garbage: the topic must keep all records (retention.ms=-1, retention.bytes=-1); without"
                " --bootstrap the manifests in the store are used"
            )

    def _apply(self, record: ConsumedRecord) -> None:
        if record.value is None:
            return
        try:
            self.known.apply(metadata_records.decode(record.value))
        except RemoteStorageError as error:
            position = f"{METADATA_TOPIC}-{record.partition} at offset {record.offset}"
            raise PipelineError(f"{position} cannot be read: {error_text(error)}") from None


START_SECONDS = 30.0


def connected(bootstrap: str, timeout_ms: int, client_id: str) -> LoopThread[Cluster]:
    """Start a client in a thread with an event loop. Raises BadOption if `bootstrap` has no addresses."""
    try:
        parse_bootstrap(bootstrap)
    except ValueError as error:
        raise BadOption(f"the brokers' address: {error}") from None
    return LoopThread(
        lambda: open_cluster(
            TcpNetwork(), bootstrap, client_id=client_id, timeout_s=timeout_ms / 1000
        ),
        name=client_id,
        start_s=START_SECONDS,
    )
