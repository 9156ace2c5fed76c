"""Requests of a follower to its leader, in Kafka's format: Fetch, ListOffsets and
OffsetForLeaderEpoch.

Fetch has at least version 13: every broker of a KRaft cluster supports topic ids and diverging
epochs. (So OffsetForLeaderEpoch is only used for offsets that are in the remote tier alone.)
Version 15 adds the broker epoch, by which a leader detects that a follower has restarted (KIP-903).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from odradek.protocol import messages
from odradek.protocol.apis import FETCH
from odradek.protocol.errors import ErrorCode, error_code
from odradek.replication.fetching.fetch_session_handler import FetchRequestData, TopicIdAndPartition
from odradek.replication.partition.follower_state import OffsetResult, QueryEpochEnd, QueryOffset
from odradek.seams.values import value_class
from odradek.storage.log.leader_epoch_cache import EpochEnd

OffsetQueryOf = tuple[str, int, QueryOffset]
"""Topic name, partition, and query."""
EpochQueryOf = tuple[str, int, QueryEpochEnd]


@value_class
class FetchLimits:
    """Size limits of one Fetch response in bytes, and how long the leader may hold it, in ms."""

    max_bytes: int
    partition_max_bytes: int
    min_bytes: int
    max_wait_ms: int


def write_fetch(
    version: int, plan: FetchRequestData, limits: FetchLimits, *, node_id: int, broker_epoch: int
) -> bytes:
    """Encode the body of a Fetch request."""
    values = {
        "replica_id": node_id,  # up to version 14
        "replica_state": {"replica_id": node_id, "replica_epoch": broker_epoch},
        "max_wait": limits.max_wait_ms,
        "min_bytes": limits.min_bytes,
        "max_bytes": limits.max_bytes,
        "isolation_level": 0,
        "session_id": plan.session_id,
        "session_epoch": plan.session_epoch,
        "topics": [
            {"topic_id": topic_id, "partitions": rows}
            for topic_id, rows in _by_topic(_wanted(plan, limits))
        ],
        "forgotten_topics_data": [
            {"topic_id": topic_id, "partitions": indexes}
            for topic_id, indexes in _by_topic((key, key[1]) for key in plan.forgotten)
        ],
        "rack_id": "",
    }
    return messages.write_request(FETCH.key, version, values)


def _wanted(
    plan: FetchRequestData, limits: FetchLimits
) -> Iterator[tuple[TopicIdAndPartition, dict[str, Any]]]:
    for key, query in plan.wanted:
        yield (
            key,
            {
                "partition": key[1],
                "current_leader_epoch": query.leader_epoch,
                "fetch_offset": query.offset,
                "last_fetched_epoch": query.last_fetched_epoch,
                "log_start_offset": query.start_offset,
                "partition_max_bytes": limits.partition_max_bytes,
            },
        )


def _by_topic(rows: Iterable[tuple[tuple[Any, int], Any]]) -> Iterable[tuple[Any, list[Any]]]:
    topics: dict[Any, list[Any]] = {}
    for (topic, _), row in rows:
        topics.setdefault(topic, []).append(row)
    return topics.items()


def offsets_request(
    queries: Iterable[OffsetQueryOf], *, node_id: int, timeout_ms: int
) -> Mapping[str, Any]:
    """Return the fields of a ListOffsets request; `timeout_ms` limits reads of the remote tier."""
    rows = (
        (
            (topic, index),
            {
                "partition_index": index,
                "current_leader_epoch": query.leader_epoch,
                "timestamp": query.timestamp,
            },
        )
        for topic, index, query in queries
    )
    return {
        "replica_id": node_id,
        "isolation_level": 0,
        "topics": [{"name": topic, "partitions": of_topic} for topic, of_topic in _by_topic(rows)],
        "timeout": timeout_ms,
    }


def epochs_request(queries: Iterable[EpochQueryOf], *, node_id: int) -> Mapping[str, Any]:
    """Return the fields of an OffsetForLeaderEpoch request."""
    rows = (
        (
            (topic, index),
            {
                "partition": index,
                "current_leader_epoch": query.leader_epoch,
                "leader_epoch": query.epoch,
            },
        )
        for topic, index, query in queries
    )
    return {
        "replica_id": node_id,
        "topics": [{"topic": topic, "partitions": of_topic} for topic, of_topic in _by_topic(rows)],
    }


def read_epoch_ends(response: Any) -> dict[tuple[str, int], EpochEnd | ErrorCode]:
    """Return the results of OffsetForLeaderEpoch by topic name and partition."""
    found: dict[tuple[str, int], EpochEnd | ErrorCode] = {}
    for topic in response.topics:
        for row in topic.partitions:
            code = error_code(row.error_code)
            is_known = code is ErrorCode.none
            end = EpochEnd(row.leader_epoch, row.end_offset) if is_known else code
            found[topic.topic, row.partition] = end
    return found


def read_offsets(response: Any) -> dict[tuple[str, int], OffsetResult | ErrorCode]:
    """Return the results of ListOffsets by topic name and partition."""
    found: dict[tuple[str, int], OffsetResult | ErrorCode] = {}
    for topic in response.topics:
        for row in topic.partitions:
            code = error_code(row.error_code)
            place = topic.name, row.partition_index
            if code is not ErrorCode.none:
                found[place] = code
            else:
                found[place] = OffsetResult(row.offset, messages.field(row, "leader_epoch", -1))
    return found
