"""AlterPartitionManager: sends the leaders' proposed ISRs to the controller in AlterPartition
(KIP-497).

One request is in flight at a time. Proposals that arrive meanwhile go into the next requests, each
limited to what the controller decides in about a millisecond. Only the newest proposal of a
partition counts: a leader makes another one only after the previous one failed. A request without a
response, or with a top-level error, is retried until there is a response, because its result is
unknown otherwise. A proposal is also sent again if its leader fails unexpectedly on the response: the
leader may still have it pending, and must not drop it, because the controller may have committed it.
After an error the next request is delayed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

import trio

from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.partition.isr_state import CommittedIsr
from odradek.seams.containment import Containment
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from odradek.broker.controller.controller_channel import ActiveController
    from odradek.broker.metrics.registry import Metrics
    from odradek.replication.partition.leader_role import OnAlterPartitionResponse
    from odradek.replication.partition.leader_state import AlterPartition

log = logging.getLogger("odradek.replication")

PAUSE_SECONDS = 0.05
"""Delay after a top-level error or an error of a partition."""
TIMEOUT_SECONDS = 30.0
PARTITIONS_AT_ONCE = 30
"""Partitions of one request: encoding, decoding and deciding take about a millisecond each."""

Replica = tuple[UUID, int]
"""Topic id and partition."""


@value_class
class _PendingProposal:
    action: AlterPartition
    responded: OnAlterPartitionResponse


class AlterPartitionManager:
    """Queue of proposed ISRs. `propose` is called on the loop; `run` sends the requests."""

    def __init__(
        self,
        node_id: int,
        broker_epoch: Callable[[], int],
        controller: ActiveController,
        metrics: Metrics,
    ) -> None:
        self._expands = metrics.meter("IsrExpandsPerSec")
        self._shrinks = metrics.meter("IsrShrinksPerSec")
        self._failures = metrics.meter("FailedIsrUpdatesPerSec")
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._controller = controller
        self._waiting: dict[Replica, _PendingProposal] = {}
        self._wanted = trio.Event()
        self._complaint: str | None = None
        self._sending: Containment[str] = Containment(
            "a request", consequence="its proposed ISRs are sent again"
        )
        self._containment: Containment[Replica] = Containment(
            "applying the AlterPartition response",
            name=lambda replica: f"{replica[0]}-{replica[1]}",
            consequence="the proposed ISR is sent again",
        )

    def propose(
        self,
        topic_id: UUID,
        index: int,
        action: AlterPartition,
        responded: OnAlterPartitionResponse,
    ) -> None:
        """Enqueue the proposal, replacing an unsent one of the same partition.

        `responded` is called once, on the loop, with the committed ISR or the error; never for a
        replaced proposal. If it raises an unexpected error, it is called again with the response to
        another request, unless the partition has a newer proposal by then.
        """
        self._waiting[topic_id, index] = _PendingProposal(action, responded)
        self._wanted.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send requests until cancelled."""
        task_status.started()
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            while self._waiting:
                first = list(islice(self._waiting, PARTITIONS_AT_ONCE))
                sent = {each: self._waiting.pop(each) for each in first}
                is_done = await self._sending.run("AlterPartition", self._send_request, sent)
                if is_done is None:  # an unexpected error: the proposals are sent again
                    self._waiting = {**sent, **self._waiting}
                if not is_done:
                    await trio.sleep(PAUSE_SECONDS)

    async def _send_request(self, sent: Mapping[Replica, _PendingProposal]) -> bool:
        """Send one request. Returns whether every partition succeeded."""
        try:
            response = await self._controller.request(
                apis.ALTER_PARTITION, self._request(sent), timeout_s=TIMEOUT_SECONDS
            )
            if response.error_code is not ErrorCode.none:
                raise KafkaError(response.error_code)
        except KafkaError as error:
            if self._complaint != str(error):
                self._complaint = str(error)
                log.warning(
                    "Unable to alter the ISR of %d partitions, retrying: %s", len(sent), error
                )
            self._waiting = {**sent, **self._waiting}
            return False
        self._complaint = None
        responses = {
            (topic.topic_id, each.partition_index): each
            for topic in response.topics
            for each in topic.partitions
        }
        is_done = True
        for replica, proposed in sent.items():
            found = responses.get(replica)
            if found is None:
                is_applied = False
            elif found.error_code is ErrorCode.none:
                now = CommittedIsr(frozenset(found.isr), found.leader_epoch, found.partition_epoch)
                is_applied = self._apply_response(replica, proposed, now)
            else:
                is_applied = self._apply_response(replica, proposed, found.error_code)
                is_done = False
            if not is_applied:
                self._waiting.setdefault(replica, proposed)
                is_done = False
        return is_done

    def _apply_response(
        self, replica: Replica, proposed: _PendingProposal, response: CommittedIsr | ErrorCode
    ) -> bool:
        """Call back the leader. Returns False if it failed with an unexpected error."""

        def apply() -> bool:
            proposed.responded(response)
            return True

        return self._containment.call(replica, apply) is not None

    def isr_updated(self, grown: int | None) -> None:
        """Update the ISR metrics after a proposal.

        `grown` is the number of added replicas (negative: removed). None: the response did not
        commit the proposal (error, retry or unknown result).
        """
        if grown is None:
            self._failures.mark()
        elif grown:
            (self._expands if grown > 0 else self._shrinks).mark()

    def _request(self, sent: Mapping[Replica, _PendingProposal]) -> Mapping[str, Any]:
        """Return the request fields: ISR with broker epochs for version 3 (KIP-903), without for
        version 2."""
        topics: dict[UUID, list[dict[str, Any]]] = {}
        for (topic_id, index), proposed in sent.items():
            action = proposed.action
            topics.setdefault(topic_id, []).append(
                {
                    "partition_index": index,
                    "leader_epoch": action.proposal.leader_epoch,
                    "partition_epoch": action.proposal.partition_epoch,
                    "new_isr": [member for member, _ in action.isr],
                    "new_isr_with_epochs": [
                        {"broker_id": member, "broker_epoch": epoch} for member, epoch in action.isr
                    ],
                    "leader_recovery_state": 0,
                }
            )
        return {
            "broker_id": self._node_id,
            "broker_epoch": self._broker_epoch(),
            "topics": [
                {"topic_id": topic_id, "partitions": partitions}
                for topic_id, partitions in topics.items()
            ],
        }
