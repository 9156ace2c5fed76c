"""Consumer group requests to Apache Kafka and to Odradek: every field of the responses must be equal.

Topic ids, member ids, and the error message of an invalid regular expression may differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from odradek.broker.groups.consumer.topic_metadata import TopicMetadata
from odradek.protocol import apis
from odradek.protocol.records import records as log_records
from odradek.protocol.records.batch import batches
from odradek.protocol.schemas import consumer_protocol, serde
from odradek.protocol.schemas.consumer_group_records import ConsumerGroupMetadataKey
from odradek.protocol.schemas.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
)
from odradek.replication.controller.image import MetadataImage, PartitionImage, TopicImage
from tests.support.broker_process import BrokerProcess
from tests.support.consumer_group_clients import (
    JOINS,
    LEAVES,
    LEAVES_FOR_NOW,
    TOPICS,
    Owned,
    Reader,
    See,
)
from tests.support.group_clients import plain, wait_for_coordinators
from tests.support.kafka_tools import run_tool
from tests.support.odradek_process import start_odradek
from tests.support.real_kafka import start_kafka
from tests.support.waiting import deadline

pytestmark = pytest.mark.interop

CONFIG = {
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "1",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.max.size": "3",
}
BASE64_ID = re.compile(r"\b[\w-]{22}\b")
Story = Callable[["Reader", See], None]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[BrokerProcess]]:
    with (
        start_kafka(tmp_path_factory.mktemp("kafka"), config=CONFIG) as kafka,
        start_odradek(tmp_path_factory.mktemp("odradek"), config=CONFIG) as odradek,
    ):
        for broker in (kafka, odradek):
            prepare(broker)
        yield [kafka, odradek]


def prepare(broker: BrokerProcess) -> None:
    for name, partitions in TOPICS.items():
        run_tool(
            "topics", "--bootstrap-server", broker.bootstrap,
            "--create", "--topic", name, "--partitions", str(partitions),
        ).check()  # fmt: skip


@pytest.fixture(scope="module")
def readers(brokers: list[BrokerProcess]) -> Iterator[list[Reader]]:
    found = [Reader(broker.bootstrap) for broker in brokers]
    for each in found:
        wait_for_coordinators(each, "g")
    yield found
    for each in found:
        each.close()


def without_ids(seen: Any, reader: Reader) -> Any:
    """Replace topic ids with names, and sort lists without an order."""
    if isinstance(seen, dict):
        found = {key: without_ids(value, reader) for key, value in seen.items()}
        for key in ("topic_partitions", "subscribed_topic_names"):
            if found.get(key):
                found[key] = sorted(found[key], key=repr)
        # INVALID_REGULAR_EXPRESSION has the message of the library
        if found.get("error_code") == 128:
            found["error_message"] = str(found["error_message"])[:30]
        return found
    if isinstance(seen, list):
        return [without_ids(each, reader) for each in seen]
    for name, topic_id in reader.ids.items():
        if seen in (topic_id, "the topic's id") and (name == "orders" or seen == topic_id):
            return f"the id of {name}"
    return BASE64_ID.sub("<id>", seen) if isinstance(seen, str) else seen


@pytest.fixture
def both(readers: list[Reader]) -> Callable[[Story], None]:
    """Run the same requests on both brokers; the recorded responses must be equal."""

    def describe(story: Story) -> None:
        received = []
        for reader in readers:
            seen: list[Any] = []

            def see(response: Any, reader: Reader = reader, seen: list[Any] = seen) -> Any:
                seen.append(without_ids(plain(response, reader), reader))
                return response

            story(reader, see)
            received.append(seen)
        kafka, odradek = received
        assert len(kafka) == len(odradek)
        for step, (theirs, mine) in enumerate(zip(kafka, odradek, strict=True)):
            assert mine == theirs, f"response {step}"

    return describe


@pytest.mark.parametrize("version", apis.CONSUMER_GROUP_HEARTBEAT.versions)
def test_two_members(both: Callable[[Story], None], version: int) -> None:
    group = f"two-{version}"

    def story(reader: Reader, see: See) -> None:
        see(reader.beat("a", group, JOINS, version))
        reader.look(see, group)
        see(reader.beat("a", group, 2, version, owned={"orders": [0, 1]}))
        see(reader.beat("b", group, JOINS, version))
        reader.look(see, group)
        see(reader.beat("a", group, 2, version))
        reader.look(see, group)
        see(reader.beat("a", group, 2, version, owned={"orders": [0, 1]}))
        # The assignor decides which of the two partitions the member keeps.
        group_now = reader.ask("admin", apis.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[group])
        (mine,) = (m for m in group_now.groups[0].members if m.member_id == "a-member")
        kept = list(mine.target_assignment.topic_partitions[0].partitions)
        see(len(kept))
        see(reader.beat("a", group, 2, version, owned={"orders": kept}).member_epoch)
        see(reader.beat("b", group, 3, version).member_epoch)
        for epoch in (0, 1, 2, 3, 4):
            see(reader.commit("a", group, epoch).topics[0].partitions[kept[0]].error_code)
            see(reader.fetch(group, "a-member", epoch).groups[0].error_code)
        see(reader.commit("a", group, 3, 10).topics[0].partitions[0].error_code)
        for fields in ({"member_id": "stranger"}, {"member_id": ""}):
            see(reader.commit("a", group, 3, **fields))
            see(reader.commit("a", group, -1, **fields))
        see(reader.commit("a", group, 3, 8))
        see(reader.fetch(group, "stranger", 3))
        see(reader.ask("admin", apis.DELETE_GROUPS, 2, groups_names=[group]))
        see(reader.beat("b", group, LEAVES, version))
        see(reader.beat("b", group, 3, version))
        see(reader.beat("a", group, LEAVES, version))
        reader.look(see, group)
        see(reader.ask("admin", apis.DELETE_GROUPS, 2, groups_names=[group]))
        reader.look(see, group)

    both(story)


def test_invalid_requests_like_kafka(both: Callable[[Story], None]) -> None:
    def story(reader: Reader, see: See) -> None:
        for version in (0, 1):
            for epoch, fields in (
                (JOINS, {"rebalance_timeout": -1}),
                (JOINS, {"owned": None}),
                (JOINS, {"owned": {"orders": [0]}}),
                (JOINS, {"subscribed_topic_names": None}),
                (JOINS, {"server_assignor": "mine"}),
                (JOINS, {"instance_id": ""}),
                (JOINS, {"rack_id": " "}),
                (1, {"member_id": ""}),
                (1, {}),
                (LEAVES, {}),
                (LEAVES, {"member_id": ""}),
                (LEAVES_FOR_NOW, {}),
                (LEAVES_FOR_NOW, {"instance_id": "i"}),
                (-3, {}),
            ):
                see(reader.beat("a", "refused", epoch, version, **fields))
            see(reader.beat("a", "", JOINS, version))
        see(reader.beat("a", "refused", JOINS, 1, member_id=""))
        see(reader.beat("a", "refused", JOINS, 1, subscribed_topic_regex="[a-"))
        see(reader.beat("a", "refused", JOINS, 1, subscribed_topic_regex="(?=x)"))
        see(reader.beat("a", "refused", JOINS))
        for epoch, fields in ((5, {}), (0, {"instance_id": "i"}), (1, {"instance_id": "j"})):
            see(reader.beat("a", "refused", epoch, **fields))
        for who in "bcd":
            see(reader.beat(who, "refused", JOINS).error_code)
        see(reader.ask("admin", apis.CONSUMER_GROUP_DESCRIBE, 1, group_ids=["", "nobody"]))

    both(story)


def test_static_members(both: Callable[[Story], None]) -> None:
    def story(reader: Reader, see: See) -> None:
        static = {"instance_id": "i"}
        see(reader.beat("a", "static", JOINS, **static))
        see(reader.beat("a", "static", 2, **static, owned={"orders": [0, 1]}))
        see(reader.beat("b", "static", JOINS, **static))
        see(reader.beat("a", "static", LEAVES_FOR_NOW, **static))
        reader.look(see, "static")
        see(reader.beat("b", "static", JOINS, **static))
        see(reader.beat("a", "static", 2, **static))
        see(reader.beat("b", "static", 2, **static, owned={"orders": [0, 1]}))
        reader.look(see, "static")
        leavers = [{"member_id": "", "group_instance_id": each} for each in ("i", "j")]
        see(reader.ask("admin", apis.LEAVE_GROUP, 5, group_id="static", members=leavers))
        reader.look(see, "static")

    both(story)


def test_assignors_and_subscriptions(both: Callable[[Story], None]) -> None:
    def story(reader: Reader, see: See) -> None:
        everything = {"subscribed_topic_names": ["orders", "payments"], "server_assignor": "range"}
        see(reader.beat("a", "range", JOINS, **everything))
        see(reader.beat("b", "range", JOINS, **everything, rack_id="r"))
        reader.look(see, "range")
        see(reader.beat("a", "range", 2))
        see(reader.beat("a", "range", 2, owned={"orders": [0], "payments": [0, 1]}))
        see(reader.beat("b", "range", 3))
        reader.look(see, "range")
        see(reader.beat("b", "range", 3, subscribed_topic_names=["payments", "to-come"]))
        reader.look(see, "range")
        see(reader.beat("b", "range", 3, subscribed_topic_names=[]))
        see(reader.beat("b", "range", 3, owned={}))
        reader.look(see, "range")

    both(story)


def test_regular_expressions(both: Callable[[Story], None]) -> None:
    def story(reader: Reader, see: See) -> None:
        see(reader.beat("a", "regex", JOINS))
        see(reader.beat("a", "regex", 2, subscribed_topic_names=[], subscribed_topic_regex="pay.*"))
        # The expression may or may not be resolved
        response = reader.beat("a", "regex", 2, owned={})
        with deadline(30, "the expression") as check:
            while not response.assignment:
                check()
                response = reader.beat("a", "regex", response.member_epoch)
        see(response)
        reader.look(see, "regex")
        see(reader.beat("b", "regex", JOINS, subscribed_topic_regex="pay.*").error_code)

    both(story)


def subscription(*topics: str, owned: Owned | None = None) -> bytes:
    partitions = tuple(
        TopicPartitions(topic=topic, partitions=tuple(each))
        for topic, each in (owned or {}).items()
    )
    value = ConsumerProtocolSubscription(topics=topics, owned_partitions=partitions)
    return consumer_protocol.write(value, 1)


def join(reader: Reader, group: str, member_id: str, **fields: Any) -> Any:
    owned = fields.pop("owned", None)
    values = {
        "group_id": group, "session_timeout": 30_000, "rebalance_timeout": 30_000,
        "member_id": member_id, "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription("orders", owned=owned)}],
        "group_instance_id": None, **fields,
    }  # fmt: skip
    return reader.ask("c", apis.JOIN_GROUP, 9, **values)


def sync(reader: Reader, group: str, joined: Any, assignments: Any = ()) -> Any:
    return reader.ask(
        "c", apis.SYNC_GROUP, 5, group_id=group, generation_id=joined.generation_id,
        member_id=joined.member_id, protocol_type="consumer", protocol_name="range",
        assignments=assignments,
    )  # fmt: skip


def test_group_upgrade_and_downgrade(both: Callable[[Story], None]) -> None:
    group = "changes"

    def story(reader: Reader, see: See) -> None:
        def beat(joined: Any) -> Any:
            values = {"generation_id": joined.generation_id, "member_id": joined.member_id}
            return reader.ask("c", apis.HEARTBEAT, 4, group_id=group, **values)

        given = see(join(reader, group, ""))
        joined = see(join(reader, group, given.member_id))
        everything = consumer_protocol.write(
            ConsumerProtocolAssignment(
                assigned_partitions=(TopicPartitions(topic="orders", partitions=(0, 1)),)
            ),
            1,
        )
        see(
            sync(reader, group, joined, [
                {"member_id": joined.member_id, "assignment": everything}
            ])
        )  # fmt: skip
        see(reader.beat("a", group, JOINS, subscribed_topic_names=["orders"]))
        reader.look(see, group)
        see(beat(joined))
        see(sync(reader, group, joined))
        joined = see(join(reader, group, joined.member_id, owned={"orders": [0, 1]}))
        response = sync(reader, group, joined)
        see(response.error_code)
        (kept,) = consumer_protocol.read_assignment(response.assignment).assigned_partitions
        see(len(kept.partitions))
        see(beat(joined))
        owned = {"orders": list(kept.partitions)}
        joined = see(join(reader, group, joined.member_id, owned=owned))
        see(sync(reader, group, joined).error_code)
        see(beat(joined))
        see(reader.beat("a", group, 2).member_epoch)
        see(join(reader, group, "stranger", protocols=[{"name": "x", "metadata": b""}]))
        see(reader.ask("c", apis.HEARTBEAT, 4, group_id=group, generation_id=2, member_id="no"))
        see(
            reader.ask(
                "c", apis.HEARTBEAT, 4, group_id=group, generation_id=2, member_id="a-member"
            )
        )
        see(reader.beat("a", group, LEAVES))
        for version in (5, 6):
            see(
                reader.ask("admin", apis.DESCRIBE_GROUPS, version, groups=[group])
                .groups[0]
                .group_state
            )
        see(beat(joined))
        rejoined = see(join(reader, group, joined.member_id, owned=owned))
        see(sync(reader, group, rejoined).error_code)

    both(story)


def test_empty_group_converts_to_both_kinds(both: Callable[[Story], None]) -> None:
    def story(reader: Reader, see: See) -> None:
        see(reader.beat("a", "either", JOINS))
        see(reader.beat("a", "either", LEAVES))
        given = see(join(reader, "either", ""))
        joined = see(join(reader, "either", given.member_id))
        leavers = [{"member_id": joined.member_id}]
        see(reader.ask("c", apis.LEAVE_GROUP, 5, group_id="either", members=leavers))
        see(reader.beat("a", "either", JOINS))
        reader.look(see, "either")

    both(story)


def test_records_are_those_of_kafka(brokers: list[BrokerProcess], readers: list[Reader]) -> None:
    """Records of `__consumer_offsets` as Kafka's tool prints them are equal."""
    received = []
    for broker, reader in zip(brokers, readers, strict=True):
        group = "recorded"
        reader.beat("a", group, JOINS, rack_id="r")
        reader.beat("a", group, 2, owned={"orders": [0, 1]})
        reader.beat("a", group, 2, subscribed_topic_names=["payments"])
        reader.beat("a", group, 2, owned={})
        reader.beat("s", group, JOINS, instance_id="i")
        reader.beat("s", group, LEAVES_FOR_NOW, instance_id="i")
        reader.beat("t", group, JOINS, instance_id="i")
        reader.beat("t", group, LEAVES, instance_id="i")
        reader.beat("a", group, LEAVES)
        reader.ask("admin", apis.DELETE_GROUPS, 2, groups_names=[group])
        received.append(records_of(broker, reader, group))
    kafka, odradek = received
    assert len(kafka) > 20
    assert odradek == kafka


def records_of(broker: BrokerProcess, reader: Reader, group: str) -> list[str]:
    """Keys and values in order, without ids, hashes and timestamps."""
    log = broker.partition_directory("__consumer_offsets", 0) / f"{0:020}.log"
    dumped = run_tool("dump-log", "--offsets-decoder", "--files", str(log)).check()
    found = []
    for line in dumped.lines:
        payload = line.partition(" key: ")[2]
        if f'"{group}"' in payload:
            payload = re.sub(r'imestamp":\d+', 'imestamp":…', payload)
            payload = re.sub(r'metadataHash":-?\d+', 'metadataHash":…', payload)
            found.append(re.sub(r'"topicId":"[^"]*"', '"topicId":"…"', payload))
    return found


def test_metadata_hash_is_that_of_kafka(
    brokers: list[BrokerProcess], readers: list[Reader]
) -> None:
    """Kafka and Odradek compute the same hash for the topics of a group."""
    broker, reader = brokers[0], readers[0]
    reader.beat("a", "hashed", JOINS, subscribed_topic_names=["orders", "payments"])
    path = broker.partition_directory("__consumer_offsets", 0) / f"{0:020}.log"
    hashes = []
    for batch in batches(memoryview(path.read_bytes())):
        for record in log_records.decode(batch):
            key = serde.decode_group_key(record.key)
            if isinstance(key, ConsumerGroupMetadataKey) and key.group_id == "hashed":
                hashes.append(serde.decode_group_value(key, record.value).metadata_hash)
    partition = PartitionImage((1,), (UUID(int=1),), (1,), 1, 0, 0)
    images = [
        TopicImage(name, reader.ids[name], dict.fromkeys(range(count), partition))
        for name, count in TOPICS.items()
    ]
    image = MetadataImage(
        topics_by_name={each.name: each for each in images},
        topics_by_id={each.id: each for each in images},
    )
    assert hashes == [TopicMetadata(image).metadata_hash(TOPICS)]


@pytest.mark.slow
def test_groups_migrate_from_kafka_and_back(tmp_path: Path) -> None:
    """Kafka, Odradek (with a crash), and Kafka again open the same log directory."""
    with start_kafka(tmp_path / "kafka", config=CONFIG) as kafka:
        prepare(kafka)
        reader = Reader(kafka.bootstrap)
        wait_for_coordinators(reader, "g")
        reader.beat("a", "moves", JOINS, subscribed_topic_names=["orders", "payments"])
        reader.beat("b", "moves", JOINS, instance_id="i")
        reader.beat("b", "moves", 3, instance_id="i")
        reader.commit("a", "moves", 2)
        reader.close()

    def odradek() -> BrokerProcess:
        return start_odradek(tmp_path / "odradek", config=CONFIG, log_dirs=kafka.log_dirs)

    def theirs() -> BrokerProcess:
        directory, dirs = tmp_path / "kafka", kafka.log_dirs
        return start_kafka(directory, config=CONFIG, log_dirs=dirs, formatted=True)

    seen: list[Any] = []
    for start, end in ((odradek, "kill"), (odradek, "stop"), (theirs, "stop")):
        broker = start()
        try:
            reader = Reader(broker.bootstrap)
            wait_for_coordinators(reader, "g")

            def see(response: Any, reader: Reader = reader) -> None:
                seen.append(without_ids(plain(response, reader), reader))

            reader.look(see, "moves")
            see(reader.fetch("moves", None, -1))
            response = reader.beat("b", "moves", 3, instance_id="i")
            seen.append((response.error_code, response.member_epoch))
            reader.close()
        except BaseException:
            broker.kill()
            raise
        getattr(broker, end)()
    third = len(seen) // 3
    assert seen[:third] == seen[third : 2 * third] == seen[2 * third :]
