"""librdkafka (confluent-kafka) against a broker process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.support.broker_process import BrokerProcess
from tests.support.librdkafka_clients import TIMEOUT_S, create_topic, poll_until, produce, read_all
from tests.support.waiting import deadline

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.parametrize("codec", CODECS)
def test_produce_and_consume_with_each_codec(bootstrap: str, name: str, codec: str) -> None:
    create_topic(bootstrap, name)
    values = [b"%d-" % number + b"x" * 500 for number in range(300)]
    config = {"compression.type": codec, "enable.idempotence": True, "linger.ms": 20}
    reports = produce(bootstrap, name, values, keys=values, config=config)
    assert [report.offset() for report in reports] == list(range(300))
    found = read_all(bootstrap, name, 300, config={"check.crcs": True})
    assert [(m.offset(), m.key(), m.value()) for m in found] == [
        (number, value, value) for number, value in enumerate(values)
    ]


def test_headers_nulls_and_timestamps_are_preserved(bootstrap: str, name: str) -> None:
    # The record has a timestamp of 1970
    create_topic(bootstrap, name, config={"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": bootstrap})
    headers = [("a", b"1"), ("a", b"2"), ("none", None)]
    producer.produce(name, None, b"tombstone", timestamp=1_234_567, headers=headers)
    assert producer.flush(TIMEOUT_S) == 0
    (message,) = read_all(bootstrap, name, 1)
    assert (message.key(), message.value()) == (b"tombstone", None)
    assert message.headers() == headers
    assert message.timestamp()[1] == 1_234_567


def test_log_append_time_is_set_by_broker(bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name, config={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4"})
    producer.produce(name, b"now", timestamp=1)
    assert producer.flush(TIMEOUT_S) == 0
    (message,) = read_all(bootstrap, name, 1)
    kind, timestamp = message.timestamp()
    assert kind == 2  # TIMESTAMP_LOG_APPEND_TIME
    assert before - 5 <= timestamp <= time.time() * 1000 + 5


def test_too_large_record_is_refused(bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name, config={"max.message.bytes": "2000"})
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(name, b"x" * 3000, on_delivery=lambda error, _: errors.append(error))
    producer.produce(name, b"small", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    assert sorted(str(error and error.code()) for error in errors) in (
        ["10", "None"],  # MSG_SIZE_TOO_LARGE for the large record
        ["10", "10"],  # for both records if they were in one batch
    )


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_acks(bootstrap: str, name: str, acks: int) -> None:
    create_topic(bootstrap, name)
    produce(bootstrap, name, [b"one", b"two"], config={"acks": acks})
    assert [m.value() for m in read_all(bootstrap, name, 2)] == [b"one", b"two"]


def test_first_record_creates_topic(bootstrap: str, name: str) -> None:
    produce(bootstrap, name, [b"first"], config={"allow.auto.create.topics": True})
    assert [m.value() for m in read_all(bootstrap, name, 1)] == [b"first"]


def test_large_partition_is_read_with_small_fetches(bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name, config={"max.message.bytes": "1000000"})
    values = [bytes([number]) * 200_000 for number in range(20)]
    produce(bootstrap, name, values, config={"linger.ms": 0, "batch.num.messages": 1})
    config = {
        "fetch.message.max.bytes": 10_000,
        "fetch.max.bytes": 100_000,
        "message.max.bytes": 100_000,
        "receive.message.max.bytes": 10_000_000,
    }
    found = read_all(bootstrap, name, 20, config=config)
    assert [m.value() for m in found] == values


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_end_of_partition_is_reported(bootstrap: str, name: str, isolation: str) -> None:
    create_topic(bootstrap, name)
    produce(bootstrap, name, [b"only"])
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": name,
        "enable.partition.eof": True,
        "isolation.level": isolation,
    }
    consumer = Consumer(config)
    consumer.assign([TopicPartition(name, 0, 0)])
    seen = [consumer.poll(TIMEOUT_S), consumer.poll(TIMEOUT_S)]
    assert seen[0] is not None
    assert seen[0].value() == b"only"
    assert seen[1] is not None
    assert seen[1].error().code() == KafkaError._PARTITION_EOF
    assert seen[1].offset() == 1
    assert consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=TIMEOUT_S) == (0, 1)
    consumer.close()


def test_offset_out_of_range_is_reset(bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name)
    produce(bootstrap, name, [b"a", b"b"])
    config = {"bootstrap.servers": bootstrap, "group.id": name, "auto.offset.reset": "earliest"}
    consumer = Consumer(config)
    consumer.assign([TopicPartition(name, 0, 1000)])
    assert [m.value() for m in poll_until(consumer, 2)] == [b"a", b"b"]
    consumer.close()


class Group:
    """Creates members of the test's group, and closes them at the end of the test."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self._bootstrap = bootstrap
        self._name = name
        self._open: list[Consumer] = []
        self.rebalances: list[Consumer] = []
        """Members that received a new assignment, in order."""

    def join(self, **config: object) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": self._name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **({} if "group_protocol" in config else {"heartbeat.interval.ms": 200}),
                **{key.replace("_", "."): value for key, value in config.items()},
            }
        )
        self._open.append(consumer)
        consumer.subscribe([self._name], on_assign=lambda who, _: self.rebalances.append(who))
        return consumer

    def leave(self, consumer: Consumer) -> None:
        self._open.remove(consumer)
        consumer.close()

    def close(self) -> None:
        for consumer in self._open:
            consumer.close()


@pytest.fixture
def group(bootstrap: str, name: str) -> Iterator[Group]:
    members = Group(bootstrap, name)
    yield members
    members.close()


def settle(partitions: int, *members: Consumer, evenly: bool = False) -> list[set[int]]:
    """Poll until each member has a partition (or as many as the others) and each partition has one owner;
    returns the assignment.
    """
    with deadline(TIMEOUT_S, "a stable assignment") as check:
        while True:
            owned = []
            for consumer in members:
                message = consumer.poll(0.05)
                assert message is None or message.error() is None, message
                owned.append({part.partition for part in consumer.assignment()})
            everything = [partition for own in owned for partition in own]
            is_even = not evenly or len(set(map(len, owned))) == 1
            if all(owned) and is_even and sorted(everything) == list(range(partitions)):
                return owned
            check(0)


@pytest.mark.parametrize(
    "strategy", ["range", "roundrobin", "cooperative-sticky"], ids=lambda strategy: strategy
)
def test_classic_members_join_and_leave(
    bootstrap: str, name: str, group: Group, strategy: str
) -> None:
    create_topic(bootstrap, name, partitions=4)
    first = group.join(partition_assignment_strategy=strategy)
    assert settle(4, first) == [{0, 1, 2, 3}]
    second = group.join(partition_assignment_strategy=strategy)
    owned = settle(4, first, second)
    assert sorted(map(len, owned)) == [2, 2]
    group.leave(second)
    assert settle(4, first) == [{0, 1, 2, 3}]


NEW = {"group_protocol": "consumer"}


def test_consumer_protocol_members_join_and_leave(bootstrap: str, name: str, group: Group) -> None:
    create_topic(bootstrap, name, partitions=6)
    members = []
    for count in (1, 2, 3):
        members.append(group.join(**NEW))
        owned = settle(6, *members, evenly=True)  # members join one at a time
        assert sorted(map(len, owned)) == [6 // count] * count
    group.leave(members.pop())
    assert sorted(map(len, settle(6, *members))) == [3, 3]
    members[0].commit(
        offsets=[TopicPartition(name, min(settle(6, *members)[0]), 7)], asynchronous=False
    )


def test_consumer_protocol_member_upgrades_classic_group(
    bootstrap: str, name: str, group: Group
) -> None:
    create_topic(bootstrap, name, partitions=4)
    old = group.join(partition_assignment_strategy="cooperative-sticky")
    assert settle(4, old) == [{0, 1, 2, 3}]
    new = group.join(**NEW)
    assert sorted(map(len, settle(4, old, new))) == [2, 2]
    group.leave(old)
    assert settle(4, new) == [{0, 1, 2, 3}]
    group.leave(new)


def test_static_member_rejoins_without_rebalance(bootstrap: str, name: str, group: Group) -> None:
    create_topic(bootstrap, name, partitions=4)
    first = group.join(group_instance_id="one")
    second = group.join(group_instance_id="two")
    before = settle(4, first, second)
    group.leave(second)  # a static member does not send LeaveGroup
    group.rebalances.clear()
    again = group.join(group_instance_id="two")
    assert settle(4, first, again) == before
    assert group.rebalances == [again]


def test_members_with_same_instance_id_fence_each_other(
    bootstrap: str, name: str, group: Group
) -> None:
    create_topic(bootstrap, name)
    first = group.join(group_instance_id="same")
    settle(1, first)
    second = group.join(group_instance_id="same")
    settle(1, second)
    with deadline(TIMEOUT_S, "the first one to be fenced") as check:
        while True:
            try:
                message = first.poll(0.2)
            except KafkaException as fenced:
                error = fenced.args[0]
                break
            if message is not None and message.error() is not None:
                error = message.error()
                break
            check(0)
    assert error.code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID)


def test_group_continues_at_committed_offsets(bootstrap: str, name: str, group: Group) -> None:
    create_topic(bootstrap, name)
    produce(bootstrap, name, [b"%d" % number for number in range(10)])
    first = group.join()
    found = poll_until(first, 4)
    (response,) = first.commit(message=found[-1], asynchronous=False)
    assert (response.offset, response.error) == (4, None)
    group.leave(first)
    second = group.join()
    assert [m.value() for m in poll_until(second, 6)] == [b"%d" % n for n in range(4, 10)]
    (committed,) = second.committed([TopicPartition(name, 0)], timeout=TIMEOUT_S)
    assert committed.offset == 4


def test_admin_client_manages_topics(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def done(futures: Mapping[Any, Future[Any]]) -> list[Any]:
        return [future.result(TIMEOUT_S) for future in futures.values()]

    done(admin.create_topics([NewTopic(name, 2, 1, config={"retention.ms": "1000000"})]))
    with pytest.raises(KafkaException) as already:
        done(admin.create_topics([NewTopic(name, 2, 1)]))
    assert already.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    done(admin.create_partitions([NewPartitions(name, 5)]))
    with deadline(TIMEOUT_S, "five partitions") as check:
        while len(admin.list_topics(name, timeout=TIMEOUT_S).topics[name].partitions) != 5:
            check()
    entry = ConfigEntry("retention.ms", "5000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    done(admin.incremental_alter_configs([resource]))
    (configs,) = done(admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]))
    assert configs["retention.ms"].value == "5000"
    assert configs["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert configs["cleanup.policy"].is_default
    done(admin.delete_topics([name]))
    with deadline(TIMEOUT_S, "the topic to be gone") as check:
        while name in admin.list_topics(timeout=TIMEOUT_S).topics:
            check()


def test_admin_client_manages_offsets(bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name)
    produce(bootstrap, name, [b"%d" % number for number in range(10)])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    where = TopicPartition(name, 0)

    def offset(spec: OffsetSpec) -> int:
        response = admin.list_offsets({where: spec}, isolation_level=IsolationLevel.READ_COMMITTED)
        return int(response[where].result(TIMEOUT_S).offset)

    assert (offset(OffsetSpec.earliest()), offset(OffsetSpec.latest())) == (0, 10)
    deleted = admin.delete_records([TopicPartition(name, 0, 3)])
    assert deleted[where].result(TIMEOUT_S).low_watermark == 3
    assert offset(OffsetSpec.earliest()) == 3
    with pytest.raises(KafkaException) as beyond:
        admin.delete_records([TopicPartition(name, 0, 11)])[where].result(TIMEOUT_S)
    assert beyond.value.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE


def test_admin_client_manages_groups(bootstrap: str, name: str, group: Group) -> None:
    create_topic(bootstrap, name, partitions=2)
    produce(bootstrap, name, [b"a", b"b"], partition=0)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    consumer = group.join(client_id="a-client")
    poll_until(consumer, 2)
    consumer.commit(asynchronous=False)
    described = admin.describe_consumer_groups([name])[name].result(TIMEOUT_S)
    assert described.state.name == "STABLE"
    assert described.partition_assignor == "range"
    assert [m.client_id for m in described.members] == ["a-client"]
    assigned = {part.partition for part in described.members[0].assignment.topic_partitions}
    assert assigned == {0, 1}
    listed = admin.list_consumer_groups().result(TIMEOUT_S)
    assert name in {group.group_id for group in listed.valid}
    with pytest.raises(KafkaException) as busy:
        admin.delete_consumer_groups([name])[name].result(TIMEOUT_S)
    assert busy.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    group.leave(consumer)
    asked = ConsumerGroupTopicPartitions(name)
    (offsets,) = admin.list_consumer_group_offsets([asked]).values()
    committed = {p.partition: p.offset for p in offsets.result(TIMEOUT_S).topic_partitions}
    assert committed[0] == 2
    admin.delete_consumer_groups([name])[name].result(TIMEOUT_S)
    listed = admin.list_consumer_groups().result(TIMEOUT_S)
    assert name not in {group.group_id for group in listed.valid}


def test_cluster_is_described(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    found = admin.describe_cluster().result(TIMEOUT_S)
    assert [f"{node.host}:{node.port}" for node in found.nodes] == [broker.bootstrap]
    assert found.controller.id == found.nodes[0].id == 1
    assert len(found.cluster_id) == 22
