"""Tests of the checks of OffsetCommit and OffsetFetch against a consumer group."""

from __future__ import annotations

from uuid import UUID

import pytest

from odradek.broker.groups.config import (
    GroupConfig,
)
from odradek.broker.groups.consumer import record_helpers as records
from odradek.broker.groups.consumer.consumer_group import ConsumerGroup
from odradek.broker.groups.consumer.member import ConsumerGroupMember
from odradek.broker.groups.consumer.topic_metadata import (
    ConsumerGroupEnvironment,
)
from odradek.protocol.errors import ErrorCode

T = UUID(int=1)


NONE, STALE = ErrorCode.none, ErrorCode.stale_member_epoch


def group() -> ConsumerGroup:
    """A member in epoch 5 that owns T-0 since epoch 3 and has to revoke T-1, which it owns since 4."""
    made = ConsumerGroup("g", ConsumerGroupEnvironment(GroupConfig()))
    member = ConsumerGroupMember("m", 5, 4, assigned={T: {0: 3}}, revoking={T: {1: 4}})
    for record in (
        records.member_subscription("g", member),
        records.current_assignment("g", member),
    ):
        made.state.replay(record.key, record.value)  # type: ignore[arg-type]
    return made


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
