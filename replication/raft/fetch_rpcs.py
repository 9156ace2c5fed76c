"""Codecs of Fetch and FetchSnapshot of the metadata log (KIP-595, 630, 853, 1166).

Fetch uses the topic id, so version 13 is the oldest that can be sent. `protocol/fetch_response_writer.py` encodes its
response; the codec returns the arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError, error_code
from odradek.protocol.fetch_response_writer import (
    TOPIC_ID_VERSION,
    FetchedPartition,
    FetchedTopic,
    Part,
)
from odradek.protocol.leader_tags import NodeEndpoint
from odradek.protocol.messages import field
from odradek.protocol.topics import CLUSTER_METADATA
from odradek.replication.raft.messages import (
    EpochEndOffset,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
)
from odradek.replication.raft.metadata_log import TOPIC_ID
from odradek.replication.raft.rpc_codec import (
    PARTITION,
    RpcCodec,
    Values,
    any_version,
    directory,
    leader_at,
    refuse_all,
    requested_epoch,
    require_partition,
    responded_epoch,
    write_leader,
)
from odradek.replication.raft.snapshots import SnapshotId
from odradek.replication.raft.voters import ReplicaKey

UNKNOWN_HIGH_WATERMARK: Final = (1 << 63) - 1
"""High watermark of requests before KIP-1166: no advance of the high watermark completes the fetch."""

# Fetch


def _oldest_fetch(request: FetchRequest) -> int:
    return TOPIC_ID_VERSION


def _write_fetch(request: FetchRequest) -> Values:
    partition = {
        "partition": PARTITION,
        "current_leader_epoch": request.epoch,
        "fetch_offset": request.fetch_offset,
        "last_fetched_epoch": request.last_fetched_epoch,
        "replica_directory_id": request.replica.directory_id,
        "high_watermark": request.high_watermark,
    }
    return {
        "cluster_id": request.cluster_id,
        "replica_id": request.replica.id,
        "replica_state": {"replica_id": request.replica.id},
        "max_wait": request.max_wait_ms,
        "max_bytes": request.max_bytes,
        "topics": [{"topic_id": TOPIC_ID, "partitions": [partition]}],
    }


def _read_fetch(entity: Any) -> FetchRequest:
    topics = entity.topics
    single = len(topics) == 1 and len(topics[0].partitions) == 1
    if not single or field(topics[0], "topic_id") != TOPIC_ID:
        raise KafkaError(ErrorCode.invalid_request, f"the only partition is {CLUSTER_METADATA}-0")
    requested = topics[0].partitions[0]
    if requested.partition != PARTITION:
        raise KafkaError(ErrorCode.invalid_request, f"the only partition is {CLUSTER_METADATA}-0")
    state = field(entity, "replica_state")
    replica_id = entity.replica_id if state is None else state.replica_id
    return FetchRequest(
        cluster_id=entity.cluster_id,
        replica=ReplicaKey(replica_id, directory(field(requested, "replica_directory_id"))),
        epoch=requested_epoch(requested.current_leader_epoch),
        fetch_offset=requested.fetch_offset,
        last_fetched_epoch=requested.last_fetched_epoch,
        high_watermark=field(requested, "high_watermark", UNKNOWN_HIGH_WATERMARK),
        max_wait_ms=round(entity.max_wait.total_seconds() * 1000),
        max_bytes=entity.max_bytes,
    )


def _write_fetch_response(response: FetchResponse, request: FetchRequest, listener: str) -> Values:
    if response.error is ErrorCode.inconsistent_cluster_id:
        return {"error_code": response.error}
    diverging = response.diverging
    partition = FetchedPartition(
        index=PARTITION,
        error_code=response.error,
        high_watermark=response.high_watermark,
        log_start_offset=response.log_start_offset,
        aborted_transactions=(),
        diverging_epoch=None if diverging is None else (diverging.epoch, diverging.end_offset),
        current_leader=(response.leader_id, response.epoch),
        snapshot_id=response.snapshot_id,
        records=_parts(response.records),
    )
    topic = FetchedTopic(name=CLUSTER_METADATA, topic_id=TOPIC_ID, partitions=[partition])
    return {
        "topics": [topic],
        "node_endpoints": [NodeEndpoint(**each) for each in write_leader(response, listener)],
    }


def _parts(records: Any) -> Sequence[Part]:
    """Records that the driver has read: None, one buffer, or several parts."""
    if not records:
        return ()
    if isinstance(records, bytes | bytearray | memoryview):
        return (records,)
    return tuple(records)


def _refuse_fetch(entity: Any, error: KafkaError) -> Values:
    return {"error_code": error.code}


def _read_fetch_response(entity: Any, request: FetchRequest, listener: str) -> FetchResponse:
    if entity.error_code != ErrorCode.none:
        return FetchResponse(error=entity.error_code)
    responded = require_partition(_fetched_partition(entity.responses))
    leader, diverging, snapshot = (
        responded.current_leader,
        responded.diverging_epoch,
        responded.snapshot_id,
    )
    parted = diverging.epoch >= 0
    return FetchResponse(
        error=error_code(responded.error_code),
        epoch=responded_epoch(leader.leader_epoch),
        leader_id=leader.leader_id,
        leader_endpoints=leader_at(leader.leader_id, field(entity, "node_endpoints", ()), listener),
        high_watermark=responded.high_watermark,
        log_start_offset=responded.log_start_offset,
        diverging=EpochEndOffset(diverging.epoch, diverging.end_offset) if parted else None,
        snapshot_id=None if parted else _snapshot_id(snapshot),
        records=responded.records or None,
    )


def _fetched_partition(topics: Sequence[Any]) -> Any:
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        return None
    partition = topics[0].partitions[0]
    known = topics[0].topic_id == TOPIC_ID and partition.partition_index == PARTITION
    return partition if known else None


def _snapshot_id(responded: Any) -> SnapshotId | None:
    if responded.end_offset < 0 or responded.epoch < 0:
        return None
    return SnapshotId(responded.end_offset, responded.epoch)


# FetchSnapshot


def _write_fetch_snapshot(request: FetchSnapshotRequest) -> Values:
    partition = {
        "partition": PARTITION,
        "current_leader_epoch": request.epoch,
        "snapshot_id": request.snapshot_id._asdict(),
        "position": request.position,
        "replica_directory_id": request.replica.directory_id,
    }
    return {
        "cluster_id": request.cluster_id,
        "replica_id": request.replica.id,
        "max_bytes": request.max_bytes,
        "topics": [{"name": CLUSTER_METADATA, "partitions": [partition]}],
    }


def _read_fetch_snapshot(entity: Any) -> FetchSnapshotRequest:
    """Decode a request. Raises KafkaError: INVALID_REQUEST unless it has one partition,
    UNKNOWN_TOPIC_OR_PARTITION if that is not `__cluster_metadata-0`."""
    topics = entity.topics
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        raise KafkaError(
            ErrorCode.invalid_request, "a FetchSnapshot request must have one partition"
        )
    requested = topics[0].partitions[0]
    if topics[0].name != CLUSTER_METADATA or requested.partition != PARTITION:
        raise KafkaError(ErrorCode.unknown_topic_or_partition)
    return FetchSnapshotRequest(
        cluster_id=entity.cluster_id,
        replica=ReplicaKey(entity.replica_id, directory(field(requested, "replica_directory_id"))),
        epoch=requested_epoch(requested.current_leader_epoch),
        snapshot_id=SnapshotId(requested.snapshot_id.end_offset, requested.snapshot_id.epoch),
        position=requested.position,
        max_bytes=entity.max_bytes,
    )


def _write_snapshot_response(
    response: FetchSnapshotResponse, request: FetchSnapshotRequest, listener: str
) -> Values:
    if response.error is ErrorCode.inconsistent_cluster_id:
        return {"error_code": response.error, "topics": []}
    partition: Values = {
        "index": PARTITION,
        "error_code": response.error,
        "current_leader": {"leader_id": response.leader_id, "leader_epoch": response.epoch},
        "unaligned_records": b"",
    }
    if response.snapshot_id is not None:
        partition |= {
            "snapshot_id": response.snapshot_id._asdict(),
            "size": response.size,
            "position": response.position,
            "unaligned_records": response.data,
        }
    return {
        "topics": [{"name": CLUSTER_METADATA, "partitions": [partition]}],
        "node_endpoints": write_leader(response, listener),
    }


def _refuse_snapshot(entity: Any, error: KafkaError) -> Values:
    """UNKNOWN_TOPIC_OR_PARTITION is a partition error; other errors are top-level."""
    if error.code is not ErrorCode.unknown_topic_or_partition:
        return refuse_all(entity, error)
    topic = entity.topics[0]
    partition = {
        "index": topic.partitions[0].partition,
        "error_code": error.code,
        "unaligned_records": b"",
    }
    return {"topics": [{"name": topic.name, "partitions": [partition]}]}


def _read_snapshot_response(
    entity: Any, request: FetchSnapshotRequest, listener: str
) -> FetchSnapshotResponse:
    if entity.error_code == ErrorCode.unknown_server_error:
        # Kafka 4.3 cannot encode snapshot errors. The next Fetch returns a newer snapshot.
        return FetchSnapshotResponse(error=ErrorCode.snapshot_not_found, epoch=request.epoch)
    if entity.error_code != ErrorCode.none:
        return FetchSnapshotResponse(error=entity.error_code)
    responded = require_partition(_snapshot_partition(entity.topics))
    leader, error = responded.current_leader, error_code(responded.error_code)
    snapshot_id = _snapshot_id(responded.snapshot_id) if error is ErrorCode.none else None
    if error is ErrorCode.none and snapshot_id is None:
        error = ErrorCode.snapshot_not_found  # the leader has deleted it
    return FetchSnapshotResponse(
        error=error,
        epoch=responded_epoch(leader.leader_epoch),
        leader_id=leader.leader_id,
        leader_endpoints=leader_at(leader.leader_id, field(entity, "node_endpoints", ()), listener),
        snapshot_id=snapshot_id,
        size=responded.size,
        position=responded.position,
        data=bytes(responded.unaligned_records or b""),
    )


def _snapshot_partition(topics: Sequence[Any]) -> Any:
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        return None
    partition = topics[0].partitions[0]
    known = topics[0].name == CLUSTER_METADATA and partition.index == PARTITION
    return partition if known else None


FETCH = RpcCodec(
    api=apis.FETCH,
    oldest=_oldest_fetch,
    write_request=_write_fetch,
    decode_response=_read_fetch_response,
    read_request=_read_fetch,
    encode_response=_write_fetch_response,
    refuse=_refuse_fetch,
)
FETCH_SNAPSHOT = RpcCodec(
    api=apis.FETCH_SNAPSHOT,
    oldest=any_version,
    write_request=_write_fetch_snapshot,
    decode_response=_read_snapshot_response,
    read_request=_read_fetch_snapshot,
    encode_response=_write_snapshot_response,
    refuse=_refuse_snapshot,
)
