"""Transaction requests over a socket, at every version of Kafka 4.3."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from odradek.broker.coordination.coordinator_log import partition_for
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.testing import Broker
from tests.support.raw_requests import ask

NONE = ErrorCode.none
Producer = tuple[int, int]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(topics={"t": 2, "u": 1}) as running:
        for key in ("a", "b"):
            find_coordinator(running, key)
        yield running


@pytest.fixture
def name(broker: Broker) -> str:
    fresh = f"id-{next(_numbers)}"
    find_coordinator(broker, fresh)
    return fresh


def find_coordinator(broker: Broker, key: str) -> None:
    values = {"key_type": 1, "coordinator_keys": [key]}
    (found,) = ask(broker, apis.FIND_COORDINATOR, 6, values).coordinators
    assert found.error_code is NONE


def begin(
    broker: Broker,
    name: str | None,
    version: int = 5,
    *,
    timeout_ms: int = 60_000,
    expected: Producer = (-1, -1),
) -> Any:
    return ask(
        broker,
        apis.INIT_PRODUCER_ID,
        version,
        {
            "transactional_id": name,
            "transaction_timeout": timeout_ms,
            "producer_id": expected[0],
            "producer_epoch": expected[1],
        },
    )


def begun(broker: Broker, name: str) -> Producer:
    while (response := begin(broker, name)).error_code is ErrorCode.concurrent_transactions:
        pass
    assert response.error_code is NONE
    return response.producer_id, response.producer_epoch


def add(
    broker: Broker,
    name: str,
    producer: Producer,
    *wanted: tuple[str, int],
    version: int = 5,
    verify_only: bool = False,
) -> dict[tuple[str, int], ErrorCode]:
    topics = [{"name": topic, "partitions": [index]} for topic, index in wanted]
    if version < 4:
        values = {
            "v3_and_below_transactional_id": name,
            "v3_and_below_producer_id": producer[0],
            "v3_and_below_producer_epoch": producer[1],
            "v3_and_below_topics": topics,
        }
        response = ask(broker, apis.ADD_PARTITIONS_TO_TXN, version, values)
        results = response.results_by_topic_v3_and_below
    else:
        transaction = {
            "transactional_id": name,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "verify_only": verify_only,
            "topics": topics,
        }
        response = ask(broker, apis.ADD_PARTITIONS_TO_TXN, version, {"transactions": [transaction]})
        assert response.error_code is NONE
        ((results, fields),) = [
            (each.topic_results, each.transactional_id) for each in response.results_by_transaction
        ]
        assert fields == name
    return {
        (topic.name, each.partition_index): each.partition_error_code
        for topic in results
        for each in topic.results_by_partition
    }


def end(
    broker: Broker, name: str, producer: Producer, version: int = 5, *, commits: bool = True
) -> Any:
    values = {
        "transactional_id": name,
        "producer_id": producer[0],
        "producer_epoch": producer[1],
        "committed": commits,
    }
    while True:
        response = ask(broker, apis.END_TXN, version, values)
        if response.error_code is not ErrorCode.concurrent_transactions:
            return response


def describe(broker: Broker, *names: str) -> list[Any]:
    response = ask(broker, apis.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": names})
    return list(response.transaction_states)


@pytest.mark.parametrize("version", apis.INIT_PRODUCER_ID.versions)
def test_init_producer_id(broker: Broker, name: str, version: int) -> None:
    first = begin(broker, name, version)
    assert (first.error_code, first.producer_epoch) == (NONE, 0)
    again = begin(broker, name, version)
    assert (again.producer_id, again.producer_epoch) == (first.producer_id, 1)
    for bad in (0, 900_001):
        response = begin(broker, name, version, timeout_ms=bad)
        assert response.error_code is ErrorCode.invalid_transaction_timeout
    assert begin(broker, "", version).error_code is ErrorCode.invalid_request
    if version >= 3:
        stale = begin(broker, name, version, expected=(first.producer_id, 0))
        fenced = ErrorCode.producer_fenced if version >= 4 else ErrorCode.invalid_producer_epoch
        assert (stale.error_code, stale.producer_id, stale.producer_epoch) == (fenced, -1, -1)
        mine = begin(broker, name, version, expected=(first.producer_id, 1))
        assert (mine.error_code, mine.producer_epoch) == (NONE, 2)
        half = begin(broker, name, version, expected=(first.producer_id, -1))
        assert half.error_code is ErrorCode.invalid_request
    assert begin(broker, None, version).producer_epoch == 0


@pytest.mark.parametrize("version", apis.ADD_PARTITIONS_TO_TXN.versions)
def test_add_partitions_to_txn(broker: Broker, name: str, version: int) -> None:
    producer = begun(broker, name)
    assert add(broker, name, producer, ("t", 0), ("u", 0), version=version) == {
        ("t", 0): NONE,
        ("u", 0): NONE,
    }
    (known,) = describe(broker, name)
    assert known.transaction_state == "Ongoing"
    assert {each.topic: list(each.partitions) for each in known.topics} == {"t": [0], "u": [0]}
    assert add(broker, name, producer, ("t", 1), ("gone", 0), ("t", 7), version=version) == {
        ("t", 1): ErrorCode.operation_not_attempted,
        ("gone", 0): ErrorCode.unknown_topic_or_partition,
        ("t", 7): ErrorCode.unknown_topic_or_partition,
    }
    fenced = ErrorCode.producer_fenced if version >= 2 else ErrorCode.invalid_producer_epoch
    stale = (producer[0], producer[1] + 5)
    assert add(broker, name, stale, ("t", 0), version=version) == {("t", 0): fenced}
    unknown = ErrorCode.invalid_producer_id_mapping
    assert add(broker, name, (7777777, 0), ("t", 0), version=version) == {("t", 0): unknown}
    assert add(broker, "", producer, ("t", 0), version=version) == {
        ("t", 0): ErrorCode.invalid_request
    }


@pytest.mark.parametrize("version", [4, 5])
def test_verify_only_does_not_add_partitions(broker: Broker, name: str, version: int) -> None:
    producer = begun(broker, name)
    add(broker, name, producer, ("t", 0))
    wanted = (("t", 0), ("t", 1))
    assert add(broker, name, producer, *wanted, version=version, verify_only=True) == {
        ("t", 0): NONE,
        ("t", 1): ErrorCode.transaction_abortable,
    }
    (known,) = describe(broker, name)
    assert [list(each.partitions) for each in known.topics] == [[0]]


@pytest.mark.parametrize("version", [0, 3])
def test_clients_can_not_add_internal_topics(broker: Broker, name: str, version: int) -> None:
    producer = begun(broker, name)
    internal = ("__transaction_state", 0)
    refused = {internal: ErrorCode.topic_authorization_failed}
    assert add(broker, name, producer, internal, version=version) == refused


def test_add_offsets_fails_while_topic_can_not_be_created() -> None:
    """With too few brokers for its replicas the topic can't be created, which clients retry."""
    with Broker(configs={"offsets.topic.replication.factor": "3"}) as lacking:
        find_coordinator(lacking, "id")
        producer_id, epoch = begun(lacking, "id")
        values = {
            "transactional_id": "id",
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "group_id": "g",
        }
        response = ask(lacking, apis.ADD_OFFSETS_TO_TXN, 3, values)
    assert response.error_code is ErrorCode.coordinator_not_available


@pytest.mark.parametrize("version", apis.ADD_OFFSETS_TO_TXN.versions)
def test_add_offsets_to_txn(broker: Broker, name: str, version: int) -> None:
    producer_id, epoch = begun(broker, name)
    values = {
        "transactional_id": name,
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "group_id": "g",
    }
    assert ask(broker, apis.ADD_OFFSETS_TO_TXN, version, values).error_code is NONE
    (known,) = describe(broker, name)
    ((topic, indexes),) = [(each.topic, list(each.partitions)) for each in known.topics]
    assert (topic, indexes) == ("__consumer_offsets", [partition_for("g", 50)])
    stale = ask(broker, apis.ADD_OFFSETS_TO_TXN, version, {**values, "producer_epoch": epoch + 5})
    fenced = ErrorCode.producer_fenced if version >= 2 else ErrorCode.invalid_producer_epoch
    assert stale.error_code is fenced


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("version", apis.END_TXN.versions)
def test_end_txn(broker: Broker, name: str, version: int, commits: bool) -> None:
    producer = producer_id, epoch = begun(broker, name)
    add(broker, name, producer, ("t", 0), version=5 if version >= 5 else 3)
    ended = end(broker, name, producer, version, commits=commits)
    assert ended.error_code is NONE
    if version >= 5:
        assert (ended.producer_id, ended.producer_epoch) == (producer_id, epoch + 1)
    again = end(broker, name, producer, version, commits=commits)
    assert again.error_code is NONE
    other = end(broker, name, producer, version, commits=not commits)
    assert other.error_code is ErrorCode.invalid_txn_state
    (known,) = describe(broker, name)
    assert known.transaction_state == ("CompleteCommit" if commits else "CompleteAbort")
    assert known.topics == ()
    fenced = ErrorCode.producer_fenced if version >= 2 else ErrorCode.invalid_producer_epoch
    assert end(broker, name, (producer_id, epoch + 9), version).error_code is fenced
    unknown = end(broker, name, (7777777, 0), version)
    assert unknown.error_code is ErrorCode.invalid_producer_id_mapping


def test_describe_transactions(broker: Broker, name: str) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    producer = begun(broker, name)
    (idle,) = describe(broker, name)
    assert (idle.error_code, idle.transaction_state) == (NONE, "Empty")
    assert idle.transaction_timeout == timedelta(seconds=60)
    add(broker, name, producer, ("t", 1), ("t", 0))
    ongoing, missing, empty = describe(broker, name, "nobody", "")
    assert (ongoing.producer_id, ongoing.producer_epoch) == producer
    assert before < ongoing.transaction_start_time < before + timedelta(seconds=30)
    assert [list(each.partitions) for each in ongoing.topics] == [[1, 0]]
    find_coordinator(broker, "nobody")
    (missing,) = describe(broker, "nobody")
    assert missing.error_code is ErrorCode.transactional_id_not_found
    assert empty.error_code is ErrorCode.invalid_request


def listed(broker: Broker, version: int, **filters: Any) -> tuple[Any, dict[str, str]]:
    values = {"state_filters": [], "producer_id_filters": [], **filters}
    response = ask(broker, apis.LIST_TRANSACTIONS, version, values)
    found = {each.transactional_id: each.transaction_state for each in response.transaction_states}
    return response, found


@pytest.mark.parametrize("version", apis.LIST_TRANSACTIONS.versions)
def test_list_transactions(broker: Broker, name: str, version: int) -> None:
    producer = begun(broker, name)
    assert listed(broker, version)[1][name] == "Empty"
    add(broker, name, producer, ("t", 0))
    _, ongoing = listed(broker, version, state_filters=["Ongoing"])
    assert ongoing[name] == "Ongoing"
    assert set(ongoing.values()) == {"Ongoing"}
    response, nothing = listed(broker, version, state_filters=["Sleepy", "Dead"])
    assert (response.error_code, response.unknown_state_filters, nothing) == (NONE, ("Sleepy",), {})
    _, mine = listed(broker, version, producer_id_filters=[producer[0]])
    assert mine == {name: "Ongoing"}
    if version >= 1:
        _, old = listed(broker, version, duration_filter=600_000, state_filters=["Ongoing"])
        assert old == {}
    if version >= 2:
        _, alike = listed(broker, version, transactional_id_pattern=f"{name[:-1]}.*")
        assert name in alike
        assert listed(broker, version, transactional_id_pattern=name[1:])[1] == {}
        for unknown_to_re2 in ("(", "(?=x)", r"(a)\1"):
            broken, _ = listed(broker, version, transactional_id_pattern=unknown_to_re2)
            assert broken.error_code is ErrorCode.invalid_regular_expression


def test_expensive_pattern_does_not_block_broker(broker: Broker) -> None:
    """Backtracking would try more than 10**12 ways to match this pattern; RE2 does not backtrack."""
    name = "a" * 64
    find_coordinator(broker, name)
    begun(broker, name)
    assert listed(broker, 2, transactional_id_pattern="(a|aa)+b")[1] == {}
    assert name in listed(broker, 2, transactional_id_pattern="(a|aa)+")[1]


def test_transactions_are_listed_without_re2(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    find_coordinator(broker, "without-re2")
    begun(broker, "without-re2")
    assert "without-re2" in listed(broker, 2)[1]
    refused, _ = listed(broker, 2, transactional_id_pattern="only-without-re2-x.*")
    assert refused.error_code is ErrorCode.invalid_regular_expression


def test_reset_removes_transactions() -> None:
    with Broker(topics={"t": 1}) as broker:
        find_coordinator(broker, "a")
        producer = begun(broker, "a")
        add(broker, "a", producer, ("t", 0))
        broker.reset()
        assert listed(broker, 2)[1] == {}
        assert begun(broker, "a")[1] == 0


def test_transactions_survive_restart(tmp_path: Any) -> None:
    with Broker(topics={"t": 1}, data=tmp_path) as broker:
        find_coordinator(broker, "a")
        producer = begun(broker, "a")
        add(broker, "a", producer, ("t", 0))
    with Broker(data=tmp_path) as broker:
        find_coordinator(broker, "a")
        while (response := describe(broker, "a")[0]).error_code is not NONE:
            assert response.error_code is ErrorCode.coordinator_load_in_progress
        assert response.transaction_state == "Ongoing"
        assert end(broker, "a", producer).error_code is NONE
