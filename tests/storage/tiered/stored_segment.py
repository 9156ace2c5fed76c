"""One segment and its data, for tests of object stores."""

from __future__ import annotations

from uuid import UUID

from odradek.storage.tiered.remote_storage_manager import LogSegmentData
from odradek.storage.tiered.segment_metadata import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)

TOPIC_ID = UUID("2d682b32-656b-4f46-bfff-b84ae1267938")


SEGMENT_ID = UUID("6c2a97f5-4f94-4be9-a4f9-417f3140d623")


PARTITION = TopicIdPartition(TOPIC_ID, "or.ders-1", 2)


DIRECTORY = "or.ders-1-2-LWgrMmVrT0a__7hK4SZ5OA"


STEM = f"{DIRECTORY}/00000000000000000011-bCqX9U-US-mk-UF_MUDWIw"


LOG = b"".join(b"%d," % n for n in range(2_000))


METADATA = RemoteLogSegmentMetadata(
    id=RemoteLogSegmentId(PARTITION, SEGMENT_ID),
    start_offset=11,
    end_offset=29,
    broker_id=1,
    max_timestamp_ms=5,
    event_timestamp_ms=6,
    epochs=(EpochStart(0, 11), EpochStart(3, 20)),
    size_bytes=len(LOG),
)


DATA = LogSegmentData(LOG, b"oo", b"ii", b"tt", b"pp", b"ee")
