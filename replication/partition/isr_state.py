"""In-sync replicas as the leader knows them: the committed ISR and the proposed ISR.

A leader does not change the ISR itself. It proposes one with the partition epoch that it knows, and
the controller responds or publishes a new image (KIP-497). The result is unknown until then. So at
most one proposal is pending, and the leader considers both results: `maximal` is every replica that
may be in the ISR from the controller's view.

| pending | maximal | |
|---|---|---|
| none | the committed ISR | |
| an expansion | the committed ISR and the new replica | it may be committed already |
| a shrink | the committed ISR | it may not be committed yet |

| result of a proposal | effect |
|---|---|
| a response of this leader epoch, its partition epoch not behind | committed as in the response |
| a response of another leader epoch, or one that is behind | unknown: pending until a new image |
| OPERATION_NOT_ATTEMPTED, INELIGIBLE_REPLICA: rejected for good | dropped |
| an error that shows different metadata on the two nodes (`_UNKNOWN`) | unknown: pending until a new image |
| any other error | the same request is retried |
| an image of a later partition epoch | dropped: the image includes it, or it was rejected |
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
    """Result of a proposal after a response."""

    COMMITTED = "committed"
    DROPPED = "dropped"
    UNKNOWN_RESULT = "pending until a new image"
    RETRY = "to be retried"
    STALE = "no longer pending"


@value_class
class IsrProposal:
    """A proposed ISR, based on the ISR of `partition_epoch`."""

    isr: ReplicaIds
    leader_epoch: int
    partition_epoch: int


@value_class
class CommittedIsr:
    """AlterPartition response: the committed ISR and its epochs."""

    isr: ReplicaIds
    leader_epoch: int
    partition_epoch: int


class IsrState:
    """Committed and proposed ISR of one leader over all its leader epochs."""

    def __init__(self, committed: ReplicaIds, leader_epoch: int, partition_epoch: int) -> None:
        self.committed = committed
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.proposal: IsrProposal | None = None
        """Pending: no response yet, or a new image has to show the result."""

    @property
    def maximal(self) -> ReplicaIds:
        if self.proposal is None:
            return self.committed
        return self.committed | self.proposal.isr

    def propose(self, in_sync: ReplicaIds) -> IsrProposal:
        """Begin a proposal. Raises ValueError while another one is pending."""
        if self.proposal is not None:
            raise ValueError(f"{self.proposal} is pending")
        self.proposal = IsrProposal(in_sync, self.leader_epoch, self.partition_epoch)
        return self.proposal

    def adopt(self, committed: ReplicaIds, leader_epoch: int, partition_epoch: int) -> bool:
        """Take over the ISR of an image. Returns False, without a change, if the image is behind.

        An image of the same epochs keeps the proposal: the proposal was made with that image known,
        and may still be committed.
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
        """Handle the response, as in the table. STALE: `proposal` is no longer the pending one."""
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
