"""What a query needs of brokers, for callers without a loop: offsets and epochs for the driver, bytes for
the tasks.

Everything is asked of whoever leads the partition, and asked again while leaders change. A process has
one connection a broker for all its tasks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
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
    Isolation,
    TopicPartition,
    list_offsets,
)
from odradek.client.epochs import epoch_ends
from odradek.client.errors import ClientError, Unreachable, retriable
from odradek.client.metadata import Cluster, Topic, open_cluster, parse_bootstrap
from odradek.client.whole_topic import WholeTopic
from odradek.pipeline.errors import BadOption, BrokersUnavailable, PipelineError, in_words
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.seams.loop_thread import LoopThread
from odradek.seams.tcp import TcpNetwork
from odradek.storage.log.epochs import EpochStart
from odradek.storage.tiered import metadata_records
from odradek.storage.tiered.audit import KnownSegments
from odradek.storage.tiered.errors import RemoteStorageError
from odradek.storage.tiered.metadata_records import METADATA_TOPIC

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
LET_US = "ACLs have to allow that to User:ANONYMOUS, which clients over PLAINTEXT are"
REACHABLE = "Spark's driver and workers have to reach the brokers there, and at the addresses they advertise"
LATER = "run it again once all partitions have a leader that answers"

T = TypeVar("T")


class Brokers:
    """Synchronous; from any thread. What cannot be had is BrokersUnavailable, which says what it was."""

    def __init__(self, bootstrap: str, timeout_ms: int) -> None:
        self._bootstrap = bootstrap
        self._loop = connected(bootstrap, timeout_ms, CLIENT_ID)
        self._cluster = self._loop.value

    def topics(self) -> dict[str, Topic]:
        """All topics there are, by name."""

        async def ask() -> dict[str, Topic]:
            await self._cluster.refresh(None)
            return dict(self._cluster.topics)

        return self._ask("which topics there are", ask)

    def offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, int]:
        """The first offset with at least that timestamp (ms), or at EARLIEST or LATEST; -1 for none."""
        isolation = _isolation(read_committed)

        async def ask() -> dict[TopicPartition, int]:
            found = await list_offsets(self._cluster, wanted, isolation=isolation)
            return {where: each.offset for where, each in found.items()}

        return self._ask("offsets", ask) if wanted else {}

    def leader_epochs(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Those of who leads them: all that there is by now was written in these, or before. Of brokers that
        say it (Kafka 2.0)."""

        async def ask() -> dict[TopicPartition, int]:
            found = await list_offsets(self._cluster, dict.fromkeys(partitions, LATEST))
            return {where: each.leader_epoch for where, each in found.items()}

        epochs = self._ask("who leads", ask)
        return {where: epoch for where, epoch in epochs.items() if epoch >= 0}

    def local_starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where brokers' own logs begin (KIP-405): all below is in the remote tier, or nowhere."""
        return {
            where: offset
            for where, offset in self.offsets(dict.fromkeys(partitions, EARLIEST_LOCAL)).items()
            if offset >= 0
        }

    def tiered_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Behind the last offset that is in the remote tier (KIP-1005), of those that brokers say it of:
        not those before Kafka 3.9, nor a leader that has yet to find out."""

        async def ask() -> dict[TopicPartition, int]:
            wanted = dict.fromkeys(partitions, LATEST_TIERED)
            try:
                found = await list_offsets(self._cluster, wanted)
            except KafkaError as error:
                if error.code is not ErrorCode.unsupported_version:
                    raise
                return {}
            return {where: each.offset + 1 for where, each in found.items() if each.offset >= 0}

        return self._ask("how far its remote tier reaches", ask)

    def remote_metadata(self) -> RemoteMetadata:
        """What the cluster says of its remote segments, once it is read."""
        return RemoteMetadata(self._cluster)

    def read_remote_metadata(self, metadata: RemoteMetadata) -> None:
        """To its end of this moment."""
        self._ask("what is tiered", metadata.read_on)

    def lineage(self, where: TopicPartition, epochs: Iterable[int]) -> list[EpochStart]:
        """Where those of the epochs begin that the leader has records of, as far as that matters: an
        epoch begins where the one before it, of these, has ended. Behind them one that stands for all
        later ones."""
        ordered = sorted(set(epochs))
        ends = self._ask(
            f"the epochs of {where}", partial(epoch_ends, self._cluster, where, ordered)
        )
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
        where: TopicPartition,
        offset: int,
        *,
        topic_id: UUID | None,
        read_committed: bool,
        max_bytes: int,
    ) -> FetchedBatches:
        """Batches from `offset` on. Raises KafkaError OFFSET_OUT_OF_RANGE, and INCONSISTENT_TOPIC_ID where the
        topic is another one by now."""
        reader = BatchReader(
            self._cluster,
            where,
            topic_id=topic_id,
            isolation=_isolation(read_committed),
            max_bytes=max_bytes,
            unavailable_s=self._cluster.timeout_s,
        )
        return self._ask(f"what {where} has at offset {offset}", partial(reader.fetch, offset))

    def _ask(self, what: str, question: Callable[[], Awaitable[T]]) -> T:
        try:
            return self._loop.call(question)
        except KafkaError as error:
            if error.code in (ErrorCode.offset_out_of_range, ErrorCode.inconsistent_topic_id):
                raise
            raise refused(f"{self._bootstrap} did not say {what}", error) from error
        except ClientError as error:
            raise refused(f"{self._bootstrap} did not say {what}", error) from error


def refused(what: str, error: KafkaError | ClientError) -> BrokersUnavailable:
    """For what a broker did not do, and what can be done about that."""
    text = f"{what}: {in_words(error)}"
    if isinstance(error, KafkaError) and error.code in DENIED:
        text += f"; {LET_US}"
    elif isinstance(error, Unreachable):
        text += f"; {REACHABLE}"
    elif retriable(error):
        text += f"; {LATER}"
    return BrokersUnavailable(text)


def _isolation(read_committed: bool) -> Isolation:
    return Isolation.READ_COMMITTED if read_committed else Isolation.READ_UNCOMMITTED


@lru_cache(maxsize=8)
def brokers_at(bootstrap: str, timeout_ms: int) -> Brokers:
    """The process's own, for all its tasks."""
    return Brokers(bootstrap, timeout_ms)


class RemoteMetadata:
    """See the module. A record that cannot be read, or one that is gone, would make an audit take what is
    used for garbage: both are errors."""

    def __init__(self, cluster: Cluster) -> None:
        self._topic = WholeTopic(cluster, METADATA_TOPIC)
        self.known = KnownSegments()

    async def read_on(self) -> None:
        """Raises PipelineError, KafkaError, ClientError."""
        try:
            await self._topic.read_on(self._take)
        except KafkaError as error:
            if error.code is not ErrorCode.unknown_topic_or_partition:
                raise
            raise PipelineError(
                f"the cluster has no {METADATA_TOPIC}: nothing there is tiered; name the brokers of the cluster"
                " that the store is of, or none: then the manifests in the store count"
            ) from None
        for where, start in self._topic.begins_late:
            raise PipelineError(
                f"{where} begins at offset {start} only, and segments that earlier records told of would be taken"
                " for garbage: the topic has to keep all of them (retention.ms=-1, retention.bytes=-1); where no"
                " brokers are named, the manifests in the store count"
            )

    def _take(self, record: ConsumedRecord) -> None:
        if record.value is None:
            return
        try:
            self.known.apply(metadata_records.decode(record.value))
        except RemoteStorageError as error:
            where = f"{METADATA_TOPIC}-{record.partition} at offset {record.offset}"
            raise PipelineError(f"{where} cannot be read: {in_words(error)}") from None


START_SECONDS = 30.0


def connected(bootstrap: str, timeout_ms: int, client_id: str) -> LoopThread[Cluster]:
    """Raises BadOption where `bootstrap` names no addresses."""
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
