"""Metadata hash, regular expressions, group configs, consumer protocol, and checks of commits."""

from __future__ import annotations

from uuid import UUID

import pytest

from odradek.broker.coordination.regular_expressions import InvalidExpression
from odradek.broker.groups.classic_group import ClassicGroup
from odradek.broker.groups.config import (
    ConsumerGroupConfig,
    ConsumerGroupMigrationPolicy,
    GroupConfig,
)
from odradek.broker.groups.consumer import record_helpers as records
from odradek.broker.groups.consumer.consumer_group import ConsumerGroup
from odradek.broker.groups.consumer.member import ConsumerGroupMember, MemberState
from odradek.broker.groups.consumer.topic_metadata import (
    CHANGED_TOPICS_MAX,
    ConsumerGroupEnvironment,
    TopicMetadata,
)
from odradek.broker.groups.consumer.topic_regex_resolver import check_expression, match_topics
from odradek.protocol.errors import ErrorCode, InvalidFrame
from odradek.protocol.schemas import consumer_protocol
from odradek.protocol.schemas.consumer_group_records import (
    ConsumerGroupCurrentMemberAssignmentValue,
    CurrentTopicPartitions,
)
from odradek.protocol.schemas.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
)
from odradek.replication.controller.image import (
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from tests.broker.groups.consumer.stage import ConsumerStage
from tests.broker.groups.stage import GROUP

T = UUID(int=1)


def image(partitions: int = 2, rack: str | None = None, name: str = "t") -> MetadataImage:
    partition = PartitionImage((1,), (UUID(int=9),), (1,), 1, 0, 0)
    topic = TopicImage(name, T, dict.fromkeys(range(partitions), partition))
    broker = BrokerImage(1, 1, UUID(int=2), (), {}, rack, False, False, ())
    return MetadataImage(topics_by_name={name: topic}, topics_by_id={T: topic}, brokers={1: broker})


def test_metadata_hash_depends_on_topics_partitions_and_racks() -> None:
    hashes = [
        TopicMetadata(each).metadata_hash(["t", "u", "missing"])
        for each in (image(), image(3), image(rack="r"), image(rack="s"), image(name="u"))
    ]
    assert len(set(hashes)) == len(hashes)
    assert all(-(1 << 63) <= each < 1 << 63 for each in hashes)
    assert TopicMetadata(image()).metadata_hash(["missing"]) == 0
    assert TopicMetadata(image(), TopicMetadata(image())).metadata_hash(["t"]) == TopicMetadata(
        image()
    ).metadata_hash(["t"])


@pytest.mark.parametrize("expression", ["[a-", "(?=x)", "(?!x)", "a**", "(", r"\1"])
def test_invalid_regular_expression_is_rejected(expression: str) -> None:
    with pytest.raises(InvalidExpression, match="is not a valid regular expression"):
        check_expression(expression)


def test_regular_expressions_match_whole_names_in_steps() -> None:
    topics = [f"t{number}" for number in range(1000)]
    steps = list(match_topics(["t1", "t.*9", "(?i)T5", "x"], topics))
    assert len(steps) > 4
    found = steps[-1]
    assert found["t1"] == {"t1"}
    assert found["t.*9"] == {each for each in topics if each.endswith("9")}
    assert (found["(?i)T5"], found["x"]) == ({"t5"}, set())


def test_more_regular_expressions_take_more_steps() -> None:
    names = [f"t{number}" for number in range(150)]
    steps = sum(1 for _ in match_topics((f"t{number}.*" for number in range(300)), names))
    assert steps >= 300


class Configs:
    """Kafka's defaults, by the suffix of the config name."""

    def get_int(self, name: str) -> int:
        bounds = {"min.session": 45_000, "max.session": 60_000}
        return next((ms for part, ms in bounds.items() if part in name), 1_000)


def test_group_configs_are_limited_to_broker_bounds() -> None:
    for asked, kept in (("50000", 50_000), ("1", 45_000), ("99000", 60_000)):
        overrides = {"consumer.session.timeout.ms": asked}
        assert ConsumerGroupConfig.of(Configs(), overrides).session_timeout_ms == kept
    assert ConsumerGroupConfig.of(Configs(), {}).session_timeout_ms == 1_000


@pytest.mark.parametrize("version", range(4))
def test_consumer_protocol_encoding_of_subscriptions_and_assignments(version: int) -> None:
    fields = ConsumerProtocolSubscription(
        topics=("t", "u"),
        user_data=b"x",
        owned_partitions=(TopicPartitions(topic="t", partitions=(1, 2)),),
        generation_id=7,
        rack_id="r",
    )
    read = consumer_protocol.read_subscription(consumer_protocol.write(fields, version))
    assert (read.topics, read.user_data) == (fields.topics, fields.user_data)
    assert read.owned_partitions == (fields.owned_partitions if version >= 1 else ())
    assert read.generation_id == (7 if version >= 2 else -1)
    assert read.rack_id == ("r" if version >= 3 else None)
    given = ConsumerProtocolAssignment(assigned_partitions=fields.owned_partitions)
    assert consumer_protocol.read_assignment(consumer_protocol.write(given, version)) == given


def test_subscription_of_later_version_is_decoded() -> None:
    fields = ConsumerProtocolSubscription(topics=("t",))
    newer = b"\x00\x09" + consumer_protocol.write(fields, 3)[2:] + b"more"
    assert consumer_protocol.read_subscription(newer) == fields
    assert consumer_protocol.write(fields, 9)[:2] == b"\x00\x03"
    assert consumer_protocol.read_assignment(b"") == ConsumerProtocolAssignment()
    for broken in (b"", b"\x00", b"\xff\xff", b"\x00\x01\x00\x00"):
        with pytest.raises(InvalidFrame):
            consumer_protocol.read_subscription(broken)


def test_invalid_metadata_of_second_protocol_does_not_prevent_downgrade() -> None:
    stage = ConsumerStage(settings=ConsumerGroupConfig(assignment_interval_ms=0))
    stage.set_topic("t", 2)
    stage.join_new("A")
    stage.consumer("B").metadata = {"mine": b""}
    stage.join("B", version=3, protocols=("range", "mine"))
    stage.join("C", version=3, protocols=("mine",))
    stage.leave_new("A")
    group = stage.shard.groups[GROUP]
    assert isinstance(group, ClassicGroup)
    assert group.protocol == "mine"
    for member in group.members.by_id.values():
        consumer_protocol.read_assignment(member.assignment)


@pytest.mark.parametrize(("epochs", "found"), [(None, {0: 5, 1: 5}), ((3, 4), {0: 3, 1: 4})])
def test_assignment_record_without_epochs_is_decoded(
    epochs: tuple[int, ...] | None, found: dict[int, int]
) -> None:
    topics = (CurrentTopicPartitions(topic_id=T, partitions=(0, 1), assignment_epochs=epochs),)
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=5, previous_member_epoch=4, state=1, assigned_partitions=topics
    )
    read = records.read_current_assignment(value)
    assert read["assigned"] == {T: found}
    assert read["state"] is MemberState.UNREVOKED_PARTITIONS


def group() -> ConsumerGroup:
    """A member in epoch 5 that owns T-0 since epoch 3 and has to revoke T-1, which it owns since 4."""
    made = ConsumerGroup("g", ConsumerGroupEnvironment(GroupConfig(), image()))
    member = ConsumerGroupMember("m", 5, 4, assigned={T: {0: 3}}, revoking={T: {1: 4}})
    for record in (
        records.member_subscription("g", member),
        records.current_assignment("g", member),
    ):
        made.state.replay(record.key, record.value)  # type: ignore[arg-type]
    return made


NONE, STALE = ErrorCode.none, ErrorCode.stale_member_epoch


@pytest.mark.parametrize(
    ("epoch", "partition", "expected"),
    [
        (5, 7, NONE), (6, 0, STALE), (4, 0, NONE), (3, 0, NONE), (2, 0, STALE),
        (4, 1, NONE), (3, 1, STALE), (4, 2, STALE),
    ],
)  # fmt: skip
def test_offset_commit_of_older_member_epoch(
    epoch: int, partition: int, expected: ErrorCode
) -> None:
    assert group().check_commit("m", None, epoch, partitions=[(T, partition)]) is expected


def test_offset_commit_and_fetch_are_checked_against_member() -> None:
    found = group()
    unknown = ErrorCode.unknown_member_id
    assert found.check_commit("x", None, 5) is unknown
    assert found.check_commit("", None, -1) is unknown
    assert found.check_commit("", None, -1, transactional=True) is NONE
    assert found.check_commit("m", None, 5, knows_epochs=False) is ErrorCode.unsupported_version
    assert found.check_fetch(None, -1) is NONE
    assert found.check_fetch("m", 5) is NONE
    assert found.check_fetch("m", 4) is STALE
    assert found.check_fetch("x", 5) is unknown
    empty = ConsumerGroup("g", ConsumerGroupEnvironment(GroupConfig()))
    assert empty.check_commit("", None, -1) is NONE


def test_heartbeat_checks_changed_topics() -> None:
    environment = ConsumerGroupEnvironment(GroupConfig(), MetadataImage(offset=5))
    assert not environment.is_changed(["t"], 5)
    assert environment.is_changed(["t"], 4), "earlier changes are not tracked"
    environment.topics_changed(MetadataImage(offset=7), ["t", "u"], created=True)
    environment.topics_changed(MetadataImage(offset=9), ["u"], created=False)
    assert [environment.is_changed(["t"], version) for version in (5, 6, 7, 8, 9)] == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert environment.is_changed(["t", "u"], 8)
    assert not environment.is_changed(["v"], 5)


def test_changed_topics_over_the_limit_count_as_all_changed() -> None:
    environment = ConsumerGroupEnvironment(GroupConfig(), MetadataImage(offset=0))
    many = [str(each) for each in range(CHANGED_TOPICS_MAX + 1)]
    environment.topics_changed(MetadataImage(offset=1), many, created=True)
    assert not environment.is_changed(["t"], 0)
    environment.topics_changed(MetadataImage(offset=2), ["u"], created=False)
    assert environment.is_changed(["t"], 0)
    assert not environment.is_changed(["t"], 2)


def test_classic_members_alone_get_partitions_of_removed_member() -> None:
    """If a downgrade is not allowed, no heartbeat of the consumer protocol computes a new target."""
    config = GroupConfig(migration_policy=ConsumerGroupMigrationPolicy.UPGRADE)
    stage = ConsumerStage(config, ConsumerGroupConfig(assignment_interval_ms=0))
    stage.set_topic("t", 3)
    stage.join_new("A")
    for name in "BC":
        stage.join(name, version=3)
        stage.sync(name)
    stage.beat("A")
    settle(stage, "BC")
    stage.beat("A")
    settle(stage, "BC")
    assert stage.consumer_group.state_name == "Stable"
    stage.leave_new("A")
    stage.leaves("C")
    assert isinstance(stage.shard.groups[GROUP], ConsumerGroup)
    settle(stage, "B")
    assert stage.consumer("B").owned == {"t": (0, 1, 2)}


def settle(stage: ConsumerStage, members: str) -> None:
    """Let classic members rejoin while Heartbeat returns REBALANCE_IN_PROGRESS."""
    for _ in range(5):
        for name in members:
            if stage.heartbeat(name).response.error is ErrorCode.rebalance_in_progress:
                stage.join(name)
                stage.sync(name)
    assert all(stage.heartbeat(name).response.error is ErrorCode.none for name in members)


def test_wall_clock_set_back_does_not_delay_assignment() -> None:
    """Nor does the clock of a new coordinator that is behind that of the previous one."""
    stage = ConsumerStage(settings=ConsumerGroupConfig(assignment_interval_ms=1000))
    stage.set_topic("t", 2)
    stage.set_topic("u", 2)
    stage.join_new("A", regex="t")
    stage.beat("A")
    stage.advance(11_000)
    stage.wall_ms_more = -3_600_000
    stage.join_new("B", regex="u")
    for _ in range(3):
        stage.advance(1000)
        stage.beat("A")
        stage.beat("B")
    assert stage.consumer("A").owned == {"t": (0, 1)}
    assert stage.consumer("B").owned == {"u": (0, 1)}


def test_upgrade_of_group_with_doubly_assigned_partition_fails() -> None:
    """A client-side assignor may assign a partition twice; in a consumer group it has one owner."""
    stage = ConsumerStage(GroupConfig(initial_rebalance_delay_ms=10))
    stage.set_topic("t", 2)
    for name in "BC":
        stage.join(name, version=3)
    stage.advance(20)
    stage.sync("C")
    b, c = (stage.client(name).member_id for name in "BC")
    stage.sync_with("B", **{b: {"t": (0, 1)}, c: {"t": (1,)}})
    assert stage.join_new("A").response.error is ErrorCode.group_id_not_found
    assert isinstance(stage.shard.groups[GROUP], ClassicGroup)
    assert [stage.heartbeat(name).response.error for name in "BC"] == [ErrorCode.none] * 2
