"""Requests to Apache Kafka and to Odradek: every field of the responses must be equal.

The random part of member ids, ports, and the order of members may differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from odradek.protocol import apis
from tests.broker.groups.group_shard_driver import metadata
from tests.support.broker_process import BrokerProcess
from tests.support.group_clients import TOPIC, UUID_TEXT, Peer, plain, wait_for_coordinators
from tests.support.kafka_tools import run_tool
from tests.support.odradek_process import start_odradek
from tests.support.real_kafka import start_kafka

pytestmark = pytest.mark.interop

CONFIG = {"group.min.session.timeout.ms": "1000", "offsets.topic.num.partitions": "5"}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[BrokerProcess]]:
    def directory(name: str) -> Path:
        return tmp_path_factory.mktemp(name)

    with (
        start_kafka(directory("kafka"), config=CONFIG) as kafka,
        start_odradek(directory("odradek"), config=CONFIG) as odradek,
    ):
        for broker in (kafka, odradek):
            run_tool(
                "topics", "--bootstrap-server", broker.bootstrap,
                "--create", "--topic", TOPIC, "--partitions", "2",
            ).check()  # fmt: skip
        yield [kafka, odradek]


@pytest.fixture(scope="module")
def peers(brokers: list[BrokerProcess]) -> Iterator[list[Peer]]:
    found = [Peer(broker.bootstrap) for broker in brokers]
    for peer in found:
        wait_for_coordinators(peer)
    yield found
    for peer in found:
        peer.close()


Story = Callable[[Peer, Callable[[Any], Any]], None]


@pytest.fixture
def both(peers: list[Peer]) -> Callable[[Story], None]:
    """Run the same requests on both brokers; the recorded responses must be equal."""

    def describe(story: Story) -> None:
        received = []
        for peer in peers:
            seen: list[Any] = []

            def see(response: Any, peer: Peer = peer, seen: list[Any] = seen) -> Any:
                seen.append(plain(response, peer))
                return response

            story(peer, see)
            received.append(seen)
        kafka, odradek = received
        assert len(kafka) == len(odradek)
        for step, (theirs, mine) in enumerate(zip(kafka, odradek, strict=True)):
            assert mine == theirs, f"response {step}"

    return describe


def join_values(group: str, version: int, **fields: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout": 30_000,
        "rebalance_timeout": 30_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [
            {"name": "range", "metadata": metadata(TOPIC)},
            {"name": "sticky", "metadata": metadata(TOPIC, "u")},
        ],
        **({"group_instance_id": None} if version >= 5 else {}),
        **fields,
    }


def member(
    peer: Peer, see: Callable[[Any], Any], group: str, who: str, version: int = 9, **fields: Any
) -> Any:
    """Join as the only member; from version 4 on with a second JoinGroup."""
    values = join_values(group, version, **fields)
    joined = see(peer.ask(who, apis.JOIN_GROUP, version, **values))
    if joined.error_code == 79:
        values["member_id"] = joined.member_id
        joined = see(peer.ask(who, apis.JOIN_GROUP, version, **values))
    return joined


def sync_values(group: str, joined: Any, **fields: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "protocol_type": "consumer",
        "protocol_name": joined.protocol_name,
        "assignments": [
            {"member_id": each.member_id, "assignment": b"for " + each.member_id[:1].encode()}
            for each in joined.members
        ],
        **fields,
    }


def look(peer: Peer, see: Callable[[Any], Any], group: str) -> None:
    """Descriptions and offsets of a group, from all APIs."""
    for version in apis.DESCRIBE_GROUPS.versions:
        asked = {"include_authorized_operations": True} if version >= 3 else {}
        see(peer.ask("admin", apis.DESCRIBE_GROUPS, version, groups=[group], **asked))
    listed = peer.ask("admin", apis.LIST_GROUPS, 5)
    see(tuple(each for each in listed.groups if each.group_id == group))
    for version in range(2, 11):
        see(fetch(peer, version, group, None))


def fetch(peer: Peer, version: int, group: str, partitions: list[int] | None) -> Any:
    named = {"topic_id": peer.topic_id} if version >= 10 else {"name": TOPIC}
    topics = None if partitions is None else [{**named, "partition_indexes": partitions}]
    if version >= 8:
        return peer.ask(
            "admin", apis.OFFSET_FETCH, version, groups=[{"group_id": group, "topics": topics}]
        )
    return peer.ask("admin", apis.OFFSET_FETCH, version, group_id=group, topics=topics)


def commit_values(peer: Peer, version: int, group: str, **fields: Any) -> dict[str, Any]:
    named = {"topic_id": peer.topic_id} if version >= 10 else {"name": TOPIC}
    partitions = [
        {"partition_index": index, "committed_offset": 5 + index, "committed_metadata": text}
        for index, text in ((0, "m"), (1, None), (2, ""))
    ]
    return {
        "group_id": group,
        "member_id": "",
        "topics": [{**named, "partitions": partitions}],
        **fields,
    }


@pytest.mark.parametrize("version", apis.JOIN_GROUP.versions)
def test_single_member(both: Callable[[Story], None], version: int) -> None:
    group = f"life-{version}"

    def story(peer: Peer, see: Callable[[Any], Any]) -> None:
        joined = member(peer, see, group, "a", version)
        look(peer, see, group)
        older = min(version, 5)
        sync = sync_values(group, joined, protocol_name="range")
        see(peer.ask("a", apis.SYNC_GROUP, older, **sync))
        see(peer.ask("a", apis.SYNC_GROUP, older, **{**sync, "assignments": []}))
        look(peer, see, group)
        beat = {"group_id": group, "generation_id": 1, "member_id": joined.member_id}
        see(peer.ask("a", apis.HEARTBEAT, min(version, 4), **beat))
        for commit_version in apis.OFFSET_COMMIT.versions:
            values = commit_values(
                peer, commit_version, group, member_id=joined.member_id,
                generation_id_or_member_epoch=1,
            )  # fmt: skip
            see(peer.ask("a", apis.OFFSET_COMMIT, commit_version, **values))
        look(peer, see, group)
        see(peer.ask("admin", apis.DELETE_GROUPS, 2, groups_names=[group]))
        leaving = {"group_id": group, "member_id": joined.member_id}
        if version >= 3:
            leaving = {"group_id": group, "members": [{"member_id": joined.member_id}]}
        see(peer.ask("a", apis.LEAVE_GROUP, older, **leaving))
        look(peer, see, group)
        see(peer.ask("admin", apis.DELETE_GROUPS, 2, groups_names=[group, group]))
        look(peer, see, group)

    both(story)


def test_unknown_groups(both: Callable[[Story], None]) -> None:
    def story(peer: Peer, see: Callable[[Any], Any]) -> None:
        for group in ("nobody", ""):
            for version in apis.JOIN_GROUP.versions:
                values = join_values(group, version, member_id="stranger")
                see(peer.ask("a", apis.JOIN_GROUP, version, **values))
            beat = {"group_id": group, "generation_id": 1, "member_id": "m"}
            for version in apis.HEARTBEAT.versions:
                see(peer.ask("a", apis.HEARTBEAT, version, **beat))
            for version in apis.SYNC_GROUP.versions:
                values = {**beat, "protocol_type": "consumer", "protocol_name": "range"}
                see(peer.ask("a", apis.SYNC_GROUP, version, **values, assignments=[]))
            for version in apis.LEAVE_GROUP.versions:
                if version >= 3:
                    leavers = [{"member_id": "m"}, {"member_id": "", "group_instance_id": "i"}]
                    leaving = {"group_id": group, "members": leavers}
                else:
                    leaving = {"group_id": group, "member_id": "m"}
                see(peer.ask("a", apis.LEAVE_GROUP, version, **leaving))
            for version in apis.OFFSET_COMMIT.versions:
                values = commit_values(peer, version, group, generation_id_or_member_epoch=3)
                see(peer.ask("a", apis.OFFSET_COMMIT, version, **values))
            for version in apis.OFFSET_FETCH.versions:
                see(fetch(peer, version, group, [0, 7]))
            topics = [{"name": TOPIC, "partitions": [{"partition_index": 0}]}]
            see(peer.ask("a", apis.OFFSET_DELETE, 0, group_id=group, topics=topics))
            for version in apis.DELETE_GROUPS.versions:
                see(peer.ask("a", apis.DELETE_GROUPS, version, groups_names=[group]))
            look(peer, see, group)

    both(story)


def test_rejected_joins(both: Callable[[Story], None]) -> None:
    def story(peer: Peer, see: Callable[[Any], Any]) -> None:
        for version in apis.JOIN_GROUP.versions:
            for fields in (
                {"session_timeout": 999},
                {"session_timeout": 1_800_001},
                {"protocols": []},
                {"protocol_type": ""},
            ):
                values = join_values("refused", version, **fields)
                see(peer.ask("a", apis.JOIN_GROUP, version, **values))
        joined = member(peer, see, "refused", "b")
        for fields in (
            {"protocol_type": "connect"},
            {"protocols": [{"name": "other", "metadata": b""}]},
            {"member_id": "stranger"},
            {"member_id": joined.member_id, "group_instance_id": "i"},
        ):
            see(peer.ask("a", apis.JOIN_GROUP, 9, **join_values("refused", 9, **fields)))
        look(peer, see, "refused")

    both(story)


def test_sync_heartbeat_and_commit_in_other_states(both: Callable[[Story], None]) -> None:
    def story(peer: Peer, see: Callable[[Any], Any]) -> None:
        joined = member(peer, see, "places", "a")
        values = sync_values("places", joined)
        for fields in (
            {"generation_id": 0},
            {"member_id": "stranger"},
            {"protocol_name": "sticky"},
            {"protocol_type": "connect"},
            {"protocol_name": None},
            {"group_instance_id": "i"},
        ):
            see(peer.ask("a", apis.SYNC_GROUP, 5, **{**values, **fields}))
        mine = {"member_id": joined.member_id, "generation_id_or_member_epoch": 1}
        for version in apis.OFFSET_COMMIT.versions:  # between join and sync
            commit = commit_values(peer, version, "places", **mine)
            see(peer.ask("a", apis.OFFSET_COMMIT, version, **commit))
        beat = {"group_id": "places", "generation_id": 1, "member_id": joined.member_id}
        see(peer.ask("a", apis.HEARTBEAT, 4, **beat))
        see(peer.ask("a", apis.SYNC_GROUP, 5, **values))
        for fields in (
            {"generation_id_or_member_epoch": 0, "member_id": joined.member_id},
            {"generation_id_or_member_epoch": 1, "member_id": "stranger"},
            {"generation_id_or_member_epoch": -1},
            {**mine, "group_instance_id": "i"},
        ):
            commit = commit_values(peer, 9, "places", **fields)
            see(peer.ask("a", apis.OFFSET_COMMIT, 9, **commit))
        for fields in ({"generation_id": 0}, {"member_id": "s"}, {"group_instance_id": "i"}):
            see(peer.ask("a", apis.HEARTBEAT, 4, **{**beat, **fields}))
        see(
            peer.ask(
                "a", apis.JOIN_GROUP, 9, **join_values("places", 9, member_id=joined.member_id)
            )
        )

    both(story)


def test_offsets_of_existing_and_unknown_topics(both: Callable[[Story], None]) -> None:
    def story(peer: Peer, see: Callable[[Any], Any]) -> None:
        for version in apis.OFFSET_COMMIT.versions:
            group = f"offsets-{version}"
            if version < 10:
                one = {"partition_index": 0, "committed_offset": 9, "committed_metadata": "x"}
                long = {**one, "partition_index": 1, "committed_metadata": "x" * 4097}
                topics = [
                    {"name": "missing", "partitions": [one]},
                    {"name": TOPIC, "partitions": [one, long, {**one, "partition_index": 7}]},
                ]
                fields = {"retention_time": 1_000_000} if version < 5 else {}
                values = {"group_id": group, "member_id": "", "topics": topics, **fields}
            else:
                values = commit_values(peer, version, group)
            see(peer.ask("a", apis.OFFSET_COMMIT, version, **values))
            for fetching in apis.OFFSET_FETCH.versions:
                see(fetch(peer, fetching, group, [0, 1, 7]))
            look(peer, see, group)
        topics = [
            {"name": name, "partitions": [{"partition_index": each} for each in indexes]}
            for name, indexes in ((TOPIC, (0, 1, 9)), ("missing", (0,)))
        ]
        for _ in range(2):
            see(peer.ask("a", apis.OFFSET_DELETE, 0, group_id="offsets-9", topics=topics))
        look(peer, see, "offsets-9")

    both(story)


def test_offset_delete_of_subscribed_topics(both: Callable[[Story], None]) -> None:
    def story(peer: Peer, see: Callable[[Any], Any]) -> None:
        for group, fields in (
            ("readers", {}),
            ("connectors", {"protocol_type": "connect"}),
            ("riddles", {"protocols": [{"name": "range", "metadata": b"?"}]}),
        ):
            joined = member(peer, see, group, "a", **fields)
            values = sync_values(group, joined, protocol_type=joined.protocol_type)
            see(peer.ask("a", apis.SYNC_GROUP, 5, **values))
            topics = [{"name": TOPIC, "partitions": [{"partition_index": 0}]}]
            see(peer.ask("a", apis.OFFSET_DELETE, 0, group_id=group, topics=topics))

    both(story)


def test_two_members(both: Callable[[Story], None]) -> None:
    def story(peer: Peer, see: Callable[[Any], Any]) -> None:
        first = member(peer, see, "two", "a")
        see(peer.ask("a", apis.SYNC_GROUP, 5, **sync_values("two", first)))
        given = see(peer.ask("b", apis.JOIN_GROUP, 9, **join_values("two", 9)))
        values = join_values("two", 9, member_id=given.member_id)
        peer.send("b", apis.JOIN_GROUP, 9, **values)
        beat = {"group_id": "two", "generation_id": 1, "member_id": first.member_id}
        while not (response := peer.ask("a", apis.HEARTBEAT, 4, **beat)).error_code:
            pass
        see(response)
        look(peer, see, "two")
        commit = commit_values(
            peer, 9, "two", member_id=first.member_id, generation_id_or_member_epoch=1
        )
        see(peer.ask("a", apis.OFFSET_COMMIT, 9, **commit))
        see(peer.ask("a", apis.SYNC_GROUP, 5, **sync_values("two", first)))
        rejoin = join_values("two", 9, member_id=first.member_id)
        one = see(peer.ask("a", apis.JOIN_GROUP, 9, **rejoin))
        two = see(peer.receive("b"))
        peer.send("b", apis.SYNC_GROUP, 5, **sync_values("two", two))
        see(peer.ask("a", apis.SYNC_GROUP, 5, **sync_values("two", one)))
        see(peer.receive("b"))
        look(peer, see, "two")
        # A follower with unchanged metadata gets the current generation; changed metadata rebalances.
        again = join_values("two", 9, member_id=two.member_id)
        see(peer.ask("b", apis.JOIN_GROUP, 9, **again))
        leaving = [
            {"member_id": two.member_id, "reason": "enough"},
            {"member_id": "stranger"},
            {"member_id": "", "group_instance_id": "i"},
        ]
        see(peer.ask("b", apis.LEAVE_GROUP, 5, group_id="two", members=leaving))
        see(peer.ask("a", apis.HEARTBEAT, 4, **{**beat, "generation_id": 2}))
        see(peer.ask("a", apis.JOIN_GROUP, 9, **rejoin))
        look(peer, see, "two")

    both(story)


@pytest.mark.parametrize("version", range(5, 10))
def test_static_members(both: Callable[[Story], None], version: int) -> None:
    group = f"static-{version}"

    def story(peer: Peer, see: Callable[[Any], Any]) -> None:
        joined = member(peer, see, group, "a", version, group_instance_id="i")
        sync = sync_values(group, joined, group_instance_id="i", protocol_name="range")
        see(peer.ask("a", apis.SYNC_GROUP, 5, **sync))
        again = member(peer, see, group, "a2", version, group_instance_id="i")
        old = {"group_id": group, "generation_id": 1, "member_id": joined.member_id}
        see(peer.ask("a", apis.HEARTBEAT, 4, **old, group_instance_id="i"))
        see(peer.ask("a", apis.HEARTBEAT, 4, **old))
        see(peer.ask("a", apis.SYNC_GROUP, 5, **sync))
        see(peer.ask("a2", apis.SYNC_GROUP, 5, **{**sync, "member_id": again.member_id}))
        commit = commit_values(
            peer, 9, group, member_id=joined.member_id, generation_id_or_member_epoch=1,
            group_instance_id="i",
        )  # fmt: skip
        see(peer.ask("a", apis.OFFSET_COMMIT, 9, **commit))
        values = join_values(group, version, member_id=joined.member_id, group_instance_id="i")
        see(peer.ask("a", apis.JOIN_GROUP, version, **values))
        look(peer, see, group)
        for leaver in (
            {"member_id": joined.member_id, "group_instance_id": "i"},
            {"member_id": "", "group_instance_id": "j"},
            {"member_id": "", "group_instance_id": "i"},
            {"member_id": "", "group_instance_id": None},
        ):
            see(peer.ask("admin", apis.LEAVE_GROUP, 5, group_id=group, members=[leaver]))
        look(peer, see, group)

    both(story)


def test_find_coordinator(both: Callable[[Story], None]) -> None:
    def story(peer: Peer, see: Callable[[Any], Any]) -> None:
        for version in apis.FIND_COORDINATOR.versions:
            if version >= 4:
                values: dict[str, Any] = {"coordinator_keys": ["a", "b", ""]}
            else:
                values = {"key": "a"}
            see(peer.ask("a", apis.FIND_COORDINATOR, version, **values))
            if 1 <= version < 6:
                response = peer.ask("a", apis.FIND_COORDINATOR, version, **values, key_type=2)
                parts = response.coordinators if version >= 4 else (response,)
                see(tuple((each.error_code, each.node_id) for each in parts))

    both(story)


def test_list_groups(both: Callable[[Story], None]) -> None:
    def story(peer: Peer, see: Callable[[Any], Any]) -> None:
        joined = member(peer, see, "listed-stable", "a")
        see(peer.ask("a", apis.SYNC_GROUP, 5, **sync_values("listed-stable", joined)))
        see(peer.ask("a", apis.OFFSET_COMMIT, 9, **commit_values(peer, 9, "listed-simple")))
        for version in apis.LIST_GROUPS.versions:
            for states in ((), ("stable",), ("Empty", " DEAD "), ("nonsense",)):
                for types in ((), ("Classic",), ("consumer",), ("nonsense",)):
                    if (states and version < 4) or (types and version < 5):
                        continue
                    values = {
                        **({"states_filter": states} if states else {}),
                        **({"types_filter": types} if types else {}),
                    }
                    response = peer.ask("admin", apis.LIST_GROUPS, version, **values)
                    see(tuple(each for each in response.groups if "listed" in each.group_id))

    both(story)


def test_pending_members(both: Callable[[Story], None]) -> None:
    def story(peer: Peer, see: Callable[[Any], Any]) -> None:
        given = see(peer.ask("a", apis.JOIN_GROUP, 9, **join_values("pending", 9)))
        static = {"member_id": given.member_id, "group_instance_id": "i"}
        see(peer.ask("a", apis.JOIN_GROUP, 9, **join_values("pending", 9, **static)))
        beat = {"group_id": "pending", "generation_id": 0, "member_id": given.member_id}
        see(peer.ask("a", apis.HEARTBEAT, 4, **beat))
        look(peer, see, "pending")
        leaver = {"member_id": given.member_id}
        for _ in range(2):
            see(peer.ask("a", apis.LEAVE_GROUP, 5, group_id="pending", members=[leaver]))
        again = join_values("pending", 9, member_id=given.member_id)
        see(peer.ask("a", apis.JOIN_GROUP, 9, **again))

    both(story)


def test_members_that_rejoin_with_changed_metadata(both: Callable[[Story], None]) -> None:
    other = [{"name": "range", "metadata": metadata("u")}]

    def story(peer: Peer, see: Callable[[Any], Any]) -> None:
        joined = member(peer, see, "minds", "a")
        for fields in ({}, {"protocols": other}):  # before SyncGroup
            rejoin = join_values("minds", 9, member_id=joined.member_id, **fields)
            joined = see(peer.ask("a", apis.JOIN_GROUP, 9, **rejoin))
        see(peer.ask("a", apis.SYNC_GROUP, 5, **sync_values("minds", joined)))
        look(peer, see, "minds")
        for fields in ({"protocols": other}, {}):  # and in the stable group
            rejoin = join_values("minds", 9, member_id=joined.member_id, **fields)
            joined = see(peer.ask("a", apis.JOIN_GROUP, 9, **rejoin))
        look(peer, see, "minds")

    both(story)


def test_records_are_those_of_kafka(brokers: list[BrokerProcess], peers: list[Peer]) -> None:
    """Records of `__consumer_offsets` as Kafka's tool prints them are equal."""
    groups = ("recorded-1", "recorded-2", "recorded-3")

    def story(peer: Peer, see: Callable[[Any], Any]) -> None:
        joined = member(peer, see, groups[0], "a")
        peer.ask("a", apis.SYNC_GROUP, 5, **sync_values(groups[0], joined))
        commit = {"member_id": joined.member_id, "generation_id_or_member_epoch": 1}
        for version in apis.OFFSET_COMMIT.versions:
            values = commit_values(peer, version, groups[0], **commit)
            peer.ask("a", apis.OFFSET_COMMIT, version, **values)
        leaver = {"member_id": joined.member_id}
        peer.ask("a", apis.LEAVE_GROUP, 5, group_id=groups[0], members=[leaver])
        static = member(peer, see, groups[1], "a", group_instance_id="i")
        sync = sync_values(groups[1], static, group_instance_id="i")
        peer.ask("a", apis.SYNC_GROUP, 5, **sync)
        member(peer, see, groups[1], "b", group_instance_id="i", rebalance_timeout=5000)
        for retention in (-1, 86_400_000):
            values = commit_values(peer, 2, groups[2], retention_time=retention)
            peer.ask("a", apis.OFFSET_COMMIT, 2, **values)
        topics = [{"name": TOPIC, "partitions": [{"partition_index": 0}]}]
        peer.ask("a", apis.OFFSET_DELETE, 0, group_id=groups[2], topics=topics)
        peer.ask("admin", apis.DELETE_GROUPS, 2, groups_names=[groups[2]])

    received = []
    for broker, peer in zip(brokers, peers, strict=True):
        story(peer, lambda response: response)
        received.append(_records_of(broker, groups))
    kafka, odradek = received
    assert any("recorded-3" in line for lines in kafka for line in lines)
    assert odradek == kafka


def _records_of(broker: BrokerProcess, groups: tuple[str, ...]) -> list[list[str]]:
    """Keys and values by partition, without ids and timestamps."""
    found = []
    for partition in range(5):
        log = broker.partition_directory("__consumer_offsets", partition) / f"{0:020}.log"
        dumped = run_tool("dump-log", "--offsets-decoder", "--files", str(log)).check()
        payloads = (line.partition(" key: ")[2] for line in dumped.lines)
        kept = [line for line in payloads if any(group in line for group in groups)]
        kept = [UUID_TEXT.sub("<uuid>", line) for line in kept]
        kept = [re.sub(r'"topicId":"[^"]*"', '"topicId":"…"', line) for line in kept]
        found.append([re.sub(r'imestamp":\d+', 'imestamp":…', line) for line in kept])
    return found


@pytest.mark.slow
def test_groups_migrate_from_kafka_and_back(tmp_path: Path) -> None:
    """Kafka, Odradek (with a crash), and Kafka again open the same log directory."""
    config = {"offsets.topic.num.partitions": "5"}

    def commit(peer: Peer, group: str, **fields: Any) -> None:
        response = peer.ask("a", apis.OFFSET_COMMIT, 9, **commit_values(peer, 9, group, **fields))
        errors = {each.partition_index: each.error_code for each in response.topics[0].partitions}
        assert not errors[0]

    with start_kafka(tmp_path / "kafka", config=config) as kafka:
        run_tool(
            "topics", "--bootstrap-server", kafka.bootstrap,
            "--create", "--topic", TOPIC, "--partitions", "2",
        ).check()  # fmt: skip
        peer = Peer(kafka.bootstrap)
        wait_for_coordinators(peer)
        joined = member(peer, lambda response: response, "group", "a", session_timeout=300_000)
        peer.ask("a", apis.SYNC_GROUP, 5, **sync_values("group", joined))
        named = {"member_id": joined.member_id, "generation_id_or_member_epoch": 1}
        commit(peer, "group", **named)
        commit(peer, "simple")
        peer.close()

    def odradek() -> BrokerProcess:
        return start_odradek(tmp_path / "odradek", config=config, log_dirs=kafka.log_dirs)

    def theirs() -> BrokerProcess:
        directory, dirs = tmp_path / "kafka", kafka.log_dirs
        return start_kafka(directory, config=config, log_dirs=dirs, formatted=True)

    seen: list[Any] = []
    for start, end in ((odradek, "kill"), (odradek, "stop"), (theirs, "stop")):
        broker = start()
        try:
            peer = Peer(broker.bootstrap)
            wait_for_coordinators(peer)
            beat = {"group_id": "group", "generation_id": 1, "member_id": joined.member_id}
            assert not peer.ask("a", apis.HEARTBEAT, 4, **beat).error_code
            for group in ("group", "simple"):
                look(peer, lambda response, peer=peer: seen.append(plain(response, peer)), group)
            commit(peer, "simple")
            peer.close()
        except BaseException:
            broker.kill()
            raise
        getattr(broker, end)()
    third = len(seen) // 3
    assert seen[:third] == seen[third : 2 * third] == seen[2 * third :]
