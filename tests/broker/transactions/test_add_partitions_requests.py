"""AddPartitionsToTxn and WriteTxnMarkers use separate connections to a broker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import trio

from odradek.broker.coordination.internal_topics import TRANSACTIONS_TOPIC
from odradek.broker.transactions.markers import TransactionMarker
from odradek.protocol.apis import ADD_PARTITIONS_TO_TXN, WRITE_TXN_MARKERS
from odradek.protocol.errors import ErrorCode
from odradek.protocol.schemas.topic_records import PartitionRecord, TopicRecord
from odradek.protocol.topics import TopicPartition
from odradek.replication.controller.image import Endpoint
from odradek.replication.controller.image_records import broker_record
from odradek.testing import Broker
from tests.broker.transactions.remote_coordinator import Coordinator
from tests.support.scripted_broker import SILENCE, ReceivedRequest, ScriptedBroker, scripted_broker

OTHER = 77
T = TopicPartition("t", 0)


async def leads_everything(broker: Broker, other: ScriptedBroker) -> None:
    """Register OTHER as the leader of t and of all partitions of `__transaction_state`."""
    node = broker.node
    image = node.metadata.image
    where = Endpoint(node.config.inter_broker_listener, other.address.host, other.address.port, 0)
    known = replace(image.brokers[node.node_id], id=OTHER, endpoints=(where,))
    records: list[Any] = [broker_record(known, image.features["metadata.version"])]
    for number, name in enumerate((T.topic, TRANSACTIONS_TOPIC), 1000):
        topic_id = UUID(int=number)
        records += [
            TopicRecord(name=name, topic_id=topic_id),
            PartitionRecord(
                partition_id=0,
                topic_id=topic_id,
                replicas=(OTHER,),
                isr=(OTHER,),
                removing_replicas=(),
                adding_replicas=(),
                leader=OTHER,
                leader_epoch=0,
                partition_epoch=0,
            ),
        ]
    await node.metadata.commit(records)


async def test_verification_does_not_wait_for_markers() -> None:
    """WriteTxnMarkers waits for replication, and a broker serves the requests of a connection in order."""
    held = trio.Event()

    def script(asked: ReceivedRequest) -> Any:
        if asked.api is WRITE_TXN_MARKERS:
            held.set()
            return SILENCE
        return Coordinator()(asked)

    async with scripted_broker(script) as other, Broker() as broker, trio.open_nursery() as nursery:
        await leads_everything(broker, other)
        coordinators = broker.node.services.coordinators
        marker = TransactionMarker(1000, 1, 3, True, (T,), 2)
        nursery.start_soon(coordinators.transactions._markers.send, marker)
        with trio.fail_after(10):
            await held.wait()
            response = await broker.node.services.transaction_partitions.add_partitions(
                "id", 7, 1, (T,), verify_only=True
            )
        assert response == {T: ErrorCode.none}
        asked = {each.client_id for each in other.requests_of(WRITE_TXN_MARKERS)}
        assert asked.isdisjoint(each.client_id for each in other.requests_of(ADD_PARTITIONS_TO_TXN))
        nursery.cancel_scope.cancel()
