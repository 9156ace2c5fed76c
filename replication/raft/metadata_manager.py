"""The node's metadata: recovers it, joins the quorum, commits records, and publishes images.

`image` contains committed records only. It and its listeners change in log order, synchronously. Only
the active controller commits: the leader of the quorum, after `ControllerFailover` has made it so. A
failed write or flush is final: `failed` is set and the node must stop.

    start:    format if new → recover → snapshot + log → image → vote → activation records
    commit:   operation → newest image → append → flush → high watermark → listeners
    follow:   fetch → append → flush → high watermark → replay → image → listeners

A single voter is active when `start` returns. Otherwise `run` drives the quorum
(`raft_client_driver.py`) and replays committed records (`metadata_loader.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any, TypeVar

import trio

from odradek.replication.controller.controller_result import ControllerResult
from odradek.replication.controller.features import KRAFT_VERSION
from odradek.replication.controller.image import ControllerImage, InvalidMetadata, MetadataImage
from odradek.replication.raft.bootstrap import read_bootstrap_records
from odradek.replication.raft.controller_claim import ControllerClaim
from odradek.replication.raft.controller_failover import ControllerFailover, write_no_op_records
from odradek.replication.raft.errors import KRaftVersionChangeRejected, NotController
from odradek.replication.raft.fetch_handler import FetchHandler
from odradek.replication.raft.messages import RaftRequest, RaftResponse
from odradek.replication.raft.metadata_committer import MetadataCommitter
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
from odradek.seams.values import value_class
from odradek.storage.errors import DiskFull, LogFailed, NoDescriptors

log = logging.getLogger("odradek.metadata")

T = TypeVar("T")


@value_class
class MetadataSettings:
    """Configs of the metadata log, the quorum and the active controller.

    `max_idle_ms` is `metadata.max.idle.interval.ms`: how often the active controller writes a
    NoOpRecord if other nodes fetch from it; 0 disables this. A new cluster stores the static
    `min_insync_replicas` as its cluster-level config (KIP-966).
    """

    log: MetadataLogSettings = field(default_factory=MetadataLogSettings)
    quorum: QuorumSettings = field(default_factory=QuorumSettings)
    max_idle_ms: int = 500
    min_insync_replicas: int = 1


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
        member: QuorumMember,
        *,
        channel: NetworkChannel | None = None,
        settings: MetadataSettings | None = None,
        on_full: Callable[[OSError], None] = lambda error: None,
        find_partitions: Callable[[], Path | None] = lambda: None,
    ) -> None:
        """`channel` sends requests to the other nodes; None for a quorum of this node alone.

        `on_full` is called when a commit is rejected because the disk is full. `find_partitions`
        returns a log directory of this node that contains partitions, or None; with one, no new
        quorum is created. Both are called from any thread.
        """
        settings = settings or MetadataSettings()
        self.node_id = member.node_id
        self.cluster_id = member.cluster_id
        self.failed = trio.Event()
        self.incarnation_id = seams.entropy.uuid()
        """Incarnation id of this controller's registration; a new one at each start."""
        self._seams = seams
        self._directory = directory
        self._settings = settings
        self._quorum_settings = replace(
            settings.quorum, cluster_id=member.cluster_id, can_become_voter=member.can_become_voter
        )
        self._find_partitions = find_partitions
        self._channel = channel
        self._member = member
        self._log = MetadataLog(seams.files, directory, seams.clock, settings.log, on_full)
        self._state = MetadataState()
        self._driver: RaftClientDriver | None = None
        self._claim = ControllerClaim()
        self._committer = MetadataCommitter(self._state, self._log, self._claim)
        self._closed = False

    # State of the cluster and the quorum

    @property
    def failure(self) -> Exception | None:
        """Why the metadata log is offline; None while it is online."""
        return self._state.failure

    @property
    def image(self) -> MetadataImage:
        """The committed metadata image."""
        return self._state.image

    @property
    def leader_id(self) -> int:
        """Node id of the quorum's leader; -1 if unknown."""
        return -1 if self._driver is None else self._driver.raft_client.leader_id

    @property
    def leader_epoch(self) -> int:
        return 0 if self._driver is None else self._driver.raft_client.epoch

    @property
    def leader_address(self) -> tuple[str, int] | None:
        """Host and port of the leader's controller listener; None if this node leads or no
        leader is known."""
        if self._driver is None or self.leader_id == self.node_id:
            return None
        endpoints = self._driver.raft_client.leader_endpoints
        named = [each for each in endpoints if each.listener == self._member.controller_listener]
        for endpoint in named or endpoints:
            return endpoint.host, endpoint.port
        return None

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller."""
        return self._claim.is_active

    @property
    def kraft_version(self) -> int:
        return 0 if self._driver is None else self._driver.raft_client.kraft_version

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
            self._find_partitions,
        )
        self._state.load(opened.image, opened.transactions, opened.applied_bytes)
        if not opened.is_only_voter and self._channel is None:
            raise opened.other_voters_error()
        self._drive(opened)
        assert self._driver is not None
        await self._driver.start()
        if opened.is_only_voter:
            await self._failover.take_over()
            await self._committer.wait_until_committed(self._state.newest.offset + 1)

    def _drive(self, opened: RecoveredQuorum) -> None:
        self._log_writer = MetadataLogWriter(self._seams, self._log, self._blocking)
        raft_client = RaftClient(
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
            raft_client,
            self._log_writer,
            node_id=self.node_id,
            channel=self._channel,
            listener=self,
        )
        self._claim.driver = self._driver
        self._failover = ControllerFailover(
            self._driver,
            self._log,
            self._committer,
            registration=self.controller_registration,
            read_bootstrap=self._read_bootstrap,
            min_insync_replicas=self._settings.min_insync_replicas,
        )
        self._fetches = FetchHandler(self._driver, self._log, self._quorum_settings, self._blocking)
        self._snapshotting = SnapshotGenerator(
            self._state,
            self._log,
            opened.history,
            self._settings.log,
            clock=self._seams.clock,
            blocking=self._blocking,
            log_writer=self._log_writer,
        )

    async def wait_until_caught_up(self) -> None:
        """Wait until the image contains everything committed at the first known high watermark.

        Raises LogFailed.
        """
        driver = self._running()
        while driver.raft_client.high_watermark < 0:
            self._committer.check_online()
            await driver.wait_for_event()
        await self.wait_for_offset(driver.raft_client.max_reported_high_watermark - 1)

    async def wait_for_offset(self, offset: int) -> None:
        """Wait until `image` contains the record at `offset`."""
        await self._state.wait_for_offset(offset)

    # Deciding and committing

    async def perform(self, operation: Callable[[MetadataImage], ControllerResult[T]]) -> T:
        """Run an operation on the newest image, commit its records, and return its result; see
        `MetadataCommitter.perform`."""
        return await self._committer.perform(operation)

    async def commit(self, records: Sequence[Any]) -> int:
        """Commit the given records; returns the last offset. Raises what `perform` raises."""
        return await self._committer.commit(records)

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

    @property
    def controller_registration(self) -> ControllerImage:
        """Registration of this controller (KIP-919)."""
        return self._member.registration(self.incarnation_id)

    # Callbacks of the driver (RaftListener)

    def committed(self, high_watermark: int) -> None:
        self._state.committed(high_watermark)

    def control_appended(self) -> None:
        if self.is_active:
            self._state.control_appended(
                self._log.end_offset - 1, self.leader_epoch, self._log.appended_ms
            )

    def quorum_changed(self) -> None:
        if self._claim.renounce_if_lost():
            self._state.step_down(NotController("this node ceased to be the active controller"))
            self._claim.notify()
        self._claim.check_leader()
        self._snapshotting.log_has_grown()

    def quorum_failed(self, error: Exception) -> None:
        if self._state.failure is None:
            self._state.failure = error
            log.critical("the metadata log in %s failed: %s", self._directory, error)
        self._state.step_down(LogFailed(f"the metadata log is offline: {error}"))
        self.failed.set()
        if self._claim.renounce_if_lost():
            self._claim.notify()

    # Requests of other nodes and of operators

    async def handle_request(self, request: RaftRequest) -> RaftResponse:
        """Handle a request of another node of the quorum, including the records of a fetch.

        A Fetch waits up to its max wait time, a voter change until it is committed. Raises
        NotController before `start`, LogFailed once the log is offline.
        """
        self._running()
        return await self._fetches.handle_request(request)

    async def upgrade_quorum(self, kraft_version: int, *, validate_only: bool = False) -> None:
        """Raise kraft.version. Raises KRaftVersionChangeRejected and what `perform` raises."""
        self._committer.check_active()
        refusal = await self._running().upgrade(kraft_version, validate_only=validate_only)
        if refusal is not None:
            raise KRaftVersionChangeRejected(refusal.error, refusal.message)
        await self._committer.wait_until_committed(self._log.end_offset)

    # Background tasks

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the quorum, the metadata loader and the snapshot generator until cancelled."""
        driver = self._running()
        async with trio.open_nursery() as nursery:
            await nursery.start(driver.run)
            nursery.start_soon(self._replay_committed)
            nursery.start_soon(self._snapshotting.run)
            nursery.start_soon(
                write_no_op_records,
                self._committer,
                self._seams.clock,
                self._settings.max_idle_ms,
            )
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                if not driver.raft_client.is_only_voter:  # pending commits cannot complete any more
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
                    await self._failover.take_over()
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
                async with self._log_writer.flushing:
                    if self.failure is None:
                        await self._blocking(self._log.close)
            except (DiskFull, NoDescriptors, LogFailed) as error:
                self.quorum_failed(error)

    def _running(self) -> RaftClientDriver:
        if self._driver is None:
            raise NotController("this node has not joined the metadata quorum yet")
        return self._driver

    async def _read_bootstrap(self) -> Sequence[Any]:
        records: list[Any] = await self._blocking(
            read_bootstrap_records, self._seams.files, self._directory
        )
        return records

    async def _blocking(self, fn: Callable[..., T], *args: Any) -> T:
        return await self._seams.offload.run(fn, *args, lane=str(self._directory))
