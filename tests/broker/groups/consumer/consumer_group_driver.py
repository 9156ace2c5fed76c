"""A shard with consumer groups, and simulated clients of the consumer protocol that reconcile.

Extends `tests.broker.groups.group_shard_driver.Stage` with topics that are created, grow and are deleted, clients
with an epoch and owned partitions, and regular expressions that the test resolves. After every step
it checks that no partition has two owners, in the group and among the clients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from odradek.broker.groups.config import ConsumerGroupConfig, GroupConfig
from odradek.broker.groups.consumer.consumer_group import ConsumerGroup
from odradek.broker.groups.consumer.member import MemberState
from odradek.broker.groups.consumer.record_helpers import ResolvedRegularExpression
from odradek.broker.groups.consumer.topic_metadata import ConsumerGroupEnvironment
from odradek.broker.groups.consumer.topic_regex_resolver import match_topics
from odradek.broker.groups.coordinator_shard import (
    GroupCoordinatorShard,
    OffsetCommit,
    OffsetToCommit,
)
from odradek.broker.groups.messages import (
    NO_MEMBER_ID,
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatResponse,
    CoordinatorResult,
    GroupKey,
    JoinGroup,
    OffsetKey,
    Record,
    ResolveRegularExpressions,
    SyncGroupResponse,
)
from odradek.broker.groups.record_serde import encode
from odradek.protocol.errors import ErrorCode
from odradek.protocol.schemas import consumer_protocol
from odradek.protocol.schemas.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
)
from odradek.replication.controller.image import MetadataImage, PartitionImage, TopicImage
from tests.broker.groups.group_shard_driver import GROUP, Client, Request, Stage
from tests.broker.groups.group_shard_driver import describe as describe_classic_response
from tests.broker.groups.group_shard_driver import describe_record as describe_classic_record

PARTITION = PartitionImage((1,), (UUID(int=1),), (1,), 1, 0, 0)
Owned = dict[str, tuple[int, ...]]


@dataclass
class Consumer(Client):
    """A client of the consumer protocol. `owned` are its partitions, `reported` those of its last heartbeat."""

    epoch: int = 0
    owned: Owned = field(default_factory=dict)
    reported: Owned | None = None
    to_reconcile: Owned | None = None
    """Assigned partitions that the client has not applied yet."""
    regex: str | None = None
    assignor: str | None = None
    rack: str | None = None
    metadata: dict[str, bytes] = field(default_factory=dict)
    """Metadata of protocols for which it differs from the client's subscription."""


class ConsumerStage(Stage):
    """A shard, its topics, and clients of both protocols."""

    def __init__(
        self, config: GroupConfig | None = None, settings: ConsumerGroupConfig | None = None
    ) -> None:
        super().__init__(config)
        self.settings = settings or ConsumerGroupConfig()
        self.image = MetadataImage(offset=0)
        self.environment = ConsumerGroupEnvironment(
            self.config, self.image, lambda group_id: self.settings
        )
        self.shard = GroupCoordinatorShard(self.config, self.environment)
        self.topics: dict[str, int] = {}
        self.topic_ids: dict[str, UUID] = {}
        self.names: dict[UUID, str] = {}
        """Names of all topics, including deleted ones that members may still own."""
        self.resolves: list[ResolveRegularExpressions] = []
        self.resolving = True
        """Whether regular expressions are resolved at once."""

    @property
    def consumer_group(self) -> ConsumerGroup:
        group = self.shard.groups[GROUP]
        assert isinstance(group, ConsumerGroup)
        return group

    def consumer(self, name: str) -> Consumer:
        client = self.clients.setdefault(name, Consumer(name))
        assert isinstance(client, Consumer)
        return client

    # Topics

    def set_topic(self, name: str, partitions: int) -> None:
        """Create a topic, add partitions, or delete it (0 partitions)."""
        created = partitions > 0 and name not in self.topics
        if partitions:
            self.topics[name] = partitions
            if created:
                self.topic_ids[name] = UUID(int=self.image.offset + 100)
                self.names[self.topic_ids[name]] = name
        else:
            del self.topics[name]
        images = [
            TopicImage(each, self.topic_ids[each], dict.fromkeys(range(count), PARTITION))
            for each, count in self.topics.items()
        ]
        self.image = MetadataImage(
            offset=self.image.offset + 1,
            topics_by_name={each.name: each for each in images},
            topics_by_id={each.id: each for each in images},
        )
        self.environment.topics_changed(self.image, [name], created=created)

    # Requests of clients

    def join_new(self, name: str, **fields: Any) -> Request:
        """Join or rejoin without partitions with ConsumerGroupHeartbeat."""
        client = self.consumer(name)
        for attribute, value in fields.items():
            assert hasattr(client, attribute), attribute
            setattr(client, attribute, value)
        self.fresh_ids += 1
        if client.member_id == NO_MEMBER_ID:
            client.member_id = f"{name}{self.fresh_ids}"
        client.epoch, client.owned, client.reported, client.to_reconcile = 0, {}, {}, None
        return self._send(
            client,
            rebalance_timeout_ms=client.rebalance_timeout_ms,
            topics=None if client.regex is not None else client.topics,
            regex=client.regex,
            assignor=client.assignor,
            rack_id=client.rack,
            owned={},
        )

    def beat(self, name: str, *, reconciles: bool = True, **fields: Any) -> Request:
        """Send a heartbeat. A client that reconciles applies its assignment and reports it."""
        client = self.consumer(name)
        if reconciles:
            self.finish(client)
        owned = None
        if client.owned != client.reported:
            client.reported = dict(client.owned)
            owned = {
                self.topic_ids[topic]: frozenset(partitions)
                for topic, partitions in client.owned.items()
            }
        return self._send(client, owned=owned, **fields)

    def finish(self, client: Consumer) -> None:
        if client.to_reconcile is not None:
            client.owned, client.to_reconcile = client.to_reconcile, None

    def subscribe(self, name: str, *topics: str, regex: str | None = None) -> Request:
        client = self.consumer(name)
        client.topics, client.regex = topics, regex
        return self.beat(name, topics=topics, regex=regex if regex is not None else "")

    def leave_new(self, name: str, epoch: int = -1) -> Request:
        client = self.consumer(name)
        client.epoch = epoch
        return self._send(client)

    def _send(self, client: Consumer, **fields: Any) -> Request:
        future = self._ask(client.name, "heartbeat")
        request = ConsumerGroupHeartbeat(
            GROUP,
            client.member_id,
            client.epoch,
            client.name,
            "/127.0.0.1",
            instance_id=client.instance_id,
            **fields,
        )
        self.do(self.shard.consumer_heartbeat(request, future, self.now))
        self.check()
        return future

    def join(self, name: str, **fields: Any) -> Request:
        """Send JoinGroup with the owned partitions in the subscription."""
        client = self.consumer(name)
        for attribute, value in fields.items():
            setattr(client, attribute, value)
        self.fresh_ids += 1
        subscription = ConsumerProtocolSubscription(
            topics=client.topics,
            owned_partitions=named(client.owned),
            generation_id=client.generation,
        )
        metadata = consumer_protocol.write(subscription, 3)
        request = JoinGroup(
            GROUP,
            client.member_id,
            client.instance_id,
            client.name,
            "/127.0.0.1",
            client.session_timeout_ms,
            client.rebalance_timeout_ms,
            "consumer",
            tuple((each, client.metadata.get(each, metadata)) for each in client.protocols),
            str(UUID(int=self.fresh_ids)),
            id_required=client.version >= 4,
            can_skip_assignment=client.version >= 9,
        )
        future = self._ask(name, "join")
        self.do(self.shard.join(request, future, self.now))
        self.advance(0)  # an initial rebalance without a delay completes first
        self.check()
        return future

    def sync_with(self, name: str, **assignments: Owned) -> Request:
        """Send SyncGroup; the leader sends the assignments."""
        return self.sync(
            name,
            **{
                who: consumer_protocol.write(
                    ConsumerProtocolAssignment(assigned_partitions=named(owned)), 3
                )
                for who, owned in assignments.items()
            },
        )

    def commit_new(self, name: str, offsets: dict[tuple[str, int], int], epoch: int) -> Request:
        client = self.consumer(name)
        commits = tuple(
            OffsetToCommit(topic, self.topic_ids.get(topic), partition, offset, -1, "")
            for (topic, partition), offset in offsets.items()
        )
        future = self._ask(name, "commit")
        request = OffsetCommit(GROUP, client.member_id, client.instance_id, epoch, commits)
        self.do(self.shard.commit(request, future, self.now))
        return future

    # What the coordinator does

    def do(self, result: CoordinatorResult) -> None:
        super().do(result)
        self.resolves += result.resolves
        if self.resolving:
            self.resolve()

    def resolve(self) -> None:
        """Resolve the pending regular expressions."""
        while self.resolves:
            asked = self.resolves.pop(0)
            found: dict[str, set[str]] = {}
            for found in match_topics(asked.expressions, self.topics):  # noqa: B007
                pass
            resolved = {
                expression: ResolvedRegularExpression(
                    frozenset(topics), self.image.offset, self.now.wall_ms
                )
                for expression, topics in found.items()
            }
            self.do(self.shard.on_regular_expressions_resolved(asked.group_id, resolved, self.now))

    def replayed(self) -> GroupCoordinatorShard:
        shard = GroupCoordinatorShard(self.config, self.environment)
        for offset, record in enumerate(self.log):
            shard.replay(record, offset)
        return shard

    def compacted(self, *, tombstones: bool) -> GroupCoordinatorShard:
        """Load the compacted log: only the last record of each key."""
        last = {encode(record)[0]: offset for offset, record in enumerate(self.log)}
        shard = GroupCoordinatorShard(self.config, self.environment)
        for offset in sorted(last.values()):
            if tombstones or self.log[offset].value is not None:
                shard.replay(self.log[offset], offset)
        return shard

    def _respond(self, future: Request, response: Any) -> None:
        future.responses.append(response)
        client = self.clients.get(future.who)
        if isinstance(client, Consumer):
            self._learn(client, future.what, response)
        self.story.append(f"{future.who} <- {self.describe(future.what, response)}")

    def _learn(self, client: Consumer, what: str, response: Any) -> None:
        client.learn(response)
        if isinstance(response, ConsumerGroupHeartbeatResponse):
            if response.error is ErrorCode.none:
                client.epoch = response.epoch
                if response.assigned is not None:
                    client.to_reconcile = self.by_name(response.assigned)
            elif response.error in (ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id):
                client.owned, client.to_reconcile = {}, None
        elif isinstance(response, SyncGroupResponse) and response.error is ErrorCode.none:
            read = consumer_protocol.read_assignment(response.assignment)
            client.owned = {each.topic: each.partitions for each in read.assigned_partitions}

    def by_name(self, assigned: Any) -> Owned:
        return {
            self.names[topic]: tuple(sorted(partitions)) for topic, partitions in assigned.items()
        }

    # Invariants

    def check(self) -> None:
        """Check that no partition has two owners."""
        group = self.shard.groups.get(GROUP)
        if not isinstance(group, ConsumerGroup):
            return
        held = [each for member in group.state.members.values() for each in member.holdings()]
        assert len(held) == len(set(held)), "a partition has two owners"
        replayed = self.replayed().groups.get(GROUP)
        if not self.log_is_behind and isinstance(replayed, ConsumerGroup):
            assert replayed.state.members == group.state.members
            assert replayed.state.targets == group.state.targets
            assert replayed.state.epoch == group.state.epoch

    # Text for transcripts

    def describe(self, what: str, response: Any) -> str:
        if isinstance(response, SyncGroupResponse) and response.error is ErrorCode.none:
            read = consumer_protocol.read_assignment(response.assignment)
            return f"{what}: assigned {words({e.topic: e.partitions for e in read.assigned_partitions})}"
        if not isinstance(response, ConsumerGroupHeartbeatResponse):
            return describe_classic_response(what, response)
        if response.error is not ErrorCode.none:
            return f"{what}: {response.error.name.upper()}"
        received = f"{what}: epoch {response.epoch}"
        if response.assigned is not None:
            received += f", is to have {words(self.by_name(response.assigned))}"
        return received

    def describe_record(self, record: Record) -> str:
        key, value = record
        if isinstance(key, OffsetKey):
            return describe_classic_record(record)
        if isinstance(key, GroupKey):
            if value is None:
                return "classic group: gone"
            return f"classic group: generation {value.generation}"  # type: ignore[union-attr]
        kind = type(key).__name__.removeprefix("ConsumerGroup").removesuffix("Key")
        received = KINDS[kind]
        who = getattr(key, "member_id", None) or getattr(key, "regular_expression", None)
        if who:
            received += f" of {who}"
        return f"{received}: " + ("gone" if value is None else self._describe_value(kind, value))

    def _describe_value(self, kind: str, value: Any) -> str:
        match kind:
            case "Metadata":
                return f"epoch {value.epoch}"
            case "MemberMetadata":
                fields = " ".join(value.subscribed_topic_names) or value.subscribed_topic_regex
                static = f", instance {value.instance_id}" if value.instance_id else ""
                classic = ", classic" if value.classic_member_metadata is not None else ""
                return (fields or "nothing") + static + classic
            case "TargetAssignmentMetadata":
                return f"epoch {value.assignment_epoch}"
            case "TargetAssignmentMember":
                found = {each.topic_id: each.partitions for each in value.topic_partitions}
                return words(self.by_name(found))
            case "CurrentMemberAssignment":
                return self._describe_current_assignment(value)
            case "RegularExpression":
                return " ".join(value.topics) or "no topic"
        raise AssertionError(kind)

    def _describe_current_assignment(self, value: Any) -> str:
        has = {each.topic_id: each.partitions for each in value.assigned_partitions}
        gives = {each.topic_id: each.partitions for each in value.partitions_pending_revocation}
        received = f"epoch {value.member_epoch}, {MemberState.from_number(value.state).name}"
        received += f", has {words(self.by_name(has))}"
        return received + (f", gives up {words(self.by_name(gives))}" if gives else "")

    def where_it_stands(self) -> str:
        group = self.shard.groups.get(GROUP)
        if group is None:
            return "[no group]"
        if not isinstance(group, ConsumerGroup):
            parts = [f"classic, {group.state_name}, generation {group.generation}"]
            return f"[{', '.join([*parts, *group.members.by_id])}]"
        state = group.state
        parts = [f"{group.state_name}, epoch {state.epoch}, target {state.target_epoch}"]
        for member in state.members.values():
            received = (
                f"{member.member_id}@{member.epoch} has {words(self.by_name(member.assigned))}"
            )
            if member.revoking:
                received += f" gives up {words(self.by_name(member.revoking))}"
            if member.state is MemberState.UNRELEASED_PARTITIONS:
                received += " waits for more"
            parts.append(received)
        return f"[{'; '.join(parts)}]"


KINDS = {
    "Metadata": "group",
    "PartitionMetadata": "partition metadata",
    "MemberMetadata": "subscription",
    "TargetAssignmentMetadata": "target",
    "TargetAssignmentMember": "target",
    "CurrentMemberAssignment": "current assignment",
    "RegularExpression": "topics",
}


def words(owned: Owned) -> str:
    return (
        " ".join(
            f"{topic}:{','.join(map(str, partitions))}"
            for topic, partitions in sorted(owned.items())
        )
        or "nothing"
    )


def named(owned: Owned) -> tuple[TopicPartitions, ...]:
    return tuple(TopicPartitions(topic=topic, partitions=each) for topic, each in owned.items())
