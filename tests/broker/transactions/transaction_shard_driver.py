"""A shard with a log in memory, simulated producers, and partitions that receive markers.

The stage does what the coordinator does, without trio. Appends can fail or stay uncommitted, as if the
high watermark did not advance. Marker results can fail or be delayed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from odradek.broker.transactions import record_serde as records
from odradek.broker.transactions.coordinator_shard import TransactionCoordinatorShard
from odradek.broker.transactions.messages import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    AddPartitions,
    EndTransaction,
    EventContext,
    InitProducerId,
    MarkerResult,
    PartitionsResponse,
    PendingTransition,
    ProducerIdAndEpoch,
    ProducerResponse,
    SendMarkers,
    TransactionMetadata,
    TransactionRequest,
    TransactionResult,
    TransitionAppend,
    VerifyPartitions,
)
from odradek.broker.transactions.transaction import Transaction
from odradek.protocol.errors import ErrorCode
from odradek.protocol.topics import TopicPartition

ID = "txn"
WALL_MS = 1_700_000_000_000
FIRST_ID = 1000
WEEK_MS = 604_800_000
RETRY_MS = 100


def partition(text: str) -> TopicPartition:
    topic, _, index = text.rpartition("-")
    return TopicPartition(topic, int(index))


NO_PRODUCER = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@dataclass(eq=False)
class Request:
    """A request of a producer, and its response."""

    who: str
    what: str
    is_received: bool = True
    responses: list[Any] = field(default_factory=list)

    @property
    def response(self) -> Any:
        assert len(self.responses) <= 1, f"{self.who}'s {self.what} got two responses"
        return self.responses[0] if self.responses else None


@dataclass
class Client:
    """A producer: id and epoch of its last response. `version` is its transaction.version."""

    name: str
    version: int = 2
    producer: ProducerIdAndEpoch = NO_PRODUCER
    timeout_ms: int = 60_000

    def learn(self, response: Any) -> None:
        if isinstance(response, ProducerResponse) and response.producer_id != NO_PRODUCER_ID:
            self.producer = ProducerIdAndEpoch(response.producer_id, response.epoch)


class Stage:
    """A shard, its log, producers, and partitions."""

    def __init__(self, version: int = 2) -> None:
        self.version = version
        self.shard = TransactionCoordinatorShard()
        self.now_ms = 0
        self.log: list[tuple[bytes, bytes | None]] = []
        self.clients: dict[str, Client] = {}
        self.requests: list[Request] = []
        self.next_id = FIRST_ID
        self.fail_with: ErrorCode | None = None
        self.holding = False
        self.held: deque[PendingTransition] = deque()
        self.partitions_wait = False
        self.sent: deque[SendMarkers] = deque()
        """Markers without a result, and markers to retry."""
        self.received: list[SendMarkers] = []
        """All markers that were sent, in order."""
        self.story: list[str] = []

    @property
    def now(self) -> EventContext:
        return EventContext(WALL_MS + self.now_ms, self.version)

    @property
    def transaction(self) -> Transaction | None:
        return self.shard.transactions.get(ID)

    def client(self, name: str) -> Client:
        return self.clients.setdefault(name, Client(name))

    # Requests of producers

    def begin(self, name: str, *, as_itself: bool = False, is_received: bool = True) -> Request:
        client = self.client(name)
        expected = client.producer if as_itself else None
        return self._ask(name, "init", InitProducerId(ID, client.timeout_ms, expected), is_received)

    def add(self, name: str, *partitions: str) -> Request:
        client = self.client(name)
        wanted = tuple(partition(each) for each in partitions)
        return self._ask(name, "add", AddPartitions(ID, client.producer, wanted, client.version))

    def verify(self, name: str, *partitions: str) -> Request:
        wanted = tuple(partition(each) for each in partitions)
        return self._ask(name, "verify", VerifyPartitions(ID, self.client(name).producer, wanted))

    def end(self, name: str, *, is_commit: bool, is_received: bool = True) -> Request:
        client = self.client(name)
        event = EndTransaction(ID, client.producer, is_commit, client.version)
        return self._ask(name, "commit" if is_commit else "abort", event, is_received)

    def _ask(
        self, who: str, what: str, event: TransactionRequest, is_received: bool = True
    ) -> Request:
        request = Request(who, what, is_received)
        self.requests.append(request)
        self.do(self.shard.handle(event, request, self.now))
        return request

    # Time

    def advance(self, ms: int) -> None:
        """Advance the time, abort timed-out transactions, and retry markers."""
        self.now_ms += ms
        if not self.partitions_wait:
            self.respond_markers()
        for transactional_id in list(self.shard.transactions):
            self.do(self.shard.abort_if_timed_out(transactional_id, self.now))
        for transactional_id in list(self.shard.transactions):
            self.do(self.shard.expire(transactional_id, self.now, WEEK_MS))

    # Partitions

    def respond_markers(self, results: Mapping[TopicPartition, MarkerResult] | None = None) -> None:
        """Deliver the results of sent markers: WRITTEN unless `results` has another one."""
        for _ in range(len(self.sent)):
            sent = self.sent.popleft()
            responses = {
                each: (results or {}).get(each, MarkerResult.WRITTEN) for each in sent.partitions
            }
            self.do(self.shard.on_markers_sent(sent, responses, self.now))

    # What the coordinator does

    def do(self, result: TransactionResult) -> None:
        todo = deque([result])
        while todo:
            result = todo.popleft()
            self.story += result.notes
            for future, response in result.replies:
                self._respond(future, response)
            for markers_to_send in result.markers:
                self._send(markers_to_send)
            for allocate in result.allocations:
                new_producer_id, self.next_id = self.next_id, self.next_id + 1
                self.story.append(f"new producer id: {new_producer_id}")
                todo.append(
                    self.shard.handle(allocate.event, allocate.future, self.now, new_producer_id)
                )
            todo.extend(self._append(each) for each in result.appends)
        if not self.partitions_wait and any(not each.attempt for each in self.sent):
            self.respond_markers()

    def _send(self, markers_to_send: SendMarkers) -> None:
        self.sent.append(markers_to_send)
        self.received.append(markers_to_send)
        if markers_to_send.partitions:
            kind = "COMMIT" if markers_to_send.is_commit else "ABORT"
            producer_id, epoch = markers_to_send.producer
            again = " again" if markers_to_send.attempt else ""
            self.story.append(
                f"markers{again}: {kind} of {producer_id}/{epoch} to {_words(markers_to_send.partitions)}"
            )

    def _respond(self, future: Request, response: Any) -> None:
        future.responses.append(response)
        assert len(future.responses) == 1, f"{future.who}'s {future.what} got two responses"
        if future.is_received:
            self.client(future.who).learn(response)
        suffix = "" if future.is_received else " (response lost)"
        self.story.append(f"{future.who} <- {future.what}: {_describe(response)}{suffix}")

    def _append(self, append: TransitionAppend) -> TransactionResult:
        completion = append.completion
        if self.fail_with is not None:
            code, self.fail_with = self.fail_with, None
            self.story.append(f"the append fails: {code.name.upper()}")
            return self.shard.append_failed(completion, code)
        self.log.append(
            records.encode(completion.transactional_id, completion.metadata, self.version)
        )
        self.story.append(f"record {_describe_metadata(completion.metadata)}")
        if self.holding:
            self.held.append(completion)
            return TransactionResult()
        return self.shard.appended(completion, self.now)

    def release(self, code: ErrorCode | None = None) -> None:
        """Commit the held appends, or fail them with a code."""
        held, self.held = self.held, deque()
        for completion in held:
            if code is None:
                self.do(self.shard.appended(completion, self.now))
            else:
                self.do(self.shard.append_failed(completion, code))

    def replayed(self) -> TransactionCoordinatorShard:
        """Load the log into another shard."""
        shard = TransactionCoordinatorShard()
        for key, value in self.log:
            metadata = None if value is None else records.decode_value(value)
            shard.replay(records.decode_key(key), metadata)
        return shard

    def restart(self) -> None:
        """Crash and restart the broker: waiting requests get no response."""
        self.shard = self.replayed()
        self.held.clear()
        self.sent.clear()
        for _ in self.shard.find_prepared_transactions():
            pass
        for transactional_id in self.shard.take_prepared_transactions():
            self.do(self.shard.resume(transactional_id, self.now))


# Text for transcripts


def _words(partitions: tuple[TopicPartition, ...]) -> str:
    return " ".join(str(each) for each in partitions) or "nowhere"


def _describe(response: Any) -> str:
    if isinstance(response, PartitionsResponse):
        return ", ".join(f"{each} {code.name.upper()}" for each, code in response.errors.items())
    assert isinstance(response, ProducerResponse)
    if response.error is not ErrorCode.none or response.producer_id == NO_PRODUCER_ID:
        return response.error.name.upper()
    return f"{response.error.name.upper()}, producer {response.producer_id}/{response.epoch}"


def _describe_metadata(metadata: TransactionMetadata | None) -> str:
    if metadata is None:
        return "gone"
    parts = [f"{metadata.state.value} {metadata.producer_id}/{metadata.epoch}"]
    if metadata.previous_producer_id not in (NO_PRODUCER_ID, metadata.producer_id):
        parts.append(f"previous {metadata.previous_producer_id}")
    if metadata.next_producer_id != NO_PRODUCER_ID:
        parts.append(f"next {metadata.next_producer_id}")
    if metadata.partitions:
        parts.append(_words(metadata.partitions))
    return ", ".join(parts)


def where_it_stands(stage: Stage) -> str:
    transaction = stage.transaction
    if transaction is None:
        return "[no transactional id]"
    pending = transaction.pending
    becoming = "" if pending is None else f", pending {pending.value}"
    return f"[{_describe_metadata(transaction.metadata)}{becoming}]"
