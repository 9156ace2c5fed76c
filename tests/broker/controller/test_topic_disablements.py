"""Tests of the active controller's requests to disable tiered storage of a topic (KIP-950)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import pytest
import trio
import trio.testing

from odradek.broker.controller.topic_disablements import (
    PAUSE_SECONDS_MAX,
    BrokerDisablement,
    TopicDisablements,
)
from odradek.client.errors import Unreachable
from odradek.protocol.apis import Api
from odradek.protocol.errors import ErrorCode
from odradek.protocol.schemas.private_apis import DisableRemoteTopicResponse
from odradek.replication.controller.image import DisablePolicy, MetadataImage, TieredState
from odradek.replication.controller.topic_tiering import NEVER_DISABLED, disable, tiering_record
from odradek.replication.controller.topics import NewTopic
from tests.support.cluster_images import cluster, committed, create


class Metadata:
    """Metadata manager of the active controller without a log."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.is_active = True
        self._callbacks: list[Callable[[bool], None]] = []

    def subscribe(self, listener: Callable[[Any], None]) -> None:
        pass

    def on_active(self, callback: Callable[[bool], None]) -> None:
        self._callbacks.append(callback)

    def become_active(self, is_active: bool) -> None:
        self.is_active = is_active
        for callback in self._callbacks:
            callback(is_active)

    async def perform(self, operation: Callable[[MetadataImage], Any]) -> Any:
        plan = operation(self.image)
        self.image = committed(self.image, plan.records)
        return plan.result


class Brokers:
    """Brokers that respond what `reasons` has for them: None is an end without an error."""

    def __init__(self, reasons: dict[int, str | Exception | None]) -> None:
        self.reasons = reasons
        self.ended: set[int] = set()
        """Brokers that have ended their copies and may have more to do."""
        self.copying: dict[int, list[int]] = {}
        """For each broker the copying brokers in the last request to it."""

    async def request(
        self, broker_id: int, api: Api, values: Mapping[str, Any], *, timeout_s: float
    ) -> DisableRemoteTopicResponse:
        reason = self.reasons[broker_id]
        assert values["tiered_epoch"] == 1
        self.copying[broker_id] = list(values["copying_brokers"])
        if isinstance(reason, Exception):
            raise reason
        code = ErrorCode.none if reason is None else ErrorCode.request_timed_out
        return DisableRemoteTopicResponse(
            error_code=code, error_message=reason, has_ended_copies=broker_id in self.ended
        )


def disabling_topic() -> tuple[Metadata, UUID]:
    image, _ = create(cluster(3), NewTopic("t", 1, 3))
    (topic_id,) = image.topics_by_id
    disabling = disable("t", NEVER_DISABLED, DisablePolicy.DELETE)
    return Metadata(committed(image, [tiering_record(topic_id, disabling)])), topic_id


async def test_missing_brokers_are_reported_with_their_last_reason(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    metadata, topic_id = disabling_topic()
    brokers = Brokers({1: None, 2: "partition t-0: 5 remote segments", 3: Unreachable("refused")})
    disablements = TopicDisablements(metadata, brokers)  # type: ignore[arg-type]

    def is_missing(broker_id: int, reason: str | None = None) -> BrokerDisablement:
        return BrokerDisablement(broker_id, False, reason)

    assert disablements.brokers(topic_id) == [is_missing(1), is_missing(2), is_missing(3)]
    assert disablements.missing_brokers == 3
    async with trio.open_nursery() as nursery:
        nursery.start_soon(disablements.run)
        await trio.sleep(1)
        assert disablements.brokers(topic_id) == [
            BrokerDisablement(1, True, None),
            is_missing(2, "partition t-0: 5 remote segments"),
            is_missing(3, "refused"),
        ]
        assert disablements.missing_brokers == 2
        assert not caplog.records
        await trio.sleep(70)
        text = "Broker 3 has not disabled tiered storage of topic t yet: refused"
        assert caplog.text.count(text) == 1
        metadata.is_active = False
        assert disablements.missing_brokers == 0
        metadata.is_active = True
        brokers.reasons = dict.fromkeys(brokers.reasons)
        await trio.sleep(20)
        assert metadata.image.tiering[topic_id].state is TieredState.DISABLED
        assert (disablements.brokers(topic_id), disablements.missing_brokers) == ([], 0)
        nursery.cancel_scope.cancel()


async def test_brokers_know_at_once_which_brokers_have_ended_their_copies(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """X-05: a leader waits for the copies of all others, which may wait for those of this leader."""
    metadata, topic_id = disabling_topic()
    brokers = Brokers({1: "1 remote segment", 2: "1 remote segment", 3: Unreachable("refused")})
    disablements = TopicDisablements(metadata, brokers)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(disablements.run)
        await trio.sleep(60)
        assert brokers.copying == {1: [1, 2, 3], 2: [1, 2, 3], 3: [1, 2, 3]}
        brokers.ended = {1, 2}
        await trio.sleep(PAUSE_SECONDS_MAX)
        await trio.sleep(0.1)
        assert brokers.copying == {1: [3], 2: [3], 3: [3]}
        brokers.reasons[3] = None
        while not disablements.brokers(topic_id)[2].is_done:
            await trio.sleep(0.01)
        await trio.sleep(0.1)
        assert (brokers.copying[1], brokers.copying[2]) == ([], [])
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("steps", range(5))
async def test_controller_that_is_soon_active_again_completes_the_disablement(
    autojump_clock: trio.testing.MockClock, steps: int
) -> None:
    """X-09: the task of the previous term may not have ended yet."""
    metadata, topic_id = disabling_topic()
    brokers = Brokers({1: None, 2: "not yet", 3: None})
    disablements = TopicDisablements(metadata, brokers)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(disablements.run)
        await trio.sleep(1)
        metadata.become_active(False)
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        metadata.become_active(True)
        brokers.reasons[2] = None
        await trio.sleep(20)
        assert metadata.image.tiering[topic_id].state is TieredState.DISABLED
        nursery.cancel_scope.cancel()
