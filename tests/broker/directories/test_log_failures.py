"""Tests of a single failed log, which is reported to the controller like a failed directory."""

from __future__ import annotations

import errno
from contextlib import suppress

from confluent_kafka import KafkaException, Producer

from odradek.protocol.errors import ErrorCode
from tests.broker.directories.node import Node, running, two_disks
from tests.support.waiting import deadline


def abort_a_transaction(node: Node) -> None:
    producer = Producer(
        {"bootstrap.servers": node.broker.bootstrap, "transactional.id": "x", "log_level": 0}
    )
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce("t", b"value", partition=0)
    producer.flush(10)
    with suppress(KafkaException):  # it waits for the transaction marker
        producer.abort_transaction(1)


def test_failed_log_has_another_leader_until_restart() -> None:
    """Other in-sync replicas must be able to lead."""
    disk = two_disks()
    with running(disk, topics={"t": 2}) as node:
        assert node.produce("t", 0, "before") is ErrorCode.none
        disk.fail("/*/t-0/*.txnindex", errno.EMFILE, {"create"})
        abort_a_transaction(node)
        with deadline(10, "the failure to be known") as check:
            while node.metadata("t")[0].leader_id != -1:
                check(0.01)
        assert node.produce("t", 0, "meanwhile") is ErrorCode.kafka_storage_error
        assert node.metadata("t")[1].leader_id >= 0
        assert node.produce("t", 1, "meanwhile") is ErrorCode.none
        assert all(each.error_code is ErrorCode.none for each in node.log_dirs().values())
    disk.heal()
    with running(disk) as node:
        with deadline(10, "a leader") as check:
            while node.produce("t", 0, "after") is not ErrorCode.none:
                check(0.01)
