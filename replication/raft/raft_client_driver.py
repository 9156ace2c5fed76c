"""Executes the Raft state machine (Kafka's `KafkaRaftClientDriver`): one event at a time, with all
its actions.

An event is a request, a response, an expired timeout or a completed flush. `_event` calls the state
machine and executes the actions before the next event. A started event is never cancelled, so a
vote is durable before it is sent. If the disk fails, the node stops (`fail`).

Requests (`SendRequest`) go to the `NetworkChannel`, one at a time per node; a newer request cancels the
previous one. Responses to inbound requests (`SendResponse`) may follow long after the request, as for voter
changes.

The `RaftListener` holds the cluster's state and is notified of each step on the event loop.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import Protocol

import trio
from trio.lowlevel import ParkingLot

from odradek.protocol.errors import ErrorCode
from odradek.replication.raft.actions import (
    AdvanceHighWatermark,
    AppendFetchedRecords,
    AppendLeaderChangeMessage,
    AppendSnapshotBytes,
    AppendVotersRecord,
    CreateSnapshotFile,
    InstallSnapshot,
    PersistElectionState,
    RaftAction,
    SendRequest,
    SendResponse,
    TruncateLog,
)
from odradek.replication.raft.messages import RaftRequest, RaftResponse
from odradek.replication.raft.metadata_log import MetadataLog
from odradek.replication.raft.metadata_log_writer import MetadataLogWriter
from odradek.replication.raft.network_channel import NetworkChannel, NodeNotRunning, RequestFailed
from odradek.replication.raft.quorum_state import QuorumRole
from odradek.replication.raft.raft_client import RaftClient
from odradek.replication.raft.request_manager import BOOTSTRAP_SERVER
from odradek.replication.raft.voter_changes import VoterChangeError
from odradek.replication.raft.voter_history import ControlChange
from odradek.seams import Seams
from odradek.seams.locks import PromptLock
from odradek.seams.values import state_class
from odradek.storage.errors import DiskFull, LogFailed, NoDescriptors

log = logging.getLogger("odradek.metadata")

Actions = Sequence[RaftAction]
_NON_BLOCKING = (
    SendRequest,
    SendResponse,
    AdvanceHighWatermark,
    AppendLeaderChangeMessage,
    AppendVotersRecord,
)


class RaftListener(Protocol):
    """Callbacks of the listener of the metadata state."""

    def committed(self, high_watermark: int) -> None:
        """The high watermark has advanced."""
        ...

    def control_appended(self) -> None:
        """This leader has appended control records."""
        ...

    def quorum_changed(self) -> None:
        """An event is complete: role, epoch or leader may have changed."""
        ...

    def quorum_failed(self, error: Exception) -> None:
        """The metadata log has failed: the node must stop."""
        ...


@state_class
class _PendingResponse:
    """An inbound request without a response; the request's identity is the key."""

    request: RaftRequest
    response: RaftResponse | None = None
    responded: trio.Event | None = None
    """Set if the caller waits for a later response."""


@state_class
class _NodeQueue:
    """Outbound requests to one node: only the newest is sent, the previous one is cancelled."""

    next: SendRequest | None = None
    wake_up: ParkingLot = field(default_factory=ParkingLot)
    sending: trio.CancelScope = field(default_factory=trio.CancelScope)
    """Cancels the request in flight, up to the start of the event of its response."""
    is_other_cluster: bool = False
    """Whether the node responded INCONSISTENT_CLUSTER_ID, which has been logged."""


class RaftClientDriver:
    """Call `start` once, then `run` while there are other nodes."""

    def __init__(
        self,
        seams: Seams,
        metadata_log: MetadataLog,
        raft_client: RaftClient,
        log_writer: MetadataLogWriter,
        *,
        node_id: int,
        channel: NetworkChannel | None,
        listener: RaftListener,
    ) -> None:
        self.raft_client = raft_client
        self.failure: Exception | None = None
        self.high_watermark = 0
        """Offset below which all records are committed, as far as this node knows."""
        self._seams = seams
        self._log = metadata_log
        self._log_writer = log_writer
        self._node_id = node_id
        self._channel = channel
        self._listener = listener
        self._event_lock = PromptLock()
        self._flush_lock = PromptLock()  # from a flush to its event
        self._flushes = 0
        """Number of calls of `flush` in progress."""
        self._event_waiters = ParkingLot()
        self._progress_waiters = ParkingLot()
        self._unflushed = ParkingLot()
        self._progress: tuple[int, int, int, int, bool] | None = None
        self._timer = trio.CancelScope()
        self._timer_ms = math.inf
        """Time of the next tick in ms, not later than the deadline of the state machine."""
        self._waiting: dict[int, _PendingResponse] = {}
        self._unsent: list[SendRequest] = []
        self._queues: dict[int, _NodeQueue] = {}
        self._nursery: trio.Nursery | None = None

    @property
    def leads(self) -> bool:
        return self.raft_client.role is QuorumRole.LEADER and self.failure is None

    @property
    def now_ms(self) -> int:
        """Current time of the state machine: ms of the monotonic clock."""
        return int(self._seams.clock.monotonic() * 1000)

    # Events

    async def start(self) -> None:
        """Handle the first event; a single voter leads when this returns."""
        await self._event(self.raft_client.start)

    async def _event(self, event: Callable[[int], Actions]) -> None:
        """Run one event and its actions. Raises LogFailed if the node has failed."""
        async with self._event_lock:
            if self.failure is not None:
                raise LogFailed(f"the metadata log is offline: {self.failure}")
            try:
                actions = deque(event(self.now_ms))
                while actions:
                    action = actions.popleft()
                    if isinstance(action, _NON_BLOCKING):
                        caused = self._do(action)
                    else:
                        with trio.CancelScope(shield=True):
                            caused = await self._change(action)
                    actions.extendleft(reversed(caused))
                self._listener.quorum_changed()
            except Exception as error:
                self.fail(error)
                raise
            self.wake_waiters()

    def fail(self, error: Exception) -> None:
        """Stop handling events, and report the failure to the listener."""
        if self.failure is None:
            self.failure = error
            self._listener.quorum_failed(error)
            self.wake_waiters()

    def wake_waiters(self) -> None:
        """Wake up tasks that wait for progress of the log or the quorum."""
        if self._event_waiters:
            self._event_waiters.unpark_all()
        leadership = self.raft_client.leadership
        known = -1 if leadership is None else leadership.high_watermark
        end_offset, epoch = self._log.end_offset, self.raft_client.epoch
        progress = (end_offset, known, self.high_watermark, epoch, self.leads)
        if progress != self._progress:
            self._progress = progress
            self._progress_waiters.unpark_all()
        if self._unflushed and self._has_unflushed:
            self._unflushed.unpark_all()
        due_ms = self._due_ms
        if due_ms < self._timer_ms:
            self._set_timer(due_ms)

    async def wait_for_event(self) -> None:
        """Wait for the next event."""
        await self._event_waiters.park()

    async def wait_for_progress(self) -> None:
        """Wait until log end, high watermark, epoch or leadership changes."""
        await self._progress_waiters.park()

    def _do(self, action: RaftAction) -> Actions:
        """Execute an action that does not block on the disk; returns the follow-up actions."""
        match action:
            case AppendLeaderChangeMessage():
                return self._start_epoch(action)
            case AppendVotersRecord():
                return self._append_voters(action)
            case AdvanceHighWatermark(high_watermark):
                self.high_watermark = high_watermark
                self._log.committed(high_watermark)
                self._listener.committed(high_watermark)
            case SendRequest():
                return self._send(action)
            case SendResponse(request, response):
                self._reply(request, response)
        return ()

    async def _change(self, action: RaftAction) -> Actions:
        """Execute an action that writes to the disk; must not be cancelled."""
        raft_client, log_writer = self.raft_client, self._log_writer
        match action:
            case PersistElectionState(election):
                write = partial(
                    self._log.quorum_state.write,
                    kraft_version=raft_client.kraft_version,
                    voters=raft_client.voters.ids,
                )
                await log_writer.retry_until_written(write, election)
            case AppendFetchedRecords():
                return raft_client.appended(await log_writer.append_fetched(action), self.now_ms)
            case TruncateLog(end_offset):
                await log_writer.truncate(end_offset)
                return raft_client.truncated(self.now_ms)
            case CreateSnapshotFile(snapshot_id):
                if not await log_writer.begin_snapshot(snapshot_id):
                    return raft_client.snapshot_abandoned(self.now_ms)
            case AppendSnapshotBytes(position, data):
                if not await log_writer.append_snapshot(position, data):
                    return raft_client.snapshot_abandoned(self.now_ms)
            case InstallSnapshot():
                installed = await log_writer.install_snapshot()
                if installed is not None:
                    return raft_client.installed(installed, self.now_ms)
        return ()

    def _start_epoch(self, action: AppendLeaderChangeMessage) -> Actions:
        try:
            changes = self._log_writer.start_epoch(action, self._node_id)
        except (DiskFull, NoDescriptors) as error:
            if not self.resign_after_write_error(error):
                raise
            return ()
        return self._leader_appended(changes)

    def _append_voters(self, action: AppendVotersRecord) -> Actions:
        try:
            changes = self._log_writer.append_voters(action, self.raft_client.kraft_version)
        except (DiskFull, NoDescriptors) as error:  # the log stays usable
            log.error("cannot append the voter change: %s", error)
            return self.raft_client.not_appended(error, self.now_ms)
        return self._leader_appended(changes)

    def _leader_appended(self, changes: Sequence[ControlChange]) -> Actions:
        self._listener.control_appended()
        return self.raft_client.appended(changes, self.now_ms)

    # Flushes of the leader

    async def flush(self, up_to: int) -> None:
        """Flush up to `up_to` and count it for the high watermark. Raises DiskFull, and
        LogFailed permanently."""
        if self.failure is not None:
            raise LogFailed(f"the metadata log is offline: {self.failure}")
        self._flushes += 1
        try:
            self.wake_waiters()  # followers fetch unflushed records, and may flush first
            with trio.CancelScope(shield=True):  # concurrent commits share this flush
                async with self._flush_lock:
                    await self._flush(up_to)
        finally:
            self._flushes -= 1
            if self._has_unflushed:
                self._unflushed.unpark_all()

    async def _flush(self, up_to: int) -> None:
        try:
            flushed = await self._log_writer.flush(lambda: self.raft_client.epoch, up_to)
        except DiskFull:
            raise  # the records stay in the log for the next flush
        except Exception as error:
            self.fail(error)
            raise
        if flushed is not None:
            await self._event(partial(self._flushed, *flushed))

    def _flushed(self, end_offset: int, epoch: int, now_ms: int) -> Actions:
        return self.raft_client.flushed(end_offset, epoch, now_ms)

    # Requests of this node

    async def resign(self) -> None:
        """Give up the leadership of this epoch."""
        await self._event(self.raft_client.resign)

    async def resign_in_background(self) -> None:
        """Like `resign`, but does not raise if the node has failed."""
        await self._background_event(self.raft_client.resign)

    def resign_after_write_error(self, error: DiskFull | NoDescriptors) -> bool:
        """Resign because this leader cannot write. Returns False if there is no other voter."""
        if self._nursery is None or self.raft_client.is_only_voter:
            return False
        log.error("resigning, because the leader cannot write the metadata log: %s", error)
        self._nursery.start_soon(self.resign_in_background)
        return True

    async def upgrade(self, kraft_version: int, *, validate_only: bool) -> VoterChangeError | None:
        """Raise kraft.version (KIP-853); returns the error, if any."""
        refusals: list[VoterChangeError | None] = []

        def decide(now_ms: int) -> Actions:
            refusal, actions = self.raft_client.upgrade(
                kraft_version, now_ms, validate_only=validate_only
            )
            refusals.append(refusal)
            return actions

        await self._event(decide)
        is_done = validate_only or self.raft_client.kraft_version == kraft_version
        if refusals[0] is None and not is_done:
            return VoterChangeError(
                ErrorCode.kafka_storage_error, "the disk of the metadata log is full"
            )
        return refusals[0]

    async def shut_down(self) -> None:
        """Resign, and wait until another node leads; the caller sets the timeout."""
        if self.raft_client.may_stop:
            return
        await self._event(self.raft_client.shut_down)
        while not (self.raft_client.may_stop or self.failure is not None):
            await self.wait_for_event()

    # Inbound requests

    async def handle_request(self, request: RaftRequest, *, again: bool = False) -> RaftResponse:
        """Handle an inbound request; see `RaftClient.handle_request`."""
        waiting = self._waiting[id(request)] = _PendingResponse(request)
        try:
            await self._event(partial(self._receive, request, again))
            if waiting.response is None:
                waiting.responded = trio.Event()
                await waiting.responded.wait()
        finally:
            if self._waiting.get(id(request)) is waiting:
                del self._waiting[id(request)]
        assert waiting.response is not None
        return waiting.response

    def _receive(self, request: RaftRequest, again: bool, now_ms: int) -> Actions:
        return self.raft_client.handle_request(request, now_ms, again=again)

    def _reply(self, request: RaftRequest, response: RaftResponse) -> None:
        waiting = self._waiting.get(id(request))
        if waiting is not None:  # otherwise the caller was cancelled
            waiting.response = response
            if waiting.responded is not None:
                waiting.responded.set()

    # Outbound requests

    def _send(self, send: SendRequest) -> Actions:
        if self._channel is None:  # no other node is configured
            return self.raft_client.handle_request_failure(send.number, self.now_ms)
        if self._nursery is None:
            self._unsent.append(send)
            return ()
        queue = self._queues.get(send.to)
        if queue is None:
            queue = self._queues[send.to] = _NodeQueue()
            self._nursery.start_soon(self._send_requests_to, self._channel, queue)
        queue.next = send
        queue.wake_up.unpark_all()
        queue.sending.cancel()
        return ()

    async def _send_requests_to(self, channel: NetworkChannel, queue: _NodeQueue) -> None:
        """Send the requests to one node, one after the other."""
        while True:
            send, queue.next = queue.next, None
            if send is None:
                await queue.wake_up.park()
                continue
            with trio.CancelScope() as queue.sending:
                await self._background_event(await self._send_request(channel, queue, send))

    async def _send_request(
        self, channel: NetworkChannel, queue: _NodeQueue, send: SendRequest
    ) -> Callable[[int], Actions]:
        """Send a request; returns the event of its response or failure."""
        try:
            response = await channel.send_request(send.to, send.endpoints, send.request)
        except RequestFailed as error:
            log.debug("request to node %d failed: %s", send.to, error)
            refused = isinstance(error, NodeNotRunning)
            return partial(self.raft_client.handle_request_failure, send.number, refused=refused)
        _log_cluster_mismatch(send, queue, response)
        return partial(self.raft_client.handle_response, send.number, response)

    # Background tasks

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send requests, run timers and flush until cancelled."""
        async with trio.open_nursery() as self._nursery:
            for send in self._unsent:
                self._send(send)
            self._unsent.clear()
            self._log_writer.retries = True
            self._nursery.start_soon(self._run_timer)
            self._nursery.start_soon(self._flush_without_commit)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None
                self._queues.clear()
                self._log_writer.retries = False

    async def _background_event(self, event: Callable[[int], Actions]) -> None:
        """Run an event that has no caller; a failure is reported by `fail`."""
        try:
            await self._event(event)
        except Exception:
            if self.failure is None:
                raise

    async def _run_timer(self) -> None:
        while self.failure is None:
            with trio.CancelScope() as self._timer:
                self._set_timer(self._due_ms)
                await trio.sleep_forever()
            if self._due_ms <= self.now_ms:  # the deadline may have moved since the timer was set
                await self._background_event(self._tick)

    @property
    def _due_ms(self) -> float:
        """Deadline of the state machine, in ms; infinite if there is none."""
        due_ms = self.raft_client.deadline_ms
        return math.inf if due_ms is None else due_ms

    def _set_timer(self, due_ms: float) -> None:
        self._timer_ms = due_ms
        left = due_ms / 1000 - self._seams.clock.monotonic()
        self._timer.deadline = trio.current_time() + left + 0.0001

    def _tick(self, now_ms: int) -> Actions:
        return self.raft_client.tick(now_ms)

    @property
    def _has_unflushed(self) -> bool:
        """Whether the leader's log has unflushed records and no flush is running."""
        is_flushing = self._flushes > 0
        return (
            self.leads and not is_flushing and self._log_writer.durable_end < self._log.end_offset
        )

    async def _flush_without_commit(self) -> None:
        """Flush records without a waiting commit: the epoch's first batch, and voter changes."""
        while self.failure is None:
            if self._has_unflushed:
                try:
                    await self.flush(self._log.end_offset)
                except DiskFull as error:
                    log.error("the metadata log cannot be flushed: %s", error)
                    await self._seams.clock.sleep(1)
                except Exception:
                    if self.failure is None:
                        raise
            else:
                await self._unflushed.park()


def _log_cluster_mismatch(send: SendRequest, queue: _NodeQueue, response: RaftResponse) -> None:
    """Log INCONSISTENT_CLUSTER_ID once per node."""
    mismatch = response.error is ErrorCode.inconsistent_cluster_id
    if mismatch and not queue.is_other_cluster:
        node = "a controller" if send.to == BOOTSTRAP_SERVER else f"controller {send.to}"
        log.error(
            "%s does not belong to cluster %s: this node was formatted with another cluster id, or its"
            " controller.quorum.* configs are wrong",
            node,
            send.request.cluster_id,
        )
    queue.is_other_cluster = mismatch
