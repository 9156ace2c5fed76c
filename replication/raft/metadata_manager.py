"""The metadata log and the image: decides, commits and publishes changes of the cluster's state.

Operations run one after the other on the newest image, which includes uncommitted records. Their
records are appended at once; the caller gets the result when they are committed. Concurrent commits
share a flush. `image` contains committed records only; it and its listeners are updated in log
order, synchronously.

Only the active controller runs operations: the leader of the quorum, after its image contains all
records committed before its epoch and it has written the activation records. An appended commit is
not cancelled. If the node loses its epoch first, the outcome is unknown and the caller gets
NOT_CONTROLLER.

A failed write or flush is final: `failed` is set and the node must stop.

    start:    format if new → recover → snapshot + log → image → vote → activation records
    commit:   decide → apply to the newest image → append → flush → high watermark → listeners
    follow:   fetch → append → flush → high watermark → replay → image → listeners

A single voter is active when `start` returns. Otherwise `run` drives the quorum
(`raft_client_driver.py`) and replays committed records (`metadata_loader.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

import trio

from odradek.protocol.schemas.serde import encode_metadata_record
from odradek.replication.controller.broker_registration import register_controller
from odradek.replication.controller.controller_result import ControllerResult
from odradek.replication.controller.features import (
    CONTROLLER_REGISTRATION,
    KRAFT_VERSION,
    METADATA_VERSION,
    metadata_version,
    record_version,
)
from odradek.replication.controller.image import (
    ControllerImage,
    Endpoint,
    InvalidMetadata,
    MetadataImage,
)
from odradek.replication.raft.bootstrap import activation_records, read_bootstrap_records
from odradek.replication.raft.controller_failover import ControllerClaim, write_no_op_records
from odradek.replication.raft.errors import NotController, QuorumRefused
from odradek.replication.raft.fetch_handler import FetchHandler
from odradek.replication.raft.messages import Request, Response
from odradek.replication.raft.metadata_batch_loader import MetadataBatchLoader, MetadataTransaction
from odradek.replication.raft.metadata_loader import catch_up
from odradek.replication.raft.metadata_log import MetadataLog, MetadataLogSettings
from odradek.replication.raft.metadata_log_writer import MetadataLogWriter
from odradek.replication.raft.metadata_state import MetadataListener, MetadataState
from odradek.replication.raft.network_channel import NetworkChannel
from odradek.replication.raft.quorum_info import QuorumInfo, describe_quorum
from odradek.replication.raft.quorum_recovery import QuorumMember, RecoveredQuorum, recover_quorum
from odradek.replication.raft.quorum_state import QuorumSettings
from odradek.replication.raft.raft_client import RaftClient
from odradek.replication.raft.raft_client_driver import RaftClientDriver
from odradek.replication.raft.snapshot_generator import SnapshotGenerator
from odradek.replication.raft.snapshots import SnapshotId
from odradek.seams import Seams
from odradek.seams.files import Path
from odradek.storage.errors import DiskFull, LogFailed, NoDescriptors

log = logging.getLogger("odradek.metadata")

T = TypeVar("T")


class MetadataManager:
    """Facade of the metadata quorum. `directory` is the metadata log directory, the parent of
    `__cluster_metadata-0`.

    Listeners are called in commit order, after `image` has changed and before `perform` or `commit`
    returns.
    """

    def __init__(
        self,
        seams: Seams,
        directory: Path,
        *,
        node_id: int,
        cluster_id: str,
        directory_id: UUID,
        controller_listeners: Sequence[Endpoint] = (),
        controller_listener: str = "CONTROLLER",
        voters: Mapping[int, tuple[str, int]] | None = None,
        bootstrap_servers: Sequence[tuple[str, int]] = (),
        may_vote: bool = True,
        channel: NetworkChannel | None = None,
        settings: MetadataLogSettings | None = None,
        quorum_settings: QuorumSettings | None = None,
        max_idle_ms: int = 500,
        min_insync_replicas: int = 1,
        on_full: Callable[[OSError], None] = lambda error: None,
        partitions_are_in: Callable[[], Path | None] = lambda: None,
    ) -> None:
        """`controller_listeners` are where other voters reach this one, `controller_listener` is the
        name of the one that controllers are asked on.

        `voters` are those of controller.quorum.voters (host and port each), `bootstrap_servers` those
        of controller.quorum.bootstrap.servers without this node; without either, and if it `may_vote`,
        this node makes a quorum of its own where there is none. `channel` reaches the others.
        `min_insync_replicas` is the static config, which a new cluster makes its own (KIP-966).
        `max_idle_ms`: an active controller that others follow writes something that often; 0: never.
        `on_full` is called, from any thread, when a commit is refused because the disk is full.
        `partitions_are_in` is a directory that has partitions of this node, if any has: a quorum of its
        own is not begun beside them. From any thread, too.
        """
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.failed = trio.Event()
        self.failure: Exception | None = None
        self.incarnation_id = seams.entropy.uuid()
        """Which this controller registers with, each time it starts another."""
        self._seams = seams
        self._directory = directory
        self._settings = settings or MetadataLogSettings()
        self._quorum_settings = replace(
            quorum_settings or QuorumSettings(), cluster_id=cluster_id, can_become_voter=may_vote
        )
        self._min_insync_replicas = min_insync_replicas
        self._partitions_are_in = partitions_are_in
        self._max_idle_ms = max_idle_ms
        self._controller_listener = controller_listener
        self._channel = channel
        self._member = QuorumMember(
            node_id,
            directory_id,
            tuple(controller_listeners),
            controller_listener,
            static_voters=voters or {},
            is_alone=may_vote and not bootstrap_servers and not set(voters or {}) - {node_id},
            may_vote=may_vote,
        )
        self._log = MetadataLog(seams.files, directory, seams.clock, self._settings, on_full)
        self._state = MetadataState()
        self._driver: RaftClientDriver | None = None
        self._claim = ControllerClaim()
        self._closed = False

    # What the cluster and the quorum are

    @property
    def image(self) -> MetadataImage:
        """The committed metadata image."""
        return self._state.image

    @property
    def leader_id(self) -> int:
        """Node id of the quorum's leader; -1 if unknown."""
        return -1 if self._driver is None else self._driver.quorum.leader_id

    @property
    def leader_epoch(self) -> int:
        return 0 if self._driver is None else self._driver.quorum.epoch

    @property
    def leader_address(self) -> tuple[str, int] | None:
        """Host and port of the leader's controller listener; None if this node leads or no
        leader is known."""
        if self._driver is None or self.leader_id == self.node_id:
            return None
        endpoints = self._driver.quorum.leader_endpoints
        named = [each for each in endpoints if each.listener == self._controller_listener]
        for endpoint in named or endpoints:
            return endpoint.host, endpoint.port
        return None

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller."""
        return self._claim.is_active

    @property
    def kraft_version(self) -> int:
        return 0 if self._driver is None else self._driver.quorum.kraft_version

    @property
    def finalized_features(self) -> dict[str, int]:
        """Finalized feature levels for ApiVersions, with kraft.version if it is not 0."""
        features = dict(self.image.features)
        if self.kraft_version > 0:
            features[KRAFT_VERSION] = self.kraft_version
        return features

    @property
    def high_watermark(self) -> int:
        """End of the committed log, as far as this node knows."""
        return 0 if self._driver is None else self._driver.high_watermark

    @property
    def quorum(self) -> QuorumInfo:
        if self._driver is None:
            return QuorumInfo(-1, 0, 0, 0, (), 0)
        return describe_quorum(self._driver, self._log, wall_ms=self._seams.clock.wall_ms())

    # Starting

    async def start(self) -> None:
        """Recover the log and the image, and join the quorum; a single voter leads when this
        returns.

        Raises InvalidMetadata or InvalidQuorum if the directory cannot be used, OSError or
        LogFailed if it cannot be read or written.
        """
        opened = await recover_quorum(
            self._seams,
            self._directory,
            self._log,
            self._member,
            self._blocking,
            self._partitions_are_in,
        )
        self._state.load(opened.image, opened.transactions, opened.applied_bytes)
        if not opened.is_alone and self._channel is None:
            raise opened.not_alone()
        self._drive(opened)
        assert self._driver is not None
        await self._driver.start()
        if opened.is_alone:
            await self._take_over()
            await self._commit(self._state.newest.offset + 1)

    def _drive(self, opened: RecoveredQuorum) -> None:
        self._changes = MetadataLogWriter(self._seams, self._log, self._blocking)
        quorum = RaftClient(
            self._member.voter,
            self._log,
            opened.history,
            opened.election,
            settings=self._quorum_settings,
            jitter=self._seams.entropy.below,
        )
        self._driver = RaftClientDriver(
            self._seams,
            self._log,
            quorum,
            self._changes,
            node_id=self.node_id,
            channel=self._channel,
            listener=self,
        )
        self._claim.driver = self._driver
        self._fetches = FetchHandler(self._driver, self._log, self._quorum_settings, self._blocking)
        self._snapshotting = SnapshotGenerator(
            self._state,
            self._log,
            opened.history,
            self._settings,
            clock=self._seams.clock,
            blocking=self._blocking,
            changes=self._changes,
        )

    async def wait_until_caught_up(self) -> None:
        """Wait until the image contains everything committed at the first known high watermark.

        Raises LogFailed.
        """
        driver = self._running()
        while driver.quorum.high_watermark < 0:
            self._check_online()
            await driver.wait_for_event()
        await self.wait_for_offset(driver.quorum.max_reported_high_watermark - 1)

    async def wait_for_offset(self, offset: int) -> None:
        """Wait until `image` contains the record at `offset`."""
        await self._state.wait_for_offset(offset)

    # Deciding and committing

    async def perform(self, operation: Callable[[MetadataImage], ControllerResult[T]]) -> T:
        """Run an operation on the newest image, commit its records, and return its result.

        Operations run one after the other and share flushes. Once the records are appended, this
        waits for the commit even if cancelled. Raises what the operation raises (nothing is
        committed then), BatchTooLarge, NotController, LogFailed, and DiskFull or NoDescriptors,
        after which this leader resigns if there is another voter. NotController may also mean that
        the epoch was lost before the commit: its records may or may not be committed. A non-atomic
        result may be committed in part.
        """
        self._check_active()
        plan = operation(self._state.newest)
        try:
            for records in plan.batches():
                self._append(records)
        except (DiskFull, NoDescriptors) as error:
            self._running().resign_after_write_error(error)
            raise
        await self._commit(self._state.newest.offset + 1)
        return plan.result

    async def commit(self, records: Sequence[Any]) -> int:
        """Commit the given records; returns the last offset."""
        return await self.perform(
            lambda image: ControllerResult(records, image.offset + len(records))
        )

    def _check_online(self) -> None:
        if self.failure is not None:
            raise LogFailed(f"the metadata log is offline: {self.failure}")

    def _check_active(self) -> None:
        self._check_online()
        if not self.is_active:
            raise NotController("this node is not the active controller")

    def _append(
        self, records: Sequence[Any], transactions: MetadataTransaction | None = None
    ) -> None:
        """Apply and append records as one batch, or raise and change nothing.

        They are applied first, so that records that contradict the image are never written.
        """
        newest = self._state.newest
        replay = MetadataBatchLoader(newest, keep_records=True, transactions=transactions)
        for record in records:
            replay.apply(record)
        values = [
            encode_metadata_record(record, record_version(record, newest.features))
            for record in records
        ]
        try:
            last, size = self._log.append(values, self.leader_epoch)
        except LogFailed as error:
            self._running().fail(error)
            raise
        replay.offset, replay.epoch = last, self.leader_epoch
        replay.timestamp_ms = self._log.appended_ms
        self._state.appended(replay.finish(), size)

    async def _commit(self, offset: int) -> None:
        """Wait until the high watermark reaches `offset`; flush if no flush is running."""
        driver = self._running()
        if driver.high_watermark >= offset:
            return
        commit = self._state.wait_for(offset)
        with trio.CancelScope(shield=True):
            await driver.flush(offset)
            await commit.over.wait()
        if commit.error is not None:
            raise commit.error

    def subscribe(self, listener: MetadataListener) -> Callable[[], None]:
        """Call `listener` at every commit; returns the function that unsubscribes. Listeners
        must not block or raise."""
        return self._state.subscribe(listener)

    # The active controller

    def on_active(self, callback: Callable[[bool], None]) -> None:
        """Call `callback` on the event loop when this node becomes the active controller (True)
        and stops being it (False). It must not raise."""
        self._claim.subscribe(callback)

    def on_leader(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the event loop when `leader_address` or `is_active` may have
        changed."""
        self._claim.on_leader(callback)

    async def _take_over(self) -> None:
        """Controller failover: claim the role and write the activation records."""
        driver, state = self._running(), self._state
        epoch = driver.quorum.epoch
        bootstrap: Sequence[Any] = ()
        if METADATA_VERSION not in state.image.features:  # else the log has begun with them
            bootstrap = await self._blocking(
                read_bootstrap_records, self._seams.files, self._directory
            )
        if not driver.leads or driver.quorum.epoch != epoch:
            return
        state.take_over(self._log.end_offset, epoch, self._log.appended_ms)
        self._claim.claim(epoch)
        in_transaction = state.transactions.open
        records = activation_records(
            state.newest,
            bootstrap,
            in_transaction=in_transaction,
            min_insync_replicas=self._min_insync_replicas,
        )
        if records:
            self._append(records, MetadataTransaction(is_open=in_transaction))
        if metadata_version(state.newest.features) >= CONTROLLER_REGISTRATION:
            mine = self.controller_registration
            if state.newest.controllers.get(self.node_id) != mine:
                self._append(register_controller(state.newest, mine).records)
        state.committed(driver.high_watermark)
        driver.wake_waiters()
        self._claim.notify()

    @property
    def controller_registration(self) -> ControllerImage:
        """Registration of this controller (KIP-919)."""
        return self._member.registration(self.incarnation_id)

    # What the driver tells

    def committed(self, high_watermark: int) -> None:
        self._state.committed(high_watermark)

    def control_appended(self) -> None:
        if self.is_active:
            log = self._log
            self._state.control_appended(log.end_offset - 1, self.leader_epoch, log.appended_ms)

    def quorum_changed(self) -> None:
        if self._claim.renounce_if_lost():
            self._state.step_down(NotController("this node ceased to be the active controller"))
            self._claim.notify()
        self._claim.check_leader()
        self._snapshotting.log_has_grown()

    def quorum_failed(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
            log.critical("the metadata log in %s failed: %s", self._directory, error)
        self._state.step_down(LogFailed(f"the metadata log is offline: {error}"))
        self.failed.set()
        if self._claim.renounce_if_lost():
            self._claim.notify()

    # What others ask, what the operator asks

    async def respond(self, request: Request) -> Response:
        """Handle a request of another node of the quorum, including the records of a fetch.

        A Fetch waits up to its max wait time, a voter change until it is committed. Raises
        NotController before `start`, LogFailed once the log is offline.
        """
        self._running()
        return await self._fetches.respond(request)

    async def upgrade_quorum(self, kraft_version: int, *, validate_only: bool = False) -> None:
        """Raise kraft.version. Raises QuorumRefused and what `perform` raises."""
        self._check_active()
        refusal = await self._running().upgrade(kraft_version, validate_only=validate_only)
        if refusal is not None:
            raise QuorumRefused(refusal.error, refusal.message)
        await self._commit(self._log.end_offset)

    # In the background

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the quorum, the metadata loader and the snapshot generator until cancelled."""
        driver = self._running()
        async with trio.open_nursery() as nursery:
            await nursery.start(driver.run)
            nursery.start_soon(self._replay_committed)
            nursery.start_soon(self._snapshotting.run)
            nursery.start_soon(
                write_no_op_records,
                self,
                self._state,
                self._claim,
                self._seams.clock,
                self._max_idle_ms,
            )
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                if not driver.quorum.is_alone:  # nobody commits any more what others wait for
                    self._claim.stop()
                    self.quorum_changed()

    async def _replay_committed(self) -> None:
        """Replay committed records while another node is active; take over when this node may."""
        driver, state = self._running(), self._state
        while self.failure is None:
            try:
                if self.is_active:
                    await self._claim.wait_for_change()
                elif state.image.offset + 1 < driver.high_watermark:
                    await catch_up(state, self._log, driver.high_watermark, self._blocking)
                    self._snapshotting.log_has_grown()
                elif self._claim.can_claim(state.image.offset):
                    await self._take_over()
                else:
                    await driver.wait_for_progress()
            except (DiskFull, NoDescriptors) as error:
                log.error(
                    "this node leads the quorum but cannot become the active controller: %s", error
                )
                await driver.resign_in_background()
            except (InvalidMetadata, LogFailed, OSError) as error:
                driver.fail(error)

    async def take_snapshot(self) -> SnapshotId | None:
        """Write a snapshot of the committed image; None if it exists already."""
        return await self._snapshotting.take()

    # Ending

    async def shut_down(self, timeout_s: float) -> None:
        """Resign and wait up to `timeout_s` for another leader. `run` continues; call `close`
        afterwards."""
        if self._driver is not None and self.failure is None:
            with trio.move_on_after(timeout_s):
                await self._driver.shut_down()

    async def close(self) -> None:
        """Flush and close the log; `failed` is set if that fails."""
        driver = self._driver
        if driver is None or self._closed:
            return
        self._closed = True
        with trio.CancelScope(shield=True):
            try:
                if driver.leads:
                    await driver.flush(self._log.end_offset)
                    await driver.resign()
                async with self._changes.flushing:
                    if self.failure is None:
                        await self._blocking(self._log.close)
            except (DiskFull, NoDescriptors, LogFailed) as error:
                self.quorum_failed(error)

    def _running(self) -> RaftClientDriver:
        if self._driver is None:
            raise NotController("this node has not joined the metadata quorum yet")
        return self._driver

    async def _blocking(self, fn: Callable[..., T], *args: Any) -> T:
        return await self._seams.offload.run(fn, *args, lane=str(self._directory))
