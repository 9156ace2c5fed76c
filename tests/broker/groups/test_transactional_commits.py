"""Transactional offset commits: verification, pending offsets, and markers."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from odradek.broker.groups.coordinator import GroupCoordinator
from odradek.broker.groups.offset_store import FetchedOffset
from odradek.broker.groups.transactional_commit import TransactionalCommit
from odradek.broker.transactions.markers import TransactionMarker
from odradek.broker.transactions.partition_verification import TransactionSupportedOperation
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.topics import TopicPartition
from odradek.testing.virtual_clock import VirtualClock
from tests.broker.groups.running_coordinator import (
    PendingRequest,
    a_commit,
    a_member,
    fetched,
    running,
)
from tests.support.coordinator_log import MemoryLog
from tests.support.transaction_coordinator import Coordinator

P = 77
PARTITION = TopicPartition("__consumer_offsets", 0)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


def within(
    coordinator: Coordinator,
    support: TransactionSupportedOperation = TransactionSupportedOperation.ADD_PARTITION,
    **fields: Any,
) -> TransactionalCommit:
    values = {"transactional_id": "tx", "producer_id": P, "producer_epoch": 0, **fields}
    return TransactionalCommit(support=support, coordinator=coordinator, **values)


def ending(*, commit: bool = True, epoch: int = 0, **fields: Any) -> TransactionMarker:
    return TransactionMarker(P, epoch, fields.pop("coordinator", 0), commit, (PARTITION,), **fields)


async def commit(
    groups: GroupCoordinator, transaction: TransactionalCommit, offset: int = 9, **fields: Any
) -> ErrorCode:
    response = await groups.commit_transactional_offsets(a_commit(offset, **fields), transaction)
    ((_, _, error),) = response.partitions
    return error


async def refused(
    groups: GroupCoordinator, transaction: TransactionalCommit, **fields: Any
) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        await groups.commit_transactional_offsets(a_commit(**fields), transaction)
    return raised.value.code


async def stable(groups: GroupCoordinator, *, require: bool = True) -> FetchedOffset:
    (topic,) = await groups.fetch("g", [("t", None, [0])], require_stable=require)
    return topic.partitions[0]


@pytest.mark.parametrize(("is_commit", "completion"), [(True, 9), (False, 5)])
async def test_marker_applies_or_discards_pending_offsets(
    clock: VirtualClock, coordinator: Coordinator, is_commit: bool, completion: int
) -> None:
    async with running(clock, MemoryLog()) as groups:
        await groups.commit(a_commit(5))
        assert await commit(groups, within(coordinator), 9) is ErrorCode.none
        assert (await stable(groups)).error is ErrorCode.unstable_offset_commit
        assert (await stable(groups, require=False)).offset.offset == 5
        await groups.complete_transaction(0, ending(commit=is_commit))
        assert await fetched(groups) == completion


@pytest.mark.parametrize("is_commit", [True, False])
async def test_restart_restores_pending_and_committed_offsets(
    clock: VirtualClock, coordinator: Coordinator, is_commit: bool
) -> None:
    log = MemoryLog()
    async with running(clock, log) as groups:
        await commit(groups, within(coordinator), 9)
    async with running(clock, log) as groups:
        await trio.testing.wait_all_tasks_blocked()
        assert (await stable(groups)).error is ErrorCode.unstable_offset_commit
        await groups.complete_transaction(0, ending(commit=is_commit))
    async with running(clock, log) as groups:
        await trio.testing.wait_all_tasks_blocked()
        assert await fetched(groups) == (9 if is_commit else -1)


async def test_only_first_commit_of_transaction_is_verified(
    clock: VirtualClock, coordinator: Coordinator
) -> None:
    async with running(clock, MemoryLog()) as groups:
        for offset in (9, 10):
            await commit(groups, within(coordinator), offset)
        assert coordinator.asked == [("tx", P, 0, [PARTITION], False)]
        await groups.complete_transaction(0, ending(epoch=1, transaction_version=2))
        assert await fetched(groups) == 10
        await commit(
            groups, within(coordinator, TransactionSupportedOperation.OLD, producer_epoch=1), 11
        )
        assert coordinator.asked[1:] == [("tx", P, 1, [PARTITION], True)]


@pytest.mark.parametrize(
    ("support", "fields", "received"),
    [
        (
            TransactionSupportedOperation.OLD,
            ErrorCode.transaction_abortable,
            ErrorCode.invalid_txn_state,
        ),
        (
            TransactionSupportedOperation.GENERIC_ERROR_SUPPORTED,
            ErrorCode.transaction_abortable,
            ErrorCode.transaction_abortable,
        ),
        (
            TransactionSupportedOperation.OLD,
            ErrorCode.producer_fenced,
            ErrorCode.invalid_producer_epoch,
        ),
        (
            TransactionSupportedOperation.ADD_PARTITION,
            ErrorCode.concurrent_transactions,
            ErrorCode.concurrent_transactions,
        ),
        (
            TransactionSupportedOperation.OLD,
            ErrorCode.network_exception,
            ErrorCode.coordinator_load_in_progress,
        ),
        (TransactionSupportedOperation.OLD, ErrorCode.not_coordinator, ErrorCode.not_coordinator),
        (
            TransactionSupportedOperation.OLD,
            ErrorCode.invalid_producer_id_mapping,
            ErrorCode.invalid_producer_id_mapping,
        ),
    ],
)
async def test_verification_error_is_mapped(
    clock: VirtualClock,
    coordinator: Coordinator,
    support: TransactionSupportedOperation,
    fields: ErrorCode,
    received: ErrorCode,
) -> None:
    coordinator.responses = [fields]
    async with running(clock, MemoryLog()) as groups:
        assert await refused(groups, within(coordinator, support)) is received
        assert (await stable(groups)).error is ErrorCode.none


async def test_disabled_verification_still_adds_partitions(
    clock: VirtualClock, coordinator: Coordinator
) -> None:
    async with running(clock, MemoryLog()) as groups:
        off = within(coordinator, TransactionSupportedOperation.OLD, is_verified=False)
        assert await commit(groups, off) is ErrorCode.none
        assert coordinator.asked == []
        await groups.complete_transaction(0, ending())
        adding = within(coordinator, is_verified=False, producer_epoch=1)
        assert await commit(groups, adding) is ErrorCode.none
        assert len(coordinator.asked) == 1


async def test_marker_during_verification_invalidates_it(
    clock: VirtualClock,
) -> None:
    class Slow(Coordinator):
        async def add_partitions(self, *rest: Any, **more: Any) -> Any:
            await groups.complete_transaction(0, ending())
            return await super().add_partitions(*rest, **more)

    async with running(clock, MemoryLog()) as groups:
        late = within(Slow(), TransactionSupportedOperation.GENERIC_ERROR_SUPPORTED)
        assert await commit(groups, late) is ErrorCode.invalid_txn_state
        assert (await stable(groups)).error is ErrorCode.none


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"generation": 1}, ErrorCode.none),
        # Requests up to v2 have no generation
        ({"generation": -1, "member_id": ""}, ErrorCode.none),
        ({"generation": 2}, ErrorCode.illegal_generation),
        ({"generation": 1, "member_id": "who"}, ErrorCode.unknown_member_id),
        ({"generation": 1, "instance_id": "who"}, ErrorCode.unknown_member_id),
    ],
)
async def test_transactional_commit_requires_current_generation(
    clock: VirtualClock, coordinator: Coordinator, fields: dict[str, Any], error: ErrorCode
) -> None:
    async with running(clock, MemoryLog()) as groups:
        member = await a_member(groups)
        values = {"member_id": member.member_id, **fields}
        assert await commit(groups, within(coordinator), **values) is error


async def test_transactional_commit_of_unknown_group_with_generation_fails(
    clock: VirtualClock, coordinator: Coordinator
) -> None:
    async with running(clock, MemoryLog()) as groups:
        transaction = within(coordinator)
        assert await commit(groups, transaction, generation=1) is ErrorCode.illegal_generation
        assert await refused(groups, transaction, group="") is ErrorCode.invalid_group_id


async def test_offset_fetch_waits_until_marker_is_committed(
    clock: VirtualClock, coordinator: Coordinator
) -> None:
    log = MemoryLog()
    async with running(clock, log) as groups, trio.open_nursery() as nursery:
        await commit(groups, within(coordinator), 9)
        log.hold()
        marking = PendingRequest(nursery, lambda: groups.complete_transaction(0, ending()))
        await trio.testing.wait_all_tasks_blocked()
        fetching = PendingRequest(nursery, lambda: fetched(groups))
        await trio.testing.wait_all_tasks_blocked()
        assert not marking.is_responded.is_set()
        assert not fetching.is_responded.is_set()
        log.move_on()
        await marking.is_responded.wait()
        await fetching.is_responded.wait()
        assert fetching.response == 9


@pytest.mark.parametrize(
    ("marker", "error"),
    [
        (ending(epoch=4, coordinator=2), ErrorCode.transaction_coordinator_fenced),
        (ending(epoch=3, coordinator=3), ErrorCode.invalid_producer_epoch),
        (ending(epoch=4, coordinator=3), None),
        (ending(epoch=4, coordinator=3, transaction_version=2), ErrorCode.invalid_producer_epoch),
        (ending(epoch=5, coordinator=3, transaction_version=2), None),
    ],
)
async def test_marker_of_other_producer_changes_nothing(
    clock: VirtualClock,
    coordinator: Coordinator,
    marker: TransactionMarker,
    error: ErrorCode | None,
) -> None:
    async with running(clock, MemoryLog()) as groups:
        await commit(groups, within(coordinator, producer_epoch=4), 1)
        await groups.complete_transaction(0, ending(epoch=4, coordinator=3))
        await commit(groups, within(coordinator, producer_epoch=4), 9)
        if error is None:
            await groups.complete_transaction(0, marker)
            assert await fetched(groups) == 9
        else:
            with pytest.raises(KafkaError) as raised:
                await groups.complete_transaction(0, marker)
            assert raised.value.code is error
            assert (await stable(groups)).error is ErrorCode.unstable_offset_commit


async def test_marker_without_coordinator_fails(clock: VirtualClock) -> None:
    async with running(clock, MemoryLog()) as groups:
        with pytest.raises(KafkaError) as raised:
            await groups.complete_transaction(5, ending())
        assert raised.value.code is ErrorCode.not_coordinator


async def test_group_with_pending_offsets_does_not_expire_but_can_be_deleted(
    clock: VirtualClock, coordinator: Coordinator
) -> None:
    hour_ms = 3_600_000
    log = MemoryLog()
    async with running(
        clock, log, offsets_retention_ms=hour_ms, offsets_retention_check_interval_ms=hour_ms // 2
    ) as groups:
        await commit(groups, within(coordinator), 9)
        await groups.commit(a_commit(group="h"))
        await clock.run_for(5 * hour_ms / 1000)
        assert "h" not in [each.group_id for each in groups.list_groups((), ())]
        assert groups.describe("g") is not None
        assert await groups.delete_groups(["g"]) == [("g", ErrorCode.none)]
        await groups.complete_transaction(0, ending())
        assert await fetched(groups) == -1
        assert groups.list_groups((), ()) == []


@pytest.mark.parametrize(
    "fields", [{"producer_id": -1}, {"producer_epoch": -1}], ids=["id", "epoch"]
)
async def test_transactional_commit_without_producer_id_fails(
    clock: VirtualClock, coordinator: Coordinator, fields: dict[str, int]
) -> None:
    """Also without verification: such offsets would never be committed or aborted."""
    async with running(clock, MemoryLog()) as groups:
        transaction = within(
            coordinator, TransactionSupportedOperation.OLD, is_verified=False, **fields
        )
        assert await refused(groups, transaction) is ErrorCode.unknown_server_error
        assert (await stable(groups)).offset.offset == -1
