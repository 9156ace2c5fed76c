"""Responses to old versions of requests, compared with Apache Kafka."""

from __future__ import annotations

import time
from typing import Any

import pytest

from odradek.protocol import apis
from odradek.protocol.records.records import Record, build_batch
from tests.broker.apis.side_by_side import Both, Values, ask, topic

pytestmark = pytest.mark.interop

NOW_MS = int(time.time() * 1000)  # otherwise retention would delete them


@pytest.fixture
def both(both: Both) -> Both:
    """Both brokers with two topics, one of them compacted, and a loaded group coordinator."""
    made = [topic("old"), topic("kept", 1, 1, [("cleanup.policy", "compact")])]
    for broker in both.brokers:
        ask(broker, apis.CREATE_TOPICS, 7, {"topics": made, "timeout": 30_000})
        while True:  # until the coordinator has loaded
            ask(broker, apis.FIND_COORDINATOR, 0, {"key": "nobody"})
            response = ask(broker, apis.HEARTBEAT, 0, _member("nobody", generation_id=1))
            if response.error_code.name == "unknown_member_id":
                break
    return both


def _member(group: str, **more: Any) -> Values:
    return {"group_id": group, "member_id": "", **more}


def batch(key: bytes | None, value: bytes | None) -> bytes:
    return bytes(build_batch([Record(0, NOW_MS, key, value)]))


def produce(both: Both, name: str, version: int, records: bytes | None, **more: Any) -> None:
    both(
        apis.PRODUCE,
        version,
        **{
            "transactional_id": None,
            "acks": 1,
            "timeout": 30_000,
            "topic_data": [{"name": name, "partition_data": [{"index": 0, "records": records}]}],
            **more,
        },
    )


def test_produce_in_old_versions(both: Both) -> None:
    for version in (3, 5, 8, 9):
        for name in ("old", "kept"):
            for key in (b"key", None):
                produce(both, name, version, batch(key, b"value"))
        produce(both, "old", version, batch(b"k", b"v"), acks=7)
    produce(both, "kept", 9, batch(b"key", None))


def test_fetch_in_old_versions(both: Both) -> None:
    for version in (4, 7, 11):
        for offset in (0, 10_000):
            both(
                apis.FETCH,
                version,
                replica_id=-1,
                max_wait=0,
                min_bytes=0,
                max_bytes=10_000_000,
                isolation_level=0,
                session_id=0,
                session_epoch=-1,
                topics=[
                    {
                        "topic": "old",
                        "partitions": [
                            {
                                "partition": 0,
                                "current_leader_epoch": -1,
                                "fetch_offset": offset,
                                "log_start_offset": -1,
                                "partition_max_bytes": 1_000_000,
                            }
                        ],
                    }
                ],
                forgotten_topics_data=[],
                rack_id="",
            )


def test_group_requests_in_old_versions(both: Both) -> None:
    for version in (0, 2, 5):
        refused = {
            "session_timeout": 1,
            "rebalance_timeout": 10_000,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        }
        both(apis.JOIN_GROUP, version, **_member("old", **refused))
    for version in range(1, 8):
        asked = [{"name": "old", "partition_indexes": [0, 7]}]
        both(apis.OFFSET_FETCH, version, group_id="nobody", topics=asked)
    everything = {"member_id": None, "member_epoch": -1, "topics": None}
    for version in (8, 9, 10):
        both(apis.OFFSET_FETCH, version, groups=[{"group_id": "nobody", **everything}])
    for version in apis.DESCRIBE_GROUPS.versions:
        both(apis.DESCRIBE_GROUPS, version, groups=["nobody"])


def test_join_group_in_version_2(both: Both) -> None:
    """A dynamic member receives its id in the first response."""
    for broker in both.brokers:
        joined = ask(
            broker,
            apis.JOIN_GROUP,
            2,
            _member(
                "v2",
                session_timeout=10_000,
                rebalance_timeout=10_000,
                protocol_type="consumer",
                protocols=[{"name": "range", "metadata": b"m"}],
            ),
        )
        assert joined.error_code.name == "none"
        assert (joined.generation_id, joined.protocol_name) == (1, "range")
        assert joined.leader == joined.member_id
        assert [bytes(each.metadata) for each in joined.members] == [b"m"]
        ask(broker, apis.LEAVE_GROUP, 0, {"group_id": "v2", "member_id": joined.member_id})
