"""Follower state machine: next actions and transitions, state by state."""

from __future__ import annotations

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.replication.partition.follower_state import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    AppendFetched,
    BuildRemoteLogAuxState,
    Fetch,
    FetchResult,
    FollowerAction,
    FollowerState,
    OffsetResult,
    QueryEpochEnd,
    QueryOffset,
    ReplicaFetchState,
    TruncateFullyAndStartAt,
    TruncateTo,
)
from odradek.storage.log.leader_epoch_cache import EpochEnd
from tests.replication.partition.memory_log import MemoryLog

BACK_OFF_MS = 10
EPOCH = 5


class FollowerScenario:
    """A log of six records of three epochs, `a0 b0 c1 d1 e3 f3`, with high watermark 2."""

    def __init__(self, *, compares: bool = True, empty: bool = False) -> None:
        self.log = MemoryLog()
        if not empty:
            for epoch, text in zip((0, 0, 1, 1, 3, 3), "abcdef", strict=True):
                self.log.write(epoch, text)
            self.log.high_watermark = 2
        self.follower = FollowerState(self.log, back_off_ms=BACK_OFF_MS)
        self.follower.follow(EPOCH, compares=compares)

    def next_action(self, now_ms: int = 0) -> FollowerAction:
        want = self.follower.next_action(now_ms)
        assert want is not None
        return want

    def fetch(self, now_ms: int = 0) -> Fetch:
        want = self.next_action(now_ms)
        assert isinstance(want, Fetch)
        return want

    def ask_offset(self, timestamp: int, now_ms: int = 0) -> QueryOffset:
        want = self.next_action(now_ms)
        assert isinstance(want, QueryOffset)
        assert want == QueryOffset(EPOCH, timestamp)
        return want

    def fail_fetch(self, error: ErrorCode, now_ms: int = 0) -> None:
        self.follower.failed(self.fetch(now_ms), error, now_ms)

    def truncate(self, offset: int) -> None:
        want = self.next_action()
        assert isinstance(want, TruncateTo)
        assert want.offset == offset
        self.log.truncate_to(offset)
        self.follower.changed(want)


def test_follower_fetches_from_its_log_end_offset() -> None:
    scenario = FollowerScenario()
    assert scenario.next_action() == Fetch(EPOCH, 6, 3, 0)
    assert scenario.follower.next_action(0) is None  # the pending action
    assert FollowerScenario(empty=True).next_action() == Fetch(EPOCH, 0, -1, 0)


def test_fetched_records_are_appended_and_offsets_advance() -> None:
    scenario = FollowerScenario()
    query = scenario.fetch()
    append = scenario.follower.fetched(query, FetchResult(high_watermark=9, start_offset=1))
    assert append == AppendFetched(EPOCH, 6, 9, 1)
    assert scenario.follower.next_action(0) is None
    scenario.log.write(EPOCH, "g", "h")
    assert scenario.follower.limits(append) == (8, 1)
    scenario.follower.appended(append)
    assert scenario.next_action() == Fetch(EPOCH, 8, EPOCH, 0)


def test_log_start_offset_is_limited_by_the_high_watermark() -> None:
    scenario = FollowerScenario()
    append = scenario.follower.fetched(
        scenario.fetch(), FetchResult(high_watermark=4, start_offset=5)
    )
    assert append is not None
    assert scenario.follower.limits(append) == (4, 4)


def test_diverging_epoch_truncates_and_ignores_other_fields() -> None:
    scenario = FollowerScenario()
    parts = FetchResult(high_watermark=5, start_offset=1, diverging=EpochEnd(1, 3))
    assert scenario.follower.fetched(scenario.fetch(), parts) is None
    scenario.truncate(3)
    assert scenario.next_action() == Fetch(EPOCH, 3, 1, 0)


def test_old_fetch_version_queries_epoch_end_offsets() -> None:
    scenario = FollowerScenario(compares=False)
    query = scenario.next_action()
    assert query == QueryEpochEnd(EPOCH, 3)
    assert isinstance(query, QueryEpochEnd)
    scenario.follower.epoch_end_received(query, EpochEnd(2, 5))
    scenario.truncate(4)
    again = scenario.next_action()
    assert again == QueryEpochEnd(EPOCH, 1)
    assert isinstance(again, QueryEpochEnd)
    scenario.follower.epoch_end_received(again, EpochEnd(1, 3))
    scenario.truncate(3)
    assert scenario.next_action() == Fetch(EPOCH, 3, -1, 0)


def test_log_without_epochs_truncates_to_high_watermark() -> None:
    scenario = FollowerScenario(empty=True)
    scenario.log.records = [(0, "a"), (0, "b")]
    scenario.log.high_watermark = 1
    scenario.follower.follow(EPOCH + 1)
    scenario.truncate(1)
    assert scenario.next_action() == Fetch(EPOCH + 1, 1, -1, 0)


def test_fetch_offset_past_leader_end_truncates_to_it() -> None:
    scenario = FollowerScenario()
    scenario.fail_fetch(ErrorCode.offset_out_of_range)
    scenario.follower.offset_received(scenario.ask_offset(LATEST), OffsetResult(4), 0)
    scenario.truncate(4)
    assert scenario.next_action() == Fetch(EPOCH, 4, 1, 0)


def test_fetch_offset_below_leader_start_truncates_fully() -> None:
    scenario = FollowerScenario()
    scenario.fail_fetch(ErrorCode.offset_out_of_range)
    scenario.follower.offset_received(scenario.ask_offset(LATEST), OffsetResult(40), 0)
    scenario.follower.offset_received(scenario.ask_offset(EARLIEST), OffsetResult(20), 0)
    change = scenario.next_action()
    assert change == TruncateFullyAndStartAt(20)
    assert isinstance(change, TruncateFullyAndStartAt)
    scenario.log.truncate_fully(20)
    scenario.follower.changed(change)
    assert scenario.next_action() == Fetch(EPOCH, 20, -1, 20)


def test_repeated_out_of_range_within_leader_log_backs_off() -> None:
    scenario = FollowerScenario()
    for round_ms in (0, 0):
        scenario.fail_fetch(ErrorCode.offset_out_of_range)
        if not scenario.follower.due_ms:
            scenario.follower.offset_received(
                scenario.ask_offset(LATEST), OffsetResult(40), round_ms
            )
            scenario.follower.offset_received(
                scenario.ask_offset(EARLIEST), OffsetResult(2), round_ms
            )
    assert scenario.follower.next_action(BACK_OFF_MS - 1) is None
    scenario.ask_offset(LATEST, BACK_OFF_MS)


def moved(scenario: FollowerScenario, local: OffsetResult) -> None:
    """The fetch offset is in the tier; the leader has local log start offset `local` and log start offset 2."""
    scenario.fail_fetch(ErrorCode.offset_moved_to_tiered_storage)
    assert scenario.follower.state is ReplicaFetchState.LOCATING_TIER
    scenario.follower.offset_received(scenario.ask_offset(EARLIEST), OffsetResult(2, 0), 0)
    scenario.follower.offset_received(scenario.ask_offset(EARLIEST_LOCAL), local, 0)


def epoch_ends(scenario: FollowerScenario, epoch: int, end: EpochEnd) -> None:
    assert scenario.follower.state is ReplicaFetchState.LOCATING_EPOCH
    query = scenario.next_action()
    assert query == QueryEpochEnd(EPOCH, epoch)
    assert isinstance(query, QueryEpochEnd)
    scenario.follower.epoch_end_received(query, end)


def test_offset_moved_to_tiered_storage_builds_auxiliary_state() -> None:
    """T-42."""
    scenario = FollowerScenario()
    moved(scenario, OffsetResult(30, 4))
    epoch_ends(scenario, 3, EpochEnd(3, 28))
    assert scenario.follower.state is ReplicaFetchState.BUILDING_REMOTE_AUX
    change = scenario.next_action()
    assert change == BuildRemoteLogAuxState(EPOCH, 30, 4, 2)
    assert isinstance(change, BuildRemoteLogAuxState)
    scenario.log.truncate_fully(30)
    scenario.log.epochs.assign(4, 28)
    scenario.follower.changed(change)
    assert scenario.next_action() == Fetch(EPOCH, 30, 4, 30)


@pytest.mark.parametrize(
    ("end", "epoch"),
    [
        (EpochEnd(1, 30), 1),  # epochs 2 and 3 have no records
        (EpochEnd(3, 31), 3),
        (EpochEnd(3, 29), 4),
        (EpochEnd(-1, -1), 4),
    ],
)
def test_epoch_before_local_log_start_is_queried_from_leader(end: EpochEnd, epoch: int) -> None:
    """T-42: the epoch is that of the record before the local log start offset, which may be an earlier one."""
    scenario = FollowerScenario()
    moved(scenario, OffsetResult(30, 4))
    epoch_ends(scenario, 3, end)
    assert scenario.next_action() == BuildRemoteLogAuxState(EPOCH, 30, epoch, 2)


@pytest.mark.parametrize("epoch", [0, -1])
def test_local_log_start_in_first_epoch_needs_no_query(epoch: int) -> None:
    scenario = FollowerScenario()
    moved(scenario, OffsetResult(30, epoch))
    assert scenario.next_action() == BuildRemoteLogAuxState(EPOCH, 30, epoch, 2)


def test_empty_remote_tier_starts_at_local_log_start() -> None:
    scenario = FollowerScenario()
    moved(scenario, OffsetResult(2, 4))
    assert scenario.next_action() == TruncateFullyAndStartAt(2)


def test_failed_tier_read_restarts_with_fetch() -> None:
    scenario = FollowerScenario()
    moved(scenario, OffsetResult(30, 4))
    epoch_ends(scenario, 3, EpochEnd(3, 28))
    scenario.follower.failed(scenario.next_action(), ErrorCode.unknown_server_error, 0)
    assert scenario.follower.next_action(BACK_OFF_MS - 1) is None
    scenario.fetch(BACK_OFF_MS)


def test_failed_epoch_query_restarts_with_fetch() -> None:
    scenario = FollowerScenario()
    moved(scenario, OffsetResult(30, 4))
    scenario.follower.failed(scenario.next_action(), ErrorCode.unknown_server_error, 0)
    scenario.fetch(BACK_OFF_MS)


def test_newer_leader_epoch_supersedes_log_change() -> None:
    scenario = FollowerScenario()
    moved(scenario, OffsetResult(30, 0))
    change = scenario.next_action()
    assert isinstance(change, BuildRemoteLogAuxState)
    assert not scenario.follower.is_superseded(change)
    scenario.follower.follow(EPOCH + 1)
    assert scenario.follower.is_superseded(change)
    scenario.follower.failed(change, ErrorCode.not_leader_or_follower, 0)
    assert scenario.next_action() == Fetch(EPOCH + 1, 6, 3, 0)


def test_fenced_leader_epoch_while_locating_stops_follower() -> None:
    """E14."""
    scenario = FollowerScenario()
    scenario.fail_fetch(ErrorCode.offset_moved_to_tiered_storage)
    scenario.follower.failed(scenario.ask_offset(EARLIEST), ErrorCode.fenced_leader_epoch, 0)
    assert scenario.follower.state is ReplicaFetchState.STOPPED


DELAYS = [
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.unknown_topic_id,
    ErrorCode.inconsistent_topic_id,
    ErrorCode.corrupt_message,
    ErrorCode.request_timed_out,
    ErrorCode.unknown_server_error,
]
STOPS = [ErrorCode.fenced_leader_epoch, ErrorCode.kafka_storage_error]


@pytest.mark.parametrize("error", DELAYS)
def test_fetch_error_delays_next_action(error: ErrorCode) -> None:
    scenario = FollowerScenario()
    scenario.fail_fetch(error, now_ms=100)
    assert scenario.follower.next_action(109) is None
    assert scenario.fetch(110) == Fetch(EPOCH, 6, 3, 0)


@pytest.mark.parametrize("error", DELAYS)
def test_epoch_query_error_delays_next_action(error: ErrorCode) -> None:
    scenario = FollowerScenario(compares=False)
    scenario.follower.failed(scenario.next_action(), error, 100)
    assert scenario.follower.next_action(109) is None
    assert scenario.next_action(110) == QueryEpochEnd(EPOCH, 3)


@pytest.mark.parametrize("error", DELAYS)
def test_error_while_locating_returns_to_fetching(error: ErrorCode) -> None:
    scenario = FollowerScenario()
    scenario.fail_fetch(ErrorCode.offset_out_of_range)
    scenario.follower.failed(scenario.ask_offset(LATEST), error, 100)
    assert scenario.follower.next_action(109) is None
    assert scenario.fetch(110) == Fetch(EPOCH, 6, 3, 0)


@pytest.mark.parametrize("error", STOPS)
def test_stopping_error_lasts_until_newer_epoch(error: ErrorCode) -> None:
    scenario = FollowerScenario()
    scenario.fail_fetch(error)
    scenario.follower.follow(EPOCH)
    assert scenario.follower.next_action(10_000) is None
    scenario.follower.follow(EPOCH + 1)
    assert scenario.next_action() == Fetch(EPOCH + 1, 6, 3, 0)


def test_repeated_errors_double_the_delay() -> None:
    scenario = FollowerScenario()
    scenario.follower = FollowerState(scenario.log, back_off_ms=50, first_back_off_ms=20)
    scenario.follower.follow(EPOCH)
    now_ms = 0
    for delay_ms in (20, 40, 50, 50):
        scenario.fail_fetch(ErrorCode.unknown_leader_epoch, now_ms)
        assert scenario.follower.next_action(now_ms + delay_ms - 1) is None
        now_ms += delay_ms
    append = scenario.follower.fetched(scenario.fetch(now_ms), FetchResult(6, 0))
    assert append is not None
    scenario.follower.appended(append)
    scenario.fail_fetch(ErrorCode.unknown_leader_epoch, now_ms)
    assert scenario.fetch(now_ms + 20) == Fetch(EPOCH, 6, 3, 0)


def test_empty_log_starts_at_first_fetched_batch() -> None:
    """The log start offset of the leader, 7, is within a batch that starts at 4."""
    scenario = FollowerScenario(empty=True)
    scenario.log.truncate_fully(7)
    query = scenario.fetch()
    append = scenario.follower.fetched(query, FetchResult(9, 7))
    assert append is not None
    scenario.follower.start_before(append, 4)
    change = scenario.next_action()
    assert change == TruncateFullyAndStartAt(4)
    assert isinstance(change, TruncateFullyAndStartAt)
    scenario.log.truncate_fully(4)
    scenario.follower.changed(change)
    again = scenario.fetch()
    assert again == Fetch(EPOCH, 4, -1, 4)
    append = scenario.follower.fetched(again, FetchResult(9, 7))
    assert append is not None
    scenario.log.write(EPOCH, *"efghi")
    assert scenario.follower.limits(append) == (9, 7)


def test_pending_action_is_tracked_until_superseded() -> None:
    scenario = FollowerScenario()
    query = scenario.fetch()
    assert scenario.follower.is_awaiting(query)
    scenario.follower.follow(EPOCH + 1)
    assert not scenario.follower.is_awaiting(query)


def test_forgotten_request_is_returned_again() -> None:
    scenario = FollowerScenario()
    query = scenario.fetch()
    scenario.follower.forget_pending()
    assert not scenario.follower.is_awaiting(query)
    again = scenario.fetch()
    scenario.follower.fetched(again, FetchResult(6, 0, EpochEnd(1, 3)))
    change = scenario.next_action()
    scenario.follower.forget_pending()
    assert scenario.follower.is_awaiting(change)  # a running change is not forgotten


def test_failed_append_fetches_again_after_delay() -> None:
    scenario = FollowerScenario()
    append = scenario.follower.fetched(scenario.fetch(), FetchResult(6, 0))
    assert append is not None
    scenario.follower.failed(append, ErrorCode.corrupt_message, 0)
    assert scenario.follower.next_action(BACK_OFF_MS - 1) is None
    assert scenario.fetch(BACK_OFF_MS) == Fetch(EPOCH, 6, 3, 0)


def test_response_of_earlier_epoch_is_ignored() -> None:
    scenario = FollowerScenario()
    query = scenario.fetch()
    scenario.follower.follow(EPOCH + 1)
    assert scenario.follower.fetched(query, FetchResult(6, 0)) is None
    scenario.follower.failed(query, ErrorCode.fenced_leader_epoch, 0)
    assert scenario.next_action() == Fetch(EPOCH + 1, 6, 3, 0)


def test_running_log_change_blocks_actions_of_new_epoch() -> None:
    scenario = FollowerScenario()
    scenario.follower.fetched(scenario.fetch(), FetchResult(6, 0, EpochEnd(1, 3)))
    change = scenario.next_action()
    assert isinstance(change, TruncateTo)
    scenario.follower.follow(EPOCH + 1)
    assert scenario.follower.is_changing
    assert scenario.follower.next_action(0) is None
    scenario.log.truncate_to(3)
    scenario.follower.changed(change)
    assert not scenario.follower.is_changing
    assert scenario.next_action() == Fetch(EPOCH + 1, 3, 1, 0)


def test_failed_superseded_change_is_not_retried() -> None:
    scenario = FollowerScenario()
    scenario.follower.fetched(scenario.fetch(), FetchResult(6, 0, EpochEnd(1, 3)))
    change = scenario.next_action()
    scenario.follower.follow(EPOCH + 1)
    scenario.follower.failed(change, ErrorCode.unknown_server_error, 0)
    assert scenario.next_action() == Fetch(EPOCH + 1, 6, 3, 0)


def test_failed_change_is_retried() -> None:
    scenario = FollowerScenario()
    scenario.follower.fetched(scenario.fetch(), FetchResult(6, 0, EpochEnd(1, 3)))
    change = scenario.next_action()
    scenario.follower.failed(change, ErrorCode.unknown_server_error, 0)
    assert scenario.next_action(BACK_OFF_MS) is change


def test_failed_log_is_not_followed() -> None:
    scenario = FollowerScenario()
    scenario.follower.fetched(scenario.fetch(), FetchResult(6, 0, EpochEnd(1, 3)))
    scenario.follower.failed(scenario.next_action(), ErrorCode.kafka_storage_error, 0)
    assert scenario.follower.next_action(BACK_OFF_MS) is None


def test_stopped_follower_has_no_action() -> None:
    scenario = FollowerScenario()
    query = scenario.fetch()
    scenario.follower.stop()
    assert scenario.follower.fetched(query, FetchResult(6, 0)) is None
    assert scenario.follower.next_action(0) is None
