"""Controller mutation quotas (KIP-599)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from odradek.broker.quotas.client_quotas import ClientQuotas, TokenBucket
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.errors import RequestTimedOut

DONE, REFUSED = ErrorCode.none, ErrorCode.throttling_quota_exceeded
RATE = 2.0
BURST_SECONDS = 5.0


@pytest.fixture
def quota(broker: Any) -> ClientQuotas:
    """Quota with a burst of 10 partitions and a rate of 2 per second."""
    made = ClientQuotas(samples=11, window_ms=1000, burst_seconds=BURST_SECONDS)
    made.update({(("user", "ANONYMOUS"),): {"controller_mutation_rate": RATE}})
    broker.client_quotas = made
    return made


def throttle_time(response: Any, items: Sequence[Any]) -> tuple[list[ErrorCode], float]:
    return [each.error_code for each in items], response.throttle_time.total_seconds()


async def create(client: Any, version: int, **partitions: int) -> tuple[list[ErrorCode], float]:
    wanted = [
        {
            "name": name,
            "num_partitions": count,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        for name, count in partitions.items()
    ]
    response = await client.ask(
        apis.CREATE_TOPICS, version, topics=wanted, timeout=30_000, validate_only=False
    )
    return throttle_time(response, response.topics)


async def test_strict_mutation_quota_rejects_without_tokens(
    client: Any, broker: Any, quota: ClientQuotas
) -> None:
    """A request of any size is executed if there are tokens left, as in Kafka's token bucket."""
    assert await create(client, 7, a=4, b=12, c=1) == ([DONE, DONE, REFUSED], 3.0)
    assert set(broker.metadata.image.topics_by_name) == {"a", "b"}
    broker.seams.clock.advance(2.0)
    assert await create(client, 7, c=1) == ([REFUSED], 1.0)
    broker.seams.clock.advance(1.5)
    assert await create(client, 7, c=1) == ([DONE], 0.0)


async def test_invalid_topics_take_no_tokens(client: Any, quota: ClientQuotas) -> None:
    errors, seconds = await create(client, 7, a=10, **{"no/name": 50})
    assert (errors, seconds) == ([DONE, ErrorCode.invalid_topic_exception], 0.0)


async def test_older_versions_are_executed_and_throttled(client: Any, quota: ClientQuotas) -> None:
    assert await create(client, 5, a=12, b=4) == ([DONE, DONE], 3.0)
    assert await create(client, 5, c=1) == ([DONE], 3.5)


async def test_auto_created_topics_count_strictly(
    client: Any, broker: Any, quota: ClientQuotas
) -> None:
    async def ask(name: str) -> ErrorCode:
        wanted = [{"topic_id": None, "name": name}]
        response = await client.ask(apis.METADATA, 12, topics=wanted)
        (topic,) = response.topics
        error: ErrorCode = topic.error_code
        return error

    assert await create(client, 7, a=10) == ([DONE], 0.0)

    def exists(name: str) -> bool:
        return name in broker.metadata.image.topics_by_name

    await ask("b")
    assert exists("b")
    await ask("c")
    assert not exists("c")
    broker.seams.clock.advance(0.5)
    await ask("c")
    assert exists("c")


async def test_internal_topics_take_no_tokens(
    client: Any, broker: Any, quota: ClientQuotas
) -> None:
    """All clients need them."""
    assert await create(client, 7, a=16) == ([DONE], 0.0)
    assert await create(client, 7, __consumer_offsets=50) == ([DONE], 0.0)
    assert await create(client, 7, b=1) == ([REFUSED], 3.0)


async def test_partitions_and_deletions_count_too(
    client: Any, broker: Any, quota: ClientQuotas
) -> None:
    assert await create(client, 7, a=4, b=4, c=1) == ([DONE] * 3, 0.0)
    more = [{"name": "a", "count": 10, "assignments": None}]
    more += [{"name": "b", "count": 5, "assignments": None}]
    response = await client.ask(
        apis.CREATE_PARTITIONS, 3, topics=more, timeout=30_000, validate_only=False
    )
    assert throttle_time(response, response.results) == ([DONE, REFUSED], 2.5)
    broker.seams.clock.advance(2.5)
    by_name = [{"name": name, "topic_id": None} for name in "abc"]
    response = await client.ask(apis.DELETE_TOPICS, 6, topics=by_name, timeout=30_000)
    assert throttle_time(response, response.responses) == ([DONE, REFUSED, REFUSED], 5.0)
    assert set(broker.metadata.image.topics_by_name) == {"b", "c"}


def commits_late(broker: Any, seconds: float, error: KafkaError | None = None) -> None:
    decide = broker.metadata.decide

    async def perform(operation: Any) -> Any:
        result = decide(operation)
        broker.seams.clock.advance(seconds)
        if error is not None:
            raise error
        return result

    broker.metadata.perform = perform


@pytest.mark.parametrize(
    ("version", "errors", "waits"), [(7, [DONE, REFUSED], 3.0), (5, [DONE, DONE], 3.5)]
)
async def test_commit_time_is_subtracted_from_throttle_time(
    client: Any,
    broker: Any,
    quota: ClientQuotas,
    version: int,
    errors: list[ErrorCode],
    waits: float,
) -> None:
    commits_late(broker, 1.0)
    assert await create(client, version, a=16, b=1) == (errors, waits - 1.0)
    commits_late(broker, 60.0)
    assert (await create(client, version, c=1, d=40, e=1))[1] == 0.0


async def test_failed_request_may_be_throttled(
    client: Any, broker: Any, quota: ClientQuotas
) -> None:
    commits_late(broker, 0.0, RequestTimedOut())
    assert await create(client, 5, a=16) == ([ErrorCode.request_timed_out], 3.0)


async def test_clients_without_mutation_quota_are_not_limited(client: Any, broker: Any) -> None:
    broker.client_quotas = ClientQuotas(samples=11, window_ms=1000)
    broker.client_quotas.update({(("user", "bob"),): {"controller_mutation_rate": 0.01}})
    assert await create(client, 7, a=100, b=1) == ([DONE, DONE], 0.0)


def test_token_bucket_is_limited_to_its_burst() -> None:
    bucket = TokenBucket(1000, 20.0)
    bucket.take(30, 2.0, 20.0, 1000)
    assert bucket.missing_ms(2.0, 20.0, 1000) == 5000
    assert bucket.missing_ms(2.0, 20.0, 5900) == 100
    assert bucket.missing_ms(2.0, 20.0, 60_000) == 0
    assert bucket.tokens == 20
