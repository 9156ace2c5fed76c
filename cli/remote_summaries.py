"""`odradek remote summarize`: write a summary for each partition without a summary of a leader.

The summaries are stored with leader epoch `NO_LEADER`, so that the summary of any leader takes precedence: a leader
writes its own summary before it copies a segment, or removes them. Without metadata, the segments are read from the
manifests.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio

from odradek.cli.remote_inputs import call
from odradek.seams import Seams
from odradek.seams.objects import ObjectMissing, Objects
from odradek.storage.tiered.audit import AuditFinding, SegmentStatus
from odradek.storage.tiered.manifest import Manifest
from odradek.storage.tiered.object_names import (
    MANIFEST_SUFFIX,
    NO_LEADER,
    parse_summary,
    partition_directory,
)
from odradek.storage.tiered.object_store import ObjectStoreStorage
from odradek.storage.tiered.partition_summary import PartitionSummaryBuilder
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata, TopicIdPartition

MANIFESTS_AT_ONCE = 16


class SummaryWriter:
    """Writes summaries of partitions; call `take` with findings in key order, then `end`.

    Raises CommandFailed if the store is unavailable.
    """

    def __init__(self, objects: Objects, seams: Seams) -> None:
        self._objects = objects
        self._seams = seams
        self._storage = ObjectStoreStorage(objects, seams.entropy)
        self._of: TopicIdPartition | None = None
        self._found: list[AuditFinding] = []
        self.partitions = 0
        self.segments = 0
        self.by_leaders = 0
        self.problems: list[str] = []

    async def take(self, findings: Sequence[AuditFinding]) -> None:
        for each in findings:
            has_manifest = each.stored is not None and MANIFEST_SUFFIX in each.stored.objects
            if each.status is SegmentStatus.WHOLE and has_manifest:
                if each.partition != self._of:
                    await self.end()
                    self._of = each.partition
                self._found.append(each)

    async def end(self) -> None:
        """Write the summary of the current partition, whose segments are all known now."""
        partition, found = self._of, self._found
        self._of, self._found = None, []
        if partition is None:
            return
        if await call(self._seams, lambda: self._has_leaders(partition)):
            self.by_leaders += 1
            return
        try:
            segments = await self._metadata(found)
            segments.sort(key=lambda each: (each.start_offset, each.id.id.bytes))
            data = PartitionSummaryBuilder(segments).encode()
        except ValueError as error:
            self.problems.append(f"{partition} has no summary: {error}")
            return
        await call(self._seams, lambda: self._storage.put_summary(partition, NO_LEADER, data))
        self.partitions += 1
        self.segments += len(segments)

    def _has_leaders(self, partition: TopicIdPartition) -> bool:
        page = next(self._objects.pages(partition_directory(partition)), ())
        named = (parse_summary(each.key) for each in page)
        return any(each is not None and each[1] != NO_LEADER for each in named)

    async def _metadata(self, found: Sequence[AuditFinding]) -> list[RemoteLogSegmentMetadata]:
        """Read the metadata of segments from their manifests. Raises ValueError for an invalid manifest."""
        segments = [each.metadata for each in found if each.metadata is not None]
        limit = trio.CapacityLimiter(MANIFESTS_AT_ONCE)
        broken: list[str] = []

        async def open_manifest(key: str) -> None:
            async with limit:
                try:
                    data = await call(self._seams, lambda: self._objects.get(key))
                    segments.append(Manifest.parse(data).metadata)
                except ObjectMissing:
                    return  # deleted since it was listed
                except ValueError as error:
                    broken.append(f"{key}: {error}")

        async with trio.open_nursery() as nursery:
            for each in found:
                if each.metadata is None and each.stored is not None:
                    key = each.stored.objects[MANIFEST_SUFFIX].key
                    nursery.start_soon(partial(open_manifest, key))
        if broken:
            raise ValueError(broken[0])
        return segments
