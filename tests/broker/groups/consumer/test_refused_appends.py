"""What can't be written has not happened to a consumer group, and nobody waits for it for ever."""

from __future__ import annotations

import pytest

from odradek.broker.groups.config import GroupConfig
from odradek.broker.groups.consumer.group import ConsumerGroup
from odradek.broker.groups.consumer.settings import ConsumerSettings
from odradek.protocol.errors import ErrorCode
from tests.broker.groups.consumer.stage import ConsumerStage
from tests.broker.groups.stage import GROUP

NOW = ConsumerSettings(assignment_interval_ms=0)


@pytest.mark.parametrize("said", [{"version": 3}, {"instance_id": "i"}], ids=["old", "static"])
def test_who_joins_an_empty_consumer_group_by_the_classic_protocol_is_told(
    said: dict[str, object],
) -> None:
    stage = ConsumerStage(GroupConfig(initial_rebalance_delay_ms=3000), NOW)
    stage.join_new("A")
    stage.leave_new("A")
    stage.fail_with = ErrorCode.coordinator_not_available
    stage.consumer("B")
    joined = stage.join("B", **said)
    assert [each.error for each in joined.answers] == [ErrorCode.coordinator_not_available]
    assert isinstance(stage.shard.groups[GROUP], ConsumerGroup)
    stage.advance(3000)
