"""Test of the state table of the broker lifecycle, with each response in each state."""

from __future__ import annotations

import pytest

from odradek.broker.lifecycle.broker_lifecycle import (
    SHUTDOWN_HEARTBEAT_INTERVAL_MS,
    STARTUP_HEARTBEAT_INTERVAL_MS,
    BrokerState,
    BrokerStateMachine,
)

INTERVAL_MS = 2000
STARTING, RECOVERY, RUNNING, STOPPING, GONE = BrokerState

NOT_YET, CAUGHT_UP, SERVES, MAY_GO = (
    (False, True, False),
    (True, True, False),
    (True, False, False),
    (True, True, True),
)
"""Fields of the heartbeat response: is caught up, is fenced, should shut down."""


def life(state: BrokerState, *, ready: bool = True) -> BrokerStateMachine:
    made = BrokerStateMachine(0, interval_ms=INTERVAL_MS)
    made.registered(7, 0)
    made.state = state
    made.is_ready = ready
    return made


def responded(
    made: BrokerStateMachine, response: tuple[bool, bool, bool], now_ms: int
) -> tuple[BrokerState, int]:
    """State after the response, and the delay of the next heartbeat in ms."""
    caught_up, fenced, go = response
    made.responded(is_caught_up=caught_up, is_fenced=fenced, should_shut_down=go, now_ms=now_ms)
    return made.state, made.due_ms - now_ms


@pytest.mark.parametrize(
    ("state", "ready", "response", "then", "wait_ms"),
    [
        (STARTING, False, NOT_YET, STARTING, STARTUP_HEARTBEAT_INTERVAL_MS),
        (STARTING, False, CAUGHT_UP, RECOVERY, STARTUP_HEARTBEAT_INTERVAL_MS),
        (STARTING, True, SERVES, RECOVERY, STARTUP_HEARTBEAT_INTERVAL_MS),
        (RECOVERY, False, CAUGHT_UP, RECOVERY, INTERVAL_MS),
        (RECOVERY, True, CAUGHT_UP, RECOVERY, STARTUP_HEARTBEAT_INTERVAL_MS),
        (RECOVERY, True, NOT_YET, RECOVERY, STARTUP_HEARTBEAT_INTERVAL_MS),
        (RECOVERY, True, SERVES, RUNNING, INTERVAL_MS),
        (RUNNING, True, SERVES, RUNNING, INTERVAL_MS),
        (RUNNING, True, CAUGHT_UP, RUNNING, INTERVAL_MS),
        (RUNNING, True, NOT_YET, RUNNING, INTERVAL_MS),
        (RUNNING, True, MAY_GO, RUNNING, INTERVAL_MS),
        (STOPPING, True, SERVES, STOPPING, SHUTDOWN_HEARTBEAT_INTERVAL_MS),
        (STOPPING, True, CAUGHT_UP, STOPPING, SHUTDOWN_HEARTBEAT_INTERVAL_MS),
        (STOPPING, True, MAY_GO, GONE, SHUTDOWN_HEARTBEAT_INTERVAL_MS),
    ],
)
def test_response_changes_the_state(
    state: BrokerState,
    ready: bool,
    response: tuple[bool, bool, bool],
    then: BrokerState,
    wait_ms: int,
) -> None:
    assert responded(life(state, ready=ready), response, 500) == (then, wait_ms)


@pytest.mark.parametrize(
    ("state", "then"),
    [
        (STARTING, GONE),
        (RECOVERY, GONE),
        (RUNNING, STOPPING),
        (STOPPING, STOPPING),
        (GONE, GONE),
    ],
)
def test_only_unfenced_broker_requests_controlled_shutdown(
    state: BrokerState, then: BrokerState
) -> None:
    made = life(state)
    made.due_ms = 9999
    assert made.wants_shutdown is (state in (STOPPING, GONE))
    made.stop(600)
    assert made.state is then
    assert made.wants_shutdown  # a log directory may still fail and must be reported
    assert (made.due_ms == 600) is (state is RUNNING)


def test_heartbeat_wants_fence_until_ready() -> None:
    made = life(RECOVERY, ready=False)
    assert made.wants_fence
    made.due_ms = 9999
    made.ready(700)
    assert not made.wants_fence
    assert made.due_ms == 700


def test_failed_request_is_retried_after_interval() -> None:
    for state in BrokerState:
        made = life(state)
        made.failed(800)
        assert (made.state, made.due_ms) == (state, 800 + INTERVAL_MS)


def test_new_registration_is_sent_at_once_before_heartbeat() -> None:
    made = life(RUNNING)
    made.registers_again(900)
    assert not made.is_registered
    assert made.due_ms == 900
    made.registered(8, 950)
    assert (made.is_registered, made.broker_epoch, made.due_ms) == (True, 8, 950)
