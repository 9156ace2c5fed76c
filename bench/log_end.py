"""Reads a partition's end offset, and the codec of its last batch, over a plain socket."""

from __future__ import annotations

from odradek.bench.model import WorkloadFailed
from odradek.bench.raw_connection import RawConnection, must_be_none
from odradek.protocol.apis import FETCH, LIST_OFFSETS
from odradek.protocol.records.batch import COMPRESSION_MASK

LATEST = -1
NAMED_TOPICS = 12
"""The last version of Fetch with topic names instead of topic ids."""
BATCH_BYTES = 1 << 20
TIMEOUT_MS = 30_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_ATTRIBUTES = slice(21, 23)


def end_offset(wire: RawConnection, topic: str) -> int:
    """Return the end offset of the topic's first partition. Raises WorkloadFailed."""
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": LATEST}
    response = wire.request(
        LIST_OFFSETS,
        {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": topic, "partitions": [partition]}],
            "timeout": TIMEOUT_MS,
        },
    )
    found = response.topics[0].partitions[0]
    must_be_none(found.error_code, f"the end of {topic}")
    return int(found.offset)


def last_codec(wire: RawConnection, topic: str) -> str:
    """Return the codec of the batch with the last record of the first partition. Raises WorkloadFailed."""
    partition = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": end_offset(wire, topic) - 1,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": BATCH_BYTES,
    }
    response = wire.request(
        FETCH,
        {
            "replica_id": -1,
            "max_wait": TIMEOUT_MS,
            "min_bytes": 1,
            "max_bytes": BATCH_BYTES,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic": topic, "partitions": [partition]}],
            "forgotten_topics_data": [],
        },
        at_most=NAMED_TOPICS,
    )
    found = response.responses[0].partitions[0]
    must_be_none(found.error_code, f"the last batch of {topic}")
    attributes = bytes(found.records or b"")[_ATTRIBUTES]
    if len(attributes) < 2:
        raise WorkloadFailed(f"the last batch of {topic} is missing")
    return CODECS[int.from_bytes(attributes, "big") & COMPRESSION_MASK]
