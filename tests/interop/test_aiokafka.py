"""aiokafka against a broker process."""

from __future__ import annotations

import asyncio
import logging

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import TopicAlreadyExistsError

from tests.interop.asyncio_thread import on_asyncio


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


async def produce(
    bootstrap: str, topic: str, count: int, *, codec: str | None = None, idempotent: bool = False
) -> list[tuple[int, int]]:
    """Produce `count` records; returns the partition and offset of each."""
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, compression_type=codec, enable_idempotence=idempotent
    )
    await producer.start()
    try:
        sent = [
            await producer.send(
                topic, b"value-%d" % number, key=b"%d" % number, headers=[("codec", codec_name)]
            )
            for codec_name in [str(codec).encode()]
            for number in range(count)
        ]
        return [(place.partition, place.offset) for place in await asyncio.gather(*sent)]
    finally:
        await producer.stop()


async def create(bootstrap: str, topic: str, partitions: int, **configs: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=configs)])
        again = await admin.create_topics([NewTopic(topic, partitions, 1)])
        assert [row[:2] for row in again.topic_errors] == [(topic, TopicAlreadyExistsError.errno)]
        while topic not in await admin.list_topics():
            await asyncio.sleep(0.02)
    finally:
        await admin.close()


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_produce_and_consume_with_each_codec(bootstrap: str, name: str, codec: str | None) -> None:
    async def main() -> None:
        await create(bootstrap, name, 1)
        assert await produce(bootstrap, name, 50, codec=codec) == [(0, n) for n in range(50)]
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
        consumer.assign([TopicPartition(name, 0)])
        await consumer.start()
        try:
            await consumer.seek_to_beginning()
            found = [await consumer.getone() for _ in range(50)]
            ends = await consumer.end_offsets([TopicPartition(name, 0)])
        finally:
            await consumer.stop()
        assert [(r.offset, r.key, r.value) for r in found] == [
            (n, b"%d" % n, b"value-%d" % n) for n in range(50)
        ]
        assert {r.headers for r in found} == {(("codec", str(codec).encode()),)}
        assert ends == {TopicPartition(name, 0): 50}

    on_asyncio(main())


def test_idempotent_producer(bootstrap: str, name: str) -> None:
    async def main() -> None:
        await create(bootstrap, name, 3)
        places = await produce(bootstrap, name, 60, codec="gzip", idempotent=True)
        assert len(set(places)) == 60
        for partition in range(3):
            offsets = sorted(offset for where, offset in places if where == partition)
            assert offsets == list(range(len(offsets)))

    on_asyncio(main())


def test_group_shares_partitions_and_commits(bootstrap: str, name: str) -> None:
    def member() -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            name,
            bootstrap_servers=bootstrap,
            group_id=name,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=100,
        )

    async def main() -> None:
        await create(bootstrap, name, 2)
        places = await produce(bootstrap, name, 20)
        first, second = member(), member()
        await first.start()
        try:
            found = [await first.getone() for _ in range(20)]
            assert sorted((r.partition, r.offset) for r in found) == sorted(places)
            await first.commit()
            await second.start()
            try:
                while not (len(first.assignment()) == len(second.assignment()) == 1):
                    await first.getmany(timeout_ms=50)
                    await second.getmany(timeout_ms=50)
                assert first.assignment() | second.assignment() == {
                    TopicPartition(name, 0),
                    TopicPartition(name, 1),
                }
            finally:
                await second.stop()
            for where in (TopicPartition(name, 0), TopicPartition(name, 1)):
                ends = [offset + 1 for partition, offset in places if partition == where.partition]
                assert await first.committed(where) == max(ends, default=None)
        finally:
            await first.stop()

    on_asyncio(main())


def test_offsets_for_times(bootstrap: str, name: str) -> None:
    async def main() -> None:
        # The records have timestamps of 1970
        await create(bootstrap, name, 1, **{"retention.ms": "-1"})
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
        await producer.start()
        try:
            for timestamp in (1000, 2000, 3000):
                await producer.send_and_wait(name, b"x", timestamp_ms=timestamp)
        finally:
            await producer.stop()
        where = TopicPartition(name, 0)
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
        await consumer.start()
        try:
            found = await consumer.offsets_for_times({where: 1500})
            late = await consumer.offsets_for_times({where: 5000})
        finally:
            await consumer.stop()
        assert (found[where].offset, found[where].timestamp) == (1, 2000)
        assert late[where] is None

    on_asyncio(main())
