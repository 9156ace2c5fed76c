"""Broker registration, heartbeats and periodic tasks of the active controller (Kafka's
`QuorumController`).

While this node is the active controller it fences brokers whose session has expired (KIP-631),
elects leaders for leaderless partitions, restores preferred leaders
(`auto.leader.rebalance.enable`), and runs unclean elections where they are allowed. Work that an
earlier controller or a failed commit left is found in the image. Sessions are kept for one term as
active controller only.

`replication/raft/controller_failover.py` makes a node the active controller, and
`replication/raft/metadata_committer.py` appends the records of operations.

A node that is its whole cluster (`is_whole_cluster`) sends no heartbeats and has no session.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Protocol, TypeVar

import trio

from odradek.protocol.errors import KafkaError
from odradek.replication.controller.controller_result import ControllerResult
from odradek.replication.controller.image import MetadataDelta, MetadataImage
from odradek.replication.controller.leader_and_isr_updates import leads_any_partition
from odradek.replication.raft.errors import NotController
from odradek.seams.containment import Containment

if TYPE_CHECKING:
    from odradek.broker.config.server_config import ServerConfig
    from odradek.replication.controller.broker_heartbeat_manager import BrokerHeartbeatManager
    from odradek.replication.controller.broker_heartbeats import BrokerHeartbeat, HeartbeatResponse
    from odradek.replication.controller.broker_registration import BrokerRegistration
    from odradek.replication.controller.image import BrokerImage
    from odradek.replication.controller.partition_update_batches import PartitionUpdateBatches
    from odradek.replication.raft.quorum_info import QuorumInfo
    from odradek.seams.clock import Clock

log = logging.getLogger("odradek.controller")

T = TypeVar("T")

PAUSE_SECONDS = 0.5
"""Retry interval after a change that could not be committed."""
LEADERLESS_CHECK_SECONDS = 10.0
"""Interval between checks for leaderless partitions that can have a leader."""


class ControllerMetadataManager(Protocol):
    """The part of MetadataManager that the controller uses."""

    node_id: int
    cluster_id: str

    @property
    def image(self) -> MetadataImage: ...

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller."""
        ...

    @property
    def quorum(self) -> QuorumInfo: ...

    def on_active(self, callback: Callable[[bool], None]) -> object:
        """Call back when this node becomes the active controller, and when it stops being it."""
        ...

    def subscribe(self, listener: Callable[[MetadataDelta], None]) -> object: ...

    async def perform(self, operation: Callable[[MetadataImage], ControllerResult[T]]) -> T: ...


def is_whole_cluster(image: MetadataImage, voters: Iterable[int], node_id: int) -> bool:
    """Whether the node is the only voter and the only registered node."""
    me = {node_id}
    return set(voters) == me and image.brokers.keys() <= me and image.controllers.keys() <= me


class QuorumController:
    """Serves registrations and heartbeats, and runs the controller's periodic tasks."""

    def __init__(
        self, metadata: ControllerMetadataManager, clock: Clock, config: ServerConfig
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self._config = config
        self._sessions: BrokerHeartbeatManager | None = None
        self._role_changed = trio.Event()
        """Set when the active role, or whether other nodes exist, changes."""
        self._heartbeat_received = trio.Event()
        self._is_whole_cluster = True
        self._tasks: Containment[str] = Containment(
            "the controller",
            consequence="it is attempted again in the next round",
            expected=(KafkaError,),
        )
        metadata.on_active(self._active)
        metadata.subscribe(self._metadata_changed)

    @property
    def is_whole_cluster(self) -> bool:
        voters = (voter.id for voter in self._metadata.quorum.voters)
        return is_whole_cluster(self._metadata.image, voters, self._metadata.node_id)

    @property
    def unclean_election(self) -> bool:
        """The default of `unclean.leader.election.enable`."""
        return self._config.get_bool("unclean.leader.election.enable")

    @property
    def sessions(self) -> BrokerHeartbeatManager:
        """Broker sessions of this term. Raises NotController."""
        if not self._metadata.is_active:
            raise NotController("this node is not the active controller")
        if self._sessions is None:
            from odradek.replication.controller.broker_heartbeat_manager import (
                BrokerHeartbeatManager,
            )

            timeout_ms = self._config.get_int("broker.session.timeout.ms")
            self._sessions = BrokerHeartbeatManager(
                self._metadata.image, self._now_ms(), timeout_ms=timeout_ms
            )
        return self._sessions

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    # Requests of brokers

    async def register(self, registration: BrokerRegistration) -> int:
        """Register a broker; returns its epoch. Raises the errors of `register_broker_session`,
        and NotController."""
        from odradek.replication.controller import partition_update_batches
        from odradek.replication.controller.broker_heartbeats import register_broker_session

        image, unclean = self._metadata.image, self.unclean_election
        existing = image.brokers.get(registration.id)
        if existing is not None and not self.sessions.holds_id(existing, self._now_ms()):
            await self._commit_first_if_large(
                partition_update_batches.update_for_previous_incarnation(
                    image, registration, unclean_election=unclean
                )
            )
        return await self._metadata.perform(
            lambda image: register_broker_session(
                image,
                self.sessions,
                registration,
                now_ms=self._now_ms(),
                unclean_election=unclean,
            )
        )

    async def heartbeat(self, heartbeat: BrokerHeartbeat) -> HeartbeatResponse:
        """Process a heartbeat. Raises the errors of `process_broker_heartbeat`, and
        NotController."""
        from odradek.replication.controller.broker_heartbeats import process_broker_heartbeat
        from odradek.replication.controller.partition_update_batches import PARTITIONS_PER_BATCH

        before = self._metadata.image.brokers.get(heartbeat.broker_id)
        if before is not None and before.epoch == heartbeat.broker_epoch:
            await self._move_partitions_before_fencing(before, heartbeat)
        response = await self._metadata.perform(
            lambda image: process_broker_heartbeat(
                image,
                self.sessions,
                heartbeat,
                now_ms=self._now_ms(),
                unclean_election=self.unclean_election,
                at_once=PARTITIONS_PER_BATCH,
            )
        )
        self._heartbeat_received.set()
        if before is not None:
            await self._update_partitions_after_heartbeat(before)
        return response

    async def _move_partitions_before_fencing(
        self, broker: BrokerImage, heartbeat: BrokerHeartbeat
    ) -> None:
        """Move partitions off a broker or its directories before it is marked fenced or offline."""
        from odradek.replication.controller import partition_update_batches

        image, unclean = self._metadata.image, self.unclean_election
        failed = [each for each in broker.directories if each in heartbeat.offline]
        if failed:
            await self._commit_first_if_large(
                partition_update_batches.remove_from_offline_directories(
                    image, broker.id, failed, unclean_election=unclean
                )
            )
        goes = heartbeat.want_shut_down and not leads_any_partition(image, broker.id)
        if not broker.fenced and (heartbeat.want_fence or goes):
            await self._commit_first_if_large(
                partition_update_batches.remove_from_isrs(
                    image, broker.id, unclean_election=unclean
                )
            )

    async def _update_partitions_after_heartbeat(self, before: BrokerImage) -> None:
        """Update the remaining partitions after a broker was unfenced or began a controlled
        shutdown."""
        from odradek.replication.controller import partition_update_batches

        image, unclean = self._metadata.image, self.unclean_election
        broker = image.brokers.get(before.id)
        if broker is None:
            return
        if before.fenced and not broker.fenced:
            await self._commit_batches(
                partition_update_batches.elect_for_leaderless_partitions(
                    image, unclean_election=unclean
                )
            )
        if broker.in_controlled_shutdown and not broker.fenced:
            left = partition_update_batches.remove_from_isrs(
                image, broker.id, unclean_election=unclean
            )
            if left.keys:
                await self._commit_batches(left)
                self.sessions.shutting_down(broker, self._metadata.image.offset)

    async def _commit_first_if_large(self, batches: PartitionUpdateBatches) -> None:
        """Commit the batches beforehand if one operation could not include them all."""
        from odradek.replication.controller.partition_update_batches import PARTITIONS_PER_BATCH

        if len(batches.keys) > PARTITIONS_PER_BATCH:
            await self._commit_batches(batches)

    async def _commit_batches(self, batches: PartitionUpdateBatches) -> None:
        """Commit the batches, with other tasks in between. Raises KafkaError."""
        failures: list[KafkaError] = []

        async def perform(operation: Callable[[MetadataImage], ControllerResult[None]]) -> None:
            try:
                await self._metadata.perform(operation)
            except KafkaError as error:
                failures.append(error)

        async with trio.open_nursery() as commits:
            for operation in batches.operations():
                commits.start_soon(perform, operation)
                await trio.lowlevel.checkpoint()
                if failures:
                    break
        if failures:
            raise failures[0]

    def _active(self, is_active: bool) -> None:
        self._sessions = None
        self._is_whole_cluster = not is_active or self.is_whole_cluster
        self._restart_tasks()

    def _metadata_changed(self, delta: MetadataDelta) -> None:
        """Restart the sessions when other nodes exist, or none any more."""
        if not self._metadata.is_active:
            return
        if not self._is_whole_cluster:
            for broker_id in sorted(delta.changed_brokers):
                _log_change(broker_id, delta)
        if delta.created_topics or delta.deleted_topics:
            _log_topics(delta)
        if delta.changed_brokers or delta.image.controllers is not delta.before.controllers:
            is_whole = self.is_whole_cluster
            if is_whole is not self._is_whole_cluster:
                self._is_whole_cluster, self._sessions = is_whole, None
                self._restart_tasks()

    def _restart_tasks(self) -> None:
        self._role_changed.set()
        self._role_changed = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the periodic tasks while this node is the active controller, until cancelled."""
        task_status.started()
        while True:
            role_changed = self._role_changed
            if not self._metadata.is_active or self._is_whole_cluster:
                await role_changed.wait()
                continue
            async with trio.open_nursery() as term:
                term.start_soon(self._fence_stale_brokers)
                term.start_soon(self._elect_leaders_periodically)
                term.start_soon(self._balance_leaders)
                term.start_soon(self._elect_uncleanly)
                await role_changed.wait()
                term.cancel_scope.cancel()

    async def _fence_stale_brokers(self) -> None:
        while self._metadata.is_active:
            self._heartbeat_received = trio.Event()
            deadline_ms = self.sessions.next_deadline_ms
            if deadline_ms is None:
                await self._heartbeat_received.wait()
            elif (left_ms := deadline_ms - self._now_ms()) > 0:
                await trio.sleep(left_ms / 1000)
                late_ms = self._late_ms
                if self._now_ms() - deadline_ms > late_ms:
                    # This process was suspended: read pending heartbeats first
                    await trio.sleep(late_ms / 1000)
            else:
                await self._log_and_pause_on_error(
                    "fence brokers with expired sessions", self._fence_oldest
                )

    @property
    def _late_ms(self) -> int:
        """Tolerated delay of fencing; Kafka checks eight times per session."""
        return self._config.get_int("broker.session.timeout.ms") // 8

    async def _fence_oldest(self) -> None:
        """Fence the broker whose session expired first; its partitions are moved before."""
        from odradek.replication.controller import partition_update_batches
        from odradek.replication.controller.broker_heartbeats import fence_stale_broker

        image, unclean = self._metadata.image, self.unclean_election
        broker_id = self.sessions.oldest_expired(self._now_ms())
        if broker_id is not None:
            await self._commit_first_if_large(
                partition_update_batches.remove_from_isrs(
                    image, broker_id, unclean_election=unclean
                )
            )
        fenced = await self._metadata.perform(
            lambda image: fence_stale_broker(
                image, self.sessions, now_ms=self._now_ms(), unclean_election=unclean
            )
        )
        if fenced != broker_id:  # it sent a heartbeat in the meantime, and can lead some again
            await self._elect_leaders_for_leaderless()

    async def _elect_leaders_periodically(self) -> None:
        """Elect leaders for leaderless partitions at failover and periodically."""
        while True:
            await self._log_and_pause_on_error(
                "elect leaders for leaderless partitions", self._elect_leaders_for_leaderless
            )
            await trio.sleep(LEADERLESS_CHECK_SECONDS)

    async def _elect_leaders_for_leaderless(self) -> None:
        from odradek.replication.controller import partition_update_batches

        image, unclean = self._metadata.image, self.unclean_election
        await self._commit_batches(
            partition_update_batches.elect_for_electable_partitions(image, unclean_election=unclean)
        )

    async def _balance_leaders(self) -> None:
        from odradek.replication.controller.leader_election import balance_leaders

        while True:
            await trio.sleep(self._config.get_int("leader.imbalance.check.interval.seconds"))
            if self._config.get_bool("auto.leader.rebalance.enable"):
                await self._repeat_until_done("elect preferred leaders", balance_leaders)

    async def _elect_uncleanly(self) -> None:
        from odradek.replication.controller.leader_election import elect_uncleanly

        while True:
            await trio.sleep(self._config.get_int("unclean.leader.election.interval.ms") / 1000)
            await self._repeat_until_done(
                "elect leaders uncleanly",
                lambda image: elect_uncleanly(image, unclean_election=self.unclean_election),
            )

    async def _repeat_until_done(
        self, task: str, operation: Callable[[MetadataImage], ControllerResult[bool]]
    ) -> None:
        """Repeat an operation until it returns False, so that no work remains."""
        while await self._log_and_pause_on_error(task, lambda: self._metadata.perform(operation)):
            await trio.lowlevel.checkpoint()

    async def _log_and_pause_on_error(
        self, task: str, work: Callable[[], Awaitable[T]]
    ) -> T | None:
        """Return None after a pause if the change could not be committed. `task` names it in the log."""
        is_done = False

        async def run() -> T:
            nonlocal is_done
            result = await work()
            is_done = True
            return result

        result = None
        try:
            result = await self._tasks.run(f"the attempt to {task}", run)
        except KafkaError as error:
            log.warning("Unable to %s, retrying: %s", task, error)
        if not is_done:
            await trio.sleep(PAUSE_SECONDS)
        return result


def _log_topics(delta: MetadataDelta) -> None:
    """Log created and deleted topics; a recreated one is both."""
    if log.isEnabledFor(logging.INFO):
        for topic in delta.deleted_topics.values():
            log.info("Deleted topic %s with ID %s", topic.name, topic.id)
        for topic in delta.created_topics.values():
            count = len(topic.partitions)
            log.info("Created topic %s with ID %s and %d partitions", topic.name, topic.id, count)


def _log_change(broker_id: int, delta: MetadataDelta) -> None:
    """Log registration, fencing and shutdown of a broker."""
    now = delta.image.brokers.get(broker_id)
    was = delta.before.brokers.get(broker_id)
    if now is None:
        log.info("broker %d is unregistered", broker_id)
    elif was is None or was.epoch != now.epoch:
        log.info("broker %d is registered with epoch %d", broker_id, now.epoch)
    elif was.fenced is not now.fenced:
        log.info("broker %d is %s", broker_id, "fenced" if now.fenced else "unfenced")
    elif now.in_controlled_shutdown and not was.in_controlled_shutdown:
        log.info("broker %d has requested a controlled shutdown", broker_id)
