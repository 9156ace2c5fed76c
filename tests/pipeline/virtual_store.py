"""Remote storage of one partition, in virtual objects."""

from __future__ import annotations

from uuid import UUID

from odradek.pipeline.store import Store
from odradek.seams.entropy import SeededEntropy
from odradek.storage.tiered.manifest import Manifest
from odradek.storage.tiered.object_names import (
    LOG_SUFFIX,
    MANIFEST_SUFFIX,
    segment_key,
)
from odradek.storage.tiered.object_store import ObjectStoreStorage
from odradek.storage.tiered.partition_summary import PartitionSummaryBuilder
from odradek.storage.tiered.remote_storage_manager import IndexType
from odradek.storage.tiered.segment_metadata import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from odradek.testing.virtual_object_store import VirtualObjectStore

WHERE = TopicIdPartition(UUID(int=1), "t", 0)


def segment(number: int, start: int, end: int, epoch: int = 0) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(WHERE, UUID(int=number)),
        start,
        end,
        1,
        1000 + number,
        0,
        (EpochStart(epoch, start),),
        100,
        SegmentState.COPY_SEGMENT_FINISHED,
        txn_index_empty=True,
    )


class SegmentStore:
    def __init__(self, page_objects: int = 10, objects: VirtualObjectStore | None = None) -> None:
        self.objects = objects or VirtualObjectStore(page_objects=page_objects)
        self.storage = ObjectStoreStorage(self.objects, SeededEntropy(1))
        self.store = Store(self.objects, self.storage)

    def has(self, *segments: RemoteLogSegmentMetadata) -> None:
        for each in segments:
            text = "0\n1\n0 0\n"
            self.objects.put(segment_key(each, IndexType.LEADER_EPOCH.value), [text.encode()])
            self.objects.put(segment_key(each, LOG_SUFFIX), [b"x" * 100])
            self.objects.put(segment_key(each, MANIFEST_SUFFIX), [Manifest(each, {}).render()])

    def summarise(self, *segments: RemoteLogSegmentMetadata, epoch: int = 0) -> None:
        self.storage.put_summary(WHERE, epoch, PartitionSummaryBuilder(segments).encode())

    def requests(self, *operations: str) -> int:
        return sum(operation in operations for operation, _ in self.objects.bucket.requests)

    def asked(self) -> None:
        self.objects.bucket.requests.clear()
