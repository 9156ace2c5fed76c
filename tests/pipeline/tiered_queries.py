"""Queries of a virtual object store with a virtual leader."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from odradek.pipeline.errors import (
    CorruptSegment,
    DeniedSegment,
    MissingSegment,
)
from odradek.pipeline.options import parse_options
from odradek.pipeline.query import Query
from odradek.protocol.topics import TopicPartition
from odradek.seams.objects import ObjectDenied
from odradek.storage.log.producer_snapshots import encode_snapshot
from odradek.storage.log.producer_state import ProducerEntry
from odradek.storage.tiered.object_names import (
    segment_key,
)
from odradek.storage.tiered.remote_storage_manager import IndexType
from odradek.storage.tiered.segment_metadata import RemoteLogSegmentMetadata
from odradek.testing.virtual_object_store import VirtualObjectStore
from tests.pipeline.virtual_leader import VirtualLeader
from tests.pipeline.virtual_store import SegmentStore, segment

ONLY = TopicPartition("t", 0)


def query(remote: SegmentStore, leader: VirtualLeader | None = None, **options: Any) -> Query:
    given = {"tiered.url": "unused", "subscribe": "t", **options}
    if leader is not None:
        given["kafka.bootstrap.servers"] = "unused:9092"
    named = {name.lower(): str(value) for name, value in given.items() if value is not None}
    return Query(parse_options(named, streaming=False), store=remote.store)


COMMITTED = {"kafka.isolation.level": "read_committed"}


def snapshot(remote: SegmentStore, of: RemoteLogSegmentMetadata, *open_at: int) -> None:
    producers = [ProducerEntry(7, 0, 0, 1, start, []) for start in open_at]
    key = segment_key(of, IndexType.PRODUCER_SNAPSHOT.value)
    remote.objects.put(key, [encode_snapshot(producers)])


class DenyingStore(VirtualObjectStore):
    """Store that denies objects whose key ends with `denied`."""

    denied = ""

    def get(self, key: str) -> Any:
        if self.denied and key.endswith(self.denied):
            raise ObjectDenied(f"{key}: 403 Forbidden")
        return super().get(key)


def unreadable(
    remote: SegmentStore, of: RemoteLogSegmentMetadata, kind: IndexType, how: str
) -> str:
    """Make one of a segment's objects unreadable; return its key."""
    key = segment_key(of, kind.value)
    remote.objects.put(key, [b"nonsense"])
    if how == "denied":
        DenyingStore.denied = key
    elif how == "missing":
        remote.objects.delete(key)
    return key


HOW = pytest.mark.parametrize(
    ("how", "kind"),
    [("corrupt", CorruptSegment), ("denied", DeniedSegment), ("missing", MissingSegment)],
)


def with_transaction_indexes(count: int) -> tuple[SegmentStore, list[RemoteLogSegmentMetadata]]:
    """Return a store with segments of 10 offsets and transaction indexes; no transaction is open at their ends."""
    remote = SegmentStore(objects=DenyingStore())
    segments = [
        replace(segment(number, 10 * number, 10 * number + 9), txn_index_empty=False)
        for number in range(count)
    ]
    remote.has(*segments)
    for each in segments:
        snapshot(remote, each)
        remote.objects.put(segment_key(each, IndexType.TRANSACTION.value), [b""])
    return remote, segments
