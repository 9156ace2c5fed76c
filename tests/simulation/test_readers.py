"""Readers stop at the end offset of the final read, even if markers are appended after it."""

from __future__ import annotations

import trio

from odradek.client.metadata import open_cluster
from odradek.client.transactions import EncodedRecords, TransactionalProducer
from odradek.protocol.records.batch import HEADER_SIZE
from odradek.protocol.records.records import Record, build_batch
from odradek.seams.tcp import TcpNetwork
from odradek.testing import Broker
from odradek.testing.simulation.history import ClientHistory, ReadRecord
from odradek.testing.simulation.readers import Readers


async def test_marker_after_the_end_offset_does_not_block_readers() -> None:
    """A transaction that times out may append its marker to a partition without records of it, at any time."""
    history = ClientHistory()
    readers = Readers(history, "t", 1, poll_s=0.1)
    batch = build_batch([Record(0, 1000, None, b"a")])
    one = EncodedRecords(bytes(batch[HEADER_SIZE:]), 1, 1000, 1000)
    async with (
        Broker(topics={"t": 1}) as broker,
        open_cluster(TcpNetwork(), broker.bootstrap, timeout_s=10) as cluster,
    ):
        producer = TransactionalProducer(cluster, "id")
        await producer.begin()
        await producer.send("t", {0: one})
        await producer.commit()
        await readers.read_final(cluster, [])
        await producer.begin()
        await producer.send("t", {0: one})
        await producer.abort()
        with trio.fail_after(10):
            await readers.read_along(cluster, "reader")
    assert history.polled["reader"] == history.final == [ReadRecord(0, 0, b"a")]
