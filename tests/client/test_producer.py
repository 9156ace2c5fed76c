"""Tests of the producer with a broker that rejects batches, disconnects and restarts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

from odradek.client.connection import BrokerConnection
from odradek.client.errors import ClientError, TimedOut, Unreachable
from odradek.client.metadata import BACKOFF_S, open_cluster
from odradek.client.producer import PRODUCE_RESPONSE_S, Producer, ProducerOptions, open_producer
from odradek.protocol.apis import INIT_PRODUCER_ID, METADATA, PRODUCE
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.records.batch import batches
from odradek.protocol.records.records import decode
from odradek.seams.clock import RealClock
from odradek.seams.entropy import RealEntropy
from odradek.seams.network import Address, Connection
from odradek.seams.tcp import TcpNetwork
from odradek.testing.virtual_network import WINDOW_BYTES
from odradek.testing.virtual_world import VirtualWorld
from tests.support.scripted_broker import (
    HANG_UP,
    SILENCE,
    ReceivedRequest,
    ScriptedBroker,
    scripted_broker,
)

Response = Any
QUICK = ProducerOptions(delivery_timeout_s=0.3, request_timeout_s=0.2)


@dataclass
class Log:
    """Appends what is produced, after the entries of `refusals`: an error, HANG_UP, or None to append.

    A tuple in `refusals` appends first and then fails: the response is lost.
    """

    refusals: list[Any] = field(default_factory=list)
    appended: list[tuple[int, int, list[bytes | None]]] = field(default_factory=list)
    """Producer id, base sequence and values of each appended batch."""
    sent: list[tuple[int, int, bytes]] = field(default_factory=list)
    """Producer id, base sequence and bytes of each received batch."""
    next_producer_id: int = 100
    end: int = 0

    def __call__(self, asked: ReceivedRequest) -> Response:
        if asked.api is INIT_PRODUCER_ID:
            self.next_producer_id += 1
            return {"error_code": 0, "producer_id": self.next_producer_id, "producer_epoch": 0}
        if asked.api is not PRODUCE:
            return None
        refusal = self.refusals.pop(0) if self.refusals else None
        rows = [
            (topic.name, self._take(part, refusal))
            for topic in asked.body.topic_data
            for part in topic.partition_data
        ]
        if refusal is HANG_UP or refusal == ("appended", HANG_UP):
            return HANG_UP
        return {"responses": [{"name": name, "partition_responses": [row]} for name, row in rows]}

    def _take(self, part: Any, refusal: Any) -> dict[str, Any]:
        (batch,) = batches(memoryview(bytes(part.records)), check=True)
        self.sent.append((batch.producer_id, batch.base_sequence, bytes(part.records)))
        code, base = ErrorCode.none, -1
        if refusal is None or isinstance(refusal, tuple):
            base = self.end
            self.end += batch.record_count
            values = [record.value for record in decode(batch)]
            self.appended.append((batch.producer_id, batch.base_sequence, values))
        elif isinstance(refusal, ErrorCode):
            code = refusal
        return {"index": part.index, "error_code": code, "base_offset": base}


@asynccontextmanager
async def producing(
    log: Log, options: ProducerOptions = QUICK, topics: dict[str, int] | None = None
) -> AsyncIterator[tuple[ScriptedBroker, Producer]]:
    seams = (RealClock(), RealEntropy())
    topics = {"t": 1} if topics is None else topics
    async with (
        scripted_broker(log, topics=topics) as broker,
        open_cluster(TcpNetwork(), [broker.address], timeout_s=1) as cluster,
        open_producer(cluster, *seams, options) as producer,
    ):
        yield broker, producer


async def test_records_queued_during_request_form_one_batch() -> None:
    log = Log()
    async with producing(log) as (_, producer):
        deliveries = [await producer.enqueue("t", b"%d" % n) for n in range(10)]
        await producer.flush()
        assert [await delivery.wait() for delivery in deliveries] == list(range(10))
    assert [len(values) for _, _, values in log.appended] == [10]


async def test_batch_is_limited_by_batch_bytes() -> None:
    log = Log()
    options = ProducerOptions(batch_bytes=1000)
    async with producing(log, options) as (_, producer):
        for _ in range(5):
            await producer.enqueue("t", b"x" * 400)
        await producer.enqueue("t", b"y" * 5000)  # larger than a batch: one of its own
        await producer.flush()
    assert [len(values) for _, _, values in log.appended] == [2, 2, 1, 1]
    assert [sequence for _, sequence, _ in log.appended] == [0, 2, 4, 5]


@pytest.mark.parametrize(
    "refusal",
    [ErrorCode.not_leader_or_follower, ErrorCode.not_enough_replicas, HANG_UP],
    ids=["not leader", "not enough replicas", "hang up"],
)
async def test_batch_is_retried_unchanged(refusal: Any) -> None:
    log = Log([refusal, refusal])
    async with producing(log) as (_, producer):
        assert await producer.send("t", b"x") == 0
        assert await producer.send("t", b"y") == 1
    assert log.sent[0] == log.sent[1] == log.sent[2]
    assert [(sequence, values) for _, sequence, values in log.appended] == [
        (0, [b"x"]),
        (1, [b"y"]),
    ]


async def test_records_queue_during_leader_lookup() -> None:
    """Only the cached metadata of its topic is removed."""
    log = Log(refusals=[None, ErrorCode.not_leader_or_follower])
    long_timeout = ProducerOptions(delivery_timeout_s=20, request_timeout_s=5)
    async with producing(log, long_timeout, {"a": 1, "t": 3000}) as (_, producer):
        await producer.send("t", b"known", partition=0)
        refused = await producer.enqueue("a", b"refused", partition=0)
        others = 0
        while not refused.done:
            await producer.enqueue("t", b"other", partition=1 + others % 2999)
            others += 1
            await trio.lowlevel.checkpoint()
        await producer.flush()
    values = [value for _, _, taken in log.appended for value in taken]
    assert sorted(values, key=str) == [b"known", *[b"other"] * others, b"refused"]


async def test_duplicate_sequence_counts_as_delivered() -> None:
    log = Log([("appended", HANG_UP), ErrorCode.duplicate_sequence_number])
    async with producing(log) as (_, producer):
        assert await producer.send("t", b"x") == -1  # the broker reports no offset
    assert log.sent[0] == log.sent[1]


async def test_rejected_batch_is_retried_with_backoff() -> None:
    class Refusing(Log):
        def _take(self, part: Any, refusal: Any) -> dict[str, Any]:
            return super()._take(part, ErrorCode.not_enough_replicas if part.index else None)

    log = Refusing()
    async with producing(log, ProducerOptions(), {"t": 2}) as (broker, producer):
        await producer.enqueue("t", b"refused", partition=1)
        began = trio.current_time()
        for _ in range(300):
            await producer.send("t", b"x", partition=0)
        refused = len(log.sent) - len(log.appended)
        assert 0 < refused <= (trio.current_time() - began) / BACKOFF_S + 1
        assert len(broker.requests_of(METADATA)) <= 2 * refused + 1


async def test_failed_batch_resets_producer_id() -> None:
    log = Log([ErrorCode.not_enough_replicas] * 1000)
    async with producing(log) as (_, producer):
        with pytest.raises(KafkaError, match="not enough replicas"):
            await producer.send("t", b"lost")
        log.refusals.clear()
        assert await producer.send("t", b"next") == 0
        with pytest.raises(KafkaError):
            await producer.flush()  # raised again by flush
        await producer.flush()
    first, last = log.sent[0], log.sent[-1]
    assert (first[0], first[1]) == (101, 0)
    assert (last[0], last[1]) == (102, 0)


async def test_record_after_leader_timeout_gets_full_timeout() -> None:
    log, leaders = Log(), [1]

    def script(asked: ReceivedRequest) -> Response:
        if asked.api is not METADATA:
            return log(asked)
        response = broker.metadata(asked)
        for topic in response["topics"]:
            for partition in topic["partitions"]:
                partition["leader_id"] = leaders[0]
        return response

    async with producing(log) as (broker, producer):
        broker.script = script
        leaders[0] = -1
        with pytest.raises(KafkaError, match="no leader"):
            await producer.send("t", b"lost")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.send, "t", b"next")
            await trio.sleep(QUICK.delivery_timeout_s / 3)
            leaders[0] = 1
    assert [values for _, _, values in log.appended] == [[b"next"]]


async def test_leaderless_partition_delays_no_other() -> None:
    """The metadata of the topic is requested once for many records."""
    log = Log()

    def script(asked: ReceivedRequest) -> Response:
        if asked.api is not METADATA:
            return log(asked)
        response = broker.metadata(asked)
        for topic in response["topics"]:
            for partition in topic["partitions"][1:]:
                partition["leader_id"] = -1
        return response

    long_timeout = ProducerOptions(delivery_timeout_s=20)
    async with producing(log, long_timeout, {"t": 100}) as (broker, producer):
        broker.script = script
        for partition in range(100):
            await producer.enqueue("t", b"early", partition=partition)
        with trio.fail_after(2):
            for _ in range(100):
                await producer.send("t", b"x", partition=0)
        assert len(broker.requests_of(METADATA)) < 20


async def test_non_retriable_error_fails_at_once() -> None:
    log = Log([ErrorCode.topic_authorization_failed])
    async with producing(log, ProducerOptions()) as (_, producer):
        with pytest.raises(KafkaError, match="authorization") as refused:
            await producer.send("t", b"x")
        assert refused.value.code is ErrorCode.topic_authorization_failed
    assert len(log.sent) == 1


async def test_too_large_batch_is_split() -> None:
    too_large = ErrorCode.message_too_large
    log = Log([too_large, too_large])
    async with producing(log) as (_, producer):
        deliveries = [await producer.enqueue("t", b"%d" % n) for n in range(8)]
        await producer.flush()
        assert [delivery.offset for delivery in deliveries] == list(range(8))
    values = [value for _, _, values in log.appended for value in values]
    assert values == [b"%d" % n for n in range(8)]
    assert [sequence for _, sequence, _ in log.appended] == [0, 2]
    assert len(log.appended[0][2]) == 2


async def test_single_too_large_record_fails_alone() -> None:
    log = Log([ErrorCode.message_too_large])
    async with producing(log) as (_, producer):
        with pytest.raises(KafkaError, match="message too large"):
            await producer.send("t", b"x")


async def test_non_idempotent_producer_has_no_producer_id() -> None:
    log = Log()
    async with producing(log, ProducerOptions(idempotent=False, acks=1)) as (broker, producer):
        await producer.send("t", b"x")
        assert broker.requests_of(INIT_PRODUCER_ID) == []
        assert broker.requests_of(PRODUCE)[0].body.acks == 1
    assert log.sent[0][:2] == (-1, -1)


async def test_acks_0_waits_for_no_response() -> None:
    arrived = trio.Event()
    log = Log()

    def script(asked: ReceivedRequest) -> Response:
        response = log(asked)
        if asked.api is PRODUCE:
            arrived.set()
            return b""
        return response

    options = ProducerOptions(acks=0, idempotent=False)
    async with scripted_broker(script, topics={"t": 1}) as broker:
        async with (
            open_cluster(TcpNetwork(), [broker.address]) as cluster,
            open_producer(cluster, RealClock(), RealEntropy(), options) as producer,
        ):
            assert await producer.send("t", b"x") == -1
        with trio.fail_after(2):  # it arrives, though the connection was closed right after
            await arrived.wait()
    assert log.appended[0][2] == [b"x"]


def test_idempotence_needs_all_acks() -> None:
    with pytest.raises(ValueError, match="acks=-1"):
        ProducerOptions(acks=1)


async def test_missing_topic_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odradek.client.producer.CREATION_WAIT_S", 1.0)
    async with producing(Log()) as (_, producer):
        with pytest.raises(KafkaError, match="topic missing does not exist"):
            await producer.send("missing", b"x")
        with pytest.raises(KafkaError, match=r"topic t has no partition 1 \(it has 1, from 0\)"):
            await producer.send("t", b"x", partition=1)


async def test_producer_fails_when_broker_does_not_return() -> None:
    log = Log()
    async with producing(log) as (_, producer):
        await producer.send("t", b"x")
        log.refusals = [HANG_UP] * 1000
        with pytest.raises((Unreachable, TimedOut)) as gone:
            await producer.send("t", b"y")
        assert isinstance(gone.value, ClientError)


def in_virtual_time(
    broker: ScriptedBroker,
    options: ProducerOptions,
    main: Callable[[Producer], Awaitable[None]],
) -> None:
    world = VirtualWorld()
    world.clock.jumping = True
    broker.address = Address("broker", 9092)

    async def run() -> None:
        (listener,) = await world.node("broker").network.listen("", 9092)
        client = world.node("client")

        async def accept() -> None:
            while True:
                nursery.start_soon(broker.serve, await listener.accept())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept)
            async with (
                open_cluster(client.network, [broker.address]) as cluster,
                open_producer(cluster, world.clock, RealEntropy(), options) as producer,
            ):
                await main(producer)
            nursery.cancel_scope.cancel()

    world.run(run)


def test_unresponsive_leader_fails_after_delivery_timeout() -> None:
    """The client also waits for the timeout error of the broker."""
    failed_at: list[float] = []
    log = Log()

    def script(asked: ReceivedRequest) -> Response:
        return SILENCE if asked.api is PRODUCE else log(asked)

    async def main(producer: Producer) -> None:
        with pytest.raises(TimedOut, match="did not respond to Produce"):
            await producer.send("t", b"x")
        failed_at.append(trio.current_time())
        (asked,) = broker.requests_of(PRODUCE)
        assert asked.body.timeout.total_seconds() <= 10

    broker = ScriptedBroker(script, topics={"t": 1})
    in_virtual_time(broker, ProducerOptions(delivery_timeout_s=10, request_timeout_s=30), main)
    assert failed_at[0] <= 10 + PRODUCE_RESPONSE_S


async def test_unresponsive_leader_delays_no_other_leader() -> None:
    log = Log()

    def script(asked: ReceivedRequest) -> Response:
        if asked.api is not METADATA:
            return log(asked)
        response = broker.metadata(asked)
        host, port = silent.address.host, silent.address.port
        response["brokers"].append({"node_id": 2, "host": host, "port": port, "rack": None})
        for topic in response["topics"]:
            topic["partitions"][1]["leader_id"] = 2
        return response

    async with (
        scripted_broker(lambda asked: SILENCE if asked.api is PRODUCE else None) as silent,
        producing(log, ProducerOptions(), {"t": 2}) as (broker, producer),
    ):
        broker.script = script
        await producer.enqueue("t", b"held up", partition=1)
        while not silent.requests_of(PRODUCE):
            await trio.sleep(0.01)
        with trio.fail_after(10):
            for n in range(3):
                assert await producer.send("t", b"x", partition=0) == n


async def test_queue_leaves_line_of_former_leader() -> None:
    log, leaders = Log(), {"a": 2, "b": 2, "c": 2}
    held: list[tuple[Connection, ReceivedRequest, Response]] = []

    class Silent(ScriptedBroker):
        @staticmethod
        async def respond(connection: Connection, asked: ReceivedRequest, response: Any) -> None:
            if asked.api is PRODUCE:
                held.append((connection, asked, response))
            else:
                await ScriptedBroker.respond(connection, asked, response)

    def script(asked: ReceivedRequest) -> Response:
        if asked.api is not METADATA:
            return log(asked)
        response = broker.metadata(asked)
        host, port = silent.address.host, silent.address.port
        response["brokers"].append({"node_id": 2, "host": host, "port": port, "rack": None})
        for topic in response["topics"]:
            topic["partitions"][0]["leader_id"] = leaders[topic["name"]]
        return response

    async with (
        scripted_broker(script, kind=Silent) as silent,
        producing(log, ProducerOptions(), dict.fromkeys(leaders, 1)) as (broker, producer),
    ):
        broker.script = script
        await producer.enqueue("a", b"under way")
        while not held:
            await trio.sleep(0.01)
        moved = await producer.enqueue("b", b"moved")
        await producer.enqueue("c", b"held up")
        leaders["b"] = 1
        await producer._cluster.topic("b")
        await ScriptedBroker.respond(*held[0])
        with trio.fail_after(5):
            await moved.wait()


async def test_closing_producer_fails_unacknowledged_records() -> None:
    def script(asked: ReceivedRequest) -> Response:
        return SILENCE if asked.api is PRODUCE else log(asked)

    log = Log()
    async with producing(log) as (broker, producer):
        broker.script = script
        sent = await producer.enqueue("t", b"under way")
        while not broker.requests_of(PRODUCE):
            await trio.sleep(0.01)
        queued = await producer.enqueue("t", b"queued")
    for delivery in (sent, queued):
        with pytest.raises(
            ClientError, match="t-0: not acknowledged before the producer was closed"
        ):
            await delivery.wait()
    with pytest.raises(ClientError, match="t-0: the producer is closed"):
        await producer.send("t", b"late")


async def test_closed_producer_fails_only_queued_record() -> None:
    """The producer is closed before the leader's task has run."""
    async with producing(Log()) as (_, producer):
        await producer.send("t", b"x")
        left = await producer.enqueue("t", b"y")
    with pytest.raises(ClientError, match="t-0: not acknowledged before the producer was closed"):
        await left.wait()


@pytest.mark.parametrize("number", range(8))  # trio runs the two tasks in random order
@pytest.mark.parametrize("refusal", [None, ErrorCode.message_too_large])
async def test_response_during_close_completes_once(
    refusal: ErrorCode | None, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, has_come = Log(), trio.Event()
    deliver = BrokerConnection._deliver

    def reporting(connection: BrokerConnection, body: memoryview) -> None:
        deliver(connection, body)
        has_come.set()

    async with producing(log) as (_, producer):
        await producer.send("t", b"x")
        log.refusals = [refusal]
        monkeypatch.setattr(BrokerConnection, "_deliver", reporting)
        deliveries = [await producer.enqueue("t", value) for value in (b"y", b"z")]
        await has_come.wait()
    with trio.fail_after(2), suppress(ClientError):
        await producer.flush()
    assert [each.failure is None for each in deliveries] == [refusal is None] * 2


class Unreading(ScriptedBroker):
    """Receives nothing after the first records."""

    @staticmethod
    async def respond(connection: Connection, asked: ReceivedRequest, response: Any) -> None:
        if asked.api is PRODUCE:
            await trio.sleep_forever()
        await ScriptedBroker.respond(connection, asked, response)


def test_acks_0_times_out_if_leader_does_not_receive() -> None:
    def script(asked: ReceivedRequest) -> Response:
        return b"" if asked.api is PRODUCE else None

    async def main(producer: Producer) -> None:
        assert await producer.send("t", b"read") == -1
        with trio.fail_after(60):
            with pytest.raises(TimedOut, match="did not receive Produce in 3 s"):
                await producer.send("t", bytes(2 * WINDOW_BYTES))

    options = ProducerOptions(acks=0, idempotent=False, delivery_timeout_s=3, request_timeout_s=3)
    in_virtual_time(Unreading(script, topics={"t": 1}), options, main)


async def test_records_of_a_key_keep_partition_and_order() -> None:
    log = Log()
    async with producing(log, topics={"t": 4}) as (_, producer):
        deliveries = [
            await producer.enqueue("t", b"%d" % n, key=b"%d" % (n % 5)) for n in range(50)
        ]
        await producer.flush()
        homes = {n % 5: delivery.partition for n, delivery in enumerate(deliveries)}
        assert all(homes[n % 5] == delivery.partition for n, delivery in enumerate(deliveries))
    for _, _, values in log.appended:
        numbers = [int(value or b"") for value in values]
        assert numbers == sorted(numbers)


async def test_enqueue_waits_for_buffer_space() -> None:
    log = Log()
    options = ProducerOptions(buffer_bytes=1000, batch_bytes=300)
    async with producing(log, options) as (_, producer):
        for _ in range(100):
            await producer.enqueue("t", b"x" * 100)
        await producer.flush()
    assert sum(len(values) for _, _, values in log.appended) == 100


async def test_unreachable_cluster_fails_after_delivery_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The timeout is not only that of topic creation."""
    monkeypatch.setattr("odradek.client.producer.CREATION_WAIT_S", 0.1)
    log, is_away = Log(), [True]

    def script(asked: ReceivedRequest) -> Response:
        return HANG_UP if is_away[0] else log(asked)

    long_timeout = ProducerOptions(delivery_timeout_s=20, request_timeout_s=5)
    async with producing(log, long_timeout) as (broker, producer):
        broker.script = script
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.send, "t", b"x")
            await trio.sleep(0.4)
            is_away[0] = False
    assert [values for _, _, values in log.appended] == [[b"x"]]


async def test_split_batch_keeps_sequence_after_another_batch_failed() -> None:
    log = Log()
    verdicts = {0: [ErrorCode.topic_authorization_failed], 1: [ErrorCode.message_too_large]}

    def script(asked: ReceivedRequest) -> Response:
        if asked.api is not PRODUCE:
            return log(asked)
        rows = []
        for topic in asked.body.topic_data:
            for part in topic.partition_data:
                left = verdicts[part.index]
                rows.append(log._take(part, left.pop() if left else None))
        return {"responses": [{"name": "t", "partition_responses": rows}]}

    async with producing(log, topics={"t": 2}) as (broker, producer):
        broker.script = script
        refused = await producer.enqueue("t", b"refused", partition=0)
        halved = [await producer.enqueue("t", b"%d" % n, partition=1) for n in range(2)]
        with pytest.raises(KafkaError, match="authorization"):
            await refused.wait()
        for delivery in halved:
            await delivery.wait()
    assert log.appended == [(101, 0, [b"0"]), (102, 0, [b"1"])]


async def test_batch_keeps_sequence_after_another_batch_failed() -> None:
    """The other batch fails without a leader when both should be sent."""
    log, is_denied = Log(), [False]

    def script(asked: ReceivedRequest) -> Response:
        if asked.api is not METADATA or not is_denied[0]:
            return log(asked)
        response = broker.metadata(asked)
        for topic in response["topics"]:
            if topic["name"] == "a":
                topic["error_code"] = ErrorCode.topic_authorization_failed
        return response

    long_timeout = ProducerOptions(delivery_timeout_s=20, request_timeout_s=5)
    async with producing(log, long_timeout, {"a": 1, "b": 1}) as (broker, producer):
        broker.script = script
        await producer.send("a", b"0")
        await producer.send("b", b"1")
        log.refusals, is_denied[0] = [ErrorCode.not_leader_or_follower], True
        refused = await producer.enqueue("a", b"given up")
        while log.refusals:
            await trio.lowlevel.checkpoint()
        await producer.send("b", b"2")
        with pytest.raises(KafkaError, match="authorization"):
            await refused.wait()
        await producer.send("b", b"3")
    assert log.appended[-2:] == [(101, 1, [b"2"]), (102, 0, [b"3"])]


async def test_empty_queue_resets_leader_timeout() -> None:
    """A later record has the full timeout, even if other partitions waited for a producer id."""

    class Clock(RealClock):
        ahead_s = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.ahead_s

    log, leader, without_id = Log(), [1], [False]

    def script(asked: ReceivedRequest) -> Response:
        if asked.api is INIT_PRODUCER_ID and without_id[0]:
            without_id[0] = False
            code = ErrorCode.coordinator_load_in_progress
            return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
        if asked.api is METADATA:
            response = broker.metadata(asked)
            for topic in response["topics"]:
                for partition in topic["partitions"]:
                    partition["leader_id"] = leader[0]
            leader[0] = 1
            return response
        return log(asked)

    clock, options = Clock(), ProducerOptions(delivery_timeout_s=60)
    async with (
        scripted_broker(script, topics={"t": 2}) as broker,
        open_cluster(TcpNetwork(), [broker.address], timeout_s=5) as cluster,
        open_producer(cluster, clock, RealEntropy(), options) as producer,
    ):
        await producer.send("t", b"a", partition=0)
        log.refusals = [ErrorCode.topic_authorization_failed]
        with pytest.raises(KafkaError):
            await producer.send("t", b"lost", partition=1)
        without_id[0] = True
        await producer.send("t", b"b", partition=1)
        clock.ahead_s, leader[0] = 100, -1
        cluster.forget("t")
        await cluster.topic("t")
        await producer.send("t", b"c", partition=0)
    assert [values for _, _, values in log.appended] == [[b"a"], [b"b"], [b"c"]]
