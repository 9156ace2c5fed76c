"""Admin functions for diskless topics: their coordinators, files and batches (KIP-1164).

Partition N of `__diskless_metadata` is the log of coordinator N, and its leader is the coordinator. The requests are
DisklessFindBatches (D-10), DisklessDescribeFiles (D-11) and private ones. They need CLUSTER_ACTION on the cluster.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import trio

from odradek.client.admin import ResourceType
from odradek.client.errors import ClientError, check
from odradek.client.metadata import Cluster, no_leader
from odradek.protocol import apis
from odradek.protocol.apis import Api
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import DISKLESS_METADATA
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from odradek.protocol.schemas.diskless_apis import (
        DisklessDescribedCoordinator,
        DisklessFindBatchesBatchInfo,
        DisklessListedFile,
    )

ENABLE = "diskless.enable"
FILES_PER_REQUEST = 1000
KEYS_PER_REQUEST = 500
BATCHES_PER_REQUEST = 2000
TOPICS_PER_REQUEST = 500
SETTLE_S = 2.0
RETRY_S = 0.1
LOG_STARTS_MAX = 20
"""Requests for the first batch of a partition whose log start offset increases all the time."""
_INT32_MAX = 2**31 - 1
_LATEST = -1
_UNKNOWN = (ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition)
_ELSEWHERE = (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available)


@value_class
class CoordinatorDescription:
    """A coordinator with the broker that leads it (-1: none). Either `state` or `error` is None."""

    coordinator_id: int
    leader: int
    state: DisklessDescribedCoordinator | None
    error: str | None


@value_class
class FoundBatches:
    """Batches of a partition from an offset, in order."""

    log_start_offset: int
    high_watermark: int
    batches: Sequence[DisklessFindBatchesBatchInfo]


class DisklessAdmin:
    """Requests to coordinators of diskless topics. The leaders are looked up once, and again after errors."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._broker_of_partition: dict[tuple[UUID, int], int] = {}
        """Leaders of the coordinators of partitions."""

    async def coordinator_ids(self) -> list[int]:
        """Partitions of `__diskless_metadata`; none if the topic does not exist."""
        try:
            topic = await self._cluster.retrying(
                lambda: self._cluster.topic(DISKLESS_METADATA), unless=_is_unknown_topic
            )
        except KafkaError as error:
            if _is_unknown_topic(error):
                return []
            raise
        return sorted(topic.partitions)

    async def describe_coordinators(self) -> list[CoordinatorDescription]:
        """Describe all coordinators by their leaders.

        A coordinator that does not respond is asked again for `SETTLE_S`, because leaders may have changed. Then it has an
        error.
        """
        end = trio.current_time() + SETTLE_S
        while True:
            found = await self._describe_coordinators()
            if not any(each.error for each in found) or trio.current_time() >= end:
                return found
            await trio.sleep(RETRY_S)

    async def _describe_coordinators(self) -> list[CoordinatorDescription]:
        ids = await self.coordinator_ids()
        partitions = self._cluster.topics[DISKLESS_METADATA].partitions if ids else {}
        by_leader: dict[int, list[int]] = {}
        for coordinator_id in ids:
            by_leader.setdefault(partitions[coordinator_id].leader, []).append(coordinator_id)
        found = [
            description
            for leader, led in by_leader.items()
            for description in await self._describe_led(leader, led)
        ]
        return sorted(found, key=lambda description: description.coordinator_id)

    async def _describe_led(
        self, leader: int, coordinator_ids: Sequence[int]
    ) -> list[CoordinatorDescription]:
        """Describe the coordinators of one leader; -1 is no leader."""
        if leader < 0:
            return [
                CoordinatorDescription(each, leader, None, "no leader") for each in coordinator_ids
            ]
        try:
            response = await self._request_to(
                leader,
                apis.DISKLESS_DESCRIBE_COORDINATORS,
                {"coordinator_ids": list(coordinator_ids)},
            )
        except ClientError as error:
            return [
                CoordinatorDescription(each, leader, None, str(error)) for each in coordinator_ids
            ]
        rows = {row.coordinator_id: row for row in response.coordinators}
        return [_described(each, leader, rows.get(each)) for each in coordinator_ids]

    async def list_files(
        self, coordinator_id: int, *, after: str = "", limit: int | None = None
    ) -> AsyncIterator[Sequence[DisklessListedFile]]:
        """Yield pages of the files that a coordinator tracks, with keys after `after`, in the order of the keys."""
        left = _INT32_MAX if limit is None else limit
        while left > 0:
            count = min(FILES_PER_REQUEST, left)
            page = await self._cluster.retrying(partial(self._files, coordinator_id, after, count))
            if page:
                yield page
            if len(page) < count:
                return
            after = page[-1].object_key
            left -= len(page)

    async def _files(
        self, coordinator_id: int, after: str, count: int
    ) -> Sequence[DisklessListedFile]:
        response = await self._request_to(
            await self._leader(coordinator_id),
            apis.DISKLESS_LIST_FILES,
            {"coordinator_id": coordinator_id, "after": after, "max_files": count},
        )
        check(
            response.error_code,
            response.error_message,
            about=f"diskless coordinator {coordinator_id}",
        )
        files: Sequence[DisklessListedFile] = response.files
        return files

    async def known_files(self, keys: Collection[str]) -> set[str]:
        """The files among `keys` that at least one coordinator tracks (D-11).

        Raises KafkaError or ClientError if any coordinator does not respond.
        """
        known: set[str] = set()
        wanted = sorted(keys)
        for start in range(0, len(wanted), KEYS_PER_REQUEST):
            part = wanted[start : start + KEYS_PER_REQUEST]
            known |= await self._cluster.retrying(partial(self._known, part))
        return known

    async def _known(self, keys: Sequence[str]) -> set[str]:
        known = set()
        for broker in sorted({await self._leader(each) for each in await self.coordinator_ids()}):
            response = await self._request_to(
                broker,
                apis.DISKLESS_DESCRIBE_FILES,
                {"files": [{"object_key": key} for key in keys]},
            )
            for row in response.files:
                if row.error_code == ErrorCode.none:
                    known.add(row.object_key)
                elif row.error_code != ErrorCode.resource_not_found:
                    check(row.error_code, row.error_message, about=f"file {row.object_key}")
        return known

    async def find_batches(
        self, topic_id: UUID, index: int, offset: int, *, max_batches: int = BATCHES_PER_REQUEST
    ) -> FoundBatches:
        """Find batches of a partition from an offset, or from the log start offset if `offset` is below it (D-10).

        Raises OFFSET_OUT_OF_RANGE above the high watermark, and an error that is `is_not_diskless` for a topic that is not
        diskless, or that its coordinator does not know yet.
        """
        return await self._cluster.retrying(
            partial(self._found, topic_id, index, offset, max_batches), unless=is_not_diskless
        )

    async def _found(
        self, topic_id: UUID, index: int, offset: int, max_batches: int
    ) -> FoundBatches:
        at = offset
        for _ in range(LOG_STARTS_MAX):
            response = await self._ask_coordinator(topic_id, index, at, max_batches)
            start, code = response.log_start_offset, response.error_code
            if code != ErrorCode.offset_out_of_range or at >= start:
                break
            at = start  # retention may raise it again meanwhile
        if code == ErrorCode.offset_out_of_range:
            raise KafkaError(
                code,
                f"offset {at} is not between the log start offset {start} and the high watermark "
                f"{response.high_watermark}",
            )
        check(code, about=f"partition {index}")
        return FoundBatches(response.log_start_offset, response.high_watermark, response.batches)

    async def _ask_coordinator(
        self, topic_id: UUID, index: int, offset: int, max_batches: int
    ) -> Any:
        """Response of the leader of the partition's coordinator. Followers respond too, but with older batches."""
        broker = self._broker_of_partition.get((topic_id, index))
        if broker is None:
            broker = await self._find_leader(topic_id, index)
        response = await self._request_to(
            broker,
            apis.DISKLESS_FIND_BATCHES,
            _find_request(topic_id, index, offset, max_batches),
        )
        found = response.topics[0].partitions[0]
        if found.error_code in _ELSEWHERE:
            self._broker_of_partition.pop((topic_id, index), None)
        return found

    async def _find_leader(self, topic_id: UUID, index: int) -> int:
        """The broker that leads the coordinator of a partition.

        Clients do not know the coordinator, so that one broker after another is asked for an offset (D-09), which only the
        leader returns. Raises KafkaError.
        """
        brokers = sorted({await self._leader(each) for each in await self.coordinator_ids()})
        if not brokers:
            raise KafkaError(ErrorCode.unknown_topic_id, "the cluster has no diskless topics")
        partition = {"partition_index": index, "timestamp": _LATEST}
        request = {"topics": [{"topic_id": topic_id, "partitions": [partition]}]}
        code = ErrorCode.not_coordinator
        for broker in brokers:
            response = await self._request_to(broker, apis.DISKLESS_LIST_OFFSETS, request)
            code = response.topics[0].partitions[0].error_code
            if code not in _ELSEWHERE:
                break
        check(code, about=f"the coordinator of partition {index}")
        self._broker_of_partition[topic_id, index] = broker
        return broker

    async def diskless_topics(self) -> Mapping[str, UUID]:
        """Names and ids of the topics with `diskless.enable=true`."""
        for error in await self._cluster.refresh(None):
            raise error
        topics = dict(self._cluster.topics)
        names = sorted(topics)
        found: dict[str, UUID] = {}
        for start in range(0, len(names), TOPICS_PER_REQUEST):
            for name in await self._with_enable(names[start : start + TOPICS_PER_REQUEST]):
                topic_id = topics[name].topic_id
                if topic_id is not None:
                    found[name] = topic_id
        return found

    async def _with_enable(self, topics: Iterable[str]) -> list[str]:
        connection = await self._cluster.controller()
        resources = [
            {
                "resource_type": int(ResourceType.TOPIC),
                "resource_name": name,
                "configuration_keys": [ENABLE],
            }
            for name in topics
        ]
        response = await connection.request(
            apis.DESCRIBE_CONFIGS,
            {"resources": resources, "include_synonyms": False, "include_documentation": False},
            timeout_s=self._cluster.timeout_s,
        )
        return [
            result.resource_name
            for result in response.results
            if any(row.name == ENABLE and row.value == "true" for row in result.configs)
        ]

    async def _leader(self, coordinator_id: int) -> int:
        known = self._cluster.topics.get(DISKLESS_METADATA)
        if known is None:
            known = await self._cluster.topic(DISKLESS_METADATA)
        if coordinator_id not in known.partitions:
            raise KafkaError(
                ErrorCode.invalid_request,
                f"the cluster has no diskless coordinator {coordinator_id} "
                f"(it has {len(known.partitions)}, from 0)",
            )
        leader = known.partitions[coordinator_id].leader
        if leader < 0:
            self._cluster.forget(DISKLESS_METADATA)
            raise no_leader(DISKLESS_METADATA, coordinator_id)
        return leader

    async def _request_to(self, broker: int, api: Api, values: Mapping[str, Any]) -> Any:
        connection = await self._cluster.node(broker)
        return await connection.request(api, values, timeout_s=self._cluster.timeout_s)


def _described(
    coordinator_id: int, leader: int, row: DisklessDescribedCoordinator | None
) -> CoordinatorDescription:
    if row is None:
        return CoordinatorDescription(coordinator_id, leader, None, "not in the response")
    if row.error_code != ErrorCode.none:
        error = row.error_message or ErrorCode(row.error_code).name.upper()
        return CoordinatorDescription(coordinator_id, leader, None, error)
    if not row.is_leader:
        return CoordinatorDescription(coordinator_id, leader, None, "NOT_COORDINATOR")
    return CoordinatorDescription(coordinator_id, leader, row, None)


def _find_request(topic_id: UUID, index: int, offset: int, max_batches: int) -> dict[str, Any]:
    partition = {
        "partition_index": index,
        "offset": offset,
        "max_partition_fetch_bytes": _INT32_MAX,
    }
    return {
        "fetch_max_bytes": _INT32_MAX,
        "max_batches_per_partition": max_batches,
        "topics": [{"topic_id": topic_id, "partitions": [partition]}],
    }


def _is_unknown_topic(error: Exception) -> bool:
    return isinstance(error, KafkaError) and error.code is ErrorCode.unknown_topic_or_partition


def is_not_diskless(error: Exception) -> bool:
    """Whether no coordinator has the partition."""
    return isinstance(error, KafkaError) and error.code in _UNKNOWN
