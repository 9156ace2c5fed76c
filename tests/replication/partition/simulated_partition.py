"""Three replicas of a partition and their controller, whose messages are delivered by the test.

Messages stay in `sent` until they are delivered or lost, and time advances only by calls. Invariants are checked after
each step (`Violation`). `lines` is the transcript.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.image import BrokerImage
from odradek.replication.partition.follower_state import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    AppendFetched,
    BuildRemoteLogAuxState,
    Fetch,
    FetchResult,
    FollowerState,
    LeaderQuery,
    OffsetResult,
    QueryEpochEnd,
    QueryOffset,
    TruncateFullyAndStartAt,
    TruncateTo,
)
from odradek.replication.partition.isr_state import CommittedIsr
from odradek.replication.partition.leader_state import (
    AdvanceHighWatermark,
    AlterPartition,
    BeginEpoch,
    LeaderAction,
    LeaderState,
)
from odradek.replication.partition.truncation import find_divergence
from odradek.seams.values import value_class
from odradek.storage.errors import InRemoteTier, OffsetOutOfRange
from odradek.storage.log.leader_epoch_cache import NO_EPOCH, EpochEnd
from tests.replication.partition.memory_log import MemoryLog, Record
from tests.replication.partition.memory_tier import MemoryTier
from tests.support.controller_stub import NODES, Controller, Image

LAG_MAX_MS = 50
BACK_OFF_MS = 5
CONTROLLER = 0
RECORDS_MAX = 1


class Violation(AssertionError):
    """A broken invariant."""


@value_class
class Response:
    query: LeaderQuery
    content: FetchResult | EpochEnd | OffsetResult | ErrorCode
    records: Sequence[Record] = ()


@value_class
class AlterResponse:
    asked: AlterPartition
    content: CommittedIsr | ErrorCode


@value_class
class Message:
    sender: int
    sender_epoch: int
    to: int
    life: int
    """Broker epoch of the receiver: a response to a restarted broker is dropped."""
    content: LeaderQuery | Response | AlterPartition | AlterResponse | Image


class Node:
    def __init__(self, node_id: int, world: SimulatedPartition) -> None:
        self.id = node_id
        self.world = world
        self.log = MemoryLog(world.min_isr)
        self.epoch = 1
        self.up = True
        self.restart_state()

    def restart_state(self) -> None:
        self.image: Image | None = None
        self.leader: LeaderState | None = None
        self.follower = FollowerState(self.log, back_off_ms=BACK_OFF_MS)
        self.asked: LeaderQuery | None = None
        self.asked_ms = 0

    def broker(self, node: int) -> BrokerImage | None:
        return self.image.brokers[node] if self.image else None

    def see(self, image: Image) -> None:
        if self.image is not None and image.version <= self.image.version:
            return
        self.image = image
        partition, now_ms = image.partition, self.world.now_ms
        if partition.leader == self.id:
            if self.leader is None:
                self.follower.stop()
                self.leader = LeaderState(self.id, self.log, self.broker, lag_max_ms=LAG_MAX_MS)
            self.do(self.leader.adopt(partition, now_ms))
            self.do(self.leader.brokers_changed(now_ms))
            return
        self.leader = None
        if partition.leader < 0:
            self.follower.stop()
        else:
            self.follower.follow(partition.leader_epoch, compares=self.world.compares)

    def do(self, actions: Iterable[LeaderAction]) -> None:
        for action in actions:
            if isinstance(action, BeginEpoch):
                self.log.epochs.assign(action.leader_epoch, action.start_offset)
                self.world.check_elected(self, action.leader_epoch)
            elif isinstance(action, AdvanceHighWatermark):
                self.world.commit(self, action.offset)
            else:
                isr = " ".join(
                    f"{each}" if epoch in (-1, 1) else f"{each} (epoch {epoch})"
                    for each, epoch in action.isr
                )
                self.world.log_line(f"{self.id} -> controller AlterPartition ISR {isr}")
                self.world.send(self, CONTROLLER, action)

    # Following

    def advance(self) -> None:
        """Run pending changes of the log, then send the next request to the leader."""
        world, follower = self.world, self.follower
        while self.leader is None and self.image is not None:
            want = follower.next_action(world.now_ms)
            if want is None:
                return
            if isinstance(want, TruncateTo):
                if want.offset < self.log.end_offset:
                    world.log_line(f"{self.id} truncates to {want.offset}")
                self.log.truncate_to(want.offset)
                follower.changed(want)
            elif isinstance(want, TruncateFullyAndStartAt):
                world.log_line(f"{self.id} truncates fully and starts at {want.offset}")
                self.log.truncate_fully(want.offset)
                follower.changed(want)
            elif isinstance(want, Fetch | QueryEpochEnd | QueryOffset):
                self.asked, self.asked_ms = want, world.now_ms
                world.log_line(f"{self.id} -> {self.image.partition.leader} {_asks(want)}")
                world.send(self, self.image.partition.leader, want)
                return
            else:
                self.build(want)

    def build(self, change: BuildRemoteLogAuxState) -> None:
        """Build the auxiliary state from the tier."""
        world, log = self.world, self.log
        state = world.tier.state_before(change)
        if state is None:
            world.log_line(f"{self.id} finds no segment in the tier")
            self.follower.failed(change, ErrorCode.unknown_server_error, world.now_ms)
            return
        epochs = " ".join(f"{each.epoch}:{each.start_offset}" for each in state.epochs)
        world.log_line(f"{self.id} continues at {state.offset}, with epochs {epochs} from the tier")
        log.truncate_fully(state.offset, state.start_offset, state.epochs)
        for offset in world.remote_offsets(self):
            log.records[offset] = world.in_tier(self, offset)
        self.follower.changed(change)

    def receive(self, response: Response) -> None:
        query, content, now_ms = response.query, response.content, self.world.now_ms
        follower = self.follower
        if isinstance(content, ErrorCode):
            follower.failed(query, content, now_ms)
        elif isinstance(query, Fetch) and isinstance(content, FetchResult):
            append = follower.fetched(query, content)
            if append is not None:
                self.append(append, response.records)
        elif isinstance(query, QueryEpochEnd) and isinstance(content, EpochEnd):
            follower.epoch_end_received(query, content)
        elif isinstance(query, QueryOffset) and isinstance(content, OffsetResult):
            follower.offset_received(query, content, now_ms)

    def append(self, append: AppendFetched, records: Sequence[Record]) -> None:
        if append.offset != self.log.end_offset:
            raise Violation(f"{self.id} takes {append.offset} at its end {self.log.end_offset}")
        kept = [record for record in records if record[0] <= append.leader_epoch]
        self.log.append(*kept)
        high_watermark, start = self.follower.limits(append)
        self.log.high_watermark = max(self.log.high_watermark, high_watermark)
        self.log.trim(start)
        if kept:
            self.world.log_line(
                f"{self.id} appends {' '.join(f'{text}{epoch}' for epoch, text in kept)}"
            )
        self.follower.appended(append)
        self.world.check_committed(self)

    def give_up(self) -> None:
        """Time out the pending request."""
        if self.asked is not None:
            self.follower.failed(self.asked, ErrorCode.request_timed_out, self.world.now_ms)

    # Leading

    def respond(self, query: LeaderQuery, follower: int, broker_epoch: int) -> Response:
        leader = self.leader
        if leader is None:
            return Response(query, ErrorCode.not_leader_or_follower)
        if query.leader_epoch < leader.leader_epoch:
            return Response(query, ErrorCode.fenced_leader_epoch)
        if query.leader_epoch > leader.leader_epoch:
            return Response(query, ErrorCode.unknown_leader_epoch)
        if isinstance(query, QueryEpochEnd):
            return Response(query, self.log.epochs.end_offset_for(query.epoch))
        if isinstance(query, QueryOffset):
            return Response(query, self.locate(query.timestamp))
        try:
            return self.respond_fetch(leader, query, follower, broker_epoch)
        except KafkaError as error:
            return Response(query, error.code)

    def locate(self, timestamp: int) -> OffsetResult:
        log = self.log
        offset = {
            LATEST: log.end_offset,
            EARLIEST: log.start_offset,
            EARLIEST_LOCAL: log.local_start,
        }[timestamp]
        epoch = log.epochs.epoch_for(offset)
        return OffsetResult(offset, NO_EPOCH if epoch is None else epoch)

    def respond_fetch(
        self, leader: LeaderState, query: Fetch, follower: int, broker_epoch: int
    ) -> Response:
        leader.check_fetch(follower, broker_epoch)
        log = self.log
        diverging = find_divergence(
            log.epochs,
            start_offset=log.start_offset,
            fetch_offset=query.offset,
            last_fetched_epoch=query.last_fetched_epoch,
        )
        described = FetchResult(log.high_watermark, log.start_offset, diverging)
        if diverging is not None:
            return Response(query, described)
        if not log.start_offset <= query.offset <= log.end_offset:
            raise OffsetOutOfRange(f"{query.offset}")
        if query.offset < log.local_start:
            raise InRemoteTier(f"{query.offset}")
        records = log.read(query.offset, RECORDS_MAX)
        self.do(
            leader.fetched(
                follower,
                offset=query.offset,
                start_offset=query.start_offset,
                broker_epoch=broker_epoch,
                now_ms=self.world.now_ms,
            )
        )
        return Response(query, described, records)


class SimulatedPartition:
    def __init__(self, *, min_isr: int = 2, compares: bool = True) -> None:
        self.min_isr = min_isr
        self.compares = compares
        self.now_ms = 1000
        self.controller = Controller()
        self.sent: list[Message] = []
        self.lines: list[str] = []
        self.committed: list[Record] = []
        self.elections = 0
        self.was_unclean = False
        """After an unclean election, committed records may be lost, so they are no longer checked."""
        self.tier = MemoryTier()
        self.deleted_to = 0
        """Highest log start offset: records below it are deleted, although not every replica knows it yet."""
        self.nodes = {each: Node(each, self) for each in NODES}
        self.spread()

    def log_line(self, line: str) -> None:
        self.lines.append(line)

    # Messages

    def send(self, sender: Node, to: int, content: LeaderQuery | AlterPartition) -> None:
        life = self.nodes[to].epoch if to else 0
        self.sent.append(Message(sender.id, sender.epoch, to, life, content))

    def spread(self) -> None:
        """Send the newest image to all nodes."""
        image = self.controller.image
        for node in self.nodes.values():
            self.sent.append(Message(CONTROLLER, 0, node.id, node.epoch, image))

    def deliver(self, message: Message) -> None:
        self.sent.remove(message)
        content = message.content
        if message.to == CONTROLLER:
            assert isinstance(content, AlterPartition)
            self._alter(message, content)
            return
        node = self.nodes[message.to]
        if not node.up or (node.epoch != message.life and not isinstance(content, Fetch)):
            return
        if isinstance(content, Image):
            node.see(content)
        elif isinstance(content, Response):
            self._receive(node, content)
        elif isinstance(content, AlterResponse):
            if node.leader is not None:
                node.do(node.leader.altered(content.asked.proposal, content.content, self.now_ms))
        elif not isinstance(content, AlterPartition):
            response = node.respond(content, message.sender, message.sender_epoch)
            if isinstance(response.content, ErrorCode):
                self.log_line(f"{node.id} -> {message.sender} {response.content.name.upper()}")
            reply = Message(node.id, node.epoch, message.sender, message.sender_epoch, response)
            self.sent.append(reply)

    def _receive(self, node: Node, response: Response) -> None:
        content = response.content
        if isinstance(content, EpochEnd):
            self.log_line(
                f"{node.id} receives epoch {content.epoch}, end offset {content.end_offset}"
            )
        elif isinstance(content, OffsetResult):
            self.log_line(f"{node.id} receives {content.offset}")
        elif isinstance(content, FetchResult) and content.diverging is not None:
            end = content.diverging
            self.log_line(
                f"{node.id} receives diverging epoch {end.epoch}, end offset {end.end_offset}"
            )
        node.receive(response)

    def _alter(self, message: Message, asked: AlterPartition) -> None:
        content = self.controller.alter(message.sender, asked)
        described = content.name if isinstance(content, ErrorCode) else self.controller.described()
        self.log_line(f"controller -> {message.sender} {described}")
        self.sent.append(
            Message(
                CONTROLLER, 1, message.sender, message.sender_epoch, AlterResponse(asked, content)
            )
        )
        self.spread()

    def respond_behind(self, message: Message) -> None:
        """Respond as a controller that is not active: NOT_CONTROLLER, without a change."""
        asked = message.content
        assert isinstance(asked, AlterPartition)
        self.sent.remove(message)
        response = AlterResponse(asked, ErrorCode.not_controller)
        self.log_line(f"controller -> {message.sender} {ErrorCode.not_controller.name}")
        self.sent.append(Message(CONTROLLER, 1, message.sender, message.sender_epoch, response))

    def time_out(self, node: int, life: int, asked: object) -> None:
        """Time out an AlterPartition: the request or its response was lost."""
        assert isinstance(asked, AlterPartition)
        response = AlterResponse(asked, ErrorCode.request_timed_out)
        self.sent.append(Message(CONTROLLER, 1, node, life, response))

    # Operations and faults

    def write(self, node: Node, text: str) -> None:
        leader = node.leader
        if leader is None:
            return
        node.log.write(leader.leader_epoch, text)
        node.do(leader.appended(self.now_ms))

    def delete_before(self, node: Node, offset: int) -> None:
        """Delete records on the leader; followers receive the log start offset."""
        node.log.trim(offset)
        self.deleted_to = max(self.deleted_to, offset)

    def copy(self, node: Node, end_offset: int) -> None:
        """Copy committed records of the leader to the tier."""
        copied = self.tier.copy(node.log, min(end_offset, node.log.high_watermark))
        if copied is not None:
            self.log_line(f"{node.id} copies {copied.start_offset} to {copied.end_offset}")

    def leave_disk(self, node: Node, local_start: int) -> None:
        """Delete copied records from the local log."""
        log = node.log
        local_start = min(local_start, self.tier.copied_of(log) + 1, log.high_watermark)
        log.local_start = max(log.local_start, local_start)

    def crash(self, node: Node, *, end_offset: int | None = None, high_watermark: int = 0) -> None:
        """Crash a node; records from `end_offset` were not flushed and are lost."""
        node.up = False
        if end_offset is not None:
            node.log.truncate_to(end_offset)
        node.log.high_watermark = min(high_watermark, node.log.high_watermark)
        node.restart_state()
        self.controller.fence(node.id)
        self.spread()

    def start(self, node: Node) -> None:
        node.up = True
        node.epoch = self.controller.register(node.id)
        self.controller.unfence(node.id)
        self.spread()

    # Invariants

    def in_tier(self, node: Node, offset: int) -> Record:
        found = self.tier.record_at(node.log, offset)
        if found is None:
            raise Violation(f"{node.id} does not find offset {offset} in the tier")
        return found

    def known_from(self, log: MemoryLog) -> int:
        """Return the first offset that the replica has in either tier."""
        return max(log.start_offset, min(self.deleted_to, log.local_start))

    def remote_offsets(self, node: Node) -> range:
        return range(self.known_from(node.log), node.log.local_start)

    def check_tier(self, node: Node) -> None:
        """Check that records that are only in the tier are found and equal."""
        log = node.log
        for offset in self.remote_offsets(node):
            if not self.was_unclean and self.in_tier(node, offset) != log.records[offset]:
                raise Violation(f"{node.id} finds another record at {offset} in the tier")

    def commit(self, node: Node, offset: int) -> None:
        log = node.log
        if offset <= log.high_watermark:
            raise Violation(f"the high watermark of {node.id} decreases to {offset}")
        log.high_watermark = offset
        self.log_line(f"{node.id} commits {offset}")
        self.check_committed(node)
        self.committed += log.records[len(self.committed) : offset]

    def check_committed(self, node: Node, end_offset: int | None = None) -> None:
        """Check that the log below `end_offset`, by default the high watermark, has the committed records."""
        end_offset = node.log.high_watermark if end_offset is None else end_offset
        known = min(end_offset, len(self.committed))
        start = self.known_from(node.log)
        if not self.was_unclean and node.log.records[start:known] != self.committed[start:known]:
            raise Violation(f"{node.id} has other records than were committed, below {known}")

    def check_elected(self, node: Node, leader_epoch: int) -> None:
        """Check that a leader has all committed records, unless there is a newer leader."""
        self.elections += 1
        if leader_epoch < self.controller.partition.leader_epoch:
            return
        if not self.was_unclean and node.log.end_offset < len(self.committed):
            raise Violation(f"{node.id} leads without all that was committed")
        self.check_committed(node, len(self.committed))

    def describe_replicas(self) -> str:
        return "[" + "; ".join(self._describe_replica(node) for node in self.nodes.values()) + "]"

    def _describe_replica(self, node: Node) -> str:
        log = node.log
        role = (
            "is down" if not node.up else f"leads {node.leader.leader_epoch}" if node.leader else ""
        )
        parts = [str(node.id), role or node.follower.state.value, log.described() or "-"]
        return " ".join(parts) + f" up to {log.high_watermark}"


def _asks(query: LeaderQuery) -> str:
    if isinstance(query, Fetch):
        return f"fetches {query.offset}, last fetched epoch {query.last_fetched_epoch}"
    if isinstance(query, QueryEpochEnd):
        return f"OffsetForLeaderEpoch {query.epoch}"
    return {
        LATEST: "where does your log end?",
        EARLIEST: "where does it start?",
        EARLIEST_LOCAL: "where does your disk start?",
    }[query.timestamp]
