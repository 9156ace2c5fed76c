"""TxnOffsetCommit at every version, with the broker's own transaction coordinator."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.testing import Broker
from tests.support.raw_requests import ask

NONE = ErrorCode.none
OLD = 4
"""Last version whose clients send AddOffsetsToTxn."""
_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(configs={"offsets.topic.num.partitions": "1"}) as running:
        running.create_topic("t", partitions=2)
        for key_type in (0, 1):
            values = {"key": "x", "key_type": key_type}
            asked(running, apis.FIND_COORDINATOR, 3, **values)
        yield running


@pytest.fixture
def name() -> str:
    return f"n-{next(_numbers)}"


def asked(broker: Broker, api: apis.Api, version: int, **values: Any) -> Any:
    """Retry until no partition is loading and no transaction is completing; returns the response."""
    while True:
        response = ask(broker, api, version, values)
        if not any(
            word in repr(response)
            for word in (
                "concurrent_transactions",
                "in_progress",
                "not_available",
                "not_coordinator",
            )
        ):
            return response
        trio.run(trio.sleep, 0.01)


def begun(broker: Broker, name: str) -> dict[str, Any]:
    response = asked(
        broker, apis.INIT_PRODUCER_ID, 3, transactional_id=name, transaction_timeout=60_000
    )
    assert response.error_code is NONE
    return {"producer_id": response.producer_id, "producer_epoch": response.producer_epoch}


def commit(broker: Broker, version: int, name: str, producer: dict[str, Any], **fields: Any) -> Any:
    """Error codes of partition 1, and of an unknown one."""
    partition = {"committed_offset": 42, "committed_leader_epoch": 3, "committed_metadata": "m"}
    values = {
        "transactional_id": name,
        "group_id": name,
        "member_id": "",
        "generation_id": -1,
        "group_instance_id": None,
        **producer,
        "topics": [
            {"name": "t", "partitions": [{"partition_index": n, **partition} for n in (1, 7)]},
            {"name": "none", "partitions": [{"partition_index": 0, **partition}]},
        ],
        **fields,
    }
    response = asked(broker, apis.TXN_OFFSET_COMMIT, version, **values)
    there, not_there = response.topics
    unknown = ErrorCode.unknown_topic_or_partition
    assert [each.error_code for each in not_there.partitions] == [unknown]
    first, second = there.partitions
    assert second.error_code is unknown
    return first.error_code


def fetched(broker: Broker, name: str) -> tuple[ErrorCode, int, str]:
    response = asked(
        broker,
        apis.OFFSET_FETCH,
        7,
        group_id=name,
        topics=[{"name": "t", "partition_indexes": [1]}],
        require_stable=True,
    )
    ((found,),) = [each.partitions for each in response.topics]
    return found.error_code, found.committed_offset, found.metadata


def end(broker: Broker, name: str, producer: dict[str, Any], *, commit: bool) -> None:
    values = {"transactional_id": name, "committed": commit, **producer}
    assert asked(broker, apis.END_TXN, 3, **values).error_code is NONE


@pytest.mark.parametrize("version", apis.TXN_OFFSET_COMMIT.versions)
@pytest.mark.parametrize("is_committed", [True, False])
def test_offsets_are_committed_when_transaction_ends(
    broker: Broker, name: str, version: int, is_committed: bool
) -> None:
    producer = begun(broker, name)
    if version <= OLD:
        values = {"transactional_id": name, "group_id": name, **producer}
        assert asked(broker, apis.ADD_OFFSETS_TO_TXN, 3, **values).error_code is NONE
    assert commit(broker, version, name, producer) is NONE
    assert fetched(broker, name)[0] is ErrorCode.unstable_offset_commit
    end(broker, name, producer, commit=is_committed)
    while (found := fetched(broker, name))[0] is ErrorCode.unstable_offset_commit:
        trio.run(trio.sleep, 0.01)
    assert found == ((NONE, 42, "m") if is_committed else (NONE, -1, ""))


@pytest.mark.parametrize(
    ("version", "error"),
    [
        (0, ErrorCode.invalid_txn_state),
        (3, ErrorCode.invalid_txn_state),
        (4, ErrorCode.transaction_abortable),
        (5, NONE),
    ],
)
def test_group_that_was_not_added_fails_commit(
    broker: Broker, name: str, version: int, error: ErrorCode
) -> None:
    assert commit(broker, version, name, begun(broker, name)) is error


def test_commit_of_other_producer_fails(broker: Broker, name: str) -> None:
    producer = begun(broker, name)
    begun(broker, name)
    fenced, no_producer = ErrorCode.invalid_producer_epoch, ErrorCode.invalid_producer_id_mapping
    assert commit(broker, 5, name, producer) is fenced
    assert commit(broker, 5, name, {**producer, "producer_id": 999_999}) is no_producer
    assert fetched(broker, name) == (NONE, -1, "")


def test_commit_of_unknown_generation_fails(broker: Broker, name: str) -> None:
    producer = begun(broker, name)
    found = commit(broker, 5, name, producer, generation_id=3, member_id="m")
    assert found is ErrorCode.illegal_generation


def test_commit_with_empty_group_id_fails(broker: Broker, name: str) -> None:
    assert commit(broker, 5, name, begun(broker, name), group_id="") is ErrorCode.invalid_group_id
