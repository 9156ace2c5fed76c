"""Fuzzes the readers of the internal topics with seeded records: `python -m tests.fuzz.internal_topics`.

The records of `__consumer_offsets`, `__transaction_state` and `__remote_log_metadata` are appended to the partition of
a broker in this process, as a client's produce request appends them. The coordinator loads its partition again after
each step and works on what it loaded; the remote log tasks read while the records are appended. The records of
`__cluster_metadata` are sent to two followers, which must end with equal images or refuse the same batch, and what both
have applied is committed by a broker, whose listeners apply it. After each step valid work must succeed.
"""

from __future__ import annotations

import argparse
import logging
import random
import struct
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import UUID

import trio

from odradek.broker.groups.coordinator_shard import OffsetCommit, OffsetToCommit
from odradek.broker.groups.messages import ConsumerGroupHeartbeat, Heartbeat, JoinGroup
from odradek.broker.transactions.coordinator_shard import TransactionFilter
from odradek.broker.transactions.messages import ProducerIdAndEpoch
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records.records import Record, build_batch
from odradek.protocol.schemas.serde import decode_metadata_record, encode_metadata_record
from odradek.protocol.topics import TopicPartition
from odradek.replication.controller.features import record_version
from odradek.replication.controller.image import InvalidMetadata, MetadataImage
from odradek.replication.controller.image_records import snapshot_records
from odradek.replication.partition.partition import ACKS_ALL
from odradek.replication.raft.actions import AppendFetchedRecords
from odradek.replication.raft.metadata_loader import catch_up
from odradek.replication.raft.metadata_log import MetadataLog
from odradek.replication.raft.metadata_log_writer import MetadataLogWriter
from odradek.replication.raft.metadata_state import MetadataState
from odradek.replication.raft.snapshots import SnapshotId
from odradek.seams.clock import RealClock
from odradek.storage.log.append import AppendOrigin
from odradek.testing import Broker
from tests.fuzz.records import KeyAndValue, RecordGenerator
from tests.fuzz.report import Observer
from tests.support.metadata_nodes import new_node, raw_log
from tests.support.tiered_topic_broker import TieredBroker, stage

TOPICS = (
    "__consumer_offsets",
    "__transaction_state",
    "__remote_log_metadata",
    "__cluster_metadata",
)
STEP = 200
"""Records between two loads and checks."""
BATCH = 20
TIMEOUT_SECONDS = 60.0
CONFIGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "50",
    "log.segment.delete.delay.ms": "0",
}


class InternalTopic:
    """Partition 0 of an internal topic on a broker in this process."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.broker = broker
        self.topic = topic

    @property
    def partition(self) -> Any:
        found = self.broker.node.partitions.opened(self.topic, 0)
        assert found is not None
        return found

    def append(self, records: Sequence[KeyAndValue]) -> None:
        """Append the records in batches; a batch that a client could not produce is dropped."""
        for start in range(0, len(records), BATCH):
            now_ms = self.broker.node.seams.clock.wall_ms()
            batch = build_batch(
                [Record(-1, now_ms, key, value) for key, value in records[start : start + BATCH]]
            )
            try:
                self.partition.append(
                    memoryview(batch), acks=ACKS_ALL, now_ms=now_ms, origin=AppendOrigin.CLIENT
                )
            except KafkaError as refused:
                logging.getLogger("fuzz").debug("refused: %s", refused)

    def delete_records(self) -> None:
        """Delete all records, so that the next step loads only its own."""
        log = self.partition.log
        log.advance_log_start(log.high_watermark, "fuzzing")

    async def reload(self, runtime: Any) -> None:
        """Load the partition of a coordinator again."""
        runtime.unload(0)
        runtime.schedule_load(0, self.partition.leader_epoch)
        await until(lambda: not runtime.is_loading(0))
        runtime.active_context(0)  # raises if the load failed


async def until(holds: Any) -> None:
    with trio.fail_after(TIMEOUT_SECONDS):
        while not holds():
            await trio.sleep(0.005)


async def ignoring_errors(call: Any, *args: Any) -> None:
    """Run a request whose result depends on the fuzzed records; an error response is fine."""
    with trio.move_on_after(0.02):
        with suppress(KafkaError):
            await call(*args)


# __consumer_offsets


async def fuzz_group_coordinator(
    records: Iterator[KeyAndValue], count: int, observer: Observer
) -> None:
    async with Broker(configs=CONFIGS, topics={"orders": 2}) as broker:
        await broker.node.ensure_topic("__consumer_offsets", 1, 1)
        groups, topic = broker.node.services.coordinators.groups, InternalTopic(broker, TOPICS[0])
        await until(lambda: broker.node.partitions.opened(topic.topic, 0) is not None)
        for number in range(0, count, STEP):
            step = list(islice(records, min(STEP, count - number)))
            topic.append(step)
            await topic.reload(groups.runtime)
            await _use_groups(groups)
            await _commit_and_join(groups, f"valid-{number}")
            topic.delete_records()
            observer.advance(len(step))


async def _use_groups(groups: Any) -> None:
    """Run requests and periodic tasks against the loaded groups."""
    groups.list_groups((), ())
    (context,) = tuple(groups.runtime)
    for group_id in list(context.shard.groups)[:40]:
        with suppress(KafkaError):
            groups.describe(group_id)
        await ignoring_errors(groups.describe_consumer, group_id)
        with suppress(KafkaError):
            await groups.fetch(group_id, None, require_stable=False)
        await ignoring_errors(groups.heartbeat, Heartbeat(group_id, "m-1", None, 1))
        await ignoring_errors(groups.join, join_request(group_id))
        await ignoring_errors(
            groups.consumer_heartbeat,
            ConsumerGroupHeartbeat(
                group_id,
                "m-1",
                0,
                "c",
                "/h",
                topics=("orders",),
                rebalance_timeout_ms=1000,
                owned={},
            ),
        )
        await ignoring_errors(groups.consumer_heartbeat, _heartbeat(group_id))
    await groups._expire_offsets(context)
    for group_id in list(context.shard.groups):
        groups._on_deadline((0, group_id))
    broken = [each for each in groups.runtime if each.failed]
    assert not broken, "a coordinator partition failed"


def _heartbeat(group_id: str) -> ConsumerGroupHeartbeat:
    return ConsumerGroupHeartbeat(group_id, "m-1", 5, "c", "/h")


def join_request(group_id: str) -> JoinGroup:
    return JoinGroup(
        group_id, "", None, "c", "/h", 10_000, 10_000, "consumer", (("range", b"\0\0"),),
        str(UUID(int=9)), id_required=False,
    )  # fmt: skip


async def _commit_and_join(groups: Any, group_id: str) -> None:
    with trio.fail_after(TIMEOUT_SECONDS):
        response = await groups.join(join_request(group_id))
        assert response.error is ErrorCode.none, response
        offsets = (OffsetToCommit("orders", None, 0, 7, -1, ""),)
        committed = await groups.commit(OffsetCommit(f"{group_id}-offsets", "", None, -1, offsets))
        assert committed.error is ErrorCode.none, committed
        assert len(await groups.fetch(f"{group_id}-offsets", None, require_stable=True)) == 1


# __transaction_state


async def fuzz_transaction_coordinator(
    records: Iterator[KeyAndValue], count: int, observer: Observer
) -> None:
    async with Broker(configs=CONFIGS, topics={"orders": 2}) as broker:
        await broker.node.ensure_topic("__transaction_state", 1, 1)
        transactions = broker.node.services.coordinators.transactions
        topic = InternalTopic(broker, TOPICS[1])
        await until(lambda: broker.node.partitions.opened(topic.topic, 0) is not None)
        for number in range(0, count, STEP):
            step = list(islice(records, min(STEP, count - number)))
            topic.append(step)
            await topic.reload(transactions.runtime)
            await _use_transactions(transactions)
            await _commit_transaction(transactions, f"valid-{number}")
            topic.delete_records()
            observer.advance(len(step))


async def _use_transactions(transactions: Any) -> None:
    transactions.list_transactions(TransactionFilter())
    (context,) = tuple(transactions.runtime)
    partition = TopicPartition("orders", 0)
    for transactional_id in list(context.shard.transactions)[:40]:
        try:
            producer = transactions.describe(transactional_id)
        except KafkaError:
            continue
        known = ProducerIdAndEpoch(producer.producer_id, producer.epoch)
        await ignoring_errors(
            transactions.add_partitions, transactional_id, *known_fields(known), [partition]
        )
        await ignoring_errors(_end, transactions, transactional_id, known)
        await ignoring_errors(transactions.init_producer_id, transactional_id, 60_000)
    await transactions._for_each_transaction(
        lambda shard, id_, now: shard.abort_if_timed_out(id_, now)
    )
    await transactions._for_each_transaction(lambda shard, id_, now: shard.expire(id_, now, 1))
    broken = [each for each in transactions.runtime if each.failed]
    assert not broken, "a coordinator partition failed"


def known_fields(producer: ProducerIdAndEpoch) -> tuple[int, int]:
    return producer.producer_id, producer.epoch


async def _end(transactions: Any, transactional_id: str, producer: ProducerIdAndEpoch) -> None:
    await transactions.end(transactional_id, producer, is_commit=True, client_version=2)


async def _commit_transaction(transactions: Any, transactional_id: str) -> None:
    with trio.fail_after(TIMEOUT_SECONDS):
        begun = await transactions.init_producer_id(transactional_id, 60_000)
        assert begun.error is ErrorCode.none, begun
        producer = ProducerIdAndEpoch(begun.producer_id, begun.epoch)
        partition = TopicPartition("orders", 0)
        added = await transactions.add_partitions(
            transactional_id, producer.producer_id, producer.epoch, [partition]
        )
        assert added == {partition: ErrorCode.none}, added
        ended = await transactions.end(transactional_id, producer, is_commit=True, client_version=2)
        assert ended.error is ErrorCode.none, ended


# __remote_log_metadata


@asynccontextmanager
async def tiered_broker() -> AsyncIterator[TieredBroker]:
    with tempfile.TemporaryDirectory() as directory:
        async with stage(
            Path(directory), rlmm_config_remote_log_metadata_topic_num_partitions="1"
        ) as tiered:
            yield tiered


async def fuzz_remote_log_metadata(
    records: Iterator[KeyAndValue], count: int, observer: Observer, *, seed: int = 0
) -> None:
    async with tiered_broker() as tiered:
        node = tiered.node
        await tiered.create()
        await node.ensure_topic("victim", 1, 1, {"remote.storage.enable": "true"})
        topic = InternalTopic(_Running(node), TOPICS[2])  # type: ignore[arg-type]
        await tiered.produce([b"x" * 500] * 10)
        await tiered.until(tiered.is_copied)
        victim = node.metadata.image.topics_by_name["victim"].id
        own = RecordGenerator(seed + 1, ("victim",), (victim,) * 8).records("remote_log")
        for number in range(0, count, STEP):
            size = min(STEP, count - number)
            step = [pair for _ in range((size + 1) // 2) for pair in (next(records), next(own))]
            topic.append(step[:size])
            copied = tiered.log.highest_copied_offset
            await tiered.produce([b"x" * 500] * 10)
            await tiered.until(lambda before=copied: tiered.log.highest_copied_offset > before)  # type: ignore[misc]
            observer.advance(size)
        await tiered.alter({"retention.bytes": "1"})
        await tiered.until(lambda: len(tiered.remote_segments()) <= 1)


class _Running:
    """The part of a Broker that InternalTopic uses."""

    def __init__(self, node: Any) -> None:
        self.node = node


# __cluster_metadata


class Follower:
    """Metadata log and image of a node that follows the leader of the quorum."""

    def __init__(self) -> None:
        node = new_node()
        self.log: MetadataLog = raw_log(node.disk, formatted=False)
        self.state = MetadataState()
        self._writer = MetadataLogWriter(replace(node.seams, clock=NoPauses()), self.log, _call)

    async def receive(self, batch: bytes) -> str:
        """Append a batch of the leader and apply it. Returns the refusal, or nothing."""
        before = self.log.end_offset
        action = AppendFetchedRecords(bytearray(batch), 1, durable=False)
        await self._writer.append_fetched(action)
        if self.log.end_offset == before:
            return "not appended"
        try:
            await catch_up(self.state, self.log, self.log.end_offset, _call)
        except InvalidMetadata:
            return "InvalidMetadata"
        return ""

    async def receive_snapshot(self, data: bytes, end_offset: int) -> str:
        """Install a snapshot of the leader and load it. Returns the refusal, or nothing."""
        try:
            await self._writer.begin_snapshot(SnapshotId(end_offset, 1))
            await self._writer.append_snapshot(0, data)
            await self._writer.install_snapshot()
            await catch_up(self.state, self.log, end_offset + 1, _call)
        except InvalidMetadata:
            return "InvalidMetadata"
        return ""

    def snapshot_of(self, values: Sequence[bytes | None], end_offset: int) -> bytes:
        """The file of a snapshot with these records."""
        store = self.log.snapshots
        writer = store.writer(SnapshotId(end_offset, 1), now_ms=1, timestamp_ms=1)
        writer.append([value or b"" for value in values])
        writer.end()
        data = bytes(writer.file.read_at(0, writer.file.size))
        store.discard(writer)
        return data


def control_batch(source: random.Random, base_offset: int) -> bytearray:
    """A control batch with a key of a known type and a random value."""
    key = struct.pack(">hh", 0, source.randrange(8))
    value = source.randbytes(source.randrange(20))
    return build_batch(
        [Record(-1, 1, key, value)], base_offset=base_offset, leader_epoch=1, control=True
    )


class NoPauses(RealClock):
    """A clock whose pauses take no time."""

    async def sleep(self, seconds: float) -> None:
        await trio.lowlevel.checkpoint()


def encoded(image: MetadataImage) -> list[bytes]:
    """The records of a snapshot: unlike images, they are equal if a quota is not a number."""
    return [
        encode_metadata_record(each, record_version(each, image.features))
        for each in snapshot_records(image)
    ]


async def _call(work: Any, *args: Any) -> Any:
    return work(*args)


async def fuzz_metadata_log(
    records: Iterator[KeyAndValue], count: int, observer: Observer, *, seed: int = 0
) -> None:
    followers = [Follower(), Follower()]
    source = RecordGenerator(seed).source
    async with Broker(configs=CONFIGS) as broker:
        for number in range(0, count, 2):
            step = [value for _, value in islice(records, min(2, count - number))]
            batch = build_batch(
                [Record(-1, 1, None, value) for value in step],
                base_offset=followers[0].log.end_offset,
                leader_epoch=1,
            )
            if source.random() < 0.05:
                batch = control_batch(source, followers[0].log.end_offset)
            if source.random() < 0.1:  # damaged on its way, or by a faulty leader
                batch[source.randrange(len(batch))] ^= 1 << source.randrange(8)
            if number % 40 == 0:
                end_offset = followers[0].log.end_offset + 10
                data = bytearray(followers[0].snapshot_of(step, end_offset))
                if source.random() < 0.3:
                    data[source.randrange(len(data))] ^= 1 << source.randrange(8)
                refusals = [
                    await each.receive_snapshot(bytes(data), end_offset) for each in followers
                ]
            else:
                refusals = [await each.receive(bytes(batch)) for each in followers]
            images = [each.state.image for each in followers]
            assert refusals[0] == refusals[1], refusals
            assert images[0] == images[1] or encoded(images[0]) == encoded(images[1])
            if refusals[0] == "InvalidMetadata":  # the node would stop; operators remove the log
                followers = [Follower(), Follower()]
            elif not refusals[0]:
                await _publish(broker, step)
            observer.advance(len(step))
            if number % STEP == 0:
                await broker.node.ensure_topic(f"valid-{number}", 1, 1)
        assert broker.node.metadata.failure is None
        await broker.node.ensure_topic("valid", 1, 1)


OWN_RECORDS = ("Broker", "Feature", "Transaction", "Controller", "ProducerIds")
"""Parts of names of records that would end the membership of the broker under test."""


async def _publish(broker: Broker, values: Sequence[bytes | None]) -> None:
    """Commit the decodable records on a broker, so that its listeners apply them."""
    for value in values:
        try:
            record = decode_metadata_record(value or b"")
        except KafkaError:
            continue
        if any(each in type(record).__name__ for each in OWN_RECORDS):
            continue
        with suppress(KafkaError, InvalidMetadata):
            await broker.node.metadata.commit([record])


# The command


async def fuzz(topic: str, count: int, seed: int) -> Observer:
    """Run a fuzz of one topic. Raises AssertionError if valid work fails."""
    family = dict(zip(TOPICS, ("group", "transaction", "remote_log", "metadata"), strict=True))
    records = RecordGenerator(seed).records(family[topic])
    with Observer(count) as observer, observer.printing_on_error(topic):
        if topic == TOPICS[0]:
            await fuzz_group_coordinator(records, count, observer)
        elif topic == TOPICS[1]:
            await fuzz_transaction_coordinator(records, count, observer)
        elif topic == TOPICS[2]:
            await fuzz_remote_log_metadata(records, count, observer, seed=seed)
        else:
            await fuzz_metadata_log(records, count, observer, seed=seed)
    return observer


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="tests.fuzz.internal_topics", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--topic", choices=TOPICS, action="append", help="default: all four")
    parser.add_argument("--records", type=int, default=20_000, help="records per topic")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    is_good = True
    for topic in options.topic or TOPICS:
        observer = trio.run(fuzz, topic, options.records, options.seed)
        observer.print(f"{topic}, seed {options.seed}", "records")
        is_good = is_good and observer.is_good
    sys.exit(not is_good)


if __name__ == "__main__":
    main()
