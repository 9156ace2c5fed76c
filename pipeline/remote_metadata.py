"""What a cluster says of its remote segments: `__remote_log_metadata`, read to its end of that moment."""

from __future__ import annotations

from odradek.client.consumer import ConsumedRecord
from odradek.client.metadata import Cluster
from odradek.client.whole_topic import WholeTopic
from odradek.pipeline.errors import PipelineError, in_words
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.storage.tiered import metadata_records
from odradek.storage.tiered.audit import KnownSegments
from odradek.storage.tiered.errors import RemoteStorageError
from odradek.storage.tiered.metadata_records import METADATA_TOPIC


class RemoteMetadata:
    """See the module. A record that cannot be read, or one that is gone, would make an audit take what is
    used for garbage: both are errors."""

    def __init__(self, cluster: Cluster) -> None:
        self._topic = WholeTopic(cluster, METADATA_TOPIC)
        self.known = KnownSegments()

    async def read_on(self) -> None:
        """Raises PipelineError, KafkaError, ClientError."""
        try:
            await self._topic.read_to_end(self._take)
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
