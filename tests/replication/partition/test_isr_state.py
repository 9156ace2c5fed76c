"""Results of ISR proposals: each row of the table in KIP-497."""

from __future__ import annotations

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.replication.partition.isr_state import (
    CommittedIsr,
    IsrProposal,
    IsrState,
    ProposalOutcome,
)

TWO, THREE = frozenset({1, 2}), frozenset({1, 2, 3})


def _proposing(proposed: frozenset[int], committed: frozenset[int]) -> tuple[IsrState, IsrProposal]:
    known = IsrState(committed, leader_epoch=4, partition_epoch=7)
    return known, known.propose(proposed)


def test_maximal_isr_includes_proposed_replicas() -> None:
    assert _proposing(THREE, TWO)[0].maximal == THREE
    assert _proposing(TWO, THREE)[0].maximal == THREE
    assert IsrState(TWO, 4, 7).maximal == TWO


def test_second_proposal_while_pending_raises() -> None:
    known, proposal = _proposing(THREE, TWO)
    assert proposal == IsrProposal(THREE, 4, 7)
    with pytest.raises(ValueError, match="is pending"):
        known.propose(TWO)


ROWS = [
    (CommittedIsr(THREE, 4, 8), ProposalOutcome.COMMITTED, THREE, 8, False),
    (CommittedIsr(THREE, 4, 7), ProposalOutcome.COMMITTED, THREE, 7, False),
    (CommittedIsr(THREE, 5, 8), ProposalOutcome.UNKNOWN_RESULT, TWO, 7, True),
    (CommittedIsr(THREE, 4, 6), ProposalOutcome.UNKNOWN_RESULT, TWO, 7, True),
    (ErrorCode.operation_not_attempted, ProposalOutcome.DROPPED, TWO, 7, False),
    (ErrorCode.ineligible_replica, ProposalOutcome.DROPPED, TWO, 7, False),
    (ErrorCode.unknown_topic_or_partition, ProposalOutcome.UNKNOWN_RESULT, TWO, 7, True),
    (ErrorCode.unknown_topic_id, ProposalOutcome.UNKNOWN_RESULT, TWO, 7, True),
    (ErrorCode.fenced_leader_epoch, ProposalOutcome.UNKNOWN_RESULT, TWO, 7, True),
    (ErrorCode.invalid_update_version, ProposalOutcome.UNKNOWN_RESULT, TWO, 7, True),
    (ErrorCode.invalid_request, ProposalOutcome.UNKNOWN_RESULT, TWO, 7, True),
    (ErrorCode.new_leader_elected, ProposalOutcome.UNKNOWN_RESULT, TWO, 7, True),
    (ErrorCode.request_timed_out, ProposalOutcome.RETRY, TWO, 7, True),
    (ErrorCode.not_controller, ProposalOutcome.RETRY, TWO, 7, True),
    (ErrorCode.unknown_server_error, ProposalOutcome.RETRY, TWO, 7, True),
]


@pytest.mark.parametrize(("response", "outcome", "committed", "epoch", "pending"), ROWS)
def test_proposal_response_gives_outcome(
    response: CommittedIsr | ErrorCode,
    outcome: ProposalOutcome,
    committed: frozenset[int],
    epoch: int,
    pending: bool,
) -> None:
    known, proposal = _proposing(THREE, TWO)
    assert known.responded(proposal, response) is outcome
    assert (known.committed, known.partition_epoch) == (committed, epoch)
    assert known.maximal == THREE if pending else known.maximal == committed
    assert (known.proposal is proposal) == pending


@pytest.mark.parametrize(
    ("leader_epoch", "partition_epoch", "adopted", "pending"),
    [(4, 8, True, False), (5, 8, True, False), (4, 7, True, True), (4, 6, False, True)],
)
def test_image_updates_or_drops_proposal(
    leader_epoch: int, partition_epoch: int, adopted: bool, pending: bool
) -> None:
    known, proposal = _proposing(THREE, TWO)
    assert known.adopt(TWO, leader_epoch, partition_epoch) == adopted
    assert (known.proposal is proposal) == pending
    if not pending:
        assert known.responded(proposal, CommittedIsr(THREE, 4, 9)) is ProposalOutcome.STALE
        assert known.committed == TWO
