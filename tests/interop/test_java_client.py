"""Kafka's Java client against a broker process: produce, groups, offsets, administration.

The client is `java/JavaClient.java`. It prints results, and the tests check them.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.kafka_tools import run_tool
from tests.support.librdkafka_clients import create_topic, produce_with_timestamps

ASSIGNORS = "org.apache.kafka.clients.consumer."


def java(scenario: str, bootstrap: str, topic: str, *args: object) -> Any:
    run = run_tool("client", scenario, bootstrap, topic, *map(str, args), timeout=90)
    return json.loads(run.stdout)


def test_idempotent_producer_and_group_with_every_codec(bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name, partitions=3)
    codecs = ["none", "gzip", "snappy", "lz4", "zstd"]
    produced = []
    for codec in codecs:
        places = java("produce", bootstrap, name, codec, 20)
        produced += [
            (
                place["partition"],
                place["offset"],
                f"key-{i}",
                None if i % 10 == 9 else f"{codec}-value-{i}",
                [["codec", codec], ["empty", None]],
            )
            for i, place in enumerate(places)
        ]
    records = java("consume", bootstrap, name, f"{name}-group", len(produced))
    columns = ("partition", "offset", "key", "value", "headers")
    consumed = [tuple(record[column] for column in columns) for record in records]
    assert sorted(consumed, key=repr) == sorted(produced, key=repr)
    # the offsets of each partition have no gaps: no record was written twice
    for partition in range(3):
        offsets = sorted(place[1] for place in produced if place[0] == partition)
        assert offsets == list(range(len(offsets)))


def test_next_member_starts_at_committed_offsets(bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name)
    java("produce", bootstrap, name, "none", 10)
    first = java("consume", bootstrap, name, name, 10)
    java("produce", bootstrap, name, "lz4", 5)
    second = java("consume", bootstrap, name, name, 5)
    assert [record["offset"] for record in first + second] == list(range(15))


@pytest.mark.parametrize(
    ("assignor", "keeps_its_own"),
    [("RangeAssignor", False), ("CooperativeStickyAssignor", True)],
)
def test_group_rebalances(bootstrap: str, name: str, assignor: str, keeps_its_own: bool) -> None:
    create_topic(bootstrap, name, partitions=4)
    seen = java("rebalance", bootstrap, name, f"{name}-group", ASSIGNORS + assignor)
    alone, together, other = seen["steps"]
    assert [set(owned) for owned in alone] == [{0, 1, 2, 3}]
    assert sorted(map(len, together)) == [2, 2]
    assert set(together[0]) | set(together[1]) == {0, 1, 2, 3}
    assert [set(owned) for owned in other] == [{0, 1, 2, 3}]
    # the eager protocol revokes all partitions; the cooperative one only those that move
    revoked = set(seen["revoked_from_first"])
    assert revoked == (set(together[1]) if keeps_its_own else {0, 1, 2, 3})


def test_consumer_protocol_members_join_and_leave(bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name, partitions=6)
    steps = [[set(owned) for owned in step] for step in java("new-group", bootstrap, name, name)]
    assert [sorted(map(len, step)) for step in steps] == [[6], [3, 3], [2, 2, 2], [3, 3], [6]]
    for before, after in pairwise(steps[:3]):  # no member gets a partition that it did not have
        assert all(kept <= had for had, kept in zip(before, after, strict=False))
    two, three = steps[2][0], steps[3][0]
    assert two <= three


def test_static_member_of_consumer_protocol_keeps_partitions(bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name, partitions=4)
    seen = java("new-group-static", bootstrap, name, name)
    assert sorted(map(len, seen["before"])) == [2, 2]
    assert seen["after"] == seen["before"]


def test_subscription_by_regular_expression(bootstrap: str, name: str) -> None:
    seen = java("new-group-pattern", bootstrap, name, name)
    assert sorted(seen) == ["InvalidRegularExpression", f"{name}-a", f"{name}-b"]


def test_group_is_upgraded_and_downgraded(bootstrap: str, name: str) -> None:
    create_topic(bootstrap, name, partitions=4)
    assert java("migration", bootstrap, name, name) == [
        "1 Classic", "2 Consumer", "1 Classic", "2 Consumer", "1 Consumer",
    ]  # fmt: skip


def test_list_offsets_with_each_kind_of_timestamp(bootstrap: str, name: str) -> None:
    # The records have timestamps of 1970
    create_topic(bootstrap, name, config={"retention.ms": "-1"})
    produce_with_timestamps(bootstrap, name, [1000, 2000, 4000, 3000])
    assert java("offsets", bootstrap, name) == {
        "earliest": [0, -1],
        "earliest_local": [0, -1],
        "latest": [4, -1],
        "max_timestamp": [2, 4000],
        "timestamp_2000": [1, 2000],
        "timestamp_9999": [-1, -1],
        "consumer_1500": [1, 2000],
    }


def test_administration(broker: BrokerProcess, name: str) -> None:
    seen = java("admin", broker.bootstrap, name)
    sizes = seen["log_dirs"].pop("sizes")
    assert len(seen.pop("topic_id")) == len(seen.pop("cluster_id")) == 22
    assert seen.pop("low_watermark") == seen.pop("end") - 1
    assert seen == {
        "by_id": name,
        "committed": [7, "seven"],
        "configs": {"cleanup.policy": "delete,compact", "max.message.bytes": "12345"},
        "gone": True,
        "group_gone": True,
        "listed": True,
        "log_dirs": {"directories": 2},
        "node_id": "1",
        "nodes": 1,
        "partitions": 3,
        "replicas": 1,
    }
    assert sum(sizes.values()) > 0
    assert {where.rpartition("-")[2] for where in sizes} == {"0", "1", "2"}
    # The directory depends on the placement: by bytes in Odradek, by partitions in Kafka.
    assert {where.rpartition("/")[0] for where in sizes} <= {str(d) for d in broker.log_dirs}
