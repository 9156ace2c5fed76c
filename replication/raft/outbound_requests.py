"""Requests that a node sends in its role, and the handling of their responses.

`pursue` sends the requests that are due. At most one request per node is in flight. A response
first updates the epoch and the leader, then completes its request.
"""

from __future__ import annotations

from typing import Final

from odradek.protocol.errors import ErrorCode
from odradek.replication.raft.actions import (
    AppendFetched,
    AppendSnapshot,
    BeginSnapshot,
    InstallSnapshot,
    Truncate,
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
    RemoveVoterRequest,
    RemoveVoterResponse,
    Request,
    Response,
    UpdateVoterRequest,
    UpdateVoterResponse,
    VoteRequest,
    VoteResponse,
)
from odradek.replication.raft.quorum_state import (
    NomineeState,
    ProspectiveState,
    QuorumState,
    ResignedState,
    UnattachedState,
)
from odradek.replication.raft.raft_log import truncation_offset
from odradek.replication.raft.request_manager import BOOTSTRAP_SERVER, PendingRequest
from odradek.replication.raft.voter_change_handler import VoterChangeHandler
from odradek.replication.raft.voters import NO_LEADER

NO_NEWS: Final = frozenset(
    {
        ErrorCode.inconsistent_cluster_id,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.unsupported_version,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.broker_not_available,
    }
)
"""Errors that carry no epoch or leader: retry after a backoff."""

TURN_MS: Final = 50
"""Stagger between the elections of the voters after the leader has stopped, in ms. The first
voter has usually been elected before the second one starts."""

CHANGE_RESPONDED: Final = frozenset(
    {
        ErrorCode.none,
        ErrorCode.request_timed_out,
        ErrorCode.duplicate_voter,
        ErrorCode.voter_not_found,
    }
)


class OutboundRequests:
    """Sends the requests of the current role and handles responses."""

    def __init__(self, quorum: QuorumState, reconfiguration: VoterChangeHandler) -> None:
        self._quorum = quorum
        self._reconfiguration = reconfiguration

    # OutboundRequests

    def pursue(self, now_ms: int) -> None:
        """Send the requests of this role that are due."""
        match self._quorum.state:
            case UnattachedState():
                if not self._quorum.closing:
                    self._fetch_from_anyone(now_ms)
            case NomineeState() as nominee:
                self._ask_for_votes(nominee, now_ms)
            case FollowerState() as following:
                if not (self._quorum.closing or following.changing_log):
                    self._follow(following, now_ms)
            case LeaderState() as leadership:
                self._remind(leadership, now_ms)
            case ResignedState() as resigned:
                self._announce_end(resigned, now_ms)

    def _ask_for_votes(self, nominee: NomineeState, now_ms: int) -> None:
        quorum = self._quorum
        if nominee.tally.lost:
            return
        for voter_id in nominee.tally.unrecorded:
            voter = nominee.tally.voters.get(voter_id)
            if voter is None or not quorum.requests.may_ask(voter_id):
                continue
            request = VoteRequest(
                cluster_id=quorum.settings.cluster_id,
                voter=voter.key,
                epoch=quorum.epoch,
                candidate=quorum.me.key,
                last_epoch=quorum.log.last_epoch,
                end_offset=quorum.log.end_offset,
                pre_vote=isinstance(nominee, ProspectiveState),
            )
            quorum.ask(voter_id, request, voter.endpoints, now_ms)

    def _follow(self, following: FollowerState, now_ms: int) -> None:
        quorum, leader_id = self._quorum, following.leader_id
        if now_ms >= following.update_voter_at_ms:
            about_itself = self._about_itself(following)
            if about_itself is not None and not quorum.requests.may_ask(leader_id):
                return  # as soon as the fetch is answered
            following.update_voter_at_ms = now_ms + quorum.settings.fetch_timeout_ms
            if about_itself is not None:
                quorum.ask(leader_id, about_itself, following.endpoints, now_ms)
                return
        if quorum.requests.backs_off(leader_id):
            self._fetch_from_anyone(now_ms)
        elif not quorum.requests.any_waiting:
            if following.download is None:
                request: Request = self._fetch_request()
            else:
                request = self._fetch_snapshot_request(following.download)
            quorum.ask(leader_id, request, following.endpoints, now_ms)

    def _about_itself(self, following: FollowerState) -> Request | None:
        """The Add-, Remove- or UpdateVoter request about this node that the leader needs, if
        any."""
        quorum, cluster_id = self._quorum, self._quorum.settings.cluster_id
        known = quorum.voters.get(quorum.me.id)
        dynamic = quorum.history.kraft_version > 0
        if quorum.is_voter:
            told = known is not None and known.says_as_much_as(quorum.me)
            outdated = not (told if dynamic else following.has_told_voter)
            if outdated and quorum.me.endpoints:
                return UpdateVoterRequest(
                    cluster_id=cluster_id, voter=quorum.me, epoch=quorum.epoch
                )
        elif dynamic and quorum.settings.auto_join and quorum.settings.can_become_voter:
            if known is not None:  # the same node, with the directory that it had before
                return RemoveVoterRequest(cluster_id=cluster_id, voter=known.key)
            return AddVoterRequest(
                cluster_id=cluster_id,
                voter=quorum.me,
                ack_when_committed=False,
                timeout_ms=quorum.settings.request_timeout_ms,
            )
        return None

    def _fetch_from_anyone(self, now_ms: int) -> None:
        """Fetch from a bootstrap server to discover the leader."""
        requests = self._quorum.requests
        if not requests.any_waiting and requests.may_ask(BOOTSTRAP_SERVER):
            self._quorum.ask(BOOTSTRAP_SERVER, self._fetch_request(), (), now_ms)

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

    def _remind(self, leadership: LeaderState, now_ms: int) -> None:
        quorum = self._quorum
        if now_ms < leadership.begin_epoch_at_ms:
            return
        for key in leadership.to_remind(now_ms):
            if not quorum.requests.may_ask(key.id):
                continue
            request = BeginEpochRequest(
                cluster_id=quorum.settings.cluster_id,
                voter=key,
                leader_id=quorum.me.id,
                epoch=quorum.epoch,
                leader_endpoints=quorum.leader_endpoints,
            )
            quorum.ask(key.id, request, quorum.voters.endpoints(key.id), now_ms)
        leadership.reminded(now_ms)

    def _announce_end(self, resigned: ResignedState, now_ms: int) -> None:
        quorum = self._quorum
        for voter_id in sorted(resigned.unacknowledged):
            if not quorum.requests.may_ask(voter_id):
                continue
            request = EndEpochRequest(
                cluster_id=quorum.settings.cluster_id,
                leader_id=quorum.me.id,
                epoch=quorum.epoch,
                successors=resigned.successors,
                leader_endpoints=quorum.me.endpoints,
            )
            quorum.ask(voter_id, request, quorum.voters.endpoints(voter_id), now_ms)

    # Answers

    def responded(self, asked: PendingRequest, respond: Response, now_ms: int) -> bool:
        """Handle a response; returns False if the node should be retried after a backoff."""
        quorum = self._quorum
        if isinstance(respond, ApiVersionsResponse):
            return self._reconfiguration.versions_told(asked.number, respond, now_ms)
        if isinstance(respond, AddVoterResponse | RemoveVoterResponse):
            return respond.error in CHANGE_RESPONDED
        if self._lacks_pre_votes(asked, respond):
            quorum.campaign(now_ms)
            return True
        if respond.error in NO_NEWS and not isinstance(respond, UpdateVoterResponse):
            return False
        if respond.epoch < quorum.epoch:
            return False
        news = quorum.learn(respond.epoch, respond.leader_id, respond.leader_endpoints, now_ms)
        if asked.to == quorum.leader_id:
            self._heard_leader()
        if respond.error is ErrorCode.snapshot_not_found and not news:
            return self._snapshot_gone(now_ms)
        if isinstance(respond, UpdateVoterResponse):
            return self._told_voter(respond, now_ms)
        if respond.error is not ErrorCode.none:
            return news
        match respond:
            case VoteResponse():
                self._count(asked, respond, now_ms)
            case FetchResponse():
                return self._fetched(respond, now_ms) or news
            case FetchSnapshotResponse():
                self._snapshot_piece(respond, now_ms)
            case EndEpochResponse():
                if isinstance(quorum.state, ResignedState):
                    quorum.state.unacknowledged.discard(asked.to)
        return True

    def failed(self, asked: PendingRequest, now_ms: int, *, refused: bool) -> None:
        """Handle a request that failed without a response."""
        quorum = self._quorum
        match quorum.state:
            case LeaderState():
                unreachable = ApiVersionsResponse(error=ErrorCode.broker_not_available)
                self._reconfiguration.versions_told(asked.number, unreachable, now_ms)
            case FollowerState() as following if refused and asked.to == following.leader_id:
                self._refused(following, now_ms)
            case NomineeState(leader_ended=True) as nominee if (
                refused and asked.to == quorum.leader_id
            ):
                if nominee.tally.lost_without(asked.to):
                    quorum.lose(now_ms)

    def _heard_leader(self) -> None:
        """The leader responded on its own endpoint."""
        match self._quorum.state:
            case FollowerState() as following:
                following.heard_there = True
            case NomineeState() as nominee:
                nominee.leader_ended = False

    def _refused(self, following: FollowerState, now_ms: int) -> None:
        """The leader's host refuses connections, so it has stopped: the voters start elections
        in turn."""
        quorum = self._quorum
        others = [each for each in quorum.voters.ids if each != following.leader_id]
        turn = 1 + (others.index(quorum.me.id) if quorum.me.id in others else len(others))
        following.refused(now_ms + turn * TURN_MS)

    def _lacks_pre_votes(self, asked: PendingRequest, respond: Response) -> bool:
        """Whether the voter does not support pre-votes (before KIP-996): skip to CANDIDATE."""
        state = self._quorum.state
        return (
            respond.error is ErrorCode.unsupported_version
            and isinstance(asked.request, VoteRequest)
            and isinstance(state, ProspectiveState)
        )

    def _count(self, asked: PendingRequest, respond: VoteResponse, now_ms: int) -> None:
        quorum, state = self._quorum, self._quorum.state
        if not isinstance(state, NomineeState) or respond.epoch != quorum.epoch:
            return
        state.tally.record(asked.to, granted=respond.granted)
        quorum.go_forward(now_ms)
        if quorum.state is state and isinstance(state, ProspectiveState) and state.tally.lost:
            quorum.lose(now_ms)

    def _told_voter(self, respond: UpdateVoterResponse, now_ms: int) -> bool:
        state = self._quorum.state
        heard = respond.error in (ErrorCode.none, ErrorCode.unsupported_version)
        if heard and isinstance(state, FollowerState):
            state.has_told_voter = True
            state.heard(now_ms, self._quorum.settings.fetch_timeout_ms)
        return heard

    def _fetched(self, respond: FetchResponse, now_ms: int) -> bool:
        """Handle a Fetch response: truncate, fetch a snapshot, or append."""
        quorum, following = self._quorum, self._quorum.state
        if not isinstance(following, FollowerState) or respond.leader_id == NO_LEADER:
            return False
        quorum.committed_elsewhere = max(quorum.committed_elsewhere, respond.high_watermark)
        if respond.diverging is not None:
            end_offset = truncation_offset(quorum.log, respond.diverging)
            if end_offset < quorum.high_watermark:
                raise InconsistentQuorum(
                    f"{respond.diverging} of leader {respond.leader_id} truncates the log to {end_offset}, "
                    f"but the high watermark is {quorum.high_watermark}"
                )
            quorum.history.truncate(end_offset)
            following.changing_log = True
            quorum.out.append(Truncate(end_offset))
        elif respond.snapshot_id is not None:
            following.download = SnapshotDownloadState(respond.snapshot_id)
            quorum.out.append(BeginSnapshot(respond.snapshot_id))
        else:
            following.leader_high_watermark = respond.high_watermark
            if respond.records:
                following.changing_log = True
                durable = quorum.is_voter or quorum.settings.can_become_voter
                quorum.out.append(AppendFetched(respond.records, quorum.epoch, durable))
            else:
                self.follow_high_watermark(following)
        following.heard(now_ms, quorum.settings.fetch_timeout_ms)
        return True

    def follow_high_watermark(self, following: FollowerState) -> None:
        """Advance the high watermark to the leader's, but not past the local log end."""
        quorum = self._quorum
        quorum.commit(min(following.leader_high_watermark, quorum.log.end_offset))

    def _snapshot_piece(self, piece: FetchSnapshotResponse, now_ms: int) -> None:
        quorum, following = self._quorum, self._quorum.state
        if not isinstance(following, FollowerState) or following.download is None:
            return
        following.heard(now_ms, quorum.settings.fetch_timeout_ms)
        download = following.download
        if not download.accepts(piece):
            following.download = None  # the next fetch tells what to do
            return
        quorum.out.append(AppendSnapshot(piece.position, piece.data))
        if download.arrived(piece):
            following.download = None
            following.changing_log = True
            quorum.out.append(InstallSnapshot(download.snapshot_id))

    def _snapshot_gone(self, now_ms: int) -> bool:
        """The leader has deleted the snapshot; the next Fetch returns a newer one."""
        following = self._quorum.state
        if isinstance(following, FollowerState):
            following.download = None
            following.heard(now_ms, self._quorum.settings.fetch_timeout_ms)
        return True
