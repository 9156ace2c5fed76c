"""Machines of a quorum over an unreliable network, with what must never happen checked at each step.

Messages are lost, late, doubled, out of order; the host of a node that is down refuses them, and now and
then that of one that is not; nodes crash between any two actions and keep only what was flushed or
persisted; clocks jump; voters come and go; logs are cut down to snapshots. After `heal` nothing fails any
more, and the quorum has to elect, commit and level its logs in bounded time.
A seed is a run: all that is drawn comes from it.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

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
from odradek.replication.raft.messages import (
    AddVoterRequest,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotResponse,
    RaftRequest,
    RaftResponse,
    RemoveVoterRequest,
    VoteRequest,
    VoteResponse,
)
from odradek.replication.raft.quorum_state import QuorumRole, QuorumSettings
from odradek.replication.raft.raft_client import RaftClient
from odradek.replication.raft.request_manager import BOOTSTRAP_SERVER
from odradek.replication.raft.voter_history import ControlChange, VoterHistory
from odradek.replication.raft.voters import Voter
from tests.replication.raft.machines import voter
from tests.replication.raft.quorum_invariants import Caller, Ledger, Node, Violation
from tests.replication.raft.quorum_log import Entry, MemoryLog

SETTINGS = QuorumSettings(
    election_timeout_ms=100,
    election_backoff_max_ms=100,
    fetch_timeout_ms=200,
    request_timeout_ms=100,
    retry_backoff_ms=10,
    fetch_max_wait_ms=60,
    fetch_snapshot_max_bytes=7,
)


@dataclass(frozen=True, slots=True)
class Weather:
    """How bad it is; chances from 0 to 1."""

    loss: float
    refusal: float  # by the host of a node that runs
    crash_at_disk: float
    slow_flush: float
    batch: int  # records in a response
    pause_ms: int  # between misfortunes, about

    @classmethod
    def draw(cls, source: random.Random) -> Weather:
        return cls(
            loss=source.choice([0.0, 0.05, 0.2]),
            refusal=source.choice([0.0, 0.02]),
            crash_at_disk=source.choice([0.0, 0.01, 0.08]),
            slow_flush=source.choice([0.0, 0.1, 0.4]),
            batch=source.choice([1, 3, 8]),
            pause_ms=source.choice([20, 70, 150]),
        )


@dataclass(slots=True)
class Records:
    base_offset: int
    entries: list[Entry]


class Simulation:
    """See the module. `voters` of the `nodes` are there from the start, the others observe."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 4,
        voters: int = 3,
        static: bool = False,
        weather: Weather | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.weather = weather or Weather.draw(self.random)
        self.now = 0
        self.reliable = False
        self.static = static
        self.start_voters = tuple(voter(each) for each in range(1, voters + 1))
        self.nodes = {each: Node(voter(each), MemoryLog()) for each in range(1, nodes + 1)}
        self.ledger = Ledger(self.nodes)
        self.acknowledged = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._values = count()
        for node in self.nodes.values():
            self._start(node)
        self._repeat(self._client, 5, 40)
        self._repeat(self._misfortune, 1, 2 * self.weather.pause_ms)

    # Time

    def at(self, delay_ms: int, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + delay_ms, next(self._order), what))

    def run(self, until_ms: int) -> None:
        while self._queue and self._queue[0][0] <= until_ms:
            self.now, _, what = heapq.heappop(self._queue)
            what()
        self.now = until_ms

    def _repeat(self, what: Callable[[], None], least_ms: int, most_ms: int) -> None:
        def once() -> None:
            what()
            self.at(self.random.randint(least_ms, most_ms), once)

        self.at(self.random.randint(least_ms, most_ms), once)

    def _clock(self, node: Node) -> int:
        return self.now + node.clock_ahead_ms

    # Lives

    def _start(self, node: Node) -> None:
        static = self.start_voters if self.static else ()
        below = [ControlChange(-1, kraft_version=1), ControlChange(-1, voters=self.start_voters)]
        changes = ([] if self.static else below) + node.log.changes()
        node.quorum = RaftClient(
            node.me,
            node.log,
            VoterHistory(static, changes),
            node.election,
            settings=SETTINGS,
            jitter=self.random.randrange,
        )
        node.life += 1
        node.high_watermark, node.led, node.tick_at = -1, (-1, -1), None
        node.flushing = False
        self._act(node, node.quorum.start(self._clock(node)))

    def _crash(self, node: Node) -> None:
        node.quorum = None
        node.log.crash()
        node.held.clear()
        node.pending.clear()
        self.at(self.random.randint(1, 200), lambda: self._restart(node))

    def _restart(self, node: Node) -> None:
        if node.quorum is None:
            if self.random.random() < 0.1 and not self.reliable:
                node.me = voter(node.id, node.me.endpoints[0].port + 1)
            self._start(node)

    # The driver

    def _act(self, node: Node, actions: Sequence[RaftAction]) -> None:
        queue = list(actions)
        while queue:
            if not self.reliable and self._crashes_before(queue[0]):
                self._crash(node)
                return
            queue = [*self._do(node, queue[0]), *queue[1:]]
        self._after(node)

    def _crashes_before(self, action: RaftAction) -> bool:
        at_disk = isinstance(action, PersistElectionState | AppendFetchedRecords | InstallSnapshot)
        return self.random.random() < (self.weather.crash_at_disk if at_disk else 0.001)

    def _do(self, node: Node, action: RaftAction) -> Sequence[RaftAction]:
        quorum, log, now = node.quorum, node.log, self._clock(node)
        assert quorum is not None
        match action:
            case PersistElectionState(election):
                node.election = election
            case AppendLeaderChangeMessage(epoch):
                self.ledger.leader(node)
                return self._append(node, [Entry(epoch, f"leader {node.id}")], action.quorum)
            case AppendVotersRecord(epoch, voters, version):
                level = quorum.kraft_version if version is None else version
                return self._append(node, [], (level, voters))
            case AppendFetchedRecords(records):
                return self._append_fetched(node, records, durable=action.durable)
            case TruncateLog(end_offset):
                if end_offset < node.high_watermark:
                    raise Violation(f"{node.id} cuts {end_offset} below {node.high_watermark}")
                log.truncate(end_offset)
                return quorum.truncated(now)
            case CreateSnapshotFile() | AppendSnapshotBytes():
                pass
            case InstallSnapshot(snapshot_id):
                log.install(self.ledger.committed[: snapshot_id.end_offset], snapshot_id)
                below = [
                    ControlChange(-1, kraft_version=1),
                    ControlChange(-1, voters=self.start_voters),
                ]
                return quorum.installed(([] if self.static else below) + log.changes(), now)
            case AdvanceHighWatermark(high_watermark):
                self.ledger.committed_by(node, high_watermark)
            case SendRequest():
                self._send(node, action)
            case SendResponse(request, response):
                self._reply(node, request, response)
        return []

    def _append(
        self, node: Node, entries: list[Entry], quorum: tuple[int, tuple[Voter, ...]] | None
    ) -> Sequence[RaftAction]:
        machine = node.quorum
        assert machine is not None
        start = node.log.end_offset
        node.log.append(entries)
        if quorum is not None:
            epoch, (version, voters) = machine.epoch, quorum
            for change in (
                ControlChange(node.log.end_offset, kraft_version=version),
                ControlChange(node.log.end_offset + 1, voters=voters),
            ):
                node.log.append([Entry(epoch, None, change)])
        return machine.appended(node.log.changes(start), self._clock(node))

    def _append_fetched(
        self, node: Node, records: Records, *, durable: bool
    ) -> Sequence[RaftAction]:
        assert node.quorum is not None
        changes = []
        if records.base_offset == node.log.end_offset:
            node.log.append(records.entries)
            changes = node.log.changes(records.base_offset)
        if durable:
            node.log.flush()
        return node.quorum.appended(changes, self._clock(node))

    def _after(self, node: Node) -> None:
        """What the driver does once all actions are done."""
        quorum = node.quorum
        if quorum is None:
            return
        self.ledger.high_watermark(node)
        log = node.log
        if (
            quorum.role is QuorumRole.LEADER
            and log.durable_end < log.end_offset
            and not node.flushing
        ):
            self._begin_flush(node)
        if node.held:
            self._serve_held(node)
        if node.quorum is None:
            return
        due = quorum.deadline_ms
        if due is not None:
            wait = max(due - self._clock(node), 1)
            if node.tick_at is None or node.tick_at > self.now + wait:
                node.tick_at = self.now + wait
                self.at(wait, lambda at=self.now + wait, life=node.life: self._tick(node, at, life))

    def _tick(self, node: Node, at: int, life: int) -> None:
        if node.quorum is None or node.life != life or node.tick_at != at:
            return
        node.tick_at = None
        now = self._clock(node)
        self._act(node, node.quorum.tick(now))
        due = node.quorum.deadline_ms if node.quorum is not None else None
        if due is not None and due <= now:
            raise Violation(f"{node.id} is due at {due} again, and it is {now}")

    def _begin_flush(self, node: Node) -> None:
        assert node.quorum is not None
        end, epoch, life = node.log.end_offset, node.quorum.epoch, node.life
        node.flushing = True

        def done() -> None:
            if node.quorum is None or node.life != life:
                return
            node.flushing = False
            if node.quorum.epoch == epoch:  # else the log may have been cut since
                node.log.durable_end = max(node.log.durable_end, min(end, node.log.end_offset))
            self._act(node, node.quorum.flushed(end, epoch, self._clock(node)))

        slow = not self.reliable and self.random.random() < self.weather.slow_flush
        self.at(self.random.randint(20, 200) if slow else self.random.randint(1, 8), done)

    # The network

    def _travels(self, deliver: Callable[[], None]) -> None:
        draw = self.random
        if self.reliable:
            self.at(draw.randint(1, 5), deliver)
            return
        if draw.random() < self.weather.loss:
            return
        self.at(draw.randint(1, 12) if draw.random() < 0.93 else draw.randint(12, 250), deliver)
        if draw.random() < 0.03:
            self.at(draw.randint(1, 100), deliver)

    def _send(self, node: Node, send: SendRequest) -> None:
        request = send.request
        if isinstance(request, VoteRequest) and not request.pre_vote:
            self.ledger.vote(node.id, request.epoch, request.candidate)
        others = [each for each in self.nodes if each != node.id]
        to = self.nodes[self.random.choice(others) if send.to == BOOTSTRAP_SERVER else send.to]
        caller = Caller(node.id, node.life, send.number)
        self._travels(lambda: self._deliver(to, request, caller))

    def _deliver(self, to: Node, request: RaftRequest, caller: Caller) -> None:
        refused_anyway = not self.reliable and self.random.random() < self.weather.refusal
        if to.quorum is None or refused_anyway:
            self._travels(lambda: self._refuse(caller))
            return
        if isinstance(request, ApiVersionsRequest):
            reported = ApiVersionsResponse(kraft_versions=(0, 1))
            self._travels(lambda: self._deliver_response(caller, reported))
            return
        to.pending[id(request)] = caller
        self._act(to, to.quorum.handle_request(request, self._clock(to)))

    def _reply(self, node: Node, request: RaftRequest, response: RaftResponse) -> None:
        caller = node.pending.pop(id(request), None)
        granted = isinstance(response, VoteResponse) and response.granted
        if granted and isinstance(request, VoteRequest) and not request.pre_vote:
            self.ledger.vote(node.id, request.epoch, request.candidate)
        if caller is None:  # a client
            self.acknowledged += response.error == 0
            return
        if isinstance(response, FetchResponse) and isinstance(request, FetchRequest):
            found = self._read(node, request, response)
            if found is None and request.max_wait_ms > 0:
                until = self.now + request.max_wait_ms
                node.held.append((request, caller, until))
                life = node.life
                self.at(request.max_wait_ms, lambda: node.life == life and self._after(node))
                return
            response = found or response
        if isinstance(response, FetchSnapshotResponse) and response.error == 0:
            response = self._read_snapshot_bytes(response)
        self._travels(lambda: self._deliver_response(caller, response))

    def _read(
        self, node: Node, request: FetchRequest, response: FetchResponse
    ) -> FetchResponse | None:
        """The response with its records; None while there are none."""
        if response.error != 0 or response.diverging or response.snapshot_id:
            return response
        start = request.fetch_offset
        entries = node.log.entries[start : start + self.weather.batch]
        if not entries:
            return response if response.high_watermark > request.high_watermark else None
        return FetchResponse(
            epoch=response.epoch,
            leader_id=response.leader_id,
            leader_endpoints=response.leader_endpoints,
            high_watermark=response.high_watermark,
            log_start_offset=response.log_start_offset,
            records=Records(start, entries),
        )

    @staticmethod
    def _read_snapshot_bytes(response: FetchSnapshotResponse) -> FetchSnapshotResponse:
        length = min(SETTINGS.fetch_snapshot_max_bytes, response.size - response.position)
        return FetchSnapshotResponse(
            epoch=response.epoch,
            leader_id=response.leader_id,
            leader_endpoints=response.leader_endpoints,
            snapshot_id=response.snapshot_id,
            size=response.size,
            position=response.position,
            data=bytes(length),
        )

    def _serve_held(self, node: Node) -> None:
        """Fetches that wait, and whose wait is over."""
        assert node.quorum is not None
        leads = node.quorum.leadership
        for held in list(node.held):
            request, caller, until = held
            news = leads is None or leads.high_watermark > request.high_watermark
            if news or node.log.end_offset > request.fetch_offset or self.now >= until:
                node.held.remove(held)
                for action in node.quorum.handle_request(request, self._clock(node), again=True):
                    if isinstance(action, SendResponse) and isinstance(
                        action.response, FetchResponse
                    ):
                        response = self._read(node, request, action.response) or action.response
                        self._travels(
                            lambda caller=caller, response=response: self._deliver_response(
                                caller, response
                            )
                        )
                    else:
                        self._do(node, action)

    def _deliver_response(self, caller: Caller, response: RaftResponse) -> None:
        """Request numbers restart with each run, so responses to an earlier run are dropped."""
        node = self.nodes[caller.id]
        if node.quorum is not None and node.life == caller.life:
            self._act(node, node.quorum.handle_response(caller.number, response, self._clock(node)))

    def _refuse(self, caller: Caller) -> None:
        node = self.nodes[caller.id]
        if node.quorum is not None and node.life == caller.life:
            now = self._clock(node)
            self._act(node, node.quorum.handle_request_failure(caller.number, now, refused=True))

    # What befalls them

    def _client(self) -> None:
        """A client appends a record on a node that is leader."""
        leading = [each for each in self.nodes.values() if each.quorum and each.quorum.leadership]
        if leading:
            node = self.random.choice(leading)
            assert node.quorum is not None
            node.log.append([Entry(node.quorum.epoch, next(self._values))])
            self._after(node)

    def _misfortune(self) -> None:
        if self.reliable:
            return
        draw, nodes = self.random, list(self.nodes.values())
        node = draw.choice(nodes)
        leading = [each for each in nodes if each.quorum and each.quorum.leadership]
        match draw.choice(["crash", "decapitate", "clock", "voters", "voters", "snapshot"]):
            case "decapitate" if leading:
                self._crash(draw.choice(leading))
            case "crash" if node.quorum is not None:
                self._crash(node)
            case "clock":
                node.clock_ahead_ms += draw.randint(1, 400)
            case "voters" if not self.static:
                self._change_voters()
            case "snapshot" if node.quorum is not None:
                end = min(node.high_watermark, node.log.durable_end)
                if end > node.log.start_offset:
                    node.log.snapshot(end)

    def _change_voters(self) -> None:
        for node in self.nodes.values():
            if node.quorum is None or node.quorum.leadership is None:
                continue
            about = self.random.choice(list(self.nodes.values()))
            request: RaftRequest = AddVoterRequest(voter=about.me)
            if node.quorum.voters.includes(about.me.key):
                request = RemoveVoterRequest(voter=about.me.key)
            self._act(node, node.quorum.handle_request(request, self._clock(node)))

    # In the end

    def heal(self) -> None:
        """No more faults; all nodes are up."""
        self.reliable = True
        for node in self.nodes.values():
            self._restart(node)

    def settled(self) -> bool:
        """One leads, and all its voters know the same to be committed, something of its own too."""
        leading = [
            each.quorum
            for each in self.nodes.values()
            if each.quorum is not None and each.quorum.leadership is not None
        ]
        if not leading:
            return False
        leader = max(leading, key=lambda each: each.epoch)
        leadership = leader.leadership
        assert leadership is not None
        if leadership.high_watermark <= leadership.start_offset:
            return False
        members: list[Any] = [self.nodes[each].quorum for each in leader.voters.ids]
        return all(
            each.epoch == leader.epoch and each.high_watermark >= leadership.start_offset
            for each in members
        )

    def settle(self, within_ms: int) -> int:
        """How long it took. AssertionError if it takes longer."""
        healed = self.now
        while not self.settled():
            if self.now >= healed + within_ms:
                raise Violation(f"no settled leader {within_ms} ms after healing")
            self.run(self.now + 10)
        return self.now - healed


def simulate(seed: int, weather: Weather | None = None) -> Simulation:
    """The run of a seed, which also determines the number of nodes and voters."""
    choice = random.Random(seed)
    nodes = choice.randint(3, 5)
    voters = choice.randint(min(3, nodes - 1), nodes)
    static = choice.random() < 0.2
    run = Simulation(seed, nodes=nodes, voters=voters, static=static, weather=weather)
    run.run(1500)
    run.heal()
    run.settle(4000)
    return run
