"""Tests of incremental fetch sessions (KIP-227)."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from odradek.broker.fetch.session_cache import (
    CachedPartition,
    FetchContext,
    FetchSessionCache,
    InvalidSessionEpoch,
    SessionNotFound,
    SessionTopicIds,
)
from odradek.protocol.fetch_response_writer import FetchedPartition
from odradek.seams.entropy import SeededEntropy

TOPIC = UUID(int=7)


def wanted(index: int, offset: int = 0) -> CachedPartition:
    return CachedPartition(None, TOPIC, index, offset, 1024)


def respond(
    index: int, high_watermark: int = 0, *, records: bytes = b"", error: int = 0
) -> FetchedPartition:
    return FetchedPartition(
        index=index,
        error_code=error,
        high_watermark=high_watermark,
        last_stable_offset=high_watermark,
        log_start_offset=0,
        records=(records,) if records else (),
    )


class Client:
    """Client that sends fetch requests and checks the responses."""

    def __init__(self, slots: int = 2) -> None:
        self.sessions = FetchSessionCache(slots, SeededEntropy(random.Random(1)))
        self.now = 0.0

    def fetch(
        self, session_id: int, epoch: int, *parts: CachedPartition, forget: tuple[int, ...] = ()
    ) -> FetchContext:
        return self.sessions.new_context(
            session_id,
            epoch,
            parts,
            [(TOPIC, index) for index in forget],
            uses_topic_ids=True,
            now=self.now,
        )


def indexes(plan: FetchContext) -> list[int]:
    return [each.index for each in plan.wanted]


def test_sessionless_request_creates_no_session() -> None:
    client = Client()
    plan = client.fetch(0, -1, wanted(0))
    assert (plan.session_id, len(client.sessions)) == (0, 0)


def test_session_keeps_partitions_and_applies_changes() -> None:
    client = Client()
    begun = client.fetch(0, 0, wanted(0), wanted(1))
    carried = client.fetch(begun.session_id, 1, wanted(1, offset=5), wanted(2), forget=(0,))
    assert indexes(carried) == [1, 2]
    assert carried.wanted[0].offset == 5


@pytest.mark.parametrize("epoch", [0, -1])
def test_duplicate_partition_uses_the_last_entry(epoch: int) -> None:
    client = Client()
    begun = client.fetch(0, epoch, wanted(0, offset=5), wanted(1), wanted(0, offset=7))
    assert [(each.index, each.offset) for each in begun.wanted] == [(0, 7), (1, 0)]
    begun.select([(each, respond(each.index, 9, records=b"x")) for each in begun.wanted])
    if epoch == 0:
        carried = client.fetch(begun.session_id, 1)
        assert [(each.index, each.offset) for each in carried.wanted] == [(0, 7), (1, 0)]


def test_first_response_is_full_and_later_ones_incremental() -> None:
    client = Client()
    begun = client.fetch(0, 0, wanted(0), wanted(1))
    first = begun.select([(each, respond(each.index, 3)) for each in begun.wanted])
    assert len(first) == 2
    carried = client.fetch(begun.session_id, 1)
    later = carried.select([(each, respond(each.index, 3 + each.index)) for each in carried.wanted])
    assert [each.index for _, each in later] == [1]


def test_success_after_error_is_sent() -> None:
    client = Client()
    begun = client.fetch(0, 0, wanted(0))
    begun.select([(begun.wanted[0], respond(0, 3))])
    broken = client.fetch(begun.session_id, 1)
    assert broken.select([(broken.wanted[0], respond(0, -1, error=3))])
    recovered = client.fetch(begun.session_id, 2)
    assert recovered.select([(recovered.wanted[0], respond(0, 3))])


def test_partition_with_records_moves_to_the_end() -> None:
    client = Client()
    begun = client.fetch(0, 0, wanted(0), wanted(1))
    begun.select([(begun.wanted[0], respond(0, 9, records=b"x")), (begun.wanted[1], respond(1))])
    assert indexes(client.fetch(begun.session_id, 1)) == [1, 0]


def test_invalid_session_fields_are_rejected() -> None:
    client = Client()
    begun = client.fetch(0, 0, wanted(0))
    with pytest.raises(SessionNotFound):
        client.fetch(begun.session_id + 1, 1)
    with pytest.raises(InvalidSessionEpoch):
        client.fetch(begun.session_id, 2)
    with pytest.raises(SessionTopicIds):
        client.sessions.new_context(begun.session_id, 1, (), (), uses_topic_ids=False, now=0.0)


def test_full_cache_evicts_only_after_two_idle_minutes() -> None:
    client = Client(slots=1)
    first = client.fetch(0, 0, wanted(0))
    assert client.fetch(0, 0, wanted(1)).session_id == 0
    client.now = 121.0
    second = client.fetch(0, 0, wanted(1))
    assert second.session_id != 0
    with pytest.raises(SessionNotFound):
        client.fetch(first.session_id, 1)


def test_session_without_partitions_is_removed() -> None:
    client = Client()
    begun = client.fetch(0, 0, wanted(0))
    assert client.fetch(begun.session_id, 1, forget=(0,)).session_id == 0
    assert len(client.sessions) == 0
