"""What leaders propose to the controller of their in-sync sets: AlterPartition (KIP-497).

One request is under way at a time; what is proposed meanwhile goes with the next ones, no more in each
than the controller decides in a moment. Of a partition only the newest proposal counts: a leader makes
another one when it knows that the last has come to nothing. A request that was not answered, or refused
as a whole, is made again until it is: what became of it can't be known otherwise. After an error the next
one waits a moment.
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
from odradek.seams.values import value_class

if TYPE_CHECKING:
    from odradek.broker.controller.controller_channel import ActiveController
    from odradek.broker.metrics.registry import Metrics
    from odradek.replication.partition.leader_state import AlterPartition

log = logging.getLogger("odradek.replication")

PAUSE_SECONDS = 0.05
"""After an error, of the whole request or of a partition in it."""
TIMEOUT_SECONDS = 30.0
PARTITIONS_AT_ONCE = 30
"""In one request: about a millisecond each to write, to read, to decide."""

Replica = tuple[UUID, int]
"""(topic id, partition)"""
OnAlterPartitionResponse = Callable[[CommittedIsr | ErrorCode], None]


@value_class
class _Proposed:
    action: AlterPartition
    responded: OnAlterPartitionResponse


class AlterPartitionManager:
    """See the module. `propose` is called on the loop; `run` is the task that asks."""

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
        self._waiting: dict[Replica, _Proposed] = {}
        self._wanted = trio.Event()
        self._complaint: str | None = None

    def propose(
        self,
        topic_id: UUID,
        index: int,
        action: AlterPartition,
        responded: OnAlterPartitionResponse,
    ) -> None:
        """Ask the controller for it. `responded` is called once, on the loop, with what is committed
        or why it is not; never, if another proposal for the partition comes before this one was sent.
        """
        self._waiting[topic_id, index] = _Proposed(action, responded)
        self._wanted.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Ask, until cancelled."""
        task_status.started()
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            while self._waiting:
                first = list(islice(self._waiting, PARTITIONS_AT_ONCE))
                if not await self._ask({each: self._waiting.pop(each) for each in first}):
                    await trio.sleep(PAUSE_SECONDS)

    async def _ask(self, sent: Mapping[Replica, _Proposed]) -> bool:
        """Whether the controller did all of it."""
        try:
            response = await self._controller.request(
                apis.ALTER_PARTITION, self._request(sent), timeout_s=TIMEOUT_SECONDS
            )
            if response.error_code is not ErrorCode.none:
                raise KafkaError(response.error_code)
        except KafkaError as error:
            if self._complaint != str(error):
                self._complaint = str(error)
                log.warning("in-sync sets of %d partitions do not change yet: %s", len(sent), error)
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
                self._waiting.setdefault(replica, proposed)
            elif found.error_code is ErrorCode.none:
                now = CommittedIsr(frozenset(found.isr), found.leader_epoch, found.partition_epoch)
                proposed.responded(now)
                continue
            else:
                proposed.responded(found.error_code)
            is_done = False
        return is_done

    def count(self, grown: int | None) -> None:
        """A leader's in-sync set grew by so many with what it proposed (fewer than 0: it shrank), or, for
        None, an answer says that it did not change."""
        if grown is None:
            self._failures.mark()
        elif grown:
            (self._expands if grown > 0 else self._shrinks).mark()

    def _request(self, sent: Mapping[Replica, _Proposed]) -> Mapping[str, Any]:
        """With the epochs of version 3 (KIP-903), and the members alone for version 2."""
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
