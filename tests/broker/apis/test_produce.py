"""Tests of Produce with a client socket: acks, validation, and that a rejected batch is not appended."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import pytest
import trio

from odradek.broker.apis.produce import produce as handle_produce
from odradek.broker.apis.produce import produce_nowait
from odradek.broker.requests.context import RequestContext
from odradek.broker.requests.route import WOULD_BLOCK
from odradek.broker.security.authorizer import Authorizer
from odradek.protocol import apis
from odradek.protocol.errors import ErrorCode
from odradek.protocol.produce_request_reader import ProduceRequest, ProduceTopic
from odradek.protocol.records.batch import Batch
from odradek.protocol.records.compression import ZSTD, compress
from odradek.protocol.records.crc32c import crc32c
from odradek.protocol.records.records import Record, build_batch
from odradek.replication.controller.acls import (
    Acl,
    AclOperation,
    AclResource,
    PatternType,
    Permission,
)
from odradek.testing import Broker
from tests.support.brokers import broker_fixture
from tests.support.produce_requests import PRODUCE_VERSION, end_offset, produce_batch
from tests.support.raw_requests import ask, connect, framed, read_frame, request_frame
from tests.support.records import batch

_numbers = itertools.count()


broker = broker_fixture()


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    name = f"{request.node.name.split('[')[0]}-{next(_numbers)}"
    broker.create_topic(name, partitions=1)
    return name


@pytest.mark.parametrize("acks", [1, -1])
def test_response_has_offset_of_first_record(broker: Broker, topic: str, acks: int) -> None:
    assert [produce_batch(broker, topic, batch(), acks=acks).base_offset for _ in range(3)] == [
        0,
        1,
        2,
    ]


@pytest.mark.parametrize("acks", [1, -1])
def test_flush_messages_applies_before_the_response(broker: Broker, acks: int) -> None:
    topic = f"flushed-{acks}"
    broker.create_topic(topic, partitions=1, configs={"flush.messages": "2"})

    async def recovery_point() -> int:
        return (await broker.node.partitions.get(topic, None, 0)).log.recovery_point

    points = []
    for _ in range(4):
        assert produce_batch(broker, topic, batch(), acks=acks).error_code == ErrorCode.none
        points.append(broker._call(recovery_point))
    assert points == [0, 2, 2, 4]


def test_log_flush_interval_messages_applies_to_offset_commits() -> None:
    """Otherwise a power failure could lose an acknowledged commit."""
    commit = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [
            {
                "name": "t",
                "partitions": [
                    {
                        "partition_index": 0,
                        "committed_offset": 5,
                        "committed_leader_epoch": -1,
                        "committed_metadata": "",
                    }
                ],
            }
        ],
    }
    configs = {"log.flush.interval.messages": "1", "offsets.topic.num.partitions": "1"}
    with Broker(topics={"t": 1}, configs=configs) as broker:

        async def not_durable() -> int:
            log = (await broker.node.partitions.get("__consumer_offsets", None, 0)).log
            return log.end_offset - log.recovery_point

        found = ask(broker, apis.FIND_COORDINATOR, 3, {"key": "g", "key_type": 0})
        assert found.error_code in (ErrorCode.none, ErrorCode.coordinator_not_available)
        for _ in range(20):
            committed = wait_for_commit(broker, commit)
            assert committed == ErrorCode.none
            assert broker._call(not_durable) == 0


def wait_for_commit(broker: Broker, commit: dict[str, Any]) -> ErrorCode:
    """Error of the commit, once the group has a coordinator."""
    while True:
        response = ask(broker, apis.OFFSET_COMMIT, 8, commit)
        error: ErrorCode = response.topics[0].partitions[0].error_code
        if error not in (ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress):
            return error


def test_invalid_acks_are_rejected(broker: Broker, topic: str) -> None:
    assert (
        produce_batch(broker, topic, batch(), acks=2).error_code == ErrorCode.invalid_required_acks
    )
    assert end_offset(broker, topic) == 0


def test_failed_produce_with_acks_0_closes_the_connection(broker: Broker) -> None:
    assert produce_batch(broker, "there is no such topic", batch(), acks=0) is None


def test_transactional_batch_without_transactional_id_is_rejected(
    broker: Broker, topic: str
) -> None:
    refused = produce_batch(
        broker,
        topic,
        batch(producer_id=5, producer_epoch=0, base_sequence=0, transactional=True),
    )
    assert refused.error_code == ErrorCode.transactional_id_authorization_failed
    assert end_offset(broker, topic) == 0


def test_request_with_rejected_transactional_batch_appends_nothing(broker: Broker) -> None:
    broker.create_topic("both", partitions=2)
    of_a_transaction = batch(producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    partitions = [
        {"index": index, "records": records}
        for index, records in enumerate((batch(), of_a_transaction))
    ]
    values = {
        "transactional_id": None,
        "acks": -1,
        "timeout": 1000,
        "topic_data": [{"name": "both", "partition_data": partitions}],
    }
    response = ask(broker, apis.PRODUCE, PRODUCE_VERSION, values)
    refused = ErrorCode.transactional_id_authorization_failed
    assert [each.error_code for each in response.responses[0].partition_responses] == [refused] * 2
    assert end_offset(broker, "both") == 0


@pytest.mark.parametrize("is_transactional", [False, True])
def test_transactional_id_is_authorized_only_for_transactional_batches(
    broker: Broker, topic: str, is_transactional: bool
) -> None:
    changes = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    records = memoryview(bytearray(batch(transactional=is_transactional, **changes)))
    request = ProduceRequest("mine", 1, 1000, [ProduceTopic(topic, None, [(0, records)])])
    ctx = context_of(broker)
    ctx.authorizer = Authorizer()
    ctx.authorizer.load([may_write(topic)])

    async def handled() -> int:
        response = await handle_produce(request, ctx)
        assert response is not None
        return response.topics[0][2][0].error_code

    denied = ErrorCode.transactional_id_authorization_failed
    assert broker._call(handled) == (denied if is_transactional else ErrorCode.none)


def may_write(topic: str) -> Acl:
    return Acl(
        AclResource.TOPIC,
        topic,
        PatternType.LITERAL,
        "User:ANONYMOUS",
        "*",
        AclOperation.WRITE,
        Permission.ALLOW,
    )


@pytest.mark.parametrize("version", range(3, PRODUCE_VERSION + 1))
def test_zstd_requires_version_7(broker: Broker, topic: str, version: int) -> None:
    from odradek.protocol.records.compression import LZ4, ZSTD

    assert (
        produce_batch(broker, topic, batch(compression=LZ4), version=version).error_code
        == ErrorCode.none
    )
    response = produce_batch(broker, topic, batch(compression=ZSTD), version=version)
    expected = ErrorCode.unsupported_compression_type if version < 7 else ErrorCode.none
    assert response.error_code == expected
    assert end_offset(broker, topic) == 1 + (version >= 7)


def flipped(records: bytes, position: int) -> bytes:
    changed = bytearray(records)
    changed[position] ^= 0xFF
    return bytes(changed)


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (flipped(batch(), 65), ErrorCode.corrupt_message),  # a byte of a record, so the CRC differs
        (batch()[:-1], ErrorCode.invalid_record),
        (b"", ErrorCode.invalid_record),
        (None, ErrorCode.invalid_record),
        (batch() + batch(), ErrorCode.invalid_record),
        (batch(control=True), ErrorCode.invalid_record),
    ],
)
def test_invalid_batch_is_rejected(
    broker: Broker, topic: str, records: bytes | None, error: ErrorCode
) -> None:
    assert produce_batch(broker, topic, records).error_code == error
    assert end_offset(broker, topic) == 0


def test_idempotent_producer_sequences_and_epochs(broker: Broker, topic: str) -> None:
    """A duplicate gets its first offset; a gap and an old epoch are rejected."""

    def send(sequence: int, epoch: int = 3) -> tuple[ErrorCode, int]:
        response = produce_batch(
            broker,
            topic,
            batch(producer_id=900, producer_epoch=epoch, base_sequence=sequence),
        )
        return response.error_code, response.base_offset

    assert send(0) == (ErrorCode.none, 0)
    assert send(1) == (ErrorCode.none, 1)
    assert send(0) == (ErrorCode.none, 0)
    assert send(3)[0] == ErrorCode.out_of_order_sequence_number
    assert send(2, epoch=2)[0] == ErrorCode.invalid_producer_epoch
    assert end_offset(broker, topic) == 2


def test_produce_to_internal_topic_is_rejected(broker: Broker) -> None:
    broker.create_topic("__consumer_offsets", partitions=1)
    refused = produce_batch(broker, "__consumer_offsets", batch())
    assert refused.error_code == ErrorCode.invalid_topic_exception


def test_batch_of_old_format_is_rejected(broker: Broker, topic: str) -> None:
    old = bytearray(batch())
    old[16] = 1
    assert produce_batch(broker, topic, bytes(old)).error_code == ErrorCode.invalid_record


def test_batch_with_millions_of_records_is_rejected_unread(broker: Broker, topic: str) -> None:
    """A batch of some 20 KiB with millions of records would occupy the event loop for minutes."""
    count = 4_000_000
    one = bytes([12, 0, 0, 0, 1, 1, 0])
    body = compress(ZSTD, one * count)
    head = bytearray(batch(compression=ZSTD)[:61])
    struct.pack_into(">i", head, 8, 49 + len(body))
    struct.pack_into(">i", head, 23, count - 1)
    struct.pack_into(">i", head, 57, count)
    bomb = memoryview(bytearray(head) + body)
    struct.pack_into(">I", bomb, 17, crc32c(bomb[21:]))
    assert produce_batch(broker, topic, bytes(bomb)).error_code == ErrorCode.message_too_large


def test_large_compressed_batch_does_not_block_event_loop(broker: Broker, topic: str) -> None:
    """A few KiB decompress to tens of MiB, and the keys are checked in a compacted topic."""
    name = f"{topic}-compacted"
    broker.create_topic(name, 1, {"cleanup.policy": "compact"})
    record = Record(offset=0, timestamp=1_700_000_000_000, key=b"k", value=bytes(32 << 20))
    much = build_batch([record], compression=ZSTD)
    assert len(much) < 10_000
    asked = ProduceRequest(None, 1, 1000, [ProduceTopic(name, None, [(0, memoryview(much))])])

    async def passes() -> int:
        """Number of times that another task ran while the request was handled."""
        count = 0

        async def others() -> None:
            nonlocal count
            while True:
                await trio.lowlevel.checkpoint()
                count += 1

        context = context_of(broker)
        assert produce_nowait(asked, context) is WOULD_BLOCK
        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            response = await handle_produce(asked, context)
            nursery.cancel_scope.cancel()
        assert response is not None
        ((_, _, (outcome,)),) = response.topics
        assert (outcome.error_code, outcome.base_offset) == (ErrorCode.none, 0)
        return count

    assert broker._call(passes) > 10
    assert end_offset(broker, name) == 1


@pytest.mark.parametrize(("records", "times"), [(101_000, 1), (1, 2)])
def test_batch_checked_in_thread_is_not_rechecked_in_event_loop(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch, records: int, times: int
) -> None:
    """It is not checked there if the header has its size, and once if its size is known only after decompression."""
    name = f"{topic}-compacted"
    broker.create_topic(name, 1, {"cleanup.policy": "compact"})
    # The partition is open now
    assert produce_batch(broker, name, batch()).error_code == ErrorCode.none
    value = bytes(32 << 20) if records == 1 else b""
    much = build_batch(
        [Record(offset, 1_700_000_000_000, b"k", value, ()) for offset in range(records)],
        compression=ZSTD,
    )
    asked = ProduceRequest(None, 1, 1000, [ProduceTopic(name, None, [(0, memoryview(much))])])
    checks: list[Batch] = []
    check = Batch.check

    def counted(batch: Batch) -> None:
        checks.append(batch)
        check(batch)

    async def ask_for_it() -> None:
        context = context_of(broker)
        assert produce_nowait(asked, context) is WOULD_BLOCK
        assert await handle_produce(asked, context) is not None

    monkeypatch.setattr(Batch, "check", counted)
    broker._call(ask_for_it)
    assert len(checks) == times
    assert end_offset(broker, name) == 1 + records


def context_of(broker: Broker) -> RequestContext:
    node = broker.node
    endpoint = node.endpoints[0]
    return RequestContext(
        node.services,
        apis.PRODUCE,
        PRODUCE_VERSION,
        1,
        "test",
        endpoint,
        endpoint.address,
        trio.lowlevel.checkpoint,
    )


@pytest.mark.parametrize("refused", ["unknown API", "acks=0 to no topic"])
def test_response_is_sent_before_connection_is_closed(
    broker: Broker, topic: str, refused: str
) -> None:
    """Both requests have arrived; the second one closes the connection after the response to the first."""

    def request(name: str, acks: int) -> bytes:
        values = {
            "transactional_id": None,
            "acks": acks,
            "timeout": 1000,
            "topic_data": [
                {"name": name, "partition_data": [{"index": 0, "records": batch()}]},
            ],
        }
        return request_frame(apis.PRODUCE, PRODUCE_VERSION, 7, values)

    unknown = framed(struct.pack(">hhih", 999, 0, 8, -1))
    second = unknown if refused == "unknown API" else request("no-such-topic", 0)
    with connect(broker) as sock:
        sock.sendall(request(topic, 1) + second)
        response = read_frame(sock)
        assert response[:4] == struct.pack(">i", 7)
        assert read_frame(sock) == b""
    assert end_offset(broker, topic) == 1
