"""Requests that a node sends in its role, and the handling of their responses.

At most one request per node is in flight. A response
first updates the epoch and the leader, then completes its request.
"""

from __future__ import annotations

from typing import Final

from odradek.protocol.errors import ErrorCode
from odradek.replication.raft.actions import (
    AppendFetchedRecords,
    AppendSnapshotBytes,
    CreateSnapshotFile,
    InstallSnapshot,
    TruncateLog,
)
from odradek.replication.raft.errors import InconsistentQuorum
from odradek.replication.raft.follower_state import FollowerState, SnapshotDownloadState
from odradek.replication.raft.leader_state import LeaderState
from odradek.replication.raft.messages import (
    AddVoterRequest,
    AddVoterResponse,
    ApiVersionsResponse,
    BeginEpochRequest,
    EndEpochRequest,
    EndEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftRequest,
    RaftResponse,
    RemoveVoterRequest,
    RemoveVoterResponse,
    UpdateVoterRequest,
    UpdateVoterResponse,
    VoteRequest,
    VoteResponse,
)
from odradek.replication.raft.quorum_state import (
    ElectionInProgressState,
    ProspectiveState,
    QuorumState,
    ResignedState,
    UnattachedState,
)
from odradek.replication.raft.raft_log import truncation_offset
from odradek.replication.raft.request_manager import BOOTSTRAP_SERVER, PendingRequest
from odradek.replication.raft.voter_change_handler import VoterChangeHandler
from odradek.replication.raft.voters import NO_LEADER

ERRORS_WITHOUT_LEADER: Final = frozenset(
    {
        ErrorCode.inconsistent_cluster_id,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.unsupported_version,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.broker_not_available,
    }
)
"""Errors without epoch and leader: retry after a backoff."""

ELECTION_STAGGER_MS: Final = 50
"""Stagger between the elections of the voters after the leader has stopped, in ms. The first
voter has usually been elected before the second one starts."""

COMPLETED_VOTER_CHANGE_ERRORS: Final = frozenset(
    {
        ErrorCode.none,
        ErrorCode.request_timed_out,
        ErrorCode.duplicate_voter,
        ErrorCode.voter_not_found,
    }
)


class OutboundRequests:
    """Sends the requests of the current role and handles responses."""

    def __init__(self, quorum: QuorumState, voter_change_handler: VoterChangeHandler) -> None:
        self._quorum = quorum
        self._voter_change_handler = voter_change_handler

    # Requests

    def send_due_requests(self, now_ms: int) -> None:
        """Send the requests of this role that are due."""
        match self._quorum.state:
            case UnattachedState():
                if not self._quorum.closing:
                    self._fetch_from_bootstrap_server(now_ms)
            case ElectionInProgressState() as in_progress:
                self._send_vote_requests(in_progress, now_ms)
            case FollowerState() as following:
                if not (self._quorum.closing or following.changing_log):
                    self._send_fetch(following, now_ms)
            case LeaderState() as leadership:
                self._send_begin_epoch_requests(leadership, now_ms)
            case ResignedState() as resigned:
                self._send_end_epoch_requests(resigned, now_ms)

    def _send_vote_requests(self, in_progress: ElectionInProgressState, now_ms: int) -> None:
        quorum = self._quorum
        if in_progress.tally.lost:
            return
        for voter_id in in_progress.tally.unrecorded:
            voter = in_progress.tally.voters.get(voter_id)
            if voter is None or not quorum.requests.is_ready(voter_id):
                continue
            request = VoteRequest(
                cluster_id=quorum.settings.cluster_id,
                voter=voter.key,
                epoch=quorum.epoch,
                candidate=quorum.me.key,
                last_epoch=quorum.log.last_epoch,
                end_offset=quorum.log.end_offset,
                pre_vote=isinstance(in_progress, ProspectiveState),
            )
            quorum.send_request(voter_id, request, voter.endpoints, now_ms)

    def _send_fetch(self, following: FollowerState, now_ms: int) -> None:
        quorum, leader_id = self._quorum, following.leader_id
        if now_ms >= following.update_voter_at_ms:
            voter_request = self._own_voter_request(following)
            if voter_request is not None and not quorum.requests.is_ready(leader_id):
                return  # sent after the Fetch response
            following.update_voter_at_ms = now_ms + quorum.settings.fetch_timeout_ms
            if voter_request is not None:
                quorum.send_request(leader_id, voter_request, following.endpoints, now_ms)
                return
        if quorum.requests.is_backing_off(leader_id):
            self._fetch_from_bootstrap_server(now_ms)
        elif not quorum.requests.has_any_inflight_request:
            if following.download is None:
                request: RaftRequest = self._fetch_request()
            else:
                request = self._fetch_snapshot_request(following.download)
            quorum.send_request(leader_id, request, following.endpoints, now_ms)

    def _own_voter_request(self, following: FollowerState) -> RaftRequest | None:
        """The Add-, Remove- or UpdateVoter request about this node that the leader needs, if
        any."""
        quorum, cluster_id = self._quorum, self._quorum.settings.cluster_id
        known = quorum.voters.get(quorum.me.id)
        dynamic = quorum.history.kraft_version > 0
        if quorum.is_voter:
            up_to_date = known is not None and known.describes_same_voter(quorum.me)
            outdated = not (up_to_date if dynamic else following.has_sent_voter_update)
            if outdated and quorum.me.endpoints:
                return UpdateVoterRequest(
                    cluster_id=cluster_id, voter=quorum.me, epoch=quorum.epoch
                )
        elif dynamic and quorum.settings.auto_join and quorum.settings.can_become_voter:
            if known is not None:  # this node with its previous directory id
                return RemoveVoterRequest(cluster_id=cluster_id, voter=known.key)
            return AddVoterRequest(
                cluster_id=cluster_id,
                voter=quorum.me,
                ack_when_committed=False,
                timeout_ms=quorum.settings.request_timeout_ms,
            )
        return None

    def _fetch_from_bootstrap_server(self, now_ms: int) -> None:
        """Fetch from a bootstrap server to discover the leader."""
        requests = self._quorum.requests
        if not requests.has_any_inflight_request and requests.is_ready(BOOTSTRAP_SERVER):
            self._quorum.send_request(BOOTSTRAP_SERVER, self._fetch_request(), (), now_ms)

    def _fetch_request(self) -> FetchRequest:
        quorum = self._quorum
        return FetchRequest(
            cluster_id=quorum.settings.cluster_id,
            replica=quorum.me.key,
            epoch=quorum.epoch,
            fetch_offset=quorum.log.end_offset,
            last_fetched_epoch=quorum.log.last_epoch,
            high_watermark=quorum.high_watermark,
            max_wait_ms=quorum.settings.fetch_max_wait_ms,
            max_bytes=quorum.settings.fetch_max_bytes,
        )

    def _fetch_snapshot_request(self, download: SnapshotDownloadState) -> FetchSnapshotRequest:
        quorum = self._quorum
        return FetchSnapshotRequest(
            cluster_id=quorum.settings.cluster_id,
            replica=quorum.me.key,
            epoch=quorum.epoch,
            snapshot_id=download.snapshot_id,
            position=download.position,
            max_bytes=quorum.settings.fetch_snapshot_max_bytes,
        )

    def _send_begin_epoch_requests(self, leadership: LeaderState, now_ms: int) -> None:
        quorum = self._quorum
        if now_ms < leadership.begin_epoch_at_ms:
            return
        for key in leadership.voters_without_recent_fetch(now_ms):
            if not quorum.requests.is_ready(key.id):
                continue
            request = BeginEpochRequest(
                cluster_id=quorum.settings.cluster_id,
                voter=key,
                leader_id=quorum.me.id,
                epoch=quorum.epoch,
                leader_endpoints=quorum.leader_endpoints,
            )
            quorum.send_request(key.id, request, quorum.voters.endpoints(key.id), now_ms)
        leadership.begin_epoch_sent(now_ms)

    def _send_end_epoch_requests(self, resigned: ResignedState, now_ms: int) -> None:
        quorum = self._quorum
        for voter_id in sorted(resigned.unacknowledged):
            if not quorum.requests.is_ready(voter_id):
                continue
            request = EndEpochRequest(
                cluster_id=quorum.settings.cluster_id,
                leader_id=quorum.me.id,
                epoch=quorum.epoch,
                successors=resigned.successors,
                leader_endpoints=quorum.me.endpoints,
            )
            quorum.send_request(voter_id, request, quorum.voters.endpoints(voter_id), now_ms)

    # Responses

    def handle_response(self, sent: PendingRequest, response: RaftResponse, now_ms: int) -> bool:
        """Handle a response; returns False if the node should be retried after a backoff."""
        quorum = self._quorum
        if isinstance(response, ApiVersionsResponse):
            return self._voter_change_handler.handle_api_versions_response(
                sent.number, response, now_ms
            )
        if isinstance(response, AddVoterResponse | RemoveVoterResponse):
            return response.error in COMPLETED_VOTER_CHANGE_ERRORS
        if self._is_pre_vote_unsupported(sent, response):
            quorum.transition_to_candidate(now_ms)
            return True
        if response.error in ERRORS_WITHOUT_LEADER and not isinstance(
            response, UpdateVoterResponse
        ):
            return False
        if response.epoch < quorum.epoch:
            return False
        news = quorum.maybe_transition(
            response.epoch, response.leader_id, response.leader_endpoints, now_ms
        )
        if sent.to == quorum.leader_id:
            self._leader_responded()
        if response.error is ErrorCode.snapshot_not_found and not news:
            return self._handle_snapshot_not_found(now_ms)
        if isinstance(response, UpdateVoterResponse):
            return self._handle_update_voter_response(response, now_ms)
        if response.error is not ErrorCode.none:
            return news
        match response:
            case VoteResponse():
                self._handle_vote_response(sent, response, now_ms)
            case FetchResponse():
                return self._handle_fetch_response(response, now_ms) or news
            case FetchSnapshotResponse():
                self._handle_fetch_snapshot_response(response, now_ms)
            case EndEpochResponse():
                if isinstance(quorum.state, ResignedState):
                    quorum.state.unacknowledged.discard(sent.to)
        return True

    def handle_request_failure(self, sent: PendingRequest, now_ms: int, *, refused: bool) -> None:
        """Handle a request that failed without a response."""
        quorum = self._quorum
        match quorum.state:
            case LeaderState():
                unreachable = ApiVersionsResponse(error=ErrorCode.broker_not_available)
                self._voter_change_handler.handle_api_versions_response(
                    sent.number, unreachable, now_ms
                )
            case FollowerState() as following if refused and sent.to == following.leader_id:
                self._handle_connection_refused(following, now_ms)
            case ElectionInProgressState(leader_stopped=True) as in_progress if (
                refused and sent.to == quorum.leader_id
            ):
                if in_progress.tally.lost_without(sent.to):
                    quorum.handle_lost_election(now_ms)

    def _leader_responded(self) -> None:
        """The leader responded on its own endpoint."""
        match self._quorum.state:
            case FollowerState() as following:
                following.endpoint_confirmed = True
            case ElectionInProgressState() as in_progress:
                in_progress.leader_stopped = False

    def _handle_connection_refused(self, following: FollowerState, now_ms: int) -> None:
        """The leader's host refuses connections, so it has stopped: the voters start elections
        in turn."""
        quorum = self._quorum
        others = [each for each in quorum.voters.ids if each != following.leader_id]
        turn = 1 + (others.index(quorum.me.id) if quorum.me.id in others else len(others))
        following.connection_refused(now_ms + turn * ELECTION_STAGGER_MS)

    def _is_pre_vote_unsupported(self, sent: PendingRequest, response: RaftResponse) -> bool:
        """Whether the voter does not support pre-votes (before KIP-996): skip to CANDIDATE."""
        state = self._quorum.state
        return (
            response.error is ErrorCode.unsupported_version
            and isinstance(sent.request, VoteRequest)
            and isinstance(state, ProspectiveState)
        )

    def _handle_vote_response(
        self, sent: PendingRequest, response: VoteResponse, now_ms: int
    ) -> None:
        quorum, state = self._quorum, self._quorum.state
        if not isinstance(state, ElectionInProgressState) or response.epoch != quorum.epoch:
            return
        state.tally.record(sent.to, granted=response.granted)
        quorum.advance_election(now_ms)
        if quorum.state is state and isinstance(state, ProspectiveState) and state.tally.lost:
            quorum.handle_lost_election(now_ms)

    def _handle_update_voter_response(self, response: UpdateVoterResponse, now_ms: int) -> bool:
        state = self._quorum.state
        accepted = response.error in (ErrorCode.none, ErrorCode.unsupported_version)
        if accepted and isinstance(state, FollowerState):
            state.has_sent_voter_update = True
            state.reset_fetch_timeout(now_ms, self._quorum.settings.fetch_timeout_ms)
        return accepted

    def _handle_fetch_response(self, response: FetchResponse, now_ms: int) -> bool:
        """Handle a Fetch response: truncate, fetch a snapshot, or append."""
        quorum, following = self._quorum, self._quorum.state
        if not isinstance(following, FollowerState) or response.leader_id == NO_LEADER:
            return False
        quorum.max_reported_high_watermark = max(
            quorum.max_reported_high_watermark, response.high_watermark
        )
        if response.diverging is not None:
            end_offset = truncation_offset(quorum.log, response.diverging)
            if end_offset < quorum.high_watermark:
                raise InconsistentQuorum(
                    f"{response.diverging} of leader {response.leader_id} truncates the log to {end_offset}, "
                    f"but the high watermark is {quorum.high_watermark}"
                )
            quorum.history.truncate(end_offset)
            following.changing_log = True
            quorum.out.append(TruncateLog(end_offset))
        elif response.snapshot_id is not None:
            following.download = SnapshotDownloadState(response.snapshot_id)
            quorum.out.append(CreateSnapshotFile(response.snapshot_id))
        else:
            following.leader_high_watermark = response.high_watermark
            if response.records:
                following.changing_log = True
                durable = quorum.is_voter or quorum.settings.can_become_voter
                quorum.out.append(AppendFetchedRecords(response.records, quorum.epoch, durable))
            else:
                self.follow_high_watermark(following)
        following.reset_fetch_timeout(now_ms, quorum.settings.fetch_timeout_ms)
        return True

    def follow_high_watermark(self, following: FollowerState) -> None:
        """Advance the high watermark to the leader's, but not past the local log end."""
        quorum = self._quorum
        quorum.update_high_watermark(min(following.leader_high_watermark, quorum.log.end_offset))

    def _handle_fetch_snapshot_response(self, piece: FetchSnapshotResponse, now_ms: int) -> None:
        quorum, following = self._quorum, self._quorum.state
        if not isinstance(following, FollowerState) or following.download is None:
            return
        following.reset_fetch_timeout(now_ms, quorum.settings.fetch_timeout_ms)
        download = following.download
        if not download.accepts(piece):
            following.download = None  # the next Fetch response has the snapshot id to fetch
            return
        quorum.out.append(AppendSnapshotBytes(piece.position, piece.data))
        if download.arrived(piece):
            following.download = None
            following.changing_log = True
            quorum.out.append(InstallSnapshot(download.snapshot_id))

    def _handle_snapshot_not_found(self, now_ms: int) -> bool:
        """The leader has deleted the snapshot; the next Fetch returns a newer one."""
        following = self._quorum.state
        if isinstance(following, FollowerState):
            following.download = None
            following.reset_fetch_timeout(now_ms, self._quorum.settings.fetch_timeout_ms)
        return True
