"""Requests to Apache Kafka and Odradek, and the comparison of their responses. Everything that a client can see
is compared, except addresses, ids, disk sizes and the texts of errors. Whether there is an error text is
compared."""

from __future__ import annotations

import datetime
import enum
import socket
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any
from uuid import UUID

from odradek.protocol import apis, messages
from odradek.protocol.apis import Api
from tests.support.broker_process import BrokerProcess

DIFFER = {
    "cluster_id",
    "finalized_features_epoch",
    "throttle_time",
    "total_bytes",
    "usable_bytes",
    "documentation",
    "host",
    "port",
    "log_dir",
}
# Configs whose values depend on the environment of the brokers.
OWN_CONFIGS = {
    "controller.listener.names",
    "controller.quorum.bootstrap.servers",
    "listeners",
    "log.dirs",
    "socket.receive.buffer.bytes",  # a single node has other defaults
    "socket.send.buffer.bytes",
}

Values = dict[str, Any]


def ask(
    broker: BrokerProcess, api: Api, version: int, values: Values, source: str = "127.0.0.1"
) -> Any:
    """Response to one request that is sent from the address `source`; None if the connection is closed."""
    host, _, port = broker.bootstrap.rpartition(":")
    head = api.key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\x00\x01x"
    if api.flexible(version):
        head += b"\x00"
    frame = head + messages.write_request(api.key, version, values)
    with socket.create_connection((host, int(port)), 30, (source, 0)) as connection:
        connection.sendall(len(frame).to_bytes(4, "big") + frame)
        with connection.makefile("rb") as responses:
            try:
                head = responses.read(4)
            except ConnectionResetError:
                head = b""
            if not head:
                return None
            size = int.from_bytes(head, "big")
            response = responses.read(size)
    header = 5 if api.flexible(version) and api is not apis.API_VERSIONS else 4
    return messages.read_response(api.key, version, memoryview(response)[header:])


def plain(value: Any) -> Any:
    """The part of a response that is compared; the order of lists does not matter."""
    if is_dataclass(value):
        found = {
            field.name: plain(getattr(value, field.name))
            for field in fields(value)
            if field.name not in DIFFER
        }
        for name in ("error_message", "batch_index_error_message"):
            if name in found:
                found[name] = found[name] is not None
        return found
    if isinstance(value, tuple):
        kept = [each for each in value if getattr(each, "name", None) not in OWN_CONFIGS]
        return sorted((plain(each) for each in kept), key=repr)
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, UUID):
        return "an id" if value.int > 1 << 32 else str(value)
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return value


class Both:
    """Sends requests to both brokers and collects the differences."""

    def __init__(
        self, kafka: BrokerProcess, odradek: BrokerProcess, source: str = "127.0.0.1"
    ) -> None:
        self.brokers = (kafka, odradek)
        self._source = source
        self.differences: list[str] = []

    def __call__(self, api: Api, version: int, **values: Any) -> None:
        self.each(
            lambda broker: ask(broker, api, version, values, self._source),
            f"{api.title} {version} {values}",
        )

    def each(self, question: Callable[[BrokerProcess], Any], title: str) -> None:
        kafka, odradek = (plain(question(broker)) for broker in self.brokers)
        if kafka != odradek:
            self.differences.append(f"{title}\n  Kafka:   {kafka}\n  Odradek: {odradek}")


def topic(
    name: str,
    partitions: int = 1,
    replication_factor: int = 1,
    configs: Sequence[tuple[str, str | None]] = (),
    assignments: Sequence[tuple[int, Sequence[int]]] = (),
) -> Values:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replication_factor,
        "assignments": [
            {"partition_index": index, "broker_ids": replicas} for index, replicas in assignments
        ],
        "configs": [{"name": key, "value": value} for key, value in configs],
    }
