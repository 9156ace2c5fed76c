"""AddPartitionsToTxn requests to the local coordinator and to those of other brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from odradek.broker.coordination.coordinator_log import partition_for
from odradek.broker.coordination.internal_topics import TRANSACTIONS_TOPIC
from odradek.broker.transactions.add_partitions_manager import AddPartitionsToTxnManager
from odradek.protocol.apis import ADD_PARTITIONS_TO_TXN
from odradek.protocol.errors import ErrorCode
from odradek.protocol.topics import TopicPartition
from tests.broker.transactions.remote_coordinator import NONE, Coordinator
from tests.support.broker_connections import ConnectedBroker, a_broker, a_topic, asking
from tests.support.scripted_broker import HANG_UP, ScriptedBroker, scripted_broker

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
PARTITIONS = 3
LEADERS = {0: 1, 1: 2, 2: -1}
Errors = Mapping[TopicPartition, ErrorCode]


def an_id_of(partition: int, number: int = 0) -> str:
    """A transactional id that belongs to this partition of `__transaction_state`."""
    ids = (f"id-{count}" for count in range(10_000))
    return [each for each in ids if partition_for(each, PARTITIONS) == partition][number]


MINE, OTHERS, NOBODYS = an_id_of(0), an_id_of(1), an_id_of(2)


class Local:
    def __init__(self) -> None:
        self.asked: list[str] = []

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        verify_only: bool,
    ) -> Errors:
        self.asked.append(transactional_id)
        return dict.fromkeys(partitions, ErrorCode.producer_fenced)


class Stage:
    def __init__(self, world: ConnectedBroker, broker: ScriptedBroker, script: Coordinator) -> None:
        self.world, self.broker, self.script = world, broker, script
        self.local = Local()
        self.coordinators = AddPartitionsToTxnManager(
            lambda: world.image,
            1,
            lambda: self.local,
            world.peers.request,
            world.nursery,
            timeout_s=5,
        )

    async def ask(
        self, transactional_id: str, *partitions: TopicPartition, verify_only: bool = False
    ) -> Errors:
        return await self.coordinators.add_partitions(
            transactional_id, 7, 1, partitions or (T0,), verify_only=verify_only
        )


@asynccontextmanager
async def stage(**broker: Any) -> AsyncIterator[Stage]:
    script = Coordinator()
    async with scripted_broker(script, **broker) as other, asking() as world:
        world.knows(a_broker(1, other.address), a_broker(2, other.address))
        world.has(a_topic(TRANSACTIONS_TOPIC, LEADERS))
        yield Stage(world, other, script)


async def test_local_coordinator_is_called_directly() -> None:
    async with stage() as it:
        assert await it.ask(MINE) == {T0: ErrorCode.producer_fenced}
        assert it.local.asked == [MINE]
        assert it.broker.connections == 0


async def test_remote_coordinator_gets_request() -> None:
    async with stage() as it:
        it.script.codes[1] = ErrorCode.transaction_abortable
        assert await it.ask(OTHERS, T0, T1, verify_only=True) == {
            T0: NONE,
            T1: ErrorCode.transaction_abortable,
        }
        assert it.local.asked == []
        (asked,) = it.broker.requests_of(ADD_PARTITIONS_TO_TXN)
        (sent,) = asked.body.transactions
        assert asked.version == 5
        assert (sent.transactional_id, sent.producer_id, sent.producer_epoch) == (OTHERS, 7, 1)
        assert sent.verify_only is True
        assert [(each.name, list(each.partitions)) for each in sent.topics] == [("t", [0, 1])]


async def test_unavailable_coordinator_returns_error() -> None:
    async with stage() as it:
        assert await it.ask(NOBODYS) == {T0: ErrorCode.coordinator_not_available}
        it.world.knows(a_broker(2, it.broker.address, fenced=True))
        assert await it.ask(OTHERS) == {T0: ErrorCode.coordinator_not_available}
        it.world.has()
        assert await it.ask(MINE) == {T0: ErrorCode.coordinator_not_available}


async def test_closed_connection_returns_network_exception() -> None:
    async with stage() as it:
        it.script.instead = HANG_UP
        assert await it.ask(OTHERS, T0, T1) == dict.fromkeys((T0, T1), ErrorCode.network_exception)


@pytest.mark.parametrize(
    ("code", "received"),
    [
        (ErrorCode.cluster_authorization_failed, ErrorCode.invalid_txn_state),
        (ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_load_in_progress),
    ],
)
async def test_error_of_whole_request_applies_to_all_partitions(
    code: ErrorCode, received: ErrorCode
) -> None:
    async with stage() as it:
        it.script.error = code
        assert await it.ask(OTHERS) == {T0: received}


async def test_broker_without_verification_returns_no_errors() -> None:
    async with stage(versions={ADD_PARTITIONS_TO_TXN: (0, 3)}) as it:
        assert await it.ask(OTHERS, verify_only=True) == {T0: NONE}
        assert it.broker.requests_of(ADD_PARTITIONS_TO_TXN) == []


async def test_partition_missing_in_response_is_unknown_server_error() -> None:
    async with stage() as it:
        it.script.instead = {"error_code": NONE, "results_by_transaction": []}
        assert await it.ask(OTHERS) == {T0: ErrorCode.unknown_server_error}


async def test_transactions_are_batched_but_not_twice_the_same() -> None:
    async with stage() as it:
        async with trio.open_nursery() as nursery:
            for number in (0, 1, 2, 3, 1):
                nursery.start_soon(it.ask, an_id_of(1, number))
        sent = [
            sorted(each.transactional_id for each in request.body.transactions)
            for request in it.broker.requests_of(ADD_PARTITIONS_TO_TXN)
        ]
        assert sum(map(len, sent)) == 5
        assert 2 <= len(sent) <= 3
        assert all(len(set(each)) == len(each) for each in sent)
