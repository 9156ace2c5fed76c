"""Tests of the encoding of subscriptions, assignments and assignment records."""

from __future__ import annotations

from uuid import UUID

import pytest

from odradek.broker.groups.consumer import record_helpers as records
from odradek.broker.groups.consumer.member import MemberState
from odradek.protocol.errors import InvalidFrame
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

T = UUID(int=1)


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
