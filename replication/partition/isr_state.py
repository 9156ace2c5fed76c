"""The in-sync set as its leader knows it: what the controller has said, and what it was asked for.

A leader changes nothing itself: it proposes, with the partition epoch it knows, and the controller
answers or lets it know by a new image (KIP-497). What became of a proposal is unknown until then, so
one is under way at most, and until it is resolved the leader reckons with both outcomes: `maximal` is
every replica that may be in sync as the controller sees it.

| under way | maximal | |
|---|---|---|
| nothing | what is committed | |
| an expansion | the committed ones and the new one | it may have come to pass |
| a shrink | what is committed | it may not have come to pass |

| what is heard of a proposal | what becomes of it |
|---|---|
| an answer of this leader epoch, its partition epoch not behind | committed as answered |
| an answer of another leader epoch, or one that is behind | unknown: it waits for an image |
| OPERATION_NOT_ATTEMPTED, INELIGIBLE_REPLICA: not done, and never will be | dropped |
| an error that tells that either of the two knows less than the other (`_UNKNOWN`) | as before |
| any other error | sent again |
| an image of a later partition epoch | dropped: it is in there, or is refused |
"""

from __future__ import annotations

import enum

from odradek.protocol.errors import ErrorCode
from odradek.seams.values import value_class

ReplicaIds = frozenset[int]

_REFUSED = frozenset({ErrorCode.operation_not_attempted, ErrorCode.ineligible_replica})
_UNKNOWN = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.invalid_update_version,
        ErrorCode.invalid_request,
        ErrorCode.new_leader_elected,
    }
)


class ProposalOutcome(enum.Enum):
    """What an answer has made of a proposal."""

    COMMITTED = "committed"
    DROPPED = "dropped"
    UNKNOWN_RESULT = "waits for an image"
    RETRY = "to be sent again"
    STALE = "of another proposal"


@value_class
class IsrProposal:
    """An in-sync set that the controller is asked for, in place of the one of `partition_epoch`."""

    isr: ReplicaIds
    leader_epoch: int
    partition_epoch: int


@value_class
class CommittedIsr:
    """AlterPartition's answer: what is committed now."""

    isr: ReplicaIds
    leader_epoch: int
    partition_epoch: int


class IsrState:
    """See the module. Of one leader in all its epochs, as `adopt` tells them."""

    def __init__(self, committed: ReplicaIds, leader_epoch: int, partition_epoch: int) -> None:
        self.committed = committed
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.proposal: IsrProposal | None = None
        """Under way, or waiting for the image that tells what became of it."""

    @property
    def maximal(self) -> ReplicaIds:
        if self.proposal is None:
            return self.committed
        return self.committed | self.proposal.isr

    def propose(self, in_sync: ReplicaIds) -> IsrProposal:
        """ValueError while another proposal is under way."""
        if self.proposal is not None:
            raise ValueError(f"{self.proposal} is under way")
        self.proposal = IsrProposal(in_sync, self.leader_epoch, self.partition_epoch)
        return self.proposal

    def adopt(self, committed: ReplicaIds, leader_epoch: int, partition_epoch: int) -> bool:
        """An image says so. False if it is behind what is known, and nothing changed.

        An image of the same epochs leaves a proposal alone: it was made when the image was already
        known, and may yet come to pass.
        """
        if partition_epoch < self.partition_epoch or leader_epoch < self.leader_epoch:
            return False
        if (leader_epoch, partition_epoch) != (self.leader_epoch, self.partition_epoch):
            self.proposal = None
        self.committed = committed
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        return True

    def responded(
        self, proposal: IsrProposal, response: CommittedIsr | ErrorCode
    ) -> ProposalOutcome:
        """See the table. STALE: `proposal` is not the one under way any more."""
        if proposal is not self.proposal:
            return ProposalOutcome.STALE
        if isinstance(response, CommittedIsr):
            return self._altered(response)
        if response in _REFUSED:
            self.proposal = None
            return ProposalOutcome.DROPPED
        return ProposalOutcome.UNKNOWN_RESULT if response in _UNKNOWN else ProposalOutcome.RETRY

    def _altered(self, response: CommittedIsr) -> ProposalOutcome:
        if response.leader_epoch != self.leader_epoch:
            return ProposalOutcome.UNKNOWN_RESULT
        if response.partition_epoch < self.partition_epoch:
            return ProposalOutcome.UNKNOWN_RESULT
        self.proposal = None
        self.committed = response.isr
        self.partition_epoch = response.partition_epoch
        return ProposalOutcome.COMMITTED
