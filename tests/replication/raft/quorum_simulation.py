"""Simulation of a quorum over an unreliable network, whose invariants are checked after each step.

Messages are lost, delayed, duplicated and reordered. Hosts of stopped nodes refuse connections, and sometimes those of
running nodes. Nodes crash between any two actions, and keep only flushed and persisted data. Clocks jump, voters are
added and removed, and logs are replaced by snapshots. With `loses_records`, the disk of one node at a time loses flushed
records too. After `heal` there are no more faults, and the quorum must elect
a leader, commit records and equalize its logs in bounded time. All random values come from the seed.
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
from odradek.replication.raft.raft_log import election_end, log_end
from odradek.replication.raft.request_manager import BOOTSTRAP_SERVER
from odradek.replication.raft.voter_history import ControlChange, VoterHistory
from odradek.replication.raft.voters import Voter
from tests.replication.raft.memory_raft_log import Entry, MemoryLog
from tests.replication.raft.quorum_invariants import Caller, History, Node, Violation
from tests.replication.raft.raft_clients import voter

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
class FaultRates:
    """Rates of faults, as probabilities from 0 to 1."""

    loss: float
    refusal: float  # by the host of a running node
    crash_at_disk: float
    slow_flush: float
    batch: int  # records in a response
    pause_ms: int  # average pause between faults

    @classmethod
    def draw(cls, source: random.Random) -> FaultRates:
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
    """Simulated quorum. The first `voters` of the `nodes` are voters, and the others are observers."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 4,
        voters: int = 3,
        static: bool = False,
        fault_rates: FaultRates | None = None,
        loses_records: bool = False,
    ) -> None:
        self.random = random.Random(seed)
        self.fault_rates = fault_rates or FaultRates.draw(self.random)
        self.now = 0
        self.reliable = False
        self.static = static
        self.start_voters = tuple(voter(each) for each in range(1, voters + 1))
        self.nodes = {each: Node(voter(each), MemoryLog()) for each in range(1, nodes + 1)}
        self.history = History(self.nodes)
        self.acknowledged = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._values = count()
        for node in self.nodes.values():
            self._start(node)
        self._repeat(self._client, 5, 40)
        self._repeat(self._inject_fault, 1, 2 * self.fault_rates.pause_ms)
        self.losses = 0
        if loses_records:
            self._repeat(self._lose_records, 1, 4 * self.fault_rates.pause_ms)

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

    # Start and crash

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
        node.run_number += 1
        node.high_watermark, node.led, node.tick_at = -1, (-1, -1), None
        node.flushing = False
        self._act(node, node.quorum.start(self._clock(node)))

    def _crash(self, node: Node) -> None:
        node.quorum = None
        node.log.crash()
        node.waiting_fetches.clear()
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
        return self.random.random() < (self.fault_rates.crash_at_disk if at_disk else 0.001)

    def _do(self, node: Node, action: RaftAction) -> Sequence[RaftAction]:
        quorum, log, now = node.quorum, node.log, self._clock(node)
        assert quorum is not None
        match action:
            case PersistElectionState(election):
                node.election = election
            case AppendLeaderChangeMessage(epoch):
                self.history.leader(node)
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
                log.install(self.history.committed[: snapshot_id.end_offset], snapshot_id)
                below = [
                    ControlChange(-1, kraft_version=1),
                    ControlChange(-1, voters=self.start_voters),
                ]
                return quorum.installed(([] if self.static else below) + log.changes(), now)
            case AdvanceHighWatermark(high_watermark):
                self.history.committed_by(node, high_watermark)
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
        """Run what the driver does after all actions."""
        quorum = node.quorum
        if quorum is None:
            return
        self.history.high_watermark(node)
        log = node.log
        if (
            quorum.role is QuorumRole.LEADER
            and log.durable_end < log.end_offset
            and not node.flushing
        ):
            self._begin_flush(node)
        if node.waiting_fetches:
            self._serve_waiting_fetches(node)
        if node.quorum is None:
            return
        due = quorum.deadline_ms
        if due is not None:
            wait = max(due - self._clock(node), 1)
            if node.tick_at is None or node.tick_at > self.now + wait:
                node.tick_at = self.now + wait
                self.at(
                    wait,
                    lambda at=self.now + wait, run_number=node.run_number: self._tick(
                        node, at, run_number
                    ),
                )

    def _tick(self, node: Node, at: int, run_number: int) -> None:
        if node.quorum is None or node.run_number != run_number or node.tick_at != at:
            return
        node.tick_at = None
        now = self._clock(node)
        self._act(node, node.quorum.tick(now))
        due = node.quorum.deadline_ms if node.quorum is not None else None
        if due is not None and due <= now:
            raise Violation(f"the deadline {due} of {node.id} is not after {now}")

    def _begin_flush(self, node: Node) -> None:
        assert node.quorum is not None
        end, epoch, run_number = node.log.end_offset, node.quorum.epoch, node.run_number
        node.flushing = True

        def done() -> None:
            if node.quorum is None or node.run_number != run_number:
                return
            node.flushing = False
            if node.quorum.epoch == epoch:  # otherwise the log may have been truncated
                node.log.synced(min(end, node.log.end_offset))
            self._act(node, node.quorum.flushed(end, epoch, self._clock(node)))

        slow = not self.reliable and self.random.random() < self.fault_rates.slow_flush
        self.at(self.random.randint(20, 200) if slow else self.random.randint(1, 8), done)

    # The network

    def _transmit(self, deliver: Callable[[], None]) -> None:
        draw = self.random
        if self.reliable:
            self.at(draw.randint(1, 5), deliver)
            return
        if draw.random() < self.fault_rates.loss:
            return
        self.at(draw.randint(1, 12) if draw.random() < 0.93 else draw.randint(12, 250), deliver)
        if draw.random() < 0.03:
            self.at(draw.randint(1, 100), deliver)

    def _send(self, node: Node, send: SendRequest) -> None:
        request = send.request
        if isinstance(request, VoteRequest) and not request.pre_vote:
            self.history.vote(node.id, request.epoch, request.candidate)
        others = [each for each in self.nodes if each != node.id]
        to = self.nodes[self.random.choice(others) if send.to == BOOTSTRAP_SERVER else send.to]
        caller = Caller(node.id, node.run_number, send.number)
        self._transmit(lambda: self._deliver(to, request, caller))

    def _deliver(self, to: Node, request: RaftRequest, caller: Caller) -> None:
        refused_anyway = not self.reliable and self.random.random() < self.fault_rates.refusal
        if to.quorum is None or refused_anyway:
            self._transmit(lambda: self._refuse(caller))
            return
        if isinstance(request, ApiVersionsRequest):
            reported = ApiVersionsResponse(kraft_versions=(0, 1))
            self._transmit(lambda: self._deliver_response(caller, reported))
            return
        to.pending[id(request)] = caller
        self._act(to, to.quorum.handle_request(request, self._clock(to)))

    def _reply(self, node: Node, request: RaftRequest, response: RaftResponse) -> None:
        caller = node.pending.pop(id(request), None)
        granted = isinstance(response, VoteResponse) and response.granted
        if granted and isinstance(request, VoteRequest) and not request.pre_vote:
            self.history.vote(node.id, request.epoch, request.candidate)
        if caller is None:  # a client
            self.acknowledged += response.error == 0
            return
        if isinstance(response, FetchResponse) and isinstance(request, FetchRequest):
            found = self._read(node, request, response)
            if found is None and request.max_wait_ms > 0:
                until = self.now + request.max_wait_ms
                node.waiting_fetches.append((request, caller, until))
                run_number = node.run_number
                self.at(
                    request.max_wait_ms, lambda: node.run_number == run_number and self._after(node)
                )
                return
            response = found or response
        if isinstance(response, FetchSnapshotResponse) and response.error == 0:
            response = self._read_snapshot_bytes(response)
        self._transmit(lambda: self._deliver_response(caller, response))

    def _read(
        self, node: Node, request: FetchRequest, response: FetchResponse
    ) -> FetchResponse | None:
        """Return the response with its records; None while there are no new ones."""
        if response.error != 0 or response.diverging or response.snapshot_id:
            return response
        start = request.fetch_offset
        entries = node.log.entries[start : start + self.fault_rates.batch]
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

    def _serve_waiting_fetches(self, node: Node) -> None:
        """Complete the waiting fetches that have new records or have timed out."""
        assert node.quorum is not None
        leads = node.quorum.leadership
        for waiting_fetches in list(node.waiting_fetches):
            request, caller, until = waiting_fetches
            news = leads is None or leads.high_watermark > request.high_watermark
            if news or node.log.end_offset > request.fetch_offset or self.now >= until:
                node.waiting_fetches.remove(waiting_fetches)
                for action in node.quorum.handle_request(request, self._clock(node), again=True):
                    if isinstance(action, SendResponse) and isinstance(
                        action.response, FetchResponse
                    ):
                        response = self._read(node, request, action.response) or action.response
                        self._transmit(
                            lambda caller=caller, response=response: self._deliver_response(
                                caller, response
                            )
                        )
                    else:
                        self._do(node, action)

    def _deliver_response(self, caller: Caller, response: RaftResponse) -> None:
        """Request numbers restart with each run, so responses to an earlier run are dropped."""
        node = self.nodes[caller.id]
        if node.quorum is not None and node.run_number == caller.run_number:
            self._act(node, node.quorum.handle_response(caller.number, response, self._clock(node)))

    def _refuse(self, caller: Caller) -> None:
        node = self.nodes[caller.id]
        if node.quorum is not None and node.run_number == caller.run_number:
            now = self._clock(node)
            self._act(node, node.quorum.handle_request_failure(caller.number, now, refused=True))

    # Operations and faults

    def _client(self) -> None:
        """Append a record of a client on a leader."""
        leading = [each for each in self.nodes.values() if each.quorum and each.quorum.leadership]
        if leading:
            node = self.random.choice(leading)
            assert node.quorum is not None
            node.log.append([Entry(node.quorum.epoch, next(self._values))])
            self._after(node)

    def _inject_fault(self) -> None:
        if self.reliable:
            return
        draw, nodes = self.random, list(self.nodes.values())
        node = draw.choice(nodes)
        leading = [each for each in nodes if each.quorum and each.quorum.leadership]
        match draw.choice(["crash", "leader crash", "clock", "voters", "voters", "snapshot"]):
            case "leader crash" if leading:
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

    def _lose_records(self) -> None:
        """Crash a node whose disk loses flushed records, unless another node still lacks those that it has lost."""
        if self.reliable or any(_has_lost_records(each) for each in self.nodes.values()):
            return
        node = self.random.choice(list(self.nodes.values()))
        if node.quorum is not None and node.log.durable_end > node.log.start_offset:
            self.losses += 1
            self._crash(node)
            node.log.lose(self.random.randrange(node.log.start_offset, node.log.durable_end))

    def _change_voters(self) -> None:
        for node in self.nodes.values():
            if node.quorum is None or node.quorum.leadership is None:
                continue
            about = self.random.choice(list(self.nodes.values()))
            request: RaftRequest = AddVoterRequest(voter=about.me)
            if node.quorum.voters.includes(about.me.key):
                request = RemoveVoterRequest(voter=about.me.key)
            self._act(node, node.quorum.handle_request(request, self._clock(node)))

    # Recovery

    def heal(self) -> None:
        """End the faults, and start all stopped nodes."""
        self.reliable = True
        for node in self.nodes.values():
            self._restart(node)

    def settled(self) -> bool:
        """Whether there is one leader whose voters know that a record of its epoch is committed."""
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
        """Run until the quorum has settled, and return the ms that took. Raises Violation if it takes longer."""
        healed = self.now
        while not self.settled():
            if self.now >= healed + within_ms:
                raise Violation(f"no settled leader {within_ms} ms after healing")
            self.run(self.now + 10)
        return self.now - healed


def _has_lost_records(node: Node) -> bool:
    return election_end(node.log) > log_end(node.log)


def simulate_losses(seed: int, fault_rates: FaultRates | None = None) -> Simulation:
    """The run of a seed in which nodes lose flushed records, with static voters."""
    voters = random.Random(seed).choice([3, 3, 4, 5])
    run = Simulation(
        seed, nodes=voters, voters=voters, static=True, fault_rates=fault_rates, loses_records=True
    )
    run.run(1500)
    run.heal()
    run.settle(4000)
    return run


def simulate(seed: int, fault_rates: FaultRates | None = None) -> Simulation:
    """The run of a seed, which also determines the number of nodes and voters."""
    choice = random.Random(seed)
    nodes = choice.randint(3, 5)
    voters = choice.randint(min(3, nodes - 1), nodes)
    static = choice.random() < 0.2
    run = Simulation(seed, nodes=nodes, voters=voters, static=static, fault_rates=fault_rates)
    run.run(1500)
    run.heal()
    run.settle(4000)
    return run
