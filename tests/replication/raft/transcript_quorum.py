"""Quorum for transcripts: commands deliver the messages, and every effect is a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from odradek.protocol.errors import ErrorCode
from odradek.replication.raft.actions import (
    AdvanceHighWatermark,
    AppendFetchedRecords,
    AppendLeaderChangeMessage,
    AppendVotersRecord,
    PersistElectionState,
    RaftAction,
    SendRequest,
    SendResponse,
    TruncateLog,
)
from odradek.replication.raft.election_state import ElectionState
from odradek.replication.raft.messages import (
    AddVoterRequest,
    ApiVersionsRequest,
    ApiVersionsResponse,
    BeginEpochRequest,
    EndEpochRequest,
    FetchRequest,
    FetchResponse,
    RaftRequest,
    RaftResponse,
    RemoveVoterRequest,
    VoteRequest,
    VoteResponse,
)
from odradek.replication.raft.quorum_state import QuorumRole
from odradek.replication.raft.raft_client import RaftClient
from odradek.replication.raft.request_manager import BOOTSTRAP_SERVER
from odradek.replication.raft.voter_history import ControlChange, VoterHistory
from odradek.replication.raft.voters import NO_LEADER, Voter
from tests.replication.raft.memory_raft_log import Entry, MemoryLog
from tests.replication.raft.raft_clients import key, voter

CLIENT = 0


class Stage:
    """Quorum of nodes 1 to n, of which the first are voters; `lines` is the transcript."""

    def __init__(self, nodes: int, voters: int) -> None:
        self.lines: list[str] = []
        self.now = 0
        self.down: set[int] = set()
        self._refusing: set[int] = set()
        """Stopped nodes whose hosts refuse connections."""
        self._first = [voter(each) for each in range(1, voters + 1)]
        self._logs = {each: MemoryLog() for each in range(1, nodes + 1)}
        self._elections = {each: ElectionState() for each in self._logs}
        self._lives = dict.fromkeys(self._logs, 0)
        self.machines: dict[int, RaftClient] = {}
        self._in_transit: list[
            tuple[int, int, RaftRequest | RaftResponse, int, RaftRequest | None]
        ] = []
        self._waiting_fetches: list[tuple[int, int, FetchRequest, int]] = []
        self._asked: list[tuple[RaftRequest, int, int]] = []
        for each in self._logs:
            self.start(each)

    # Commands

    def start(self, node: int) -> None:
        self.down.discard(node)
        self._refusing.discard(node)
        below = [ControlChange(-1, kraft_version=1), ControlChange(-1, voters=tuple(self._first))]
        history = VoterHistory((), below + self._logs[node].changes())
        self.machines[node] = RaftClient(
            voter(node), self._logs[node], history, self._elections[node]
        )
        self._act(node, self.machines[node].start(self.now))

    def lose_power(self, node: int) -> None:
        self.partition_node(node)
        self._logs[node].crash()

    def kill(self, node: int) -> None:
        """Stop the process while its host runs: requests to it fail at once."""
        asking = [(sender, number) for sender, to, _, number in self._waiting_fetches if to == node]
        self.lose_power(node)
        self._refusing.add(node)
        for sender, number in asking:
            self._act(sender, self.machines[sender].handle_request_failure(number, self.now))

    def partition_node(self, node: int) -> None:
        """Partition a node: pending messages from and to it are lost."""
        self.down.add(node)
        self._in_transit = [each for each in self._in_transit if node not in each[:2]]
        self._waiting_fetches = [each for each in self._waiting_fetches if node not in each[:2]]

    def time_out(self, node: int) -> None:
        """Advance the time of a node until it starts an election."""
        before = (self.machines[node].role, self.machines[node].epoch)
        for _ in range(200):
            due = self.machines[node].deadline_ms
            assert due is not None
            self.now = max(self.now, due)
            self._act(node, self.machines[node].tick(self.now))
            if (self.machines[node].role, self.machines[node].epoch) != before:
                return

    def retry(self, node: int) -> None:
        """Advance the node's time until it sends a request; earlier requests are lost."""
        self._in_transit = [each for each in self._in_transit if each[0] != node]
        while not any(each[0] == node for each in self._in_transit):
            due = self.machines[node].deadline_ms
            assert due is not None
            self.now = max(self.now, due)
            self._act(node, self.machines[node].tick(self.now))

    def arrive(self) -> None:
        """Deliver all messages, and those that follow from them, until only fetches wait."""
        while self._in_transit:
            sender, to, message, number, about = self._in_transit.pop(0)
            if {sender, to} & self.down:
                if isinstance(message, RaftRequest) and sender not in self.down:
                    refused = to in self._refusing
                    if refused:
                        self.lines.append(f"{sender} -> {to} connection refused")
                    failed = self.machines[sender].handle_request_failure(
                        number, self.now, refused=refused
                    )
                    self._act(sender, failed)
                continue
            reported = _render(message, about)
            if reported:
                self.lines.append(f"{sender} -> {to} {reported}")
            if isinstance(message, ApiVersionsRequest):
                response = ApiVersionsResponse(kraft_versions=(0, 1))
                self._in_transit.append((to, sender, response, number, message))
            elif isinstance(message, RaftRequest):
                self._receive(to, message, sender, number)
            else:
                self._act(to, self.machines[to].handle_response(number, message, self.now))
            self._serve_held()

    def lose(self) -> None:
        self._in_transit.clear()

    def write(self, node: int, value: str) -> None:
        epoch = self.machines[node].epoch
        self._logs[node].append([Entry(epoch, value)])
        self._flush(node)
        self._serve_held()

    def change(self, node: int, request: RaftRequest) -> None:
        self._receive(node, request, CLIENT, 0)
        self._serve_held()

    def shut_down(self, node: int) -> None:
        self._act(node, self.machines[node].shut_down(self.now))

    # The driver

    def _receive(self, node: int, request: RaftRequest, sender: int, number: int) -> None:
        self._asked.append((request, sender, number))
        self._act(node, self.machines[node].handle_request(request, self.now))

    def _act(self, node: int, actions: Sequence[RaftAction]) -> None:
        queue = list(actions)
        while queue:
            queue = [*self._do(node, queue.pop(0)), *queue]
        self._flush(node)

    def _flush(self, node: int) -> None:
        log, machine = self._logs[node], self.machines[node]
        if machine.role is QuorumRole.LEADER and log.durable_end < log.end_offset:
            log.flush()
            self._act(node, machine.flushed(log.end_offset, machine.epoch, self.now))

    def _do(self, node: int, action: RaftAction) -> Sequence[RaftAction]:
        log, machine = self._logs[node], self.machines[node]
        match action:
            case PersistElectionState(election):
                self._elections[node] = election
                self.lines.append(f"{node} persists {_render_election(election)}")
            case AppendLeaderChangeMessage(epoch, _, granted):
                self.lines.append(f"{node} leads epoch {epoch}, elected by {_words(granted)}")
                log.append([Entry(epoch, "leader")])
                return self._append(node, action.quorum)
            case AppendVotersRecord(epoch, voters):
                self.lines.append(f"{node} writes voters {_words([each.id for each in voters])}")
                return self._append(node, (1, voters))
            case AppendFetchedRecords((start, entries)):
                assert start == log.end_offset
                log.append(entries)
                log.flush()
                self.lines.append(f"{node} has {start} to {log.end_offset}")
                return machine.appended(log.changes(start), self.now)
            case TruncateLog(end_offset):
                self.lines.append(f"{node} truncates to {end_offset}")
                log.truncate(end_offset)
                return machine.truncated(self.now)
            case AdvanceHighWatermark(high_watermark):
                self.lines.append(f"{node} commits {high_watermark}")
            case SendRequest(number, to, _, request):
                others = set(self._logs) - {node} - self.down
                to = min(others, default=node) if to == BOOTSTRAP_SERVER else to
                self._in_transit.append((node, to, request, number, None))
            case SendResponse(request, response):
                self._reply(node, request, response)
        return []

    def _append(
        self, node: int, quorum: tuple[int, tuple[Voter, ...]] | None
    ) -> Sequence[RaftAction]:
        log, machine = self._logs[node], self.machines[node]
        start = log.end_offset
        if quorum is not None:
            version, voters = quorum
            change = ControlChange(start, voters=voters, kraft_version=version)
            log.append([Entry(machine.epoch, None, change)])
        return machine.appended(log.changes(start), self.now)

    def _reply(self, node: int, request: RaftRequest, response: RaftResponse) -> None:
        slot = next(at for at, each in enumerate(self._asked) if each[0] is request)
        _, sender, number = self._asked.pop(slot)
        if sender == CLIENT:
            self.lines.append(f"{node} responds {response.error.name.upper()}")
            return
        if isinstance(request, FetchRequest) and isinstance(response, FetchResponse):
            found = self._read(node, request, response)
            if found is None:
                self._waiting_fetches.append((sender, node, request, number))
                return
            response = found
        self._in_transit.append((node, sender, response, number, request))

    def _read(
        self, node: int, request: FetchRequest, response: FetchResponse
    ) -> FetchResponse | None:
        if response.error is not ErrorCode.none or response.diverging or response.snapshot_id:
            return response
        entries = self._logs[node].entries[request.fetch_offset :]
        if entries:
            return replace(response, records=(request.fetch_offset, entries))
        return response if response.high_watermark > request.high_watermark else None

    def _serve_held(self) -> None:
        held, self._waiting_fetches = self._waiting_fetches, []
        for sender, node, request, number in held:
            self._asked.append((request, sender, number))
            self._act(node, self.machines[node].handle_request(request, self.now, again=True))
        for node in set(self.machines) - self.down:
            due = self.machines[node].deadline_ms
            if (
                self.machines[node].role is QuorumRole.LEADER
                and due is not None
                and due <= self.now
            ):
                self._act(node, self.machines[node].tick(self.now))

    # Transcript lines

    def describe_nodes(self) -> str:
        return f"[{'; '.join(self._describe_node(each) for each in self.machines)}]"

    def _describe_node(self, node: int) -> str:
        machine, log = self.machines[node], self._logs[node]
        follows = f" of {machine.leader_id}" if machine.role is QuorumRole.FOLLOWER else ""
        parts = f"{node} {machine.role.value}{follows} in {machine.epoch}"
        extent = f"{max(machine.high_watermark, 0)}/{log.end_offset}"
        return f"{parts}, {extent}{', unreachable' if node in self.down else ''}"


def add(node: int) -> RaftRequest:
    return AddVoterRequest(voter=voter(node))


def remove(node: int) -> RaftRequest:
    return RemoveVoterRequest(voter=key(node))


def _words(values: Sequence[object]) -> str:
    return " ".join(str(each) for each in values)


def _render_election(election: ElectionState) -> str:
    led = "" if election.leader_id == NO_LEADER else f", led by {election.leader_id}"
    voted = "" if election.voted_id == NO_LEADER else f", voted for {election.voted_id}"
    return f"epoch {election.epoch}{led}{voted}"


def _render(message: RaftRequest | RaftResponse, about: RaftRequest | None) -> str:
    """Line of a message; None for Fetch, whose effects have their own lines."""
    match message:
        case VoteRequest(epoch=epoch, pre_vote=pre_vote):
            kind = "pre-vote" if pre_vote else "vote"
            return f"{kind} request, epoch {epoch}, log {message.last_epoch}/{message.end_offset}"
        case VoteResponse(granted=granted):
            result = "granted" if granted else "rejected"
            return f"vote {result}, epoch {message.epoch}{_render_error(message)}"
        case BeginEpochRequest(epoch=epoch):
            return f"BeginQuorumEpoch, epoch {epoch}"
        case EndEpochRequest(epoch=epoch, successors=successors):
            preferred = _words([each.id for each in successors])
            return f"EndQuorumEpoch, epoch {epoch}" + (
                f", preferred successors {preferred}" if preferred else ""
            )
        case FetchResponse(diverging=diverging) if diverging is not None:
            return f"diverging epoch {diverging.epoch}, end offset {diverging.end_offset}"
        case FetchResponse(leader_id=leader_id) if leader_id == NO_LEADER:
            return ""
        case RaftResponse() if message.error is not ErrorCode.none:
            return f"epoch {message.epoch}, leader {message.leader_id}{_render_error(message)}"
    return ""


def _render_error(response: RaftResponse) -> str:
    return "" if response.error is ErrorCode.none else f", {response.error.name.upper()}"
