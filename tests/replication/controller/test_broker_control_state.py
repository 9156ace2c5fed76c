"""Transitions of a broker's control state, for every combination of inputs (KIP-631, KIP-841)."""

from __future__ import annotations

import itertools

import pytest

from odradek.replication.controller.broker_control_state import BrokerControlState, next_state

FENCED, UNFENCED = BrokerControlState.FENCED, BrokerControlState.UNFENCED
STOPPING, STOP = BrokerControlState.CONTROLLED_SHUTDOWN, BrokerControlState.SHUTDOWN_NOW
ANY = None

# state, want fence, want shutdown, may be unfenced, leads partitions, others have replayed the shutdown: next state
TABLE = [
    (FENCED, ANY, True, ANY, ANY, ANY, STOP),
    (FENCED, True, False, ANY, ANY, ANY, FENCED),
    (FENCED, False, False, False, ANY, ANY, FENCED),
    (FENCED, False, False, True, ANY, ANY, UNFENCED),
    (UNFENCED, False, False, ANY, ANY, ANY, UNFENCED),
    (UNFENCED, True, False, ANY, ANY, ANY, FENCED),
    (UNFENCED, True, True, ANY, ANY, ANY, STOP),
    (UNFENCED, False, True, ANY, True, ANY, STOPPING),
    (UNFENCED, False, True, ANY, False, ANY, STOP),
    (STOPPING, ANY, ANY, ANY, True, ANY, STOPPING),
    (STOPPING, ANY, ANY, ANY, False, False, STOPPING),
    (STOPPING, ANY, ANY, ANY, False, True, STOP),
]


@pytest.mark.parametrize("now", [FENCED, UNFENCED, STOPPING])
def test_every_heartbeat_has_one_transition(now: BrokerControlState) -> None:
    for case in itertools.product((True, False), repeat=5):
        fence, shut_down, may_serve, leads, known = case
        rows = [
            row[-1]
            for row in TABLE
            if row[0] is now
            and all(
                reported in (ANY, is_so) for reported, is_so in zip(row[1:-1], case, strict=True)
            )
        ]
        assert len(rows) == 1, case
        assert [
            next_state(
                now,
                want_fence=fence,
                want_shut_down=shut_down,
                may_serve=may_serve,
                leads=lambda leads=leads: leads,  # type: ignore[misc]
                is_known=lambda known=known: known,  # type: ignore[misc]
            )
        ] == rows


def test_broker_with_should_shut_down_is_fenced() -> None:
    assert [each for each in BrokerControlState if each.is_fenced] == [FENCED, STOP]
