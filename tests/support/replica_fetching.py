"""Brokers that serve Fetch from real logs, and a follower with connections, sessions and log directories.

Disks and time are virtual.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import trio

from odradek.broker.apis import fetch as fetch_api
from odradek.broker.fetch.session_cache import CachedPartition, FetchSessionCache
from odradek.protocol import messages
from odradek.protocol.apis import (
    API_VERSIONS,
    APIS,
    FETCH,
    LIST_OFFSETS,
    OFFSET_FOR_LEADER_EPOCH,
    Api,
)
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.fetch_request_reader import FetchRequest, read_fetch_request
from odradek.protocol.fetch_response_writer import (
    FetchedPartition,
    FetchedTopic,
    write_fetch_response,
)
from odradek.protocol.framing import frame_head, read_request_header, response_header
from odradek.protocol.records.batch import batches
from odradek.protocol.topics import TopicPartition
from odradek.replication.controller.image import (
    BrokerImage,
    Endpoint,
    MetadataImage,
    PartitionImage,
)
from odradek.replication.errors import FencedLeaderEpoch, UnknownLeaderEpoch, UnknownTopicId
from odradek.replication.fetching.replica_fetcher import ReplicaFetcherConfig
from odradek.replication.fetching.replica_fetcher_manager import (
    ReplicaFetcherManager,
    ReplicaFetcherNode,
)
from odradek.replication.partition.follower_role import RemoteTier
from odradek.replication.partition.follower_state import EARLIEST, EARLIEST_LOCAL, LATEST
from odradek.replication.partition.partition import Partition
from odradek.replication.partition.truncation import find_divergence
from odradek.replication.replication_quota import ReplicationQuota
from odradek.seams import Seams
from odradek.seams.files import Path
from odradek.seams.network import Connection, ConnectionLost
from odradek.storage.directories.opening import open_directories
from odradek.storage.log.config import LogConfig
from odradek.storage.log.partition_log import LogEnvironment, PartitionLog, RecoveryOptions
from odradek.storage.log_manager.log_manager import LogManager, LogServices
from odradek.testing.virtual_world import VirtualWorld
from tests.support.partition_logs import batch
from tests.support.scripted_broker import receive

FOLLOWER = 9
PORT = 9092
LISTENER = "PLAINTEXT"
SMALL = LogConfig(retention_ms=-1, internal_segment_bytes=4000, index_interval_bytes=500)
TopicIdAndPartition = tuple[UUID, int]


class LeaderPartition:
    """Partition of a leader: its log and overridden response fields."""

    def __init__(self, log: PartitionLog, leader_epoch: int) -> None:
        self.log = log
        self.leader_epoch = leader_epoch
        self.error: ErrorCode | None = None
        """Error code of every Fetch response."""
        self.local_start: int | None = None
        """Local log start offset: earlier records are only in the tier."""
        self.cut_bytes = 0
        """Bytes removed from the end of a response with several batches."""
        self.asked: list[int] = []
        """The offsets of all fetches."""
        if log.epochs.latest != leader_epoch:
            log.assign_epoch(leader_epoch, log.end_offset)

    def append(self, count: int = 1, *, times: int = 1, **more: Any) -> None:
        for _ in range(times):
            self.log.append_as_leader(
                batch(count, **more),
                leader_epoch=self.leader_epoch,
                now_ms=self.log.clock.wall_ms(),
            )

    def commit(self, offset: int | None = None) -> None:
        self.log.advance_high_watermark(self.log.end_offset if offset is None else offset)

    def check_epoch(self, epoch: int) -> None:
        if epoch < self.leader_epoch:
            raise FencedLeaderEpoch
        if epoch > self.leader_epoch:
            raise UnknownLeaderEpoch

    def read(self, wanted: CachedPartition) -> FetchedPartition:
        log = self.log
        self.check_epoch(wanted.current_leader_epoch)
        if self.error is not None:
            raise KafkaError(self.error)
        if self.local_start is not None and wanted.offset < self.local_start:
            raise KafkaError(ErrorCode.offset_moved_to_tiered_storage)
        diverging = find_divergence(
            log.epochs,
            start_offset=log.log_start_offset,
            fetch_offset=wanted.offset,
            last_fetched_epoch=wanted.last_fetched_epoch,
        )
        response = FetchedPartition(
            index=wanted.index,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
        )
        if diverging is not None:
            response.diverging_epoch = (diverging.epoch, diverging.end_offset)
            return response
        found = log.read(wanted.offset, wanted.max_bytes, limit=log.end_offset)
        self.asked.append(wanted.offset)
        if found.slice is not None:
            data = found.slice.read()
            found.slice.file.unpin()
            is_one = next(iter(batches(memoryview(data)))).size == len(data)
            response.records = (data if is_one else data[: len(data) - self.cut_bytes],)
        return response

    def locate(self, timestamp: int) -> int:
        log = self.log
        if timestamp == EARLIEST_LOCAL:
            return log.local_log_start_offset if self.local_start is None else self.local_start
        return {LATEST: log.end_offset, EARLIEST: log.log_start_offset}[timestamp]


class LeadingBroker:
    """Serves Fetch and ListOffsets of its partitions. `responses` has fixed responses by API."""

    def __init__(self, world: VirtualWorld, broker_id: int) -> None:
        self.id = broker_id
        self.node = world.node(f"broker-{broker_id}")
        self.port = PORT
        self.led: dict[TopicIdAndPartition, LeaderPartition] = {}
        self.requests: list[FetchRequest] = []
        self.asked_for: list[str] = []
        """The titles of all requests but ApiVersions."""
        self.connections = 0
        self.refuses_session: ErrorCode | None = None
        self.versions: dict[Api, tuple[int, int]] = {}
        self.sessions = FetchSessionCache(10, self.node.seams.entropy)
        self._listening: trio.CancelScope | None = None

    def lead(
        self, key: TopicIdAndPartition, epoch: int, *, config: LogConfig = SMALL, had: bytes = b""
    ) -> LeaderPartition:
        """Lead a partition, with a log of earlier batches."""
        topic_id, index = key
        log = PartitionLog.open(
            LogEnvironment(self.node.files, self.node.seams.clock),
            Path(f"/t{topic_id.int}-{index}.{epoch}"),
            TopicPartition(f"t{topic_id.int}", index),
            config,
            topic_id=topic_id,
            recovery=RecoveryOptions(clean=False),
        )
        log.append_as_follower(memoryview(had))
        led = self.led[key] = LeaderPartition(log, epoch)
        return led

    async def serve(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        with trio.CancelScope() as self._listening:
            [listener] = await self.node.network.listen("", self.port)
            async with trio.open_nursery() as nursery:
                task_status.started()
                try:
                    while True:
                        connection = await listener.accept()
                        self.connections += 1
                        nursery.start_soon(self._talk, connection)
                finally:
                    with trio.CancelScope(shield=True):
                        await listener.aclose()

    def stop(self) -> None:
        assert self._listening is not None
        self._listening.cancel()

    async def _talk(self, connection: Connection) -> None:
        try:
            while True:
                size = struct.unpack(">i", await receive(connection, 4))[0]
                frame = memoryview(await receive(connection, size))
                header = read_request_header(frame)
                api, version = header.api, header.api_version
                body = await self._respond(api, version, frame, header.body)
                head = response_header(api, version, header.correlation_id)
                await connection.send([frame_head(head, [body])[0], body])
        except ConnectionLost:
            pass
        finally:
            connection.abort()

    async def _respond(self, api: Api, version: int, frame: memoryview, start: int) -> bytes:
        if api is API_VERSIONS:
            return messages.write_response(api.key, version, {"api_keys": self._api_rows()})
        self.asked_for.append(api.title)
        if api is FETCH:
            return await self._fetch(read_fetch_request(frame, version, start), version)
        handler = {
            LIST_OFFSETS: self._list_offsets,
            OFFSET_FOR_LEADER_EPOCH: self._epoch_ends,
        }[api]
        request = messages.read_request(api.key, version, frame, start)
        return messages.write_response(api.key, version, handler(request))

    def _api_rows(self) -> list[Mapping[str, int]]:
        rows = {api: (api.min_version, api.max_version) for api in APIS.values()} | self.versions
        return [
            {"api_key": api.key, "min_version": low, "max_version": high}
            for api, (low, high) in rows.items()
        ]

    async def _fetch(self, request: FetchRequest, version: int) -> bytes:
        self.requests.append(request)
        if self.refuses_session is not None:
            return _joined(write_fetch_response(version, error_code=self.refuses_session))
        try:
            plan = self.sessions.new_context(
                request.session_id,
                request.session_epoch,
                fetch_api._wanted(request),
                fetch_api._forgotten(request),
                uses_topic_ids=True,
                now=trio.current_time(),
            )
        except KafkaError as error:
            return _joined(write_fetch_response(version, error_code=error.code))
        give_up_at = trio.current_time() + request.max_wait_ms / 1000
        while True:
            found = [(each, self._read(each)) for each in plan.wanted]
            if any(_is_pressing(each) for _, each in found) or trio.current_time() >= give_up_at:
                break
            await trio.sleep(min(0.01, give_up_at - trio.current_time()))
        topics = [
            FetchedTopic(name="", topic_id=wanted.topic_id, partitions=[response])
            for wanted, response in plan.select(found)
        ]
        return _joined(write_fetch_response(version, session_id=plan.session_id, topics=topics))

    def _read(self, wanted: CachedPartition) -> FetchedPartition:
        assert wanted.topic_id is not None
        led = self.led.get((wanted.topic_id, wanted.index))
        try:
            if led is None:
                raise UnknownTopicId
            return led.read(wanted)
        except KafkaError as error:
            return FetchedPartition(index=wanted.index, error_code=error.code)

    def _list_offsets(self, request: Any) -> Mapping[str, Any]:
        assert request.replica_id == FOLLOWER
        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [self._offset(topic.name, each) for each in topic.partitions],
                }
                for topic in request.topics
            ]
        }

    def _offset(self, topic: str, wanted: Any) -> Mapping[str, Any]:
        led = self._by_name(topic, wanted.partition_index)
        offset = led.locate(wanted.timestamp)
        epoch = led.log.epochs.epoch_for(offset)
        return {
            "partition_index": wanted.partition_index,
            "error_code": 0,
            "timestamp": -1,
            "offset": offset,
            "leader_epoch": -1 if epoch is None else epoch,
        }

    def _epoch_ends(self, request: Any) -> Mapping[str, Any]:
        assert request.replica_id == FOLLOWER
        return {
            "topics": [
                {
                    "topic": topic.topic,
                    "partitions": [self._epoch_end(topic.topic, each) for each in topic.partitions],
                }
                for topic in request.topics
            ]
        }

    def _epoch_end(self, topic: str, wanted: Any) -> Mapping[str, Any]:
        led = self._by_name(topic, wanted.partition)
        assert wanted.current_leader_epoch == led.leader_epoch
        end = led.log.epochs.end_offset_for(wanted.leader_epoch)
        return {
            "partition": wanted.partition,
            "error_code": 0,
            "leader_epoch": end.epoch,
            "end_offset": end.end_offset,
        }

    def _by_name(self, topic: str, index: int) -> LeaderPartition:
        (found,) = (
            each
            for each in self.led.values()
            if (each.log.topic, each.log.partition) == (topic, index)
        )
        return found


class FollowerWithLeaders:
    """A follower and its leaders; `follow` assigns it a partition."""

    def __init__(
        self,
        seed: int = 0,
        *,
        config: LogConfig = SMALL,
        fragment: bool = False,
        directories: Sequence[Path] = (Path("/data"),),
        tier: Callable[[Seams], RemoteTier] | None = None,
    ) -> None:
        self.directories = directories
        self._tier = tier
        self.world = VirtualWorld(seed, fragment=fragment)
        self.clock = self.world.clock
        self.config = config
        self.settings = ReplicaFetcherConfig(back_off_ms=200)
        self.rate = float("inf")
        self.brokers: dict[int, LeadingBroker] = {}
        self.partitions: dict[TopicIdAndPartition, Partition] = {}
        self.roles: list[Partition] = []
        self.node = self.world.node("follower")
        self.image = MetadataImage()

    def broker(self, broker_id: int) -> LeadingBroker:
        broker = self.brokers[broker_id] = LeadingBroker(self.world, broker_id)
        self.know(broker)
        return broker

    def know(self, broker: LeadingBroker) -> None:
        """Put the broker and its address into the image."""
        known = BrokerImage(
            broker.id,
            1,
            UUID(int=broker.id),
            (Endpoint(LISTENER, broker.node.name, broker.port, 0),),
            {},
            None,
            False,
            False,
            (),
        )
        self.image = replace(self.image, brokers={**self.image.brokers, broker.id: known})

    def run(self, test: Callable[[], Any]) -> None:
        """Run the brokers and the follower, then `test`."""

        async def main() -> None:
            async with self.living(), trio.open_nursery() as nursery:
                for broker in self.brokers.values():
                    await nursery.start(broker.serve)
                await test()
                nursery.cancel_scope.cancel()

        self.world.run(main)

    @asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """Run the follower from start to shutdown."""
        seams = self.node.seams
        directories = open_directories(
            seams.files, seams.entropy, self.directories, node_id=FOLLOWER
        )
        self.logs = LogManager(
            LogServices(
                seams.files,
                seams.clock,
                seams.entropy,
                seams.offload,
                directories,
                config_for=lambda topic: self.config,
            )
        )
        await self.logs.load()
        self.followers = ReplicaFetcherManager(
            ReplicaFetcherNode(
                FOLLOWER, LISTENER, lambda: self.image, lambda: 33, seams.network, seams.clock
            ),
            settings=lambda: self.settings,
            quota=ReplicationQuota(lambda: self.rate),
            logs=self.logs,
            on_role=self.roles.append,
            tier=None if self._tier is None else self._tier(seams),
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(self.logs.run)
            await nursery.start(self.followers.run)
            yield
            nursery.cancel_scope.cancel()
        await self.logs.close()
        directories.close()

    async def replica(self, key: TopicIdAndPartition) -> PartitionLog:
        topic_id, index = key
        return await self.logs.create(f"t{topic_id.int}", index, topic_id)

    async def follow(self, key: TopicIdAndPartition, leader: int, epoch: int) -> PartitionLog:
        """Make this node a follower of a leader; create the replica if necessary."""
        partition = self.partitions.get(key)
        if partition is not None:
            self.decide(key, leader, epoch)
            return partition.log
        log = await self.replica(key)
        image = self._led_by(leader, epoch)
        partition = self.partitions[key] = Partition(
            log, topic_id=key[0], node_id=FOLLOWER, image=image
        )
        self.followers.role_changed(partition)
        return log

    def decide(self, key: TopicIdAndPartition, leader: int, epoch: int) -> None:
        """Same as `follow`, for a partition with a replica on this node."""
        partition = self.partitions[key]
        partition.update(self._led_by(leader, epoch))
        self.followers.role_changed(partition)

    def _led_by(self, leader: int, epoch: int) -> PartitionImage:
        return PartitionImage(
            (*self.brokers, FOLLOWER),
            (UUID(int=1),) * (len(self.brokers) + 1),
            (1,),
            leader,
            epoch,
            1,
        )

    async def until(self, condition: Callable[[], bool], *, seconds: float = 10) -> None:
        """Advance time until the condition is true."""
        end = self.clock.monotonic() + seconds
        while not condition():
            assert self.clock.monotonic() < end, f"the condition is still false after {seconds:g} s"
            await self.clock.run_for(0.005)


def all_of(log: PartitionLog) -> bytes:
    """Return all bytes of the log on disk."""
    found = b""
    offset = log.local_log_start_offset
    while offset < log.end_offset:
        read = log.read(offset, 1 << 20, limit=log.end_offset)
        assert read.slice is not None
        data = read.slice.read()
        read.slice.file.unpin()
        found += data
        for each in batches(memoryview(data)):
            offset = each.last_offset + 1
    return found


def is_same(mine: PartitionLog, leaders: PartitionLog) -> bool:
    """Whether two logs have the same bytes, epochs, start and end offsets and high watermark."""
    return (
        mine.end_offset == leaders.end_offset
        and mine.log_start_offset == leaders.log_start_offset
        and mine.high_watermark == leaders.high_watermark
        and all_of(mine) == all_of(leaders)
        and [each for each in mine.epochs.entries if each.start_offset < mine.end_offset]
        == [each for each in leaders.epochs.entries if each.start_offset < mine.end_offset]
    )


def _is_pressing(response: FetchedPartition) -> bool:
    """A high watermark change alone completes no Fetch, as in Kafka."""
    return bool(response.records or response.error_code or response.diverging_epoch)


def _joined(parts: list[Any]) -> bytes:
    return b"".join(parts)
