"""The group coordinator in virtual time: requests, timers, commits, loads and leader changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from uuid import UUID

import pytest
import trio

from odradek.broker.config.server_config import ServerConfig
from odradek.broker.coordination.coordinator_runtime import LoadInProgress, NotCoordinator
from odradek.broker.groups import record_serde as records
from odradek.broker.groups.classic_group import ClassicGroupNotFound
from odradek.broker.groups.config import GroupConfig
from odradek.broker.groups.consumer.consumer_group import DescribedConsumerGroup
from odradek.broker.groups.coordinator import GroupCoordinator
from odradek.broker.groups.coordinator_shard import (
    GroupCoordinatorShard,
    OffsetCommit,
    OffsetToCommit,
)
from odradek.broker.groups.messages import (
    ClassicGroupMetadata,
    ClassicMemberMetadata,
    CommittedOffset,
    ConsumerGroupHeartbeat,
    CoordinatorResult,
    EventTime,
    GroupKey,
    Heartbeat,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroup,
    LeavingMember,
    OffsetKey,
    Record,
    SyncGroup,
    SyncGroupResponse,
)
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records import records as log_records
from odradek.testing.virtual_clock import VirtualClock
from tests.broker.groups.running_coordinator import (
    TOPIC_ID,
    PendingRequest,
    a_commit,
    a_join,
    a_member,
    a_sync,
    fetched,
    running,
)
from tests.support.coordinator_log import MemoryLog, NotLeader


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


Build = Callable[..., GroupCoordinator]


def offset_count(groups: GroupCoordinator) -> int:
    """Number of committed offsets of all groups."""
    return sum(context.shard.offsets.count for context in groups.runtime)


def a_heartbeat(joined: JoinGroupResponse) -> Heartbeat:
    return Heartbeat("g", joined.member_id, None, joined.generation)


async def test_first_member_gets_assignment(clock: VirtualClock) -> None:
    """Without an initial rebalance delay no time passes."""
    async with running(clock, MemoryLog()) as groups:
        joined = await groups.join(a_join())
        assert joined.error is ErrorCode.none
        synced = await groups.sync(a_sync(joined))
        assert synced == SyncGroupResponse(ErrorCode.none, "consumer", "range", b"mine")
        assert clock.monotonic() == 0
        assert groups.statistics.completed_rebalances == 1
        assert groups.count_by_state() == {("classic", "Stable"): 1}


async def test_members_that_start_together_are_in_first_generation(clock: VirtualClock) -> None:
    """The second member extends the initial rebalance."""
    delay_ms = 5
    async with (
        running(clock, MemoryLog(), initial_rebalance_delay_ms=delay_ms) as groups,
        trio.open_nursery() as nursery,
    ):
        one = PendingRequest(nursery, lambda: groups.join(a_join(member_uuid="1")))
        await clock.run_for((delay_ms - 1) / 1000)
        two = PendingRequest(nursery, lambda: groups.join(a_join(member_uuid="2")))
        await clock.run_for(delay_ms / 1000)
        assert not one.is_responded.is_set()
        await clock.run_for(0.002)
        assert [getattr(each.response, "generation", None) for each in (one, two)] == [1, 1]


async def test_members_that_start_50_ms_apart_are_in_second_generation(
    clock: VirtualClock,
) -> None:
    """With group.initial.rebalance.delay.ms=0 the first member gets its assignment at once, and
    REBALANCE_IN_PROGRESS for the heartbeat that it sends next."""
    configs = ServerConfig.from_properties({"group.initial.rebalance.delay.ms": "0"})
    fields = GroupConfig.from_configs(configs)
    async with (
        running(
            clock,
            MemoryLog(),
            initial_rebalance_delay_ms=fields.initial_rebalance_delay_ms,
            delayed_heartbeat_ms=fields.delayed_heartbeat_ms,
        ) as groups,
        trio.open_nursery() as nursery,
    ):
        joined = await groups.join(a_join(member_uuid="1"))
        assert (await groups.sync(a_sync(joined))).assignment == b"mine"
        assert clock.monotonic() == 0
        beat = PendingRequest(nursery, lambda: groups.heartbeat(a_heartbeat(joined)))
        await clock.run_for(0.050)
        assert not beat.is_responded.is_set()
        two = PendingRequest(nursery, lambda: groups.join(a_join(member_uuid="2")))
        await clock.run_for(0.001)
        assert beat.response == HeartbeatResponse(ErrorCode.rebalance_in_progress)
        one = await groups.join(a_join(member_id=joined.member_id))
        await two.is_responded.wait()
        assert [getattr(each, "generation", None) for each in (one, two.response)] == [2, 2]
        assert len(one.members) == 2


async def test_delayed_heartbeat_of_single_member_completes(clock: VirtualClock) -> None:
    async with (
        running(clock, MemoryLog(), delayed_heartbeat_ms=100) as groups,
        trio.open_nursery() as nursery,
    ):
        joined = await groups.join(a_join(member_uuid="1"))
        await groups.sync(a_sync(joined))
        beat = PendingRequest(nursery, lambda: groups.heartbeat(a_heartbeat(joined)))
        await clock.run_for(0.099)
        assert not beat.is_responded.is_set()
        await clock.run_for(0.002)
        assert beat.response == HeartbeatResponse(ErrorCode.none)
        assert await groups.heartbeat(a_heartbeat(joined)) == HeartbeatResponse(ErrorCode.none)


async def test_initial_rebalance_delay_waits_for_members(clock: VirtualClock) -> None:
    async with (
        running(clock, MemoryLog(), initial_rebalance_delay_ms=3000) as groups,
        trio.open_nursery() as nursery,
    ):
        one = PendingRequest(nursery, lambda: groups.join(a_join(member_uuid="1")))
        two = PendingRequest(nursery, lambda: groups.join(a_join(member_uuid="2")))
        await clock.run_for(2.999)
        assert not one.is_responded.is_set()
        await clock.run_for(3.002)
        assert {getattr(each.response, "member_id", None) for each in (one, two)} == {"c-1", "c-2"}


async def test_sessions_expire_on_time(clock: VirtualClock) -> None:
    async with running(clock, MemoryLog()) as groups:
        joined = await a_member(groups)
        beat = Heartbeat("g", joined.member_id, None, joined.generation)
        for _ in range(5):
            await clock.run_for(9)
            assert (await groups.heartbeat(beat)).error is ErrorCode.none
        await clock.run_for(9.999)
        assert groups.count_by_state() == {("classic", "Stable"): 1}
        await clock.run_for(0.001)
        assert groups.count_by_state() == {("classic", "Empty"): 1}
        assert (await groups.heartbeat(beat)).error is ErrorCode.unknown_member_id


async def test_group_can_be_deleted_after_last_session_expires(clock: VirtualClock) -> None:
    """The result does not depend on the timers' task: no other task runs in between."""
    async with running(clock, MemoryLog()) as groups:
        await a_member(groups)
        clock.advance(9.999)
        assert await groups.delete_groups(["g"]) == [("g", ErrorCode.non_empty_group)]
        clock.advance(0.001)
        assert await groups.delete_groups(["g"]) == [("g", ErrorCode.none)]


async def test_deadlines_of_many_groups_are_independent(clock: VirtualClock) -> None:
    async with running(clock, MemoryLog(8)) as groups:
        for index in range(40):
            group = f"g{index}"
            joined = await groups.join(a_join(group=group, session_timeout_ms=6000 + 100 * index))
            await groups.sync(a_sync(joined, group))
        await clock.run_for(6.0 + 1.95)
        assert groups.count_by_state() == {("classic", "Empty"): 20, ("classic", "Stable"): 20}


@pytest.mark.parametrize("session_timeout_ms", [5999, 1_800_001])
async def test_session_timeout_out_of_bounds_is_rejected(
    clock: VirtualClock, session_timeout_ms: int
) -> None:
    async with running(clock, MemoryLog()) as groups:
        response = await groups.join(a_join(session_timeout_ms=session_timeout_ms))
        assert response.error is ErrorCode.invalid_session_timeout


async def test_empty_group_id_is_valid_only_for_offsets(clock: VirtualClock) -> None:
    invalid = ErrorCode.invalid_group_id
    async with running(clock, MemoryLog()) as groups:
        assert (await groups.join(a_join(group=""))).error is invalid
        assert (await groups.sync(SyncGroup("", "m", None, 1, None, None, {}))).error is invalid
        assert (await groups.heartbeat(Heartbeat("", "m", None, 1))).error is invalid
        assert (await groups.leave(LeaveGroup("", (LeavingMember("m"),)))).error is invalid
        assert (await groups.delete_offsets("", [("t", 0)])).error is invalid
        assert (await groups.commit(a_commit(group=""))).error is ErrorCode.none
        assert await fetched(groups, "") == 5


async def test_offset_commit_completes_when_committed(clock: VirtualClock) -> None:
    log = MemoryLog()
    async with running(clock, log) as groups, trio.open_nursery() as nursery:
        await groups.commit(a_commit(1))
        log.hold()
        commit = PendingRequest(nursery, lambda: groups.commit(a_commit(2)))
        await clock.settle()
        fetch = PendingRequest(nursery, lambda: fetched(groups))
        await clock.settle()
        assert not commit.is_responded.is_set()
        assert not fetch.is_responded.is_set(), "an uncommitted state was returned"
        log.move_on()
        await clock.settle()
        assert getattr(commit.response, "error", None) is ErrorCode.none
        assert fetch.response == 2


async def test_offset_fetch_does_not_return_later_commits(
    clock: VirtualClock,
) -> None:
    log = MemoryLog()
    async with running(clock, log) as groups, trio.open_nursery() as nursery:
        await groups.commit(a_commit(1))
        log.hold()
        first = PendingRequest(nursery, lambda: groups.commit(a_commit(2)))
        await clock.settle()
        end = log.end_offset(0)
        fetch = PendingRequest(nursery, lambda: fetched(groups))
        await clock.settle()
        second = PendingRequest(nursery, lambda: groups.commit(a_commit(3)))
        await clock.settle()
        log.move_to(0, end)
        await clock.settle()
        assert first.is_responded.is_set()
        assert not second.is_responded.is_set()
        assert fetch.response == 2
        log.move_on()


async def test_consumer_group_description_waits_for_high_watermark(clock: VirtualClock) -> None:
    log = MemoryLog()
    beat = ConsumerGroupHeartbeat(
        "g", "m", 0, "c", "/::1", rebalance_timeout_ms=1000, topics=("t",), owned={}
    )
    async with running(clock, log) as groups, trio.open_nursery() as nursery:
        log.hold()
        joined = PendingRequest(nursery, lambda: groups.consumer_heartbeat(beat))
        await clock.settle()
        described = PendingRequest(nursery, lambda: groups.describe_consumer("g"))
        await clock.settle()
        assert not joined.is_responded.is_set()
        assert not described.is_responded.is_set(), "an uncommitted state was returned"
        log.move_on()
        await clock.settle()
        assert isinstance(described.response, DescribedConsumerGroup)
        assert [each.member.member_id for each in described.response.members] == ["m"]


async def test_not_found_errors_wait_for_high_watermark(
    clock: VirtualClock,
) -> None:
    """Not-found errors are final for clients, so they must not be reverted."""
    log = MemoryLog()

    def beat(epoch: int) -> ConsumerGroupHeartbeat:
        joins = {"rebalance_timeout_ms": 1000, "topics": ("t",), "owned": {}} if not epoch else {}
        return ConsumerGroupHeartbeat("g", "m", epoch, "c", "/::1", **joins)  # type: ignore[arg-type]

    async with running(clock, log) as groups, trio.open_nursery() as nursery:
        await groups.consumer_heartbeat(beat(0))
        log.hold()
        PendingRequest(nursery, lambda: groups.consumer_heartbeat(beat(-1)))
        await clock.settle()
        fetched = PendingRequest(
            nursery, lambda: groups.fetch("g", None, require_stable=False, member=("m", 1))
        )
        await clock.settle()
        PendingRequest(nursery, lambda: groups.delete_groups(["g"]))
        await clock.settle()
        described = PendingRequest(nursery, lambda: groups.describe_consumer("g"))
        await clock.settle()
        assert not fetched.is_responded.is_set()
        assert not described.is_responded.is_set()
        log.move_on()
        await clock.settle()
        assert fetched.response is ErrorCode.unknown_member_id
        assert described.response is ErrorCode.group_id_not_found


async def test_responses_are_in_log_order(clock: VirtualClock) -> None:
    log = MemoryLog()
    async with running(clock, log) as groups, trio.open_nursery() as nursery:
        log.hold()
        order: list[int] = []

        async def commit(offset: int) -> None:
            await groups.commit(a_commit(offset))
            order.append(offset)

        for offset in range(5):
            nursery.start_soon(commit, offset)
            await clock.settle()
        log.move_on()
        await clock.settle()
        assert order == [0, 1, 2, 3, 4]


async def test_offset_commit_without_replication_times_out(clock: VirtualClock) -> None:
    log = MemoryLog()
    async with running(clock, log, commit_timeout_ms=5000) as groups:
        async with trio.open_nursery() as nursery:
            log.hold()
            commit = PendingRequest(nursery, lambda: groups.commit(a_commit(2)))
            await clock.settle()
            fetch = PendingRequest(nursery, lambda: fetched(groups))
            await clock.run_for(5)
            assert getattr(commit.response, "error", None) is ErrorCode.coordinator_not_available
            assert fetch.response is ErrorCode.not_coordinator
            again = PendingRequest(nursery, lambda: fetched(groups))
            await clock.settle()
            assert not again.is_responded.is_set(), "an uncommitted state was returned"
            log.move_on()
        assert await fetched(groups) == 2, "the record stays in the log"


@pytest.mark.parametrize(
    ("code", "received"),
    [
        (ErrorCode.not_enough_replicas, ErrorCode.coordinator_not_available),
        (ErrorCode.not_leader_or_follower, ErrorCode.not_coordinator),
        (ErrorCode.kafka_storage_error, ErrorCode.not_coordinator),
        (ErrorCode.message_too_large, ErrorCode.unknown_server_error),
    ],
)
async def test_failed_append_leaves_state_unchanged(
    clock: VirtualClock, code: ErrorCode, received: ErrorCode
) -> None:
    log = MemoryLog()
    async with running(clock, log) as groups:
        log.fail_with = KafkaError(code)
        assert (await groups.commit(a_commit())).partitions == (("t", 0, received),)
        assert (await groups.join(a_join())).error is received
        log.fail_with = None
        assert await fetched(groups) == -1
        assert groups.count_by_state() == {}


async def test_oversized_record_fails_only_its_request(clock: VirtualClock) -> None:
    """String lengths in records have 16 bits; Kafka fails the request, too."""
    async with running(clock, MemoryLog()) as groups:
        joined = await groups.join(a_join(client_id="c" * 32_767, group="other"))
        synced = await groups.sync(a_sync(joined, group="other"))
        assert synced.error is ErrorCode.unknown_server_error
        heartbeat = ConsumerGroupHeartbeat(
            "third", "m" * 32_768, 0, "c", "/::1", topics=(), owned={}
        )
        received = await groups.consumer_heartbeat(heartbeat)
        assert received.error is ErrorCode.unknown_server_error
        assert (await groups.commit(a_commit())).error is ErrorCode.none


async def test_failed_assignment_write_rebalances(clock: VirtualClock) -> None:
    log = MemoryLog()
    async with running(clock, log) as groups:
        joined = await groups.join(a_join())
        log.fail_with = NotLeader()
        assert (await groups.sync(a_sync(joined))).error is ErrorCode.not_coordinator
        log.fail_with = None
        again = await groups.join(a_join(joined.member_id))
        assert again.generation == joined.generation + 1
        assert (await groups.sync(a_sync(again))).assignment == b"mine"


async def test_state_survives_restart(clock: VirtualClock) -> None:
    log = MemoryLog()
    async with running(clock, log) as groups:
        joined = await a_member(groups)
        await groups.commit(a_commit(7, member_id=joined.member_id, generation=1))
        await groups.commit(a_commit(8, "simple"))
    async with running(clock, log, offsets_load_buffer_bytes=100) as groups:
        await clock.settle()
        assert log.reads > 1, "a large partition is read in several parts"
        assert groups.runtime.loads == 1
        assert (await fetched(groups), await fetched(groups, "simple")) == (7, 8)
        beat = Heartbeat("g", joined.member_id, None, joined.generation)
        assert (await groups.heartbeat(beat)).error is ErrorCode.none
        await clock.run_for(10)
        assert (await groups.heartbeat(beat)).error is ErrorCode.unknown_member_id


class SlowClock(VirtualClock):
    """A clock that advances 1 ms with every call."""

    def monotonic(self) -> float:
        self.advance(0.001)
        return super().monotonic()


async def test_loading_many_groups_yields_to_other_tasks() -> None:
    log, count = MemoryLog(), 200
    async with running(VirtualClock(), log) as groups:
        for each in range(count):
            await groups.commit(a_commit(group=f"g{each}"))
    async with running(SlowClock(), log) as groups:
        (context,) = groups.runtime
        while len(context.shard.groups) < count:
            await trio.lowlevel.checkpoint()
        turns = 0
        while not context.serves:
            with pytest.raises(LoadInProgress):
                groups.list_groups([], [])
            await trio.lowlevel.checkpoint()
            turns += 1
        assert turns > count // 10
        assert await fetched(groups, f"g{count - 1}") == 5


async def test_requests_while_loading(clock: VirtualClock) -> None:
    log = MemoryLog()
    async with running(clock, log) as groups:
        joined = await a_member(groups)
    log.reading_may_go_on = trio.Event()
    async with running(clock, log) as groups:
        with pytest.raises(LoadInProgress):
            await groups.join(a_join())
        with pytest.raises(LoadInProgress):
            await fetched(groups)
        with pytest.raises(LoadInProgress):
            groups.list_groups([], [])
        with pytest.raises(LoadInProgress):
            groups.describe("g")
        assert await groups.delete_groups(["g"]) == [("g", ErrorCode.coordinator_load_in_progress)]
        # No member is removed during a load, so Heartbeat succeeds as in Kafka.
        beat = Heartbeat("g", joined.member_id, None, joined.generation)
        assert (await groups.heartbeat(beat)).error is ErrorCode.none
        log.reading_may_go_on.set()
        await clock.settle()
        assert groups.describe("g") is not None


TWINS = ClassicGroupMetadata(
    "consumer",
    1,
    "range",
    "m",
    1,
    (ClassicMemberMetadata("m", None, "c", "/h", 1, 1, b"", b""),) * 2,
)


@pytest.mark.parametrize(
    "bad",
    [
        (b"\x00\x01garbage", b"?"),
        (b"\x00\x01\x00\x01\xff\x00\x01t\x00\x00\x00\x00", None),
        records.encode(Record(GroupKey("g"), TWINS)),
    ],
    ids=["no key", "not UTF-8", "an impossible group"],
)
async def test_invalid_records_are_skipped_with_one_log_message(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture, bad: tuple[bytes, bytes]
) -> None:
    """Any client may write to the topic while there are no ACLs."""
    log = MemoryLog()
    good = records.encode(Record(OffsetKey("g", "t", 0), CommittedOffset(7)))
    for key, value in (bad, good, bad):
        log.append(0, log_records.build_batch([log_records.Record(0, 1, key, value)]), 0)
    async with running(clock, log) as groups:
        with caplog.at_level(logging.WARNING, "odradek.coordination"):
            await clock.settle()
        assert len([text for text in caplog.messages if "invalid records" in text]) == 1
        assert await fetched(groups, "g") == 7
        assert groups.runtime.failed_loads == 0


async def test_failed_load_affects_only_its_partition(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    log = MemoryLog(2)
    log.append(1, log_records.build_batch([log_records.Record(0, 1, b"", b"")]), 0)
    del log.data[1][-1:]  # the batch is cut off
    in_bad = next(each for each in "abcdefgh" if _partition(each) == 1)
    in_good = next(each for each in "abcdefgh" if _partition(each) == 0)
    async with running(clock, log) as groups:
        with caplog.at_level(logging.ERROR, "odradek.coordination"):
            await clock.settle()
        assert "Failed to load __consumer_offsets-1 at offset 0" in caplog.text
        assert "kafka-delete-records" in caplog.text
        with pytest.raises(NotCoordinator):
            await fetched(groups, in_bad)
        assert await fetched(groups, in_good) == -1
        assert groups.runtime.failed_loads == 1
        log.data[1] = bytearray()
        log.ends[1] = 0
        groups.runtime.schedule_load(1, 1)
        assert await fetched(groups, in_bad) == -1


def _partition(group_id: str) -> int:
    return ord(group_id) % 2


async def test_waiting_requests_fail_when_coordinator_moves(clock: VirtualClock) -> None:
    log = MemoryLog()
    async with running(clock, log) as groups, trio.open_nursery() as nursery:
        joined = await a_member(groups)
        other = PendingRequest(nursery, lambda: groups.join(a_join(member_uuid="2")))
        await clock.settle()
        log.hold()
        commit = PendingRequest(nursery, lambda: groups.commit(a_commit(group="other")))
        await clock.settle()
        groups.runtime.unload(0)
        groups.runtime.unload(0)
        await clock.settle()
        assert getattr(other.response, "error", None) is ErrorCode.not_coordinator
        assert getattr(commit.response, "error", None) is ErrorCode.not_coordinator
        with pytest.raises(NotCoordinator):
            await groups.sync(a_sync(joined))
        assert groups.list_groups([], []) == []
        log.move_on()
        groups.runtime.schedule_load(0, 1)
        await clock.settle()
        beat = Heartbeat("g", joined.member_id, None, joined.generation)
        assert (await groups.heartbeat(beat)).error is ErrorCode.none


async def test_unload_while_loading(clock: VirtualClock) -> None:
    log = MemoryLog()
    async with running(clock, log) as groups:
        await a_member(groups)
    log.reading_may_go_on = trio.Event()
    async with running(clock, log) as groups:
        await clock.settle()
        groups.runtime.unload(0)
        groups.runtime.schedule_load(0, 1)
        log.reading_may_go_on.set()
        await clock.settle()
        assert groups.describe("g") is not None


async def test_no_coordinator_before_topic_exists(clock: VirtualClock) -> None:
    async with running(clock, MemoryLog(0)) as groups:
        with pytest.raises(NotCoordinator):
            await groups.join(a_join())
        with pytest.raises(KafkaError, match="coordinator_not_available"):
            groups.runtime.partition_for("g")


async def test_list_groups_filters_by_state_and_type(clock: VirtualClock) -> None:
    async with running(clock, MemoryLog()) as groups:
        await a_member(groups)
        await groups.commit(a_commit(1, "simple"))
        assert [each.group_id for each in groups.list_groups([], [])] == ["g", "simple"]
        assert [each.group_id for each in groups.list_groups(["STABLE "], [])] == ["g"]
        assert [each.state for each in groups.list_groups(["Empty", "Dead"], ["classic"])] == [
            "Empty"
        ]
        assert groups.list_groups([], ["consumer"]) == []
        assert groups.list_groups(["nonsense"], []) == []


async def test_delete_groups_removes_offsets(clock: VirtualClock) -> None:
    log = MemoryLog()
    async with running(clock, log) as groups:
        await a_member(groups)
        await groups.commit(a_commit(1, "simple"))
        assert await groups.delete_groups(["g", "simple", "nobody", "simple"]) == [
            ("g", ErrorCode.non_empty_group),
            ("simple", ErrorCode.none),
            ("nobody", ErrorCode.group_id_not_found),
        ]
        with pytest.raises(ClassicGroupNotFound):
            groups.describe("simple")
        assert await fetched(groups, "simple") == -1
    async with running(clock, log) as groups:
        await clock.settle()
        assert [each.group_id for each in groups.list_groups([], [])] == ["g"]


async def test_delete_all_removes_all_state(clock: VirtualClock) -> None:
    log = MemoryLog(3)
    async with running(clock, log) as groups, trio.open_nursery() as nursery:
        joined = await a_member(groups)
        await groups.commit(a_commit(1, "simple"))
        waiting = PendingRequest(nursery, lambda: groups.join(a_join(member_uuid="2")))
        await clock.settle()
        await groups.delete_all()
        assert groups.list_groups([], []) == []
        assert offset_count(groups) == 0
        await clock.settle()
        assert getattr(waiting.response, "error", None) is ErrorCode.unknown_member_id
        beat = Heartbeat("g", joined.member_id, None, joined.generation)
        assert (await groups.heartbeat(beat)).error is ErrorCode.unknown_member_id
        assert (await groups.join(a_join())).generation == 1
        await groups.delete_all()
    async with running(clock, log) as groups:
        await clock.settle()
        assert groups.list_groups([], []) == []
        await clock.run_for(60)


async def test_offset_delete_of_subscribed_topic_fails(clock: VirtualClock) -> None:
    subscription = b"\x00\x00\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff"
    async with running(clock, MemoryLog()) as groups:
        missing = await groups.delete_offsets("g", [("t", 0)])
        assert missing.error is ErrorCode.group_id_not_found
        joined = await groups.join(a_join(protocols=(("range", subscription),)))
        await groups.sync(a_sync(joined))
        offsets = (OffsetToCommit("t", None, 0, 1, -1, ""), OffsetToCommit("u", None, 0, 1, -1, ""))
        await groups.commit(OffsetCommit("g", joined.member_id, None, 1, offsets))
        response = await groups.delete_offsets("g", [("t", 0), ("u", 0), ("u", 7)])
        assert [error for _, _, error in response.partitions] == [
            ErrorCode.group_subscribed_to_topic,
            ErrorCode.none,
            ErrorCode.none,
        ]
        (left,) = await groups.fetch("g", None, require_stable=False)
        assert left.topic == "t"


async def test_large_deletion_is_written_in_several_batches(clock: VirtualClock) -> None:
    log = MemoryLog()
    log.limit = 2000
    async with running(clock, log) as groups:
        offsets = tuple(OffsetToCommit("t", None, index, 1, -1, "") for index in range(500))
        response = await groups.commit(OffsetCommit("g", "", None, -1, offsets))
        assert {error for _, _, error in response.partitions} == {ErrorCode.none}
        assert offset_count(groups) == 500
        assert await groups.delete_groups(["g"]) == [("g", ErrorCode.none)]
        assert offset_count(groups) == 0


async def test_offsets_and_groups_expire(clock: VirtualClock) -> None:
    log = MemoryLog()
    async with running(
        clock, log, offsets_retention_ms=60_000, offsets_retention_check_interval_ms=10_000
    ) as groups:
        await groups.commit(a_commit(1, "simple"))
        joined = await a_member(groups)
        await groups.commit(a_commit(2, member_id=joined.member_id, generation=1))
        await groups.leave(LeaveGroup("g", (LeavingMember(joined.member_id),)))
        await clock.run_for(50)
        assert offset_count(groups) == 2
        await groups.commit(a_commit(3, "simple"))
        await clock.run_for(15)
        # The group is empty for a minute; the simple group has committed again since.
        assert [each.group_id for each in groups.list_groups([], [])] == ["simple"]
        await clock.run_for(60)
        assert groups.list_groups([], []) == []
        assert groups.statistics.offset_expirations == 2
    async with running(clock, log) as groups:
        await clock.settle()
        assert groups.list_groups([], []) == []


async def test_topic_deletion_removes_offsets(clock: VirtualClock) -> None:
    log = MemoryLog()
    async with running(clock, log) as groups:
        await groups.commit(a_commit(1))
        groups.topics_deleted([("other", TOPIC_ID), ("t", UUID(int=1))])
        assert await fetched(groups) == 1
        groups.topics_deleted([("t", TOPIC_ID)])
        assert await fetched(groups) == -1
        assert log.keys() == [OffsetKey("g", "t", 0)] * 2


async def test_cancelled_request_leaves_group_unchanged(clock: VirtualClock) -> None:
    log = MemoryLog()
    async with running(clock, log) as groups:
        joined = await groups.join(a_join())
        log.hold()
        with trio.move_on_after(0):
            await groups.sync(a_sync(joined))
        log.move_on()
        await clock.settle()
        assert groups.count_by_state() == {("classic", "Stable"): 1}


async def test_exception_fails_only_its_group(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    log = MemoryLog(2)
    here = next(each for each in "abcdefgh" if _partition(each) == 1)
    there = next(each for each in "abcdefgh" if _partition(each) == 0)
    async with running(clock, log) as groups, trio.open_nursery() as nursery:
        joined = await groups.join(a_join(group=here))
        await groups.sync(a_sync(joined, here))
        waiting = PendingRequest(nursery, lambda: groups.join(a_join(group=here, member_uuid="2")))
        await clock.settle()
        groups.runtime.active_context(1).shard.groups[
            here
        ].members.leader_id = "nobody"  # violates an invariant
        with pytest.raises(KafkaError, match="unknown_server_error"):
            await groups.join(a_join(joined.member_id, here))
        await clock.settle()
        assert getattr(waiting.response, "error", None) is ErrorCode.not_coordinator
        assert "Unexpected error in the coordinator (" in caplog.text
        with pytest.raises(NotCoordinator):
            await groups.join(a_join(group=here))
        same_partition = next(each for each in "ijklmnop" if _partition(each) == 1)
        assert (await groups.join(a_join(group=same_partition))).error is ErrorCode.none
        assert (await groups.join(a_join(group=there))).error is ErrorCode.none


async def test_exception_of_a_load_fails_only_its_group(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = MemoryLog()
    async with running(clock, log) as groups:
        await groups.commit(a_commit(1, group="bad"))
        await groups.commit(a_commit(2, group="good"))
    loaded = GroupCoordinatorShard.loaded

    def planted(shard: GroupCoordinatorShard, group_id: str, now: EventTime) -> CoordinatorResult:
        if group_id == "bad":
            raise RuntimeError("planted")
        return loaded(shard, group_id, now)

    monkeypatch.setattr(GroupCoordinatorShard, "loaded", planted)
    async with running(clock, log) as groups:
        await clock.settle()
        assert caplog.text.count("RuntimeError: planted") == 1
        assert "Unexpected error in the coordinator (group 'bad' of __consumer_offsets-0)" in (
            caplog.text
        )
        with pytest.raises(NotCoordinator):
            await groups.join(a_join(group="bad"))
        assert await fetched(groups, "good") == 2


async def test_exception_while_waiting_for_a_commit_fails_only_its_partition(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = MemoryLog(2)
    here = next(each for each in "abcdefgh" if _partition(each) == 1)
    there = next(each for each in "abcdefgh" if _partition(each) == 0)
    wait_committed = log.wait_committed

    async def planted(partition: int, offset: int) -> None:
        if partition == 1:
            raise RuntimeError("planted")
        await wait_committed(partition, offset)

    monkeypatch.setattr(log, "wait_committed", planted)
    async with running(clock, log) as groups, trio.open_nursery() as nursery:
        await clock.settle()
        log.hold()
        failing = PendingRequest(nursery, lambda: groups.commit(a_commit(1, group=here)))
        waiting = PendingRequest(nursery, lambda: groups.commit(a_commit(2, group=there)))
        await clock.settle()
        assert "Unexpected error in the coordinator (__consumer_offsets-1)" in caplog.text
        assert getattr(failing.response, "error", None) is ErrorCode.not_coordinator
        assert not waiting.is_responded.is_set()
        log.move_on()
        await waiting.is_responded.wait()
        assert await fetched(groups, there) == 2
